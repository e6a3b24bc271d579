"""Few-shot classification: closed forms against the plain way, in one run; the most memory of large fits.

python benchmarks/fewshot.py --out results/bench/few-shot.json   (a quarter of an hour on one core)
recollect-papers results docs/bench.md                                  (its tables on the page)
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
from rich.console import Console
from rich.table import Table

from bench import machine
from recollect.classifiers import ProKeR
from recollect.classifiers.heads import proker
from recollect.classifiers.heads.holdout import HoldOut
from recollect.classifiers.heads.kernel import Landmarks, RidgeTargets
from recollect.classifiers.heads.mixing import best_weight
from recollect.cli.parser import script_options
from recollect.core.files import read_json, write_json
from recollect.evaluation.few_shot_protocol import FewShotTask
from recollect_papers.peers.ape import channel_scores
from recollect_papers.study import StudyTable

Figures = dict[str, Any]

BANDWIDTHS, RIDGES = np.geomspace(0.5, 20, 20), np.geomspace(1e-3, 10, 50)


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        queries, pool, width, classes: of the few-shot task.
        rows: examples that a weight is chosen on.
        grid: points of the grid that the exact sweep is held against.
        parts: what to measure; memory and large take gigabytes and minutes.
        left_out_classes: classes of the leave-one-out search, 16 shots each.
        timed: bandwidths of that search that are timed, evenly over the 20; the time is scaled to all of them.
        refits: refits that are timed, of one left-out row at one bandwidth and ridge each.
        out: a JSON file for the figures.
    """

    queries: int = 20_000
    pool: int = 8_000
    width: int = 512
    classes: int = 100
    rows: int = 1_000
    grid: int = 200
    parts: tuple[str, ...] = ("left-out", "channels", "sweep", "memory", "large")
    left_out_classes: int = 1_000
    timed: int = 5
    refits: int = 5
    out: Path | None = None


