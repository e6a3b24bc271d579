"""Cached training and evaluation runs."""

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
from recollect_papers.store import cached, content, content_key, exclusive, file_content, load_cached


@dataclass(frozen=True)
class StudyTuning:
    """Few-shot methods that tune the model itself, in addition to those on embeddings.

    Attributes:
        methods: names of `recollect.classifiers.tuning.TUNING_METHODS`, or ``caspl``.
        effort: fraction of the published steps.
        flip: mirror half of the training crops.
        teacher: recipe of the larger model for ``caspl``; cached like every run.
    """

    methods: tuple[str, ...]
    effort: float = 1.0
    flip: bool = True
    teacher: Recipe | None = None

    def request(self, out: Path) -> TuningRequest:
        """Return the request for `few_shot`; `run` has trained the teacher."""
        if self.teacher is None:
            return TuningRequest(self.methods, self.effort, self.flip)
        teacher = load_model(run_folder(self.teacher, out) / "model")
        assert isinstance(teacher, DualEncoder)

        def caspl(effort: float, flip: bool, seed: int) -> CascadedPrompts:
            settings: dict[str, Any] = {"effort": effort, "flip": flip, "seed": seed}
            return CascadedPrompts(BoostingPrompts(**settings), PromptSRC(**settings), teacher)

        return TuningRequest(self.methods, self.effort, self.flip, known={**TUNING_METHODS, "caspl": caspl})


TaskKind = Literal["few-shot", "zero-shot", "synonyms", "probe"]
"""Kinds of classification: from examples, by name, by either of two names of a class, by linear probe."""


