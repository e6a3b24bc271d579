"""Towers that learn together with what reads an index for them (RA-CLIP, Xie et al., CVPR 2023).

The index is that of another, frozen model, the searcher: what an image finds there does not change while the towers
learn, so it is found once. In every step the image tower's embedding reads image and text of the pairs that its picture
found, by a fusion block whose maps from the searcher's space learn too; the loss compares what comes out with the text
tower's embedding. Texts read nothing.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from recollect.core.errors import UserError
from recollect.core.files import reason
from recollect.core.places import public_place
from recollect.core.progress import progress
from recollect.core.seeding import seed_default_generators
from recollect.core.types import Encoder, Source
from recollect.data.sources.reading import readable_blocks
from recollect.index import NEAR, Index
from recollect.models import DualEncoder
from recollect.objectives.base import unit
from recollect.reco.block import FusionModule, FusionSettings, Start
from recollect.reco.encoder import RetrievalEnhancedEncoder
from recollect.reco.neighbours import Reading, check_k, gather, read_index
from recollect.training.assembly import Feed, Parts, assemble_recipe, open_sources, sample_mark
from recollect.training.checks import check_at_once
from recollect.training.feature_store import FeatureStore
from recollect.training.loop import Hook, train
from recollect.training.options import Data, Recipe
from recollect.training.ranks import ProcessRanks, first_makes
from recollect.training.step import Inputs
from recollect.training.trackers import Tracker

FUSION = "fusion"
"""Folder, in that of the towers, of what reads for them."""

_ROWS = 256
_READS = FusionSettings(1, read="both", modalities="image")


@dataclass(frozen=True)
class JointRecipe(Recipe):
    """All that decides the outcome of training towers and reading together.

    Attributes:
        index: the index to read: a folder, or milvus://host:port/collection. Training pictures may be in it:
            ``max_score`` keeps a picture from reading itself.
        searcher: the model of the index; by default the one it was made with. It does not change.
        k: pictures that each image reads (see `RetrievalEnhancedEncoder`).
        max_score: pass over pictures with at least this cosine by the searcher: the picture itself and its
            near-duplicates. Above 1 nothing is passed over, not even the picture itself.
        start: what an untrained fusion returns, as for `recollect train reco`: the embedding as it is, the mean of it
            and of what it reads, or a mixture of both whose weight is learned.
    """

    index: str = ""
    searcher: str | None = None
    k: int = 10
    max_score: float = NEAR
    start: Start = "gate"

    def check(self) -> None:
        """Refuse what no run can be made of.

        Raises:
            UserError: naming the option.
        """
        super().check()
        if not self.index:
            raise UserError("no index to read: name one as index. `recollect index build` makes it.")
        if self.k < 1:
            raise UserError(f"k {self.k}: must be at least 1.")
        if not -1 <= self.max_score < float("inf"):
            raise UserError(f"max_score {self.max_score:g}: a cosine, or a number above 1 to pass over nothing near.")
        for option, on in (
            ("lora", self.model.lora is not None),
            ("compile", self.compile),
            ("shard_weights", self.shard_weights),
        ):
            if on:
                raise UserError(f"{option}: is not for towers that learn together with their reading. Leave it out.")
        context = self.objective.context
        if context is not None and (context.options.separate or context.options.augmented != "none"):
            raise UserError(
                "objective.context.options: pictures that read an index look up their own batch alone. Leave out "
                "separate and augmented."
            )


def joint_recipe(recipe: Recipe) -> JointRecipe:
    """The same towers, objective and steps, for images that read an index; it names neither data nor index yet."""
    values = {each.name: getattr(recipe, each.name) for each in fields(Recipe)}
    return JointRecipe(**{**values, "data": Data()})


class ReadingTowers(nn.Module):
    """A dual encoder whose image embeddings read what their pictures found: training's view of it.

    Args:
        towers: what learns.
        fusion: what reads for its images, and learns too.
        values: the searcher's vectors that some picture found (vectors, reads); the first is zeros, an empty place.
        rows: of each picture, which of them it reads (pictures, places); the first picture found nothing.
        index: where they were found.
        searcher: the model of the index.
        k: how many pictures a picture reads.
    """

    values: Tensor
    rows: Tensor

    def __init__(
        self,
        towers: Any,
        fusion: FusionModule,
        values: Float[Tensor, "vectors reads"],
        rows: Int64[Tensor, "pictures places"],
        index: Index,
        searcher: Encoder,
        k: int,
    ) -> None:
        super().__init__()
        self.towers, self.fusion = towers, fusion
        self.register_buffer("values", values, persistent=False)
        self.register_buffer("rows", rows, persistent=False)
        self._reads = (index, searcher, k)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.towers.device

    @property
    def encoder(self) -> Encoder:
        """What embeds with these weights, and reads the index."""
        index, searcher, k = self._reads
        return RetrievalEnhancedEncoder(
            _dual(self.towers), index, copy.deepcopy(self._described()), "image", k, searcher=searcher
        )

    def encode_images(self, pixels: Float[Tensor, "n ..."], pictures: Int64[Tensor, " n"]) -> Float[Tensor, "n width"]:
        """Embeddings that have read what their pictures, given by their rows, found."""
        own = unit(self.towers.encode_images(pixels))
        found = self.values[self.rows[pictures]]
        return self.fusion("image", torch.cat([own[:, None], self.fusion.adapt("image", found)], dim=1))

    def encode_texts(self, tokens: dict[str, Tensor]) -> Float[Tensor, "n width"]:
        """Raw text embeddings."""
        return self.towers.encode_texts(tokens)

    def set_scale(self, scale: float, bias: float | None = None) -> None:
        """See `DualEncoder.set_scale`."""
        self.towers.set_scale(scale, bias)
        self.fusion.trained["scale"] = scale

    def save(self, folder: Path) -> Path:
        """Write the towers as they are written alone, and the fusion into a folder among their files."""
        self.towers.save(folder)
        self._described().save(folder / FUSION)
        return folder

    def publish(self, folder: Path) -> Path:
        """The same, of the finished towers."""
        self.towers.publish(folder)
        self._described().save(folder / FUSION)
        return folder

    def _described(self) -> FusionModule:
        self.fusion.model = _dual(self.towers).fingerprint
        return self.fusion


def _dual(towers: Any) -> DualEncoder:
    encoder = towers.encoder
    assert isinstance(encoder, DualEncoder), "recipes train dual encoders"
    return encoder


def train_joint(
    recipe: JointRecipe,
    out: Path,
    *,
    resume: bool = False,
    device: str | None = None,
    hooks: Sequence[Hook] = (),
    trackers: Sequence[Tracker] = (),
) -> Path:
    """Find what every training picture reads, unless that was done before, and train by ``recipe``.

    Args:
        recipe: what to train, on what, and what to read.
        out: folder of the run, as of any.
        resume: go on from the last checkpoint.
        device: where to compute.
        hooks: what to measure every so many steps; the model that they are given reads the index.
        trackers: where else the lines of the metrics are shown.

    Returns:
        Folder of the trained towers; `FUSION` in it is what reads for them.

    Raises:
        UserError: the index or its searcher is not there, the index is smaller than k, a source has no end, or the
            run cannot be made.
    """
    recipe.check()
    check_at_once(recipe, None, resumed=resume)  # before the searcher is opened
    index = Index.open(recipe.index).snapshot()
    searcher, _ = index.open_model(recipe.searcher, device, "searcher")
    check_k(index, recipe.k, spoken=True)

    def assemble(given: Recipe, place: ProcessRanks, saved: Path | None) -> Parts:
        check_at_once(given, place, resumed=saved is not None)
        sources = open_sources(given.data)
        found = first_makes(partial(_found, index, searcher, sources, recipe))
        objects = {spec: source for (spec, _), source in zip(given.data.specs, sources, strict=True)}
        parts = assemble_recipe(given, place, saved, objects)
        towers: Any = parts.model
        if saved is not None:
            fusion = FusionModule.open(saved / FUSION)
        else:
            seed_default_generators(given.seed)
            settings = replace(_READS, width=_dual(towers).width, reads=index.width, start=recipe.start)
            about = {"k": recipe.k, "index": public_place(recipe.index), "searcher": searcher.fingerprint}
            fusion = FusionModule(settings, trained=about)
        reading = ReadingTowers(towers, fusion.train(), found["values"], found["rows"], index, searcher, recipe.k)
        pictures = _pictures(found, sources, locked=given.model.locked != "none")
        facts = {**parts.data, recipe.index: {"content": index.fingerprint}}
        return Parts(reading, parts.objective, parts.sources, _with_pictures(parts.feed, pictures), facts)

    return train(recipe, out, resume=resume, device=device, assemble=assemble, hooks=hooks, trackers=trackers)


def _found(index: Index, searcher: Encoder, sources: Sequence[Source], recipe: JointRecipe) -> dict[str, Tensor]:
    """What every picture of the sources reads, from the user's cache where it is there.

    Returns:
        ``values`` and ``rows`` as `ReadingTowers` has them; ``counts``, how many pictures of each source could be read;
        ``samples``, their places in it; and ``ids``, their ids as UTF-8 with a zero after each.
    """
    store = FeatureStore()
    reads = (searcher.fingerprint, index.fingerprint, recipe.k, repr(recipe.max_score))
    key: tuple[str | int, ...] = ("what pictures read", *reads, *(source.fingerprint for source in sources))
    kept = store.load(*key)
    if kept is None:
        kept = _search(index, searcher, sources, recipe)
        try:
            store.save(kept, *key)
        except OSError as error:
            raise UserError(
                f"{store.folder}: what the pictures read could not be written ({reason(error)}). Make room, or name "
                "another folder with RECOLLECT_CACHE."
            ) from error
    return kept


def _search(index: Index, searcher: Encoder, sources: Sequence[Source], recipe: JointRecipe) -> dict[str, Tensor]:
    nothing = np.zeros((1, recipe.k, index.width), dtype=np.float32)
    empty = Reading(np.full((1, recipe.k), "", dtype=object), np.full((1, recipe.k), -1), (nothing, nothing))
    found, counts, settings = [empty], [], replace(_READS, width=index.width)
    samples: list[int] = []
    ids: list[str] = []
    for source in sources:
        if source.endless:
            raise UserError(f"{source.name}: an endless stream. Say how many to take, e.g. {source.name}?size=1000.")
        before = len(samples)
        with progress(f"neighbours of {source.name}", len(source), "pictures") as counter:
            for read in readable_blocks(source, _ROWS, share=recipe.data.broken_share, option="--data.broken-share"):
                if read:
                    vectors = searcher.embed_images([sample.image for _, sample in read]).numpy()
                    found.append(read_index(index, vectors, settings, "image", recipe.k,
                                            max_score=recipe.max_score, exact=True))  # fmt: skip
                samples += [place for place, _ in read]
                ids += [sample.id for _, sample in read]
                counter.advance(len(read))
        counts.append(len(samples) - before)
    values, rows, _ = gather(found, index)
    return {
        "values": values,
        "rows": rows,
        "counts": torch.tensor(counts),
        "samples": torch.tensor(samples, dtype=torch.int64),
        "ids": torch.frombuffer(bytearray("".join(f"{id}\0" for id in ids).encode()), dtype=torch.uint8),
    }


def _pictures(found: Mapping[str, Tensor], sources: Sequence[Source], locked: bool) -> dict[int, int]:
    """Of each sample, by its mark, its row of what pictures read."""
    samples, start = found["samples"].tolist(), 0
    ids = bytes(found["ids"].tolist()).decode().split("\0")
    known: dict[int, int] = {}
    for source, count in zip(sources, found["counts"].tolist(), strict=True):
        own = range(start, start + count)
        if source.makes_batches or (locked and (source.kind == "caption" or not source.texts(0))):
            # what makes its own batches numbers its samples, a locked source those that could be read
            names = [str(place if locked else samples[row]) for place, row in enumerate(own)]
        else:
            names = [str(samples[row]) if locked else ids[row] for row in own]
        known |= {sample_mark(source.name, name): row + 1 for name, row in zip(names, own, strict=True)}
        start += count
    return known


def _with_pictures(feed: Feed, pictures: Mapping[int, int]) -> Feed:
    """The same batches, each sample with its row of what pictures read; 0 where it found nothing."""

    def reading(start: int, stop: int) -> Iterator[tuple[Inputs, Mapping[str, int]]]:
        for inputs, composition in feed(start, stop):
            assert inputs.duplicate_ids is not None, "every batch has duplicate_ids"
            rows = torch.tensor([pictures.get(mark, 0) for mark in inputs.duplicate_ids[:, 0].tolist()])
            assert rows.any(), "samples and what they found go by the same names"
            yield replace(inputs, beside={"pictures": rows}), composition

    return reading
