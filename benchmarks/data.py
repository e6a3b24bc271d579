"""Speed of reading images, compared with plain Pillow and NumPy in one run, in images per second.

With a single process, CPU time is measured, so other load on the machine hardly affects the figures.

python benchmarks/data.py --out results/bench/data.json
python benchmarks/data.py --data emoji.parquet --size 64 --workers 0 1 2
"""

import io
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image, ImageFilter
from rich.console import Console
from rich.table import Table

from recollect.core.files import write_json
from recollect.core.seeding import numpy_generator
from recollect.core.types import best_device
from recollect.data.batches.mixture import DataMix
from recollect.data.batches.order import shuffled
from recollect.data.batches.stream import BatchStream
from recollect.data.sources import open_source
from recollect.data.sources.images import decode
from recollect.data.transforms import CLIP_MEAN, CLIP_STD, ImageTransform
from recording import script_options, this_command, where


@dataclass(frozen=True)
class Options:
    """Command-line options.

    Attributes:
        data: a captioned source (default: synthetic photos).
        photo: width and height of the synthetic photos.
        count: number of synthetic photos.
        size: size of the model's images.
        batch: batch size.
        workers: numbers of worker processes to try.
        seconds: duration of each measurement.
        out: JSON file for the figures.
    """

    data: str | None = None
    photo: tuple[int, int] = (500, 375)
    count: int = 400
    size: int = 224
    batch: int = 256
    workers: tuple[int, ...] = (0, 1, 2)
    seconds: float = 4.0
    out: Path | None = None


def photos(count: int, size: tuple[int, int]) -> list[bytes]:
    """Create JPEGs with the spectrum and file size of photographs: blurred noise at several scales."""
    encoded = []
    for number in range(count):
        generator = numpy_generator("photo", number)
        picture = Image.new("RGB", size)
        for scale in (64, 16, 4):
            small = generator.integers(0, 256, (size[1] // scale + 2, size[0] // scale + 2, 3), dtype=np.uint8)
            layer = Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)
            picture = Image.blend(picture, layer, 0.5)
        buffer = io.BytesIO()
        picture.filter(ImageFilter.SHARPEN).save(buffer, "JPEG", quality=90)
        encoded.append(buffer.getvalue())
    return encoded


def plain(data: bytes, size: int, min_area: float, generator: np.random.Generator) -> torch.Tensor:
    """Decode, crop, resize and normalize a picture without any optimization."""
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    side = int(np.sqrt(generator.uniform(min_area, 1)) * min(picture.size))
    left, top = (int(generator.integers(0, length - side + 1)) for length in picture.size)
    picture = picture.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.BICUBIC)
    pixels = np.asarray(picture).astype(np.float32) / 255
    pixels = (pixels - np.array(CLIP_MEAN, dtype=np.float32)) / np.array(CLIP_STD, dtype=np.float32)
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy())


def rate(function: Callable[[], int], seconds: float) -> float:
    """Return images per CPU second, the median over rounds; ``function`` returns the number of images it processed."""
    function()
    rates, stop = [], time.perf_counter() + seconds
    while time.perf_counter() < stop or len(rates) < 3:
        start = time.process_time()
        count = function()
        rates.append(count / (time.process_time() - start))
    return statistics.median(rates)


def one_core(encoded: Sequence[bytes], options: Options) -> dict[str, float]:
    """Decode and transform batches on one core, in several ways."""
    transform = ImageTransform(size=options.size, training=True, scale=(0.5, 1.0))
    some = encoded[: min(64, len(encoded))]

    def ours(needed: int) -> Callable[[], int]:
        def make() -> int:
            generator = np.random.default_rng(0)
            pixels = [transform.pixels(decode(data, "x", needed=needed), generator) for data in some]
            transform.normalize(torch.from_numpy(np.stack(pixels)))
            return len(some)

        return make

    def simple() -> int:
        generator = np.random.default_rng(0)
        torch.stack([plain(data, options.size, 0.5, generator) for data in some])
        return len(some)

    def bytes_only() -> int:
        generator = np.random.default_rng(0)
        np.stack([transform.pixels(decode(data, "x", needed=transform.needed), generator) for data in some])
        return len(some)

    return {
        "plain Pillow and NumPy": rate(simple, options.seconds),
        "ours, decoded whole": rate(ours(0), options.seconds),
        "ours": rate(ours(transform.needed), options.seconds),
        "ours, bytes for the GPU": rate(bytes_only, options.seconds),
    }


def streams(spec: str, options: Options) -> dict[str, float]:
    """Measure whole batches from a source: rows, decoding, crops, texts and transfer."""
    transform = ImageTransform(size=options.size, training=True, scale=(0.5, 1.0))
    device = best_device()
    results = {}
    for workers in options.workers:
        stream = BatchStream(DataMix((open_source(spec),)), options.batch, transform)
        batches = stream.iterate(0, 10**6, workers, device=device)
        next(batches)

        def make(batches=batches) -> int:  # type: ignore[no-untyped-def]
            count = len(next(batches))
            if device.type == "cuda":
                torch.cuda.synchronize()
            return count

        # Count over the whole time: a median would hide stalls, since workers read ahead.
        clock = time.perf_counter if workers else time.process_time
        count, start = 0, clock()
        while clock() - start < options.seconds:
            count += make()
        results[f"{workers} workers"] = count / (clock() - start)
        batches.close()  # type: ignore[attr-defined]
    return results


def order() -> dict[str, float]:
    """Return milliseconds to draw a batch of 32,768 from a billion samples, and to shuffle ten million with NumPy."""
    start = time.process_time()
    shuffled(np.arange(32_768), 10**9, 1)
    ours = time.process_time() - start
    start = time.process_time()
    np.random.default_rng(0).permutation(10**7)
    return {"ours, batch of a billion": 1e3 * ours, "NumPy, ten million": 1e3 * (time.process_time() - start)}


def write_set(encoded: Sequence[bytes], folder: str) -> str:
    """Write a Parquet file of captioned photos, and return its path."""
    path = Path(folder) / "photos.parquet"
    pq.write_table(pa.table({"image": list(encoded), "caption": [f"photo {i}" for i in range(len(encoded))]}), path)
    return str(path)


def main(options: Options) -> None:
    """Measure, print and write."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if options.data is None:
            encoded = photos(options.count, options.photo)
            spec = write_set(encoded, folder)
        else:
            spec = options.data
            file = pq.read_table(spec.partition("?")[0], columns=["image"])
            encoded = file.column("image").to_pylist()[:64]
        figures = {"one core": one_core(encoded, options), "stream": streams(spec, options), "order (ms)": order()}
    base = figures["one core"]["plain Pillow and NumPy"]
    for title, rows in figures.items():
        table = Table("", "ms" if "ms" in title else "images/s", "ratio to plain", title=title)
        for name, value in rows.items():
            table.add_row(name, f"{value:,.1f}", "" if "ms" in title else f"{value / base:.2f}")
        Console().print(table)
    if options.out:
        settings = {"size": options.size, "photo": options.photo, "cores": os.cpu_count(), "device": str(best_device())}
        made = {"command": this_command(), "settings": settings, **where("pillow"), "figures": figures}
        write_json(options.out, made)


if __name__ == "__main__":
    main(script_options(Options))
