"""CPU seconds of `recollect search INDEX "words"` from start to end: results/bench/search_start.json.

python benchmarks/search_start.py --out results/bench/search_start.json

The command is run in turns without PyTorch, as it runs by default, and with it (``--device cpu``); the least of the
rounds counts. The index holds 1,000 pictures of noise and is made first.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from recollect import Index
from recollect.core.files import write_json


def cpu_seconds(arguments: list[str]) -> float:
    """User and system time of one command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "recollect", *arguments], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/bench/search_start.json"))
    parser.add_argument("--pictures", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pictures, index = Path(folder) / "pictures", Path(folder) / "index"
        pictures.mkdir()
        generator = np.random.default_rng(0)
        for number in range(given.pictures):
            pixels = generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(pictures / f"{number}.png")
        Index.build(pictures, out=index)
        search = ["search", str(index), "two dogs in the snow"]
        ways = {"default": search, "with PyTorch": [*search, "--device", "cpu"]}
        for way in ways.values():  # notes what later searches read
            cpu_seconds(way)
        took: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(given.rounds):
            for name, way in ways.items():
                took[name].append(cpu_seconds(way))
    seconds = {name: round(min(each), 2) for name, each in took.items()}
    ratio = round(seconds["with PyTorch"] / seconds["default"], 2)
    machine = {"cores": os.cpu_count(), "load": os.getloadavg()[0]}
    write_json(given.out, {"machine": machine, "cpu seconds": seconds, "ratio": ratio})
    print(seconds, ratio)


if __name__ == "__main__":
    main()
