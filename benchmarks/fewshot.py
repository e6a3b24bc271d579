"""Few-shot classification: closed forms compared with naive computation, and peak memory of large fits.

python benchmarks/fewshot.py --out results/bench/few-shot.json   (15 minutes on one core)
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
from recollect.core.files import read_json, write_json
from recollect.evaluation.few_shot_protocol import FewShotTask
from recollect_papers.peers.ape import channel_scores
from recollect_papers.study import StudyTable
from recording import script_options

Figures = dict[str, Any]

BANDWIDTHS, RIDGES = np.geomspace(0.5, 20, 20), np.geomspace(1e-3, 10, 50)


@dataclass(frozen=True)
class Options:
    """Command-line options.

    Attributes:
        queries, pool, width, classes: sizes of the few-shot task.
        rows: number of examples to choose a weight on.
        grid: points of the grid compared with the exact sweep.
        parts: parts to measure; memory and large take gigabytes and minutes.
        left_out_classes: number of classes of the leave-one-out search, 16 shots each.
        timed: number of that search's 20 bandwidths to time; the time is scaled to all 20.
        refits: number of refits to time, each with one left-out row, bandwidth and ridge.
        out: JSON file for the figures.
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
    """Return the minimum CPU time of ``repeats`` calls, which ignores other jobs, and the last result."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        value = call()
        times.append(time.process_time() - start)
    return min(times), value


def unit(matrix: np.ndarray) -> np.ndarray:
    return (matrix / np.linalg.norm(matrix, axis=1, keepdims=True)).astype(np.float32)


def task_of(options: Options) -> FewShotTask:
    """Create embeddings scattered around class centers, hard enough that no method is perfect."""
    random = np.random.default_rng(0)
    centers = random.standard_normal((options.classes, options.width))
    labels = np.arange(options.pool) % options.classes
    query_labels = random.integers(options.classes, size=options.queries)

    def around(classes: np.ndarray, noise: float) -> np.ndarray:
        return unit(centers[classes] + noise * random.standard_normal((len(classes), options.width)))

    texts = around(np.arange(options.classes), 2.0)
    return FewShotTask(around(labels, 4.0), labels, around(query_labels, 4.0), query_labels, texts)


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
    """Create a task whose pool is 16 examples of each class."""
    return task_of(replace(options, classes=classes, pool=16 * classes, queries=classes))


@contextmanager
def candidates(bandwidths: np.ndarray, ridges: np.ndarray) -> Iterator[None]:
    """Let ProKeR choose among these bandwidths and ridges while the block runs."""
    before = proker.BANDWIDTHS, proker.RIDGES
    proker.BANDWIDTHS, proker.RIDGES = tuple(bandwidths.tolist()), tuple(ridges.tolist())
    try:
        yield
    finally:
        proker.BANDWIDTHS, proker.RIDGES = before


def left_out(options: Options) -> Figures:
    """Compare ProKeR's leave-one-out search over 20 bandwidths x 50 ridges with a refit for each left-out row.

    Both hold out the same rows and use the same landmarks. The refits reuse everything that does not depend on the row
    or the ridge (features, their Gram matrix and sums over the examples, from which the row is subtracted). The
    remaining factorization, solution and row of scores are timed for a few refits and multiplied by rows x bandwidths x
    ridges. The closed form with a separate factorization for each ridge is timed too.
    """
    task = shots_of(options, options.left_out_classes)
    support, labels = task.support, task.support_labels
    plan = HoldOut.of(labels).first(proker.MAX_TUNING_ROWS)
    timed = BANDWIDTHS[np.linspace(0, len(BANDWIDTHS) - 1, options.timed).astype(int)]
    model = ProKeR(task.texts)
    model.classes_, model.support_, model.labels_, model.texts_ = np.unique(labels), support, labels, task.texts
    with candidates(timed, RIDGES):
        elapsed, _ = seconds(lambda: model._choose(plan))
    search = elapsed * len(BANDWIDTHS) / len(timed)
    refit, closed_form = _refits(options, RidgeTargets(support, labels, task.texts), plan, model)
    settings = len(BANDWIDTHS) * len(RIDGES)
    return {
        "examples": len(labels), "classes": options.left_out_classes, "held_out": len(plan.rows),
        "bandwidths_timed": len(timed), "search": search,
        "one_refit": refit, "refits": refit * settings * len(plan.rows),
        "speedup": refit * settings * len(plan.rows) / search,
        "one_factor_for_each_ridge": closed_form * settings, "over_factors": closed_form * settings / search,
    }  # fmt: skip


def _refits(options: Options, targets: RidgeTargets, plan: HoldOut, model: ProKeR) -> tuple[float, float]:
    """Return the seconds of one refit, and of the closed form for all held-out rows at one ridge, factorized anew."""
    every = np.arange(len(targets.labels))
    if len(every) > proker.CHOICE_ROWS:
        features = Landmarks(model._draw_landmarks(proker.CHOICE_LANDMARKS), 2.0)(targets.support)
    else:  # exact features of the kernel, one per example
        features = Landmarks(targets.support, 2.0)(targets.support)
    gram, inside = features.T @ features, targets.under(features)

    def factor(ridge: float, left_out: np.ndarray | None = None) -> Any:
        matrix = gram + ridge * np.eye(len(gram), dtype=gram.dtype)
        matrix = matrix if left_out is None else matrix - np.outer(left_out, left_out)
        return scipy.linalg.cho_factor(matrix, check_finite=False)

    def refit(row: int, ridge: float) -> tuple[np.ndarray, ...]:
        own, index = features[row], every[row : row + 1]
        known = targets.one_hot(index), targets.similarity(index)
        sums = np.concatenate([a - np.outer(own, y) for a, y in zip(inside, known, strict=True)], axis=1)
        return own @ scipy.linalg.cho_solve(factor(ridge, own), sums, check_finite=False)

    def closed(ridge: float) -> np.ndarray:
        solver, own = factor(ridge), features[plan.rows]
        leverage = (own * scipy.linalg.cho_solve(solver, own.T, check_finite=False).T).sum(axis=1)
        solved = [own @ scipy.linalg.cho_solve(solver, each, check_finite=False) for each in inside]
        return solved[0] / np.maximum(1 - leverage, 1e-6)[:, None] + solved[1]

    chosen = zip(plan.rows[: options.refits].tolist(), np.resize(RIDGES[::10], options.refits).tolist(), strict=True)
    times = [seconds(lambda row=row, ridge=ridge: refit(row, ridge))[0] for row, ridge in chosen]  # type: ignore[misc]
    return float(np.mean(times)), seconds(lambda: closed(0.1))[0]


def channels(options: Options) -> Figures:
    texts = unit(np.random.default_rng(2).standard_normal((1_000, options.width)))
    fast, _ = seconds(lambda: channel_scores(texts), 20)
    return {"seconds": fast}


def memory(method: str, classes: int, shots: int, width: int = 512) -> Figures:
    """Measure the peak memory of a process that fits a method and predicts once, and its memory before the fit.

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
proker.BANDWIDTHS, proker.RIDGES = (1.0, 3.0), (0.01, 0.1)  # same memory as the whole grid, in less time
before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
FEW_SHOT_METHODS["{method}"](rows[:{classes}], 100.0).fit(rows, np.arange(len(rows)) % {classes}).predict(rows[:64])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
unit = 2**20 if sys.platform == "linux" else 2**30
print(json.dumps({{"gibibytes": peak / unit, "before_fit": before / unit, "seconds": time.process_time() - start}}))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{method}: {done.stderr.strip() or f'exit status {done.returncode}'}")
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


