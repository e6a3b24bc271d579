"""``reco/real``: fusions that read an index, on heads of the starter's towers: concepts that only the index knows.

Model and fusion are trained on everyday photographs with captions, and read these in training. At the test the index
also holds emoji: concepts that no head and no fusion was trained on. They are shown in styles that the index has not.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from recollect.core.types import Encoder
from recollect.index import Index, Rows
from recollect.reco.block import FusionModule, FusionSettings
from recollect.reco.encoder import Mode, RetrievalEnhancedEncoder
from recollect.reco.learning import FusionRecipe, paper_recipe, train_fusion
from recollect.reco.pairs import Pairs
from recollect.training.options import Data
from recollect_papers.engine import Column, Formed, Row, TableForm, TableStudy
from recollect_papers.measurements import Measurements
from recollect_papers.real.arms import ArmRunner
from recollect_papers.real.data import HELD_STYLES, FeatureSet, RealData, open_data
from recollect_papers.real.heads import FeatureModel, HeadRecipe
from recollect_papers.real.measure import TEMPLATE, by_name
from recollect_papers.study import StudyOptions, StudyTable

MODES: tuple[Mode, ...] = ("image", "text", "both")
GROWTH = (1, 3)
"""Styles of each concept in a smaller index."""

WORLD = (
    "an MLP head on EfficientNet-Lite0 and MiniLM, trained on 20,090 everyday photographs with captions, which the "
    "index holds; with concepts also emoji in six styles, asked for in three others"
)
MADE = "made vectors: shows that it runs, not what it finds"


@dataclass(frozen=True)
class Way:
    """One way of using the index.

    Attributes:
        name: in tables.
        recipe: of the fusion; None is the plain mean.
        modes: which sides read.
    """

    name: str
    recipe: FusionRecipe | None
    modes: tuple[Mode, ...] = MODES


def ways() -> tuple[Way, ...]:
    """The plain mean, the block as the paper trains it, and ours."""
    ours = FusionRecipe()
    return (
        Way("plain mean", None),
        Way("block as published", paper_recipe()),
        Way("gate, simulated newness", ours),
    )


def _measure(options: StudyOptions) -> Measurements:
    smoke = options.scale == "smoke"
    data = open_data(options.data, smoke)
    runner = ArmRunner(data, options.out / "runs" / "reco-real")
    head = HeadRecipe(width=16, hidden=32, batch=64, steps=10) if smoke else HeadRecipe()
    read = data.digest(*data.roles.training, *data.roles.testing, *([] if smoke else ["emoji"]))
    found, chosen = Measurements(), ways()[:2] if smoke else ways()
    for seed in range(options.seeds or (1 if smoke else 3)):
        bench = _Bench(runner, head, seed, 1 if smoke else 5)
        for way in (None, *chosen):
            name = "model alone" if way is None else way.name
            settings = [repr(head), repr(way), read, bench.epochs, HELD_STYLES, GROWTH]
            found.take(runner.figures(name, seed, settings, lambda bench=bench, way=way: bench.measure(way)))  # type: ignore[misc]
    found.context.update(ways=[way.name for way in chosen], testing=list(data.roles.testing))
    return found


@dataclass
class _Bench:
    """A model of one seed, with its indexes; made when the first figure needs it."""

    runner: ArmRunner
    head: HeadRecipe
    seed: int
    epochs: int

    def __post_init__(self) -> None:
        self._folder = TemporaryDirectory()
        self._model: FeatureModel | None = None
        self._pairs: Pairs | None = None
        self._indexes: list[tuple[str, Index]] = []

    @property
    def data(self) -> RealData:
        return self.runner.data

    @property
    def model(self) -> FeatureModel:
        if self._model is None:
            self._model = self.runner.model(self.head, self.seed)
        return self._model

    @property
    def pairs(self) -> Pairs:
        """The training pairs, embedded: the first caption of each picture."""
        if self._pairs is None:
            parts = [
                embedded(self.model, each, each.rows("train"), each.name)
                for each in map(self.data.get, self.data.roles.training)
            ]
            self._pairs = joined(parts)
        return self._pairs

    def measure(self, way: Way | None) -> Measurements:
        """Accuracy by name on concepts, with indexes that grow, and on the testing sets."""
        found = Measurements()
        concepts = self.data.concepts()
        if not self._indexes:
            self._indexes = [("everyday", self.pairs.index()), *self._grown(concepts)]
        everyday = self._indexes[0][1]
        for mode in ("both",) if way is None else way.modes:
            shown = "" if way is None else mode
            fusion = None if way is None else self.fusion(way)
            for name, splits in self.data.roles.testing.items():
                encoder = self._encoder(fusion, everyday, mode)
                value = by_name(encoder, self.data.classes(name), splits)
                found.add({"memory": "everyday", "mode": shown, "set": name}, 0, value)
            for memory, index in self._indexes:
                value = self._by_concept(self._encoder(fusion, index, mode), concepts)
                found.add({"memory": memory, "mode": shown, "set": "concepts"}, 0, value)
        return found

    def _encoder(self, fusion: FusionModule | None, index: Index, mode: Mode) -> Encoder:
        return self.model if fusion is None else RetrievalEnhancedEncoder(self.model, index, fusion, mode)

    def _grown(self, concepts: FeatureSet) -> Iterator[tuple[str, Index]]:
        """Indexes with every concept in one style, in three, in all that are not held out."""
        styles = [style for style in sorted(set(concepts.domains.tolist())) if style not in HELD_STYLES]
        for count in (*GROWTH, len(styles)):
            rows = np.flatnonzero(np.isin(concepts.domains, styles[:count]))
            more = embedded(self.model, concepts, rows, "concepts")
            yield "all styles" if count == len(styles) else f"styles {count}", joined([self.pairs, more]).index()

    def _by_concept(self, encoder: Encoder, concepts: FeatureSet) -> float:
        rows = np.flatnonzero(np.isin(concepts.domains, HELD_STYLES))
        asked = np.unique(concepts.labels[rows])
        names = encoder.embed_texts([TEMPLATE.format(concepts.class_names[label]) for label in asked])
        chosen = (encoder.embed_images(concepts.images[rows]) @ names.T).argmax(1).numpy()
        return float(100 * (asked[chosen] == concepts.labels[rows]).mean())

    def fusion(self, way: Way) -> FusionModule:
        """Trained on the everyday pairs, reading these."""
        if way.recipe is None:
            return FusionModule(FusionSettings(self.model.width, "mean"))
        memory = Path(self._folder.name) / "memory"
        if not memory.exists():
            _write(self.pairs, memory, self.model)
        out = Path(self._folder.name) / way.name.replace(" ", "-")
        if not out.exists():
            recipe = replace(
                way.recipe, data=Data(captions=("pairs",)), index=str(memory), batch_size=512, epochs=self.epochs,
                seed=self.seed, checkpoint_every=10**9, precision="float32",
            )  # fmt: skip
            train_fusion(recipe, self.model, self.pairs, out, device="cpu")
        return FusionModule.open(out / "model")


def embedded(model: FeatureModel, each: FeatureSet, rows: np.ndarray, name: str) -> Pairs:
    """Pictures with their first captions, as a model embeds them."""
    kept = [row for row in rows.tolist() if each.captions[row]]
    captions = [each.captions[row][0] for row in kept]
    return Pairs(
        model.embed_images(each.images[kept]).numpy(),
        model.embed_texts(captions).numpy(),
        captions,
        [f"{name}-{row}" for row in kept],
        model.fingerprint,
    )


def joined(parts: Sequence[Pairs]) -> Pairs:
    """One after the other."""
    return Pairs(
        np.concatenate([part.images for part in parts]),
        np.concatenate([part.texts for part in parts]),
        [caption for part in parts for caption in part.captions],
        [picture for part in parts for picture in part.pictures],
        parts[0].model,
    )


def _write(pairs: Pairs, folder: Path, model: FeatureModel) -> None:
    index = Index.create(folder, width=pairs.images.shape[1], model=model.fingerprint)
    rows = Rows(
        image_vectors=pairs.images,
        ids=list(pairs.pictures),
        captions=[(caption,) for caption in pairs.captions],
        caption_vectors=[vector[None] for vector in pairs.texts],
    )
    index.insert(rows)


def _form(found: Measurements) -> Formed:
    names: Sequence[str] = found.context["ways"]
    testing = tuple(found.context["testing"])
    rows = [Row(("model alone", ""), {"arm": "model alone", "mode": ""})]
    rows += [Row((name, mode), {"arm": name, "mode": mode}, over={"arm": "model alone", "mode": ""})
             for name in names for mode in MODES]  # fmt: skip
    memories: Mapping[str, str] = {"everyday": "everyday pictures alone", "styles 1": "+ concepts in 1 style",
                                   "styles 3": "+ in 3 styles", "all styles": "+ in all styles"}  # fmt: skip
    columns = [Column(title, {"memory": memory, "set": "concepts"}) for memory, title in memories.items()]
    concepts = TableForm("Emoji by name", ("reads", "which side"), rows, columns, missing="")
    there = [Column(name, {"memory": "everyday", "set": name}, "mean or gain") for name in testing]
    there.insert(0, Column("mean", {"memory": "everyday", "set": testing}, "mean or gain"))
    sets = TableForm("Testing sets by name, gain of reading everyday pictures", ("reads", "which side"), rows, there,
                     missing="")  # fmt: skip
    return [_filled(form.fill(found)) for form in (concepts, sets)], []


def _filled(table: StudyTable) -> StudyTable:
    """Without rows of sides that a way does not have."""
    return replace(table, rows=tuple(row for row in table.rows if any(row[2:])))


real = TableStudy("reco/real", _measure, _form, {"smoke": MADE, "small": WORLD, "full": WORLD})
