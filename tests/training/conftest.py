"""Minimal models and objectives for trainer tests, and fixtures that run code in other processes."""

import json
import multiprocessing
import os
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from pictures import captioned
from recollect.core.seeding import torch_generator
from recollect.models import build_model
from recollect.objectives import Objective
from recollect.objectives.shards import WHOLE, Shard
from recollect.training.assembly import Parts
from recollect.training.loop import Hook, train
from recollect.training.ranks import ranks
from recollect.training.step import Inputs

WIDTH, LENGTH, WORDS = 6, 5, 11


class SmallModel(nn.Module):
    """Two small towers with dropout; the text tower uses a mask, as real ones do."""

    def __init__(self, dropout: float = 0.3) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Dropout(dropout), nn.Linear(8, WIDTH))
        self.words = nn.Embedding(WORDS, 8)
        self.register_buffer("scale", torch.tensor(0.0))
        self.text = nn.Sequential(nn.Dropout(dropout), nn.GELU(), nn.Linear(8, WIDTH))

    @property
    def device(self) -> torch.device:
        return self.words.weight.device

    @property
    def encoder(self) -> None:
        return None

    def encode_images(self, pixels: Tensor) -> Tensor:
        return self.image(pixels.to(self.words.weight.dtype))

    def encode_texts(self, tokens: dict[str, Tensor]) -> Tensor:
        mask = tokens["mask"].to(self.words.weight.dtype)
        return self.text((self.words(tokens["ids"]) * mask[..., None]).sum(1))

    def set_scale(self, scale: float, bias: float | None = None) -> None:
        self.scale.fill_(scale)

    def save(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        save_file(self.state_dict(), folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({"dropout": self.image[2].p}))

    def publish(self, folder: Path) -> None:
        self.save(folder)

    @classmethod
    def load(cls, folder: Path) -> "SmallModel":
        model = cls(**json.loads((folder / "config.json").read_text()))
        model.load_state_dict(load_file(folder / "model.safetensors"))
        return model


class SmallObjective(Objective):
    """Sigmoid loss with temperatures, a head with weight decay, and a buffer that stores the last batch's mean."""

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(1.0))
        self.bias = nn.Parameter(torch.tensor(-1.0))
        self.head = nn.Linear(WIDTH, WIDTH, bias=False)
        self.register_buffer("remembered", torch.zeros(WIDTH))

    def scale_and_bias(self) -> tuple[float, float]:
        return self.log_scale.exp().item(), self.bias.item()

    def temperatures(self) -> list[nn.Parameter]:
        return [self.log_scale, self.bias]

    def forward(
        self,
        images: Tensor,
        texts: Tensor,
        *,
        labels: Tensor | None = None,
        views: Tensor | None = None,
        context: Tensor | None = None,
        shard: Shard = WHOLE,
        **_,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        # Every process computes the whole loss and returns its share.
        images, texts = shard.gather(images), shard.gather(texts)
        labels = None if labels is None else shard.gather(labels)
        views, context = (None if rows is None else shard.gather(rows) for rows in (views, context))
        x, t = functional.normalize(self.head(images)), functional.normalize(texts)
        logits = self.log_scale.exp() * x @ t.T + self.bias
        same = torch.eye(len(x), dtype=logits.dtype) if labels is None else (labels[:, None] == labels).to(logits.dtype)
        loss = -functional.logsigmoid((2 * same - 1) * logits).sum() / len(x)
        loss = loss + 0.1 * (self.remembered.clone() * images.mean(0)).sum()
        for others in (views, context):
            if others is not None:
                loss = loss + (x @ functional.normalize(others).T).square().mean()
        with torch.no_grad():
            self.remembered.copy_(images.detach().mean(0))
        return loss / shard.size, {"loss": loss.detach(), "scale": self.log_scale.detach().exp()}


def inputs_of_step(step: int, rows: int = 12, first: int = 0, last: int | None = None) -> Inputs:
    """Return rows ``first:last`` of a batch that depends only on the step."""
    generator = torch_generator("batch", step)
    images = torch.randn(rows, 4, generator=generator)
    ids = torch.randint(0, WORDS, (rows, LENGTH), generator=generator)
    mask = (torch.rand(rows, LENGTH, generator=generator) < 0.7).long()
    part = slice(first, last)
    return Inputs(images[part], {"ids": ids[part], "mask": mask[part]})


def small_parts(recipe, place, saved_model) -> Parts:
    """Replacement for `assemble` with a small model and objective."""
    torch.manual_seed(recipe.seed)
    model, objective = SmallModel(), SmallObjective()
    if saved_model:
        model = SmallModel.load(saved_model)

    def feed(start: int, stop: int):
        rows = recipe.batch_size // place.size
        for step in range(start, stop):
            first = place.rank * rows
            yield inputs_of_step(step, recipe.batch_size, first, first + rows)

    def seen(steps: int):
        return {"even": (steps + 1) // 2 * recipe.batch_size, "odd": steps // 2 * recipe.batch_size}

    return Parts(model, objective, feed, seen)


def watched_parts(callback, parts=small_parts):
    """Make ``parts`` call ``callback(step, inputs, place)`` before each step; it may return replacement inputs."""

    def assemble(recipe, place, saved_model) -> Parts:
        assembled = parts(recipe, place, saved_model)

        def feed(start: int, stop: int):
            for step, inputs in enumerate(assembled.feed(start, stop), start):
                yield callback(step, inputs, place) or inputs

        return replace(assembled, feed=feed)

    return assemble


def failing_parts(at: int, error: Exception, parts=small_parts):
    """Make ``parts`` raise when step ``at`` asks for its batch."""

    def callback(step, *_):
        if step == at:
            raise error

    return watched_parts(callback, parts)


def cut_and_resumed(recipe, out: Path, at: int, **options) -> Path:
    """Interrupt a run in an evaluation after step ``at``, resume it, and return its model."""

    def power_cut(model):
        raise RuntimeError("power")

    with pytest.raises(RuntimeError, match="power"):
        train(recipe, out, device="cpu", hooks=[Hook(at, power_cut)], **options)
    return train(recipe, out, device="cpu", resume=True, **options)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def small():
    """Small parts by name."""
    return SimpleNamespace(
        Model=SmallModel, Objective=SmallObjective, inputs=inputs_of_step, parts=small_parts, watched=watched_parts,
        failing=failing_parts,
    )  # fmt: skip


@pytest.fixture(scope="session", name="cut_and_resumed")
def cut_and_resumed_fixture():
    return cut_and_resumed


@pytest.fixture(scope="session")
def pairs(tmp_path_factory) -> Path:
    """CSV of twenty captioned noise pictures."""
    return captioned(tmp_path_factory.mktemp("noise"), [f"noise number {n} in many colors" for n in range(20)])


@pytest.fixture(scope="session")
def start(tmp_path_factory) -> Path:
    """Small transformers checkpoint to start from."""
    return build_model("tiny", texts=["noise number many colors"]).save(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def in_processes():
    """Return a function that runs ``work(rank)`` in forked processes, with the environment that `torchrun` sets."""

    def run(work, size: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]

        def start(rank: int) -> None:
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
            os.environ.update({name: str(value) for name, value in place.items()}, MASTER_ADDR="127.0.0.1")
            work(rank)

        fork = multiprocessing.get_context("fork")
        processes = [fork.Process(target=start, args=(rank,)) for rank in range(size)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
        assert [process.exitcode for process in processes] == [0] * size

    return run


@pytest.fixture
def in_ranks(in_processes, tmp_path):
    """Return a function that runs ``work(rank)`` in a group of processes and returns all results."""

    def run(work, size: int) -> list:
        def save(rank: int) -> None:
            with ranks("cpu"):
                torch.save(work(rank), tmp_path / f"{rank}.pt")

        in_processes(save, size)
        return [torch.load(tmp_path / f"{rank}.pt") for rank in range(size)]

    return run


@pytest.fixture(scope="session")
def in_child():
    """Return a function that runs ``work`` in a forked process and returns its exit status, negative for a signal."""

    def run(work) -> int:
        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        child.join(120)
        if child.is_alive():
            child.kill()
        return child.exitcode

    return run
