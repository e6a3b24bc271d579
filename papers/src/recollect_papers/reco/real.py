"""``reco/real``: fusions that read an index, on heads of the starter's towers.

Model and fusion are trained on everyday photographs with captions, which are the index in training. The test index also
contains emoji, in other styles than the queries; further indexes contain examples of the testing sets' classes, or
products, with their names. Nothing is chosen here: fusions have the settings of the package and of the paper, the
number of steps comes from ``lixp/real``, the weight of a mean is measured on the index (`balanced_mean`), and every
mode is shown.

``reco/reading`` chooses, on other emoji, the weight of the retrieved embedding in a mean and the learning rate of
fusions, and shows the effect of the block's correction.

``reco/starter`` repeats ``reco/real`` with the starter itself.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.core.types import Encoder, Kind
from recollect.evaluation.results import summarize
from recollect.index import Index, Rows
from recollect.models import load_model
from recollect.reco.block import FusionBlock, FusionModule, FusionSettings
from recollect.reco.encoder import Mode, RetrievalEnhancedEncoder
from recollect.reco.learning import FusionRecipe, paper_recipe, train_fusion
from recollect.reco.neighbors import balanced_mean
from recollect.reco.pairs import Pairs
from recollect.training.options import Data
from recollect_papers.engine import Column, Row, TableForm, TablesAndNotes, TableStudy
from recollect_papers.measurements import FigureAddress, Measurements
from recollect_papers.real.arms import SMOKE_HEAD, ArmRunner, open_runner, worlds
from recollect_papers.real.data import FLICKR_ROLES, HELD_STYLES, FeatureSet, RealData, labeled
from recollect_papers.real.heads import HeadRecipe
from recollect_papers.real.measure import TEMPLATE, by_name, recall
from recollect_papers.store import content_key
from recollect_papers.study import StudyOptions, StudyTable

MODES: tuple[Mode, ...] = ("image", "text", "both")
MEASURED = "mean, measured weight"
"""Name of the mean whose weight is measured on the index, the default of ``--fusion mean``."""

GROWTH = (1, 3)
"""Numbers of styles per concept in the smaller indexes."""

STEPS = 200
"""Training steps of the head, as chosen in ``lixp/real``."""

WORLD = (
    "an MLP head on EfficientNet-Lite0 and MiniLM, trained on 14,000 captioned photographs (COCO), which are also the "
    "index; indexes with concepts add emoji in six styles, and queries are emoji in three others"
)
COMPARED = (
    (("gate, simulated newness", "both"), ("block as published", "both")),
    (("gate, simulated newness", "both"), ("plain mean", "both")),
    (("gate, simulated newness", "both"), ("plain mean", "text")),
    ((MEASURED, "both"), ("plain mean", "text")),
    ((MEASURED, "both"), ("gate, simulated newness", "both")),
    (("gate, for texts alone", "text"), ("plain mean", "text")),
)
NAMED, PRODUCTS = "named", "products"
"""Indexes with everyday pictures plus examples of the testing sets' classes, or plus products (``fashion``)."""


@dataclass(frozen=True)
class Way:
    """One way of using the index.

    Attributes:
        name: name in tables.
        recipe: recipe of the fusion; None for a mean.
        modes: modes to evaluate.
        weight: weight of the retrieved embedding in a mean; None for the plain mean.
        corrected: whether a trained block adds its correction to the gate.
    """

    name: str
    recipe: FusionRecipe | None
    modes: tuple[Mode, ...] = MODES
    weight: float | None = None
    corrected: bool = True


def ways() -> tuple[Way, ...]:
    """Return the means, the paper's block, ours, and ours for texts only."""
    ours = FusionRecipe()
    return (
        Way("plain mean", None),
        Way(MEASURED, None),
        Way("block as published", paper_recipe()),
        Way("gate, simulated newness", ours),
        Way("gate, for texts alone", replace(ours, fusion=replace(ours.fusion, modalities="text")), ("text",)),
    )


WEIGHTS = (0.5, 0.7, 0.85, 0.95)
"""Weights of the retrieved embedding in a mean."""


