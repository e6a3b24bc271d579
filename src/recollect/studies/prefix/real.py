"""``prefix/real``: captions of three kinds and labels of two, with and without prefix tokens, on a locked tower.

The sources differ in pictures and in words: sentences of aerial and of everyday photographs, titles of products; names
of emoji and of everyday things in prompts. Every arm trains the same head and text tower for as many steps of as many
pairs. Each (arm, seed) leaves one small JSON file in ``OUT/readings``; the tables are a function of these alone.
"""

import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recollect.core.errors import UserError
from recollect.core.files import atomic_path, read_json, write_json
from recollect.core.types import Encoder, Kind
from recollect.evaluation.results import Result
from recollect.evaluation.retrieval import retrieval
from recollect.evaluation.zero_shot import zero_shot
from recollect.models import DualEncoder, load_model
from recollect.studies.engine import Column, Row, Show, TableForm
from recollect.studies.lixp.sets import HELD_STYLES
from recollect.studies.measurements import Measurements
from recollect.studies.study import StudyOptions, StudyReport, StudyTable
from recollect.tasks.classification import ClassificationTask, Division, classification_task
from recollect.tasks.retrieval import retrieval_task
from recollect.tasks.worlds import world_tasks
from recollect.training.locked import FeatureEncoder, lock_source
from recollect.training.loop import train
from recollect.training.options import Data, Recipe
from recollect.training.recipes import RECIPES

FORMAT = 1
_TEMPLATES = 8  # every eighth of CLIP's 80
_WORLD = (
    "real pictures of 32 × 32, a locked tower of patches: sentences of aerial (RSICD) and everyday photographs "
    "(Flickr8k), product titles (fashion); labels of emoji in six styles and of 100 classes of Tiny ImageNet"
)
_MADE = "glyphs, a few steps: shows that it runs, not what it finds"

CAPTIONS = ("rsicd_captions.parquet", "flickr8k.parquet", "fashion.parquet")
LABELS = (f"emoji-labels.parquet?split=train&domain!={','.join(HELD_STYLES)}", "tiny_imagenet_b.parquet")
"""``emoji-labels`` is made here of ``emoji``: each concept a class, which its name names."""


@dataclass(frozen=True)
class TestSet:
    """One set that is classified by its names.

    Attributes:
        file: its Parquet file, with filters.
        group: what its classes are to the sources.
    """

    file: str
    group: str


_OWN, _TOLD, _FOREIGN = "classes of the label sets, other pictures", "what captions speak of", "foreign sets"
SETS: Mapping[str, TestSet] = {
    "emoji, held-out styles": TestSet(f"emoji-labels.parquet?split=train&domain={','.join(HELD_STYLES)}", _OWN),
    "tiny_imagenet_b": TestSet("tiny_imagenet_b.parquet?split=test", _OWN),
    "emoji, new concepts": TestSet("emoji-labels.parquet?split=test", _FOREIGN),
    "rsicd scenes": TestSet("rsicd_captions.parquet?split=test", _TOLD),
    "ucm scenes": TestSet("ucm_captions.parquet?split=test", _TOLD),
    "resisc12": TestSet("resisc12.parquet?split=test", _TOLD),
    "fashion kinds": TestSet("fashion.parquet?split=test", _TOLD),
} | {
    name: TestSet(f"{name}.parquet?split=test", _FOREIGN)
    for name in ("eurosat", "cifar10", "imagenette", "tiny_imagenet", "caltech101", "pacs", "flowers12", "grocery")
}
POOLS = ("rsicd_captions.parquet", "flickr8k.parquet", "fashion.parquet")


@dataclass(frozen=True)
class ReadingArm:
    """One way of training, at the budget of all.

    Attributes:
        name: in files and tables.
        labels: whether the labels are trained on, beside the captions.
        prefix: whether each kind has its token.
        sampling: of the two kinds.
    """

    name: str
    labels: bool = True
    prefix: bool = False
    sampling: str = "debiased"


PLAIN, PREFIX = "both, debiased batches", "both, debiased batches, prefixes"
ARMS = (
    ReadingArm(PLAIN),
    ReadingArm(PREFIX, prefix=True),
    ReadingArm("captions alone", labels=False, sampling="proportional"),
    ReadingArm("both, equal batches", sampling="equal"),
)
READINGS: tuple[Kind, ...] = ("caption", "label")


