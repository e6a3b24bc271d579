"""One harness: every ratio that the documentation states about speed and memory, measured in one run.

python benchmarks/bench.py --out results/bench/cpu.json              (make bench: at most half an hour)
python benchmarks/bench.py --scale gpu --out results/bench/gpu.json  (make bench-gpu)
python benchmarks/bench.py --scale large --sections objectives steps --rounds 1 --out results/bench/large.json
recollect-papers results docs/bench.md                                      (its tables on the page)

What is compared is measured in turns, so that whatever else the machine does meets all of it, and the best of the
rounds is taken, of which long works have fewer. On one thread of a CPU the clock counts the seconds of this process
alone. The figures of one machine are not those of another; the ratios nearly are.
"""

import gc
import io
import json
import math
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

from recollect.cli.parser import script_options
from recollect.core.files import write_json
from recollect.core.nearest import exact_neighbors
from recollect.core.progress import output
from recollect.core.types import Source, best_device
from recollect.data.batches.mixture import DataMix
from recollect.data.batches.stream import BatchStream
from recollect.data.sources import open_source
from recollect.data.transforms import ImageTransform
from recollect.models import build_model
from recollect.objectives import ContextObjective, ContrastiveObjective
from recollect.training.precision import Precision
from recollect.training.step import Inputs, StepOptions
from recollect_papers.study import StudyTable
from training import alone, peak_memory, random_inputs, step_of

Scale = Literal["tiny", "full", "large", "gpu"]
Row = dict[str, Any]
Section = Literal["steps", "objectives", "peers", "input", "towers"]


@dataclass(frozen=True)
class Sizes:
    """How large things are.

    Attributes:
        steps: (preset, batch, chunk) of whole steps; ``locked`` is the head and text tower alone.
        objectives: (batch, width) of objectives alone.
        dense: largest batch that is also computed as one matrix.
        peer_rows: rows of what the peers compute.
        pictures: to be read.
        tower: preset of a large tower.
        seconds: how long reading is measured.
        precision: of the towers.
    """

    steps: tuple[tuple[str, int, int | None], ...]
    objectives: tuple[tuple[int, int], ...]
    dense: int
    peer_rows: int
    pictures: int
    tower: str
    seconds: float
    precision: Precision = "float32"


SIZES: Mapping[Scale, Sizes] = {
    "tiny": Sizes((("tiny", 16, None), ("locked", 16, None)), ((64, 16),), 64, 64, 64, "tiny", 0.05),
    "full": Sizes(
        (("tiny", 512, None), ("tiny", 4096, 512), ("small", 512, 64), ("locked", 512, None), ("locked", 4096, None)),
        ((1024, 128), (2048, 128), (4096, 128), (8192, 128), (2048, 512)),
        8192,
        2048,
        2000,
        "vit-b-16",
        4.0,
    ),
    # LIxP's batch on one core, a quarter of an hour: take --sections objectives steps.
    "large": Sizes((("tiny", 32_768, 512),), ((32_768, 96),), 0, 2048, 2000, "vit-b-16", 4.0),
    "gpu": Sizes(
        (("tiny", 4096, None), ("small", 4096, None), ("vit-b-16", 1024, 256)),
        ((4096, 768), (16_384, 768), (32_768, 768), (65_536, 768)),
        16_384,
        16_384,
        5000,
        "vit-b-16",
        4.0,
        "bfloat16",
    ),
}


@dataclass(frozen=True)
class Options:
    """What to measure, and where to write it."""

    scale: Scale = "full"
    sections: tuple[Section, ...] = ("objectives", "steps", "peers", "input", "towers")
    rounds: int = 5
    out: Path | None = None


