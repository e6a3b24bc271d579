"""``lixp/post-train``: a model of everyday photographs is trained on with aerial ones, with and without context.

What a user would do with a model and captions of another domain: is more gained at few shots there, and what is lost of
what the model knew? Each arm has as many candidates, chosen on EuroSAT and the validation split of the aerial set: the
plain loss by steps and learning rate, context by steps and alpha at the learning rate of the plain loss.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np

from recollect_papers.engine import Column, Formed, Row, TableForm, TableStudy
from recollect_papers.measurements import FigureAddress, Measurements
from recollect_papers.real.arms import ArmRunner
from recollect_papers.real.data import LIGHT, RealData, open_data
from recollect_papers.real.heads import FeatureModel, HeadRecipe
from recollect_papers.real.measure import SHOTS, by_name, few_shot, recall
from recollect_papers.study import StudyOptions

AERIAL: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "choosing": {"eurosat": ("test",), "ucm_captions": ("val",)},
    "testing": {"resisc12": ("test",), "ucm_captions": ("test",)},
    "everyday": {"imagenette": ("test",), "flowers12": ("test",), "butterfly10": ("test",)},
}
"""Sets of aerial photographs, and others that the model knew before."""

BEFORE, PLAIN, CONTEXT, TOWER = "before", "post-trained", "post-trained with context", "tower, no head"
AS_LONG = "post-trained, as long as with context"
"""The plain loss with the steps that context chose: another point of its own trade."""
STEPS, RATES, ALPHAS = (50, 100, 200), (3e-4, 1e-3), (0.5, 0.8)
WORLD = "an MLP head of 14,000 photographs with captions (COCO), trained on with 1,679 aerial ones (UCM)"
MADE = "made vectors: shows that it runs, not what it finds"


@dataclass(frozen=True)
class PostTraining:
    """The model before, and what goes on from it.

    Attributes:
        first: recipe of the model before.
        steps, rates, alphas: to choose from.
        domain: captioned set of the other domain.
        sets: by role, as `AERIAL`.
        pools: captioned sets and splits to search.
    """

    first: HeadRecipe
    steps: tuple[int, ...]
    rates: tuple[float, ...]
    alphas: tuple[float, ...]
    domain: str
    sets: Mapping[str, Mapping[str, tuple[str, ...]]]
    pools: Mapping[str, str]


def _plan(smoke: bool) -> PostTraining:
    if smoke:
        sets = {"choosing": {"a": ("test",)}, "testing": {"b": ("test",)}, "everyday": {"c": ("test",)}}
        return PostTraining(
            HeadRecipe(width=16, hidden=32, batch=64, steps=10), (4, 8), (1e-3,), (0.5,), "a", sets, {"pairs": "test"}
        )
    return PostTraining(HeadRecipe(steps=200), STEPS, RATES, ALPHAS, "ucm_captions", AERIAL, {"coco_captions": "val"})


def _measure(options: StudyOptions) -> Measurements:
    smoke = options.scale == "smoke"
    data, plan = open_data(options.data, smoke, LIGHT), _plan(options.scale == "smoke")
    runner = ArmRunner(data, options.out / "runs" / "lixp-post-train")
    read = data.digest(*data.roles.training, plan.domain, *(name for sets in plan.sets.values() for name in sets))
    found, chosen = Measurements(), {BEFORE: "", TOWER: ""}
    started: dict[int, FeatureModel] = {}

    def before(seed: int) -> FeatureModel:
        if seed not in started:
            started[seed] = runner.model(plan.first, seed)
        return started[seed]

    def run(arm: str, recipe: HeadRecipe | None, seed: int, roles: tuple[str, ...]) -> None:
        def make() -> Measurements:
            if arm == TOWER:
                return measured(runner.model(HeadRecipe("none", steps=0), 0), data, plan, roles)
            if recipe is None:
                return measured(before(seed), data, plan, roles)
            model = runner.model(recipe, seed, (plan.domain,), before(seed))
            return measured(model, data, plan, roles)

        settings = [asdict(plan.first), recipe and asdict(recipe), plan.domain, roles, repr(plan.sets), read]
        found.take(runner.figures(arm, seed, settings, make))

    best: dict[str, HeadRecipe] = {}
    for arm in (PLAIN, CONTEXT):
        if arm == PLAIN:
            others = {f"rate {rate:g}": {"learning_rate": rate} for rate in plan.rates}
        else:
            rate = best[PLAIN].learning_rate
            others = {f"alpha {alpha}, rate {rate:g}": {"alpha": alpha, "learning_rate": rate} for alpha in plan.alphas}
        candidates = {
            f"{steps} steps, {name}": replace(plan.first, steps=steps, **more)  # type: ignore[arg-type]
            for name, more in others.items()
            for steps in plan.steps
        }
        scores = {}
        for name, recipe in candidates.items():
            run(f"{arm}: {name}", recipe, 0, ("choosing",))
            at: FigureAddress = {"arm": f"{arm}: {name}", "measure": "few-shot", "set": tuple(plan.sets["choosing"]),
                  "shots": tuple(map(str, SHOTS))}  # fmt: skip
            scores[name] = found.summary(at).mean
        chosen[arm] = max(scores, key=scores.__getitem__)
        best[arm] = candidates[chosen[arm]]
    best[AS_LONG] = replace(best[CONTEXT], alpha=None)
    chosen[AS_LONG] = f"{best[AS_LONG].steps} steps"
    for seed in range(options.seeds or (1 if smoke else 3)):
        run(BEFORE, None, seed, ("testing", "everyday"))
        for arm in (PLAIN, CONTEXT, AS_LONG):
            run(arm, best[arm], seed, ("testing", "everyday"))
    run(TOWER, None, 0, ("testing", "everyday"))
    found.context.update(chosen=chosen, sets={role: list(sets) for role, sets in plan.sets.items()},
                         pools=list(plan.pools))  # fmt: skip
    return found


def measured(model: FeatureModel, data: RealData, plan: PostTraining, roles: tuple[str, ...]) -> Measurements:
    """Few-shot accuracy by sets, accuracy by name, and recall on the pools where testing."""
    found = Measurements()
    for name, splits in ((name, splits) for role in roles for name, splits in plan.sets[role].items()):
        each = data.classes(name)
        for shots, value in few_shot(model, each, splits).items():
            found.add({"measure": "few-shot", "set": name, "shots": str(shots)}, 0, value)
        if model.text is not None:
            found.add({"measure": "zero-shot", "set": name}, 0, by_name(model, each, splits))
    if "testing" in roles and model.text is not None:
        for name, split in plan.pools.items():
            found.add({"measure": "R@10", "set": name}, 0, recall(model, data.get(name), split)[10])
    return found


def _form(found: Measurements) -> Formed:
    sets, chosen = found.context["sets"], found.context["chosen"]
    order = (TOWER, BEFORE, PLAIN, CONTEXT, AS_LONG)
    few: FigureAddress = {"measure": "few-shot", "shots": tuple(map(str, SHOTS))}
    columns = [
        *(Column(f"few-shot, {title}", {**few, "set": tuple(sets[role])}) for role, title in _ROLES.items()),
        *(
            Column(f"by name, {title}", {"measure": "zero-shot", "set": tuple(sets[role])})
            for role, title in _ROLES.items()
        ),
        *(Column(f"R@10 {pool}", {"measure": "R@10", "set": pool}) for pool in found.context["pools"]),
    ]  # fmt: skip
    rows = [Row((arm, chosen[arm]), {"arm": arm}) for arm in order]
    gains = [replace(column, show="gain") for column in columns]
    pairs = ((PLAIN, BEFORE), (CONTEXT, PLAIN), (CONTEXT, AS_LONG))
    compared = [Row((arm, over), {"arm": arm}, over={"arm": over}) for arm, over in pairs]
    notes = []
    for arm, over in pairs:
        for role, title in _ROLES.items():
            gain = found.paired({**few, "arm": arm}, {"arm": over}, tuple(sets[role]))
            p = gain.over_seeds_p()
            words = f"{arm} over {over}, few-shot, {title}: {gain.summary().signed()}"
            notes.append(words if np.isnan(p) else f"{words}; over seeds, t-test p = {p:.2g}")
    tables = [
        TableForm("Post-training on aerial photographs", ("arm", "chosen"), rows, columns, missing=""),
        TableForm("Gains, paired by seed", ("arm", "over"), compared, gains, missing="", notes=tuple(notes)),
    ]
    return [form.fill(found) for form in tables], [
        "settings were chosen on EuroSAT and the validation pictures of UCM, one seed"
    ]


_ROLES = {"testing": "aerial", "everyday": "everyday"}

post_train = TableStudy("lixp/post-train", _measure, _form, {"smoke": MADE, "small": WORLD, "full": WORLD})
