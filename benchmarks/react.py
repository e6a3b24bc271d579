"""REACT on real pictures: pairs that an index holds of class names against as many pairs drawn from it at random.

    python benchmarks/react.py FOLDER --start patches --out results/reco/react.json

FOLDER has the Parquet files of `recollect-papers lixp/real`. Half of its captioned training pictures train a base
model; the other half, which it has not seen, is an index. The pairs nearest to the class names of the sets in question
are retrieved and train the model further: new gated blocks alone, the whole image tower, or its head; texts stay as
they are. Every way is tried on as many pairs of the index drawn at random too, and on the whole index. Steps and
rates are chosen on the choosing sets, with their class names and the first seed; the figures are of other sets. The
tower of `patches` is no transformer, so no block can stand before its blocks: there the head alone is trained.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from recollect.classifiers.heads.protocol import Protocol
from recollect.cli.parser import Arg, script_options
from recollect.core.files import read_json, write_json
from recollect.core.seeding import numpy_generator
from recollect.core.types import Encoder
from recollect.data.prompts import GENERAL_TEMPLATES
from recollect.data.sources import open_source
from recollect.data.sources.derived import Subset
from recollect.evaluation.few_shot import few_shot, with_enough_examples
from recollect.evaluation.results import summarise
from recollect.evaluation.tasks.classification import ClassificationTask, Division, classification_task
from recollect.evaluation.zero_shot import zero_shot
from recollect.index import By, Index, IngestOptions
from recollect.index.by_class import ClassHit, retrieve_by_class, write_retrieved
from recollect.models import DualEncoder, load_model
from recollect.training.locked import lock_source
from recollect.training.options import Data, Model, Recipe
from recollect.training.recipes import RECIPES
from recollect_papers.lixp.sets import CHOOSING, TESTING, TRAINING, RealSet, place, present, times_spoken
from recollect_papers.runs import made_once, run_key
from recollect_papers.stems import FeatureEncoder
from recollect_papers.study import StudyTable
from recollect_papers.study import over as over_seeds
from recording import this_command, where

Start = Literal["tiny", "patches"]
Role = Literal["choosing", "testing"]
Drawn = Literal["by image", "by text", "random"]
DRAWN: tuple[Drawn, ...] = ("by image", "by text", "random")
"""How pairs come from the index: retrieved by class names, compared with its images or its texts, or at random."""
Pairs = Drawn | Literal["whole"]
TEMPLATES = GENERAL_TEMPLATES[::8]
SHOTS, DRAWS = 16, (0, 1)
EXAMPLES, TESTED = 20, 600
"""Of every set so many examples of a class, and so many tested pictures, both drawn once."""
NAMES: Mapping[Pairs, str] = {
    "by image": "retrieved by image", "by text": "retrieved by text", "random": "drawn at random",
    "whole": "of the whole memory",
}  # fmt: skip
BASE = "base model"
MEASURES = {"zero-shot": "zero-shot top-1", "16-shot": "prototypes at 16 shots"}


@dataclass(frozen=True)
class Way:
    """One way of training further.

    Attributes:
        model: what learns, given the base model's folder.
        tried: steps and learning rates to choose from.
        start: the base models that it is for.
    """

    model: Mapping[str, Any]
    tried: tuple[tuple[int, float], ...]
    start: tuple[Start, ...]


WAYS: Mapping[str, Way] = {
    "gated blocks": Way({"gated": True}, ((30, 5e-4), (30, 2e-3)), ("tiny",)),
    "image tower": Way({"freeze": "text"}, ((30, 5e-5), (30, 2e-4)), ("tiny",)),
    "head": Way({"freeze": "text", "locked": "both"}, ((20, 1e-4), (20, 5e-4), (100, 1e-4)), ("tiny", "patches")),
}
BASES: Mapping[Start, tuple[str, dict[str, Any]]] = {
    "tiny": ("siglip-tiny", {"steps": 200, "batch_size": 512}),
    "patches": ("siglip-locked", {"steps": 200, "batch_size": 2048}),
}


@dataclass(frozen=True)
class Options:
    """What to train, and where."""

    data: Annotated[Path, Arg(place="DATA")]
    """Folder of the Parquet files."""
    start: Start = "patches"
    """The base model's preset."""
    ways: tuple[str, ...] = ()
    """Of training further; all that the preset has by default."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Of base model and further training."""
    batch: int = 512
    """Pairs of a step of further training."""
    per_class: int = 10
    """Most pairs of a class."""
    work: Path = Path("runs/react")
    """Folder of models and indexes; what is there is not made again."""
    out: Path | None = None
    """JSON file for the figures."""


