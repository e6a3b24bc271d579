"""Arms, sources and evaluations of the prefix conditioning studies at each scale."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from recollect.core.errors import UserError
from recollect.core.types import Kind
from recollect.objectives import Base
from recollect.training.options import Data, Model, ObjectiveOptions, Recipe
from recollect.training.recipes import RECIPES, with_context
from recollect_papers.measurements import Measurements
from recollect_papers.runs import Job, StudyEvaluation, run
from recollect_papers.study import Scale, StudyOptions

LabelSets = Literal["none", "small", "large", "rest", "renamed"]
ArmSampling = Literal["equal", "debiased"]

TEMPERATURE = 1 / 0.07
PREFIXES: tuple[Kind, ...] = ("label", "caption")
READINGS: dict[Kind | None, str] = {None: "N/A", "label": "label", "caption": "caption"}

WORLDS_BY_SCALE: Mapping[Scale, str] = {
    "smoke": "glyphs (pictures of characters), a few steps: a test run without meaningful results",
    "small": (
        "glyphs (pictures of characters): captions of any script in any style, half of them naming the character; "
        "labels are 200 classes of four scripts in one face on a plain ground (these play the part of IN-21K, and "
        "IN-1K is 100 of them); a convnet of two layers and a transformer over words; 300 steps of 256"
    ),
    "full": "the paper's recipe on your data",
}


@dataclass(frozen=True)
class PrefixArm:
    """One training variant.

    Attributes:
        labels: label set: "small" for ImageNet-1K, "large" for 21K, "rest" for 21K without 1K, "renamed" for 21K
            with synonyms as names.
        captions: "small" for CC-3M, "all" for CC-12M.
        base: CLIP's softmax or UniCL's.
        prefix: use prefix tokens.
        sampling: by default "debiased" with prefixes and "equal" without, as in the paper.
        context: use LIxP's context objective (not in the paper).
        batch, length: batch size and number of steps relative to the recipe.
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
        """The sampling, with the default resolved."""
        return self.sampling or ("debiased" if self.prefix else "equal")

    @property
    def name(self) -> str:
        """Description of the arm, equal for equal trainings."""
        parts = [f"labels {self.labels}", f"captions {self.captions}", self.base, "prefix" if self.prefix else "plain"]
        parts += [self.sampled, *(["context"] if self.context else [])]
        parts += [f"{size:g} x {what}" for what, size in (("batch", self.batch), ("length", self.length)) if size != 1]
        return ", ".join(parts)