def seconds(call: Callable[[], Any], repeats: int = 1) -> tuple[float, Any]:
    """Best of ``repeats``, and what the call returned; of the processor, since other jobs may share it."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        value = call()
        times.append(time.process_time() - start)
    return min(times), value


def unit(matrix: np.ndarray) -> np.ndarray:
    return (matrix / np.linalg.norm(matrix, axis=1, keepdims=True)).astype(np.float32)


def task_of(options: Options) -> FewShotTask:
    """Embeddings scattered around class centers, hard enough that no method is perfect."""
    random = np.random.default_rng(0)
    centers = random.standard_normal((options.classes, options.width))
    labels = np.arange(options.pool) % options.classes
    asked = random.integers(options.classes, size=options.queries)

    def around(which: np.ndarray, noise: float) -> np.ndarray:
        return unit(centers[which] + noise * random.standard_normal((len(which), options.width)))

    texts = around(np.arange(options.classes), 2.0)
    return FewShotTask(around(labels, 4.0), labels, around(asked, 4.0), asked, texts)


def sweep(options: Options) -> Figures:
    random = np.random.default_rng(1)
    labels = random.integers(options.classes, size=options.rows)
    base = random.standard_normal((options.rows, options.classes)).astype(np.float32)
    extra = random.standard_normal((options.rows, options.classes)).astype(np.float32)
    for scores in (base, extra):
        scores[np.arange(options.rows), labels] += 1.5

    def grid() -> tuple[float, float]:
        weights = np.linspace(0, 20, options.grid)
        right = [float(np.mean((base + weight * extra).argmax(axis=1) == labels)) for weight in weights]
        best = int(np.argmax(right))
        return float(weights[best]), right[best]

    fast, exact = seconds(lambda: best_weight(base, extra, labels), 50)
    slow, coarse = seconds(grid, 5)
    return {
        "sweep": fast, "grid": slow, "speedup": slow / fast,
        "points": options.grid, "accuracy_of_sweep": exact[1], "accuracy_of_grid": coarse[1],
    }  # fmt: skip


def shots_of(options: Options, classes: int) -> FewShotTask:
    """A task whose pool is 16 examples of each class."""
    return task_of(replace(options, classes=classes, pool=16 * classes, queries=classes))


@contextmanager
def sought(bandwidths: np.ndarray, ridges: np.ndarray) -> Iterator[None]:
    """Within, ProKeR chooses among these."""
    before = proker.BANDWIDTHS, proker.RIDGES
    proker.BANDWIDTHS, proker.RIDGES = tuple(bandwidths.tolist()), tuple(ridges.tolist())
    try:
        yield
    finally:
        proker.BANDWIDTHS, proker.RIDGES = before


def left_out(options: Options) -> Figures:
    """ProKeR's own choice by leave-one-out among 20 bandwidths x 50 ridges, against a refit for each left-out row.

    Both hold out the same rows and solve through the same landmarks. The refits are spared all that does not change
    with the row or the ridge (features, their Gram matrix and sums over the examples, from which the row is taken
    away); what is left is one factor, one solution and one row of scores, timed for a few and multiplied by rows x
    bandwidths x ridges. Beside it: the closed form with a factor of its own for each ridge.
    """
    task = shots_of(options, options.left_out_classes)
    support, labels = task.support, task.support_labels
    plan = HoldOut.of(labels).first(proker.MOST_TUNING_ROWS)
    timed = BANDWIDTHS[np.linspace(0, len(BANDWIDTHS) - 1, options.timed).astype(int)]
    model = ProKeR(task.texts)
    model.classes_, model.support_, model.labels_, model.texts_ = np.unique(labels), support, labels, task.texts
    with sought(timed, RIDGES):
        some, _ = seconds(lambda: model._choose(plan))
    search = some * len(BANDWIDTHS) / len(timed)
    refit, alone = _refits(options, RidgeTargets(support, labels, task.texts), plan, model)
    settings = len(BANDWIDTHS) * len(RIDGES)
    return {
        "examples": len(labels), "classes": options.left_out_classes, "held_out": len(plan.rows),
        "bandwidths_timed": len(timed), "search": search,
        "one_refit": refit, "refits": refit * settings * len(plan.rows),
        "speedup": refit * settings * len(plan.rows) / search,
        "one_factor_for_each_ridge": alone * settings, "over_factors": alone * settings / search,
    }  # fmt: skip


def _refits(options: Options, targets: RidgeTargets, plan: HoldOut, model: ProKeR) -> tuple[float, float]:
    """Seconds of one refit, and of all held-out rows at one ridge by the closed form with a factor of its own."""
    every = np.arange(len(targets.labels))
    if len(every) > proker.CHOICE_ROWS:
        features = Landmarks(model._spread(proker.CHOICE_LANDMARKS), 2.0)(targets.support)
    else:  # the kernel's own features, as many as there are examples
        features = Landmarks(targets.support, 2.0)(targets.support)
    gram, inside = features.T @ features, targets.under(features)

    def factor(ridge: float, away: np.ndarray | None = None) -> Any:
        matrix = gram + ridge * np.eye(len(gram), dtype=gram.dtype)
        return scipy.linalg.cho_factor(matrix if away is None else matrix - np.outer(away, away), check_finite=False)

    def without(row: int, ridge: float) -> tuple[np.ndarray, ...]:
        mine, place = features[row], every[row : row + 1]
        known = targets.one_hot(place), targets.similarity(place)
        sums = np.concatenate([a - np.outer(mine, y) for a, y in zip(inside, known, strict=True)], axis=1)
        return mine @ scipy.linalg.cho_solve(factor(ridge, mine), sums, check_finite=False)

    def closed(ridge: float) -> np.ndarray:
        solver, mine = factor(ridge), features[plan.rows]
        leverage = (mine * scipy.linalg.cho_solve(solver, mine.T, check_finite=False).T).sum(axis=1)
        solved = [mine @ scipy.linalg.cho_solve(solver, each, check_finite=False) for each in inside]
        return solved[0] / np.maximum(1 - leverage, 1e-6)[:, None] + solved[1]

    chosen = zip(plan.rows[: options.refits].tolist(), np.resize(RIDGES[::10], options.refits).tolist(), strict=True)
    times = [seconds(lambda row=row, ridge=ridge: without(row, ridge))[0] for row, ridge in chosen]  # type: ignore[misc]
    return float(np.mean(times)), seconds(lambda: closed(0.1))[0]


def channels(options: Options) -> Figures:
    texts = unit(np.random.default_rng(2).standard_normal((1_000, options.width)))
    fast, _ = seconds(lambda: channel_scores(texts), 20)
    return {"seconds": fast}


def memory(method: str, classes: int, shots: int, width: int = 512) -> Figures:
    """Most memory of a process that tunes, fits and calibrates a method and asks it once, beside what its data take.

    ProKeR chooses among 2 x 2 bandwidths and ridges.
    """
    script = f"""