def analyzed_ways() -> tuple[Way, ...]:
    """Return means by weight, and trained fusions by learning rate, the gate also without its correction."""
    ours, paper = FusionRecipe(), paper_recipe()
    faster = replace(ours, optimizer=paper.optimizer)
    return (
        Way("plain mean", None),
        *(Way(f"mean, weight {weight}", None, weight=weight) for weight in WEIGHTS),
        Way("gate as trained", ours),
        Way("gate as trained, without its correction", ours, corrected=False),
        Way("gate, learning rate 0.001", faster),
        Way("gate, learning rate 0.001, without its correction", faster, corrected=False),
        Way("block as published", paper),
        Way("block as published, learning rate 0.0001", replace(paper, optimizer=ours.optimizer)),
    )


def _measure(options: StudyOptions) -> Measurements:
    return _tested(options, open_runner(options, "reco-real", FLICKR_ROLES), ways(), HeadRecipe(steps=STEPS))


def _tested(options: StudyOptions, runner: ArmRunner, ways: Sequence[Way], head: HeadRecipe | None) -> Measurements:
    testing, pools = runner.data.roles.testing, runner.data.roles.pools
    found = _measured(options, runner, ways, _Bench.measure, (*testing, *pools, "fashion"), [5, GROWTH], head)
    found.context.update(testing=list(testing), pools=list(pools))
    return found


def _measured(
    options: StudyOptions,
    runner: ArmRunner,
    ways: Sequence[Way],
    measure: Callable[["_Bench", Way | None], Measurements],
    sets: Sequence[str],
    settings: Sequence[Any],
    head: HeadRecipe | None,
) -> Measurements:
    """Measure the model alone and every way of using an index, with every seed; ``sets`` are read besides emoji."""
    smoke = options.scale == "smoke"
    head, ways = (SMOKE_HEAD, ways[:2]) if smoke else (head, ways)
    read = "" if smoke else runner.data.digest(*runner.data.roles.training, *sets, "emoji")
    found = Measurements({"ways": [way.name for way in ways]})
    for seed in range(options.seeds or (1 if smoke else 3)):
        bench = _Bench(runner, head, seed, 1 if smoke else 5)
        for way in (None, *ways):
            key = [*settings, repr(head), repr(way), read, bench.epochs, HELD_STYLES]
            name = "model alone" if way is None else way.name
            found.take(runner.figures(name, seed, key, partial(measure, bench, way)))
    return found


class _Starter(Encoder):
    """The starter, whose images are features of its tower."""

    def __init__(self, data: RealData) -> None:
        self.data, self.starter = data, load_model()
        self.width = self.starter.width

    @property
    def scale(self) -> float | None:
        return self.starter.scale

    @property
    def fingerprint(self) -> str:
        """The starter's."""
        return self.starter.fingerprint

    @torch.no_grad()
    def embed_images(self, images: Any) -> Float[Tensor, "n width"]:
        """Return unit-norm embeddings of features."""
        return F.normalize(self.starter.project_images(images), dim=1)

    @torch.no_grad()
    def embed_texts(self, texts: Sequence[str], prefix: Kind | None = None) -> Float[Tensor, "n width"]:
        """Return unit-norm embeddings of texts."""
        return F.normalize(self.starter.project_texts(self.data.texts(texts)), dim=1)