@dataclass(frozen=True)
class Trial:
    """One seed: a base model, its index, and what is trained further."""

    options: Options
    seed: int
    tasks: Mapping[Role, Mapping[str, ClassificationTask]] = field(repr=False)

    @property
    def folder(self) -> Path:
        """Of this seed."""
        return self.options.work / f"{self.options.start}-seed{self.seed}"

    @property
    def recipe(self) -> Recipe:
        """Of the base model."""
        name, sizes = BASES[self.options.start]
        return replace(RECIPES[name](), **sizes, data=self.half("0/2"), seed=self.seed)

    def half(self, part: str) -> Data:
        """Some of the captioned pictures."""
        return Data(captions=tuple(f"{place(self.options.data, spec)}&only={part}" for spec in TRAINING.values()))

    @cached_property
    def base(self) -> Path:
        """The base model's folder."""
        return made_once(self.recipe, self.folder / f"base-{run_key(self.recipe)}")

    @cached_property
    def encoder(self) -> DualEncoder:
        """The base model."""
        return load_model(self.base, "cpu")

    @cached_property
    def index(self) -> Index:
        """Of the pairs that the base model has not seen."""
        out = self.folder / "index"
        done = out.with_suffix(".done")
        if not done.exists():
            shutil.rmtree(out, ignore_errors=True)  # of minutes
        for name, source in zip(TRAINING, self.half("1/2").captions, strict=True):
            if not done.exists():
                Index.build(open_source(source), self.base, out=out, name=name, options=IngestOptions(captions="first"))
        done.touch()
        return Index.open(out)

    def pairs(self, role: Role, drawn: Drawn) -> tuple[Path, dict[str, float]]:
        """A file of pairs to train on further, and what it holds."""
        out = self.folder / f"{role}-{drawn.replace(' ', '-')}-{self.options.per_class}.parquet"
        about = out.with_suffix(".json")
        if not about.exists():
            names = list(dict.fromkeys(name for task in self.tasks[role].values() for name in task.class_names))
            by: By = "text" if drawn == "by text" else "image"
            hits = retrieve_by_class(self.index, self.encoder, names, TEMPLATES, self.options.per_class, by)
            ids = self.index.ids
            if drawn == "random":  # as many as by image
                rows = numpy_generator("react", self.seed, role).choice(len(ids), len(hits), replace=False)
                hits = [ClassHit(ids[row], names[number % len(names)], 0.0) for number, row in enumerate(rows)]
            write_retrieved(self.index, hits, out)
            captions = [picture.caption for picture in self.index.pictures([hit.id for hit in hits])]
            said = [sum(times_spoken([hit.name], [text])) for hit, text in zip(hits, captions, strict=True)]
            spoken = sum(any(times_spoken(names, [text])) for text in captions)
            told = {"pairs": len(hits), "of": len(ids), "caption says its class": round(100 * float(np.mean(said)), 1)}
            write_json(about, told | {"caption says some class": round(100 * spoken / len(hits), 1)})
        return out, read_json(about)

    def further(self, way: str, setting: tuple[int, float], role: Role, drawn: Pairs) -> Path:
        """The base model, trained further."""
        steps, rate = setting
        data = self.half("1/2") if drawn == "whole" else Data(captions=(str(self.pairs(role, drawn)[0]),))
        recipe = RECIPES["post-train-react"]()
        recipe = replace(
            recipe, model=Model(str(self.base), **WAYS[way].model), data=data,
            objective=replace(self.recipe.objective, scale=None, bias=None), steps=steps, batch_size=self.options.batch,
            optimiser=replace(recipe.optimiser, learning_rate=rate), chunk=None, precision="float32", seed=self.seed,
        )  # fmt: skip
        return made_once(recipe, self.folder / "further" / f"{way}-{drawn}-{run_key(recipe)}".replace(" ", "-"))

    def figures(self, model: Path, role: Role) -> dict[str, dict[str, float]]:
        """Zero-shot and few-shot accuracy on every set, kept beside the model."""
        kept = model.parent / f"figures-{role}.json"
        if not kept.exists():
            write_json(kept, {name: dict(figures) for name, figures in self._measured(model, role)})
        return read_json(kept)

    def _measured(self, model: Path, role: Role) -> Iterator[tuple[str, dict[str, float]]]:
        encoder = load_model(model, "cpu")
        locked = self.options.start == "patches"
        seen: Encoder = FeatureEncoder(encoder) if locked else encoder
        for name, task in self.tasks[role].items():
            if locked:
                task = replace(task, support=lock_source(encoder, task.support), query=lock_source(encoder, task.query))
            named = zero_shot(seen, replace(task, templates=TEMPLATES), model="model").rows
            top = next(row["value"] for row in named if row["metric"] == "top-1")
            if role == "choosing":  # which goes by names alone
                yield name, {"zero-shot": top}
                continue
            learnt = few_shot(seen, task, Protocol(("prototype",), (SHOTS,), DRAWS), model="model").rows
            yield name, {"zero-shot": top, "16-shot": float(np.mean([row["value"] for row in learnt]))}


def tasks_of(data: Path, role: Role) -> dict[str, ClassificationTask]:
    """The sets of a role whose class names mean something, without classes of too few examples."""
    sets = {"choosing": CHOOSING, "testing": TESTING}[role]
    return {name: capped(name, place(data, one.file), one) for name, one in present(data, sets).items() if one.named}


