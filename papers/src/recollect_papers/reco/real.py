"""``reco/real``: fusions that read an index, on heads of the starter's towers: what only the index knows.

Model and fusion are trained on everyday photographs with captions, and read these in training. At the test the index
also holds emoji, in styles that are not asked for. Nothing is chosen here: fusions have the settings of the package and
of the paper, the head has the steps that ``lixp/real`` chose, the weighted mean has the weight that ``reco/reading``
chose on other emoji, and each mode is shown. Everyday classes and products are withheld too: an index with examples of
the testing sets' classes under their names, and one with products under theirs.

``reco/reading`` asks why the learned gate reads less than a mean, on other emoji: how much weight on what is read is
best, what weight is learned, and what the block's correction does to it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from jaxtyping import Float
from torch import Tensor, nn

from recollect.core.types import Encoder
from recollect.evaluation.results import summarize
from recollect.index import Index, Rows
from recollect.reco.block import FusionBlock, FusionModule, FusionSettings
from recollect.reco.encoder import Mode, RetrievalEnhancedEncoder
from recollect.reco.learning import FusionRecipe, paper_recipe, train_fusion
from recollect.reco.pairs import Pairs
from recollect.training.options import Data
from recollect_papers.engine import Column, Formed, Row, TableForm, TableStudy
from recollect_papers.measurements import FigureAddress, Measurements
from recollect_papers.real.arms import ArmRunner
from recollect_papers.real.data import HELD_STYLES, LIGHT, FeatureSet, RealData, labeled, open_data
from recollect_papers.real.heads import FeatureModel, HeadRecipe
from recollect_papers.real.measure import TEMPLATE, by_name
from recollect_papers.store import content_key
from recollect_papers.study import StudyOptions, StudyTable

MODES: tuple[Mode, ...] = ("image", "text", "both")
WEIGHT = 0.7
"""Of what is read, against the embedding: the best mean over modes in ``reco/reading``."""

GROWTH = (1, 3)
"""Styles of each concept in a smaller index."""

STEPS = 200
"""Of the head, as ``lixp/real`` chose."""

WORLD = (
    "an MLP head on EfficientNet-Lite0 and MiniLM, trained on 14,000 photographs with captions (COCO), which the "
    "index holds; with concepts also emoji in six styles, asked for in three others"
)
COMPARED = (
    (("gate, simulated newness", "both"), ("block as published", "both")),
    (("gate, simulated newness", "both"), ("plain mean", "both")),
    (("gate, simulated newness", "both"), ("plain mean", "text")),
    ((f"mean, weight {WEIGHT}", "both"), ("plain mean", "text")),
    ((f"mean, weight {WEIGHT}", "both"), ("gate, simulated newness", "both")),
    (("gate, for texts alone", "text"), ("plain mean", "text")),
)
NAMED, PRODUCTS = "named", "products"
"""Indexes that hold the everyday pictures and examples of the testing sets' classes, or products (``fashion``)."""

MADE = "made vectors: shows that it runs, not what it finds"


@dataclass(frozen=True)
class Way:
    """One way of using the index.

    Attributes:
        name: in tables.
        recipe: of the fusion; None is a mean.
        modes: which sides read.
        weight: of what is read in an untrained gate; None is the plain mean.
        corrected: whether a trained block adds its correction to the gate.
    """

    name: str
    recipe: FusionRecipe | None
    modes: tuple[Mode, ...] = MODES
    weight: float | None = None
    corrected: bool = True


def ways() -> tuple[Way, ...]:
    """Means, the block as the paper trains it, ours, and ours trained to refine texts alone."""
    ours = FusionRecipe()
    return (
        Way("plain mean", None),
        Way(f"mean, weight {WEIGHT}", None, weight=WEIGHT),
        Way("block as published", paper_recipe()),
        Way("gate, simulated newness", ours),
        Way("gate, for texts alone", replace(ours, fusion=replace(ours.fusion, modalities="text")), ("text",)),
    )


WEIGHTS = (0.5, 0.7, 0.85, 0.95)
"""Of what is read, in a mean of it and the embedding."""