import json, resource, sys, time
import numpy as np
from recollect.classifiers.heads import proker
from recollect.classifiers.heads.methods import FEW_SHOT_METHODS
from recollect_papers.peers.ape import channel_scores
random = np.random.default_rng(0)
rows = random.standard_normal(({classes * shots}, {width}), dtype=np.float32)
rows /= np.linalg.norm(rows, axis=1, keepdims=True)
proker.BANDWIDTHS, proker.RIDGES = (1.0, 3.0), (0.01, 0.1)  # as much memory as the whole grid, and less time
before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
FEW_SHOT_METHODS["{method}"](rows[:{classes}], 100.0).fit(rows, np.arange(len(rows)) % {classes}).predict(rows[:64])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
unit = 2**20 if sys.platform == "linux" else 2**30
print(json.dumps({{"gibibytes": peak / unit, "before_fit": before / unit, "seconds": time.process_time() - start}}))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{method}: {done.stderr.strip() or f'ended with {done.returncode}'}")
    return {"method": method, "classes": classes, "shots": shots, **json.loads(done.stdout)}


LARGE_METHODS = ("tip-adapter-cv", "proker")

PARTS: Mapping[str, Callable[[Options], Sequence[Figures]]] = {
    "left-out": lambda options: [left_out(options)],
    "channels": lambda options: [channels(options)],
    "sweep": lambda options: [sweep(options)],
    "memory": lambda options: [memory("tip-adapter-cv", 1_000, 32)],
    "large": lambda options: [memory(method, 10_000, 16) for method in LARGE_METHODS],
}
"""Leave-one-out of ProKeR; APE's channel score; the exact sweep; memory of large fits."""


def tables(found: Mapping[str, Sequence[Figures]], about: Mapping[str, Any]) -> list[StudyTable]:
    """The figures in the form that `recollect-papers results` puts on a page."""
    note = f"{about['cpu']}, {about['threads']} thread(s), numpy {about['versions']['numpy']}"
    ratios = [row for part, make in _RATIOS.items() for figures in found.get(part, ()) for row in make(figures)]
    sizes = [
        (f"{row['classes']:,} × {row['shots']}", row["method"], f"{row['gibibytes']:.2f} GiB",
         f"{row['before_fit']:.2f} GiB", f"{row['seconds']:.0f} s")
        for part in ("memory", "large") for row in found.get(part, ())
    ]  # fmt: skip
    made = [
        StudyTable(
            "Few-shot classification, shared work", ("what", "ours", "the plain way", "ratio"), tuple(ratios), (note,)
        ),
        StudyTable(
            "Most memory of a fit",
            ("classes × shots", "method", "peak", "before the fit", "time"),
            tuple(sizes),
            (note,),
        ),
    ]
    return [table for table in made if table.rows]


_RATIOS: Mapping[str, Callable[[Figures], Sequence[tuple[str, ...]]]] = {
    "left-out": lambda row: [
        (
            f"ProKeR, {row['classes']:,} classes × 16: leave-one-out at 20 bandwidths × 50 ridges, "
            f"{row['held_out']:,} rows held out", f"{row['search']:,.0f} s",
            f"a refit for each row ({1e3 * row['one_refit']:.0f} ms each): {row['refits'] / 3600:,.0f} h",
            f"{row['speedup']:,.0f} ×",
        ),
        (
            "the same against the closed form, which chooses no text weight", f"{row['search']:,.0f} s",
            f"a factor for each ridge: {row['one_factor_for_each_ridge']:,.0f} s", f"{row['over_factors']:.1f} ×",
        ),
    ],
    "sweep": lambda row: [
        ("best weight, 1,000 examples, 100 classes", f"{1e3 * row['sweep']:.2f} ms, exact",
         f"a grid of {row['points']}: {1e3 * row['grid']:.1f} ms", f"{row['speedup']:.0f} ×")
    ],
    "channels": lambda row: [("APE's channel score, 1,000 classes", f"{1e3 * row['seconds']:.1f} ms", "", "")],
}  # fmt: skip


def main(options: Options) -> None:
    """Measure, print and write, each part as it is done; other parts that the file has already stay."""
    about, found = machine(), {}
    if options.out and options.out.exists():
        found = read_json(options.out)["parts"]
    for name in options.parts:
        found[name] = list(PARTS[name](options))
        found = {part: found[part] for part in PARTS if part in found}
        command = f"python benchmarks/fewshot.py --parts {' '.join(found)}"
        whole = {"command": command, "machine": about, "parts": found}
        if options.out:
            write_json(options.out, whole | {"tables": [asdict(each) for each in tables(found, about)]})
    for made in tables(found, about):
        table = Table(*made.columns, title=made.title)
        for row in made.rows:
            table.add_row(*row)
        Console().print(table)


if __name__ == "__main__":
    main(script_options(Options))
