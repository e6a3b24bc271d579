"""``lixp/methods``: which few-shot method at how many shots, on embeddings of the starter's towers with LiT.

A method is chosen on the choosing sets and compared with the best of each testing set: what choosing gives up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np

from recollect.classifiers.heads.protocol import FewShotTask, Protocol, run_protocol
from recollect.core.types import TEXT_SCALE
from recollect_papers.engine import Column, Formed, Row, TableForm, TableStudy
from recollect_papers.measurements import FigureAddress, Measurements
from recollect_papers.real.arms import ArmRunner
from recollect_papers.real.data import FeatureSet, RealData, labelled, open_data
from recollect_papers.real.heads import FeatureModel, HeadRecipe
from recollect_papers.real.measure import SHOTS, TEMPLATE, of_common_classes
from recollect_papers.study import StudyOptions, StudyTable

METHODS = ("zero-shot", "prototype", "tip-adapter", "softmax", "softmax+zero-shot", "proker", "gda", "dmn-tf",
           "linear-probe")  # fmt: skip
ACCURACY, CALIBRATION = "top-1", "ece"
WORLD = "LiT on EfficientNet-Lite0 and MiniLM (20,090 everyday photographs with captions); five draws"
MADE = "made vectors: shows that it runs, not what it finds"


def _measure(options: StudyOptions) -> Measurements:
    smoke = options.scale == "smoke"
    data = open_data(options.data, smoke)
    runner = ArmRunner(data, options.out / "runs" / "lixp-methods")
    head = HeadRecipe("none", hidden=32, batch=64, steps=10) if smoke else HeadRecipe("none", hidden=1024)
    methods = METHODS[:4] if smoke else METHODS
    found, models = Measurements(), list[FeatureModel]()
    parts = {"choosing": data.roles.choosing, "testing": data.roles.testing}
    for part, sets in parts.items():
        for name, splits in sets.items():
            settings = [asdict(head), methods, name, splits, data.digest(*data.roles.training, name)]

            def make(name: str = name, splits: tuple[str, ...] = splits) -> Measurements:
                if not models:
                    models.append(runner.model(head, 0))
                return accuracies(models[0], data, data.classes(name), splits, methods)

            one = runner.figures(f"methods on {name}", 0, settings, make)
            for address, seed, value in one.rows():
                found.add({**address, "arm": "", "part": part, "set": name}, seed, value)
    found.context.update({part: list(sets) for part, sets in parts.items()}, methods=list(methods))
    return found


def accuracies(
    model: FeatureModel, data: RealData, each: FeatureSet, splits: Sequence[str], methods: Sequence[str]
) -> Measurements:
    """Accuracy and calibration error of every method by shots, means over draws."""
    support, query = of_common_classes(each, labelled(each, "train"), labelled(each, *splits))
    classes, labels = np.unique(each.labels[support], return_inverse=True)
    names = [TEMPLATE.format(each.class_names[label].replace("_", " ")) for label in classes]
    task = FewShotTask(
        model.embed_images(each.images[support]).numpy(),
        labels,
        model.embed_images(each.images[query]).numpy(),
        np.searchsorted(classes, each.labels[query]),
        model.embed_texts(names).numpy(),
        model.scale or TEXT_SCALE,
    )
    found = Measurements()
    rows = run_protocol(task, Protocol(methods, SHOTS))
    for method in methods:
        for shots in SHOTS:
            mine = [row for row in rows if row["method"] == method and row["shots"] in (0, shots)]
            for metric in (ACCURACY, CALIBRATION):
                if values := _values(mine, metric):
                    found.add({"method": method, "shots": str(shots), "measure": metric}, 0, float(np.mean(values)))
    return found


def _values(rows: Sequence[Mapping[str, object]], metric: str) -> list[float]:
    """Of accuracy the rows' own figures, of anything else what stands beside them."""
    if metric == ACCURACY:
        return [float(row["value"]) for row in rows]  # type: ignore[arg-type]
    return [float(row[metric]) for row in rows if row.get(metric) is not None]  # type: ignore[arg-type]


def _form(found: Measurements) -> Formed:
    context = found.context
    methods, choosing, testing = context["methods"], tuple(context["choosing"]), tuple(context["testing"])
    at: FigureAddress = {"arm": "", "measure": ACCURACY, "part": "testing", "set": testing}
    columns = [Column(f"{shots} shot{'s' * (shots > 1)}", {**at, "shots": str(shots)}) for shots in SHOTS]
    off: FigureAddress = {**at, "measure": CALIBRATION}
    columns += [Column(f"calibration error, {shots} shots", {**off, "shots": str(shots)}) for shots in SHOTS]
    rows = [Row((name,), {"method": name}) for name in methods]
    table = TableForm("Accuracy by method, mean of the testing sets", ("method",), rows, columns, missing="")
    return [table.fill(found), _rules(found, methods, choosing, testing)], []


def _rules(found: Measurements, methods: Sequence[str], choosing: Sequence[str], testing: Sequence[str]) -> StudyTable:
    """What the choosing sets pick, and what that gives up against the best method of each testing set."""

    def mean(part: str, sets: Sequence[str], shots: int, method: str) -> float:
        at = {"arm": "", "measure": ACCURACY, "part": part, "shots": str(shots), "method": method}
        return found.summary({**at, "set": tuple(sets)}).mean

    rows = []
    for shots in SHOTS:
        best = max(methods, key=lambda method: mean("choosing", choosing, shots, method))
        top = float(np.mean([max(mean("testing", [name], shots, method) for method in methods) for name in testing]))
        got = mean("testing", testing, shots, best)
        hindsight = max(methods, key=lambda method: mean("testing", testing, shots, method))
        rows.append((str(shots), best, f"{got:.1f}", f"{top - got:.1f}", hindsight))
    columns = ("shots", "best on the choosing sets", "accuracy", "given up", "best on the testing sets (hindsight)")
    return StudyTable("Rules", columns, tuple(rows), ("given up: points below the best method of each testing set",))


methods = TableStudy("lixp/methods", _measure, _form, {"smoke": MADE, "small": WORLD, "full": WORLD})
