"""Runs of real recipes with real sources and towers, some through the command line."""

import json
import os
import shutil
import signal
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pictures import captioned
from recollect import cli
from recollect.core import content
from recollect.core.checksums import CHECKSUMS
from recollect.core.errors import UserError
from recollect.models import build_model, load_model
from recollect.models.dual import RECORD
from recollect.objectives import ContextObjective
from recollect.training import checkpoints
from recollect.training.assembly import assemble_recipe, build_objective, start_model
from recollect.training.loop import train
from recollect.training.options import Context, Data, Model, ObjectiveOptions
from recollect.training.ranks import ProcessRanks
from recollect.training.recipes import RECIPES
from recollect_papers.lixp.ablations import AblatedContext, ContextOptions
from run_files import files, metrics, weights

RUNS = {
    # --data is added below.
    "pictures": (*("siglixp-tiny", "--batch-size", "8", "--steps", "8", "--chunk", "3", "--log-every", "1"),
                 *("--checkpoint-every", "3")),
    "locked": (*("glyphs-siglixp", "--locked", "image", "--batch-size", "8", "--steps", "8"),
               *("--log-every", "1", "--checkpoint-every", "3")),
    "vectors": (*("latents-siglixp", "--steps", "40", "--batch-size", "64"),
                *("--checkpoint-every", "2", "--log-every", "1")),
}  # fmt: skip

LOAD_RECORDS = {"config.json", "tokenizer_config.json"}
"""Files in which transformers records how a model was loaded."""


def recollect(*words) -> int:
    return cli.main([str(word) for word in words])


def wait_for_lines(out: Path, count: int) -> None:
    while not ((out / "metrics.jsonl").exists() and len((out / "metrics.jsonl").read_text().splitlines()) >= count):
        time.sleep(0.001)


def model_files(folder: Path) -> dict[str, Any]:
    """Return the contents of a model's files, except ``LOAD_RECORDS`` and checksums."""
    found = {name: data for name, data in files(folder).items() if name not in (*LOAD_RECORDS, CHECKSUMS)}
    return found | {RECORD: json.loads(found[RECORD])}


