"""Cost of large runs and large indexes: FLOP, bytes and network traffic of a step or a query, and their limits.

Operations and bytes are counted while a few images and texts pass through the real model and objective, and scaled by
the number of rows or rows x batch. The machine's figures are arguments. The time to open a Parquet file is measured
here; the speed of index searches and of preparing pictures is read from the files of earlier benchmarks.

python benchmarks/scale.py --preset vit-b-16 --pairs 15e9 --batch 32768 --devices 64 --out results/bench/scale.json
recollect-papers results docs/scale.md
"""

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from recollect.core.files import read_json, write_json
from recollect.core.progress import output
from recollect.data.sources.stream import MAX_OPEN_SHARDS, open_stream
from recollect.models import DualEncoder, build_model
from recollect.objectives import ContextObjective, ContrastiveObjective
from recollect.objectives.shards import Shard
from recollect.training.precision import autocast
from recollect_papers.study import StudyTable
from recording import script_options

RESULTS = Path(__file__).parents[1] / "results" / "bench"
MEMORY, READING = RESULTS / "memory-1m.json", RESULTS / "data.json"


@dataclass(frozen=True)
class Options:
    """The run, the machines and the index."""

    preset: str = "vit-b-16"
    pairs: float = 15e9
    batch: int = 32_768
    devices: int = 64
    base: str = "sigmoid"
    chunked: bool = False
    """Embed in chunks, which adds a second forward pass of the towers."""
    flops: float = 0.4 * 989e12
    """FLOP/s of a device: 40 % of an H100's dense bf16 peak according to NVIDIA."""
    loss_flops: float = 0.4 * 67e12
    """FLOP/s of a device for the objective, which computes in float32."""
    network: float = 50e9
    """Bytes/s between devices: 400 Gbit/s each."""
    device_memory: float = 80e9
    """Memory of a device in bytes."""
    pictures: float | None = None
    """Pictures per second prepared by one core (default: measured by benchmarks/data.py at 500 x 375 pixels)."""
    picture_bytes: float = 50e3
    """Bytes of such a picture as a JPEG, with its text."""
    shard: int = 10_000
    """Pairs per Parquet file."""
    request: float = 0.05
    """Seconds until a remote store answers a request."""
    rows: float = 1e9
    """Rows of the index."""
    row_width: int = 512
    """Width of a row's two vectors."""
    out: Path | None = None


class Part(Shard):
    """One of many processes, to count its work without running the others; their rows are copies of its own."""

    def __init__(self, size: int) -> None:
        self.size = size

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.repeat(self.size, *[1] * (rows.ndim - 1))


def counted(work: Callable[[], object]) -> int:
    """Count the floating-point operations of a call."""
    # FlopCounterMode knows neither the in-place products of the blockwise forms nor attention on a CPU.
    in_place = {torch.ops.aten.addmm_: lambda _, a, b, **__: 2 * a[0] * a[1] * b[1]}
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter, sdpa_kernel(SDPBackend.MATH):
        work()
    return counter.get_total_flops()


def objective_flops(base: str, context: bool, width: int, devices: int) -> float:
    """Return the operations of one device per row, column and embedding entry."""
    rows = 64
    make = ContextObjective if context else ContrastiveObjective
    objective = make(base, form="blockwise")  # type: ignore[arg-type]
    images, texts = (torch.randn(rows, width, requires_grad=True) for _ in range(2))
    total = counted(lambda: objective(images, texts, shard=Part(devices))[0].backward())
    return total / (rows * rows * devices * width)


def activation_bytes(model: DualEncoder) -> int:
    """Return the bytes of activations that one pair stores for the backward pass, with towers in bfloat16."""
    size = model.transform.size

    def of(pairs: int) -> int:
        storages: dict[int, torch.UntypedStorage] = {}  # holds references, so no address is reused

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
            return tensor

        tokens = model.tokenize(["a photo of a cat left of a large red house"] * pairs)
        with (
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
            autocast(torch.device("cpu"), "bfloat16"),
        ):
            embeddings = model.encode_images(torch.randn(pairs, 3, size, size)), model.encode_texts(tokens)
        del embeddings
        return sum(storage.nbytes() for storage in storages.values())

    return of(3) - of(2)


