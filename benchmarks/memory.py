"""A memory's speed: neighbours, the index, the fusion, and what reading costs an encoder; ratios in one run.

python benchmarks/memory.py --out memory.json
python benchmarks/memory.py --rows 1000000 --queries 2000 --parts search index
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.table import Table
from torch import nn

from recollect.core.files import write_json
from recollect.core.nearest import exact_neighbours
from recollect.core.types import best_device
from recollect.memory import Memory, Pairs
from recollect.memory.fusion.block import FusionBlock, FusionModule, FusionSettings
from recollect.memory.fusion.encoder import RetrievalEnhancedEncoder
from recollect.models import build_model

Part = Literal["search", "index", "precision", "fusion", "overhead"]


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        rows: of the memory.
        width: entries of a vector.
        queries: training pairs whose neighbours are found.
        k: neighbours of each.
        centres: that the rows lie around; few of them make many near-equal rows.
        spread: of the rows around their centres.
        recall: that the index is to reach.
        precision: of the vectors that are kept.
        parts: what to measure.
        preset: model whose embedding of images the memory slows down.
        peer: also measure faiss HNSW, whose graph of a million rows takes half an hour to build.
        work: folder in which the memory is kept for the next run; none by default.
        out: JSON file for the figures.
    """

    rows: int = 200_000
    width: int = 256
    queries: int = 50_000
    k: int = 10
    centres: int = 1_000
    spread: float = 0.8
    recall: float = 0.999
    precision: Literal["float32", "float16"] = "float16"
    parts: tuple[Part, ...] = ("search", "index", "fusion", "overhead")
    preset: str = "vit-s-16"
    peer: bool = True
    work: Path | None = None
    out: Path | None = None


def vectors(count: int, options: Options, width: int, seed: int) -> np.ndarray:
    """Unit rows around centres: neighbourhoods as real embeddings have them, unlike pure noise."""
    generator = np.random.default_rng(seed)
    centres = np.random.default_rng(0).normal(size=(options.centres, width)).astype(np.float32)
    rows = centres[generator.integers(0, len(centres), count)]
    rows += options.spread * generator.normal(size=(count, width)).astype(np.float32)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def fill(folder: Path, options: Options, width: int, model: str = "m") -> Memory:
    """A memory of random pairs."""
    memory = Memory.create(folder, width=width, model=model, precision=options.precision)
    block = 50_000
    for first in range(0, options.rows, block):
        count = min(block, options.rows - first)
        images, texts = vectors(count, options, width, first + 1), vectors(count, options, width, first + 2)
        ids = [f"row {number}" for number in range(first, first + count)]
        memory.add(Pairs(ids, images, texts, [""] * count, model))
    return memory


def kept(options: Options) -> Memory | None:
    """The memory of an earlier run with the same rows, or a new one that is kept."""
    if options.work is None:
        return None
    place = options.work / f"{options.rows}-{options.width}-{options.centres}-{options.spread:g}-{options.precision}"
    return Memory.open(place) if Memory.exists(place) else fill(place, options, options.width)


def median(function: Callable[[], object], rounds: int = 7) -> float:
    """Seconds: the median over rounds, after one that is not counted."""
    function()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def search(memory: Memory, options: Options) -> dict[str, float]:
    """All neighbours of all training pairs, in turns with the bare products and top-k on a matrix in memory."""
    asked = vectors(options.queries, options, options.width, 77)
    matrix = torch.from_numpy(memory.vectors([f"row {number}" for number in range(options.rows)], "image"))
    device = best_device()
    matrix, step, ours, bare = matrix.to(device), 2_500, 0.0, 0.0

    def products(some: np.ndarray) -> None:
        for start in range(0, len(some), 512):
            (torch.from_numpy(some[start : start + 512]).to(device) @ matrix.T).topk(options.k, dim=1)

    memory.search(asked[:512], options.k)
    products(asked[:512])
    for start in range(0, len(asked), step):
        some = asked[start : start + step]
        begun = time.perf_counter()
        memory.search(some, options.k)
        ours += time.perf_counter() - begun
        begun = time.perf_counter()
        products(some)
        bare += time.perf_counter() - begun
    return {"search (s)": ours, "bare products and top-k (s)": bare, "ratio": ours / bare}


