"""``prefix/real``: captions of three kinds and labels of two, with and without prefix tokens, on a locked tower.

The sources differ in pictures and in words: sentences of aerial and of everyday photographs, titles of products; names
of emoji and of everyday things in prompts. Every arm trains the same head and text tower for as many steps of as many
pairs. Each (arm, seed) leaves one small JSON file in ``OUT/readings``; the tables are a function of these alone.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recollect.core.errors import UserError
from recollect.core.files import atomic_path
from recollect.core.types import Encoder, Kind
from recollect.evaluation.results import Result
from recollect.evaluation.retrieval import retrieval
from recollect.evaluation.tasks.classification import ClassificationTask, Division, classification_task
from recollect.evaluation.tasks.retrieval import retrieval_task
from recollect.evaluation.zero_shot import zero_shot
from recollect.models import DualEncoder, load_model
from recollect.training.locked import lock_source
from recollect.training.locked_towers import FeatureEncoder
from recollect.training.options import Data, Recipe
from recollect.training.recipes import RECIPES
from recollect_papers.prefix.real_arms import (
    ARMS,
    CAPTIONS,
    FOREIGN,
    KINDS_READ,
    LABELS,
    OWN,
    POOLS,
    SETS,
    TOLD,
    ReadingArm,
)
from recollect_papers.prefix.real_tables import tables
from recollect_papers.records import RunFiles, RunOrigin, digests, read_records, recipe_as_json, slug
from recollect_papers.runs import made_once, run_key
from recollect_papers.store import content_key, file_content
from recollect_papers.study import StudyOptions, StudyReport
from recollect_papers.worlds.tasks import world_tasks

_FORMAT = 1
_TEMPLATES = 8  # every eighth of CLIP's 80
_WORLD = (
    "real pictures of 32 × 32, a locked tower of patches: sentences of aerial (RSICD) and everyday photographs "
    "(Flickr8k), product titles (fashion); labels of emoji in six styles and of 100 classes of Tiny ImageNet"
)
_MADE = "glyphs, a few steps: shows that it runs, not what it finds"


def real(options: StudyOptions) -> StudyReport:
    """Train and evaluate what has no file yet, where data was named, and make the tables of all files.

    Raises:
        UserError: no data was named and there are no files; a data file is missing.
    """
    folder = options.out / "readings"
    if options.data or options.scale == "smoke":
        data = _prepared(options) if options.data else None
        files = RunFiles(folder, _origins(data, options))
        for seed in range(options.seeds or {"smoke": 1, "small": 3, "full": 5}[options.scale]):
            for arm in ARMS:
                files.make(arm.name, seed, partial(_run_one, arm, seed, data, options))
        records = files.read()
    else:
        records = read_records(folder)
    if not records:
        raise UserError(f"{folder}: no results yet. Name the folder of the real files: --data FOLDER.")
    return StudyReport("prefix/real", options.scale, _MADE if options.scale == "smoke" else _WORLD, tables(records))


def _origins(data: tuple[Path, Path] | None, options: StudyOptions) -> Callable[[str, int], RunOrigin | None]:
    """What the file of an arm with a seed is made from, now."""
    by_name = {arm.name: arm for arm in ARMS}
    content = digests(data[0] / name for name in _needed()) if data else {}
    asked = {name: asdict(one) for name, one in SETS.items()}
    measured = content_key(_FORMAT, _TEMPLATES, KINDS_READ, asked, POOLS)

    def origin(name: str, seed: int) -> RunOrigin | None:
        if name not in by_name:
            return None
        recipe = recipe_of(by_name[name], seed, data, options)
        return RunOrigin(content, recipe_as_json(recipe), measured, _told(recipe))

    return origin


def _needed() -> list[str]:
    """Files of the user that the study reads."""
    named = {spec.split("?")[0] for spec in (*CAPTIONS, *LABELS, *POOLS, *(one.file for one in SETS.values()))}
    return ["emoji.parquet", *sorted(named - {"emoji-labels.parquet"})]


def _prepared(options: StudyOptions) -> tuple[Path, Path]:
    """The folder of the real files, and that of the emoji with their concepts as classes.

    Raises:
        UserError: a file is missing.
    """
    folder = Path(options.data[0]).expanduser()
    for name in _needed():
        if not (folder / name).is_file():
            raise UserError(f"{folder}: no {name} there. prefix/real needs the folder of its Parquet files: --data.")
    made = options.out / "prepared" / file_content(folder / "emoji.parquet")[:10]
    if not (made / "emoji-labels.parquet").is_file():
        table = pq.read_table(folder / "emoji.parquet", columns=["image", "captions", "domain", "split", "ambiguous"])
        table = table.filter(pa.compute.invert(table["ambiguous"])).drop_columns(["ambiguous"])
        names = [captions[0] for captions in table["captions"].to_pylist()]
        classes = sorted(set(names))
        numbers = {name: number for number, name in enumerate(classes)}
        table = table.drop_columns(["captions"]).append_column("label", pa.array([numbers[name] for name in names]))
        made.mkdir(parents=True, exist_ok=True)
        with atomic_path(made / "emoji-labels.parquet") as temporary:
            pq.write_table(table.append_column("class_name", pa.array(names)), temporary)
    return folder, made


def _place(data: tuple[Path, Path], spec: str) -> str:
    folder, made = data
    return f"{made if spec.startswith('emoji-labels') else folder}/{spec}"


def recipe_of(arm: ReadingArm, seed: int, data: tuple[Path, Path] | None, options: StudyOptions) -> Recipe:
    """An arm's training; all take as many steps of as many pairs."""
    recipe = RECIPES["clip-locked"]()
    start = "patches-transformer" if arm.attends else "patches"
    model = replace(recipe.model, start=start, dropout=0.5, prefixes=KINDS_READ if arm.prefix else ())
    captions: tuple[str, ...] = ("glyphs:captions",)
    labels: tuple[str, ...] = ("glyphs:labels",)
    if data is not None:
        captions, labels = (tuple(_place(data, spec) for spec in specs) for specs in (CAPTIONS, LABELS))
    size, steps = {"smoke": (64, 6), "small": (512, 400), "full": (recipe.batch_size, recipe.steps)}[options.scale]
    if options.scale == "smoke":
        model = replace(model, start="tiny-conv" if arm.attends else "glyph-random", dropout=None)
    return replace(
        recipe,
        model=model,
        data=Data(captions=captions, labels=labels if arm.labels else (), sampling=arm.sampling),  # type: ignore[arg-type]
        batch_size=size,
        steps=steps,
        seed=seed,
        log_every=20,
        checkpoint_every=steps,
    )


