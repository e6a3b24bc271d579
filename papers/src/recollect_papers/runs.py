"""Many trainings and evaluations, each made once and kept."""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch

from recollect.classifiers.tuning import TUNING_METHODS
from recollect.core import progress as reporting
from recollect.core.progress import output, progress
from recollect.core.types import Encoder, Kind
from recollect.data.sources.columns import Columns
from recollect.data.sources.generated import is_generated
from recollect.data.sources.subset import Subset
from recollect.evaluation.features import FeatureCache
from recollect.evaluation.few_shot import few_shot
from recollect.evaluation.few_shot_protocol import Protocol
from recollect.evaluation.probe import linear_probe
from recollect.evaluation.results import Result
from recollect.evaluation.retrieval import retrieval
from recollect.evaluation.tasks.classification import ClassificationTask
from recollect.evaluation.tasks.opening import OpenedTasks, Purpose, open_tasks
from recollect.evaluation.tasks.retrieval import RetrievalTask, retrieval_task
from recollect.evaluation.tuned import TuningRequest
from recollect.evaluation.zero_shot import zero_shot
from recollect.models import DualEncoder, load_model
from recollect.training.loop import train
from recollect.training.options import Recipe
from recollect_papers.measurements import Measurements
from recollect_papers.peers.tuning_methods import BoostingPrompts, CascadedPrompts, PromptSRC
from recollect_papers.store import alone_in, content, content_key, file_content, kept, kept_or_made


@dataclass(frozen=True)
class StudyTuning:
    """Methods that tune a study's models on the pictures of each draw, in addition to those that read embeddings.

    Attributes:
        methods: names of `recollect.classifiers.tuning.TUNING_METHODS`, or ``caspl``.
        effort: share of the published steps.
        flip: mirror half of the training crops.
        teacher: recipe of the larger model for ``caspl``; trained once and kept, like every run.
    """

    methods: tuple[str, ...]
    effort: float = 1.0
    flip: bool = True
    teacher: Recipe | None = None

    def request(self, out: Path) -> TuningRequest:
        """The same with the teacher opened, which `run` trains before all else."""
        if self.teacher is None:
            return TuningRequest(self.methods, self.effort, self.flip)
        teacher = load_model(run_folder(self.teacher, out) / "model")
        assert isinstance(teacher, DualEncoder)

        def caspl(effort: float, flip: bool, seed: int) -> CascadedPrompts:
            settings: dict[str, Any] = {"effort": effort, "flip": flip, "seed": seed}
            return CascadedPrompts(BoostingPrompts(**settings), PromptSRC(**settings), teacher)

        return TuningRequest(self.methods, self.effort, self.flip, known={**TUNING_METHODS, "caspl": caspl})


TaskKind = Literal["few-shot", "zero-shot", "synonyms", "probe"]
"""What classification sets are for: learning from examples, names, both names of a class, linear probes."""


@dataclass(frozen=True)
class StudyEvaluation:
    """What every model of a study is evaluated on.

    Attributes:
        few_shot, zero_shot, probe: sources, or a generated world for its tasks.
        synonyms: sources with a column of that name, for zero-shot classification under both names of a class.
        retrieval: captioned sources to search both ways.
        suite: a suite of the catalogue, for few-shot and zero-shot classification.
        probe_suite: a suite of the catalogue, for linear probes.
        methods, shots, draws: of the few-shot protocol.
        tuning: methods that tune the model itself, in the few-shot protocol.
        most_sets: take only this many few-shot tasks.
        prefixes: prefix tokens of texts, each in turn, in zero-shot classification and retrieval; ignored by a model
            without prefix tokens.
        templates: take every n-th of CLIP's 80 prompt templates.
        queries: ask at most this many images of each class, the first.
    """

    few_shot: tuple[str, ...] = ()
    zero_shot: tuple[str, ...] = ()
    suite: str | None = None
    methods: tuple[str, ...] = ("prototype",)
    shots: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    draws: int = 5
    prefixes: tuple[Kind | None, ...] = (None,)
    probe: tuple[str, ...] = ()
    retrieval: tuple[str, ...] = ()
    synonyms: tuple[str, ...] = ()
    templates: int = 1
    probe_suite: str | None = None
    queries: int | None = None
    tuning: StudyTuning | None = None
    most_sets: int | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """Every source that is named."""
        return (*self.few_shot, *self.zero_shot, *self.probe, *self.retrieval, *self.synonyms)

    def tasks(self, what: TaskKind) -> OpenedTasks:
        """Open the classification sets of one kind."""
        if what == "synonyms":
            return open_renamed(self.synonyms) if self.synonyms else OpenedTasks(())
        specs = {"few-shot": self.few_shot, "zero-shot": self.zero_shot, "probe": self.probe}[what]
        suite = self.probe_suite if what == "probe" else self.suite
        purpose: Purpose = "zero-shot" if what == "zero-shot" else "few-shot"
        return open_tasks(specs, purpose, suite) if specs or suite else OpenedTasks(())

    def asked(self, task: ClassificationTask) -> ClassificationTask:
        """The task with as many queries as are asked."""
        if self.queries is None:
            return task
        each = pd.Series(task.query.labels)
        return replace(task, query=Subset(task.query, np.flatnonzero(each.groupby(each).cumcount() < self.queries)))


