"""What RECO's studies run on: a frozen model, its memory, training pairs, and tasks that only the memory knows."""

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
from recollect_papers.store import alone_in, content_key, kept_or_made

MemoryPart = Literal["tasks", "retrieval", "entities"]


@dataclass(frozen=True)
class FusionArm:
    """One way to use a memory.

    Attributes:
        fusion: what is trained; its width is the model's, its start the preset's.
        mode: which embeddings read, when it is evaluated.
        k, test_k: rows read in training and when it is evaluated; as many by default.
        share, test_share: of the memory that training and evaluation read; the same by default.
        more: also train on the rows of the memory that the training pairs find (Figure 3, left).
        preset: how it learns to read (`recollect.reco.learning.FUSION_PRESETS`).
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
    """How fusions are trained; the paper's by default."""

    epochs: int = 10
    batch_size: int = 4096


@dataclass(frozen=True)
class Bench:
    """One frozen model with everything that RECO needs around it. What was made once is kept in ``folder``.

    Attributes:
        label: what tables call the model.
        model: frozen.
        folder: of memories, fusions, embeddings and figures.
        training: sources of training pairs.
        memory: sources of the memory's pairs.
        tasks: for each column of a table its tasks, whose mean is the figure.
        pool: images and texts to find.
        entities: classes to recognize among all, and which of them were trained on.
        learning: of fusions.
        seed: of the model's training, and of fusions.
        near: rows of the memory with an image of at least this cosine to a tested one are never read at the test; all
            are where None.
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
        """The training pairs, embedded."""
        return embed_pairs(self.model, self.training, None, 0.01)

    @cached_property
    def cache(self) -> FeatureCache:
        """Of embeddings of tested images."""
        return FeatureCache(self.folder / "features")

    def memory_of(self, share: float = 1.0) -> Path:
        """The memory, or a random share of it; built once for the same pairs and model."""
        read = [self.model.fingerprint, *(source.fingerprint for source in self.memory)]
        folder = self.folder / f"memory-{share:g}-{content_key(read, size=6)}"
        done = folder.with_name(f"{folder.name}.done")
        with alone_in(folder):
            if not done.exists():
                for source in self.memory:
                    part = source if share == 1 else Subset(source, _sample(len(source), share, source.name))
                    options = IngestOptions(captions="first")
                    Index.build(part, self.model, out=folder, options=options, precision="float32")
                done.touch()
        return folder

    def rows_of(self, share: float) -> int:
        """How many pairs such a part of the memory is made of."""
        return sum(len(source) if share == 1 else _part(len(source), share) for source in self.memory)

    def fusion(self, arm: FusionArm) -> FusionModule:
        """The trained fusion of an arm."""
        preset, learning = FUSION_PRESETS[arm.preset](), self.learning
        settings = replace(arm.fusion, width=self.model.width, start=preset.fusion.start)
        if settings.kind == "mean":
            return FusionModule(settings)
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
        with alone_in(out):
            if not (out / "model").exists():
                pairs = self._with_found(arm) if arm.more else self.pairs
                train_fusion(recipe, self.model, pairs, out, resume=out.exists())
        return FusionModule.open(out / "model")

    def encoder(self, arm: FusionArm | None, part: MemoryPart = "tasks") -> Encoder:
        """The model alone, or with the memory.

        Args:
            part: what is tested; near-duplicates of its pictures are not read.
        """
        if arm is None:
            return self.model
        share, k = arm.share if arm.test_share is None else arm.test_share, arm.test_k or arm.k
        index, near = Index.open(self.memory_of(share)), self.too_near(share, part)
        if len(index) - len(near) < k:
            raise UserError(
                f"{len(index) - len(near):,} pictures of the memory are left without near-duplicates of tested "
                f"pictures, fewer than k = {k}. It takes a memory of other pictures."
            )
        return RetrievalEnhancedEncoder(self.model, index, self.fusion(arm), arm.mode, k, exclude_ids=near)

    def too_near(self, share: float, part: MemoryPart) -> frozenset[str]:
        """The rows of the memory that are near-duplicates of a part's tested pictures (RECO, section 4.1)."""
        if self.near is None:
            return frozenset()
        if (share, part) not in self._too_near:
            shown = [image_features(self.model, source, self.cache).images for source in self._tested(part)]
            near = Index.open(self.memory_of(share)).near(np.concatenate(shown), self.near)
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
        """What is measured, in percent; computed once for each encoder.

        Returns:
            Of ``tasks`` the mean top-1 of each column; of ``retrieval`` R@1 and R@5 from text to image; of ``entities``
            top-1 on seen and unseen ones and their harmonic mean.
        """
        encoder = self.encoder(arm, part)
        found: dict[str, float] = kept_or_made(self._figure_file(encoder, part), lambda: self._measure(encoder, part))
        return found

    def _figure_file(self, encoder: Encoder, part: MemoryPart) -> Path:
        return self.folder / "figures" / f"{part}-{content_key(encoder.fingerprint, self._asked(part), size=6)}.json"

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

    def _asked(self, part: MemoryPart) -> Any:
        """Everything that decides a figure, except the encoder."""
        if part == "retrieval":
            return self.pool and [self.pool.images.fingerprint, self.pool.texts, self.pool.matches]
        if part == "entities":
            return self.entities and [_question(self.entities[0]), self.entities[1].tolist()]
        return {column: [_question(task) for task in tasks] for column, tasks in self.tasks.items()}

    def _with_found(self, arm: FusionArm) -> Pairs:
        """The training pairs, and every picture of the memory that one of them finds by its image (R-WebLI)."""
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


def _question(task: ClassificationTask) -> list[Any]:
    """What a task asks: its images and labels, and the texts of its classes."""
    return [task.query.fingerprint, task.class_names, task.templates, task.class_texts]


def _sample(count: int, share: float, name: str) -> np.ndarray:
    return np.sort(numpy_generator("share", str(share), name).permutation(count)[: _part(count, share)])


def _part(count: int, share: float) -> int:
    return max(1, round(share * count))
