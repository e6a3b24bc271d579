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
from recollect.core.types import best_device
from recollect.memory import Memory, Pairs, lance
from recollect.memory.fusion.block import FusionBlock, FusionModule, FusionSettings
from recollect.memory.fusion.encoder import RetrievalEnhancedEncoder
from recollect.models import build_model

Part = Literal["search", "index", "fusion", "overhead"]


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        rows: of the memory.
        width: entries of a vector.
        queries: training pairs whose neighbours are found.
        k: neighbours of each.
        parts: what to measure.
        preset: model whose embedding of images the memory slows down.
        out: JSON file for the figures.
    """

    rows: int = 200_000
    width: int = 256
    queries: int = 50_000
    k: int = 10
    parts: tuple[Part, ...] = ("search", "index", "fusion", "overhead")
    preset: str = "vit-s-16"
    out: Path | None = None


def vectors(count: int, width: int, seed: int, centres: np.ndarray | None = None) -> np.ndarray:
    """Unit rows around a thousand centres: neighbourhoods as real embeddings have them, unlike pure noise."""
    generator = np.random.default_rng(seed)
    if centres is None:
        centres = np.random.default_rng(0).normal(size=(1000, width)).astype(np.float32)
    rows = centres[generator.integers(0, len(centres), count)]
    rows = rows + 0.8 * generator.normal(size=(count, width)).astype(np.float32)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def fill(folder: Path, options: Options, width: int, model: str = "m") -> Memory:
    """A memory of random pairs."""
    memory = Memory.create(folder, width=width, model=model)
    block = 50_000
    for first in range(0, options.rows, block):
        count = min(block, options.rows - first)
        images, texts = vectors(count, width, first + 1), vectors(count, width, first + 2)
        ids = [f"row {number}" for number in range(first, first + count)]
        memory.add(Pairs(ids, images, texts, [""] * count, model))
    return memory


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
    asked = vectors(options.queries, options.width, 77)
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
    """One query at a time: exact, by Lance's index re-scored exactly, and by faiss where it is installed."""
    asked = vectors(300, options.width, 78)
    truth = memory.search(asked, options.k).ids
    figures = {"exact (ms)": 1000 * one_by_one(lambda query: memory.search(query, options.k), asked)}
    begun = time.perf_counter()
    memory.backend.index("image")
    figures["index built (s)"] = time.perf_counter() - begun
    limit, lance.EXACT_ROWS = lance.EXACT_ROWS, 0
    try:
        figures["index (ms)"] = 1000 * one_by_one(lambda query: memory.search(query, options.k), asked)
        figures["index recall"] = recall(memory.search(asked, options.k).ids, truth)
    finally:
        lance.EXACT_ROWS = limit
    try:
        import faiss
    except ImportError:
        return figures
    faiss.omp_set_num_threads(torch.get_num_threads())
    peer = faiss.IndexHNSWFlat(options.width, 32, faiss.METRIC_INNER_PRODUCT)
    peer.hnsw.efConstruction, peer.hnsw.efSearch = 80, 128
    ids = [f"row {number}" for number in range(options.rows)]
    begun = time.perf_counter()
    peer.add(memory.vectors(ids, "image"))
    figures["faiss HNSW built (s)"] = time.perf_counter() - begun
    figures["faiss HNSW (ms)"] = 1000 * one_by_one(lambda query: peer.search(query, options.k), asked)
    found = peer.search(asked, options.k)[1]
    figures["faiss HNSW recall"] = recall(np.array([[ids[row] for row in rows] for rows in found]), truth)
    return figures


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
            memory = fill(Path(folder) / "memory", options, options.width)
        measures: dict[Part, Callable[[], dict[str, float]]] = {
            "search": lambda: search(memory, options),
            "index": lambda: index(memory, options),
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