def open_renamed(specs: tuple[str, ...]) -> OpenedTasks:
    """Sources with a column ``synonyms``, to be asked for under both names of their classes."""
    return open_tasks(specs, "zero-shot", columns=Columns(synonyms="synonyms"), synonyms=True)


def _pool(spec: str) -> RetrievalTask:
    return retrieval_task(spec, split=None if is_generated(spec) else "test")


@dataclass(frozen=True)
class Job:
    """One training and its evaluation.

    Attributes:
        name: of the model in tables, the same for all seeds.
        recipe: what to train.
        evaluation: what to measure then.
        seed: under which its figures are paired with those of others; the recipe's own by default.
    """

    name: str
    recipe: Recipe
    evaluation: StudyEvaluation
    seed: int | None = None

    def folder(self, out: Path) -> Path:
        """Where the run is kept, by what decides the model: jobs of any name with the same recipe share it."""
        return run_folder(self.recipe, out)

    def results(self, out: Path) -> Path:
        """The file of its figures, by what decides them: neither the name nor the seed that they are paired by."""
        asked, teacher = self.evaluation, self.evaluation.tuning and self.evaluation.tuning.teacher
        tested = [*map(content, asked.sources), *(_training_content(teacher) if teacher else ())]
        return self.folder(out) / f"figures-{content_key(asdict(asked), tested, size=5)}.json"

    @property
    def paired_seed(self) -> int:
        """The seed that its results name."""
        return self.recipe.seed if self.seed is None else self.seed


def run_folder(recipe: Recipe, out: Path) -> Path:
    """Where the run of a recipe is kept: named by the recipe, and the content of what it trains on and starts from."""
    start, objective = Path(recipe.model.start).name, recipe.objective
    kind = f"{objective.base}-context" if objective.context else objective.base
    key = content_key(asdict(recipe), _training_content(recipe), size=5)
    return out / "runs" / f"{start}-{kind}-seed{recipe.seed}-{key}"


def _training_content(recipe: Recipe) -> list[str]:
    """What a recipe trains on and starts from, by content."""
    start = Path(recipe.model.start)
    weights = sorted(start.glob("*.safetensors")) if start.is_dir() else []
    read = [content(spec, recipe.data.split, kind) for spec, kind in recipe.data.specs]
    return [*read, *map(file_content, weights)]


def made_once(recipe: Recipe, folder: Path) -> Path:
    """Train unless that was done already, continuing a stopped run; returns the model.

    Two studies in one folder share their runs: the later one waits for what the other trains.
    """
    with alone_in(folder):
        return train(recipe, folder, resume=folder.exists())


def with_seeds(arms: Mapping[str, Recipe], seeds: int, evaluation: StudyEvaluation) -> list[Job]:
    """Every arm with training seeds 0…seeds - 1. Arms of one seed see the same data and start from the same weights."""
    return [Job(name, replace(recipe, seed=seed), evaluation) for seed in range(seeds) for name, recipe in arms.items()]


def run(jobs: Sequence[Job], out: Path, workers: int | None = None) -> Measurements:
    """Train and evaluate every job that is not there yet; every job's figures by its name (``arm``) and seed.

    A study that was stopped goes on where it was, in the middle of a training too.

    Args:
        out: folder of the studies; jobs are kept in ``out/runs``.
        workers: processes side by side; by default one a core on a CPU, one on a GPU.
    """
    files = {job: job.results(out) for job in jobs}
    todo = [(job, file, out) for job, file in files.items() if kept(file) is None]
    for evaluation in dict.fromkeys(job.evaluation for job, *_ in todo):
        _open_first(evaluation)
    tunings = [job.evaluation.tuning for job, *_ in todo if job.evaluation.tuning is not None]
    for teacher in dict.fromkeys(each.teacher for each in tunings if each.teacher is not None):
        made_once(teacher, run_folder(teacher, out))
    side_by_side(_figures, todo, workers)
    found = Measurements()
    for job, file in files.items():
        found.add_all(_figures(job, file, out), job.paired_seed, arm=job.name)
    return found