@pytest.mark.parametrize("run", RUNS)
def test_a_command_killed_and_resumed_gives_the_same_bits(run, pairs, in_child, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    words = ("train", *RUNS[run], *(("--data", pairs) if run != "vectors" else ()))
    assert in_child(lambda: recollect(*words, "--out", whole)) == 0
    for written in (2, 5):  # possibly before the first checkpoint; after at least one

        def work(written=written):
            def end():
                wait_for_lines(broken, written)
                os.kill(os.getpid(), signal.SIGKILL)

            threading.Thread(target=end, daemon=True).start()
            again = ("--resume",) if broken.exists() else ()
            recollect(*words, "--out", broken, *again)

        assert in_child(work) == -signal.SIGKILL
        assert len(metrics(broken)) >= written
    assert checkpoints.latest(broken / "checkpoints"), "the last resume must start from a checkpoint"
    assert not (broken / "model").exists()
    assert in_child(lambda: recollect(*words, "--out", broken, "--resume")) == 0
    assert model_files(broken / "model") == model_files(whole / "model")
    assert metrics(broken) == metrics(whole)


def test_a_model_is_saved_with_its_trained_temperature(tmp_path):
    recipe = replace(RECIPES["latents-siglixp"](), steps=5, batch_size=32, checkpoint_every=2)
    model = load_model(train(recipe, tmp_path / "run", device="cpu"), "cpu")
    saved = checkpoints.latest(tmp_path / "run" / "checkpoints")
    tensors = load_file(saved / "training.safetensors")
    assert model.scale == pytest.approx(float(tensors["objective/term.log_scale"].exp()), rel=1e-6)
    assert model.bias == pytest.approx(float(tensors["objective/term.bias"]), rel=1e-6)
    assert model.scale != pytest.approx(10.0, rel=1e-4), "must have changed"
    assert load_model(saved / "model", "cpu").fingerprint == model.fingerprint


def test_post_training_starts_from_the_checkpoints_weights_and_temperature(tmp_path):
    first = build_model("tiny", texts=["a cat", "a red dog"])
    first.set_scale(42.0, -3.0)
    first.save(tmp_path / "first")
    start = start_model(Model(str(tmp_path / "first"), prefixes=("caption", "label")), (), seed=0)
    assert torch.equal(start.embed_texts(["a cat"]), first.embed_texts(["a cat"]))
    assert set(start.prefixes) == {"caption", "label"}
    objective = build_objective(ObjectiveOptions(context=Context()), start)
    assert isinstance(objective, ContextObjective)
    assert objective.term.log_scale.exp().item() == pytest.approx(42.0)
    assert objective.term.bias.item() == pytest.approx(-3.0)
    named = build_objective(ObjectiveOptions(scale=7.0, bias=0.0), start)
    assert named.term.log_scale.exp().item() == pytest.approx(7.0)
    assert named.term.bias.item() == 0.0


def test_the_heads_of_an_ablation_are_initialized_from_the_seed():
    model = build_model("tiny", texts=["a photo of a cat"])
    options = ObjectiveOptions(context=AblatedContext(options=ContextOptions(value_head=2)))
    states = [build_objective(options, model, seed).state_dict() for seed in (0, 0, 1)]
    heads = [torch.cat([value.ravel() for name, value in state.items() if "head" in name]) for state in states]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


@pytest.fixture
def table(tmp_path):
    return captioned(tmp_path / "own", [f"noise number {n} in many colors" for n in range(20)])


def test_resuming_with_changed_data_is_rejected_with_the_difference(table, tmp_path):
    text, out = table.read_text(), tmp_path / "run"
    recipe = replace(RECIPES["siglip-tiny"](), steps=1, batch_size=2, data=Data(sources=(str(table),)))
    train(recipe, out, device="cpu")
    table.write_text("\n".join(text.split("\n")[:13]))
    with pytest.raises(UserError) as refused:
        train(replace(recipe, steps=2), out, resume=True, device="cpu")
    assert f"needs the same data, but {table} had 20 samples, has 12 samples. " in str(refused.value)
    assert "content" not in str(refused.value)
    table.write_text(text.replace("colors", "COLORS"))  # same number of bytes and samples
    with pytest.raises(UserError, match=rf"but {table} had content \w+, has content \w+\."):
        train(replace(recipe, steps=2), out, resume=True, device="cpu")
    table.write_text(text)
    table.with_name("7.png").write_bytes(table.with_name("8.png").read_bytes())
    with pytest.raises(UserError, match=rf"but {table} had content \w+, has content \w+\."):
        train(replace(recipe, steps=2), out, resume=True, device="cpu")


def test_a_change_in_the_middle_of_a_large_file_is_detected_and_a_copy_accepted(table, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(content, "_MAX_FULL_READ", 100)
    monkeypatch.setattr(content, "_PROBE_SIZE", 4)
    text, out, data = table.read_text(), tmp_path / "run", Data(sources=(str(table),))
    recipe = replace(RECIPES["siglip-tiny"](), model=Model("tiny-conv"), steps=1, batch_size=2, data=data)
    before, parts = table.stat(), content.portable_hash([table])
    train(recipe, out, device="cpu")

    for place in range(19):  # find a caption that no probe covers
        table.write_text(text.replace(f"number {place} in", f"NUMBER {place} in"))
        if content.portable_hash([table]) == parts:
            break
    else:
        pytest.fail("the probes cover every caption, so the test is inconclusive")
    os.utime(table, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(UserError, match=r"pairs\.csv had whole content \w+, has whole content \w+\."):
        train(replace(recipe, steps=2), out, resume=True, device="cpu")

    table.write_text(text)  # restored, with a new modification time
    read, counter = [], SimpleNamespace(advance=lambda mebibytes: None)
    monkeypatch.setattr(content, "progress", lambda what, *rest: read.append(what) or nullcontext(counter))
    assert content.full_hash([table], "own") == content.full_hash([table], "own")
    assert read == ["check own once"], "an unchanged file is read once"
    monkeypatch.setattr(content, "_MAX_BYTES", 0)  # too large for a full read
    train(replace(recipe, steps=2), out, resume=True, device="cpu")
    warning = " ".join(capfd.readouterr().err.split())
    assert "too large to compare" in warning
    train(replace(recipe, steps=3), out, resume=True, device="cpu")
    assert "too large to compare" not in capfd.readouterr().err, "the file is unchanged"


def test_a_batch_embedded_in_chunks_is_stored_as_bytes(pairs):
    recipe = replace(RECIPES["siglip-tiny"](), batch_size=6, data=Data(captions=(str(pairs),)))
    here = ProcessRanks(0, 1, torch.device("cpu"))
    whole, kept = (next(assemble_recipe(replace(recipe, chunk=chunk), here, None).feed(0, 1)) for chunk in (None, 4))
    assert kept.images.dtype == torch.uint8
    assert torch.equal(kept.prepare(kept.images[2:5]), whole.images[2:5])
    specs = (str(pairs), f"{pairs}?split=train[:5]")  # a split in the address overrides the option
    parts = assemble_recipe(replace(recipe, data=Data(captions=specs, split="train[:7]")), here, None)
    assert [parts.data[spec]["samples"] for spec in specs] == [7, 5]


def test_files_with_the_same_name_are_distinguished_by_their_folders(pairs, tmp_path):
    for folder in ("one/set", "two/set", "three"):
        shutil.copytree(pairs.parent, tmp_path / folder)
    specs = [str(tmp_path / folder / "pairs.csv") for folder in ("one/set", "two/set", "three")]
    recipe = replace(RECIPES["siglip-tiny"](), steps=1, batch_size=6, data=Data(captions=tuple(specs)))
    train(recipe, tmp_path / "run", device="cpu")
    names = [f"{Path(tmp_path, folder).relative_to(tmp_path)}/pairs" for folder in ("one/set", "two/set")]
    assert list(metrics(tmp_path / "run")[-1]["seen"]) == [*names, f"{tmp_path.name}/three/pairs"]
    for twice in ((specs[0], specs[0]), (specs[0], f"{tmp_path}/one/../one/set/pairs.csv")):
        with pytest.raises(UserError, match="pairs"):
            train(replace(recipe, data=Data(captions=twice)), tmp_path / "twice", device="cpu")


def test_a_preset_learns_from_pictures(pairs, tmp_path):
    """Every weight of both towers changes, and the loss falls."""
    recipe = replace(RECIPES["siglip-tiny"](), model=Model("tiny"), steps=3, batch_size=8, log_every=1)
    recipe = replace(recipe, data=Data(sources=(str(pairs),)), optimizer=replace(recipe.optimizer, warmup=0.0))
    untrained = train(replace(recipe, steps=1, optimizer=replace(recipe.optimizer, learning_rate=0.0)), tmp_path / "0")
    trained = train(recipe, tmp_path / "1")
    before, after = (weights(model) for model in (untrained, trained))
    still = {name for name in before if torch.equal(before[name], after[name])}
    # A key bias adds a constant to all logits of a query, which does not affect the softmax.
    assert {name for name in still if not name.endswith("k_proj.bias")} == set()
    assert metrics(tmp_path / "1")[-1]["loss"] < metrics(tmp_path / "1")[0]["loss"]
