"""Time and memory of streaming ranks and streaming search with many queries over a large pool.

python benchmarks/retrieval.py --out results/bench/retrieval.json
"""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from recollect.core.files import write_json
from recollect.core.nearest import exact_neighbors
from recollect.efsa.memory import TensorMemory
from recollect.evaluation.ranks import streaming_ranks
from recording import script_options, this_command, where


@dataclass(frozen=True)
class Options:
    """Command-line options.

    Attributes:
        queries, pool, width: sizes of the task.
        whole: number of queries whose full score matrix is computed too, to check the ranks.
        threads: number of torch threads.
        out: JSON file for the figures.
    """

    queries: int = 10_000
    pool: int = 100_000
    width: int = 512
    whole: int = 500
    threads: int = 1
    out: Path | None = None


def unit(generator: np.random.Generator, rows: int, width: int) -> np.ndarray:
    vectors = generator.standard_normal((rows, width), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def timed(call: Any) -> tuple[Any, dict[str, float]]:
    """Return the result of a call and its CPU time."""
    start = time.process_time()
    value = call()
    return value, {"seconds": time.process_time() - start}


def main(options: Options) -> None:
    """Measure, print and write."""
    torch.set_num_threads(options.threads)
    generator = np.random.default_rng(0)
    images = unit(generator, options.pool, options.width)
    true = generator.integers(options.pool, size=options.queries)
    texts = images[true] + 0.9 * unit(generator, options.queries, options.width)
    texts /= np.linalg.norm(texts, axis=1, keepdims=True)
    matches = [(int(row),) for row in true]
    figures: dict[str, dict[str, float]] = {}
    with TensorMemory() as memory:
        ranks, figures["ranks both ways"] = timed(lambda: streaming_ranks(images, texts, matches))
    figures["ranks both ways"]["MiB held"] = memory.peak / 2**20
    with TensorMemory() as memory:
        found, figures["search, k = 16"] = timed(lambda: exact_neighbors(texts, images, 16))
    figures["search, k = 16"]["MiB held"] = memory.peak / 2**20
    scores = texts[: options.whole] @ images.T
    own = scores[np.arange(options.whole), true[: options.whole]]
    expected = (scores >= own[:, None] - 1e-6).sum(axis=1)
    wrong = int((ranks.texts[: options.whole] != expected).sum())
    first = int((found.rows[: options.whole, 0] != scores.argmax(axis=1)).sum())
    matrix = 4 * options.queries * options.pool / 2**20
    console = Console(width=120)
    table = Table("", "CPU seconds", "queries per second", "MiB held by tensors")
    for name, each in figures.items():
        rate = options.queries / each["seconds"]
        table.add_row(name, f"{each['seconds']:.1f}", f"{rate:,.0f}", f"{each['MiB held']:.1f}")
    console.print(table)
    console.print(
        f"{options.queries:,} queries, {options.pool:,} images, width {options.width}: the full matrix would take "
        f"{matrix:,.0f} MiB. Of {options.whole} queries checked against it, {wrong} have a different rank and {first} "
        "a different first image."
    )
    if options.out is not None:
        settings = {key: str(value) if isinstance(value, Path) else value for key, value in asdict(options).items()}
        more = {"MiB of the matrix": matrix, "ranks that differ": wrong, "firsts that differ": first}
        write_json(options.out, {"command": this_command(), "options": settings, **where(), "figures": figures, **more})


if __name__ == "__main__":
    main(script_options(Options))