def real(options: StudyOptions) -> StudyReport:
    """Train and evaluate what has no file yet, where data was named, and make the tables of all files.

    Raises:
        UserError: no data was named and there are no files; a data file is missing.
    """
    folder = options.out / "readings"
    if options.data or options.scale == "smoke":
        data = _prepared(options) if options.data else None
        for seed in range(options.seeds or {"smoke": 1, "small": 3, "full": 5}[options.scale]):
            for arm in ARMS:
                file = folder / f"{_slug(arm.name)}-seed{seed}.json"
                if not file.exists():
                    write_json(file, run_one(arm, seed, data, options))
    records = [read_json(file) for file in sorted(folder.glob("*.json"))] if folder.is_dir() else []
    if not records:
        raise UserError(f"{folder}: no results yet. Name the folder of the real files: --data FOLDER.")
    return StudyReport("prefix/real", options.scale, _MADE if options.scale == "smoke" else _WORLD, tables(records))


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _prepared(options: StudyOptions) -> tuple[Path, Path]:
    """The folder of the real files, and that of the emoji with their concepts as classes.

    Raises:
        UserError: a file is missing.
    """
    folder, made = Path(options.data[0]).expanduser(), options.out / "prepared"
    needed = {spec.split("?")[0] for spec in (*CAPTIONS, *LABELS, *POOLS, *(one.file for one in SETS.values()))}
    for name in ("emoji.parquet", *sorted(needed - {"emoji-labels.parquet"})):
        if not (folder / name).is_file():
            raise UserError(f"{folder}: no {name} there. prefix/real needs the folder of its Parquet files: --data.")
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
    model = replace(recipe.model, dropout=0.5, prefixes=READINGS if arm.prefix else ())
    captions: tuple[str, ...] = ("glyphs:captions",)
    labels: tuple[str, ...] = ("glyphs:labels",)
    if data is not None:
        captions, labels = (tuple(_place(data, spec) for spec in specs) for specs in (CAPTIONS, LABELS))
    size, steps = {"smoke": (64, 6), "small": (512, 400), "full": (recipe.batch_size, recipe.steps)}[options.scale]
    if options.scale == "smoke":
        model = replace(model, start="glyph-random", dropout=None)
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


def run_one(arm: ReadingArm, seed: int, data: tuple[Path, Path] | None, options: StudyOptions) -> dict[str, Any]:
    """Train one arm with one seed and measure it: what its file holds."""
    recipe = recipe_of(arm, seed, data, options)
    digest = hashlib.blake2b(json.dumps(asdict(recipe), sort_keys=True).encode(), digest_size=5).hexdigest()
    folder, start = options.out / "runs" / f"readings-{_slug(arm.name)}-seed{seed}-{digest}", time.perf_counter()
    model = load_model(train(recipe, folder, resume=folder.exists()), "cpu")
    seconds = round(time.perf_counter() - start)
    named = "--data FOLDER " if data else ""
    command = f"recollect study prefix/real --scale {options.scale} {named}--seeds {options.seeds or seed + 1}"
    made = {"dropout": recipe.model.dropout, "batch_size": recipe.batch_size, "steps": recipe.steps}
    return {
        "format": FORMAT,
        "arm": arm.name,
        "seed": seed,
        "command": command,
        "recipe": made | {"sampling": arm.sampling, "prefixes": list(recipe.model.prefixes)},
        "training_seconds": seconds,
        **measure(model, data),
        "model": model.fingerprint,
        "environment": dict(Result("", "", "", 0, ()).environment),
    }


def measure(model: DualEncoder, data: tuple[Path, Path] | None) -> dict[str, Any]:
    """Zero-shot accuracy and recall at 10 with each reading; a model without prefixes has one, ``plain``."""
    encoder = FeatureEncoder(model)
    readings: dict[str, Kind | None] = dict(zip(READINGS, READINGS, strict=True)) if model.prefixes else {"plain": None}
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
        for task, group in zip(world_tasks("glyphs:captions"), (_OWN, _TOLD, _FOREIGN), strict=False):
            yield task.name, group, replace(task, query=lock_source(model, task.query))
        return
    for name, one in SETS.items():
        spec, _, split = one.file.partition("split=")
        split, _, filters = split.partition("&")
        address = _place(data, f"{spec.rstrip('?&')}?{filters}".rstrip("?"))
        task = classification_task(address, name=name, division=Division(None, split))
        yield name, one.group, replace(task, query=lock_source(model, task.query))


