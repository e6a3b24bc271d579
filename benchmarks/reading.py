"""What it costs to read an index (RECO): the fusion block, and a batch of images with and without the look-up.

python benchmarks/reading.py --out results/bench/reading.json
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from recollect.cli.parser import script_options
from recollect.core.files import write_json
from recollect.core.progress import output
from recollect.core.types import best_device
from recollect.models import build_model
from recollect.reco import pairs as reco
from recollect.reco.block import FusionBlock, FusionModule, FusionSettings
from recollect.reco.encoder import RetrievalEnhancedEncoder
from recording import this_command, where


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        rows: pictures of the index.
        k: pictures that each embedding reads.
        preset: model whose embedding of images is compared.
        out: JSON file for the figures.
    """

    rows: int = 200_000
    k: int = 10
    preset: str = "vit-s-16"
    out: Path | None = None


def vectors(count: int, width: int, seed: int) -> np.ndarray:
    """Random unit vectors."""
    rows = np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def median(function: Callable[[], object], rounds: int = 7) -> float:
    """Seconds: the median over rounds, after one that is not counted."""
    function()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


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


def overhead(options: Options) -> dict[str, float]:
    """A batch of 32 images, embedded by a model alone and with the index."""
    model = build_model(options.preset, texts=[f"a caption of number {number}" for number in range(200)])
    model = model.to(best_device()).eval()
    images, texts = (vectors(options.rows, model.width, seed) for seed in (1, 2))
    ids = [f"row {number}" for number in range(options.rows)]
    index = reco.Pairs(images, texts, ids, ids, model.fingerprint).index()
    enhanced = RetrievalEnhancedEncoder(model, index, FusionModule(FusionSettings(model.width)), "image", options.k)
    pixels = torch.randn(32, 3, model.transform.size, model.transform.size)
    own = model.embed_images(pixels)
    alone, reading = median(lambda: model.embed_images(pixels), 5), median(lambda: enhanced.refine("image", own), 5)
    return {"model alone (ms)": 1000 * alone, "reading (ms)": 1000 * reading, "overhead": reading / alone}


def main(options: Options) -> None:
    """Measure, print and write."""
    figures = {"fusion": fusion(options), "overhead": overhead(options)}
    for part in figures.values():
        for name, value in part.items():
            output().print(f"{name}: {value:.3g}", highlight=False)
    if options.out:
        settings = {name: value for name, value in asdict(options).items() if name != "out"}
        write_json(options.out, {"command": this_command(), "settings": settings, **where(), "figures": figures})


if __name__ == "__main__":
    main(script_options(Options))
