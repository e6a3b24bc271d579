"""Models, indexes and tasks of RECO's studies at each scale."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from recollect.core.errors import UserError
from recollect.data.prompts import GENERAL_TEMPLATES
from recollect.data.sources import open_source, split_of
from recollect.data.sources.subset import Subset
from recollect.evaluation.entities import open_entities
from recollect.evaluation.tasks.classification import ClassificationTask
from recollect.evaluation.tasks.opening import open_tasks
from recollect.evaluation.tasks.retrieval import RetrievalTask, retrieval_task
from recollect.index import NEAR
from recollect.models import load_model
from recollect.training.options import Data
from recollect.training.recipes import RECIPES
from recollect_papers.reco.bench import Bench, Learning
from recollect_papers.reco.glyphs import (
    ADDRESS,
    glyph_entities,
    glyph_pool,
    glyph_tasks,
    memory_sources,
    training_sources,
)
from recollect_papers.runs import run_folder, train_once
from recollect_papers.study import Scale, StudyOptions, public_names

WORLDS_BY_SCALE: Mapping[Scale, str] = {
    "smoke": "glyphs (pictures of characters), a few steps: a test run without meaningful results",
    "small": "glyphs (pictures of characters): pretraining on half of the characters, fusion training on these and on "
    "others, index of all, tasks on characters that neither training has seen, in held-out faces",
    "full": "the paper's models, or those that you name, on your data",
}

_GLYPH_MODELS = {"random filters": "glyphs-siglip", "convnet": "glyphs-strong-siglip"}
_PAPER_MODELS = {"CLIP-B/32": "openai/clip-vit-base-patch32", "CLIP-L/14": "openai/clip-vit-large-patch14"}
PAPERS_SETS = {
    "Cars": "stanford-cars",
    "CUB": "cub-200-2011",
    "Flowers": "oxford-flowers-102",
    "Im1k": "imagenet",
    "Pl365": "places-365",
    "Dogs": "stanford-dogs",
}
"""Names in the catalog of the six sets of Table 1, by their names in the paper."""


@dataclass(frozen=True)
class Size:
    """Size of a study in the glyph world.

    Attributes:
        steps: number of pretraining steps.
        every: use every n-th character.
        new, known: training pairs per character that is new, or known from pretraining.
        stored: pairs per character in the index.
        learning: training settings of fusions.
        seeds: number of seeds.
    """

    steps: int
    every: int
    new: int
    known: int
    stored: int
    learning: Learning
    seeds: int


SIZES: Mapping[Scale, Size] = {
    "smoke": Size(10, 12, 2, 1, 2, Learning(epochs=1, batch_size=64), 1),
    "small": Size(800, 1, 4, 1, 4, Learning(epochs=10, batch_size=512), 3),
}


def models(options: StudyOptions) -> tuple[str, ...]:
    """Return the names of Table 1's models."""
    return tuple(_places(options)) if options.scale == "full" else tuple(_GLYPH_MODELS)


def _places(options: StudyOptions) -> dict[str, str]:
    """Return the models of scale ``full`` by name."""
    if not options.search.models:
        return dict(_PAPER_MODELS)
    return {name: place for place, name in public_names(options.search.models).items()}


def main_model(options: StudyOptions) -> str:
    """Return the model of the ablations: the paper's B/32, or the user's first."""
    return models(options)[0] if options.scale == "full" else "convnet"


def columns_like(tasks: Mapping[str, object], named: Iterable[str]) -> tuple[str, ...]:
    """Return our columns that match columns of the paper, e.g. ``CUB``, as far as they were opened."""
    return tuple(PAPERS_SETS[name] for name in named if PAPERS_SETS.get(name) in tasks)


def benches(options: StudyOptions, label: str, *, classify: bool = True) -> Iterator[Bench]:
    """Yield the bench of a model for each seed.

    Args:
        classify: whether classification tasks are needed; if not, scale ``full`` opens none.
    """
    if options.scale == "full":
        yield _full(options, label, classify)
        return
    size, tasks = SIZES[options.scale], glyph_tasks()
    if options.scale == "smoke":
        tasks = {column: [_shortened(task) for task in each[:2]] for column, each in tasks.items()}
    for seed in range(options.seeds or size.seeds):
        recipe = RECIPES[_GLYPH_MODELS[label]]()
        recipe = replace(recipe, data=Data(captions=(ADDRESS,)), steps=min(size.steps, recipe.steps), seed=seed)
        folder = run_folder(recipe, options.out)
        yield Bench(
            label,
            load_model(train_once(recipe, folder)),
            folder.with_name(f"{folder.name}-reco"),
            training_sources(size.new, size.known, size.every),
            memory_sources(size.stored, size.every),
            tasks,
            glyph_pool("test", size.every),
            glyph_entities("test", size.every),
            size.learning,
            seed,
        )


def _shortened(task: ClassificationTask) -> ClassificationTask:
    """Return the task with about 80 test images."""
    return replace(task, query=Subset(task.query, np.arange(0, len(task.query), max(1, len(task.query) // 80))))


def _full(options: StudyOptions, label: str, classify: bool) -> Bench:
    if not options.data:
        raise UserError("--scale full trains on your pairs and reads an index. Pass --data PAIRS [INDEXED_PAIRS ...].")
    model = load_model(_places(options)[label])
    training, *others = [open_source(spec) for spec in options.data]
    return Bench(
        label,
        model,
        options.out / "reco" / f"{Path(label).name}-{model.fingerprint[:8]}",
        (training,),
        tuple(others) or (training,),
        _sets(options) if classify else {},
        _pool(options),
        None,
        Learning(),
        near=NEAR,
    )


def _sets(options: StudyOptions) -> dict[str, list[ClassificationTask]]:
    """Open the six sets of Table 1, or the user's suite, skipping unavailable sets."""
    if options.suite:
        found = open_tasks((), "zero-shot", options.suite).tasks
        return {task.name: [task] for task in found}
    opened: dict[str, list[ClassificationTask]] = {}
    for suite in ("lixp-21", "prefix-11"):
        for task in open_tasks((), "zero-shot", suite).tasks:
            if task.name in PAPERS_SETS.values():
                opened[task.name] = [task]
    if not opened:
        raise UserError("none of the paper's six sets can be opened. Pass another suite with --suite.")
    return {name: opened[name] for name in PAPERS_SETS.values() if name in opened}


def _pool(options: StudyOptions) -> RetrievalTask | None:
    """Return the retrieval task of scale ``full``: the test split of the first source, unless training uses it."""
    if split_of(options.data[0]) is not None:
        return None
    try:
        return retrieval_task(options.data[0], split=options.search.split)
    except UserError:
        return None


def entity_bench(options: StudyOptions, bench: Bench) -> Bench:
    """Return the bench with entities, at scale full those of ``--entities``, a source with splits train and test."""
    if bench.entities is not None:
        return bench
    if not options.entities:
        raise UserError(
            "--scale full needs a labeled source with entities. Pass --entities SOURCE; classes in its split train "
            "count as seen, classes only in its split test as unseen."
        )
    return replace(bench, entities=open_entities(options.entities, "train", "test", GENERAL_TEMPLATES))