def reading_ways() -> tuple[Way, ...]:
    """Means by weight, and what training makes of the first of them: with the block's correction and without it."""
    ours = FusionRecipe()
    return (
        Way("plain mean", None),
        *(Way(f"mean, weight {weight}", None, weight=weight) for weight in WEIGHTS),
        Way("gate as trained", ours),
        Way("gate as trained, without its correction", ours, corrected=False),
    )


def _measure(options: StudyOptions) -> Measurements:
    smoke = options.scale == "smoke"
    data = open_data(options.data, smoke, LIGHT)
    runner = ArmRunner(data, options.out / "runs" / "reco-real")
    head = HeadRecipe(width=16, hidden=32, batch=64, steps=10) if smoke else HeadRecipe(steps=STEPS)
    read = data.digest(*data.roles.training, *data.roles.testing, *([] if smoke else ["emoji", "fashion"]))
    found, chosen = Measurements(), ways()[:2] if smoke else ways()
    for seed in range(options.seeds or (1 if smoke else 3)):
        bench = _Bench(runner, head, seed, 1 if smoke else 5)
        for way in (None, *chosen):
            name = "model alone" if way is None else way.name
            settings = [3, repr(head), repr(way), read, bench.epochs, HELD_STYLES, GROWTH]
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
        self._indexes: dict[str, Index] = {}

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
        """Accuracy by name on the testing sets and on concepts, with indexes that grow."""
        found = Measurements()
        concepts = self.data.concepts()
        if not self._indexes:
            self._indexes = {"everyday": self.pairs.index(), **dict(self._grown(concepts)), **self._withheld()}
        for mode in ("both",) if way is None else way.modes:
            fusion = None if way is None else self.fusion(way)
            for memory, index in self._indexes.items():
                at = {"memory": memory, "mode": "" if way is None else mode}
                encoder = self._encoder(fusion, index, mode)
                if memory not in (NAMED, PRODUCTS):
                    found.add({**at, "set": "concepts"}, 0, self._by_concept(encoder, concepts))
                for name, splits in self.data.roles.testing.items() if memory in ("everyday", NAMED) else ():
                    found.add({**at, "set": name}, 0, by_name(encoder, self.data.classes(name), splits))
                if memory in ("everyday", PRODUCTS):
                    found.add({**at, "set": "fashion"}, 0, by_name(encoder, self.data.get("fashion"), ("test",)))
            at, encoder = {**at, "memory": "all styles"}, self._encoder(fusion, self._indexes["all styles"], mode)
            for name, value in self._entities(encoder, concepts).items():
                found.add({**at, "set": name}, 0, value)
        return found

    def read(self, way: Way | None) -> Measurements:
        """Accuracy by name on the choosing concepts and sets, and the weight of what is read."""
        found, concepts, sets = Measurements(), self.data.concepts("choosing"), self.data.roles.choosing
        if not self._indexes:
            self._indexes = {"everyday": self.pairs.index(), "all styles": dict(self._grown(concepts))["all styles"]}
        for mode in ("both",) if way is None else way.modes:
            fusion = None if way is None else self.fusion(way)
            at = {"mode": "" if way is None else mode}
            encoder = self._encoder(fusion, self._indexes["all styles"], mode)
            found.add({**at, "set": "concepts"}, 0, self._by_concept(encoder, concepts))
            encoder = self._encoder(fusion, self._indexes["everyday"], mode)
            means = [by_name(encoder, self.data.classes(name), splits) for name, splits in sets.items()]
            found.add({**at, "set": "choosing sets"}, 0, float(np.mean(means)))
            if fusion is not None and fusion.settings.kind == "transformer":
                weights = [block.gate.sigmoid().item() for block in _blocks(fusion)]
                found.add({**at, "set": "weight"}, 0, float(np.mean(weights)))
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

    def _withheld(self) -> dict[str, Index]:
        """Indexes with everyday pictures and those of classes that no caption of the training pairs is about."""
        examples = [self.pairs]
        for name in self.data.roles.testing:
            each = self.data.classes(name)
            captions = [(TEMPLATE.format(each.class_names[label].replace("_", " ")),) for label in each.labels]
            examples.append(embedded(self.model, replace(each, captions=captions), labeled(each, "train"), name))
        products = self.data.get("fashion")
        sold = embedded(self.model, products, products.rows("train"), "fashion")
        return {NAMED: joined(examples).index(), PRODUCTS: joined([self.pairs, sold]).index()}

    def _by_concept(self, encoder: Encoder, concepts: FeatureSet) -> float:
        rows, asked = _held(concepts)
        names = encoder.embed_texts([TEMPLATE.format(concepts.class_names[label]) for label in asked])
        chosen = (encoder.embed_images(concepts.images[rows]) @ names.T).argmax(1).numpy()
        return float(100 * (asked[chosen] == concepts.labels[rows]).mean())

    def _entities(self, encoder: Encoder, concepts: FeatureSet) -> dict[str, float]:
        """Accuracy with the names of all testing sets and all concepts to choose from: on sets, on concepts, and the
        harmonic mean of both."""
        rows, asked = _held(concepts)
        sets = {name: self.data.classes(name) for name in self.data.roles.testing}
        names = [name.replace("_", " ") for each in sets.values() for name in each.class_names]
        names += [concepts.class_names[label] for label in asked]
        texts = encoder.embed_texts([TEMPLATE.format(name) for name in names])

        def right(images: Float[Tensor, "n features"], own: Sequence[str]) -> float:
            chosen = (encoder.embed_images(images) @ texts.T).argmax(1).tolist()
            return float(100 * np.mean([names[each] == name for each, name in zip(chosen, own, strict=True)]))

        shares = []
        for name, each in sets.items():
            some = labeled(each, *self.data.roles.testing[name])
            shares.append(
                right(each.images[some], [each.class_names[one].replace("_", " ") for one in each.labels[some]])
            )
        new = right(concepts.images[rows], [concepts.class_names[one] for one in concepts.labels[rows]])
        old = float(np.mean(shares))
        return {"entities of sets": old, "entities of concepts": new, "entities": 2 * old * new / max(old + new, 1e-9)}

    def fusion(self, way: Way) -> FusionModule:
        """Trained on the everyday pairs, reading these; or a mean."""
        if way.recipe is None:
            fusion = FusionModule(FusionSettings(self.model.width, "mean" if way.weight is None else "transformer"))
            for block in _blocks(fusion):
                assert way.weight is not None
                nn.init.constant_(block.gate, math.log(way.weight / (1 - way.weight)))
            return fusion
        memory = Path(self._folder.name) / "memory"
        if not memory.exists():
            _write(self.pairs, memory, self.model)
        out = Path(self._folder.name) / content_key(repr(way.recipe))
        if not out.exists():
            recipe = replace(
                way.recipe, data=Data(captions=("pairs",)), index=str(memory), batch_size=512, epochs=self.epochs,
                seed=self.seed, checkpoint_every=10**9, precision="float32",
            )  # fmt: skip
            train_fusion(recipe, self.model, self.pairs, out, device="cpu")
        fusion = FusionModule.open(out / "model")
        for block in () if way.corrected else _blocks(fusion):
            for last in (block.output, block.down):
                nn.init.zeros_(last.weight)
                nn.init.zeros_(last.bias)
        return fusion


