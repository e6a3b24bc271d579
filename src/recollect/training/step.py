"""One step for every way of training: the whole batch at once, in chunks, on many machines.

A loss sees only embeddings, so a batch may be embedded piece by piece. With more than one chunk this is gradient
caching (Gao et al., 2021): embed without keeping activations, form one loss on the whole batch, and embed each chunk
again, with the same random numbers, when the gradient comes back to it. Memory is set by the chunk and the gradients
are those of the whole batch, temperatures included. `torch.utils.checkpoint` is that mechanism.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from recollect.core.seeding import derive_seed, seed_default_generators
from recollect.core.types import Encoder
from recollect.objectives import Objective
from recollect.training.precision import Precision, autocast
from recollect.training.ranks import rank, shard_of_this_process, sum_gradients


@runtime_checkable
class Towers(Protocol):
    """What training asks of a model; `recollect.models.DualEncoder` is one."""

    @property
    def device(self) -> torch.device: ...

    @property
    def encoder(self) -> Encoder | None:
        """What embeds with these weights, for those who measure it; None where they embed nothing by themselves."""
        ...

    @property
    def encode_images(self) -> Callable[..., Tensor]:
        """From pixels, and what `Inputs.beside` holds of the same rows, to raw image embeddings, with graph."""
        ...

    def encode_texts(self, tokens: dict[str, Tensor]) -> Tensor:
        """Raw text embeddings, with graph."""
        ...

    def save(self, folder: Path) -> Any:
        """Write everything that training needs to go on into ``folder``."""
        ...

    def publish(self, folder: Path) -> Any:
        """Write the finished model as those open it who only use it."""
        ...

    def set_scale(self, scale: float, bias: float | None = None) -> None:
        """Note the temperature and bias that training has come to; no embedding depends on them."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...

    def train(self, mode: bool = True) -> Any: ...

    def to(self, device: torch.device) -> Any: ...


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the towers read in one step; tensors may stay on the CPU, each chunk is moved when it is embedded.

    Attributes:
        images: pixels (n, 3, height, width), or vectors (n, width); or what ``prepare`` makes them of.
        tokens: what the tokenizer made of the n texts.
        labels: int64 (n,), or None.
        views: a second augmented view of each image, or None.
        context: images of a separate batch to look things up in, or None; any number of rows.
        marks: int64 (n, marks), not negative; samples that share one are copies. None where none are.
        context_marks: the same of ``context``.
        prepare: of some rows of ``images``, ``views`` and ``context``, on the device, makes what the towers read: of
            bytes, which take a quarter of the memory, numbers. None where they are that.
        beside: what else the towers read of each of ``images``, by the name that `Towers.encode_images` gives it; most
            read nothing.
    """

    images: Tensor
    tokens: Mapping[str, Tensor]
    labels: Tensor | None = None
    views: Tensor | None = None
    context: Tensor | None = None
    marks: Tensor | None = None
    context_marks: Tensor | None = None
    prepare: Callable[[Tensor], Tensor] | None = None
    beside: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepOptions:
    """How to embed a batch.

    Attributes:
        chunk: rows embedded at a time; None embeds all at once and keeps their activations.
        precision: of the towers' arithmetic; weights, loss and gradients stay float32.
        seed: of the towers' random numbers (dropout, drop path) and of the objective's.
        loss_scale: the backward pass is of this many times the loss; gradients are divided by it again.
    """

    chunk: int | None = None
    precision: Precision = "float32"
    seed: int = 0
    loss_scale: float = 1.0


EmbeddingColumns = Mapping[str, Tensor]
"""Tensors with the same rows."""


def embed(
    encode: Callable[[EmbeddingColumns], Tensor],
    columns: EmbeddingColumns,
    device: torch.device,
    options: StepOptions,
    what: str,
) -> Float[Tensor, "rows width"]:
    """Embed ``columns`` chunk by chunk; with more than one chunk, activations are recomputed in the backward pass.

    The random numbers of a chunk are a function of the seed, of ``what`` and of the chunk's place, so that the second
    pass draws those of the first. Autocast is entered inside a chunk: weights are then cast once per chunk, and the
    chunks' gradients add up in float32, not in bfloat16.
    """

    def encode_chunk(chunk: EmbeddingColumns, seed: int) -> Tensor:
        seed_default_generators(seed)
        with autocast(device, options.precision):
            rows = encode({name: column.to(device, non_blocking=True) for name, column in chunk.items()})
        return rows.float() if rows.dtype in (torch.bfloat16, torch.float16) else rows

    rows = len(next(iter(columns.values())))
    size = options.chunk or rows
    chunks = [
        {name: column[start : start + size] for name, column in columns.items()} for start in range(0, rows, size)
    ]
    seeds = [derive_seed(options.seed, what, rank(), place) for place in range(len(chunks))]
    if len(chunks) == 1:
        return encode_chunk(chunks[0], seeds[0])
    return torch.cat(
        [
            checkpoint(encode_chunk, chunk, seed, use_reentrant=False, preserve_rng_state=False)
            for chunk, seed in zip(chunks, seeds, strict=True)
        ]
    )


def train_step(
    model: Towers, objective: Objective, inputs: Inputs, options: StepOptions = StepOptions()
) -> dict[str, Tensor]:
    """Add the gradient of the objective on the whole batch, of all processes, to every parameter's ``grad``.

    Args:
        model: a dual encoder.
        objective: maps this process's raw embeddings to its part of the loss, and to a report of the whole batch
            (`recollect.objectives`).
        inputs: this process's rows of the batch.
        options: chunk, precision and seed; the seed must differ from step to step and agree between processes.

    Returns:
        The objective's report: detached scalars, the same in every process.
    """
    device = model.device

    def embed_images(
        pixels: Tensor | None, what: str, beside: EmbeddingColumns = MappingProxyType({})
    ) -> Tensor | None:
        if pixels is None:
            return None

        def encode(chunk: EmbeddingColumns) -> Tensor:
            rows, more = chunk["pixels"], {name: chunk[name] for name in beside}
            return model.encode_images(inputs.prepare(rows) if inputs.prepare else rows, **more)

        return embed(encode, {"pixels": pixels, **beside}, device, options, what)

    def here(numbers: Tensor | None) -> Tensor | None:
        return None if numbers is None else numbers.to(device)

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        loss, report = objective(
            embed_images(inputs.images, "images", inputs.beside),
            embed(lambda chunk: model.encode_texts(dict(chunk)), inputs.tokens, device, options, "texts"),
            labels=here(inputs.labels),
            views=embed_images(inputs.views, "views"),
            context=embed_images(inputs.context, "context"),
            marks=here(inputs.marks),
            context_marks=here(inputs.context_marks),
            seed=options.seed,
            shard=shard_of_this_process(),
        )
        (loss * options.loss_scale).backward()
    learning = [*model.parameters(), *objective.parameters()]
    sum_gradients(learning)
    if options.loss_scale != 1:
        for parameter in learning:
            if parameter.grad is not None:
                parameter.grad.div_(options.loss_scale)
    return report