def opening_seconds(shards: int) -> float:
    """Return the CPU seconds to open a Parquet file as a stream, before the first step."""
    with tempfile.TemporaryDirectory() as folder:
        table = pa.table({"image": [{"bytes": b"-", "path": None}] * 100, "caption": ["a"] * 100})
        files = [f"{folder}/{number}.parquet" for number in range(shards)]
        for file in files:
            pq.write_table(table, file)
        open_stream("warm", files[:1])
        start = time.process_time()
        open_stream("shards", files)
        return (time.process_time() - start) / shards


Figures = dict[str, float]


def training(options: Options) -> Figures:
    """Return all figures of a run, by name."""
    model = build_model(options.preset, texts=[f"{number} photos of a cat" for number in range(200)])
    pixels = torch.randn(1, 3, model.transform.size, model.transform.size)
    tokens = model.tokenize(["a photo of a cat left of a large red house"])
    with torch.no_grad():
        forward = counted(lambda: (model.encode_images(pixels), model.encode_texts(tokens)))
    found: Figures = {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "width of the embeddings": model.width,
        "forward pass, FLOP per pair": forward,
        "activations, bytes per pair": activation_bytes(model),
        "seconds to open one shard on this machine (measured)": opening_seconds(200),
        "pictures per second and core (measured)": (
            options.pictures or read_json(READING)["figures"]["one core"]["ours"]
        ),
    }
    for name, context in (("plain", False), ("context", True)):
        share = objective_flops(options.base, context, model.width, 4)
        found[f"{name}: objective, FLOP per batch x rows x width"] = share
    return found | run_figures(options, found)


def run_figures(options: Options, found: Figures) -> Figures:
    """Derive further figures from the counted and measured ones."""
    parameters, width, activations = (
        found[name] for name in ("parameters", "width of the embeddings", "activations, bytes per pair")
    )
    rows, steps = options.batch / options.devices, options.pairs / options.batch
    passes = 4 if options.chunked else 3  # the backward pass costs two forward passes
    towers = found["forward pass, FLOP per pair"] * passes * rows
    files = options.pairs / options.shard
    figures: Figures = {
        "pairs per device and step": rows,
        "steps": steps,
        "towers, FLOP per device and step": towers,
        "towers, seconds per step": towers / options.flops,
        "weights, gradients and AdamW, bytes per device": 16 * parameters,
        "activations, bytes per device": activations * rows,
        "maximum pairs per device": (options.device_memory - 16 * parameters) // activations,
        "maximum parameters with weights, gradients and AdamW on one device": options.device_memory / 16,
        "maximum parameters with only the weights on one device": options.device_memory / 4,
        "gradients over the network, bytes per device and step": 2 * 4 * parameters,
        "shards": files,
        "minutes to open all shards on one machine": (
            files * found["seconds to open one shard on this machine (measured)"] / 60
        ),
        "minutes to open all shards over a network": files * options.request / MAX_OPEN_SHARDS / 60,
    }
    for name, sets in (("plain", 1), ("context", 3)):  # gathered sets: texts, and with context also keys and values
        flops = found[f"{name}: objective, FLOP per batch x rows x width"] * rows * options.batch * width
        moved = sets * 2 * 4 * options.batch * width  # float32, gathered forward, summed backward
        seconds = towers / options.flops + flops / options.loss_flops
        network = (moved + 8 * parameters) / options.network
        pace = options.batch / (seconds + network)
        cores = pace / found["pictures per second and core (measured)"]
        eightfold = 64 * flops / options.loss_flops
        figures |= {
            f"{name}: objective, FLOP per device and step": flops,
            f"{name}: objective, seconds per step": flops / options.loss_flops,
            f"{name}: gathered rows and their gradients, bytes per device": moved,
            f"{name}: embeddings over the network, bytes per device and step": moved,
            f"{name}: compute, seconds per step": seconds,
            f"{name}: network without overlap, seconds per step": network,
            f"{name}: days": steps * (seconds + network) / 86_400,
            f"{name}: objective's share of the compute": flops / options.loss_flops / seconds,
            f"{name}: objective's share at 8 times the batch": eightfold / (eightfold + 8 * towers / options.flops),
            f"{name}: pictures per second": pace,
            f"{name}: cores to prepare pictures": cores,
            f"{name}: cores per device to prepare pictures": cores / options.devices,
            f"{name}: bytes read per second": pace * options.picture_bytes,
        }
    return figures


