"""``lixp/methods``: few-shot methods by number of shots, on the starter's towers with LiT.

The method chosen on the choosing sets is compared with the best method of each testing set, to measure the loss from
choosing in advance. The package's own choice (``best``, by held-out examples of each draw) is measured too.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache, partial

import numpy as np

from recollect.classifiers.heads.methods import BEST, CANDIDATES, choose_method
from recollect.evaluation.few_shot_protocol import FewShotTask, Protocol, draw, run_protocol, support_of
from recollect_papers.engine import Row, TableForm, TablesAndNotes, TableStudy
from recollect_papers.measurements import FigureAddress, Measurements
from recollect_papers.real.arms import SMOKE_HEAD, open_runner, shot_columns, worlds
from recollect_papers.real.data import LIGHT_ROLES, FeatureSet
from recollect_papers.real.heads import FeatureModel, HeadRecipe
from recollect_papers.real.measure import few_shot_task
from recollect_papers.study import StudyOptions, StudyTable

METHODS = ("zero-shot", "prototype", "prototype-cosine", "tip-adapter", "softmax", "softmax+zero-shot", "proker")
SLOW_METHODS = ("gda", "dmn-tf", "linear-probe")
"""Only at scale ``full``: these take minutes per draw at width 1,280."""
SHOTS = (1, 2, 4, 8, 16)
ACCURACY, CALIBRATION = "top-1", "ece"
WORLD = "LiT on EfficientNet-Lite0 and MiniLM (14,000 photographs with captions, COCO); five draws"


def _measure(options: StudyOptions) -> Measurements:
    smoke = options.scale == "smoke"
    runner = open_runner(options, "lixp-methods", LIGHT_ROLES)
    data = runner.data
    head = replace(SMOKE_HEAD, image="none") if smoke else HeadRecipe("none", hidden=1024)
    methods = METHODS[:4] if smoke else (*METHODS, *(SLOW_METHODS if options.scale == "full" else ()))
    found = Measurements()
    parts = {"choosing": data.roles.choosing, "testing": data.roles.testing}
    model = lru_cache(None)(partial(runner.model, head))
    for seed in range(options.seeds or (1 if smoke else 3)):
        for part, sets in parts.items():
            for name, splits in sets.items():
                settings = [3, asdict(head), methods, SHOTS, name, splits, data.digest(*data.roles.training, name)]

                def compute(name: str = name, splits: tuple[str, ...] = splits, seed: int = seed) -> Measurements:
                    return accuracies(model(seed), data.classes(name), splits, methods)

                found.take(runner.figures(f"methods on {name}", seed, settings, compute), arm="", part=part, set=name)
    found.context.update({part: list(sets) for part, sets in parts.items()}, methods=[*methods, BEST])
    return found


def accuracies(model: FeatureModel, each: FeatureSet, splits: Sequence[str], methods: Sequence[str]) -> Measurements:
    """Measure accuracy and calibration error of every method and of ``best``, by shots, averaged over draws."""
    task = few_shot_task(model, each, splits, SHOTS[-1], named=True)
    found, protocol = Measurements(), Protocol(methods, SHOTS)
    rows = [*run_protocol(task, protocol), *_best(task, protocol)]
    for method in (*methods, BEST):
        for shots in SHOTS:
            mine = [row for row in rows if row["method"] == method and row["shots"] in (0, shots)]
            for metric in (ACCURACY, CALIBRATION):
                if values := _values(mine, metric):
                    found.add({"method": method, "shots": str(shots), "measure": metric}, 0, float(np.mean(values)))
    return found


def _best(task: FewShotTask, protocol: Protocol) -> Iterator[dict[str, object]]:
    """Yield the accuracy of the method chosen by `choose_method` for each draw."""
    assert task.texts is not None
    for order in draw(task.support_labels, task.classes, protocol).values():
        for shots in protocol.shots:
            rows, labels = support_of(order, shots)
            estimator = choose_method(CANDIDATES, task.texts, task.scale, task.support[rows], labels)[1]
            right = estimator.scores(task.queries).argmax(1) == task.query_labels
            yield {"method": BEST, "shots": shots, "value": 100 * float(right.mean())}


def _values(rows: Sequence[Mapping[str, object]], metric: str) -> list[float]:
    """Return a metric of some rows: accuracy is their ``value``, other metrics are separate keys."""
    if metric == ACCURACY:
        return [float(row["value"]) for row in rows]  # type: ignore[arg-type]
    return [float(row[metric]) for row in rows if row.get(metric) is not None]  # type: ignore[arg-type]


def _form(found: Measurements) -> TablesAndNotes:
    context = found.context
    methods, choosing, testing = context["methods"], tuple(context["choosing"]), tuple(context["testing"])
    at: FigureAddress = {"arm": "", "measure": ACCURACY, "part": "testing", "set": testing}
    columns, calibration = shot_columns(at, SHOTS), shot_columns({**at, "measure": CALIBRATION}, SHOTS)
    rows = [Row((name,), {"method": name}) for name in methods]
    tables = [
        TableForm("Accuracy by method, mean of the testing sets", ("method",), rows, columns, missing="").fill(found),
        _rules(found, methods, choosing, testing),
        TableForm("Calibration error by method", ("method",), rows[:-1], calibration, missing="").fill(found),
    ]
    return tables, []


def _rules(found: Measurements, methods: Sequence[str], choosing: Sequence[str], testing: Sequence[str]) -> StudyTable:
    """Compare rules for choosing a method with the best method of each testing set."""

    def mean(part: str, sets: Sequence[str], shots: int, method: str) -> float:
        at = {"arm": "", "measure": ACCURACY, "part": part, "shots": str(shots), "method": method}
        return found.summary({**at, "set": tuple(sets)}).mean

    single = [method for method in methods if method != BEST]
    rows = []
    for shots in SHOTS:
        top = float(np.mean([max(mean("testing", [name], shots, method) for method in single) for name in testing]))
        rules = {
            "best on the choosing sets": max(single, key=lambda method: mean("choosing", choosing, shots, method)),
            "the package's own choice": BEST,
            "best on the testing sets (hindsight)": max(single, key=lambda each: mean("testing", testing, shots, each)),
        }
        for rule, method in rules.items():
            got = mean("testing", testing, shots, method)
            rows.append((str(shots), rule, method, f"{got:.1f}", f"{top - got:.1f}"))
    columns = ("shots", "rule", "method", "accuracy", "given up")
    return StudyTable("Rules", columns, tuple(rows), ("given up: points below the best method of each testing set",))


methods = TableStudy("lixp/methods", _measure, _form, worlds(WORLD))
