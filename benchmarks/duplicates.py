"""Duplicates of a large memory: the processor's time and the memory that it takes to find them, and how many are found.

    python benchmarks/duplicates.py --rows 1000000 --no-exact --out results/bench/duplicates-1m.json

Makes a memory of embeddings around centres, as photographs of many subjects have them, with doubles of which it knows:
the same file, the same picture encoded again (a hash a few bits apart, cosine 0.98), similar shots (0.955), and a
dense group of equal ones. Both ways of finding them run in one process: among neighbours, as the page does of a large
memory, and exactly. *Memory* is what the process took at most beyond what it had with the memory opened, without the
files that it maps (the vectors); *found* is the share of the known pairs that are in one group.
"""

import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from recollect.core.files import write_json
from recollect.core.progress import progress
from recollect.memory import Memory, Pairs
from recollect.memory.duplicates import LEVELS, Duplicates, find_duplicates
from recording import this_command

_BLOCK = 50_000
COSINES = {"same": 1.0, "encoded": 0.98, "similar": 0.955}
"""Of a double with what it is a double of."""


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        rows: of the memory.
        width: of a vector.
        doubles: share of the rows that are doubles of others, in each of three ways.
        dense: share of the rows that are all equal.
        exact: also compare all with all.
        work: folder for the memory, made anew.
        out: JSON file for the figures.
    """

    rows: int = 100_000
    width: int = 256
    doubles: float = 0.01
    dense: float = 0.02
    exact: bool = True
    work: Path = Path("duplicates-benchmark")
    out: Path = Path("results/bench/duplicates.json")


def made(options: Options) -> tuple[Path, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """The memory, and its pairs of doubles by level."""
    generator = np.random.default_rng(0)
    count, some = options.rows, int(options.doubles * options.rows)
    centres = unit(generator.normal(size=(max(1, count // 500), options.width)))
    vectors = np.empty((count, options.width), np.float32)
    for start in range(0, count, _BLOCK):
        size = min(_BLOCK, count - start)
        noise = unit(generator.normal(size=(size, options.width)))
        vectors[start : start + size] = unit(centres[generator.integers(len(centres), size=size)] + noise)
    looks = generator.integers(1, 2**63, count, dtype=np.uint64)
    files = np.arange(count)
    rows = generator.permutation(count)
    dense = rows[: int(options.dense * count)]
    vectors[dense] = vectors[dense[0]]
    pairs, rest = {}, rows[len(dense) :]
    for place, level in enumerate(LEVELS):
        own, double = (rest[(2 * place + side) * some : (2 * place + side + 1) * some] for side in range(2))
        aside = unit(generator.normal(size=(some, options.width)))
        aside = unit(aside - (aside * vectors[own]).sum(1, keepdims=True) * vectors[own])
        cosine = COSINES[level]
        vectors[double] = unit(cosine * vectors[own] + np.sqrt(1 - cosine**2) * aside)
        if level == "encoded":
            looks[double] = looks[own]
            for _ in range(4):
                looks[double] ^= np.uint64(1) << generator.integers(0, 63, some).astype(np.uint64)
        if level == "same":
            files[double] = files[own]
        pairs[level] = own, double
    folder = options.work / f"memory-{count}"
    shutil.rmtree(folder, ignore_errors=True)
    memory = Memory.create(folder, width=options.width, model="made")
    with progress("made pictures", count, "pictures") as counter:
        for start in range(0, count, _BLOCK):
            numbers = range(start, min(start + _BLOCK, count))
            block = vectors[start : start + len(numbers)]
            named = [f"made/{number}" for number in numbers]
            keys = [f"{file:064x}" for file in files[start : start + len(numbers)].tolist()]
            memory.add(
                Pairs(
                    named, block, np.zeros_like(block), [""] * len(block), "made", digests=keys,
                    stamps=[f"{key}-" for key in keys],
                    looks=[f"{look:016x}" for look in looks[start : start + len(numbers)].tolist()],
                )
            )  # fmt: skip
            counter.advance(len(numbers))
    memory.prepare()
    pairs["dense"] = np.full(len(dense) - 1, dense[0]), dense[1:]
    return folder, pairs


def unit(rows: np.ndarray) -> np.ndarray:
    """Of unit norm."""
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


@contextmanager
def most_memory() -> Iterator[list[float]]:
    """Megabytes of the process that are in no file: at first, and at most."""
    done, said = threading.Event(), [own_megabytes()] * 2

    def watch() -> None:
        while not done.wait(0.1):
            said[-1] = max(said[-1], own_megabytes())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield said
    done.set()
    thread.join()


def own_megabytes() -> float:
    """Of this process, now."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["RssAnon"].split()[0]) / 1024


def found(known: dict[str, tuple[np.ndarray, np.ndarray]], duplicates: Duplicates) -> dict[str, float]:
    """Of the known pairs of each kind, the share that is in one group of its level or a wider one."""
    group_of: dict[str, dict[str, int]] = {}
    for level in LEVELS:
        numbers = group_of[level] = {}
        for number, group in enumerate(duplicates.groups[level]):
            numbers |= dict.fromkeys(group, number)
    shares = {}
    for kind, (own, other) in known.items():
        levels = LEVELS[LEVELS.index(kind) :] if kind in LEVELS else LEVELS  # type: ignore[arg-type]
        together = [
            any(
                f"made/{one}" in group_of[level]
                and group_of[level][f"made/{one}"] == group_of[level].get(f"made/{two}")
                for level in levels
            )
            for one, two in zip(own.tolist(), other.tolist(), strict=True)
        ]
        shares[kind] = round(float(np.mean(together)), 4)
    return shares


def main() -> None:
    """Measure, print and write."""
    options = tyro.cli(Options)
    folder, known = made(options)
    memory = Memory.open(folder)
    memory.matrix("image")
    said: dict[str, Any] = {"rows": options.rows, "width": options.width, "processors": os.cpu_count()}
    for name in ("neighbours", "exact") if options.exact else ("neighbours",):
        began, worked = time.perf_counter(), time.process_time()
        with most_memory() as most:
            duplicates = find_duplicates(memory, everything=name == "exact")
        said[name] = {
            "processor_s": round(time.process_time() - worked, 1),
            "s": round(time.perf_counter() - began, 1),
            "memory_mb": round(most[-1] - most[0]),
        }
        began = time.process_time()
        said[name]["spare"] = len(duplicates.spare("similar"))
        said[name]["spare_processor_s"] = round(time.process_time() - began, 1)
        said[name] |= {
            "groups": {level: len(duplicates.groups[level]) for level in LEVELS},
            "found": found(known, duplicates),
        }
        write_json(options.out, {"format": 1, "command": this_command(), **said})
        print(json.dumps(said, indent=2), flush=True)


if __name__ == "__main__":
    main()
