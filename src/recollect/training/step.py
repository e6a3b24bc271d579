"""One training step: the whole batch at once, in chunks, or over several processes.

A loss needs only embeddings, so a batch may be embedded in parts. With more than one chunk this is gradient caching
(Gao et al., 2021): embed without storing activations, compute one loss on the whole batch, and embed each chunk again
with the same random numbers in the backward pass (`torch.utils.checkpoint`). Memory depends on the chunk; the gradients
are those of the whole batch, including temperatures.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from recollect.core.errors import UserError
from recollect.core.seeding import derive_seed, seed_default_generators
from recollect.core.types import Encoder, Kind
from recollect.models import DualEncoder
from recollect.objectives import Objective
from recollect.training.precision import Precision, autocast
from recollect.training.ranks import rank, shard_of_this_process, sum_gradients


@runtime_checkable
class Towers(Protocol):
    """Model interface required by training; implemented by `recollect.models.DualEncoder`."""

    @property
    def device(self) -> torch.device: ...

    @property
    def encoder(self) -> Encoder | None:
        """Encoder with these weights, for evaluation; None if there is none."""
        ...

    @property
    def encode_images(self) -> Callable[..., Tensor]:
        """Maps pixels to raw image embeddings, with gradients."""
        ...

    def encode_texts(self, tokens: dict[str, Tensor]) -> Tensor:
        """Return raw text embeddings, with gradients."""
        ...

    def save(self, folder: Path) -> Any:
        """Write everything needed to resume training."""
        ...

    def publish(self, folder: Path) -> Any:
        """Write the finished model for users."""
        ...

    def set_scale(self, scale: float, bias: float | None = None) -> None:
        """Store the learned temperature and bias; embeddings do not depend on them."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]: ...

    def train(self, mode: bool = True) -> Any: ...

    def to(self, device: torch.device) -> Any: ...


class EncoderTowers(nn.Module):
    """A dual encoder in training; subclasses change the towers' inputs or the saved files."""

    def __init__(self, encoder: DualEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    @property
    def device(self) -> torch.device:
        return self.encoder.device

    def tokenize(self, texts: Sequence[str], kinds: Sequence[Kind]) -> dict[str, Tensor]:
        """Return the inputs of `encode_texts`."""
        return self.encoder.tokenize(texts, kinds)

    def encode_images(self, pixels: Float[Tensor, "n ..."]) -> Float[Tensor, "n width"]:
        return self.encoder.encode_images(pixels)

    def encode_texts(self, tokens: dict[str, Tensor]) -> Float[Tensor, "n width"]:
        return self.encoder.encode_texts(tokens)

    def set_scale(self, scale: float, bias: float | None = None) -> None:
        self.encoder.set_scale(scale, bias)

    def save(self, folder: Path) -> Path:
        return self.encoder.save(folder)

    def publish(self, folder: Path) -> Path:
        return self.save(folder)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs of one step. Tensors may stay on the CPU; each chunk is moved to the device when it is embedded.

    Attributes:
        images: pixels (n, 3, height, width) or vectors (n, width); raw input of ``prepare`` if that is set.
        tokens: tokenizer output for the n texts.
        labels: int64 (n,), or None.
        views: a second augmented view of each image, or None.
        context: images of a separate batch to look up, or None; any number of rows.
        duplicate_ids: int64 (n, columns), non-negative; samples that share an id are copies. None if all differ.
        context_duplicate_ids: the same for ``context``.
        prepare: converts rows of ``images``, ``views`` and ``context`` on the device, such as bytes (a quarter of the
            memory) to floats; None for no conversion.
    """

    images: Tensor
    tokens: Mapping[str, Tensor]
    labels: Tensor | None = None
    views: Tensor | None = None
    context: Tensor | None = None
    duplicate_ids: Tensor | None = None
    context_duplicate_ids: Tensor | None = None
    prepare: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True, slots=True)
class StepOptions:
    """Options of a training step.

    Attributes:
        chunk: rows to embed at a time; None embeds all at once and stores their activations.
        precision: precision of the towers; weights, loss and gradients stay float32.
        seed: random seed of the towers (dropout, drop path) and the objective.
        loss_scale: factor of the loss in the backward pass; gradients are divided by it afterwards.
    """

    chunk: int | None = None
    precision: Precision = "float32"
    seed: int = 0
    loss_scale: float = 1.0


EmbeddingColumns = Mapping[str, Tensor]
"""Tensors with the same number of rows, by name."""


def embed(
    encode: Callable[[EmbeddingColumns], Tensor],
    columns: EmbeddingColumns,
    device: torch.device,
    options: StepOptions,
    what: str,
) -> Float[Tensor, "rows width"]:
    """Embed ``columns`` chunk by chunk; with more than one chunk, activations are recomputed in the backward pass.

    The random numbers of a chunk depend on the seed, ``what`` and the chunk's position, so the second pass repeats the
    first. Autocast is entered per chunk: weights are cast once per chunk, and the gradients of chunks are summed in
    float32 instead of bfloat16.
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
    seeds = [derive_seed(options.seed, what, rank(), number) for number in range(len(chunks))]
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
    """Compute the objective on the batch of all processes and add its gradient to every parameter's ``grad``.

    Args:
        model: a dual encoder.
        objective: maps this process's raw embeddings to its part of the loss, and to a report of the whole batch
            (`recollect.objectives`).
        inputs: this process's rows of the batch.
        options: the seed must differ between steps and agree between processes.

    Returns:
        The objective's report: detached scalars, the same in every process.
    """
    device = model.device

    def embed_images(pixels: Tensor | None, what: str) -> Tensor | None:
        if pixels is None:
            return None

        def encode(chunk: EmbeddingColumns) -> Tensor:
            rows = chunk["pixels"]
            return model.encode_images(inputs.prepare(rows) if inputs.prepare else rows)

        return embed(encode, {"pixels": pixels}, device, options, what)

    def on_device(numbers: Tensor | None) -> Tensor | None:
        return None if numbers is None else numbers.to(device)

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        loss, report = objective(
            embed_images(inputs.images, "images"),
            embed(lambda chunk: model.encode_texts(dict(chunk)), inputs.tokens, device, options, "texts"),
            labels=on_device(inputs.labels),
            views=embed_images(inputs.views, "views"),
            context=embed_images(inputs.context, "context"),
            duplicate_ids=on_device(inputs.duplicate_ids),
            context_duplicate_ids=on_device(inputs.context_duplicate_ids),
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


COMPILE_BACKEND = "inductor"


class CompiledForward:
    """Compiled forward passes of towers, for training only: saving and evaluation use the towers themselves.

    Args:
        towers: towers to compile on first use.
    """

    def __init__(self, towers: Towers) -> None:
        self._towers: Any = towers
        names = ("encode_images", "encode_texts")
        self._forward = {name: torch.compile(getattr(towers, name), backend=COMPILE_BACKEND) for name in names}

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Replace the towers' forward passes while the block runs. The backward pass is compiled on first use too.

        Raises:
            UserError: torch cannot compile the towers here.
        """
        from torch._dynamo.exc import TorchDynamoException
        from torch._inductor.exc import InductorError

        vars(self._towers).update(self._forward)
        try:
            yield
        except (TorchDynamoException, InductorError) as error:
            first = next(iter(str(error).splitlines()), type(error).__name__)
            raise UserError(f"--compile: torch cannot compile these towers here ({first[:200]}). Omit it.") from error
        finally:
            for name in self._forward:
                del vars(self._towers)[name]