def index(memory: Memory, options: Options) -> dict[str, float]:
    """One query at a time and a thousand at once: exact, through the index at its recall, and by faiss (HNSW)."""
    asked = vectors(1_000, options, options.width, 78)
    truth = memory.search(asked[:300], options.k, exact=True).ids  # fresh queries, of which the index knows nothing
    figures = {"exact (ms)": 1000 * one_by_one(lambda query: memory.search(query, options.k, exact=True), asked[:100])}
    figures["exact, 1,000 at once (ms a query)"] = 1000 * block(lambda some: memory.search(some, 10, exact=True), asked)
    begun = time.perf_counter()
    record = memory.backend.index("image", options.recall)
    figures["index built and measured (s)"] = time.perf_counter() - begun
    assert record is not None
    figures |= {"cells": record.cells, "cells read": record.probes, "recall on sampled rows": record.reached}
    if record.probes:
        memory.search(asked[:1], options.k)
        figures["index (ms)"] = 1000 * one_by_one(lambda query: memory.search(query, options.k), asked[:300])
        figures["index, 1,000 at once (ms a query)"] = 1000 * block(lambda some: memory.search(some, options.k), asked)
        figures["index recall on other queries"] = recall(memory.search(asked[:300], options.k).ids, truth)
    figures["on disk (MB)"] = (
        sum(file.stat().st_size for file in Path(memory.address).rglob("*") if file.is_file()) / 1e6
    )
    try:
        import faiss
    except ImportError:
        return figures
    if not options.peer:
        return figures
    faiss.omp_set_num_threads(torch.get_num_threads())
    peer = faiss.IndexHNSWFlat(options.width, 32, faiss.METRIC_INNER_PRODUCT)
    peer.hnsw.efConstruction, peer.hnsw.efSearch = 80, 128
    ids = [f"row {number}" for number in range(options.rows)]
    begun = time.perf_counter()
    peer.add(memory.vectors(ids, "image"))
    figures["faiss HNSW built (s)"] = time.perf_counter() - begun
    figures["faiss HNSW (ms)"] = 1000 * one_by_one(lambda query: peer.search(query, options.k), asked[:300])
    found = peer.search(asked[:300], options.k)[1]
    figures["faiss HNSW recall"] = recall(np.array([[ids[row] for row in rows] for rows in found]), truth)
    return figures


def precision(options: Options) -> dict[str, float]:
    """Exact search at half precision beside full precision, in turns: one query, and 64 at once."""
    matrix, asked = vectors(options.rows, options, options.width, 1), vectors(64, options, options.width, 79)
    half, figures = matrix.astype(np.float16), {}
    norms = np.linalg.norm(half.astype(np.float32), axis=1)
    for count in (1, 64):
        times: dict[str, list[float]] = {"full": [], "half": []}
        for _ in range(9):
            for name, rows, divisors in (("full", matrix, None), ("half", half, norms)):
                start = time.perf_counter()
                exact_neighbours(asked[:count], rows, options.k, norms=divisors)
                times[name].append(time.perf_counter() - start)
        full, halves = (np.array(each[1:]) for each in times.values())
        figures |= {f"full precision, {count} at once (ms)": 1000 * float(np.median(full))}
        figures |= {f"half precision, {count} at once (ms)": 1000 * float(np.median(halves))}
        figures |= {f"half over full, {count} at once": float(np.median(halves / full))}
    return figures


