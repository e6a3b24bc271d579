"""``lixp/real``: heads on the starter's towers, with and without context: what a head costs, and what gives it back.

``lixp/variations`` asks the same of CLIP's loss, larger batches, and captions with labels, on fewer sets;
``lixp/unlocked`` of an image tower whose last stage is trained as well.

The towers know a lot that captions do not say, so a head that is trained on captions can lose it. Every arm, baseline
or not, has its number of steps (and alpha) chosen on the choosing sets by `recollect_papers.real.arms.choose`; the
testing sets are measured afterwards, with the chosen settings alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from recollect_papers.engine import Column, Formed, Row, TableForm, TableStudy
from recollect_papers.measurements import FigureAddress, Measurements, Paired, corrected
from recollect_papers.real.arms import ArmRunner, choose
from recollect_papers.real.data import LIGHT, ROLES, RealData, Roles, open_data
from recollect_papers.real.heads import LABELS, HeadRecipe
from recollect_papers.study import StudyOptions

STEPS = (100, 200, 400, 800)
ALPHAS = (0.5, 0.8)
TOWER = "tower, no head"
WORLD = (
    "EfficientNet-Lite0 and MiniLM, locked; 20,090 everyday photographs with captions (COCO, Flickr8k); seven testing "
    "sets (imagenette, resisc12, flowers12, butterfly10, grocery, gtsrb, ucm), five choosing sets"
)
MADE = "made vectors, a few steps: shows that it runs, not what it finds"


@dataclass(frozen=True)
class Family:
    """Arms that differ in what is chosen: one of them is tested.

    Attributes:
        name: in tables.
        recipe: what they share.
        against: the family whose figures its gain is over.
        alphas: to choose from; none without context.
        seeds: of the testing.
        steps: to choose from.
        labels: whether labels are trained on too.
    """

    name: str
    recipe: HeadRecipe
    against: str = TOWER
    alphas: Sequence[float] = ()
    seeds: int = 5
    steps: Sequence[int] = STEPS
    labels: bool = False

    def candidates(self) -> dict[str, HeadRecipe]:
        """Everything to choose from, by name."""
        return {
            f"{count} steps" + (f", alpha {alpha}" if alpha else ""): replace(self.recipe, steps=count, alpha=alpha)
            for alpha in (self.alphas or (None,))
            for count in self.steps
        }

    def training(self, roles: Roles) -> tuple[str, ...]:
        """Names of training sets."""
        return (*roles.training, LABELS) if self.labels else roles.training


FAMILIES = (
    Family("MLP head", HeadRecipe("mlp")),
    Family("MLP head, context", HeadRecipe("mlp"), "MLP head", ALPHAS),
    Family("LiT", HeadRecipe("none", hidden=1024)),
    Family("linear head", HeadRecipe("linear")),
)
MORE = (
    Family("CLIP, MLP head", HeadRecipe("mlp", loss="softmax"), seeds=3),
    Family("CLIP, MLP head, context", HeadRecipe("mlp", loss="softmax"), "CLIP, MLP head", ALPHAS, seeds=3),
    Family("residual head", HeadRecipe("residual"), seeds=3),
    Family("residual head, context", HeadRecipe("residual"), "residual head", ALPHAS, seeds=3),
)
"""At scale ``full``."""
VARIED: Mapping[str, Mapping[str, Any]] = {
    "width 1,280": {"width": 1280},
    "batch 2,048": {"batch": 2048},
    "tau 0.003": {"tau": 0.003},
}
"""Of the MLP head at scale ``full``, with and without context, one seed; other batches see as many pairs in all."""

_SHORT: Mapping[str, Any] = {"seeds": 3, "steps": (100, 200, 400)}
_LARGE: Mapping[str, Any] = {"seeds": 3, "steps": (50, 100, 200)}
_HUGE: Mapping[str, Any] = {"seeds": 1, "steps": (25, 50)}  # with context a step takes eleven seconds
_ALPHA = (0.8,)
"""What ``lixp/real`` chose."""
VARIATIONS = (
    Family("SigLIP", HeadRecipe(), **_SHORT),
    Family("SigLIP, context", HeadRecipe(), "SigLIP", _ALPHA, **_SHORT),
    Family("CLIP", HeadRecipe(loss="softmax"), **_SHORT),
    Family("CLIP, context", HeadRecipe(loss="softmax"), "CLIP", _ALPHA, **_SHORT),
    Family("SigLIP, batch 2,048", HeadRecipe(batch=2048), **_LARGE),
    Family("SigLIP, batch 2,048, context", HeadRecipe(batch=2048), "SigLIP, batch 2,048", _ALPHA, **_LARGE),
    Family("SigLIP, labels too", HeadRecipe(sampling="mixed"), labels=True, **_SHORT),
    Family("SigLIP, labels too, context", HeadRecipe(sampling="mixed"), "SigLIP, labels too", _ALPHA, labels=True,
           **_SHORT),
    Family("LiT", HeadRecipe("none", hidden=1024), **_SHORT),
    Family("LiT, labels too", HeadRecipe("none", hidden=1024, sampling="mixed"), "LiT", labels=True, **_SHORT),
    Family("SigLIP, batch 8,192", HeadRecipe(batch=8192), **_HUGE),
    Family("SigLIP, batch 8,192, context", HeadRecipe(batch=8192), "SigLIP, batch 8,192", _ALPHA, **_HUGE),
)  # fmt: skip
"""Of ``lixp/variations``: an MLP head (but for LiT) with another loss, larger batches, or labels."""
_STAGE_RATE = 1e-4
_BRIEF: Mapping[str, Any] = {"seeds": 2, "steps": (100,)}
UNLOCKED = (
    Family("MLP head, locked", HeadRecipe(), **_BRIEF),
    Family("MLP head, unlocked", HeadRecipe(stage_rate=_STAGE_RATE), "MLP head, locked", **_BRIEF),
    Family("MLP head, unlocked, context", HeadRecipe(stage_rate=_STAGE_RATE), "MLP head, unlocked", _ALPHA, **_BRIEF),
)
"""Of ``lixp/unlocked``, all with as many steps: a step takes seconds."""
LESS = (
    "EfficientNet-Lite0 and MiniLM, locked; 14,000 photographs with captions (COCO); four testing sets of 160 px, two "
    "choosing sets; labels: ImageNet's names with features made from the tower's classifier"
)


def _measure(options: StudyOptions) -> Measurements:
    families = (*FAMILIES, *(MORE if options.scale == "full" else ()))
    data = open_data(options.data, options.scale == "smoke", ROLES)
    return _measured(options, "lixp-real", families, data, VARIED if options.scale != "small" else {})


def _measured(
    options: StudyOptions,
    name: str,
    families: Sequence[Family],
    data: RealData,
    varied: Mapping[str, Mapping[str, Any]],
) -> Measurements:
    smoke = options.scale == "smoke"
    runner = ArmRunner(data, options.out / "runs" / name)
    found, chosen, against = Measurements(), dict[str, str](), dict[str, str]()
    found.take(runner.heads(TOWER, HeadRecipe("none", steps=0), 0, "testing"))
    best: dict[str, HeadRecipe] = {}
    controls: dict[str, str] = {}
    for family in map(_small, families) if smoke else families:
        training, seeds = family.training(data.roles), min(options.seeds or family.seeds, family.seeds)
        picked = choose(runner, family.name, family.candidates(), found, 1, training)
        chosen[family.name], best[family.name] = picked
        if family.against != TOWER:
            against[family.name] = family.against
        for seed in range(seeds):
            found.take(runner.heads(family.name, best[family.name], seed, "testing", training))
        # the baseline for as long as context was trained: another point of its own trade
        if family.alphas and (longer := replace(best[family.name], alpha=None)) != best[family.against]:
            controls[family.name] = control = f"{family.against}, as long as with context"
            chosen[control] = f"{longer.steps} steps"
            for seed in range(seeds):
                found.take(runner.heads(control, longer, seed, "testing", training))
    for words, change in varied.items():
        for name in ("MLP head", "MLP head, context"):
            recipe = replace(best[name], **change)
            pairs = best[name].steps * best[name].batch
            recipe = replace(recipe, steps=max(1, round(pairs / recipe.batch)))
            if recipe.alpha is not None or "tau" not in change:
                found.take(runner.heads(f"{name}, {words}", recipe, 0, "testing"))
    found.context.update(chosen=chosen, controls=controls, against=against, testing=list(data.roles.testing),
                         pools=list(data.roles.pools))  # fmt: skip
    return found


def _small(family: Family) -> Family:
    recipe = replace(family.recipe, width=16, hidden=32, batch=64)
    return replace(family, recipe=recipe, alphas=family.alphas[:1], seeds=2, steps=(5, 10))


def _form(found: Measurements) -> Formed:
    sets, pools = tuple(found.context["testing"]), found.context["pools"]
    chosen: Mapping[str, str] = found.context["chosen"]
    rows = [Row((TOWER, ""), {"arm": TOWER}), *(Row((name, chosen[name]), {"arm": name}) for name in chosen)]
    main = TableForm("What a head costs", ("arm", "chosen"), rows, _columns(sets, pools), missing="",
                     notes=tuple(_tests(found, sets)))  # fmt: skip
    compared = _compared(found)
    gains = [Row((name, over), {"arm": name}, over={"arm": over}) for name, over in compared]
    gained = TableForm("Gains, paired by seed", ("arm", "over"), gains, _columns(sets, pools, "gain"), missing="")
    varied = [
        Row((name, words), {"arm": f"{name}, {words}"})
        for words in VARIED
        for name in ("MLP head", "MLP head, context")
    ]
    other = TableForm("MLP head, one setting changed", ("arm", "changed"), varied, _columns(sets, pools), missing="")
    forms = [main, gained, _by_set(sets, chosen), _choosing(found)]
    if found.at({**_columns(sets, pools)[0].at, "arm": f"MLP head, {next(iter(VARIED))}"}):
        forms.append(other)
    note = "steps and alpha were chosen on the choosing sets, one seed; the testing sets were measured after"
    return [form.fill(found) for form in forms], [note]


def _columns(sets: tuple[str, ...], pools: Sequence[str], show: str = "mean") -> list[Column]:
    few: FigureAddress = {"measure": "few-shot", "part": "testing", "set": sets}
    columns = [Column(f"{shots} shot{'s' * (shots != '1')}", {**few, "shots": shots}, show)  # type: ignore[arg-type]
               for shots in ("1", "4", "16")]  # fmt: skip
    named = {"measure": "zero-shot", "part": "testing", "set": sets}
    columns.append(Column("by name", named, show))  # type: ignore[arg-type]
    for pool in pools:
        at = {"measure": "R@10", "part": "testing", "set": pool}
        columns.append(Column(f"R@10 {pool}", at, show))  # type: ignore[arg-type]
    return columns


def _compared(found: Measurements) -> list[tuple[str, str]]:
    return [*found.context["against"].items(), *found.context["controls"].items()]


def _gain(found: Measurements, name: str, over: str, sets: Sequence[str], measure: str) -> Paired:
    at: FigureAddress = {"arm": name, "measure": measure, "part": "testing"}
    return found.paired({**at, "shots": ("1", "4", "16")} if measure == "few-shot" else at, {"arm": over}, sets)


def _tests(found: Measurements, sets: Sequence[str]) -> Iterator[str]:
    tested = []
    for name, over in _compared(found):
        for measure, places in (("few-shot", sets), ("R@10", found.context["pools"])):
            gain = _gain(found, name, over, places, measure)
            told = f"{name} over {over}, {measure}: {gain.summary().signed()}, up on {gain.up()} of {len(places)}"
            yield f"{told}; {gain.tests()}" if measure == "few-shot" else told
            if measure == "few-shot":
                tested.append(gain)
    yield corrected(tested)


def _by_set(sets: Sequence[str], chosen: Mapping[str, str]) -> TableForm:
    few: FigureAddress = {"measure": "few-shot", "part": "testing", "shots": ("1", "4", "16")}
    columns = [Column(name, {**few, "arm": name}) for name in (TOWER, *chosen)]
    return TableForm("Few-shot accuracy set by set, mean of 1, 4 and 16 shots", ("set",),
                     [Row((name,), {"set": name}) for name in sets], columns, missing="")  # fmt: skip


def _choosing(found: Measurements) -> TableForm:
    """Every candidate on the choosing sets: the trade of steps."""
    at: dict[str, dict[str, set[str]]] = {}
    for address, _, _ in found.rows():
        if address.get("part") == "choosing":
            at.setdefault(address["arm"], {}).setdefault(address["measure"], set()).add(address["set"])
    few: FigureAddress = {"measure": "few-shot", "part": "choosing", "shots": ("1", "4", "16")}
    sets = tuple(sorted(next(iter(at.values()))["few-shot"]))
    pool = tuple(next(iter(at.values()))["R@10"])
    found_at: FigureAddress = {"measure": "R@10", "part": "choosing", "set": pool}
    columns = [Column("few-shot", {**few, "set": sets}), Column("R@10", found_at)]
    return TableForm("What settings were chosen from", ("arm",), [Row((name,), {"arm": name}) for name in at], columns)


real = TableStudy("lixp/real", _measure, _form, {"smoke": MADE, "small": WORLD, "full": WORLD})


def _measure_variations(options: StudyOptions) -> Measurements:
    return _measured(
        options, "lixp-variations", VARIATIONS, open_data(options.data, options.scale == "smoke", LIGHT), {}
    )


variations = TableStudy("lixp/variations", _measure_variations, _form, {"smoke": MADE, "small": LESS, "full": LESS})


def _measure_unlocked(options: StudyOptions) -> Measurements:
    data = open_data(options.data, options.scale == "smoke", LIGHT, maps=True)
    return _measured(options, "lixp-unlocked", UNLOCKED, data, {})


_UNLOCKED = (
    "EfficientNet-Lite0, its last stage trained at a learning rate of 0.0001, and MiniLM, locked; 14,000 photographs "
    "with captions (COCO); four testing sets of 160 px, two choosing sets"
)
unlocked = TableStudy("lixp/unlocked", _measure_unlocked, _form, {"smoke": MADE, "small": _UNLOCKED, "full": _UNLOCKED})