def tables(parts: Mapping[str, Sequence[Figures]], machine_info: Mapping[str, Any]) -> list[StudyTable]:
    """Return the figures as tables for `recollect-papers results`."""
    note = f"{machine_info['cpu']}, {machine_info['threads']} thread(s), numpy {machine_info['versions']['numpy']}"
    ratios = [row for part, make in _RATIOS.items() for figures in parts.get(part, ()) for row in make(figures)]
    sizes = [
        (f"{row['classes']:,} × {row['shots']}", row["method"], f"{row['gibibytes']:.2f} GiB",
         f"{row['before_fit']:.2f} GiB", f"{row['seconds']:.0f} s")
        for part in ("memory", "large") for row in parts.get(part, ())
    ]  # fmt: skip
    both = [
        StudyTable(
            "Few-shot classification, shared work", ("what", "ours", "the plain way", "ratio"), tuple(ratios), (note,)
        ),
        StudyTable(
            "Peak memory of a fit",
            ("classes × shots", "method", "peak", "before the fit", "time"),
            tuple(sizes),
            (note,),
        ),
    ]
    return [table for table in both if table.rows]


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
    """Measure and print; write the file after each part, and keep its other parts."""
    machine_info, parts = machine(), {}
    if options.out and options.out.exists():
        parts = read_json(options.out)["parts"]
    for name in options.parts:
        parts[name] = list(PARTS[name](options))
        parts = {part: parts[part] for part in PARTS if part in parts}
        command = f"python benchmarks/fewshot.py --parts {' '.join(parts)}"
        whole = {"command": command, "machine": machine_info, "parts": parts}
        if options.out:
            write_json(options.out, whole | {"tables": [asdict(each) for each in tables(parts, machine_info)]})
    for each in tables(parts, machine_info):
        table = Table(*each.columns, title=each.title)
        for row in each.rows:
            table.add_row(*row)
        Console().print(table)


if __name__ == "__main__":
    main(script_options(Options))