@dataclass
class _Bench:
    """A model of one seed with its indexes, created on first use; ``head`` None is the starter."""

    runner: ArmRunner
    head: HeadRecipe | None
    seed: int
    epochs: int

    def __post_init__(self) -> None:
        self._folder = TemporaryDirectory()
        self._indexes: dict[str, Index] = {}

    @property
    def data(self) -> RealData:
        return self.runner.data

    @cached_property
    def model(self) -> Encoder:
        return _Starter(self.data) if self.head is None else self.runner.model(self.head, self.seed)

    @cached_property
    def pairs(self) -> Pairs:
        """Embedded training pairs, with the first caption of each picture."""
        sets = map(self.data.get, self.data.roles.training)
        return joined([embedded(self.model, each, each.rows("train"), each.name) for each in sets])

    def measure(self, way: Way | None) -> Measurements:
        """Measure zero-shot accuracy on the testing sets and on concepts, with every index."""
        found = Measurements()
        concepts = self.data.concepts()
        if not self._indexes:
            self._indexes = {"everyday": self.pairs.index(), **dict(self._grown(concepts)), **self._withheld()}
        for mode in ("both",) if way is None else way.modes:
            fusion = None if way is None or way.name == MEASURED else self.fusion(way)
            for memory, index in self._indexes.items():
                at = {"memory": memory, "mode": "" if way is None else mode}
                if way is not None and way.name == MEASURED:
                    fusion = balanced_mean(index)
                    found.add({**at, "set": "weight"}, 0, fusion.settings.weight or 0.0)
                encoder = self._encoder(fusion, index, mode)
                if memory not in (NAMED, PRODUCTS):
                    found.add({**at, "set": "concepts"}, 0, self._by_concept(encoder, concepts))
                for name, value in self._entities(encoder, concepts).items() if memory == "all styles" else ():
                    found.add({**at, "set": name}, 0, value)
                for name, splits in self.data.roles.testing.items() if memory in ("everyday", NAMED) else ():
                    found.add({**at, "set": name}, 0, by_name(encoder, self.data.classes(name), splits))
                for pool, split in self.data.roles.pools.items() if memory == "everyday" else ():
                    found.add({**at, "set": f"R@10 {pool}"}, 0, recall(encoder, self.data.get(pool), split)[10])
                if memory in ("everyday", PRODUCTS):
                    found.add({**at, "set": "fashion"}, 0, by_name(encoder, self.data.get("fashion"), ("test",)))
        return found

    def read(self, way: Way | None) -> Measurements:
        """Measure zero-shot accuracy on the choosing concepts and sets, and the weight of the retrieved embedding."""
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
            pool, split = self.data.roles.choosing_pool
            found.add({**at, "set": "R@10"}, 0, recall(encoder, self.data.get(pool), split)[10])
            if fusion is not None and fusion.settings.kind == "transformer":
                weights = [block.gate.sigmoid().item() for block in _blocks(fusion) if block.start == "gate"]
                if weights:
                    found.add({**at, "set": "weight"}, 0, float(np.mean(weights)))
        return found

    def _encoder(self, fusion: FusionModule | None, index: Index, mode: Mode) -> Encoder:
        return self.model if fusion is None else RetrievalEnhancedEncoder(self.model, index, fusion, mode)

    def _grown(self, concepts: FeatureSet) -> Iterator[tuple[str, Index]]:
        """Yield indexes with every concept in 1 style, in 3 styles, and in all styles that are not held out."""
        styles = [style for style in sorted(set(concepts.domains.tolist())) if style not in HELD_STYLES]
        for count in (*GROWTH, len(styles)):
            rows = np.flatnonzero(np.isin(concepts.domains, styles[:count]))
            more = embedded(self.model, concepts, rows, "concepts")
            yield "all styles" if count == len(styles) else f"styles {count}", joined([self.pairs, more]).index()

    def _withheld(self) -> dict[str, Index]:
        """Return indexes with everyday pictures plus classes that were withheld from training."""
        examples = [self.pairs]
        for name in self.data.roles.testing:
            each = self.data.classes(name)
            captions = [(TEMPLATE.format(each.class_names[label].replace("_", " ")),) for label in each.labels]
            examples.append(embedded(self.model, replace(each, captions=captions), labeled(each, "train"), name))
        products = self.data.get("fashion")
        catalog = embedded(self.model, products, products.rows("train"), "fashion")
        return {NAMED: joined(examples).index(), PRODUCTS: joined([self.pairs, catalog]).index()}

    def _by_concept(self, encoder: Encoder, concepts: FeatureSet) -> float:
        rows, labels = _held_out(concepts)
        names = encoder.embed_texts([TEMPLATE.format(concepts.class_names[label]) for label in labels])
        chosen = (encoder.embed_images(concepts.images[rows]) @ names.T).argmax(1).numpy()
        return float(100 * (labels[chosen] == concepts.labels[rows]).mean())

    def _entities(self, encoder: Encoder, concepts: FeatureSet) -> dict[str, float]:
        """Measure accuracy among the names of all testing sets and concepts: on sets, on concepts, harmonic mean."""
        rows, labels = _held_out(concepts)
        sets = {name: self.data.classes(name) for name in self.data.roles.testing}
        names = [name.replace("_", " ") for each in sets.values() for name in each.class_names]
        names += [concepts.class_names[label] for label in labels]
        texts = encoder.embed_texts([TEMPLATE.format(name) for name in names])

        def accuracy(each: FeatureSet, rows: np.ndarray) -> float:
            chosen = (encoder.embed_images(each.images[rows]) @ texts.T).argmax(1).tolist()
            right = [each.class_names[label] for label in each.labels[rows]]
            return float(100 * np.mean([names[best] == name for best, name in zip(chosen, right, strict=True)]))

        accuracies = []
        for name, each in sets.items():
            spaced = replace(each, class_names=tuple(name.replace("_", " ") for name in each.class_names))
            accuracies.append(accuracy(spaced, labeled(each, *self.data.roles.testing[name])))
        old, new = float(np.mean(accuracies)), accuracy(concepts, rows)
        return {"entities of sets": old, "entities of concepts": new, "entities": 2 * old * new / max(old + new, 1e-9)}

    def fusion(self, way: Way) -> FusionModule:
        """Return a fusion trained on the everyday pairs with these as index, or a mean."""
        if way.recipe is None:
            return FusionModule(FusionSettings(self.model.width, "mean", weight=way.weight))
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


