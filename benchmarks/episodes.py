"""Batched episodes compared with sequential ones by PEFT: same model, queries and ranking, in one run.

python benchmarks/episodes.py --out results/bench/episodes.json
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from recollect.core.files import write_json
from recollect.core.types import best_device
from recollect.efsa.batch import EpisodeBatch, EpisodeQuery
from recollect.efsa.episodes import Episodes
from recollect.efsa.options import EpisodeOptions
from recollect.models import DualEncoder, build_model
from recollect_papers.efsa.cost import CostMeter
from recollect_papers.efsa.sequential import SequentialEpisodes
from recording import script_options, this_command, where
from training import best_seconds

WORDS = (
    *("red", "green", "blue", "small", "large", "snowman", "umbrella", "queen", "left", "right"),
    *("of", "a", "above", "the", "river", "bridge", "tree", "car"),
)
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::convolution", "aten::mkldnn_convolution")
_PRODUCTS += ("aten::addmm_", "aten::baddbmm_", "aten::_scaled_dot_product", "aten::thnn_conv2d", "aten::cudnn_conv")


@dataclass(frozen=True)
class Options:
    """Command-line options.

    Attributes:
        presets: presets of the towers.
        queries: number of queries per measurement.
        k: candidates per query.
        at_once: queries adapted at once.
        pool: number of pictures that candidates are drawn from; in a small pool, queries share more candidates.
        words: words per caption.
        repeats: number of repetitions; the best counts.
        threads: number of torch threads on the CPU.
        device: device to compute on (default: the best available).
        out: JSON file for the figures.
    """

    presets: tuple[str, ...] = ("tiny", "small")
    queries: int = 8
    k: int = 16
    at_once: int = 8
    pool: int = 1_000
    words: int = 12
    repeats: int = 3
    threads: int = 1
    device: str | None = None
    out: Path | None = None


def episode_batches(encoder: DualEncoder, options: Options) -> list[EpisodeBatch]:
    """Return batches of random pictures and captions; each query finds ``k`` pictures of the pool."""
    generator = np.random.default_rng(0)
    size = encoder.transform.size
    batches = []
    for start in range(0, options.queries, options.at_once):
        number = min(options.at_once, options.queries - start)
        found = np.stack([generator.choice(options.pool, options.k, replace=False) for _ in range(number)])
        rows, inverse = np.unique(found, return_inverse=True)
        pixels = torch.from_numpy(generator.normal(size=(len(rows), 3, size, size)).astype(np.float32))
        captions = tuple(" ".join(generator.choice(WORDS, options.words)) + f" {row}" for row in rows)
        texts = tuple(" ".join(generator.choice(WORDS, 8)) for _ in range(number))
        inverse = torch.from_numpy(inverse.reshape(found.shape))
        queries = tuple(EpisodeQuery(((text, 1.0),)) for text in texts)
        batches.append(EpisodeBatch(queries, pixels, inverse, captions, inverse.clone()))
    return batches


def product_share(call: Callable[[], Any]) -> float:
    """Return the share of the operators' self time spent in matrix products, convolutions and attention."""
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])
    with profile(activities=activities) as profiler:
        call()
    key = "self_device_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    times = [(event.key, getattr(event, key)) for event in profiler.key_averages() if event.key.startswith("aten::")]
    return sum(spent for name, spent in times if name.startswith(_PRODUCTS)) / sum(spent for _, spent in times)


def measure(preset: str, options: Options) -> dict[str, Any]:
    """Return all figures of one preset."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        encoder = build_model(preset, texts=[" ".join(WORDS)] * 4).to(options.device or best_device()).eval()
    episode = EpisodeOptions(k=options.k, at_once=options.at_once)
    batches = episode_batches(encoder, options)
    fast, slow = Episodes(encoder, episode), SequentialEpisodes(encoder, episode)

    def all_of(episodes: Episodes | SequentialEpisodes) -> Callable[[], list[torch.Tensor]]:
        return lambda: [episodes.rerank(batch).scores for batch in batches]

    difference = max(
        float((one - other).abs().max()) for one, other in zip(all_of(fast)(), all_of(slow)(), strict=True)
    )
    figures: dict[str, Any] = {"preset": preset, "largest difference of a cosine": difference}
    both = {"batched": fast, "sequential": slow}
    times = best_seconds([all_of(episodes) for episodes in both.values()], encoder.device, options.repeats)
    for (name, episodes), seconds in zip(both.items(), times, strict=True):
        first, count = (batches[0], len(batches[0].queries)) if name == "batched" else (batches[0].one(0), 1)
        with CostMeter() as meter:
            episodes.rerank(first)
        figures[name] = {
            "seconds per query": seconds / options.queries,
            "products per query": (meter.forward + meter.backward) / count,
            "share of time in products": product_share(partial(episodes.rerank, first)),
            "MiB per query at once": meter.peak / count / 2**20,
        }
    figures["ratio"] = figures["sequential"]["seconds per query"] / figures["batched"]["seconds per query"]
    return figures


def main(options: Options) -> None:
    """Measure, print and write."""
    torch.set_num_threads(options.threads)
    table = Table("towers", "episodes", "ms per query", "M products", "in products", "MiB at once", "ratio")
    measured = []
    for preset in options.presets:
        figures = measure(preset, options)
        measured.append(figures)
        for name in ("sequential", "batched"):
            each = figures[name]
            table.add_row(
                preset,
                name,
                f"{1000 * each['seconds per query']:.1f}",
                f"{each['products per query'] / 1e6:,.0f}",
                f"{100 * each['share of time in products']:.0f} %",
                f"{each['MiB per query at once']:.1f}",
                f"{figures['ratio']:.1f}" if name == "batched" else "",
            )
        Console(width=120).print(f"{preset}: cosines differ by at most {figures['largest difference of a cosine']:.1e}")
    Console(width=120).print(table)
    if options.out is not None:
        settings = {key: str(value) if isinstance(value, Path) else value for key, value in asdict(options).items()}
        write_json(options.out, {"command": this_command(), "options": settings, **where("peft"), "figures": measured})


if __name__ == "__main__":
    main(script_options(Options))