def side_by_side(make: Callable[..., Any], calls: Sequence[tuple[Any, ...]], workers: int | None) -> None:
    """Make calls in several processes: one a core on a CPU, one on a GPU by default; in this process if one will do."""
    workers = min(len(calls), workers or (1 if torch.cuda.is_available() else os.cpu_count() or 1))
    if workers <= 1:
        for call in calls:
            make(*call)
        return
    threads = max(1, (os.cpu_count() or 1) // workers)
    spawn = multiprocessing.get_context("spawn")
    with (
        progress("trainings", len(calls), "runs") as counter,
        ProcessPoolExecutor(workers, spawn, _begin, (threads,)) as pool,
    ):
        try:
            for future in as_completed([pool.submit(make, *call) for call in calls]):
                future.result()
                counter.advance(1)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _begin(threads: int) -> None:
    torch.set_num_threads(min(threads, torch.get_num_threads()))  # OMP_NUM_THREADS goes before
    reporting.console.quiet = True  # the parent shows one bar for all
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    """Leave when the parent was killed; unfinished work goes on from its last checkpoint the next time."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _figures(job: Job, file: Path, out: Path) -> list[Any]:
    """The figures of a job with their addresses; trained and measured now if its file is not there."""

    def make() -> list[Any]:
        model = load_model(made_once(job.recipe, job.folder(out)))
        asked = job.evaluation
        cache = FeatureCache(job.folder(out) / "features") if len(asked.prefixes) > 1 else None
        tuning = asked.tuning.request(out) if asked.tuning else None
        return figures_of(evaluate_runs(model, asked, cache, tuning))

    return kept_or_made(file, make)


_OWN_METRIC = {"few-shot": "accuracy", "probe": "accuracy of the probe"}
"""What protocols measure in each set's own metric."""


def figures_of(results: Iterable[Result]) -> list[Any]:
    """Every figure of some results with its address, ``[address, value]``; of several draws the mean.

    An address has the set, the measure, and what else a row says: method, shots, domain, direction, prefix (``read``).
    The number of classes of a set is a figure too.
    """
    values: dict[tuple[tuple[str, str], ...], list[float]] = {}
    for result in results:
        read = {"read": str(result.settings["prefix"])} if result.settings.get("prefix") else {}
        if "classes" in result.settings:
            values[("set", result.data), ("measure", "classes")] = [float(result.settings["classes"])]
        for row in result.rows:
            measure = f"R@{row['k']}" if row["metric"] == "recall" else str(row["metric"])
            at = {"set": result.data, "measure": _OWN_METRIC.get(result.protocol, measure), **read}
            at |= {key: f"{row[key]}" for key in ("method", "shots", "domain", "direction") if key in row}
            values.setdefault(tuple(at.items()), []).append(float(row["value"]))
    return [[dict(address), float(np.mean(each))] for address, each in values.items()]


def evaluate_runs(
    model: Encoder, evaluation: StudyEvaluation, cache: FeatureCache | None = None, tuning: TuningRequest | None = None
) -> list[Result]:
    """All results of one model."""
    results = list[Result]()
    readings = evaluation.prefixes if model.prefixes else (None,)
    for what in ("zero-shot", "synonyms"):
        for task in evaluation.tasks(what).tasks:
            asked = replace(evaluation.asked(task), templates=task.templates[:: evaluation.templates])
            results += [zero_shot(model, asked, prefix=each, cache=cache) for each in readings]
    for spec in evaluation.retrieval:
        pool = _pool(spec)
        results += [retrieval(model, pool, prefix=each, cache=cache) for each in readings]
    for task in evaluation.tasks("probe").tasks:
        results.append(linear_probe(model, evaluation.asked(task), task.metric, cache=cache))
    protocol = Protocol(evaluation.methods, evaluation.shots, tuple(range(evaluation.draws)))
    for task in map(evaluation.asked, evaluation.tasks("few-shot").tasks[: evaluation.most_sets]):
        fewest = np.bincount(task.support.labels, minlength=len(task.class_names)).min()
        # Several sets of the papers have classes with fewer examples than 32: all of them are taken there.
        settings = replace(
            protocol, metric=task.metric, short_classes="refuse" if fewest >= protocol.shots[-1] else "all"
        )
        results.append(few_shot(model, task, settings, tuning=tuning, cache=cache))
    return results


def _open_first(evaluation: StudyEvaluation) -> None:
    """Open what models are tested on before any is trained: a source that cannot be opened is reported at once.

    Raises:
        UserError: none of a suite's sets can be opened, or a source cannot.
    """
    if evaluation.suite is None and evaluation.probe_suite is None and all(map(is_generated, evaluation.sources)):
        return
    for what in ("few-shot", "zero-shot", "probe", "synonyms"):
        for reason in evaluation.tasks(what).left_out:
            output().print(f"left out: {reason}", style="yellow", highlight=False, soft_wrap=True)
    for spec in evaluation.retrieval:
        _pool(spec)