def _blocks(fusion: FusionModule) -> list[FusionBlock]:
    return [block for block in fusion.blocks.values() if isinstance(block, FusionBlock)]


def _held(concepts: FeatureSet) -> tuple[np.ndarray, np.ndarray]:
    """Pictures in styles that no index holds, and their concepts."""
    rows = np.flatnonzero(np.isin(concepts.domains, HELD_STYLES))
    return rows, np.unique(concepts.labels[rows])


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
    named = {"of sets": "entities of sets", "of concepts": "entities of concepts", "harmonic mean": "entities"}
    columns += [Column(f"all names, {title}", {"memory": "all styles", "set": at}) for title, at in named.items()]
    concepts = TableForm("Emoji by name", ("reads", "which side"), rows, columns, missing="", notes=_tests(found))
    there = [Column(name, {"memory": "everyday", "set": name}, "mean or gain") for name in testing]
    there.insert(0, Column("mean", {"memory": "everyday", "set": testing}, "mean or gain"))
    sets = TableForm("Testing sets by name, gain of reading everyday pictures", ("reads", "which side"), rows, there,
                     missing="")  # fmt: skip
    held = [Column(name, {"memory": NAMED, "set": name}, "mean or gain") for name in testing]
    held.insert(0, Column("mean of sets", {"memory": NAMED, "set": testing}, "mean or gain"))
    held += [Column(f"fashion, {title}", {"memory": memory, "set": "fashion"}, "mean or gain")
             for memory, title in (("everyday", "everyday pictures alone"), (PRODUCTS, "+ products"))]  # fmt: skip
    withheld = TableForm(
        "Classes withheld from training, gain of reading an index that holds them", ("reads", "which side"), rows, held,
        missing="", notes=("fashion: 113 kinds of products by name; the index holds other products by theirs",),
    )  # fmt: skip
    return [_filled(form.fill(found)) for form in (concepts, sets, withheld)], ["no setting was chosen on any of these"]


