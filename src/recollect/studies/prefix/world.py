"""What the studies of prefix conditioning train and measure, at each scale: arms, sources, evaluations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import pandas as pd

from recollect.core.errors import UserError
from recollect.core.types import Kind
from recollect.evaluation.results import Result, Summary, summarise
from recollect.objectives import Base
from recollect.studies.runs import Evaluation, Job, run
from recollect.studies.study import Scale, StudyOptions
from recollect.training.options import Data, Model, ObjectiveOptions, Recipe
from recollect.training.recipes import RECIPES, with_context

LabelSets = Literal["none", "small", "large", "rest", "renamed"]
ArmSampling = Literal["equal", "debiased"]

TEMPERATURE = 1 / 0.07
PREFIXES: tuple[Kind, ...] = ("label", "caption")

WORLDS: Mapping[Scale, str] = {
    "smoke": "glyphs (pictures of characters), a few steps: shows that it runs, not what it finds",
    "small": (
        "glyphs (pictures of characters): captions of any script in any style, of which half name the character; "
        "labels are 200 classes of four scripts in one face on a plain ground (IN-21K stands for these, IN-1K for 100 "
        "of them); a convnet of two layers beside a transformer over words; 300 steps of 256"
    ),
    "full": "the paper's recipe on your data",
}


@dataclass(frozen=True)
class PrefixArm:
    """One training.

    Attributes:
        labels: which label set; "small" stands for ImageNet-1K, "large" for 21K, "rest" for 21K without 1K, "renamed"
            for 21K under synonyms.
        captions: whether captions are read too; "small" stands for CC-3M.
        base: CLIP's softmax or UniCL's.
        prefix: whether every kind of source has its prefix token.
        sampling: "equal" as the paper's baselines, "debiased" as its method; by default so.
        context: with LIxP's context objective, which the paper does not have.
        batch, length: in those of the recipe.
    """

    labels: LabelSets = "large"
    captions: Literal["none", "small", "all"] = "all"
    base: Base = "softmax"
    prefix: bool = False
    sampling: ArmSampling | None = None
    context: bool = False
    batch: float = 1.0
    length: float = 1.0

    @property
    def sampled(self) -> ArmSampling:
        """How its batches are made."""
        return self.sampling or ("debiased" if self.prefix else "equal")


@dataclass(frozen=True)
class PrefixWorld:
    """Where an arm's recipe and figures come from at one scale.

    Attributes:
        sources: by the name of a label set or ``captions`` and ``captions-small``.
        recipe: what arms are made from.
        own: sources for classification by names of the small label set's own pictures, with their shifts.
        unseen: the same for classes that it lacks; or a suite.
        probe: sources for linear probes.
        retrieval: captioned sources.
        synonyms: sources with a column ``synonyms``, for a shift of class names where ``own`` has none.
        templates: take every so many of the 80.
        epochs: steps of arms with such labels; the recipe's by default.
    """

    sources: Mapping[str, str]
    recipe: Recipe
    own: tuple[str, ...]
    unseen: tuple[str, ...] = ()
    suite: str | None = None
    probe: tuple[str, ...] = ()
    retrieval: tuple[str, ...] = ()
    synonyms: tuple[str, ...] = ()
    templates: int = 1
    epochs: Mapping[LabelSets, int] = field(default_factory=dict)

    def has(self, arm: PrefixArm) -> bool:
        """Whether every source of the arm is there."""
        return all(name in self.sources for name in _names(arm))

    def make(self, arm: PrefixArm) -> Recipe:
        """The arm's recipe."""
        kinds = {"captions": [], "labels": []}  # type: dict[str, list[str]]
        for name in _names(arm):
            kinds["captions" if name.startswith("captions") else "labels"].append(self.sources[name])
        base = self.recipe
        recipe = replace(
            base,
            model=Model(base.model.start, prefixes=("caption", "label") if arm.prefix else ()),
            data=Data(captions=tuple(kinds["captions"]), labels=tuple(kinds["labels"]), sampling=arm.sampled),
            objective=ObjectiveOptions(arm.base, scale=TEMPERATURE),
            batch_size=round(base.batch_size * arm.batch),
            steps=max(1, round(self.epochs.get(arm.labels, base.steps) * arm.length / arm.batch)),
        )
        return with_context(recipe, tau=0.02 if base.model.start == "tiny-conv" else 1.0) if arm.context else recipe

    def zero_shot(self) -> Evaluation:
        """Classification by names, read with each prefix."""
        return Evaluation(
            zero_shot=(*self.own, *self.unseen), suite=self.suite, methods=(), prefixes=PREFIXES,
            templates=self.templates, synonyms=self.synonyms,
        )  # fmt: skip

    def probes(self) -> Evaluation:
        """Linear probes."""
        return Evaluation(probe=self.probe)

    def search(self) -> Evaluation:
        """Retrieval both ways, read with each prefix."""
        return Evaluation(retrieval=self.retrieval, prefixes=PREFIXES)


def _names(arm: PrefixArm) -> list[str]:
    named = {"none": [], "small": ["captions-small"], "all": ["captions"]}[arm.captions]
    return named + ([] if arm.labels == "none" else [f"labels-{arm.labels}"])


_CAPTIONS = "glyphs:captions?says_name=0.5&says_synonym=0.5"
_GLYPHS = {
    "captions": _CAPTIONS,
    "captions-small": f"{_CAPTIONS}&size=6000",
    "labels-large": "glyphs:labels",
    "labels-small": "glyphs:labels-half",
    "labels-rest": "glyphs:labels-rest",
    "labels-renamed": "glyphs:labels-renamed",
}


