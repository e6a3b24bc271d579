"""Measure every speed and memory ratio stated in the documentation, in one run.

python benchmarks/bench.py --out results/bench/cpu.json              (make bench: at most half an hour)
python benchmarks/bench.py --scale gpu --out results/bench/gpu.json  (make bench-gpu)
python benchmarks/bench.py --scale large --sections objectives steps --rounds 1 --out results/bench/large.json
recollect-papers results docs/bench.md                                      (its tables on the page)

Compared functions take turns, so other load on the machine affects all of them, and the best round counts; slow
functions run fewer rounds. On a single CPU thread the clock counts this process's CPU time. Absolute figures differ
between machines; ratios hardly do.
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
from recollect.training.step import EncoderTowers, Inputs, StepOptions
from recollect_papers.study import StudyTable
from recording import script_options
from training import alone, peak_memory, random_inputs, step_of

Scale = Literal["tiny", "full", "large", "gpu"]
Row = dict[str, Any]
Section = Literal["steps", "objectives", "peers", "input", "towers"]


@dataclass(frozen=True)
class Sizes:
    """Sizes of the measured tasks.

    Attributes:
        steps: (preset, batch, chunk) of whole steps; ``locked`` trains only a head and the text tower.
        objectives: (batch, width) of objectives alone.
        dense: maximum batch that is also computed as one matrix.
        peer_rows: rows in comparisons with other libraries.
        pictures: number of pictures to read.
        tower: preset of the large tower.
        seconds: duration of each reading measurement.
        precision: precision of the towers.
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
    # LIxP's batch on one core takes 15 minutes with --sections objectives steps.
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
    """Command-line options."""

    scale: Scale = "full"
    sections: tuple[Section, ...] = ("objectives", "steps", "peers", "input", "towers")
    rounds: int = 5
    out: Path | None = None


@dataclass
class Clock:
    """Times functions in turns.

    Attributes:
        device: device that the functions use.
        rounds: maximum rounds, after one to warm up.
    """

    device: torch.device
    rounds: int
    began: float = field(default_factory=time.perf_counter)

    @property
    def now(self) -> Callable[[], float]:
        """CPU time on a single CPU thread, else wall time, in seconds."""
        single = self.device.type == "cpu" and torch.get_num_threads() == 1
        return time.process_time if single else time.perf_counter

    def once(self, work: Callable[[], object]) -> float:
        start = self.now()
        work()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return self.now() - start

    def best(self, works: Mapping[str, Callable[[], object]]) -> dict[str, float]:
        """Return the minimum seconds of each function; slow functions run fewer rounds."""
        times: dict[str, list[float]] = {name: [] for name in works}
        warm = {name: self.once(work) for name, work in works.items()}
        rounds = max(1, min(self.rounds, math.ceil(20 / max(1e-3, sum(warm.values())))))
        for _ in range(rounds):
            for name, work in works.items():
                times[name].append(self.once(work))
        return {name: min(seconds) for name, seconds in times.items()}


def machine() -> dict[str, Any]:
    """Describe the machine and the library versions."""
    device = best_device()
    names = ("torch", "transformers", "numpy", "pyarrow", "pillow", "sentence-transformers", "faiss-cpu")
    versions = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    cpu = platform.processor() or platform.machine()
    if (info := Path("/proc/cpuinfo")).exists():
        models = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
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
    """Compare blockwise with dense, and with the matrix products that any implementation must compute."""
    for batch, width in sizes.objectives:
        for name, context in (("SigLIP", False), ("SigLIxP", True)):
            forms = {}
            for form in ("blockwise", "dense"):
                if form == "dense" and batch > sizes.dense:
                    continue
                loss = ContextObjective(tau_context=0.01, form=form) if context else ContrastiveObjective(form=form)
                forms[form] = alone(loss.to(clock.device), batch, width, clock.device)
            # 26 or 6 B² d operations, as benchmarks/scale.py counts; a product has 2 B² d.
            floor = products(batch, width, 13 if context else 3, clock.device)
            times = clock.best({**forms, "floor": floor})
            row: Row = {"what": name, "batch": batch, "width": width, "seconds": times}
            row["memory_mib"] = {form: peak_memory(work, clock.device) for form, work in forms.items()}
            row["share_of_floor"] = times["floor"] / times["blockwise"]
            if "dense" in times:
                row["dense_over_blockwise"] = times["dense"] / times["blockwise"]
            yield row


def products(batch: int, width: int, count: int, device: torch.device) -> Callable[[], object]:
    """Return a function that computes ``count`` products of a batch's embeddings, tile by tile."""
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


