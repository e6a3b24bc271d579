"""Speed and recall of look-ups in a large index: exact and accelerated by faiss, single queries and batches.

python benchmarks/index.py --rows 1000000 --threads 1
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from recollect.core.files import write_json
from recollect.core.progress import output
from recollect.core.validation import check_number
from recollect.index import Index, Rows
from recollect.index.stores.ivf import MIN_VECTORS
from recording import script_options, this_command, where


@dataclass(frozen=True)
class Options:
    """Command-line options.

    Attributes:
        rows: number of pictures in the index.
        width: width of the vectors.
        centers: number of cluster centers; with few centers, many vectors are nearly equal.
        spread: standard deviation of the vectors around their centers.
        recall: target recall of the accelerated look-up.
        k: number of neighbors of a query.
        threads: number of threads of every library.
        work: folder to keep the index in for the next run.
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
    """Create unit vectors around centers, with neighborhoods like those of real embeddings."""
    generator = np.random.default_rng(seed)
    centers = np.random.default_rng(0).normal(size=(options.centers, options.width)).astype(np.float32)
    rows = centers[generator.integers(0, len(centers), count)]
    rows += options.spread * generator.normal(size=(count, options.width)).astype(np.float32)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def filled(folder: Path, options: Options) -> Index:
    """Return an index of random vectors; an existing one is filled up."""
    exists = Index.exists(folder)
    index = Index.open(folder) if exists else Index.create(folder, width=options.width, model="m", precision="float16")
    block = 50_000
    for first in range(len(index), options.rows, block):
        count = min(block, options.rows - first)
        ids = [f"row {number}" for number in range(first, first + count)]
        index.insert(Rows(image_vectors=vectors(count, options, first + 1), ids=ids))
    return index


def one_by_one(search: Callable[[np.ndarray], object], queries: np.ndarray) -> float:
    """Return CPU milliseconds per query for single queries: the best of three medians."""
    search(queries[:1])
    medians = []
    for _ in range(3):
        times = []
        for row in range(len(queries)):
            start = time.process_time()
            search(queries[row : row + 1])
            times.append(time.process_time() - start)
        medians.append(float(np.median(times)))
    return 1000 * min(medians)


def at_once(search: Callable[[np.ndarray], object], queries: np.ndarray) -> float:
    """Return CPU milliseconds per query for one batch."""
    start = time.process_time()
    search(queries)
    return 1000 * (time.process_time() - start) / len(queries)


def measure(index: Index, options: Options) -> dict[str, float]:
    """Return the figures of one index."""
    queries, figures = vectors(1_000, options, 78), {}
    start, cpu_start = time.perf_counter(), time.process_time()
    (accelerator,) = index.accelerators() or index.accelerate(options.recall)
    figures["accelerated (s)"] = time.perf_counter() - start
    figures["accelerated, CPU (s)"] = time.process_time() - cpu_start
    figures |= {"cells": accelerator.cells, "cells read": accelerator.probes}
    figures["recall on the index's own rows"] = accelerator.recall
    exact, accelerated = partial(index.lookup, k=options.k, exact=True), partial(index.lookup, k=options.k)
    scores = np.concatenate([accelerated(queries[row : row + 1]).scores for row in range(300)])
    figures["recall on other queries"] = float((scores >= exact(queries[:300]).scores[:, -1:] - 1e-6).mean())
    figures["exact, one query (ms)"] = one_by_one(exact, queries[:30])
    figures["accelerated, one query (ms)"] = one_by_one(accelerated, queries[:300])
    figures["exact, 1,000 at once (ms per query)"] = at_once(exact, queries)
    files = [file for file in Path(index.address).rglob("*") if file.is_file()]
    figures["on disk (MB)"] = sum(file.stat().st_size for file in files) / 1e6
    return figures


def main(options: Options) -> None:
    """Measure, print and write."""
    check_number("--rows", options.rows, least=MIN_VECTORS)  # smaller indexes are not accelerated
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
