"""``lixp/real``: SigLIP against SigLIxP, and CLIP against CLIxP, on real images, on a strong tower that is locked.

Every arm is a training of the same head and text tower on the same features; each (arm, seed) leaves one small JSON
file in ``OUT/real``, and the tables are a function of these files alone: without ``--data`` the study reads what is
there. With it, a file that was made from other data, another recipe or measured otherwise is made again. Settings are
chosen on the choosing sets (`sets.CHOOSING`) and tested on the others.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from recollect.classifiers import PrototypeClassifier
from recollect.classifiers.heads.protocol import Protocol
from recollect.core.errors import UserError
from recollect.core.types import Encoder
from recollect.data.sources import open_source
from recollect.data.sources.derived import corpus
from recollect.data.sources.images import note
from recollect.evaluation.features import Features, image_features
from recollect.evaluation.few_shot import few_shot, with_enough_examples
from recollect.evaluation.reports.plots import save_figure
from recollect.evaluation.results import Result
from recollect.evaluation.retrieval import retrieval
from recollect.evaluation.tasks.classification import ClassificationTask, Division, classification_task
from recollect.evaluation.tasks.retrieval import retrieval_task
from recollect.evaluation.zero_shot import zero_shot
from recollect.models import DualEncoder, load_model
from recollect.training.locked import lock_source
from recollect.training.locked_towers import FeatureEncoder
from recollect.training.options import Data, Recipe
from recollect_papers.analyse.energy import SpanEncoder, energy_outside, energy_split, text_span
from recollect_papers.lixp.real_arms import Arm, arms
from recollect_papers.lixp.real_effects import gain_figure, points
from recollect_papers.lixp.real_records import runs_of
from recollect_papers.lixp.real_tables import tables
from recollect_papers.lixp.sets import CHOOSING, RETRIEVAL, TESTING, TRAINING, RealSet, place, present
from recollect_papers.records import RunFiles, RunOrigin, digests, read_records, recipe_as_json, slug
from recollect_papers.runs import made_once, run_key
from recollect_papers.store import content_key
from recollect_papers.study import StudyOptions, StudyReport
from recollect_papers.worlds.tasks import world_tasks

_FORMAT = 1
_SHOTS = (4, 16)
METHODS = ("prototype", "softmax")

_SPAN_TEXTS = 4000
_TEMPLATES = 8  # every eighth of CLIP's 80
_WORLD = (
    "real pictures of 32 × 32: a locked tower of patches, whose head and text tower are trained on emoji, aerial "
    "photographs, everyday photographs and shop pictures with captions"
)
_MADE = "glyphs, a few steps: shows that it runs, not what it finds"


def real(options: StudyOptions) -> StudyReport:
    """Train and evaluate what has no file yet, where data was named, and make the tables of all files.

    Raises:
        UserError: no data was named and there are no files; a data file is missing.
    """
    folder = options.out / "real"
    if options.data or options.scale == "smoke":
        data = _data_folder(options)
        files = RunFiles(folder, _origins(data, options))
        for arm, seed in _jobs(options):
            files.make(arm.name, seed, partial(_run_one, arm, seed, data, options))
        records = files.read()
    else:
        records = read_records(folder)
    if not records:
        raise UserError(f"{folder}: no results yet. Name the folder of the real files: --data FOLDER.")
    world = _MADE if options.scale == "smoke" else _WORLD
    return StudyReport("lixp/real", options.scale, world, tables(records), figures=_figures(records, options))


def _figures(records: Sequence[Mapping[str, Any]], options: StudyOptions) -> tuple[str, ...]:
    """The gains over what was varied, where something was."""
    if not any(record.get("axis") for record in records):
        return ()
    name = f"lixp-real-{options.scale}.png"
    save_figure(gain_figure(points(runs_of(records))), options.out / name)
    return (name,)


def _data_folder(options: StudyOptions) -> Path | None:
    if not options.data:
        return None
    folder = Path(options.data[0]).expanduser()
    for each in (*TRAINING.values(), *RETRIEVAL.values()):
        place(folder, each)  # before hours of training
    if missing := {**CHOOSING, **TESTING}.keys() - present(folder, {**CHOOSING, **TESTING}).keys():
        note(f"{folder}: not measured, since their files are missing: {', '.join(sorted(missing))}")
    return folder


def _jobs(options: StudyOptions) -> Iterator[tuple[Arm, int]]:
    """The main pair seed after seed, then the controls, so that a study that is stopped has whole comparisons."""
    count, every = options.seeds or {"smoke": 2, "small": 3, "full": 5}[options.scale], arms(options)
    yield from ((arm, seed) for seed in range(count) for arm in every if arm.seeds is None)
    yield from ((arm, seed) for arm in every if arm.seeds is not None for seed in range(min(arm.seeds, count)))


def _origins(data: Path | None, options: StudyOptions) -> Callable[[str, int], RunOrigin | None]:
    """What the file of an arm with a seed is made from, now."""
    by_name = {arm.name: arm for arm in arms(options)}
    measured_sets = present(data, {**CHOOSING, **TESTING}) if data else {}
    places = [*TRAINING.values(), *RETRIEVAL.values(), *(one.file for one in measured_sets.values())]
    content = digests(Path(place(data, spec.split("?")[0])) for spec in set(places)) if data else {}
    asked = {name: {set_: asdict(one) for set_, one in sets.items()} for name, sets in
             (("choosing", CHOOSING), ("testing", TESTING))}  # fmt: skip
    measured = content_key(_FORMAT, METHODS, _SHOTS, _SPAN_TEXTS, _TEMPLATES, asked, dict(RETRIEVAL))

    def origin(name: str, seed: int) -> RunOrigin | None:
        if name not in by_name:
            return None
        recipe = recipe_of(by_name[name], seed, data)
        return RunOrigin(content, recipe_as_json(recipe), measured, _told(recipe))

    return origin


def recipe_of(arm: Arm, seed: int, data: Path | None) -> Recipe:
    """An arm's training on the user's files, or on the made world."""
    captions = tuple(place(data, file) for file in TRAINING.values()) if data else ("glyphs:captions",)
    weights = arm.weights if len(arm.weights) == len(captions) else ()  # a made world has one source
    return replace(arm.recipe, data=Data(captions=captions, weights=weights), seed=seed)


def _run_one(arm: Arm, seed: int, data: Path | None, options: StudyOptions) -> dict[str, Any]:
    """Train one arm with one seed and measure it: what its file holds.

    The run is kept under the arm's name and what decides the model, so that one of other data or another recipe is
    another run.
    """
    recipe = recipe_of(arm, seed, data)
    folder = options.out / "runs" / f"real-{options.scale}" / f"{slug(arm.name)}-seed{seed}-{run_key(recipe)}"
    start, resumed = time.perf_counter(), folder.exists()
    model = load_model(made_once(recipe, folder), "cpu")
    seconds = None if resumed else round(time.perf_counter() - start)  # of a part it would say little
    named = "--data FOLDER " if data else ""
    command = f"recollect-papers lixp/real --scale {options.scale} {named}--seeds {options.seeds or seed + 1}"
    return _describe(arm, recipe, command, seconds) | _measure(model, data, recipe)


def _describe(arm: Arm, recipe: Recipe, command: str, seconds: int | None) -> dict[str, Any]:
    """What a file records about a run besides its figures; no path of the machine."""
    return {
        "format": _FORMAT,
        "arm": arm.name,
        "against": arm.against,
        "axis": list(arm.axis),
        "seed": recipe.seed,
        "command": command,
        "recipe": _told(recipe),
        "training_seconds": seconds,
    }


def _told(recipe: Recipe) -> dict[str, Any]:
    """What tables and readers go by."""
    return {
        "start": recipe.model.start,
        "dropout": recipe.model.dropout,
        "weight_decay": recipe.optimiser.weight_decay,
        "objective": asdict(recipe.objective),
        "batch_size": recipe.batch_size,
        "steps": recipe.steps,
    }


def _measure(model: DualEncoder, data: Path | None, recipe: Recipe) -> dict[str, Any]:
    """Few-shot accuracy with and without the projection onto the texts' span, zero-shot accuracy, retrieval, energy."""
    encoder = FeatureEncoder(model)
    texts = [text for spec in recipe.data.captions for text in list(corpus(open_source(spec), _SPAN_TEXTS))]
    span = text_span(encoder.embed_texts(texts[:: max(1, len(texts) // _SPAN_TEXTS)]).numpy())
    parts = ("few-shot", "few-shot on the span", "zero-shot", "outside", "energy", "classes")
    found: dict[str, Any] = {part: {} for part in parts}
    for name, group, task, named in _tasks(model, data):
        found["few-shot"][name] = {"group": group, **_few_shot(encoder, task)}
        found["few-shot on the span"][name] = {"group": group, **_few_shot(SpanEncoder(encoder, span), task)}
        images = image_features(encoder, task.query)
        found["outside"][name] = round(100 * energy_outside(images.images, span), 2)
        if group != "choosing":
            split = asdict(energy_split(images.images, images.labels, span))
            found["energy"][name] = {key: round(100 * value, 2) for key, value in split.items()}
            found["classes"][name] = _by_class(image_features(encoder, task.support), images, task.class_names)
        if named:
            asked = replace(task, templates=task.templates[::_TEMPLATES])
            found["zero-shot"][name] = {"group": group, "top-1": _value(zero_shot(encoder, asked, model="model"))}
    found["retrieval"] = dict(_retrieval(encoder, model, data))
    return found | {"model": model.fingerprint, "environment": dict(Result("", "", "", 0, ()).environment)}


def _tasks(model: DualEncoder, data: Path | None) -> Iterator[tuple[str, str, ClassificationTask, bool]]:
    """Every set with its group, its images replaced by the locked tower's features of them."""
    if data is None:
        for number, task in enumerate(world_tasks("glyphs:captions")[:2]):
            yield task.name, ("choosing", "foreign")[number], _locked(model, task), True
        return
    for role, sets in (("choosing", CHOOSING), ("testing", TESTING)):
        for name, one in present(data, sets).items():
            group = "choosing" if role == "choosing" else ("scenes" if one.scenes else "foreign")
            yield name, group, with_enough_examples(_locked(model, _open(data, name, one)), _SHOTS[-1]), one.named


def _open(data: Path, name: str, one: RealSet) -> ClassificationTask:
    division = Division(within=one.within) if one.within else Division(one.support, one.query)
    if one.within:  # 10 of a class's 20 pictures would be too few for 16 shots
        division = replace(division, query_share=0.2)
    return classification_task(place(data, one.file), name=name, division=division)


def _locked(model: DualEncoder, task: ClassificationTask) -> ClassificationTask:
    return replace(task, support=lock_source(model, task.support), query=lock_source(model, task.query))


def _by_class(support: Features, query: Features, names: Sequence[str]) -> dict[str, float]:
    """Recall of each class in percent, by prototypes of all its examples."""
    predicted = PrototypeClassifier().fit(support.images, support.labels).predict(query.images)
    hits = predicted == query.labels
    return {
        names[label]: round(100 * float(hits[query.labels == label].mean()), 1) for label in np.unique(query.labels)
    }


def _few_shot(encoder: Encoder, task: ClassificationTask) -> dict[str, float]:
    """Accuracy by method and shots, a mean over five draws."""
    rows = few_shot(encoder, task, Protocol(METHODS, _SHOTS), model="model").rows
    return {f"{method} {shots}": _mean(rows, method=method, shots=shots) for method in METHODS for shots in _SHOTS}


def _mean(rows: Sequence[Mapping[str, Any]], **keys: Any) -> float:
    chosen = [row["value"] for row in rows if all(row[key] == value for key, value in keys.items())]
    return round(float(np.mean(chosen)), 3)


def _value(result: Result) -> float:
    return _mean(result.rows, metric="top-1")


def _retrieval(encoder: Encoder, model: DualEncoder, data: Path | None) -> Iterator[tuple[str, float]]:
    """Recall at 10 from text to image."""
    for name, file in RETRIEVAL.items() if data else ():
        assert data is not None
        task = retrieval_task(place(data, file), name=name)
        task = replace(task, images=lock_source(model, task.images))
        rows = retrieval(encoder, task, model="model").rows
        yield name, _mean(rows, direction="text to image", domain="all", k=10)