class Locked(EncoderTowers):
    """A head on features and the tiny text tower, as in a step with a locked image tower."""

    def __init__(self) -> None:
        super().__init__(build_model("tiny", texts=[f"{number} photos of a cat" for number in range(1000)]))
        self.encoder.freeze("image")
        self.head = nn.Linear(512, self.encoder.width)

    def encode_images(self, pixels: Tensor) -> Tensor:
        return self.head(pixels)


def steps(sizes: Sizes, clock: Clock) -> Iterator[Row]:
    """Compare a whole step of SigLIxP with one of SigLIP: time and memory."""
    for preset, batch, chunk in sizes.steps:
        model: Any = Locked() if preset == "locked" else build_model(preset, texts=[f"{n} photos" for n in range(1000)])
        model = model.to(clock.device).train()
        if preset == "locked":
            texts = random_inputs(model.encoder, batch)
            inputs = Inputs(torch.randn(batch, 512), texts.tokens)
        else:
            inputs = random_inputs(model, batch)
        options = StepOptions(chunk, sizes.precision)
        losses = {"SigLIP": ContrastiveObjective(), "SigLIxP": ContextObjective(tau_context=0.01)}
        works = {name: step_of(model, loss.to(clock.device), inputs, options) for name, loss in losses.items()}
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
    """Compare with other libraries: exact search (faiss, scikit-learn), and a loss with gradient caching."""
    yield from _search(sizes, clock)
    if find_spec("sentence_transformers"):
        yield _cached_loss(sizes, clock)