def prefix_world(options: StudyOptions) -> PrefixWorld:
    """The setting of a scale.

    Raises:
        UserError: scale ``full`` without the sources it needs.
    """
    if options.scale == "full":
        return _full(options)
    recipe = replace(RECIPES["prefix-tiny"](), model=Model("tiny-conv"), steps=300, batch_size=256, log_every=50)
    pools = (f"{_CAPTIONS}&seed=1&size=1000", "glyphs:scenes?size=500")
    if options.scale == "smoke":
        recipe = replace(recipe, steps=6, batch_size=32, log_every=2)
        pools = (f"{_CAPTIONS}&seed=1&size=60", "glyphs:scenes?size=40")
    smoke = options.scale == "smoke"
    return PrefixWorld(
        _GLYPHS,
        recipe,
        own=("glyphs:labels-half",),
        unseen=("glyphs:prompts",),
        probe=("glyphs:labels-half",) if smoke else ("glyphs:labels-half", "glyphs:captions"),
        retrieval=pools,
        templates=40 if smoke else 8,
    )


_FULL = (*_GLYPHS, "test", "shift", "synonyms", "search")


def _full(options: StudyOptions) -> PrefixWorld:
    given: dict[str, list[str]] = {}
    for text in options.data:
        name, equals, place = text.partition("=")
        if not equals or name not in _FULL:
            raise UserError(f"--data {text}: write NAME=SOURCE, with NAME one of {', '.join(_FULL)}")
        given.setdefault(name, []).append(place)
    if missing := [name for name in ("captions", "labels-large", "labels-small") if name not in given]:
        raise UserError(
            f"--scale full needs the paper's data, and {missing[0]} is missing: --data captions=CC12M "
            "labels-large=IN21K labels-small=IN1K, each your own copy"
        )
    own = tuple(given.get("test", given["labels-small"])) + tuple(given.get("shift", ()))
    recipe = RECIPES["prefix-swin-t"]()
    return PrefixWorld(
        {name: places[0] for name, places in given.items()}, recipe, own, suite=options.suite or "prefix-11",
        probe=own[:1], retrieval=tuple(given.get("search", ())), synonyms=tuple(given.get("synonyms", ())),
        epochs={"small": round(1.28e6 / 1024 * 2 * 50)},
    )  # fmt: skip


def seeds(options: StudyOptions) -> int:
    """Training seeds of the scale."""
    return options.seeds or {"smoke": 1, "small": 3, "full": 1}[options.scale]


@dataclass(frozen=True)
class ArmFigures:
    """Every figure of some arms, to be looked up.

    Attributes:
        frame: one line for each figure, with ``arm``, ``prefix``, ``data``, ``metric``, ``seed`` and ``value``.
    """

    frame: pd.DataFrame

    def data(self) -> list[str]:
        """The sets, in the order they were evaluated."""
        return list(dict.fromkeys(self.frame["data"]))

    def of(
        self, arm: PrefixArm, prefix: Kind | None, data: Sequence[str], metric: str = "top-1", **keys: object
    ) -> Summary | None:
        """Mean over sets, then over seeds; None where the arm was not trained."""
        rows = self.frame[(self.frame["arm"] == repr(arm)) & (self.frame["metric"] == metric)]
        rows = rows[rows["prefix"].isna() if prefix is None else rows["prefix"] == prefix]
        rows = rows[rows["data"].isin(data)]
        for key, value in keys.items():
            rows = rows[rows[key] == value]
        if rows.empty:
            return None
        within = rows.groupby(["seed", "data"])["value"].mean()
        return summarise(within.groupby("seed").mean())


def figures(arms: Sequence[PrefixArm], options: StudyOptions, evaluation: Evaluation) -> ArmFigures:
    """Train what is not there yet, evaluate, and gather."""
    chosen = prefix_world(options)
    jobs = [
        Job(f"arm-{number}", replace(chosen.make(arm), seed=seed), evaluation)
        for seed in range(seeds(options))
        for number, arm in enumerate(dict.fromkeys(arms))
        if chosen.has(arm)
    ]
    jobs = [replace(job, name=_called(job.recipe)) for job in jobs]
    arm_of = {_called(chosen.make(arm)): arm for arm in arms if chosen.has(arm)}
    results = run(jobs, options.out, options.workers)
    return ArmFigures(pd.DataFrame([line for result in results for line in _lines(result, arm_of[result.model])]))


def _called(recipe: Recipe) -> str:
    """A name that says what an arm is, the same for all seeds."""
    labels, captions = (" ".join(specs) for specs in (recipe.data.labels, recipe.data.captions))
    objective = f"{recipe.objective.base}{' with context' if recipe.objective.context else ''}"
    prefix = "prefix" if recipe.model.prefixes else "plain"
    return f"{labels} + {captions}, {objective}, {prefix}, {recipe.data.sampling}, {recipe.batch_size}, {recipe.steps}"


def _lines(result: Result, arm: PrefixArm) -> list[dict[str, object]]:
    shared = {"arm": repr(arm), "protocol": result.protocol, "data": result.data, "seed": result.seed}
    return [shared | {"prefix": result.settings.get("prefix")} | dict(row) for row in result.rows]


def job_of(arm: PrefixArm, options: StudyOptions, evaluation: Evaluation) -> Job:
    """The first seed of an arm, trained and evaluated already by `figures`."""
    recipe = replace(prefix_world(options).make(arm), seed=0)
    return Job(_called(recipe), recipe, evaluation)