@dataclass(frozen=True)
class PrefixWorld:
    """Sources and recipe of all arms at one scale.

    Attributes:
        sources: training sources by name: ``labels-…``, ``captions`` and ``captions-small``.
        recipe: base recipe of all arms.
        own: sources for zero-shot classification of the small label set's test images and their shifts.
        unseen, suite: sources or suite for zero-shot classification of other classes.
        probe, probe_suite: sources or suite for linear probes.
        retrieval: captioned sources.
        synonyms: sources with a column ``synonyms``, if ``own`` has no other class names.
        templates: use every n-th of the 80 templates.
        epochs: number of steps by label set (default: the recipe's).
        queries: maximum number of images per class.
        alone: factor on the steps of arms with only captions or only labels: 0.5 if steps count epochs of the labels,
            which otherwise fill every other batch.
    """

    sources: Mapping[str, tuple[str, ...]]
    recipe: Recipe
    own: tuple[str, ...]
    unseen: tuple[str, ...] = ()
    suite: str | None = None
    probe: tuple[str, ...] = ()
    retrieval: tuple[str, ...] = ()
    synonyms: tuple[str, ...] = ()
    templates: int = 1
    epochs: Mapping[LabelSets, int] = field(default_factory=dict)
    probe_suite: str | None = None
    alone: float = 1.0
    queries: int | None = None

    def has(self, arm: PrefixArm) -> bool:
        """Return whether all sources of an arm are available."""
        return all(name in self.sources for name in _names(arm))

    def make(self, arm: PrefixArm) -> Recipe:
        """Create the recipe of an arm."""
        kinds: dict[str, list[str]] = {"captions": [], "labels": []}
        for name in _names(arm):
            kinds["captions" if name.startswith("captions") else "labels"].extend(self.sources[name])
        base = self.recipe
        steps = self.epochs.get(arm.labels, base.steps) * (1.0 if all(kinds.values()) else self.alone)
        recipe = replace(
            base,
            model=Model(base.model.start, prefixes=("caption", "label") if arm.prefix else ()),
            data=Data(
                captions=tuple(kinds["captions"]),
                labels=tuple(kinds["labels"]),
                sampling=arm.sampled if all(kinds.values()) else "proportional",  # a single kind needs no balancing
                merge_classes=arm.base == "label" and len(kinds["labels"]) > 1,
            ),
            objective=ObjectiveOptions(arm.base, scale=TEMPERATURE),
            batch_size=round(base.batch_size * arm.batch),
            steps=max(1, round(steps * arm.length / arm.batch)),
        )
        return with_context(recipe, tau=0.02 if base.model.start == "tiny-conv" else 1.0) if arm.context else recipe

    def zero_shot(self) -> StudyEvaluation:
        """Return the evaluation by zero-shot classification with each prefix."""
        return StudyEvaluation(
            zero_shot=(*self.own, *self.unseen), suite=self.suite, methods=(), prefixes=PREFIXES,
            templates=self.templates, synonyms=self.synonyms, queries=self.queries,
        )  # fmt: skip

    def probes(self) -> StudyEvaluation:
        """Return the evaluation by linear probes."""
        return StudyEvaluation(probe=self.probe, probe_suite=self.probe_suite, queries=self.queries)

    def search(self) -> StudyEvaluation:
        """Return the evaluation by retrieval in both directions with each prefix."""
        return StudyEvaluation(retrieval=self.retrieval, prefixes=PREFIXES)


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
    """Return the sources and recipe of a scale.

    Raises:
        UserError: a required source is missing at scale ``full``.
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
        {name: (source,) for name, source in _GLYPHS.items()},
        recipe,
        own=("glyphs:labels-half",),
        unseen=("glyphs:prompts",),
        probe=("glyphs:labels-half",) if smoke else ("glyphs:labels-half", "glyphs:captions"),
        retrieval=pools,
        templates=40 if smoke else 8,
        queries=2 if smoke else None,
    )


_FULL = (*_GLYPHS, "test", "shift", "synonyms", "search")


_SMALL_STEPS = round(1.28e6 / 1024 * 2 * 50)
"""50 epochs of ImageNet-1K, which fills every other batch (section 4, footnote 2)."""


def _full(options: StudyOptions) -> PrefixWorld:
    sources: dict[str, list[str]] = {}
    for text in options.data:
        name, equals, place = text.partition("=")
        if not equals or name not in _FULL:
            raise UserError(f"--data {text}: write NAME=SOURCE, with NAME one of {', '.join(_FULL)}")
        sources.setdefault(name, []).append(place)
    if missing := [name for name in ("captions", "labels-large", "labels-small") if name not in sources]:
        raise UserError(
            f"--scale full: {missing[0]} is missing. Pass your copies of the paper's data: --data captions=CC12M "
            "labels-large=IN21K labels-small=IN1K."
        )
    own = tuple(sources.get("test", sources["labels-small"])) + tuple(sources.get("shift", ()))
    recipe = RECIPES["prefix-swin-t"]()
    suite = options.suite or "prefix-11"
    return PrefixWorld(
        {name: tuple(places) for name, places in sources.items()}, recipe, own, suite=suite, probe=own[:1],
        retrieval=tuple(sources.get("search", ())), synonyms=tuple(sources.get("synonyms", ())), probe_suite=suite,
        alone=0.5, epochs={"small": _SMALL_STEPS},
    )  # fmt: skip


def seeds(options: StudyOptions) -> int:
    """Return the number of training seeds."""
    return options.seeds or {"smoke": 1, "small": 3, "full": 1}[options.scale]


def measured(
    arms: Sequence[PrefixArm], options: StudyOptions, evaluation: StudyEvaluation, **context: Any
) -> Measurements:
    """Train and measure every arm whose sources are available.

    Returns:
        figures by arm, prefix, set and measure; ``data`` in the context lists the sets in order.
    """
    available = [arm for arm in dict.fromkeys(arms) if prefix_world(options).has(arm)]
    jobs = [job_of(arm, options, evaluation, seed) for seed in range(seeds(options)) for arm in available]
    found = run(jobs, options.out, options.workers)
    found.context = {**context, "data": found.names("set")}
    return found


def job_of(arm: PrefixArm, options: StudyOptions, evaluation: StudyEvaluation, seed: int = 0) -> Job:
    """Return the job of an arm."""
    return Job(arm.name, replace(prefix_world(options).make(arm), seed=seed), evaluation)


def read_at(arm: str, prefix: Kind | None) -> dict[str, str]:
    """Return the address of an arm evaluated with a prefix."""
    return {"arm": arm, "read": prefix} if prefix else {"arm": arm}