def _held_out(concepts: FeatureSet) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows in styles that no index contains, and their distinct labels."""
    rows = np.flatnonzero(np.isin(concepts.domains, HELD_STYLES))
    return rows, np.unique(concepts.labels[rows])


def embedded(model: Encoder, each: FeatureSet, rows: np.ndarray, name: str) -> Pairs:
    """Embed pictures with their first captions, skipping those without."""
    captioned = [row for row in rows.tolist() if each.captions[row]]
    captions = [each.captions[row][0] for row in captioned]
    images, texts = model.embed_images(each.images[captioned]).numpy(), model.embed_texts(captions).numpy()
    return Pairs(images, texts, captions, [f"{name}-{row}" for row in captioned], model.fingerprint)


def joined(parts: Sequence[Pairs]) -> Pairs:
    """Concatenate pairs."""
    return Pairs(
        np.concatenate([part.images for part in parts]),
        np.concatenate([part.texts for part in parts]),
        [caption for part in parts for caption in part.captions],
        [picture for part in parts for picture in part.pictures],
        parts[0].model,
    )


def _write(pairs: Pairs, folder: Path, model: Encoder) -> None:
    captions, vectors = [(caption,) for caption in pairs.captions], [vector[None] for vector in pairs.texts]
    rows = Rows(image_vectors=pairs.images, ids=list(pairs.pictures), captions=captions, caption_vectors=vectors)
    Index.create(folder, width=pairs.images.shape[1], model=model.fingerprint).insert(rows)


def _form(found: Measurements) -> TablesAndNotes:
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
    concepts = TableForm("Emoji by name", ("fusion", "side"), rows, columns, missing="", notes=_tests(found))
    each = [Column(name, {"memory": "everyday", "set": name}, "mean or gain") for name in testing]
    each.insert(0, Column("mean", {"memory": "everyday", "set": testing}, "mean or gain"))
    sets = TableForm("Testing sets by name, gain with everyday pictures in the index", ("fusion", "side"), rows, each,
                     missing="")  # fmt: skip
    pools = [Column(f"R@10 {name}", {"memory": "everyday", "set": f"R@10 {name}"}, "mean or gain")
             for name in found.context["pools"]]  # fmt: skip
    searched = TableForm(
        "Retrieval of captioned pictures, gain with everyday pictures in the index", ("fusion", "side"), rows, pools,
        missing="",
    )  # fmt: skip
    held = [Column(name, {"memory": NAMED, "set": name}, "mean or gain") for name in testing]
    held.insert(0, Column("mean of sets", {"memory": NAMED, "set": testing}, "mean or gain"))
    held += [Column(f"fashion, {title}", {"memory": memory, "set": "fashion"}, "mean or gain")
             for memory, title in (("everyday", "everyday pictures alone"), (PRODUCTS, "+ products"))]  # fmt: skip
    note = "fashion: 113 kinds of products by name; the index contains other products with their names"
    withheld = TableForm("Classes withheld from training, gain with these classes in the index",
                         ("fusion", "side"), rows, held, missing="", notes=(note,))  # fmt: skip
    filled = [_filled(form.fill(found)) for form in (concepts, sets, searched, withheld)]
    return filled, ["no settings were chosen on these sets"]


def _tests(found: Measurements) -> tuple[str, ...]:
    """Return notes comparing ways on concepts, paired by seed."""
    at: FigureAddress = {"memory": "all styles", "set": "concepts"}
    notes = []
    for (way, mode), (base, base_mode) in COMPARED:
        if {way, base} <= set(found.context["ways"]):
            gains = found.differences({**at, "arm": way, "mode": mode}, {**at, "arm": base, "mode": base_mode})
            gain = summarize(gains.values()).signed()
            notes.append(f"emoji in all styles, {way} ({mode}) over {base} ({base_mode}): {gain}")
    weights = [found.at({"arm": MEASURED, "mode": "both", "memory": memory, "set": "weight"})
               for memory in ("everyday", "all styles", NAMED, PRODUCTS)]  # fmt: skip
    if measured := [value for each in weights for value in each.values()]:
        notes.append(f"measured weights: {min(measured):.2f} to {max(measured):.2f}")
    return tuple(notes)


def _filled(table: StudyTable) -> StudyTable:
    """Remove rows of modes that a way does not have."""
    return replace(table, rows=tuple(row for row in table.rows if any(row[2:])))


real = TableStudy("reco/real", _measure, _form, worlds(WORLD))


def _measure_reading(options: StudyOptions) -> Measurements:
    runner = open_runner(options, "reco-reading", FLICKR_ROLES)
    sets = (*runner.data.roles.choosing, runner.data.roles.choosing_pool[0])
    return _measured(options, runner, analyzed_ways(), _Bench.read, sets, [], HeadRecipe(steps=STEPS))


def _form_reading(found: Measurements) -> TablesAndNotes:
    rows = [Row(("model alone", ""), {"arm": "model alone", "mode": ""})]
    rows += [Row((name, mode), {"arm": name, "mode": mode}) for name in found.context["ways"] for mode in MODES]
    titles = {"concepts": "emoji by name", "choosing sets": "everyday index: EuroSAT and DTD by name",
              "R@10": "everyday index: R@10 of COCO, validation"}  # fmt: skip
    columns = [*(Column(title, {"set": at}) for at, title in titles.items()),
               Column("weight of the retrieved embedding", {"set": "weight"}, "number", pattern="{:.2f}")]  # fmt: skip
    form = TableForm("Means by weight, and the trained gate", ("fusion", "side"), rows, columns, missing="")
    return [form.fill(found)], ["393 emoji of the split train, which were not used in training"]


reading = TableStudy("reco/reading", _measure_reading, _form_reading, worlds(WORLD))


STARTER_WORLD = (
    "the starter, whose head was trained on the 14,000 captioned photographs (COCO) that are the index; indexes with "
    "concepts add emoji in six styles, and queries are emoji in three others"
)


def _measure_starter(options: StudyOptions) -> Measurements:
    tested = (Way("plain mean", None), Way(MEASURED, None), Way("gate, simulated newness", FusionRecipe()))
    return _tested(options, open_runner(options, "reco-starter", FLICKR_ROLES), tested, None)


starter = TableStudy("reco/starter", _measure_starter, _form, worlds(STARTER_WORLD))
