"""Batches as a pure function of (seed, step): the same after a resume, on any number of ranks and workers."""

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
from recollect.data.batches.order import BlockOrder, Plan, endless, mix, number_below, shuffled
from recollect.data.prompts import GENERAL_TEMPLATES, fill
from recollect.data.sources.images import BrokenImageError
from recollect.data.sources.reader import BROKEN_SHARE, BrokenCounter
from recollect.data.transforms import ImageTransform

CONTEXT_VIEW = 2
"""The view of a step's samples as the context of the step before. Samples of neighboring steps differ, except at the
start of a pass, so that a row cannot find itself."""

_REPLACEMENTS = 32  # in a row; with one image in a hundred broken, that many never are


@dataclass(eq=False)
class BatchStream:
    """An endless sequence of batches, each of which can be built independently.

    Every pass through a source is a new random order of its samples; a batch across two passes holds no sample twice,
    unless it takes more than the source has. At every visit one of the captions is drawn, or a template is filled with
    the class name (or one of its synonyms). An image that cannot be read is replaced by another of its source, chosen
    by (seed, step, row), so that the sequence is the same on any rank and worker.

    Attributes:
        mixture: the sources.
        batch_size: of the global batch.
        transform: from pictures to pixels; None if all sources are vectors or make whole batches.
        seed: of everything random.
        rank, world_size: this process makes rows ``rank * n`` to ``(rank + 1) * n`` of the global batch of
            ``n * world_size`` rows.
        templates: prompt templates for class names.
        broken_share: share of images that may be broken.
        counters: readings and failures so far.
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
        refuse((uneven, f"batch size {self.batch_size} cannot be divided by {self.world_size} processes"))
        self.counters = BrokenCounter(self.broken_share, "--data.broken-share")
        whole = self.mixture.sampling == "debiased"
        self._plan = Plan(self.mixture.shares, self.batch_size, whole, self._key("plan"))
        self._orders = [self._order_of(*each) for each in zip(self.mixture.sources, self._plan.most, strict=True)]
        self._last_rows: tuple[int, np.ndarray, np.ndarray] | None = None

    def batch(self, step: int, *, view: int = 0) -> Batch:
        """The batch of a step, or this rank's rows of it.

        Args:
            view: another number gives the same samples and texts under another random crop.

        Raises:
            UserError: too many images are broken.
        """
        return self.join([self.piece(step, 0, self.local_size, view=view)])

    def seen(self, steps: int) -> dict[str, int]:
        """How many samples each source gives to the first ``steps`` global batches."""
        counts = self._plan.before(steps)
        return {source.name: int(count) for source, count in zip(self.mixture.sources, counts, strict=True)}

    def most_until(self, steps: int) -> tuple[int, ...]:
        """The most samples of each source in any of the first ``steps`` steps."""
        return tuple(int(count) for count in self._plan.counts(np.arange(steps)).max(axis=0))

    @property
    def local_size(self) -> int:
        """Rows that this rank makes."""
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
        """The batches of steps ``start`` to ``stop``, made ahead by worker processes.

        Args:
            workers: processes that read and crop; 0 does it between steps, in this process.
            view: as in `batch`; ``iterate(start + 1, stop + 1, view=CONTEXT_VIEW)`` gives the contexts.
            device: where images are normalized; they are moved there as bytes.
            pin: make them in page-locked memory.
            raw: leave pictures as bytes, a quarter of the memory, for `normalized` to convert part by part.
            tokenize: makes the ``tokens`` of the batch, in the worker.

        Raises:
            UserError: too many images are broken.
        """
        make = partial(self.piece, view=view, tokenize=tokenize)
        with closing(pieces_ahead(make, start, stop, self.local_size, workers, pin)) as steps:  # ends the workers now
            for pieces in steps:
                yield self.join(pieces, device, raw)

    def rows(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Source number and index within the source of every row of the global batch, int64 (batch,) each."""
        if self._last_rows is None or self._last_rows[0] != step:
            counts, before = self._plan.counts(np.array([step]))[0], self._plan.before(step)
            sources = np.repeat(np.arange(len(counts)), counts)
            firsts = zip(self._orders, before, counts, strict=True)
            drawn = [order(first + np.arange(count)) for order, first, count in firsts]
            # Shuffled, so that every rank gets a part of every source.
            slots = shuffled(np.arange(self.batch_size), self.batch_size, derive_seed(self.seed, "slots", step))
            sources, indices = sources[slots], np.concatenate(drawn)[slots]
            for number, order in enumerate(self._orders):
                if isinstance(order, BlockOrder):  # each rank and each worker should read few of the blocks
                    here = np.flatnonzero(sources == number)
                    indices[here] = np.sort(indices[here])
            self._last_rows = step, sources, indices
        return self._last_rows[1:]

    def piece(self, step: int, start: int, stop: int, *, view: int = 0, tokenize: RowTokenizer | None = None) -> Piece:
        """Rows ``start`` to ``stop`` of what this rank makes of a step."""
        first = self.rank * self.local_size
        slots = np.arange(first + start, first + stop)
        sources, indices = (part[slots] for part in self.rows(step))
        texts, ids = np.empty(len(slots), dtype=object), np.empty(len(slots), dtype=object)
        labels = np.full(len(slots), NO_LABEL, dtype=np.int64)
        blocks: list[tuple[np.ndarray, Tensor]] = []
        broken: dict[int, list[str]] = {}
        for number in np.unique(sources).tolist():
            places = np.flatnonzero(sources == number)
            rows = _Draw(self, number, step, view).rows(indices[places], slots[places])
            texts[places], ids[places] = rows.texts, rows.ids
            if self.mixture.sources[number].kind == "label":
                labels[places] = self.mixture.class_numbers(number, rows.labels)
            blocks.append((places, rows.images))
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
        """Maps positions of the endless passes through a source to its samples."""
        key = partial(self._key_of_pass, source.name)
        blocks = BlockOrder.of(source.block_sizes, window, key)
        return blocks or partial(endless, size=len(source), window=window, key=key)

    def _key_of_pass(self, name: str, turn: int) -> int:
        return derive_seed(self.seed, "pass", name, turn)

    def normalized(self, images: Tensor) -> Tensor:
        """Rows of a batch as the towers read them: bytes are normalized, floats returned as they are."""
        if images.dtype != torch.uint8:
            return images
        assert self.transform is not None  # only a transform makes bytes
        return self.transform.normalize(images)

    def _assemble(self, blocks: list[tuple[np.ndarray, Tensor]]) -> Tensor:
        if len(blocks) == 1:
            return blocks[0][1]
        if any(images.dtype != torch.uint8 for _, images in blocks):
            blocks = [(places, self.normalized(images)) for places, images in blocks]
        shapes = {tuple(images.shape[1:]) for _, images in blocks}
        differ = f"sources give images of different shapes: {', '.join(map(str, sorted(shapes)))}"
        refuse((len(shapes) > 1, differ))
        whole = torch.empty(sum(len(places) for places, _ in blocks), *shapes.pop(), dtype=blocks[0][1].dtype)
        for places, images in blocks:
            whole[torch.from_numpy(places)] = images
        return whole


