"""What reads a memory, learning over two processes: each keeps its rows, and together they have the step of one."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from recollect.index import Index
from recollect.models import build_model
from recollect.objectives import ContextObjective, ContrastiveObjective
from recollect.reco.block import FusionModule, FusionSettings
from recollect.reco.learning import FusionTowers
from recollect.reco.objective import TERMS, FusionObjective
from recollect.reco.pairs import Pairs
from recollect.testing import HashEncoder
from recollect.training.options import Data
from recollect.training.ranks import ranks, shard_of_this_process, sum_gradients
from recollect.training.recipes import RECIPES
from recollect.training.step import Inputs, StepOptions, train_step
from recollect_papers.reco import ra_clip as joint_runs
from recollect_papers.reco.ra_clip import ReadingTowers

BATCH, PLACES, WIDTH, READS, K = 12, 4, 8, 6, 2
CASES = [
    (start, terms, masked)
    for start in ("embedding", "mean", "gate")
    for terms, masked in ((TERMS, False), (TERMS, True), (("image",), True))
]


def moved(module):
    """In float64, and away from its start: an untrained block has branches of zeros, behind which nothing learns."""
    module = module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, dtype=torch.float64))
    return module


def rows_of(rank, shard):
    return slice(rank * BATCH // shard.size, (rank + 1) * BATCH // shard.size)


def gradients(**modules):
    named = [(f"{room}.{name}", one) for room, module in modules.items() for name, one in module.named_parameters()]
    return {name: one.grad for name, one in named if one.grad is not None}


def fused(case, rank, shard):
    """Loss, report and gradients, of the fusion and of the temperature, for this process's rows of one batch."""
    start, terms, masked = CASES[case]
    torch.manual_seed(1)
    towers = moved(FusionTowers(FusionModule(FusionSettings(WIDTH, start=start))))
    objective = FusionObjective(terms, scale=5.0).double()
    images, texts = (torch.randn(BATCH, PLACES, WIDTH, dtype=torch.float64) for _ in range(2))
    images[3, 2:] = 0  # empty places
    groups = torch.stack([torch.arange(BATCH) % 5, torch.arange(BATCH) % 7], dim=1)  # some across the processes
    mine = rows_of(rank, shard)
    # the towers hand on float32, as they are trained; here the fusion is asked itself
    refined = [towers.fusion(*each) for each in (("image", images[mine]), ("text", texts[mine]))]
    rows = [torch.cat([made, tokens[mine, 0]], dim=1) for made, tokens in zip(refined, (images, texts), strict=True)]
    loss, report = objective(*rows, labels=groups[mine] if masked else None, shard=shard)
    loss.backward()
    sum_gradients([*towers.parameters(), *objective.parameters()])
    return {"total": shard.total(loss), **report, **gradients(towers=towers, objective=objective)}


class Linear(nn.Module):
    """Towers as small as can be."""

    device = torch.device("cpu")

    def __init__(self):
        super().__init__()
        self.images, self.texts = nn.Linear(5, WIDTH), nn.Linear(4, WIDTH)

    def encode_images(self, pixels):
        return self.images(pixels)

    def encode_texts(self, tokens):
        return self.texts(tokens["words"])


def joint(base, rank, shard):
    """Report and gradients of a step of towers that learn together with what reads for them (RA-CLIP)."""
    torch.manual_seed(2)
    settings = FusionSettings(WIDTH, read="both", modalities="image", start="gate", reads=READS)
    values = torch.randn(9, READS, dtype=torch.float64)
    values[0] = 0
    found = torch.randint(1, 9, (20, 2 * K))
    found[0], found[4, K:] = 0, 0  # a picture that could not be read, and one that found no image
    searcher = build_model("tiny-conv", texts=["a"])
    memory = Index.create(width=searcher.width, model=searcher.fingerprint)
    model = moved(ReadingTowers(Linear(), FusionModule(settings), values, found, memory, searcher, K))
    objective = (ContrastiveObjective("softmax") if base == "softmax" else ContextObjective("sigmoid")).double()
    images, words = (torch.randn(BATCH, size, dtype=torch.float64) for size in (5, 4))
    pictures, mine = torch.randint(20, (BATCH,)), rows_of(rank, shard)
    pictures[:2], pictures[7] = torch.tensor([0, 4]), 0
    inputs = Inputs(images[mine], {"words": words[mine]}, beside={"pictures": pictures[mine]})
    report = train_step(model, objective, inputs, StepOptions(chunk=4))  # of one process three, of two two chunks
    return {**report, **gradients(towers=model, objective=objective)}


