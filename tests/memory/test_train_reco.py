"""How a fusion learns to read, as it is chosen on the command line."""

import json

import numpy as np
import pytest
from PIL import Image

from recollect import cli
from recollect.commands import train_reco
from recollect.memory.fusion.block import FusionModule
from recollect.models import build_model


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """A table of 24 pictures, of which some share a caption, a model, and a memory of them."""
    folder = tmp_path_factory.mktemp("reading")
    lines = ["path,caption"]
    for number in range(24):
        pixels = np.random.default_rng(number).integers(0, 256, (20, 20, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        lines.append(f"{number}.png,noise of kind {number // 2}")
    (folder / "pairs.csv").write_text("\n".join(lines))
    build_model("tiny", texts=[f"noise of kind {number}" for number in range(12)]).save(folder / "model")
    words = ["memory", "build", folder / "model", folder / "pairs.csv", "--out", folder / "memory"]
    assert cli.main([str(word) for word in words]) == 0
    return folder


def train(folder, out, *words):
    command = ["train", "reco", folder / "model", "--memory", folder / "memory", "--data", folder / "pairs.csv"]
    return cli.main([str(word) for word in (*command, "--out", out, "--epochs", 1, "--k", 3, *words)])


@pytest.mark.parametrize(
    ("words", "start", "mask", "newness", "score_of"),
    [
        ((), "gate", "caption", ("offsets", 2.0, 0.5), "image"),
        (("--preset", "paper"), "embedding", "none", ("none", 2.0, 0.5), "searched"),
        (
            ("--preset", "paper", "--start", "mean", "--mask", "both", "--newness", "rotation"),
            "mean", "both", ("rotation", 1.0, 0.5), "searched",
        ),
        (
            ("--newness-strength", 3, "--newness-share", 1, "--mask", "none", "--score-of", "searched"),
            "gate", "none", ("offsets", 3.0, 1.0), "searched",
        ),
    ],
)  # fmt: skip
def test_a_preset_and_options_decide_how_it_learns_to_read(pairs, tmp_path, words, start, mask, newness, score_of):
    assert train(pairs, tmp_path / "run", *words) == 0
    fusion = FusionModule.open(tmp_path / "run" / "model")
    assert (fusion.settings.start, fusion.trained["mask"]) == (start, mask)
    assert tuple(fusion.trained["newness"].values()) == newness
    recipe = json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert (recipe["score_of"], recipe["mask"]) == (score_of, mask)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--newness-strength", 0), "--newness-strength 0.0: must be a positive"),
        (("--newness-share", 2), "--newness-share 2.0: must be more than 0"),
    ],
)
def test_a_strength_or_share_that_is_none_is_one_line(pairs, tmp_path, capsys, words, message):
    assert train(pairs, tmp_path / "run", *words) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_cross_fitting_trains_on_what_other_models_have_not_seen(pairs, tmp_path, capsys, monkeypatch):
    for number in range(2):
        words = [f"noise of kind {kind}" for kind in range(12)]
        build_model("tiny", texts=words, seed=number + 1).save(tmp_path / f"model-{number}")
    models = [tmp_path / f"model-{number}" for number in range(2)]
    assert train(pairs, tmp_path / "run", "--crossfit", *models) == 0
    assert FusionModule.open(tmp_path / "run" / "model").trained["folds"] == 2
    with monkeypatch.context() as patch:
        patch.delattr(train_reco, "embed_pairs")
        capsys.readouterr()
        for out, words, message in (
            ("run", ("--seed", 1), "a run is there already. Add --resume"),
            ("one", ("--crossfit", models[0]), "--crossfit takes two models or more"),
            ("gone", ("--crossfit", models[0], "./modle-1"), "./modle-1: no such folder"),
        ):
            assert train(pairs, tmp_path / out, *words) == 2
            assert message in capsys.readouterr().err
    assert train(pairs, tmp_path / "same", "--crossfit", pairs / "model", models[0]) == 2
    assert "model 0 of --crossfit: it is the model itself" in capsys.readouterr().err