# Tables ---------------------------------------------------------------------------------------------------------------

READ = {"caption": "caption", "label": "label", "plain": ""}
"""What tables call a reading; arms without prefixes have one."""


def tables(records: Sequence[Mapping[str, Any]]) -> tuple[StudyTable, ...]:
    """Accuracy by group of sets, gains of the prefixes paired by seed, and every set."""
    found = measured(records)
    there = {record["arm"]: record for record in records}
    lines = [
        (arm.name, reading)
        for arm in ARMS if arm.name in there
        for reading in next(iter(there[arm.name]["zero-shot"].values()))
    ]  # fmt: skip
    groups: dict[str, tuple[str, ...]] = {}
    for name, group in records[0]["groups"].items():
        groups[group] = (*groups.get(group, ()), name)
    forms = (
        _by_group(records, groups, lines),
        _gains(found, groups, lines),
        _by_set(list(records[0]["groups"]), lines),
    )
    return tuple(form.fill(found) for form in forms)


def measured(records: Sequence[Mapping[str, Any]]) -> Measurements:
    """The files' figures by arm, reading, measure and set."""
    found = Measurements()
    for record in records:
        for measure in ("zero-shot", "retrieval"):
            for name, readings in record[measure].items():
                for reading, value in readings.items():
                    at = {"arm": record["arm"], "read": reading, "measure": measure, "set": name}
                    found.add(at, record["seed"], value)
    return found


Groups = Mapping[str, tuple[str, ...]]
Lines = Sequence[tuple[str, str]]
"""Every arm with each of its readings, in the order of the arms."""


def _group_columns(groups: Groups, show: Show = "mean") -> list[Column]:
    return [
        Column(f"{len(names)}: {group}", {"measure": "zero-shot", "set": names}, show)
        for group, names in groups.items()
    ]


def _by_group(records: Sequence[Mapping[str, Any]], groups: Groups, lines: Lines) -> TableForm:
    rows = [Row((arm, READ[reading]), {"arm": arm, "read": reading}) for arm, reading in lines]
    columns = _group_columns(groups)
    columns += [Column(f"R@10 {pool}", {"measure": "retrieval", "set": pool}) for pool in records[0]["retrieval"]]
    recipe, seeds = records[0]["recipe"], len({record["seed"] for record in records})
    note = f"batch {recipe['batch_size']:,}, {recipe['steps']} steps an arm; mean over sets ± std of {seeds} seeds"
    title = "Zero-shot accuracy by names, and recall at 10 from text to image"
    return TableForm(title, ("training", "reading"), rows, columns, notes=(note,))


COMPARED = (
    *((f"{reading} reading over no prefixes", (PREFIX, reading), (PLAIN, "plain")) for reading in READINGS),
    ("caption over label reading", (PREFIX, "caption"), (PREFIX, "label")),
    ("caption reading over captions alone", (PREFIX, "caption"), ("captions alone", "plain")),
)
"""What prefixes add to the same batches without, and what one reading has over the other: each an arm and a reading."""


def _gains(found: Measurements, groups: Groups, lines: Lines) -> TableForm:
    rows, notes = [], []
    every = tuple(name for names in groups.values() for name in names)
    for title, own, other in COMPARED:
        if not {own, other} <= set(lines):
            continue
        at, over = ({"arm": arm, "read": reading} for arm, reading in (own, other))
        rows.append(Row((title,), at, over=over))
        if len(every) > 1:
            gain = found.paired({**at, "measure": "zero-shot"}, over, every)
            told = f"{title}: up on {gain.up()} of {len(every)} sets, {gain.summary().signed()}"
            notes.append(f"{told}; {gain.tests()}")
    heads = ("difference, paired by seed",)
    return TableForm("What prefixes change", heads, rows, _group_columns(groups, "gain"), notes=tuple(notes))


def _by_set(names: Sequence[str], lines: Lines) -> TableForm:
    rows = [Row((name,), {"set": name}) for name in names]
    columns = [
        Column(f"{arm}: {reading}" if READ[reading] else arm, {"arm": arm, "read": reading, "measure": "zero-shot"})
        for arm, reading in lines
    ]
    return TableForm("Zero-shot accuracy set by set", ("set",), rows, columns)
