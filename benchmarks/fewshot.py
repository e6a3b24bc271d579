"""Few-shot evaluation: one product for all methods against a loop over the estimators, in one run.

python benchmarks/fewshot.py --out fewshot.json
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from recollect.core.files import write_json
from recollect.fewshot import ProKeR
from recollect.fewshot.ape import channel_scores
from recollect.fewshot.holdout import HoldOut
from recollect.fewshot.kernel import ExactRidge, Targets, ridge_path
from recollect.fewshot.protocol import (
    FEW_SHOT_METHODS,
    PAPER_METHODS,
    FewShotTask,
    Protocol,
    nested_supports,
    run_protocol,
)
from recollect.fewshot.tuning import best_weight


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        queries, pool, width, classes: of the few-shot task.
        shots, seeds: as in the paper.
        rows: examples that a weight is chosen on.
        grid: points of the grid that the exact sweep is held against.
        parts: what to measure; memory and large take gigabytes and minutes.
        left_out_classes: classes of the leave-one-out search, 16 shots each.
        out: a JSON file for the figures.
    """

    queries: int = 20_000
    pool: int = 8_000
    width: int = 512
    classes: int = 100
    shots: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    seeds: int = 5
    rows: int = 1_000
    grid: int = 200
    parts: tuple[str, ...] = ("left-out", "channels", "sweep", "engine")
    left_out_classes: int = 100
    out: Path | None = None


def seconds(call: Callable[[], Any], repeats: int = 1) -> tuple[float, Any]:
    """Best of ``repeats``, and what the call returned."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        value = call()
        times.append(time.perf_counter() - start)
    return min(times), value


def unit(matrix: np.ndarray) -> np.ndarray:
    return (matrix / np.linalg.norm(matrix, axis=1, keepdims=True)).astype(np.float32)


def task_of(options: Options) -> FewShotTask:
    """Embeddings scattered around class centres, hard enough that no method is perfect."""
    random = np.random.default_rng(0)
    centres = random.standard_normal((options.classes, options.width))
    labels = np.arange(options.pool) % options.classes
    asked = random.integers(options.classes, size=options.queries)

    def around(which: np.ndarray, noise: float) -> np.ndarray:
        return unit(centres[which] + noise * random.standard_normal((len(which), options.width)))

    texts = around(np.arange(options.classes), 2.0)
    return FewShotTask(around(labels, 4.0), labels, around(asked, 4.0), asked, texts)


def loop_over_estimators(task: FewShotTask, protocol: Protocol) -> dict[tuple[str, int, int], float]:
    """Each estimator by itself, as its user would."""
    found = {}
    for seed in protocol.seeds:
        order = nested_supports(task.support_labels, len(task.texts), protocol.shots[-1], seed)
        for shots in protocol.shots:
            rows = order[:shots].ravel()
            labels = task.support_labels[rows]
            for name in protocol.methods:
                estimator = FEW_SHOT_METHODS[name](task.texts, task.scale).fit(task.support[rows], labels)
                found[name, shots, seed] = 100 * float(np.mean(estimator.predict(task.queries) == task.query_labels))
    return found


def engine(options: Options) -> dict[str, Any]:
    task = task_of(options)
    protocol = Protocol(PAPER_METHODS, options.shots, range(options.seeds))
    fast, rows = seconds(lambda: run_protocol(task, protocol))
    slow, expected = seconds(lambda: loop_over_estimators(task, protocol))
    apart = max(abs(row["value"] - expected[row["method"], row["shots"], row["seed"]]) for row in rows)
    return {"engine": fast, "loop": slow, "speedup": slow / fast, "largest_difference_in_points": apart}


def sweep(options: Options) -> dict[str, Any]:
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
        "accuracy_of_sweep": exact[1], "accuracy_of_grid": coarse[1],
    }  # fmt: skip


def left_out(options: Options) -> dict[str, Any]:
    """ProKeR: leave-one-out at every bandwidth and ridge from one decomposition each, against a refit for each row.

    The refits are one solution, timed, times their number: rows x bandwidths x ridges.
    """
    count = options.left_out_classes
    task = task_of(replace(options, classes=count, pool=16 * count, queries=count))
    bandwidths, ridges = np.geomspace(0.5, 20, 20), np.geomspace(1e-3, 10, 50)
    rows = np.arange(16 * count)
    support, labels = task.support[rows], task.support_labels[rows]
    targets, plan = Targets(support, labels, task.texts), HoldOut.of(labels)

    def search() -> None:
        for bandwidth in bandwidths:
            for _ in ridge_path(targets, plan, bandwidth, ridges):
                pass

    fast, _ = seconds(search)
    one, _ = seconds(lambda: ExactRidge(support, 2.0, 0.1).inverse @ targets.one_hot(np.arange(len(labels))))
    model = ProKeR(task.texts, bandwidth=2.0, ridge=0.1, text_weight=1.0).fit(support, labels)
    added, _ = seconds(lambda: model.extend(task.queries[:1], task.query_labels[:1]), 5)
    whole = one * len(labels) * len(bandwidths) * len(ridges)
    return {
        "examples": len(labels),
        "search": fast,
        "one_refit": one,
        "speedup": whole / fast,
        "one_more_example": added,
    }


def channels(options: Options) -> dict[str, Any]:
    texts = unit(np.random.default_rng(2).standard_normal((1_000, options.width)))
    fast, _ = seconds(lambda: channel_scores(texts), 20)
    return {"seconds_for_1000_classes": fast}


def memory(classes: int, shots: int, width: int = 512) -> dict[str, Any]:
    """Most memory of a process that tunes and fits Tip-Adapter by cross-validation, beside what its data take."""
    script = f"""
import json, resource, sys, time
import numpy as np
from recollect.fewshot import CrossValidatedTipAdapter
random = np.random.default_rng(0)
rows = random.standard_normal(({classes * shots}, {width}), dtype=np.float32)
rows /= np.linalg.norm(rows, axis=1, keepdims=True)
before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
CrossValidatedTipAdapter(rows[:{classes}]).fit(rows, np.arange(len(rows)) % {classes}).predict(rows[:64])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
unit = 2**20 if sys.platform == "linux" else 2**30
print(json.dumps({{"gibibytes": peak / unit, "before_fit": before / unit, "seconds": time.perf_counter() - start}}))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


PARTS: dict[str, Callable[[Options], dict[str, Any]]] = {
    "left-out": left_out,
    "channels": channels,
    "sweep": sweep,
    "engine": engine,
    "memory": lambda options: memory(1_000, 32),
    "large": lambda options: memory(10_000, 16),
}
"""Leave-one-out of ProKeR; APE's channel score; the exact sweep; the engine; memory at 1,000 x 32 and 10,000 x 16."""


def main(options: Options) -> None:
    """Measure, print and write, each part as it is done."""
    found = {}
    for name in options.parts:
        found[name] = PARTS[name](options)
        if options.out:
            write_json(options.out, found)
    table = Table("what", "figure", "value")
    for what, figures in found.items():
        for name, value in figures.items():
            table.add_row(what, name, f"{value:.4g}")
    Console().print(table)


if __name__ == "__main__":
    main(tyro.cli(Options))