def block(ask: Callable[[np.ndarray], object], asked: np.ndarray) -> float:
    """Seconds a query, asked all at once: the best of three."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        ask(asked)
        times.append((time.perf_counter() - start) / len(asked))
    return min(times)


def one_by_one(ask: Callable[[np.ndarray], object], asked: np.ndarray) -> float:
    """Median seconds of a single query."""
    times = []
    for row in range(len(asked)):
        start = time.perf_counter()
        ask(asked[row : row + 1])
        times.append(time.perf_counter() - start)
    return statistics.median(times[10:])


def recall(found: np.ndarray, truth: np.ndarray) -> float:
    """Share of the true neighbours that were found."""
    return float(np.mean([len(set(one) & set(other)) / len(other) for one, other in zip(found, truth, strict=True)]))


def fusion(options: Options) -> dict[str, float]:
    """Our block, which computes token 0 alone, beside torch's whole one, at 512 entries and k neighbours."""
    device, width, batch = best_device(), 512, 512
    ours = FusionBlock(width).to(device)
    whole = nn.TransformerEncoderLayer(width, 8, width, 0.0, "gelu", batch_first=True, norm_first=True).to(device)
    tokens = torch.randn(batch, 1 + options.k, width, device=device)

    def train(block: nn.Module, whole_block: bool) -> None:
        result = block(tokens)
        (result[:, 0] if whole_block else result).sum().backward()

    def embed(block: nn.Module) -> None:
        with torch.no_grad():
            block(tokens)

    whole.train()  # in evaluation torch takes another, fused path; both are measured
    figures = {"token 0, training (ms)": 1000 * median(lambda: train(ours, False))}
    figures["whole block, training (ms)"] = 1000 * median(lambda: train(whole, True))
    ours.eval(), whole.eval()
    figures["token 0, embedding (ms)"] = 1000 * median(lambda: embed(ours))
    figures["whole block, embedding (ms)"] = 1000 * median(lambda: embed(whole))
    for phase in ("training", "embedding"):
        figures[f"times faster, {phase}"] = figures[f"whole block, {phase} (ms)"] / figures[f"token 0, {phase} (ms)"]
    return figures


def overhead(folder: Path, options: Options) -> dict[str, float]:
    """A batch of 32 images, embedded by a model alone and with the memory."""
    model = build_model(options.preset, texts=[f"a caption of number {number}" for number in range(200)])
    model = model.to(best_device()).eval()
    memory = fill(folder, options, model.width, model.fingerprint)
    enhanced = RetrievalEnhancedEncoder(model, memory, FusionModule(FusionSettings(model.width)), "image", options.k)
    pixels = torch.randn(32, 3, model.transform.size, model.transform.size)
    own = model.embed_images(pixels)
    alone, reading = median(lambda: model.embed_images(pixels), 5), median(lambda: enhanced.refine("image", own), 5)
    return {"model alone (ms)": 1000 * alone, "reading (ms)": 1000 * reading, "overhead": reading / alone}


def main(options: Options) -> None:
    """Measure, print and write."""
    console, figures = Console(), {}
    with tempfile.TemporaryDirectory() as folder:
        if {"search", "index"} & set(options.parts):
            memory = kept(options) or fill(Path(folder) / "memory", options, options.width)
        measures: dict[Part, Callable[[], dict[str, float]]] = {
            "search": lambda: search(memory, options),
            "index": lambda: index(memory, options),
            "precision": lambda: precision(options),
            "fusion": lambda: fusion(options),
            "overhead": lambda: overhead(Path(folder) / "other", options),
        }
        for part in options.parts:
            figures[part] = measures[part]()
            table = Table(part, f"{options.rows:,} rows, {torch.get_num_threads()} threads, {best_device()}")
            for name, value in figures[part].items():
                table.add_row(name, f"{value:.3g}")
            console.print(table)
    if options.out:
        settings = {"rows": options.rows, "width": options.width, "queries": options.queries, "k": options.k}
        write_json(options.out, {"settings": settings, "threads": torch.get_num_threads(), "figures": figures})


if __name__ == "__main__":
    main(tyro.cli(Options))