def _run_one(arm: ReadingArm, seed: int, data: tuple[Path, Path] | None, options: StudyOptions) -> dict[str, Any]:
    """Train one arm with one seed and measure it: what its file holds."""
    recipe = recipe_of(arm, seed, data, options)
    folder = options.out / "runs" / f"readings-{slug(arm.name)}-seed{seed}-{run_key(recipe)}"
    start = time.perf_counter()
    model = load_model(made_once(recipe, folder), "cpu")
    seconds = round(time.perf_counter() - start)
    named = "--data FOLDER " if data else ""
    command = f"recollect-papers prefix/real --scale {options.scale} {named}--seeds {options.seeds or seed + 1}"
    return {
        "format": _FORMAT,
        "arm": arm.name,
        "seed": seed,
        "command": command,
        "recipe": _told(recipe),
        "training_seconds": seconds,
        **_measure(model, data),
        "model": model.fingerprint,
        "environment": dict(Result("", "", "", 0, ()).environment),
    }


def _told(recipe: Recipe) -> dict[str, Any]:
    """What tables and readers go by."""
    return {
        "dropout": recipe.model.dropout,
        "batch_size": recipe.batch_size,
        "steps": recipe.steps,
        "sampling": recipe.data.sampling,
        "prefixes": list(recipe.model.prefixes),
    }


def _measure(model: DualEncoder, data: tuple[Path, Path] | None) -> dict[str, Any]:
    """Zero-shot accuracy and recall at 10 with each reading; a model without prefixes has one, ``plain``."""
    encoder = FeatureEncoder(model)
    readings: dict[str, Kind | None] = (
        dict(zip(KINDS_READ, KINDS_READ, strict=True)) if model.prefixes else {"plain": None}
    )
    found: dict[str, Any] = {"zero-shot": {}, "groups": {}, "retrieval": {}}
    for name, group, task in _tasks(model, data):
        found["groups"][name] = group
        asked = replace(task, templates=task.templates[::_TEMPLATES])
        found["zero-shot"][name] = {
            reading: _value(zero_shot(encoder, asked, model="model", prefix=prefix), metric="top-1")
            for reading, prefix in readings.items()
        }
    for name in POOLS if data else ():
        found["retrieval"][name.split(".")[0]] = _recalls(encoder, model, _place(data, name), readings) if data else {}
    return found


def _recalls(encoder: Encoder, model: DualEncoder, spec: str, readings: Mapping[str, Kind | None]) -> dict[str, float]:
    task = retrieval_task(spec)
    task = replace(task, images=lock_source(model, task.images))
    keys = {"direction": "text to image", "domain": "all", "k": 10}
    return {
        reading: _value(retrieval(encoder, task, model="model", prefix=prefix), **keys)
        for reading, prefix in readings.items()
    }


def _value(result: Result, **keys: Any) -> float:
    chosen = [row["value"] for row in result.rows if all(row[key] == value for key, value in keys.items())]
    return round(float(np.mean(chosen)), 3)


def _tasks(model: DualEncoder, data: tuple[Path, Path] | None) -> Iterator[tuple[str, str, ClassificationTask]]:
    """Every set with its group, its images replaced by the locked tower's features of them."""
    if data is None:
        for task, group in zip(world_tasks("glyphs:captions"), (OWN, TOLD, FOREIGN), strict=False):
            yield task.name, group, replace(task, query=lock_source(model, task.query))
        return
    for name, one in SETS.items():
        spec, _, split = one.file.partition("split=")
        split, _, filters = split.partition("&")
        address = _place(data, f"{spec.rstrip('?&')}?{filters}".rstrip("?"))
        task = classification_task(address, name=name, division=Division(None, split))
        yield name, one.group, replace(task, query=lock_source(model, task.query))
