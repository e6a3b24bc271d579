"""``lixp/post-train``: post-train a model of everyday photographs on another domain, with and without context.

Measures few-shot accuracy on the new domain (aerial photographs; products) and on everyday pictures. All arms have the
same number of candidate settings, chosen on separate sets and pictures of the domain: steps and learning rate for the
plain loss; steps and alpha, at the chosen learning rate, for context.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np

from recollect_papers.engine import Column, Row, TableForm, TablesAndNotes, TableStudy
from recollect_papers.measurements import FigureAddress, Measurements
from recollect_papers.real.arms import SHOT_NAMES, SMOKE_HEAD, TOWER, ArmRunner, open_runner, worlds
from recollect_papers.real.data import LIGHT_ROLES
from recollect_papers.real.heads import HeadRecipe
from recollect_papers.real.measure import measure_sets
from recollect_papers.study import StudyOptions

BEFORE, PLAIN, CONTEXT = "before", "plain loss", "context"
AS_LONG = "plain loss, as long"
"""The plain loss with the number of steps chosen for context."""
STEPS, RATES, ALPHAS = (50, 100, 200), (3e-4, 1e-3), (0.5, 0.8)
WORLD = (
    "an MLP head of 14,000 photographs with captions (COCO), trained on with 1,679 aerial ones (UCM) or with 10,010 "
    "products and their names (fashion)"
)

EVERYDAY: Mapping[str, tuple[str, ...]] = {"imagenette": ("test",), "flowers12": ("test",), "butterfly10": ("test",)}
"""Sets of everyday pictures, to measure forgetting."""


@dataclass(frozen=True)
class Domain:
    """A domain to post-train on, and the sets to measure.

    Attributes:
        name: name in tables.
        captions: captioned set for training (split ``train``).
        choosing, testing: sets of the domain and their splits.
        everyday: sets of everyday pictures and their splits.
        pools: captioned sets and splits for retrieval.
    """

    name: str
    captions: str
    choosing: Mapping[str, tuple[str, ...]]
    testing: Mapping[str, tuple[str, ...]]
    everyday: Mapping[str, tuple[str, ...]]
    pools: Mapping[str, str]

    def sets(self, role: str) -> Mapping[str, tuple[str, ...]]:
        """Return the sets of role ``choosing``, ``testing`` or ``everyday``."""
        return {"choosing": self.choosing, "testing": self.testing, "everyday": self.everyday}[role]


DOMAINS = (
    Domain(
        "aerial photographs", "ucm_captions", {"eurosat": ("test",), "ucm_captions": ("val",)},
        {"resisc12": ("test",), "ucm_captions": ("test",)}, EVERYDAY, {"coco_captions": "val"},
    ),
    Domain("products", "fashion", {"fashion": ("val",)}, {"fashion": ("test",)}, EVERYDAY, {"coco_captions": "val"}),
)  # fmt: skip
_SYNTHETIC_DOMAIN = Domain("synthetic", "a", {"a": ("test",)}, {"b": ("test",)}, {"c": ("test",)}, {"pairs": "test"})
_ROLES = replace(LIGHT_ROLES, whole=("ucm_captions", "fashion"))


def _measure(options: StudyOptions) -> Measurements:
    smoke = options.scale == "smoke"
    runner = open_runner(options, "lixp-post-train", _ROLES)
    first = SMOKE_HEAD if smoke else HeadRecipe(steps=200)
    found, chosen = Measurements(), dict[str, dict[str, str]]()
    domains = (_SYNTHETIC_DOMAIN,) if smoke else DOMAINS
    for domain in domains:
        chosen[domain.name] = _post_trained(domain, first, runner, found, options.seeds or (1 if smoke else 3), smoke)
    found.context.update(chosen=chosen, domains=[asdict(domain) for domain in domains])
    return found


def _post_trained(
    domain: Domain, first: HeadRecipe, runner: ArmRunner, found: Measurements, seeds: int, smoke: bool
) -> dict[str, str]:
    """Measure every arm on one domain, and return the settings chosen for each."""
    sets = {role: domain.sets(role) for role in ("choosing", "testing", "everyday")}
    names = [name for each in sets.values() for name in each]
    read = runner.data.digest(*runner.data.roles.training, domain.captions, *names)

    def run(arm: str, recipe: HeadRecipe | None, seed: int, *roles: str) -> None:
        def compute() -> Measurements:
            if arm == TOWER:
                model = runner.model(HeadRecipe("none", steps=0), 0)
            elif recipe is None:
                model = runner.model(first, seed)
            else:
                model = runner.model(recipe, seed, (domain.captions,), runner.model(first, seed))
            named = model.text is not None
            pools = domain.pools if named and "testing" in roles else {}
            measured = {name: splits for role in roles for name, splits in sets[role].items()}
            return measure_sets(model, runner.data, measured, pools, named=named, domain=domain.name)

        settings = [asdict(first), recipe and asdict(recipe), roles, repr(domain), read]
        found.take(runner.figures(arm, seed, settings, compute))

    steps, rates, alphas = ((4, 8), (1e-3,), (0.5,)) if smoke else (STEPS, RATES, ALPHAS)
    chosen, best = {TOWER: "", BEFORE: ""}, dict[str, HeadRecipe]()
    for arm in (PLAIN, CONTEXT):
        if arm == PLAIN:
            starts = {f"rate {rate:g}": replace(first, learning_rate=rate) for rate in rates}
        else:
            plain = best[PLAIN]
            starts = {f"alpha {alpha}, rate {plain.learning_rate:g}": replace(plain, alpha=alpha) for alpha in alphas}
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
    return {"measure": "few-shot", "domain": domain.name, "set": sets, "shots": SHOT_NAMES}


def _form(found: Measurements) -> TablesAndNotes:
    tables = [form for each in found.context["domains"] for form in _tables(found, Domain(**each))]
    return [form.fill(found) for form in tables], [
        "settings were chosen on EuroSAT and UCM's validation pictures, or on those of fashion, with one seed"
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


post_train = TableStudy("lixp/post-train", _measure, _form, worlds(WORLD))
