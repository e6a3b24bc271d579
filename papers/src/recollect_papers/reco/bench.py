"""Setup of RECO's studies: a frozen model, its index, training pairs, and tasks that need the index."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from recollect.core.errors import UserError
from recollect.core.seeding import numpy_generator
from recollect.core.types import Encoder, Source
from recollect.data.sources.subset import Subset
from recollect.evaluation.entities import entities
from recollect.evaluation.features import FeatureCache, image_features
from recollect.evaluation.retrieval import retrieval
from recollect.evaluation.tasks.classification import ClassificationTask
from recollect.evaluation.tasks.retrieval import RetrievalTask
from recollect.evaluation.zero_shot import zero_shot
from recollect.index import Index, IngestOptions
from recollect.models import DualEncoder
from recollect.reco.block import FusionModule, FusionSettings
from recollect.reco.encoder import Mode, RetrievalEnhancedEncoder
from recollect.reco.learning import FUSION_PRESETS, FusionPreset, train_fusion
from recollect.reco.pairs import Pairs, embed_pairs
from recollect.training.options import Data
from recollect_papers.store import cached, content_key, exclusive

MemoryPart = Literal["tasks", "retrieval", "entities"]


@dataclass(frozen=True)
class FusionArm:
    """One way to use an index.

    Attributes:
        fusion: settings of the fusion; width and start come from model and preset.
        mode: which embeddings use the index in evaluation.
        k, test_k: rows retrieved in training and evaluation (default: the same).
        share, test_share: fraction of the index in training and evaluation (default: the same).
        more: also train on the index's rows retrieved by the training pairs (Figure 3, left).
        preset: training preset (`recollect.reco.learning.FUSION_PRESETS`).
    """

    fusion: FusionSettings = field(default_factory=lambda: FusionSettings(1))
    mode: Mode = "both"
    k: int = 10
    test_k: int | None = None
    share: float = 1.0
    test_share: float | None = None
    more: bool = False
    preset: FusionPreset = "paper"


@dataclass(frozen=True)
class Learning:
    """Training length and batch size of fusions; the defaults are the paper's."""

    epochs: int = 10
    batch_size: int = 4096