@dataclass
class Clock:
    """Times things in turns.

    Attributes:
        device: where they compute.
        rounds: how often each is done, after once to warm up.
    """

    device: torch.device
    rounds: int
    began: float = field(default_factory=time.perf_counter)

    @property
    def now(self) -> Callable[[], float]:
        """What counts the seconds."""
        alone = self.device.type == "cpu" and torch.get_num_threads() == 1
        return time.process_time if alone else time.perf_counter

    def once(self, work: Callable[[], object]) -> float:
        start = self.now()
        work()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return self.now() - start

    def best(self, works: Mapping[str, Callable[[], object]]) -> dict[str, float]:
        """Seconds of each at its best; a work that takes long is done less often."""
        times: dict[str, list[float]] = {name: [] for name in works}
        warm = {name: self.once(work) for name, work in works.items()}
        rounds = max(1, min(self.rounds, math.ceil(20 / max(1e-3, sum(warm.values())))))
        for _ in range(rounds):
            for name, work in works.items():
                times[name].append(self.once(work))
        return {name: min(found) for name, found in times.items()}


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    device = best_device()
    names = ("torch", "transformers", "numpy", "pyarrow", "pillow", "sentence-transformers", "faiss-cpu")
    versions = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    cpu = platform.processor() or platform.machine()
    if (about := Path("/proc/cpuinfo")).exists():
        models = [line.partition(":")[2].strip() for line in about.read_text().splitlines() if "model name" in line]
        cpu = models[0] if models else cpu
    return {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else device.type,
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "clock": Clock(device, 1).now.__name__,
        "load_at_start": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "versions": versions,
    }


# --- objectives alone -------------------------------------------------------------------------------------------------


def objectives(sizes: Sizes, clock: Clock) -> Iterator[Row]:
    """Block-wise against dense, and against the bare matrix products that the loss cannot do without."""
    for batch, width in sizes.objectives:
        for name, context in (("SigLIP", False), ("SigLIxP", True)):
            forms = {}
            for form in ("blockwise", "dense"):
                if form == "dense" and batch > sizes.dense:
                    continue
                made = ContextObjective(tau_context=0.01, form=form) if context else ContrastiveObjective(form=form)
                forms[form] = alone(made.to(clock.device), batch, width, clock.device)
            # 26 or 6 products of B² d multiplications and additions, half of each: what benchmarks/scale.py counts.
            floor = products(batch, width, 13 if context else 3, clock.device)
            times = clock.best({**forms, "floor": floor})
            row: Row = {"what": name, "batch": batch, "width": width, "seconds": times}
            row["memory_mib"] = {form: peak_memory(work, clock.device) for form, work in forms.items()}
            row["share_of_floor"] = times["floor"] / times["blockwise"]
            if "dense" in times:
                row["dense_over_blockwise"] = times["dense"] / times["blockwise"]
            yield row


def products(batch: int, width: int, count: int, device: torch.device) -> Callable[[], object]:
    """``count`` products of a batch's embeddings with each other, tile by tile, and nothing else."""
    one, two = (torch.randn(batch, width, device=device) for _ in range(2))
    tile = min(batch, 512 if device.type == "cpu" else 4096)
    into = torch.empty(tile, tile, device=device)

    def work() -> None:
        for _ in range(count):
            for row in range(0, batch, tile):
                for column in range(0, batch, tile):
                    torch.mm(one[row : row + tile], two[column : column + tile].T, out=into)

    return work


# --- whole steps ------------------------------------------------------------------------------------------------------


class Timed(nn.Module):
    """Towers that are trained for the clock alone, and never saved."""

    encoder = None

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def encode_images(self, pixels: Tensor) -> Tensor:
        raise NotImplementedError

    def encode_texts(self, tokens: dict[str, Tensor]) -> Tensor:
        raise NotImplementedError

    def save(self, folder: Path) -> Path:
        raise NotImplementedError

    def publish(self, folder: Path) -> Path:
        raise NotImplementedError

    def set_scale(self, scale: float, bias: float | None = None) -> None:
        raise NotImplementedError


class Locked(Timed):
    """A head on features and the tiny text tower: what a step with a locked image tower computes."""

    def __init__(self) -> None:
        super().__init__()
        self.tiny = build_model("tiny", texts=[f"{number} photos of a cat" for number in range(1000)])
        self.tiny.freeze("image")
        self.head = nn.Linear(512, self.tiny.width)

    def encode_images(self, pixels: Tensor) -> Tensor:
        return self.head(pixels)

    def encode_texts(self, tokens: dict[str, Tensor]) -> Tensor:
        return self.tiny.encode_texts(tokens)