def _search(sizes: Sizes, clock: Clock) -> Iterator[Row]:
    rows, queries, width, k = 10 * sizes.peer_rows, max(1, sizes.peer_rows // 8), 256, 10
    draw = np.random.default_rng(0)
    base, query = (draw.standard_normal((number, width), dtype=np.float32) for number in (rows, queries))
    works: dict[str, Callable[[], object]] = {"ours": lambda: exact_neighbors(query, base, k)}
    if find_spec("faiss"):
        import faiss

        faiss.omp_set_num_threads(torch.get_num_threads())
        index = faiss.IndexFlatIP(width)
        index.add(base)
        works["faiss"] = lambda: index.search(query, k)
    from sklearn.neighbors import NearestNeighbors

    neighbors = NearestNeighbors(n_neighbors=k, algorithm="brute", metric="cosine").fit(base)
    works["scikit-learn"] = lambda: neighbors.kneighbors(query)
    times = clock.best(works)
    for name in works:
        if name != "ours":
            yield {"what": f"exact search, {rows:,} rows, {queries:,} queries", "peer": name, "seconds": times,
                   "peer_over_ours": times[name] / times["ours"]}  # fmt: skip


class _SentenceTower(nn.Module):
    """Adapts a tower to sentence-transformers: maps features to ``sentence_embedding``."""

    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sentence_embedding": self.tower(features["input"])}


def _cached_loss(sizes: Sizes, clock: Clock) -> Row:
    """Compare CLIP's symmetric loss with gradient caching (a batch embedded in chunks)."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss

    rows, width, chunk = sizes.peer_rows, 128, max(8, sizes.peer_rows // 16)
    torch.manual_seed(0)
    tower = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, width))
    tower = tower.to(clock.device)
    images, texts = (torch.randn(rows, 256, device=clock.device) for _ in range(2))
    objective = ContrastiveObjective("softmax", scale=20.0).to(clock.device)

    class Pair(EncoderTowers):
        device = clock.device

        def __init__(self) -> None:
            nn.Module.__init__(self)
            self.encoder = tower

        def encode_images(self, pixels: Tensor) -> Tensor:
            return tower(pixels)

        def encode_texts(self, tokens: dict[str, Tensor]) -> Tensor:
            return tower(tokens["ids"])

    ours = step_of(Pair(), objective, Inputs(images, {"ids": texts}), StepOptions(chunk))
    model = SentenceTransformer(modules=[_SentenceTower(tower)], device=str(clock.device))
    loss = CachedMultipleNegativesRankingLoss(model, mini_batch_size=chunk)
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
    """Create JPEGs of blurred noise."""
    from PIL import Image

    files = []
    for number in range(count):
        draw = np.random.default_rng(number)
        small = Image.fromarray(draw.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        buffer = io.BytesIO()
        small.resize((side, side), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
        files.append(buffer.getvalue())
    return files


def reading(sizes: Sizes, clock: Clock) -> Iterator[Row]:
    """Measure pictures read per second by one core: Parquet, Parquet streamed, and generated glyphs."""
    transform = ImageTransform(size=32, training=True, scale=(0.5, 1.0))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pictures.parquet"
        captions = [f"picture {number}" for number in range(sizes.pictures)]
        pq.write_table(pa.table({"image": pictures(sizes.pictures, 64), "caption": captions}), path, row_group_size=256)
        whole = open_source(str(path))
        sources: dict[str, Source] = {
            "Parquet of 64-px JPEGs": whole,
            "the same, streamed": open_source(f"{path}?stream=yes"),
            "glyphs": open_source("glyphs:captions"),
        }
        rates: dict[str, list[float]] = {name: [] for name in sources}
        for _ in range(3):
            for name, source in sources.items():
                rates[name].append(rate(source, transform, min(256, sizes.pictures), sizes.seconds, clock))
    for name, values in rates.items():
        base = statistics.median(rates["Parquet of 64-px JPEGs"])
        yield {
            "what": name,
            "images_per_second": statistics.median(values),
            "over_parquet": statistics.median(values) / base,
        }


def rate(source: Source, transform: ImageTransform, batch: int, seconds: float, clock: Clock) -> float:
    """Return the rows per second of one process."""
    stream = BatchStream(DataMix((source,)), batch, transform)
    stream.batch(0)
    rows, step, start = 0, 1, clock.now()
    while clock.now() - start < seconds or step < 3:
        rows += len(stream.batch(step))
        step += 1
    return rows / (clock.now() - start)


# --- a large tower ----------------------------------------------------------------------------------------------------


def towers(sizes: Sizes, clock: Clock) -> Iterator[Row]:
    """Measure speed and memory of embedding with large towers of random weights."""
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
    """Return the ratios of a run as tables for `recollect-papers results`."""
    note = f"{about['cpu']}, {about['device']}, {about['threads']} thread(s), torch {about['versions']['torch']}"
    return [
        StudyTable(title, head, tuple(tuple(cells(row)) for row in sections[section]), (note,))
        for section, (title, head, cells) in _TABLES.items() if sections.get(section)
    ]  # fmt: skip


def _dense(row: Row) -> str:
    return f"{row['dense_over_blockwise']:.2f} ×" if "dense_over_blockwise" in row else "–"


_TABLES: Mapping[str, tuple[str, tuple[str, ...], Callable[[Row], Sequence[str]]]] = {
    "steps": (
        "A step with SigLIxP relative to SigLIP",
        ("towers", "batch", "chunk", "time", "memory", "examples/s"),
        lambda row: (
            row["what"], f"{row['batch']:,}", str(row["chunk"] or "none"), f"{row['siglixp_over_siglip']:.2f} ×",
            f"{row['memory_ratio']:.2f} × ({row['memory_mib']['SigLIxP']:,.0f} MiB)",
            f"{row['examples_per_second']:,.0f}",
        ),
    ),
    "objectives": (
        "An objective alone, forward and backward",
        ("objective", "batch", "width", "block-wise", "dense / block-wise", "floor / block-wise"),
        lambda row: (
            row["what"], f"{row['batch']:,}", str(row["width"]), f"{1e3 * row['seconds']['blockwise']:,.0f} ms",
            _dense(row), f"{row['share_of_floor']:.2f}",
        ),
    ),
    "peers": (
        "Other libraries",
        ("task", "library", "its time / recollect's"),
        lambda row: (row["what"], row["peer"], f"{row['peer_over_ours']:.2f} ×"),
    ),
    "input": (
        "Reading, one process",
        ("source", "images/s", "relative to Parquet"),
        lambda row: (row["what"], f"{row['images_per_second']:,.0f}", f"{row['over_parquet']:.2f} ×"),
    ),
    "towers": (
        "A large tower, random weights",
        ("towers", "images/s", "texts/s", "weights", "other memory"),
        lambda row: (
            row["what"], f"{row['images_per_second']:.2f}", f"{row['texts_per_second']:.1f}",
            f"{row['weights_mib']:,.0f} MiB", f"{row['memory_mib']:,.0f} MiB",
        ),
    ),
}  # fmt: skip


def measure(options: Options) -> dict[str, Any]:
    """Measure the requested sections, and write the file after each row in case the run is interrupted."""
    torch.manual_seed(0)
    about, sizes, clock = machine(), SIZES[options.scale], Clock(best_device(), options.rounds)
    if about["device"] == "cpu":
        sizes = replace(sizes, precision="float32")
    sections: dict[str, list[Row]] = {}
    command = f"python benchmarks/bench.py --scale {options.scale} --sections {' '.join(options.sections)}"
    if options.rounds != Options.rounds:
        command += f" --rounds {options.rounds}"
    whole: dict[str, Any] = {
        "command": command, "scale": options.scale, "minutes": 0.0, "machine": about, "sections": sections
    }  # fmt: skip
    for name in options.sections:
        sections[name] = []
        for row in SECTIONS[name](sizes, clock):
            sections[name].append(row)
            output().print(f"{time.perf_counter() - clock.began:6.0f} s  {name}: {json.dumps(row)}", highlight=False)
            whole["minutes"] = round((time.perf_counter() - clock.began) / 60, 1)
            whole["tables"] = [asdict(each) for each in tables(about, sections)]
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
