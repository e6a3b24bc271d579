"""A memory's speed: neighbours, the index, the fusion, and what reading costs an encoder; ratios in one run.

python benchmarks/memory.py --out memory.json
python benchmarks/memory.py --rows 1000000 --queries 2000 --parts search index
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.table import Table
from torch import nn

from recollect.core.files import read_json, write_json
from recollect.core.nearest import exact_neighbours
from recollect.core.types import best_device
from recollect.memory import Memory, Pairs
from recollect.memory.backends.cells import IndexRecord
from recollect.models import build_model
from recollect.reco import pairs as reco
from recollect.reco.block import FusionBlock, FusionModule, FusionSettings
from recollect.reco.encoder import RetrievalEnhancedEncoder
from recording import this_command, where

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
    """A memory of random pairs; one that is there is filled up."""
    there = Memory.exists(folder)
    memory = (
        Memory.open(folder) if there else Memory.create(folder, width=width, model=model, precision=options.precision)
    )
    block = 50_000
    for first in range(len(memory), options.rows, block):
        count = min(block, options.rows - first)
        images, texts = vectors(count, options, width, first + 1), vectors(count, options, width, first + 2)
        ids = [f"row {number}" for number in range(first, first + count)]
        even = [{"even": number % 2 == 0} for number in range(first, first + count)]
        memory.add(Pairs(ids, images, texts, [""] * count, model, metadata=even))
    return memory


def kept(options: Options) -> Memory | None:
    """The memory of an earlier run with the same rows, which is filled up if that was stopped, or a new one."""
    if options.work is None:
        return None
    options.work.mkdir(parents=True, exist_ok=True)
    place = options.work / f"{options.rows}-{options.width}-{options.centres}-{options.spread:g}-{options.precision}"
    return fill(place, options, options.width)


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
    record, figures = built(memory, options)
    exact = each_way("exact", lambda some: memory.search(some, options.k, exact=True), asked[:300], 30, rounds=2)
    figures |= exact
    truth = memory.search(asked[:300], options.k, exact=True).ids  # fresh queries, of which the index knows nothing
    figures |= {"cells": record.cells, "cells read": record.probes, "recall on sampled rows": record.reached}
    if record.probes:
        memory.search(asked[:1], options.k), memory.search(asked[:64], options.k)
        figures |= each_way("index", lambda some: memory.search(some, options.k), asked, singles=300)
        one = [memory.search(asked[row : row + 1], options.k).ids[0] for row in range(len(truth))]
        figures["index recall on other queries, one at a time"] = recall(np.array(one), truth)
        figures["index recall on other queries, all at once"] = recall(memory.search(asked[:300], options.k).ids, truth)
        even = memory.search(asked[:50], options.k, where="even = true").ids
        figures["recall with a filter"] = recall(even, filtered(memory, asked[:50], options))
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
    began, worked = time.perf_counter(), time.process_time()
    peer.add(memory.vectors(ids, "image"))
    figures["faiss HNSW built (s)"] = time.perf_counter() - began
    figures["faiss HNSW built, processor (s)"] = time.process_time() - worked
    figures |= each_way("faiss HNSW", lambda some: peer.search(some, options.k), asked, singles=300)
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


def built(memory: Memory, options: Options) -> tuple[IndexRecord, dict[str, float]]:
    """The index of images, and how long it took; that of an earlier run where the memory is kept."""
    memory.prepare()
    note, found = Path(f"{memory.address}.json"), memory.backend.indexes()
    if found and note.exists() and found[0].target == options.recall:
        return found[0], read_json(note)
    began, worked = time.perf_counter(), time.process_time()
    record = memory.backend.index("image", options.recall)
    figures = {
        "index built and measured (s)": time.perf_counter() - began,
        "index built and measured, processor (s)": time.process_time() - worked,
    }
    assert record is not None
    write_json(note, figures)
    return record, figures


def each_way(
    name: str, ask: Callable[[np.ndarray], object], asked: np.ndarray, singles: int, rounds: int = 3
) -> dict[str, float]:
    """Milliseconds a query, asked one by one (median) and all at once, by the clock and of the processor.

    On a machine that others use too, the processor's time is the fairer one; of the rounds the best counts.
    """
    alone, together = [], []
    for _ in range(rounds):
        alone.append(np.median([timed(ask, asked[row : row + 1]) for row in range(singles)], axis=0))
        together.append(np.array(timed(ask, asked)) / len(asked))
    figures = {}
    for what, times in (("one", alone), (f"{len(asked):,} at once", together)):
        wall, processor = 1000 * np.min(times, axis=0)
        figures |= {f"{name}, {what} (ms a query)": float(wall)}
        figures |= {f"{name}, {what}, processor (ms a query)": float(processor)}
    return figures


def timed(ask: Callable[[np.ndarray], object], asked: np.ndarray) -> tuple[float, float]:
    """Seconds by the clock and of the processor."""
    began, worked = time.perf_counter(), time.process_time()
    ask(asked)
    return time.perf_counter() - began, time.process_time() - worked


def filtered(memory: Memory, asked: np.ndarray, options: Options) -> np.ndarray:
    """What a filter leaves of the nearest, by products with all rows that satisfy it."""
    ids = memory.ids_where("even = true")
    rows = memory.vectors(ids, "image")
    found = [np.argpartition(rows @ query, -options.k)[-options.k :] for query in asked]
    return np.array([[ids[row] for row in each] for each in found])


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
    images, texts = (vectors(options.rows, options, model.width, seed) for seed in (1, 2))
    ids = [f"row {number}" for number in range(options.rows)]
    index = reco.Pairs(images, texts, ids, ids, model.fingerprint).index()
    enhanced = RetrievalEnhancedEncoder(model, index, FusionModule(FusionSettings(model.width)), "image", options.k)
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
        command = this_command()
        settings = {name: value for name, value in asdict(options).items() if name not in ("out", "work")}
        write_json(options.out, {"command": command, "settings": settings, **where("lancedb"), "figures": figures})


if __name__ == "__main__":
    main(tyro.cli(Options))