def steps(sizes: Sizes, clock: Clock) -> Iterator[Row]:
    """A whole step with SigLIxP against one with SigLIP: time, memory, and the objective's share."""
    for preset, batch, chunk in sizes.steps:
        model: Any = Locked() if preset == "locked" else build_model(preset, texts=[f"{n} photos" for n in range(1000)])
        model = model.to(clock.device).train()
        if preset == "locked":
            texts = random_inputs(model.tiny, batch)
            inputs = Inputs(torch.randn(batch, 512), texts.tokens)
        else:
            inputs = random_inputs(model, batch)
        how = StepOptions(chunk, sizes.precision)
        losses = {"SigLIP": ContrastiveObjective(), "SigLIxP": ContextObjective(tau_context=0.01)}
        works = {name: step_of(model, loss.to(clock.device), inputs, how) for name, loss in losses.items()}
        times = clock.best(works)
        memory = {name: peak_memory(work, clock.device) for name, work in works.items()}
        yield {
            "what": preset,
            "batch": batch,
            "chunk": chunk,
            "seconds": times,
            "memory_mib": memory,
            "siglixp_over_siglip": times["SigLIxP"] / times["SigLIP"],
            "memory_ratio": memory["SigLIxP"] / memory["SigLIP"],
            "examples_per_second": batch / times["SigLIxP"],
        }
        del model, works
        gc.collect()


# --- peers ------------------------------------------------------------------------------------------------------------


def peers(sizes: Sizes, clock: Clock) -> Iterator[Row]:
    """What others do well, beside ours: exact search (faiss, scikit-learn), a cached loss."""
    yield from _search(sizes, clock)
    if find_spec("sentence_transformers"):
        yield _cached_loss(sizes, clock)


