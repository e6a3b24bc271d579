"""Batches as a pure function of (seed, step), unaffected by resuming and by the number of ranks and workers."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from recollect.core.errors import UserError
from recollect.core.seeding import derive_seed
from recollect.core.types import NO_LABEL, Batch, Kind, Sample, Source
from recollect.core.validation import refuse
from recollect.data.batches.loading import Piece, RowTokenizer, pieces_ahead
from recollect.data.batches.mixture import DataMix
from recollect.data.batches.order import BlockOrder, Plan, endless, hash_to_index, mix, shuffled
from recollect.data.prompts import GENERAL_TEMPLATES, fill
from recollect.data.sources.images import BrokenImageError
from recollect.data.sources.reader import BROKEN_SHARE, BrokenCounter
from recollect.data.transforms import ImageTransform

CONTEXT_VIEW = 2
"""View of a step's samples when they serve as context of the previous step. Samples of neighboring steps differ, except
at the start of a pass, so a row does not look up itself."""

_MAX_ATTEMPTS = 32  # with 1 % of the images broken, this many in a row practically never are


@dataclass(eq=False)
class BatchStream:
    """Endless sequence of batches, each of which can be built independently.

    Each pass through a source visits its samples in a new random order. A batch that spans two passes has no duplicate
    samples, unless it needs more samples than the source has. Each visit draws a random caption, or a random template
    and class name (or synonym). An unreadable image is replaced by another image of its source, chosen by (seed, step,
    row), so the sequence is the same on any rank and worker.

    Attributes:
        mixture: the sources.
        batch_size: number of rows of the global batch.
        transform: image preprocessing; None if all sources are vectors or generate whole batches.
        seed: seed of all random choices.
        rank, world_size: this process builds rows ``rank * n`` to ``(rank + 1) * n`` of the global batch of
            ``n * world_size`` rows.
        templates: prompt templates for class names.
        broken_share: maximum fraction of broken images.
        counters: counts of read and broken images.
    """

    mixture: DataMix
    batch_size: int
    transform: ImageTransform | None
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    templates: tuple[str, ...] = GENERAL_TEMPLATES
    broken_share: float = BROKEN_SHARE
    counters: BrokenCounter = field(init=False, repr=False)

    def __post_init__(self) -> None:
        uneven = self.batch_size < 1 or self.batch_size % self.world_size
        refuse((uneven, f"batch size {self.batch_size} is not a multiple of {self.world_size} processes"))
        self.counters = BrokenCounter(self.broken_share, "--data.broken-share")
        whole = self.mixture.sampling == "debiased"
        self._plan = Plan(self.mixture.shares, self.batch_size, whole, self._key("plan"))
        self._orders = [self._order_of(*each) for each in zip(self.mixture.sources, self._plan.most, strict=True)]
        self._last_rows: tuple[int, np.ndarray, np.ndarray] | None = None

    def batch(self, step: int, *, view: int = 0) -> Batch:
        """Return this rank's rows of the batch of a step.

        Args:
            step: number of the step.
            view: seed of the random crops; samples and texts do not depend on it.

        Raises:
            UserError: too many images are broken.
        """
        return self.join([self.piece(step, 0, self.local_size, view=view)])

    def seen(self, steps: int) -> dict[str, int]:
        """Return the number of samples of each source in the first ``steps`` global batches."""
        counts = self._plan.before(steps)
        return {source.name: int(count) for source, count in zip(self.mixture.sources, counts, strict=True)}

    def max_samples(self, steps: int) -> tuple[int, ...]:
        """Return each source's maximum number of samples in any of the first ``steps`` steps."""
        return tuple(int(count) for count in self._plan.counts(np.arange(steps)).max(axis=0))

    @property
    def local_size(self) -> int:
        """Number of rows of this rank's batch."""
        return self.batch_size // self.world_size

    def iterate(
        self,
        start: int,
        stop: int,
        workers: int = 0,
        *,
        view: int = 0,
        device: torch.device | None = None,
        pin: bool = False,
        raw: bool = False,
        tokenize: RowTokenizer | None = None,
    ) -> Iterator[Batch]:
        """Yield the batches of steps ``start`` up to ``stop``, prefetched by worker processes.

        Args:
            start: first step.
            stop: step after the last one.
            workers: number of processes that read and crop; 0 uses this process.
            view: as in `batch`; ``iterate(start + 1, stop + 1, view=CONTEXT_VIEW)`` yields the contexts.
            device: device on which images are normalized; they are moved there as bytes.
            pin: use page-locked memory.
            raw: keep pictures as bytes, a quarter of the memory, to be converted in parts with `normalized`.
            tokenize: computes the ``tokens`` of the batch, in the workers.

        Raises:
            UserError: too many images are broken.
        """
        make = partial(self.piece, view=view, tokenize=tokenize)
        with closing(pieces_ahead(make, start, stop, self.local_size, workers, pin)) as steps:  # stops the workers
            for pieces in steps:
                yield self.join(pieces, device, raw)

    def rows(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the source number and the index in that source of each row of the global batch, int64 (batch,)."""
        if self._last_rows is None or self._last_rows[0] != step:
            counts, before = self._plan.counts(np.array([step]))[0], self._plan.before(step)
            sources = np.repeat(np.arange(len(counts)), counts)
            firsts = zip(self._orders, before, counts, strict=True)
            drawn = [order(first + np.arange(count)) for order, first, count in firsts]
            # Shuffle, so that each rank gets part of each source.
            slots = shuffled(np.arange(self.batch_size), self.batch_size, derive_seed(self.seed, "slots", step))
            sources, indices = sources[slots], np.concatenate(drawn)[slots]
            for number, order in enumerate(self._orders):
                if isinstance(order, BlockOrder):  # sort, so each rank and worker reads few of the blocks
                    here = np.flatnonzero(sources == number)
                    indices[here] = np.sort(indices[here])
            self._last_rows = step, sources, indices
        return self._last_rows[1:]

    def piece(self, step: int, start: int, stop: int, *, view: int = 0, tokenize: RowTokenizer | None = None) -> Piece:
        """Return rows ``start`` up to ``stop`` of this rank's batch of a step."""
        first = self.rank * self.local_size
        slots = np.arange(first + start, first + stop)
        sources, indices = (part[slots] for part in self.rows(step))
        texts, ids = np.empty(len(slots), dtype=object), np.empty(len(slots), dtype=object)
        labels = np.full(len(slots), NO_LABEL, dtype=np.int64)
        blocks: list[tuple[np.ndarray, Tensor]] = []
        broken: dict[int, list[str]] = {}
        for number in np.unique(sources).tolist():
            own = np.flatnonzero(sources == number)
            rows = _Draw(self, number, step, view).rows(indices[own], slots[own])
            texts[own], ids[own] = rows.texts, rows.ids
            if self.mixture.sources[number].kind == "label":
                labels[own] = self.mixture.class_numbers(number, rows.labels)
            blocks.append((own, rows.images))
            broken |= rows.broken
        kinds = [self.mixture.sources[number].kind for number in sources]
        tokens = tokenize(texts.tolist(), kinds) if tokenize else None
        return Piece(self._assemble(blocks), texts.tolist(), labels, sources, ids.tolist(), broken, tokens)

    def join(self, pieces: Sequence[Piece], device: torch.device | None = None, raw: bool = False) -> Batch:
        """Join pieces, normalize them on ``device`` unless ``raw``, and count broken images.

        Raises:
            UserError: too many images are broken.
        """
        sources = np.concatenate([piece.sources for piece in pieces])
        for number, source in enumerate(self.mixture.sources):
            messages = [message for piece in pieces for message in piece.broken.get(number, [])]
            if tried := int((sources == number).sum()) + len(messages):
                self.counters.add(source, tried, messages)
        images = [piece.images.to(device, non_blocking=True) for piece in pieces]
        if not raw or any(each.dtype != torch.uint8 for each in images):
            images = [self.normalized(each) for each in images]
        rows = [piece.tokens for piece in pieces if piece.tokens is not None]
        tokens = {name: torch.cat([each[name] for each in rows]) for name in rows[0]} if rows else None
        names = [source.name for source in self.mixture.sources]
        kinds: list[Kind] = [source.kind for source in self.mixture.sources]
        return Batch(
            torch.cat(images) if len(images) > 1 else images[0],
            tuple(text for piece in pieces for text in piece.texts),
            torch.from_numpy(np.concatenate([piece.labels for piece in pieces])),
            tuple(kinds[number] for number in sources),
            tuple(names[number] for number in sources),
            tuple(id for piece in pieces for id in piece.ids),
            tokens,
        )

    def _key(self, purpose: str) -> int:
        return derive_seed(self.seed, purpose)

    def _order_of(self, source: Source, window: int) -> Callable[[np.ndarray], np.ndarray]:
        """Return a function from positions in the endless passes through a source to its samples."""
        key = partial(derive_seed, self.seed, "pass", source.name)
        blocks = BlockOrder.of(source.block_sizes, window, key)
        return blocks or partial(endless, size=len(source), window=window, key=key)

    def normalized(self, images: Tensor) -> Tensor:
        """Normalize bytes for the towers; return floats unchanged."""
        if images.dtype != torch.uint8:
            return images
        assert self.transform is not None  # only a transform returns bytes
        return self.transform.normalize(images)

    def _assemble(self, blocks: list[tuple[np.ndarray, Tensor]]) -> Tensor:
        if len(blocks) == 1:
            return blocks[0][1]
        if any(images.dtype != torch.uint8 for _, images in blocks):
            blocks = [(rows, self.normalized(images)) for rows, images in blocks]
        shapes = {tuple(images.shape[1:]) for _, images in blocks}
        differ = f"sources have images of different shapes: {', '.join(map(str, sorted(shapes)))}"
        refuse((len(shapes) > 1, differ))
        whole = torch.empty(sum(len(rows) for rows, _ in blocks), *shapes.pop(), dtype=blocks[0][1].dtype)
        for rows, images in blocks:
            whole[torch.from_numpy(rows)] = images
        return whole


@dataclass(frozen=True)
class _Draw:
    """Reader of one source for one step; labels are those of the source."""

    stream: BatchStream
    number: int
    step: int
    view: int

    def rows(self, indices: np.ndarray, slots: np.ndarray) -> Piece:
        """Read samples of the source for these rows (``slots``) of the global batch."""
        whole = self.stream.mixture.sources[self.number].makes_batches
        return self._whole_batch(indices, slots) if whole else self._one_by_one(indices, slots)

    def _whole_batch(self, indices: np.ndarray, slots: np.ndarray) -> Piece:
        source = self.stream.mixture.sources[self.number]
        images, texts, labels = source.batch(indices, derive_seed(self.stream.seed, "world", self.step, self.view))
        if source.kind == "label" and source.class_names:
            draws = mix(self.stream._key("text"), self.step, slots)
            names = [source.class_names[label] for label in labels.tolist()]
            templates = [self.stream.templates[index] for index in hash_to_index(draws, len(self.stream.templates))]
            texts = [fill(each, name) for each, name in zip(templates, names, strict=True)]
        ids = [str(index) for index in indices.tolist()]
        images = self._generated_pixels(images) if images.dtype == torch.uint8 else images
        return Piece(images, texts, labels.numpy(), np.full(len(ids), self.number), ids)

    def _generated_pixels(self, pictures: Tensor) -> Tensor:
        """Resize generated pictures (n, 3, height, width) to (n, size, size, 3), without cropping."""
        transform = self.stream.transform
        if transform is None:
            raise ValueError(
                f"{self.stream.mixture.sources[self.number].name} generates pictures, so the stream needs a transform"
            )
        if pictures.shape[2:] != (transform.size, transform.size):
            size, mode = (transform.size, transform.size), transform.resample
            resized = interpolate(pictures.float(), size, mode=mode, antialias=True, align_corners=False)
            pictures = resized.round_().clamp_(0, 255).to(torch.uint8)
        pixels = pictures.permute(0, 2, 3, 1)
        if transform.packs:
            return torch.from_numpy(np.stack([transform.pack(picture) for picture in pixels.numpy()]))
        return pixels

    def _one_by_one(self, indices: np.ndarray, slots: np.ndarray) -> Piece:
        """Read samples one by one; random numbers depend only on the row's position in the global batch."""
        draws = mix(self.stream._key("text"), self.step, slots)
        names = mix(draws, 1)
        crops = mix(self.stream._key("crop"), self.view, self.step, slots)
        images: list[Tensor] = []
        texts, labels, ids = [], [], []
        broken: list[str] = []
        for position, (index, slot) in enumerate(zip(indices.tolist(), slots.tolist(), strict=True)):
            sample = self._readable_sample(index, slot, broken)
            images.append(self._pixels(sample, int(crops[position])))
            texts.append(self._text(sample, draws[position], names[position]))
            labels.append(sample.label)
            ids.append(sample.id)
        sources, failed = np.full(len(ids), self.number), {self.number: broken} if broken else {}
        return Piece(torch.stack(images), texts, np.array(labels, dtype=np.int64), sources, ids, failed)

    def _pixels(self, sample: Sample, seed: int) -> Tensor:
        image, transform = sample.image, self.stream.transform
        if isinstance(image, np.ndarray) and image.ndim == 1:
            return torch.from_numpy(image.astype(np.float32))
        if transform is None:
            raise ValueError(f"{sample.source} contains pictures, so the stream needs a transform")
        return torch.from_numpy(transform.pixels(image, np.random.Generator(np.random.PCG64(seed))))

    def _text(self, sample: Sample, draw: np.uint64, name_draw: np.uint64) -> str:
        if sample.kind == "caption":
            return sample.texts[hash_to_index(draw, len(sample.texts))]
        templates, source = self.stream.templates, self.stream.mixture.sources[self.number]
        names = sample.texts or (source.class_names[sample.label],)
        return fill(templates[hash_to_index(draw, len(templates))], names[hash_to_index(name_draw, len(names))])

    def _readable_sample(self, index: int, slot: int, broken: list[str]) -> Sample:
        """Return the sample, or if it is broken the first readable one of a fixed random sequence."""
        source, transform = self.stream.mixture.sources[self.number], self.stream.transform
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            try:
                sample = source.read(index, needed=transform.needed if transform else 0, extra=False)
                if sample.texts or sample.kind == "label":
                    return sample
                broken.append(f"{source.name}, {sample.id}: no caption")
            except BrokenImageError as error:
                broken.append(str(error))
            index = int(hash_to_index(mix(self.stream._key("replacement"), self.step, slot, attempt), len(source)))
        raise UserError(f"{broken[-_MAX_ATTEMPTS]}; {_MAX_ATTEMPTS} images of {source.name} in a row are unreadable")