@dataclass(frozen=True)
class Bench:
    """A frozen model with data and caches for RECO.

    Attributes:
        label: name of the model in tables.
        model: the frozen model.
        folder: cache for indexes, fusions, embeddings and figures.
        training: sources of training pairs.
        memory: sources of the pairs in the index.
        tasks: tasks by column of a table; figures are means over them.
        pool: images and texts for retrieval.
        entities: entity recognition task, and which classes were in training.
        learning: training settings of fusions.
        seed: seed of the model's training and of fusions.
        near: minimum cosine to a test image at which rows of the index are excluded; None includes all rows.
    """

    label: str
    model: DualEncoder
    folder: Path
    training: tuple[Source, ...]
    memory: tuple[Source, ...]
    tasks: Mapping[str, Sequence[ClassificationTask]]
    pool: RetrievalTask | None
    entities: tuple[ClassificationTask, np.ndarray] | None
    learning: Learning
    seed: int = 0
    near: float | None = None

    @cached_property
    def pairs(self) -> Pairs:
        """Embedded training pairs."""
        return embed_pairs(self.model, self.training, None, 0.01)

    @cached_property
    def cache(self) -> FeatureCache:
        """Cache for embeddings of test images."""
        return FeatureCache(self.folder / "features")

    def memory_of(self, share: float = 1.0) -> Path:
        """Return the folder of the index, or of a random fraction of it, building it on first use."""
        read = [self.model.fingerprint, *(source.fingerprint for source in self.memory)]
        folder = self.folder / f"memory-{share:g}-{content_key(read, size=6)}"
        done = folder.with_name(f"{folder.name}.done")
        with exclusive(folder):
            if not done.exists():
                for source in self.memory:
                    part = source if share == 1 else Subset(source, _sample(len(source), share, source.name))
                    options = IngestOptions(captions="first")
                    Index.build(part, self.model, out=folder, options=options, precision="float32")
                done.touch()
        return folder

    def rows_of(self, share: float) -> int:
        """Return the number of pairs in a fraction of the index."""
        return sum(len(source) if share == 1 else _part(len(source), share) for source in self.memory)

    def fusion(self, arm: FusionArm) -> FusionModule:
        """Return the fusion of an arm, training it on first use."""
        preset, learning = FUSION_PRESETS[arm.preset](), self.learning
        settings = replace(arm.fusion, width=self.model.width, start=preset.fusion.start)
        if settings.kind == "mean":
            return FusionModule(settings)
        if (settings.kind, settings.start) == ("transformer", "gate"):
            settings = replace(settings, weight=0.5)
        recipe = replace(
            preset,
            data=Data(sources=tuple(source.name for source in self.training)),
            batch_size=learning.batch_size,
            seed=self.seed,
            fusion=settings,
            index=str(self.memory_of(arm.share)),
            k=arm.k,
            epochs=learning.epochs,
            checkpoint_every=10**9,
        )
        recipe = replace(recipe, optimizer=replace(recipe.optimizer, learning_rate=1e-3))
        read = [self.model.fingerprint, *(source.fingerprint for source in self.training)]
        out = self.folder / "fusions" / content_key(asdict(recipe), read, arm.more, size=6)
        with exclusive(out):
            if not (out / "model").exists():
                pairs = self._with_retrieved(arm) if arm.more else self.pairs
                train_fusion(recipe, self.model, pairs, out, resume=out.exists())
        return FusionModule.open(out / "model")

    def encoder(self, arm: FusionArm | None, part: MemoryPart = "tasks") -> Encoder:
        """Return the model alone, or with the index.

        Args:
            part: what is tested; near-duplicates of its pictures are excluded from the index.
        """
        if arm is None:
            return self.model
        share, k = arm.share if arm.test_share is None else arm.test_share, arm.test_k or arm.k
        index, near = Index.open(self.memory_of(share)), self.near_duplicates(share, part)
        if len(index) - len(near) < k:
            raise UserError(
                f"{len(index) - len(near):,} pictures in the index remain without near-duplicates of test pictures, "
                f"fewer than k = {k}. Use an index of other pictures."
            )
        return RetrievalEnhancedEncoder(self.model, index, self.fusion(arm), arm.mode, k, exclude_ids=near)

    def near_duplicates(self, share: float, part: MemoryPart) -> frozenset[str]:
        """Return the rows of the index that are near-duplicates of test pictures (RECO, section 4.1)."""
        if self.near is None:
            return frozenset()
        if (share, part) not in self._too_near:
            tested = [image_features(self.model, source, self.cache).images for source in self._tested(part)]
            near = Index.open(self.memory_of(share)).near(np.concatenate(tested), self.near)
            self._too_near[share, part] = frozenset(near)
        return self._too_near[share, part]

    @cached_property
    def _too_near(self) -> dict[tuple[float, MemoryPart], frozenset[str]]:
        return {}

    def _tested(self, part: MemoryPart) -> list[Source]:
        if part == "retrieval":
            return [self.pool.images] if self.pool else []
        if part == "entities":
            return [self.entities[0].query] if self.entities else []
        return [task.query for tasks in self.tasks.values() for task in tasks]

    def figures(self, arm: FusionArm | None, part: MemoryPart = "tasks") -> dict[str, float]:
        """Return figures in percent, cached by encoder.

        Returns:
            ``tasks``: mean top-1 of each column; ``retrieval``: R@1 and R@5 from text to image; ``entities``: top-1 on
            seen and unseen entities, and their harmonic mean.
        """
        encoder = self.encoder(arm, part)
        found: dict[str, float] = cached(self._figure_file(encoder, part), lambda: self._measure(encoder, part))
        return found

    def _figure_file(self, encoder: Encoder, part: MemoryPart) -> Path:
        return self.folder / "figures" / f"{part}-{content_key(encoder.fingerprint, self._inputs(part), size=6)}.json"

    def _measure(self, encoder: Encoder, part: MemoryPart) -> dict[str, float]:
        if part == "retrieval":
            assert self.pool is not None
            rows = retrieval(encoder, self.pool, model=self.label, cache=self.cache).rows
            wanted = [row for row in rows if row["direction"] == "text to image" and row["domain"] == "all"]
            return {f"R@{row['k']}": row["value"] for row in wanted}
        if part == "entities":
            assert self.entities is not None
            rows = entities(encoder, *self.entities, model=self.label, cache=self.cache).rows
            return {row["metric"]: row["value"] for row in rows}
        found = {}
        for column, tasks in self.tasks.items():
            each = [zero_shot(encoder, task, model=self.label, cache=self.cache).rows[0]["value"] for task in tasks]
            found[column] = float(np.mean(each))
        return found

    def _inputs(self, part: MemoryPart) -> Any:
        """Return everything that affects a figure except the encoder."""
        if part == "retrieval":
            return self.pool and [self.pool.images.fingerprint, self.pool.texts, self.pool.matches]
        if part == "entities":
            return self.entities and [_task_inputs(self.entities[0]), self.entities[1].tolist()]
        return {column: [_task_inputs(task) for task in tasks] for column, tasks in self.tasks.items()}

    def _with_retrieved(self, arm: FusionArm) -> Pairs:
        """Return the training pairs plus all pictures of the index that they retrieve by image (R-WebLI)."""
        index, pairs = Index.open(self.memory_of(arm.share)), self.pairs
        found = index.lookup(pairs.images, arm.k, read="text").ids.ravel()
        ids = sorted(set(found.tolist()) - {"", *pairs.pictures})
        return Pairs(
            np.concatenate([pairs.images, index.vectors(ids)]),
            np.concatenate([pairs.texts, index.vectors(ids, "text")]),
            [*pairs.captions, *(picture.caption for picture in index.pictures(ids))],
            [*pairs.pictures, *ids],
            pairs.model,
        )


def _task_inputs(task: ClassificationTask) -> list[Any]:
    return [task.query.fingerprint, task.class_names, task.templates, task.class_texts]


def _sample(count: int, share: float, name: str) -> np.ndarray:
    return np.sort(numpy_generator("share", str(share), name).permutation(count)[: _part(count, share)])


def _part(count: int, share: float) -> int:
    return max(1, round(share * count))