@dataclass(frozen=True)
class StudyEvaluation:
    """Evaluations of every model of a study.

    Attributes:
        few_shot, zero_shot, probe: sources, or a synthetic world for its tasks.
        synonyms: sources with a column of that name, for zero-shot classification by either name of a class.
        retrieval: captioned sources for retrieval in both directions.
        suite: suite of the catalog for few-shot and zero-shot classification.
        probe_suite: suite of the catalog for linear probes.
        methods, shots, draws: parameters of the few-shot protocol.
        tuning: few-shot methods that tune the model itself.
        most_sets: maximum number of few-shot tasks.
        prefixes: text prefixes to evaluate zero-shot classification and retrieval with; ignored by models without
            prefix tokens.
        templates: use every n-th of CLIP's 80 prompt templates.
        queries: maximum number of test images per class.
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
        """All sources."""
        return (*self.few_shot, *self.zero_shot, *self.probe, *self.retrieval, *self.synonyms)

    def tasks(self, what: TaskKind) -> OpenedTasks:
        """Open the classification sets of one kind."""
        if what == "synonyms":
            return open_synonym_tasks(self.synonyms) if self.synonyms else OpenedTasks(())
        specs = {"few-shot": self.few_shot, "zero-shot": self.zero_shot, "probe": self.probe}[what]
        suite = self.probe_suite if what == "probe" else self.suite
        purpose: Purpose = "zero-shot" if what == "zero-shot" else "few-shot"
        return open_tasks(specs, purpose, suite) if specs or suite else OpenedTasks(())

    def limited(self, task: ClassificationTask) -> ClassificationTask:
        """Return the task with at most ``queries`` test images per class."""
        if self.queries is None:
            return task
        labels = pd.Series(task.query.labels)
        return replace(task, query=Subset(task.query, np.flatnonzero(labels.groupby(labels).cumcount() < self.queries)))


def open_synonym_tasks(specs: tuple[str, ...]) -> OpenedTasks:
    """Open sources with a column ``synonyms``, for zero-shot tasks with either name of each class."""
    return open_tasks(specs, "zero-shot", columns=Columns(synonyms="synonyms"), synonyms=True)


def _pool(spec: str) -> RetrievalTask:
    return retrieval_task(spec, split=None if is_generated(spec) else "test")


@dataclass(frozen=True)
class Job:
    """One training and its evaluation.

    Attributes:
        name: name of the arm, the same for all seeds.
        recipe: recipe to train.
        evaluation: what to measure.
        seed: seed to pair results by (default: the recipe's).
    """

    name: str
    recipe: Recipe
    evaluation: StudyEvaluation
    seed: int | None = None

    def folder(self, out: Path) -> Path:
        """Return the run folder, shared by all jobs with the same recipe."""
        return run_folder(self.recipe, out)

    def results(self, out: Path) -> Path:
        """Return the results file, keyed by recipe and evaluation but not by name or paired seed."""
        evaluation, teacher = self.evaluation, self.evaluation.tuning and self.evaluation.tuning.teacher
        inputs = [*map(content, evaluation.sources), *(_training_content(teacher) if teacher else ())]
        return self.folder(out) / f"figures-{content_key(asdict(evaluation), inputs, size=5)}.json"

    @property
    def paired_seed(self) -> int:
        """The seed to pair results by."""
        return self.recipe.seed if self.seed is None else self.seed


def run_folder(recipe: Recipe, out: Path) -> Path:
    """Return the run folder of a recipe, keyed by the recipe and the content of its training data and start model."""
    start, objective = Path(recipe.model.start).name, recipe.objective
    kind = f"{objective.base}-context" if objective.context else objective.base
    key = content_key(asdict(recipe), _training_content(recipe), size=5)
    return out / "runs" / f"{start}-{kind}-seed{recipe.seed}-{key}"


def _training_content(recipe: Recipe) -> list[str]:
    """Return digests of a recipe's training data and start model."""
    start = Path(recipe.model.start)
    weights = sorted(start.glob("*.safetensors")) if start.is_dir() else []
    read = [content(spec, recipe.data.split, kind) for spec, kind in recipe.data.specs]
    return [*read, *map(file_content, weights)]


def train_once(recipe: Recipe, folder: Path) -> Path:
    """Train a recipe, resume its training or do nothing if complete; return the model's path.

    Waits if another study is training in the same folder.
    """
    with exclusive(folder):
        return train(recipe, folder, resume=folder.exists())


def with_seeds(arms: Mapping[str, Recipe], seeds: int, evaluation: StudyEvaluation) -> list[Job]:
    """Return jobs for every arm and training seed; arms of one seed share data order and initial weights."""
    return [Job(name, replace(recipe, seed=seed), evaluation) for seed in range(seeds) for name, recipe in arms.items()]


def run(jobs: Sequence[Job], out: Path, workers: int | None = None) -> Measurements:
    """Train and evaluate all jobs and return their figures by name (``arm``) and seed.

    Finished jobs are read from disk; interrupted trainings resume.

    Args:
        out: folder of the studies; runs are stored in ``out/runs``.
        workers: number of processes (default: one per CPU core, or one on a GPU).
    """
    files = {job: job.results(out) for job in jobs}
    todo = [(job, file, out) for job, file in files.items() if load_cached(file) is None]
    for evaluation in dict.fromkeys(job.evaluation for job, *_ in todo):
        _check_sources(evaluation)
    tunings = [job.evaluation.tuning for job, *_ in todo if job.evaluation.tuning is not None]
    for teacher in dict.fromkeys(each.teacher for each in tunings if each.teacher is not None):
        train_once(teacher, run_folder(teacher, out))
    run_parallel(_figures, todo, workers)
    found = Measurements()
    for job, file in files.items():
        found.add_all(_figures(job, file, out), job.paired_seed, arm=job.name)
    return found


def run_parallel(make: Callable[..., Any], calls: Sequence[tuple[Any, ...]], workers: int | None) -> None:
    """Run calls in worker processes (default: one per CPU core, or one on a GPU); a single call runs in-process."""
    workers = min(len(calls), workers or (1 if torch.cuda.is_available() else os.cpu_count() or 1))
    if workers <= 1:
        for call in calls:
            make(*call)
        return
    threads = max(1, (os.cpu_count() or 1) // workers)
    spawn = multiprocessing.get_context("spawn")
    with (
        progress("trainings", len(calls), "runs") as counter,
        ProcessPoolExecutor(workers, spawn, _start_worker, (threads,)) as pool,
    ):
        try:
            for future in as_completed([pool.submit(make, *call) for call in calls]):
                future.result()
                counter.advance(1)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _start_worker(threads: int) -> None:
    torch.set_num_threads(min(threads, torch.get_num_threads()))  # respects a lower OMP_NUM_THREADS
    reporting.console.quiet = True  # the parent shows a common progress bar
    threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()


def _exit_with_parent(parent: int) -> None:
    """Exit if the parent is killed; the next run resumes from the last checkpoint."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _figures(job: Job, file: Path, out: Path) -> list[Any]:
    """Return the figures of a job with their addresses, training and evaluating it unless cached."""

    def compute() -> list[Any]:
        model = load_model(train_once(job.recipe, job.folder(out)))
        evaluation = job.evaluation
        cache = FeatureCache(job.folder(out) / "features") if len(evaluation.prefixes) > 1 else None
        tuning = evaluation.tuning.request(out) if evaluation.tuning else None
        return figures_of(evaluate_model(model, evaluation, cache, tuning))

    return cached(file, compute)


_OWN_METRIC = {"few-shot": "accuracy", "probe": "accuracy of the probe"}
"""Measures that use each data set's own metric, by protocol."""


def figures_of(results: Iterable[Result]) -> list[Any]:
    """Convert results to ``[address, value]`` pairs, averaged over draws.

    Addresses have set and measure, and where applicable method, shots, domain, direction and prefix (``read``). The
    number of classes of each set is included.
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


def evaluate_model(
    model: Encoder, evaluation: StudyEvaluation, cache: FeatureCache | None = None, tuning: TuningRequest | None = None
) -> list[Result]:
    """Run all evaluations of one model."""
    results = list[Result]()
    prefixes = evaluation.prefixes if model.prefixes else (None,)
    for what in ("zero-shot", "synonyms"):
        for task in evaluation.tasks(what).tasks:
            limited = replace(evaluation.limited(task), templates=task.templates[:: evaluation.templates])
            results += [zero_shot(model, limited, prefix=each, cache=cache) for each in prefixes]
    for spec in evaluation.retrieval:
        pool = _pool(spec)
        results += [retrieval(model, pool, prefix=each, cache=cache) for each in prefixes]
    for task in evaluation.tasks("probe").tasks:
        results.append(linear_probe(model, evaluation.limited(task), task.metric, cache=cache))
    protocol = Protocol(evaluation.methods, evaluation.shots, tuple(range(evaluation.draws)))
    for task in map(evaluation.limited, evaluation.tasks("few-shot").tasks[: evaluation.most_sets]):
        fewest = np.bincount(task.support.labels, minlength=len(task.class_names)).min()
        # Several sets of the papers have classes with fewer than 32 examples; use all of them.
        settings = replace(
            protocol, metric=task.metric, short_classes="refuse" if fewest >= protocol.shots[-1] else "all"
        )
        results.append(few_shot(model, task, settings, tuning=tuning, cache=cache))
    return results


def _check_sources(evaluation: StudyEvaluation) -> None:
    """Open all test sources before training, so unreadable ones are reported immediately.

    Raises:
        UserError: a source, or every set of a suite, cannot be opened.
    """
    if evaluation.suite is None and evaluation.probe_suite is None and all(map(is_generated, evaluation.sources)):
        return
    for what in ("few-shot", "zero-shot", "probe", "synonyms"):
        for reason in evaluation.tasks(what).left_out:
            output().print(f"left out: {reason}", style="yellow", highlight=False, soft_wrap=True)
    for spec in evaluation.retrieval:
        _pool(spec)
