"""``lixp/methods``: which few-shot method at how many shots, on embeddings of the starter's towers with LiT.

A method is chosen on the choosing sets and compared with the best of each testing set: what choosing gives up. The
package's own choice (``best``, from held-out examples of each draw) is measured beside them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

import numpy as np

from recollect.classifiers.heads.methods import BEST, CANDIDATES, choose_method
from recollect.core.types import TEXT_SCALE
from recollect.evaluation.few_shot_protocol import FewShotTask, Protocol, draw, run_protocol, support_of
from recollect_papers.engine import Column, Formed, Row, TableForm, TableStudy
from recollect_papers.measurements import FigureAddress, Measurements
from recollect_papers.real.arms import ArmRunner
from recollect_papers.real.data import LIGHT, FeatureSet, labeled, open_data
from recollect_papers.real.heads import FeatureModel, HeadRecipe
from recollect_papers.real.measure import TEMPLATE, of_common_classes
from recollect_papers.study import StudyOptions, StudyTable

METHODS = ("zero-shot", "prototype", "tip-adapter", "softmax", "softmax+zero-shot", "proker")
SLOW = ("gda", "dmn-tf", "linear-probe")
"""At scale ``full``: minutes a draw on features of 1,280 entries."""
SHOTS = (1, 2, 4, 8, 16)
ACCURACY, CALIBRATION = "top-1", "ece"
WORLD = "LiT on EfficientNet-Lite0 and MiniLM (14,000 photographs with captions, COCO); five draws"
MADE = "made vectors: shows that it runs, not what it finds"


def _measure(options: StudyOptions) -> Measurements:
    smoke = options.scale == "smoke"
    data = open_data(options.data, smoke, LIGHT)
    runner = ArmRunner(data, options.out / "runs" / "lixp-methods")
    head = HeadRecipe("none", hidden=32, batch=64, steps=10) if smoke else HeadRecipe("none", hidden=1024)
    methods = METHODS[:4] if smoke else (*METHODS, *(SLOW if options.scale == "full" else ()))
    found = Measurements()
    parts = {"choosing": data.roles.choosing, "testing": data.roles.testing}
    for seed in range(options.seeds or (1 if smoke else 3)):
        models = list[FeatureModel]()
        for part, sets in parts.items():
            for name, splits in sets.items():
                settings = [2, asdict(head), methods, SHOTS, name, splits, data.digest(*data.roles.training, name)]

                def make(
                    name: str = name,
                    splits: tuple[str, ...] = splits,
                    seed: int = seed,
                    models: list[FeatureModel] = models,
                ) -> Measurements:
                    if not models:
                        models.append(runner.model(head, seed))
                    return accuracies(models[0], data.classes(name), splits, methods)

                one = runner.figures(f"methods on {name}", seed, settings, make)
                for address, own_seed, value in one.rows():
                    found.add({**address, "arm": "", "part": part, "set": name}, own_seed, value)
    found.context.update({part: list(sets) for part, sets in parts.items()}, methods=[*methods, BEST])
    return found


def accuracies(model: FeatureModel, each: FeatureSet, splits: Sequence[str], methods: Sequence[str]) -> Measurements:
    """Accuracy and calibration error of every method, and of the choice among them, by shots; means over draws."""
    support, query = of_common_classes(each, labeled(each, "train"), labeled(each, *splits), SHOTS[-1])
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
    protocol = Protocol(methods, SHOTS)
    rows = [*run_protocol(task, protocol), *_best(task, protocol)]
    for method in (*methods, BEST):
        for shots in SHOTS:
            mine = [row for row in rows if row["method"] == method and row["shots"] in (0, shots)]
            for metric in (ACCURACY, CALIBRATION):
                if values := _values(mine, metric):
                    found.add({"method": method, "shots": str(shots), "measure": metric}, 0, float(np.mean(values)))
    return found


def _best(task: FewShotTask, protocol: Protocol) -> Iterator[dict[str, object]]:
    """Accuracy of the method that `choose_method` takes, for each draw."""
    assert task.texts is not None
    for order in draw(task.support_labels, task.classes, protocol).values():
        for shots in protocol.shots:
            rows, labels = support_of(order, shots)
            estimator = choose_method(CANDIDATES, task.texts, task.scale, task.support[rows], labels)[1]
            right = estimator.scores(task.queries).argmax(1) == task.query_labels
            yield {"method": BEST, "shots": shots, "value": 100 * float(right.mean())}


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
    calibration = [Column(f"{shots} shot{'s' * (shots > 1)}", {**off, "shots": str(shots)}) for shots in SHOTS]
    rows = [Row((name,), {"method": name}) for name in methods]
    tables = [
        TableForm("Accuracy by method, mean of the testing sets", ("method",), rows, columns, missing="").fill(found),
        _rules(found, methods, choosing, testing),
        TableForm("Calibration error by method", ("method",), rows[:-1], calibration, missing="").fill(found),
    ]
    return tables, []


def _rules(found: Measurements, methods: Sequence[str], choosing: Sequence[str], testing: Sequence[str]) -> StudyTable:
    """What the choosing sets pick, and what that gives up against the best method of each testing set."""

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


methods = TableStudy("lixp/methods", _measure, _form, {"smoke": MADE, "small": WORLD, "full": WORLD})
