"""Speed and recall of look-ups in a large index: exact, and accelerated by faiss; one query at a time and many at once.

python benchmarks/index.py --rows 1000000 --threads 1
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from recollect.cli.parser import script_options
from recollect.core.files import write_json
from recollect.core.progress import output
from recollect.index import Index, Rows
from recording import this_command, where


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        rows: pictures of the index.
        width: entries of a vector.
        centers: that the vectors lie around; few centers make many nearly equal vectors.
        spread: of the vectors around their centers.
        recall: that the accelerated look-up is to reach.
        k: neighbors of a query.
        threads: of every library.
        work: folder in which the index is kept for the next run.
        out: JSON file for the figures.
    """

    rows: int = 1_000_000
    width: int = 256
    centers: int = 1_000
    spread: float = 0.8
    recall: float = 0.999
    k: int = 10
    threads: int = 1
    work: Path | None = None
    out: Path = Path("results/bench/index.json")


def vectors(count: int, options: Options, seed: int) -> np.ndarray:
    """Unit vectors around centers: neighborhoods as real embeddings have them, unlike pure noise."""
    generator = np.random.default_rng(seed)
    centers = np.random.default_rng(0).normal(size=(options.centers, options.width)).astype(np.float32)
    rows = centers[generator.integers(0, len(centers), count)]
    rows += options.spread * generator.normal(size=(count, options.width)).astype(np.float32)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def filled(folder: Path, options: Options) -> Index:
    """An index of random vectors; one that exists is continued."""
    exists = Index.exists(folder)
    index = Index.open(folder) if exists else Index.create(folder, width=options.width, model="m", precision="float16")
    block = 50_000
    for first in range(len(index), options.rows, block):
        count = min(block, options.rows - first)
        ids = [f"row {number}" for number in range(first, first + count)]
        index.insert(Rows(image_vectors=vectors(count, options, first + 1), ids=ids))
    return index


def one_by_one(ask: Callable[[np.ndarray], object], asked: np.ndarray) -> float:
    """Milliseconds of the process's CPU per query: the best of three medians."""
    ask(asked[:1])
    medians = []
    for _ in range(3):
        times = []
        for row in range(len(asked)):
            begun = time.process_time()
            ask(asked[row : row + 1])
            times.append(time.process_time() - begun)
        medians.append(float(np.median(times)))
    return 1000 * min(medians)


def at_once(ask: Callable[[np.ndarray], object], asked: np.ndarray) -> float:
    """Milliseconds of the process's CPU per query, all together."""
    begun = time.process_time()
    ask(asked)
    return 1000 * (time.process_time() - begun) / len(asked)


def measure(index: Index, options: Options) -> dict[str, float]:
    """The figures of one index."""
    asked, figures = vectors(1_000, options, 78), {}
    begun, worked = time.perf_counter(), time.process_time()
    (made,) = index.accelerators() or index.accelerate(options.recall)
    figures["accelerated (s)"] = time.perf_counter() - begun
    figures["accelerated, CPU (s)"] = time.process_time() - worked
    figures |= {"cells": made.cells, "cells read": made.probes, "recall on the index's own rows": made.recall}
    exact = index.lookup(asked[:300], options.k, exact=True)
    found = [index.lookup(asked[row : row + 1], options.k) for row in range(300)]
    least = exact.scores[:, -1:] - 1e-6
    scores = np.concatenate([each.scores for each in found])
    figures["recall on other queries"] = float((scores >= least).mean())
    figures["exact, one query (ms)"] = one_by_one(lambda some: index.lookup(some, options.k, exact=True), asked[:30])
    figures["accelerated, one query (ms)"] = one_by_one(lambda some: index.lookup(some, options.k), asked[:300])
    figures["exact, 1,000 at once (ms a query)"] = at_once(
        lambda some: index.lookup(some, options.k, exact=True), asked
    )
    files = [file for file in Path(index.address).rglob("*") if file.is_file()]
    figures["on disk (MB)"] = sum(file.stat().st_size for file in files) / 1e6
    return figures


def main(options: Options) -> None:
    """Measure, print and write."""
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder, threadpool_limits(options.threads):
        import faiss

        faiss.omp_set_num_threads(options.threads)
        figures = measure(filled((options.work or Path(folder)) / "index", options), options)
    for name, value in figures.items():
        output().print(f"{name}: {value:.5g}", highlight=False)
    settings = {name: value for name, value in asdict(options).items() if name not in ("out", "work")}
    write_json(options.out, {"command": this_command(), "settings": settings, **where("faiss-cpu"), "figures": figures})


if __name__ == "__main__":
    main(script_options(Options))