@dataclass(frozen=True)
class _Draw:
    """Reads samples of one source for one step; their labels are the source's own."""

    stream: BatchStream
    number: int
    step: int
    view: int

    def rows(self, indices: np.ndarray, slots: np.ndarray) -> Piece:
        """Some samples of the source, for these rows of the global batch."""
        made = self.stream.mixture.sources[self.number].makes_batches
        return self._at_once(indices, slots) if made else self._one_by_one(indices, slots)

    def _at_once(self, indices: np.ndarray, slots: np.ndarray) -> Piece:
        source = self.stream.mixture.sources[self.number]
        images, texts, labels = source.batch(indices, derive_seed(self.stream.seed, "world", self.step, self.view))
        if source.kind == "label" and source.class_names:
            draws = mix(self.stream._key("text"), self.step, slots)
            names = [source.class_names[label] for label in labels.tolist()]
            templates = [self.stream.templates[place] for place in number_below(draws, len(self.stream.templates))]
            texts = [fill(each, name) for each, name in zip(templates, names, strict=True)]
        ids = [str(index) for index in indices.tolist()]
        images = self._bytes(images) if images.dtype == torch.uint8 else images
        return Piece(images, texts, labels.numpy(), np.full(len(ids), self.number), ids)

    def _bytes(self, pictures: Tensor) -> Tensor:
        """Generated pictures (n, 3, height, width) as (n, size, size, 3); only resized, never cropped."""
        transform = self.stream.transform
        if transform is None:
            raise ValueError(
                f"{self.stream.mixture.sources[self.number].name} makes pictures, so the stream needs a transform"
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
        """One sample after the other; random numbers depend only on the row's place in the global batch."""
        draws = mix(self.stream._key("text"), self.step, slots)
        names = mix(draws, 1)
        crops = mix(self.stream._key("crop"), self.view, self.step, slots)
        images: list[Tensor] = []
        texts, labels, ids = [], [], []
        broken: list[str] = []
        for place, (index, slot) in enumerate(zip(indices.tolist(), slots.tolist(), strict=True)):
            sample = self._readable(index, slot, broken)
            images.append(self._pixels(sample, int(crops[place])))
            texts.append(self._text(sample, draws[place], names[place]))
            labels.append(sample.label)
            ids.append(sample.id)
        found, sources = np.array(labels, dtype=np.int64), np.full(len(ids), self.number)
        return Piece(torch.stack(images), texts, found, sources, ids, {self.number: broken} if broken else {})

    def _pixels(self, sample: Sample, seed: int) -> Tensor:
        image, transform = sample.image, self.stream.transform
        if isinstance(image, np.ndarray) and image.ndim == 1:
            return torch.from_numpy(image.astype(np.float32))
        if transform is None:
            raise ValueError(f"{sample.source} holds pictures, so the stream needs a transform")
        return torch.from_numpy(transform.pixels(image, np.random.Generator(np.random.PCG64(seed))))

    def _text(self, sample: Sample, draw: np.uint64, name_draw: np.uint64) -> str:
        if sample.kind == "caption":
            return sample.texts[number_below(draw, len(sample.texts))]
        templates, source = self.stream.templates, self.stream.mixture.sources[self.number]
        names = sample.texts or (source.class_names[sample.label],)
        return fill(templates[number_below(draw, len(templates))], names[number_below(name_draw, len(names))])

    def _readable(self, index: int, slot: int, broken: list[str]) -> Sample:
        """The sample, or the first readable one of a fixed random sequence instead."""
        source, transform = self.stream.mixture.sources[self.number], self.stream.transform
        for attempt in range(1, _REPLACEMENTS + 1):
            try:
                sample = source.read(index, needed=transform.needed if transform else 0, extra=False)
                if sample.texts or sample.kind == "label":
                    return sample
                broken.append(f"{source.name}, {sample.id}: no caption")
            except BrokenImageError as error:
                broken.append(str(error))
            index = int(number_below(mix(self.stream._key("replacement"), self.step, slot, attempt), len(source)))
        raise UserError(f"{broken[-_REPLACEMENTS]}; {_REPLACEMENTS} images of {source.name} in a row are unreadable")
