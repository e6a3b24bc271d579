"""``lixp/real``: heads on the starter's towers, with and without context.

The towers distinguish more than captions describe, so a head trained on captions can lose few-shot accuracy; this study
measures the loss, and how much context recovers. ``lixp/variations`` repeats it with CLIP's loss, larger batches and
labels, on fewer sets; ``lixp/unlocked`` trains the image tower's last stage too, and
``lixp/towers`` trains both towers.

The number of steps (and alpha) of every arm, baselines included, is chosen on the choosing sets by
`recollect_papers.real.arms.choose`; only the chosen settings are measured on the testing sets.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from recollect_papers.engine import Column, Row, TableForm, TablesAndNotes, TableStudy
from recollect_papers.measurements import FigureAddress, Measurements, Paired, corrected
from recollect_papers.real.arms import SHOT_NAMES, TOWER, ArmRunner, choose, open_runner, result_columns, worlds
from recollect_papers.real.data import FLICKR_ROLES, Roles
from recollect_papers.real.heads import LABELS, HeadRecipe
from recollect_papers.study import StudyOptions

STEPS = (100, 200, 400, 800)
ALPHAS = (0.5, 0.8)
WORLD = (
    "EfficientNet-Lite0 and MiniLM, locked; 20,090 everyday photographs with captions (COCO, Flickr8k); seven testing "
    "sets (imagenette, resisc12, flowers12, butterfly10, grocery, gtsrb, ucm), five choosing sets"
)


@dataclass(frozen=True)
class Family:
    """An arm, and the settings to choose from.

    Attributes:
        name: name in tables.
        recipe: settings that are not chosen.
        against: baseline of the arm's gains.
        alphas: alphas to choose from; empty without context.
        seeds: number of seeds for testing.
        steps: numbers of steps to choose from.
        stage_rates: learning rates of the image tower's last stage to choose from; empty if it is locked.
        labels: train on labels too.
    """

    name: str
    recipe: HeadRecipe
    against: str = TOWER
    alphas: Sequence[float] = ()
    seeds: int = 5
    steps: Sequence[int] = STEPS
    stage_rates: Sequence[float] = ()
    labels: bool = False

    def candidates(self) -> dict[str, HeadRecipe]:
        """Return the recipes to choose from, by name."""
        return {
            f"{count} steps" + (f", alpha {alpha}" if alpha else "") + (f", rate {rate:g}" if rate else ""):
            replace(self.recipe, steps=count, alpha=alpha, stage_rate=rate)
            for rate in (self.stage_rates or (None,))
            for alpha in (self.alphas or (None,))
            for count in self.steps
        }  # fmt: skip

    def training(self, roles: Roles) -> tuple[str, ...]:
        """Return the names of the training sets."""
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
"""Only at scale ``full``."""
VARIED: Mapping[str, Mapping[str, Any]] = {
    "width 1,280": {"width": 1280},
    "batch 2,048": {"batch": 2048},
    "tau 0.003": {"tau": 0.003},
}
"""Changes to the MLP head at scale ``full``, with and without context, one seed, same total number of pairs."""

_SHORT: Mapping[str, Any] = {"seeds": 3, "steps": (100, 200, 400)}
_LARGE: Mapping[str, Any] = {"seeds": 3, "steps": (50, 100, 200)}
_HUGE: Mapping[str, Any] = {"seeds": 1, "steps": (25, 50)}  # a step with context takes 11 s
_ALPHA = (0.8,)
"""The alpha chosen in ``lixp/real``."""
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
"""Arms of ``lixp/variations``: an MLP head (except LiT) with another loss, larger batches, or labels."""
_BRIEF: Mapping[str, Any] = {"seeds": 3, "steps": (100, 200)}
_STAGE_RATES = (3e-5, 1e-4)
UNLOCKED_FAMILIES = (
    Family("MLP head, locked", HeadRecipe(), **_BRIEF),
    Family("MLP head, unlocked", HeadRecipe(), "MLP head, locked", stage_rates=_STAGE_RATES, **_BRIEF),
    Family(
        "MLP head, unlocked, context", HeadRecipe(), "MLP head, unlocked", _ALPHA, stage_rates=_STAGE_RATES, **_BRIEF
    ),
)
"""Arms of ``lixp/unlocked``. A step takes one to two seconds."""
_GPU: Mapping[str, Any] = {"seeds": 2, "steps": (100,)}
_JOINED = HeadRecipe(batch=8192, stage_steps=25)
TOWER_FAMILIES = (
    Family("towers locked", HeadRecipe(batch=8192), **_GPU),
    Family("towers trained", _JOINED, "towers locked", stage_rates=_STAGE_RATES, **_GPU),
    Family("towers trained, context", _JOINED, "towers trained", _ALPHA, stage_rates=_STAGE_RATES, **_GPU),
)
"""Arms of ``lixp/towers``, for a GPU: the towers join the heads for the last 25 of 100 steps."""
LESS = (
    "EfficientNet-Lite0 and MiniLM, locked; 14,000 photographs with captions (COCO); four testing sets of 160 px, two "
    "choosing sets; labels: ImageNet's names with features made from the tower's classifier"
)


def _measure(options: StudyOptions) -> Measurements:
    families = (*FAMILIES, *(MORE if options.scale == "full" else ()))
    return _measured(options, open_runner(options, "lixp-real"), families, VARIED if options.scale != "small" else {})


def _measured(
    options: StudyOptions, runner: ArmRunner, families: Sequence[Family], varied: Mapping[str, Mapping[str, Any]]
) -> Measurements:
    roles, smoke = runner.data.roles, options.scale == "smoke"
    found, chosen, against = Measurements(), dict[str, str](), dict[str, str]()
    found.take(runner.heads(TOWER, HeadRecipe("none", steps=0), 0, "testing"))
    best: dict[str, HeadRecipe] = {}
    controls: dict[str, str] = {}
    for family in map(_small, families) if smoke else families:
        training, seeds = family.training(roles), min(options.seeds or family.seeds, family.seeds)
        picked = choose(runner, family.name, family.candidates(), found, 1, training)
        chosen[family.name], best[family.name] = picked
        if family.against != TOWER:
            against[family.name] = family.against
        for seed in range(seeds):
            found.take(runner.heads(family.name, best[family.name], seed, "testing", training))
        # Control: the baseline with the number of steps chosen for context.
        if family.alphas and (longer := replace(best[family.name], alpha=None)) != best[family.against]:
            controls[family.name] = control = f"{family.against}, as long as with context"
            rate = f", rate {longer.stage_rate:g}" if longer.stage_rate else ""
            chosen[control] = f"{longer.steps} steps{rate}"
            for seed in range(seeds):
                found.take(runner.heads(control, longer, seed, "testing", training))
    for words, change in varied.items():
        for name in ("MLP head", "MLP head, context"):
            recipe = replace(best[name], **change)
            pairs = best[name].steps * best[name].batch
            recipe = replace(recipe, steps=max(1, round(pairs / recipe.batch)))
            if recipe.alpha is not None or "tau" not in change:
                found.take(runner.heads(f"{name}, {words}", recipe, 0, "testing"))
    found.context.update(chosen=chosen, controls=controls, against=against, testing=list(roles.testing),
                         pools=list(roles.pools))  # fmt: skip
    return found


def _small(family: Family) -> Family:
    recipe = replace(family.recipe, width=16, hidden=32, batch=64, stage_steps=family.recipe.stage_steps and 2)
    return replace(family, recipe=recipe, alphas=family.alphas[:1], stage_rates=family.stage_rates[:1], seeds=2,
                   steps=(5, 10))  # fmt: skip


def _form(found: Measurements) -> TablesAndNotes:
    sets, pools = tuple(found.context["testing"]), found.context["pools"]
    chosen: Mapping[str, str] = found.context["chosen"]
    rows = [Row((TOWER, ""), {"arm": TOWER}), *(Row((name, chosen[name]), {"arm": name}) for name in chosen)]
    columns, notes = result_columns(sets, pools), tuple(_tests(found, sets))
    main = TableForm("What a head costs", ("arm", "chosen"), rows, columns, notes=notes, missing="")
    gains = [Row((name, over), {"arm": name}, over={"arm": over}) for name, over in _compared(found)]
    gained = TableForm("Gains, paired by seed", ("arm", "over"), gains, result_columns(sets, pools, "gain"), missing="")
    forms = [main, gained, _by_set(sets, chosen), _choosing(found)]
    if found.at({**columns[0].at, "arm": f"MLP head, {next(iter(VARIED))}"}):
        varied = [Row((name, change), {"arm": f"{name}, {change}"})
                  for change in VARIED for name in ("MLP head", "MLP head, context")
                 if found.at({**columns[0].at, "arm": f"{name}, {change}"})]  # fmt: skip
        forms.append(TableForm("MLP head, one setting changed", ("arm", "changed"), varied, columns, missing=""))
    note = "steps and alpha were chosen on the choosing sets with one seed, before measuring on the testing sets"
    device = [f"device: {found.context['device']}"] if "device" in found.context else []
    return [form.fill(found) for form in forms], [note, *device]


def _compared(found: Measurements) -> list[tuple[str, str]]:
    return [*found.context["against"].items(), *found.context["controls"].items()]


def _gain(found: Measurements, name: str, over: str, sets: Sequence[str], measure: str) -> Paired:
    at: FigureAddress = {"arm": name, "measure": measure, "part": "testing"}
    return found.paired({**at, "shots": SHOT_NAMES} if measure == "few-shot" else at, {"arm": over}, sets)


def _tests(found: Measurements, sets: Sequence[str]) -> Iterator[str]:
    tested = []
    for name, over in _compared(found):
        few = _gain(found, name, over, sets, "few-shot")
        recall = _gain(found, name, over, found.context["pools"], "R@10")
        yield (
            f"{name} over {over}: few-shot {few.summary().signed()}, up on {few.up()} of {len(sets)} ({few.tests()}), "
            f"R@10 {recall.summary().signed()}"
        )
        tested.append(few)
    yield corrected(tested)


def _by_set(sets: Sequence[str], chosen: Mapping[str, str]) -> TableForm:
    few: FigureAddress = {"measure": "few-shot", "part": "testing", "shots": SHOT_NAMES}
    columns = [Column(name, {**few, "arm": name}) for name in (TOWER, *chosen)]
    return TableForm("Few-shot accuracy set by set, mean of 1, 4 and 16 shots", ("set",),
                     [Row((name,), {"set": name}) for name in sets], columns, missing="")  # fmt: skip


def _choosing(found: Measurements) -> TableForm:
    """Return a table of all candidates on the choosing sets."""
    at: dict[str, dict[str, set[str]]] = {}
    for address, _, _ in found.rows():
        if address.get("part") == "choosing":
            at.setdefault(address["arm"], {}).setdefault(address["measure"], set()).add(address["set"])
    few: FigureAddress = {"measure": "few-shot", "part": "choosing", "shots": SHOT_NAMES}
    sets = tuple(sorted(next(iter(at.values()))["few-shot"]))
    pool = tuple(next(iter(at.values()))["R@10"])
    found_at: FigureAddress = {"measure": "R@10", "part": "choosing", "set": pool}
    columns = [Column("few-shot", {**few, "set": sets}), Column("R@10", found_at)]
    return TableForm("What settings were chosen from", ("arm",), [Row((name,), {"arm": name}) for name in at], columns)


real = TableStudy("lixp/real", _measure, _form, worlds(WORLD))


def _measure_variations(options: StudyOptions) -> Measurements:
    return _measured(options, open_runner(options, "lixp-variations", FLICKR_ROLES), VARIATIONS, {})


variations = TableStudy("lixp/variations", _measure_variations, _form, worlds(LESS))


def _measure_unlocked(options: StudyOptions) -> Measurements:
    return _measured(options, open_runner(options, "lixp-unlocked", FLICKR_ROLES, "maps"), UNLOCKED_FAMILIES, {})


_UNLOCKED = (
    "EfficientNet-Lite0, its last stage trained, and MiniLM, locked; 14,000 photographs "
    "with captions (COCO); four testing sets of 160 px, two choosing sets"
)
unlocked = TableStudy("lixp/unlocked", _measure_unlocked, _form, worlds(_UNLOCKED))


def _measure_towers(options: StudyOptions) -> Measurements:
    found = _measured(options, open_runner(options, "lixp-towers", inputs="pixels"), TOWER_FAMILIES, {})
    found.context["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return found


towers = TableStudy("lixp/towers", _measure_towers, _form, worlds(WORLD.replace(", locked;", ";")))