def _search(sizes: Sizes, clock: Clock) -> Iterator[Row]:
    rows, queries, width, k = 10 * sizes.peer_rows, max(1, sizes.peer_rows // 8), 256, 10
    draw = np.random.default_rng(0)
    base, asked = (draw.standard_normal((number, width), dtype=np.float32) for number in (rows, queries))
    works: dict[str, Callable[[], object]] = {"ours": lambda: exact_neighbors(asked, base, k, device=clock.device)}
    if find_spec("faiss"):
        import faiss

        faiss.omp_set_num_threads(torch.get_num_threads())
        index = faiss.IndexFlatIP(width)
        index.add(base)
        works["faiss"] = lambda: index.search(asked, k)
    from sklearn.neighbors import NearestNeighbors

    neighbors = NearestNeighbors(n_neighbors=k, algorithm="brute", metric="cosine").fit(base)
    works["scikit-learn"] = lambda: neighbors.kneighbors(asked)
    times = clock.best(works)
    for name in works:
        if name != "ours":
            yield {"what": f"exact search, {rows:,} rows, {queries:,} queries", "peer": name, "seconds": times,
                   "peer_over_ours": times[name] / times["ours"]}  # fmt: skip


class _Words(nn.Module):
    """A tower as sentence-transformers sees one: from features to ``sentence_embedding``."""

    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sentence_embedding": self.tower(features["input"])}


def _cached_loss(sizes: Sizes, clock: Clock) -> Row:
    """CLIP's loss in both directions on a batch that is embedded in chunks (gradient caching)."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss

    rows, width, chunk = sizes.peer_rows, 128, max(8, sizes.peer_rows // 16)
    torch.manual_seed(0)
    tower = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, width))
    tower = tower.to(clock.device)
    images, texts = (torch.randn(rows, 256, device=clock.device) for _ in range(2))
    objective = ContrastiveObjective("softmax", scale=20.0).to(clock.device)

    class Pair(Timed):
        def __init__(self) -> None:
            super().__init__()
            self.tower = tower

        def encode_images(self, pixels: Tensor) -> Tensor:
            return tower(pixels)

        def encode_texts(self, tokens: dict[str, Tensor]) -> Tensor:
            return tower(tokens["ids"])

    ours = step_of(Pair(), objective, Inputs(images, {"ids": texts}), StepOptions(chunk))
    words = SentenceTransformer(modules=[_Words(tower)], device=str(clock.device))
    loss = CachedMultipleNegativesRankingLoss(words, mini_batch_size=chunk)
    optimizer = torch.optim.AdamW(tower.parameters(), fused=True)

    def theirs() -> None:
        optimizer.zero_grad()
        loss([{"input": images}, {"input": texts}], None).backward()
        optimizer.step()

    times = clock.best({"ours": ours, "theirs": theirs})
    return {"what": f"cached softmax loss, batch {rows:,} in chunks of {chunk}", "peer": "sentence-transformers",
            "seconds": times, "peer_over_ours": times["theirs"] / times["ours"]}  # fmt: skip


# --- reading pictures -------------------------------------------------------------------------------------------------


def pictures(count: int, side: int) -> list[bytes]:
    """JPEGs of blurred noise."""
    from PIL import Image

    found = []
    for number in range(count):
        draw = np.random.default_rng(number)
        small = Image.fromarray(draw.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        buffer = io.BytesIO()
        small.resize((side, side), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
        found.append(buffer.getvalue())
    return found


def reading(sizes: Sizes, clock: Clock) -> Iterator[Row]:
    """Pictures a second of one core: Parquet, the same streamed, and the built-in world."""
    transform = ImageTransform(size=32, training=True, scale=(0.5, 1.0))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pictures.parquet"
        captions = [f"picture {number}" for number in range(sizes.pictures)]
        pq.write_table(pa.table({"image": pictures(sizes.pictures, 64), "caption": captions}), path, row_group_size=256)
        whole = open_source(str(path))
        ways: dict[str, Source] = {
            "Parquet of 64-px JPEGs": whole,
            "the same, streamed": open_source(f"{path}?stream=yes"),
            "glyphs": open_source("glyphs:captions"),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(3):
            for name, source in ways.items():
                rates[name].append(rate(source, transform, min(256, sizes.pictures), sizes.seconds, clock))
    for name, found in rates.items():
        base = statistics.median(rates["Parquet of 64-px JPEGs"])
        yield {
            "what": name,
            "images_per_second": statistics.median(found),
            "over_parquet": statistics.median(found) / base,
        }


def rate(source: Source, transform: ImageTransform, batch: int, seconds: float, clock: Clock) -> float:
    """Rows of batches a second, in one process."""
    stream = BatchStream(DataMix((source,)), batch, transform)
    stream.batch(0)
    made, step, start = 0, 1, clock.now()
    while clock.now() - start < seconds or step < 3:
        made += len(stream.batch(step))
        step += 1
    return made / (clock.now() - start)


# --- a large tower ----------------------------------------------------------------------------------------------------


def towers(sizes: Sizes, clock: Clock) -> Iterator[Row]:
    """A tower of ViT-B/16's size, with random weights: to embed, and its bytes."""
    model = build_model(sizes.tower, texts=["a photo"]).to(clock.device).eval()
    size = model.transform.size
    images = torch.randn(8, 3, size, size)
    embed: Callable[[], object] = lambda: model.embed_images(images)  # noqa: E731
    times = clock.best({"images": embed, "texts": lambda: model.embed_texts(["a photo of a cat"] * 8)})
    yield {
        "what": f"{sizes.tower}, {size} px",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "weights_mib": sum(value.numel() * value.element_size() for value in model.parameters()) / 2**20,
        "images_per_second": 8 / times["images"],
        "texts_per_second": 8 / times["texts"],
        "memory_mib": peak_memory(embed, clock.device),
    }


SECTIONS: Mapping[Section, Callable[[Sizes, Clock], Iterator[Row]]] = {
    "objectives": objectives,
    "steps": steps,
    "peers": peers,
    "input": reading,
    "towers": towers,
}


def tables(about: Mapping[str, Any], sections: Mapping[str, Sequence[Row]]) -> list[StudyTable]:
    """The ratios of a run, in the form that `recollect-papers results` puts on a page."""
    note = f"{about['cpu']}, {about['device']}, {about['threads']} thread(s), torch {about['versions']['torch']}"
    return [
        StudyTable(title, head, tuple(tuple(cells(row)) for row in sections[section]), (note,))
        for section, (title, head, cells) in _TABLES.items() if sections.get(section)
    ]  # fmt: skip


def _dense(row: Row) -> str:
    return f"{row['dense_over_blockwise']:.2f} ×" if "dense_over_blockwise" in row else "–"


_TABLES: Mapping[str, tuple[str, tuple[str, ...], Callable[[Row], Sequence[str]]]] = {
    "steps": (
        "A step with SigLIxP against one with SigLIP",
        ("towers", "batch", "chunk", "time", "memory", "examples/s"),
        lambda row: (
            row["what"], f"{row['batch']:,}", str(row["chunk"] or "none"), f"{row['siglixp_over_siglip']:.2f} ×",
            f"{row['memory_ratio']:.2f} × ({row['memory_mib']['SigLIxP']:,.0f} MiB)",
            f"{row['examples_per_second']:,.0f}",
        ),
    ),
    "objectives": (
        "An objective alone, forward and backward",
        ("objective", "batch", "width", "block-wise", "dense / block-wise", "share of the floor of its products"),
        lambda row: (
            row["what"], f"{row['batch']:,}", str(row["width"]), f"{1e3 * row['seconds']['blockwise']:,.0f} ms",
            _dense(row), f"{row['share_of_floor']:.2f}",
        ),
    ),
    "peers": (
        "Beside peers",
        ("what", "peer", "peer's time / ours"),
        lambda row: (row["what"], row["peer"], f"{row['peer_over_ours']:.2f} ×"),
    ),
    "input": (
        "Reading, one process",
        ("source", "images/s", "against Parquet"),
        lambda row: (row["what"], f"{row['images_per_second']:,.0f}", f"{row['over_parquet']:.2f} ×"),
    ),
    "towers": (
        "A large tower, random weights",
        ("towers", "images/s", "texts/s", "weights", "beyond weights"),
        lambda row: (
            row["what"], f"{row['images_per_second']:.2f}", f"{row['texts_per_second']:.1f}",
            f"{row['weights_mib']:,.0f} MiB", f"{row['memory_mib']:,.0f} MiB",
        ),
    ),
}  # fmt: skip


def measure(options: Options) -> dict[str, Any]:
    """Every section that was asked for; what is measured is written at once, so that a run that is cut short has it."""
    torch.manual_seed(0)
    about, sizes, clock = machine(), SIZES[options.scale], Clock(best_device(), options.rounds)
    if about["device"] == "cpu":
        sizes = replace(sizes, precision="float32")
    found: dict[str, list[Row]] = {}
    command = f"python benchmarks/bench.py --scale {options.scale} --sections {' '.join(options.sections)}"
    if options.rounds != Options.rounds:
        command += f" --rounds {options.rounds}"
    whole: dict[str, Any] = {
        "command": command, "scale": options.scale, "minutes": 0.0, "machine": about, "sections": found
    }  # fmt: skip
    for name in options.sections:
        found[name] = []
        for row in SECTIONS[name](sizes, clock):
            found[name].append(row)
            output().print(f"{time.perf_counter() - clock.began:6.0f} s  {name}: {json.dumps(row)}", highlight=False)
            whole["minutes"] = round((time.perf_counter() - clock.began) / 60, 1)
            whole["tables"] = [asdict(each) for each in tables(about, found)]
            if options.out:
                write_json(options.out, whole)
    return whole


def main(options: Options) -> None:
    """Measure and write."""
    measure(options)
    if options.out:
        print(f"written: {options.out}; `recollect-papers results docs/bench.md` puts its tables on the page")


if __name__ == "__main__":
    main(script_options(Options))
