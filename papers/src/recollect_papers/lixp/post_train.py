"""``lixp/post-train``: a model of everyday photographs is trained on with another domain, with and without context.

What a user would do with a model and captions of a domain of their own (aerial photographs; products): is more gained
at few shots there, and what is lost of what the model knew? Each arm has as many candidates, chosen on sets and
pictures of the domain that take no part in the figures: the plain loss by steps and learning rate, context by steps
and alpha at the learning rate of the plain loss.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from recollect_papers.engine import Column, Formed, Row, TableForm, TableStudy
from recollect_papers.measurements import FigureAddress, Measurements
from recollect_papers.real.arms import ArmRunner
from recollect_papers.real.data import LIGHT, RealData, open_data
from recollect_papers.real.heads import FeatureModel, HeadRecipe
from recollect_papers.real.measure import SHOTS, by_name, few_shot, recall
from recollect_papers.study import StudyOptions

BEFORE, PLAIN, CONTEXT, TOWER = "before", "plain loss", "context", "tower, no head"
AS_LONG = "plain loss, as long"
"""With the steps that context chose: another point of its own trade."""
STEPS, RATES, ALPHAS = (50, 100, 200), (3e-4, 1e-3), (0.5, 0.8)
WORLD = (
    "an MLP head of 14,000 photographs with captions (COCO), trained on with 1,679 aerial ones (UCM) or with 10,010 "
    "products and their names (fashion)"
)
MADE = "made vectors: shows that it runs, not what it finds"
EVERYDAY: Mapping[str, tuple[str, ...]] = {"imagenette": ("test",), "flowers12": ("test",), "butterfly10": ("test",)}
"""Sets that the model knew before."""


@dataclass(frozen=True)
class Domain:
    """What the model is trained on with, and measured on.

    Attributes:
        name: in tables.
        captions: captioned set whose training split is trained on.
        choosing, testing: sets of the domain, and of each the splits that are asked.
        everyday: sets of what the model knew before.
        pools: captioned sets and splits to search.
    """

    name: str
    captions: str
    choosing: Mapping[str, tuple[str, ...]]
    testing: Mapping[str, tuple[str, ...]]
    everyday: Mapping[str, tuple[str, ...]]
    pools: Mapping[str, str]

    def sets(self, role: str) -> Mapping[str, tuple[str, ...]]:
        """The sets of ``choosing``, ``testing`` or ``everyday``."""
        found: Mapping[str, tuple[str, ...]] = getattr(self, role)
        return found


DOMAINS = (
    Domain(
        "aerial photographs", "ucm_captions", {"eurosat": ("test",), "ucm_captions": ("val",)},
        {"resisc12": ("test",), "ucm_captions": ("test",)}, EVERYDAY, {"coco_captions": "val"},
    ),
    Domain("products", "fashion", {"fashion": ("val",)}, {"fashion": ("test",)}, EVERYDAY, {"coco_captions": "val"}),
)  # fmt: skip
_MADE_DOMAIN = Domain("made things", "a", {"a": ("test",)}, {"b": ("test",)}, {"c": ("test",)}, {"pairs": "test"})
_ROLES = replace(LIGHT, whole=("ucm_captions", "fashion"))


def _measure(options: StudyOptions) -> Measurements:
    smoke = options.scale == "smoke"
    data = open_data(options.data, smoke, _ROLES)
    runner = ArmRunner(data, options.out / "runs" / "lixp-post-train")
    first = HeadRecipe(width=16, hidden=32, batch=64, steps=10) if smoke else HeadRecipe(steps=200)
    found, chosen = Measurements(), dict[str, dict[str, str]]()
    domains = (_MADE_DOMAIN,) if smoke else DOMAINS
    for domain in domains:
        chosen[domain.name] = _post_trained(domain, first, runner, found, options.seeds or (1 if smoke else 3), smoke)
    found.context.update(chosen=chosen, domains=[asdict(domain) for domain in domains])
    return found


def _post_trained(
    domain: Domain, first: HeadRecipe, runner: ArmRunner, found: Measurements, seeds: int, smoke: bool
) -> dict[str, str]:
    """Measure every arm on one domain; what was chosen for each."""
    sets = {role: domain.sets(role) for role in ("choosing", "testing", "everyday")}
    names = [name for each in sets.values() for name in each]
    read = runner.data.digest(*runner.data.roles.training, domain.captions, *names)

    def run(arm: str, recipe: HeadRecipe | None, seed: int, *roles: str) -> None:
        def make() -> Measurements:
            if arm == TOWER:
                model = runner.model(HeadRecipe("none", steps=0), 0)
            elif recipe is None:
                model = runner.model(first, seed)
            else:
                model = runner.model(recipe, seed, (domain.captions,), runner.model(first, seed))
            return measured(model, runner.data, domain, roles)

        settings = [asdict(first), recipe and asdict(recipe), roles, repr(domain), read]
        found.take(runner.figures(arm, seed, settings, make))

    steps, rates, alphas = ((4, 8), (1e-3,), (0.5,)) if smoke else (STEPS, RATES, ALPHAS)
    chosen, best = {TOWER: "", BEFORE: ""}, dict[str, HeadRecipe]()
    for arm in (PLAIN, CONTEXT):
        if arm == PLAIN:
            starts = {f"rate {rate:g}": replace(first, learning_rate=rate) for rate in rates}
        else:
            given = best[PLAIN]
            starts = {f"alpha {alpha}, rate {given.learning_rate:g}": replace(given, alpha=alpha) for alpha in alphas}
        candidates = {
            f"{count} steps, {name}": replace(start, steps=count) for name, start in starts.items() for count in steps
        }
        scores = {}
        for name, recipe in candidates.items():
            run(f"{arm}: {name}", recipe, 0, "choosing")
            at = {**_few(domain, "choosing"), "arm": f"{arm}: {name}"}
            scores[name] = found.summary(at).mean
        chosen[arm] = max(scores, key=scores.__getitem__)
        best[arm] = candidates[chosen[arm]]
    if (longer := replace(best[CONTEXT], alpha=None)) != best[PLAIN]:
        best[AS_LONG], chosen[AS_LONG] = longer, f"{longer.steps} steps"
    for seed in range(seeds):
        for arm in (BEFORE, *best):
            run(arm, best.get(arm), seed, "testing", "everyday")
    run(TOWER, None, 0, "testing", "everyday")
    return chosen


def _few(domain: Domain, role: str) -> FigureAddress:
    sets = tuple(domain.sets(role))
    return {"measure": "few-shot", "domain": domain.name, "set": sets, "shots": tuple(map(str, SHOTS))}


def measured(model: FeatureModel, data: RealData, domain: Domain, roles: Sequence[str]) -> Measurements:
    """Few-shot accuracy by sets, accuracy by name, and recall on the pools where testing."""
    found, at = Measurements(), {"domain": domain.name}
    for name, splits in ((name, splits) for role in roles for name, splits in domain.sets(role).items()):
        each = data.classes(name)
        for shots, value in few_shot(model, each, splits).items():
            found.add({**at, "measure": "few-shot", "set": name, "shots": str(shots)}, 0, value)
        if model.text is not None:
            found.add({**at, "measure": "zero-shot", "set": name}, 0, by_name(model, each, splits))
    if "testing" in roles and model.text is not None:
        for name, split in domain.pools.items():
            found.add({**at, "measure": "R@10", "set": name}, 0, recall(model, data.get(name), split)[10])
    return found


def _form(found: Measurements) -> Formed:
    tables = [form for each in found.context["domains"] for form in _tables(found, Domain(**each))]
    return [form.fill(found) for form in tables], [
        "settings were chosen on EuroSAT and UCM's validation pictures, or on fashion's, one seed"
    ]


def _tables(found: Measurements, domain: Domain) -> Iterator[TableForm]:
    chosen, at = found.context["chosen"][domain.name], {"domain": domain.name}
    titles = {"testing": domain.name, "everyday": "everyday"}
    columns = [
        *(Column(f"few-shot, {title}", _few(domain, role)) for role, title in titles.items()),
        *(
            Column(f"by name, {title}", {**at, "measure": "zero-shot", "set": tuple(domain.sets(role))})
            for role, title in titles.items()
        ),
        *(Column(f"R@10 {pool}", {**at, "measure": "R@10", "set": pool}) for pool in domain.pools),
    ]
    pairs = [(PLAIN, BEFORE), (CONTEXT, PLAIN), *([(CONTEXT, AS_LONG)] if AS_LONG in chosen else [])]
    notes = []
    for arm, over in pairs:
        tests = []
        for role, title in titles.items():
            gain = found.paired({**_few(domain, role), "arm": arm}, {"arm": over}, tuple(domain.sets(role)))
            if not np.isnan(p := gain.over_seeds_p()):
                tests.append(f"{title} p = {p:.2g}")
        if tests:
            notes.append(f"{arm} over {over}, few-shot, t-test over seeds: {', '.join(tests)}")
    rows = [Row((arm, chosen[arm]), {"arm": arm}) for arm in chosen]
    yield TableForm(f"Post-training on {domain.name}", ("arm", "chosen"), rows, columns, missing="")
    gains = [Row((arm, over), {"arm": arm}, over={"arm": over}) for arm, over in pairs]
    yield TableForm(f"Gains on {domain.name}, paired by seed", ("arm", "over"), gains,
                    [replace(column, show="gain") for column in columns], missing="", notes=tuple(notes))  # fmt: skip


post_train = TableStudy("lixp/post-train", _measure, _form, {"smoke": MADE, "small": WORLD, "full": WORLD})