def _tests(found: Measurements) -> tuple[str, ...]:
    """Ours over the others on concepts, paired by seed."""
    at: FigureAddress = {"memory": "all styles", "set": "concepts"}
    notes = []
    for (one, own), (other, its) in COMPARED:
        if {one, other} <= set(found.context["ways"]):
            gains = found.differences({**at, "arm": one, "mode": own}, {**at, "arm": other, "mode": its})
            words = summarize(gains.values()).signed()
            notes.append(f"emoji in all styles, {one} ({own}) over {other} ({its}): {words}")
    return tuple(notes)


def _filled(table: StudyTable) -> StudyTable:
    """Without rows of sides that a way does not have."""
    return replace(table, rows=tuple(row for row in table.rows if any(row[2:])))


real = TableStudy("reco/real", _measure, _form, {"smoke": MADE, "small": WORLD, "full": WORLD})


def _measure_reading(options: StudyOptions) -> Measurements:
    smoke = options.scale == "smoke"
    data = open_data(options.data, smoke, LIGHT)
    runner = ArmRunner(data, options.out / "runs" / "reco-reading")
    head = HeadRecipe(width=16, hidden=32, batch=64, steps=10) if smoke else HeadRecipe(steps=STEPS)
    read = data.digest(*data.roles.training, *data.roles.choosing, *([] if smoke else ["emoji"]))
    found, chosen = Measurements(), reading_ways()[:2] if smoke else reading_ways()
    for seed in range(options.seeds or (1 if smoke else 3)):
        bench = _Bench(runner, head, seed, 1 if smoke else 5)
        for way in (None, *chosen):
            name = "model alone" if way is None else way.name
            settings = [repr(head), repr(way), read, bench.epochs, HELD_STYLES]
            found.take(runner.figures(name, seed, settings, lambda bench=bench, way=way: bench.read(way)))  # type: ignore[misc]
    found.context.update(ways=[way.name for way in chosen])
    return found


def _form_reading(found: Measurements) -> Formed:
    rows = [Row(("model alone", ""), {"arm": "model alone", "mode": ""})]
    rows += [Row((name, mode), {"arm": name, "mode": mode}) for name in found.context["ways"] for mode in MODES]
    titles = {"concepts": "emoji by name", "choosing sets": "everyday index: EuroSAT and DTD by name"}
    columns = [Column(title, {"set": at}) for at, title in titles.items()]
    columns.append(Column("weight of what is read", {"set": "weight"}, "number", pattern="{:.2f}"))
    form = TableForm("Reading by weight, and after training", ("reads", "which side"), rows, columns, missing="")
    return [form.fill(found)], ["393 emoji of the split train, on which nothing was trained"]


reading = TableStudy("reco/reading", _measure_reading, _form_reading, {"smoke": MADE, "small": WORLD, "full": WORLD})