def capped(name: str, spec: str, one: RealSet) -> ClassificationTask:
    """A set without classes of too few examples, and with no more pictures than are needed."""
    task = classification_task(spec, name=name, division=Division(one.support, one.query))
    task = with_enough_examples(task, SHOTS)
    draw = numpy_generator("react", name)
    support, query = (draw.permutation(len(part)) for part in (task.support, task.query))
    labels = task.support.labels[support]
    kept = np.concatenate([support[labels == label][:EXAMPLES] for label in np.unique(labels)])
    return replace(task, support=Subset(task.support, np.sort(kept)), query=Subset(task.query, np.sort(query[:TESTED])))


def mean(figures: Mapping[str, Mapping[str, float]], measure: str, names: Sequence[str]) -> float:
    """Over sets."""
    return float(np.mean([figures[name][measure] for name in names]))


def choose(trial: Trial, way: str) -> tuple[dict[Pairs, tuple[int, float]], dict[str, float]]:
    """Steps and rate for each kind of pairs, by zero-shot accuracy on the choosing sets; and all that were tried."""
    chosen: dict[Pairs, tuple[int, float]] = {}
    tried: dict[str, float] = {}
    for drawn in NAMES:
        found = {}
        for steps, rate in WAYS[way].tried:
            figures = trial.figures(trial.further(way, (steps, rate), "choosing", drawn), "choosing")
            found[steps, rate] = mean(figures, "zero-shot", list(figures))
            tried[f"{way}, {drawn}, {steps} steps, {rate:g}"] = round(found[steps, rate], 2)
        chosen[drawn] = max(found, key=lambda each: found[each])
    return chosen, tried


def table(figures: Mapping[str, Mapping[str, list[dict[str, float]]]], seeds: int) -> StudyTable:
    """Mean and deviation over seeds; gains over the base model of the same seed."""
    measured = {name: one for name, one in TESTING.items() if name in figures[BASE]}
    groups = {"sets that captions speak of": [name for name, one in measured.items() if one.scenes],
              "other sets": [name for name, one in measured.items() if not one.scenes]}  # fmt: skip
    columns = [(measure, group, names) for measure in MEASURES for group, names in groups.items()]

    def cell(arm: str, over: str, measure: str, names: Sequence[str]) -> str:
        own, base = (
            [float(np.mean([figures[each][name][seed][measure] for name in names])) for seed in range(seeds)]
            for each in (arm, over)
        )
        if arm == over:
            return str(summarise(own))
        return summarise([one - other for one, other in zip(own, base, strict=True)]).signed()

    def row(title: str, arm: str, over: str) -> tuple[str, ...]:
        return (title, *(cell(arm, over, measure, names) for measure, _, names in columns))

    rows = [row(arm, arm, BASE) for arm in figures]
    for arm in figures:
        if "retrieved" in arm:
            other = f"{arm.split(', ')[0]}, pairs {NAMES['random']}"
            rows.append(row(f"{arm}, over those {NAMES['random']}", arm, other))
    heads = ("what is trained further, on which pairs", *(f"{MEASURES[m]}, {group}" for m, group, _ in columns))
    note = f"{over_seeds(seeds, 'seed')}; below the base model gains over it, paired by seed"
    return StudyTable("REACT on real pictures", heads, tuple(rows), (note,))


def main(options: Options) -> None:
    """Train, choose, test and write."""
    tasks: dict[Role, dict[str, ClassificationTask]] = {
        "choosing": tasks_of(options.data, "choosing"), "testing": tasks_of(options.data, "testing")
    }  # fmt: skip
    ways = options.ways or tuple(name for name, way in WAYS.items() if options.start in way.start)
    figures: dict[str, dict[str, list[dict[str, float]]]] = {}
    choices: dict[str, float] = {}
    pairs: dict[str, list[dict[str, float]]] = {}
    settings: dict[str, dict[Pairs, tuple[int, float]]] = {}
    for number, seed in enumerate(options.seeds):
        trial = Trial(options, seed, tasks)
        if number == 0:
            base = trial.figures(trial.base, "choosing")
            choices[BASE] = round(mean(base, "zero-shot", list(base)), 2)
            for way in ways:
                settings[way], tried = choose(trial, way)
                choices |= tried
        arms = {BASE: trial.base}
        for way in ways:
            for drawn, setting in settings[way].items():
                arms[f"{way}, pairs {NAMES[drawn]}"] = trial.further(way, setting, "testing", drawn)
        for drawn in DRAWN:
            pairs.setdefault(drawn, []).append(trial.pairs("testing", drawn)[1])
        for arm, model in arms.items():
            for name, found in trial.figures(model, "testing").items():
                rounded = {measure: round(value, 3) for measure, value in found.items()}
                figures.setdefault(arm, {}).setdefault(name, []).append(rounded)
    made = table(figures, len(options.seeds))
    print(made.markdown())
    if options.out:
        asked = {key: value for key, value in asdict(options).items() if key not in ("data", "work", "out")}
        write_json(options.out, {"command": this_command(), "settings": asked | {"base": BASES[options.start]},
                                 "chosen": settings, "choosing": choices, "pairs": pairs, **where(),
                                 "figures": figures, "tables": [asdict(made)]})  # fmt: skip


if __name__ == "__main__":
    main(script_options(Options))