def index_flops(rows: float, width: int) -> float:
    """Return the operations to build an inverted file (`recollect.index.stores.ivf`).

    With ``2 sqrt(rows)`` cells: eight rounds of k-means on 50 rows per cell, and the assignment of every row.
    """
    cells = 2 * rows**0.5
    return 2 * (8 * 50 * cells + rows) * cells * width


def index_figures(options: Options, measured: Mapping[str, Any]) -> Figures:
    """Return all figures of an index, by name, scaled from a measured one."""
    found, settings = measured["figures"]["index"], measured["settings"]
    rows, width = options.rows, options.row_width
    larger = (rows / settings["rows"]) * (width / settings["width"])
    vectors = 2 * 2 * rows * width  # of images and texts, two bytes an entry
    cells = 2 * rows**0.5
    before = 2 * 2 * settings["rows"] * settings["width"]
    # Speed of the products on this machine, from the measured build time and the same formula.
    pace = index_flops(settings["rows"], settings["width"]) / found["index built and measured, processor (s)"]
    built, read = index_flops(rows, width), found["cells read"] * rows / cells
    return {
        "vectors, bytes": vectors,
        "on disk, bytes (scaled from the measured index)": vectors * found["on disk (MB)"] * 1e6 / before,
        "exact query, bytes read": vectors / 2,
        "exact query, FLOP": 2 * rows * width,
        "exact query, milliseconds with a million rows (measured)": found["exact, one, processor (ms per query)"],
        "inverted file, cells read with a million rows (measured)": found["cells read"],
        "exact query, seconds": found["exact, one, processor (ms per query)"] / 1e3 * larger,
        "exact query, seconds each in batches of 300": (
            found["exact, 300 at once, processor (ms per query)"] / 1e3 * larger
        ),
        "inverted file, cells": cells,
        "inverted file, FLOP to build": built,
        "inverted file, days to build on one core": built / pace / 86_400,
        "inverted file of ten million rows, hours to build on one core": index_flops(1e7, width) / pace / 3600,
        "inverted file, rows read per query": read,
        "inverted file, bytes read per query": 2 * read * width,
        "inverted file, bytes in memory": 8 * rows,
        "inverted file, bytes in memory while opening": 48 * rows,
        "inverted file, bytes of the k-means sample": 4 * 50 * cells * width,
    }


def derive(options: Options) -> tuple[Figures, Figures]:
    """Return the figures of a run and of an index."""
    return training(options), index_figures(options, read_json(MEMORY))


def tables(options: Options, run: Figures, index: Figures) -> list[StudyTable]:
    """Return the figures as tables for `recollect-papers results`."""
    setting = f"{options.preset}, {options.pairs:.3g} pairs, batch {options.batch:,}, {options.devices} devices"

    def listed(title: str, figures: Figures) -> StudyTable:
        return StudyTable(title, ("figure", "value"), tuple((name, shown(value)) for name, value in figures.items()))

    return [listed(f"A run: {setting}", run), listed(f"An index of {options.rows:.3g} rows", index)]


def shown(value: float) -> str:
    """Format a value with three digits and an SI prefix."""
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= size:
            return f"{value / size:.3g} {prefix}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def main(options: Options) -> None:
    """Count and print the figures, and write them if ``--out`` is given."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    run, index = derive(options)
    shown_tables, console = tables(options, run, index), output()
    for table in shown_tables:
        console.print(table.title)
        for name, value in table.rows:
            console.print(f"{name:76} {value}", highlight=False)
    if options.out:
        command = f"python benchmarks/scale.py --out {options.out}"
        settings = asdict(replace(options, out=None))
        write_json(options.out, {"command": command, "options": settings, "figures": {"run": run, "index": index},
                                 "tables": [asdict(table) for table in shown_tables]})  # fmt: skip


if __name__ == "__main__":
    main(script_options(Options))