def same_runs(folder: Path, whole_run) -> None:
    """Whole runs of RA-CLIP too: the first process finds what the pictures read, each reads it with its rows."""
    whole_run("one", 0)
    one, two = (
        [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    )
    assert len(one) == len(two) == 2
    for alone, shared in zip(one, two, strict=True):
        assert shared["loss"] == pytest.approx(alone["loss"], rel=1e-5)
        assert shared["gradient_norm"] == pytest.approx(alone["gradient_norm"], rel=1e-4)
    file = Path("model", joint_runs.FUSION, "fusion.safetensors")
    weights = [load_file(folder / name / file) for name in ("one", "two")]
    for name, value in weights[0].items():
        # as a whole: Adam divides by the gradient's size, so a weight whose gradients nearly cancel follows rounding
        assert torch.linalg.vector_norm(weights[1][name] - value) <= 1e-4 * torch.linalg.vector_norm(value) + 1e-4, name


@pytest.fixture
def whole_run(tmp_path, monkeypatch):
    """A run of towers that read an index in RAM, from its pictures on; each process has a cache of its own."""
    searcher, captions = HashEncoder(), [f"a caption, number {number}" for number in range(20)]
    drawn = np.random.default_rng(0).normal(size=(2, 20, searcher.width)).astype(np.float32)
    images, texts = drawn / np.linalg.norm(drawn, axis=2, keepdims=True)
    pairs = Pairs(images, texts, captions, [f"m:{n}" for n in range(20)], searcher.fingerprint)
    index = pairs.index()
    monkeypatch.setattr(joint_runs.Index, "open", lambda address: index)
    monkeypatch.setattr(joint_runs.Index, "open_model", lambda *_: (searcher, "searcher"))
    plain = joint_runs.joint_recipe(RECIPES["latents-siglip"]())
    data = Data(sources=("latents:captions?size=24",))
    recipe = replace(plain, data=data, index="m", k=3, max_score=2.0, steps=2, batch_size=8, log_every=1)

    def run(name, rank):
        monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / f"{name}-cache-{rank}"))
        joint_runs.train_joint(recipe, tmp_path / name, device="cpu")

    return run


def test_two_processes_have_the_loss_and_gradients_of_one(in_processes, tmp_path, whole_run):
    made = [(fused, case) for case in range(len(CASES))] + [(joint, base) for base in ("softmax", "context")]

    def work(rank):
        with ranks("cpu"):
            torch.save([make(case, rank, shard_of_this_process()) for make, case in made], tmp_path / f"{rank}.pt")
        whole_run("two", rank)

    in_processes(work, 2)
    same_runs(tmp_path, whole_run)
    shares = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for place, (make, case) in enumerate(made):
        expected = make(case, 0, shard_of_this_process())
        if make is fused:
            assert float(expected["total"].detach()) == pytest.approx(float(expected["loss"]))
        learned = {name for name, value in expected.items() if "fusion." in name and value.abs().max() > 1e-6}
        assert learned, (make, case)
        if make is joint:
            assert {"towers.fusion.adapters.text.weight", "towers.fusion.adapters.image.weight"} <= learned
            assert expected["towers.towers.images.weight"].abs().max() > 1e-6
        for share in shares:
            assert share[place].keys() == expected.keys()
            for name, value in expected.items():
                error = float((share[place][name] - value.detach()).abs().max())
                assert error < 1e-9, (make, case, name, error)
