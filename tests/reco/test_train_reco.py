"""Options and presets of `train reco`."""

import json
from dataclasses import replace

import pytest

from pictures import captioned
from recollect import cli
from recollect.cli import train_reco
from recollect.cli.parser import options_of, settings_text
from recollect.data.sources import open_source
from recollect.index import Index
from recollect.models import DualEncoder, build_model
from recollect.reco.block import FusionModule


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Folder with a table of 24 pictures, some with equal captions, a model, and an index."""
    folder = tmp_path_factory.mktemp("reading")
    captioned(folder, [f"noise of kind {number // 2}" for number in range(24)])
    build_model("tiny", texts=[f"noise of kind {number}" for number in range(12)]).save(folder / "model")
    Index.build(open_source(str(folder / "pairs.csv")), folder / "model", out=folder / "index")
    return folder


def train(folder, out, *words, index=None):
    """Train without a model argument: the index records its model."""
    command = ["train", "reco", "--index", index or folder / "index", "--data", folder / "pairs.csv"]
    return cli.main([str(word) for word in (*command, "--out", out, "--epochs", 1, "--k", 3, *words)])


@pytest.mark.parametrize(
    ("words", "start", "mask", "newness", "score_of", "rate"),
    [
        ((), "gate", "caption", ("offsets", 2.0, 0.5), "image", 1e-4),
        (("--preset", "paper"), "embedding", "none", ("none", 2.0, 0.5), "searched", 1e-3),
        (
            ("--preset", "paper", "--start", "gate", "--mask", "both", "--newness", "offsets", "--learning-rate", 0.01),
            "gate", "both", ("offsets", 2.0, 0.5), "searched", 0.01,
        ),
        (("--newness", "none", "--mask", "none"), "gate", "none", ("none", 2.0, 0.5), "image", 1e-4),
    ],
)  # fmt: skip
def test_options_override_the_preset(pairs, tmp_path, words, start, mask, newness, score_of, rate):
    assert train(pairs, tmp_path / "run", *words) == 0
    fusion = FusionModule.open(tmp_path / "run" / "model")
    assert (fusion.settings.start, fusion.trained["mask"]) == (start, mask)
    assert tuple(fusion.trained["newness"].values()) == newness
    recipe = json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert (recipe["score_of"], recipe["mask"], recipe["optimizer"]["learning_rate"]) == (score_of, mask, rate)
    assert recipe["model"]["start"] == str(pairs / "model"), "must be recorded to repeat the run"
    assert f'index = "{pairs / "index"}"' in (tmp_path / "run.toml").read_text()


def test_pairs_are_embedded_once(pairs, tmp_path, monkeypatch):
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))
    embed, counts = DualEncoder.embed_images, []
    monkeypatch.setattr(DualEncoder, "embed_images", lambda self, each: counts.append(len(each)) or embed(self, each))
    fusions = []
    for name in ("first", "second"):
        assert train(pairs, tmp_path / name) == 0
        fusions.append(FusionModule.open(tmp_path / name / "model").fingerprint)
    assert counts.count(24) == 1  # opening a model embeds one picture to check it
    assert fusions[0] == fusions[1]


def test_no_file_of_a_run_holds_the_password_of_the_index(pairs, tmp_path):
    pytest.importorskip("pymilvus")
    address = f"milvus://me:secret@{tmp_path}/lite.db/pictures"
    Index.build(open_source(str(pairs / "pairs.csv")), pairs / "model", out=address)
    assert train(pairs, tmp_path / "run", index=address) == 0
    assert train(pairs, tmp_path / "run", "--resume", index=address) == 0
    written = [file for file in tmp_path.rglob("*") if file.is_file() and "lite.db" not in str(file)]
    assert not [file for file in written if b"secret" in file.read_bytes()]
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["index"] == address.replace("me:secret@", "")


@pytest.fixture
def parse_command(monkeypatch):
    """Function that parses a command line and returns the command instead of running it."""
    commands = []
    monkeypatch.setattr(train_reco.TrainReco, "run", lambda self: commands.append(self))

    def run(*words):
        status = cli.main(["train", "reco", *(str(word) for word in words)])
        return commands.pop() if status == 0 else None

    return run


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--preset", "paper", "--limit", 9, "--split", "train"),
        ("--epochs", 3, "--batch-size", 7, "--chunk", 3, "--seed", 4),
        ("--newness", "none", "--search", "cross", "--read", "both", "--max-score", 1.5, "--k", 2),
        ("--newness", "offsets", "--mask", "id", "--start", "gate", "--weight", 0.2),
        ("--learning-rate", 0.1, "--weight-decay", 0.2, "--log-every", 3, "--checkpoint-every", 4),
    ],
)
def test_the_saved_settings_of_a_run_can_start_another(parse_command, tmp_path, words):
    first = parse_command("--index", "index", "--data", "pairs.csv", "more.csv", *words)
    file = tmp_path / "reco.toml"
    file.write_text(settings_text(list(options_of(train_reco.TrainReco, first))))
    assert parse_command("--config", file) == first
    again = parse_command("--config", file, "--index", "other", "--k", 5)
    assert again == replace(first, index="other", k=5)
