"""Many trainings and evaluations side by side, each made once and kept: what studies and the demo are made of."""

import json
import multiprocessing
import os
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from recollect.classifiers.heads.protocol import Protocol, ShortClasses
from recollect.classifiers.tuning import TUNING_METHODS
from recollect.core import progress as reporting
from recollect.core.files import locked, make_folder
from recollect.core.progress import output, progress
from recollect.core.types import Encoder, Kind
from recollect.data.sources.columns import Columns
from recollect.data.sources.generated import is_generated
from recollect.data.sources.images import note
from recollect.data.sources.subset import Subset
from recollect.evaluation.features import FeatureCache
from recollect.evaluation.few_shot import few_shot
from recollect.evaluation.probe import linear_probe
from recollect.evaluation.results import Result, load_results
from recollect.evaluation.retrieval import retrieval
from recollect.evaluation.tables import tidy
from recollect.evaluation.tasks.classification import ClassificationTask, Division
from recollect.evaluation.tasks.opening import Selection, open_tasks
from recollect.evaluation.tasks.retrieval import retrieval_task
from recollect.evaluation.tuned import TuningRequest
from recollect.evaluation.zero_shot import zero_shot
from recollect.models import DualEncoder, load_model
from recollect.training.loop import train
from recollect.training.options import Recipe
from recollect_papers.peers.tuning_methods import BoostingPrompts, CascadedPrompts, PromptSRC
from recollect_papers.store import as_written, content, content_key, file_content, finish, finished


@dataclass(frozen=True)
class StudyTuning:
    """Methods that tune a study's models on the pictures of each draw, in addition to those that read embeddings.

    Attributes:
        methods: names of `recollect.classifiers.tuning.TUNING_METHODS`, or ``caspl``.
        effort: share of the published steps.
        flip: mirror half of the training crops.
        teacher: recipe of the larger model for ``caspl``; trained once, and kept as every run is.
    """

    methods: tuple[str, ...]
    effort: float = 1.0
    flip: bool = True
    teacher: Recipe | None = None

    def request(self, out: Path) -> TuningRequest:
        """The same with the teacher opened, which `run` trains before all else."""
        teacher = None if self.teacher is None else load_model(run_folder(self.teacher, out) / "model")

        def caspl(effort: float, flip: bool, seed: int) -> CascadedPrompts:
            assert isinstance(teacher, DualEncoder)
            boosting = BoostingPrompts(effort=effort, flip=flip, seed=seed)
            return CascadedPrompts(boosting, PromptSRC(effort=effort, flip=flip, seed=seed), teacher)

        known = {**TUNING_METHODS, "caspl": caspl}
        about = {"teacher": teacher and teacher.fingerprint}
        return TuningRequest(self.methods, self.effort, self.flip, known=known, about=about)


@dataclass(frozen=True)
class StudyEvaluation:
    """What every model of a study is evaluated on.

    Attributes:
        few_shot: sources, or a built-in world for its tasks.
        zero_shot: the same for classification by names.
        suite: a suite of the catalogue, for both.
        methods, shots, draws: of the few-shot protocol.
        prefixes: which prefix texts get at the test, each in turn, in zero-shot classification and retrieval; a model
            without prefix tokens is asked once.
        probe: sources for a linear probe, or a built-in world for its tasks.
        probe_suite: a suite of the catalogue, for linear probes.
        tuning: methods that tune the model itself, in the few-shot protocol.
        most_sets: take only the first so many few-shot tasks; all of them by default.
        retrieval: captioned sources to search both ways.
        synonyms: sources with a column of that name, for zero-shot classification under both names of a class.
        templates: take every so many of CLIP's 80 prompt templates.
        queries: ask at most this many images of each class, the first; all by default.
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

    def asked(self, task: ClassificationTask) -> ClassificationTask:
        """The task with as many queries as are asked."""
        if self.queries is None:
            return task
        each = pd.Series(task.query.labels)
        return replace(task, query=Subset(task.query, np.flatnonzero(each.groupby(each).cumcount() < self.queries)))


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
        """Folder of its result files."""
        asked, tested = asdict(self.evaluation), _evaluation_content(self.evaluation)
        key = content_key(self.name, self.paired_seed, asked, tested, size=5)
        return self.folder(out) / f"results-{key}"

    @property
    def paired_seed(self) -> int:
        """The seed that its results name."""
        return self.recipe.seed if self.seed is None else self.seed


def run_folder(recipe: Recipe, out: Path) -> Path:
    """Where the run of a recipe is kept, by what decides the model."""
    start, objective = Path(recipe.model.start).name, recipe.objective
    kind = f"{objective.base}-context" if objective.context else objective.base
    return out / "runs" / f"{start}-{kind}-seed{recipe.seed}-{run_key(recipe)}"


def run_key(recipe: Recipe) -> str:
    """What decides a model, in ten letters: the recipe, and the content of what it trains on and starts from."""
    return content_key(asdict(recipe), _training_content(recipe), size=5)


def _training_content(recipe: Recipe) -> list[str]:
    """What a recipe trains on and starts from, by content."""
    start = Path(recipe.model.start)
    weights = sorted(start.glob("*.safetensors")) if start.is_dir() else []
    read = [content(spec, recipe.data.split, kind) for spec, kind in recipe.data.specs]
    meanings = [] if recipe.data.definitions is None else [file_content(recipe.data.definitions)]
    return [*read, *map(file_content, weights), *meanings]


def _evaluation_content(evaluation: StudyEvaluation) -> list[str]:
    """What an evaluation tests on, by content; the sets of a suite have fixed revisions."""
    named = (evaluation.few_shot, evaluation.zero_shot, evaluation.probe, evaluation.retrieval, evaluation.synonyms)
    tested = [content(spec) for specs in named for spec in specs]
    teacher = evaluation.tuning.teacher if evaluation.tuning else None
    return tested if teacher is None else [*tested, *_training_content(teacher)]


def made_once(recipe: Recipe, folder: Path) -> Path:
    """Train unless that was done already, continuing a stopped run; returns the model.

    Two studies in one folder share their runs: the later one waits for what the other trains. A model that is other
    than it was written is made again from its last checkpoint.
    """
    with alone_in(folder):
        model = train(recipe, folder, resume=folder.exists())
        if not as_written(model):
            note(f"{model}: damaged; it is made again from its last checkpoint")
            shutil.rmtree(model)
            model = train(recipe, folder, resume=True)
        return model


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other study makes what is kept in a folder."""
    locks = folder.parent / ".locks"
    make_folder(locks)
    said = f"{folder.name}: another study makes it; this one waits"
    with locked(locks / folder.name, lambda: note(said)):
        yield


def with_seeds(arms: Mapping[str, Recipe], seeds: int, evaluation: StudyEvaluation) -> list[Job]:
    """Every arm with training seeds 0…seeds - 1. Arms of one seed see the same data and start from the same weights."""
    return [Job(name, replace(recipe, seed=seed), evaluation) for seed in range(seeds) for name, recipe in arms.items()]


def run(jobs: Sequence[Job], out: Path, workers: int | None = None) -> list[Result]:
    """Train and evaluate every job that is not there yet, and read all results.

    A study that was stopped goes on where it was, in the middle of a training too.

    Args:
        out: folder of the studies; jobs are kept in ``out/runs``.
        workers: processes side by side; by default one a core on a CPU, one on a GPU.
    """
    kept = [job.results(out) for job in jobs]  # found once: it reads what every job trains and tests on
    todo = [job for job, folder in zip(jobs, kept, strict=True) if not finished(folder)]
    for evaluation in dict.fromkeys(job.evaluation for job in todo):
        _open_first(evaluation)
    tunings = [job.evaluation.tuning for job in todo if job.evaluation.tuning is not None]
    for teacher in dict.fromkeys(each.teacher for each in tunings if each.teacher is not None):
        made_once(teacher, run_folder(teacher, out))
    workers = min(len(todo), workers or (1 if torch.cuda.is_available() else os.cpu_count() or 1))
    if workers == 1:
        for job in todo:
            _make(job, out)
    elif todo:
        with progress("trainings", len(todo), "runs") as counter:
            for name in _side_by_side(todo, out, workers):
                counter.advance(1, name)
    nothing = StudyEvaluation()  # of those that only trained
    asked = [folder for job, folder in zip(jobs, kept, strict=True) if job.evaluation != nothing]
    return [result for folder in asked for result in load_results(folder)]


def _side_by_side(jobs: Sequence[Job], out: Path, workers: int) -> Iterator[str]:
    """Make the jobs in processes of their own; yields the name of each as it is done."""
    threads = max(1, (os.cpu_count() or 1) // workers)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin, (threads,)) as pool:
        futures = {pool.submit(_make, job, out): job for job in jobs}
        try:
            for future in as_completed(futures):
                future.result()
                yield futures[future].name
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _begin(threads: int) -> None:
    torch.set_num_threads(min(threads, torch.get_num_threads()))  # OMP_NUM_THREADS goes before
    reporting.console.quiet = True  # the parent shows one bar for all
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    """Leave when the parent was killed; what is half done goes on from its last checkpoint the next time."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _make(job: Job, out: Path) -> None:
    folder, kept = job.folder(out), job.results(out)
    model = load_model(made_once(job.recipe, folder))
    cache = FeatureCache(folder / "features") if len(job.evaluation.prefixes) > 1 else None
    tuning = job.evaluation.tuning.request(out) if job.evaluation.tuning else None
    results = evaluate_runs(model, job.name, job.paired_seed, job.evaluation, cache, tuning)
    for left in kept.glob("*.json"):  # of an earlier version that was stopped, or damaged
        left.unlink(missing_ok=True)
    for result in results:
        result.save(kept)
    finish(kept)


def evaluate_runs(
    model: Encoder,
    name: str,
    seed: int,
    evaluation: StudyEvaluation,
    cache: FeatureCache | None = None,
    tuning: TuningRequest | None = None,
) -> list[Result]:
    """All results of one model."""
    protocol = Protocol(evaluation.methods, evaluation.shots, tuple(range(evaluation.draws)))
    learn: Sequence[ClassificationTask] = ()
    if evaluation.few_shot or evaluation.suite:
        learn = open_tasks(Selection(evaluation.few_shot, evaluation.suite), "few-shot").tasks
    results = _by_names(model, name, seed, evaluation, cache)
    for task in map(evaluation.asked, learn[: evaluation.most_sets]):
        settings = replace(protocol, metric=task.metric, short_classes=_short(task, protocol))
        results.append(few_shot(model, task, settings, model=name, seed=seed, cache=cache, tuning=tuning))
    return results


def _short(task: ClassificationTask, protocol: Protocol) -> ShortClasses:
    """Several sets of the papers have classes of fewer examples than 32: all of them are taken there."""
    fewest = np.bincount(task.support.labels, minlength=len(task.class_names)).min()
    return "refuse" if fewest >= protocol.shots[-1] else "all"


def _open_first(evaluation: StudyEvaluation) -> None:
    """Open what models are tested on before any is trained: a source that cannot be opened is reported at once.

    Raises:
        UserError: none of a suite's sets can be opened, or a source cannot.
    """
    asked = evaluation
    read = (*asked.few_shot, *asked.zero_shot, *asked.probe, *asked.retrieval, *asked.synonyms)
    if asked.suite is None and asked.probe_suite is None and all(map(is_generated, read)):
        return
    for specs, suite, purpose in (
        (asked.few_shot, asked.suite, "few-shot"),
        (asked.zero_shot, asked.suite, "zero-shot"),
        (asked.probe, asked.probe_suite, "few-shot"),
    ):
        if specs or suite:
            for reason in open_tasks(Selection(specs, suite), purpose).left_out:  # type: ignore[arg-type]
                output().print(f"left out: {reason}", style="yellow", highlight=False, soft_wrap=True)
    if asked.synonyms:
        open_tasks(renamed_classes(asked.synonyms), "zero-shot")
    for spec in asked.retrieval:
        retrieval_task(spec, split=None if is_generated(spec) else "test")


def _by_names(
    model: Encoder, name: str, seed: int, evaluation: StudyEvaluation, cache: FeatureCache | None
) -> list[Result]:
    """Zero-shot classification and retrieval with each prefix, and linear probes."""
    results = []
    readings = evaluation.prefixes if model.prefixes else (None,)
    selections = [Selection(evaluation.zero_shot, evaluation.suite), renamed_classes(evaluation.synonyms)]
    for selection in selections:
        for task in open_tasks(selection, "zero-shot").tasks if selection.data or selection.suite else ():
            asked = replace(evaluation.asked(task), templates=task.templates[:: evaluation.templates])
            results += [zero_shot(model, asked, model=name, seed=seed, prefix=each, cache=cache) for each in readings]
    for spec in evaluation.retrieval:
        pool = retrieval_task(spec, split=None if is_generated(spec) else "test")
        results += [retrieval(model, pool, model=name, seed=seed, prefix=each, cache=cache) for each in readings]
    if evaluation.probe or evaluation.probe_suite:
        for task in open_tasks(Selection(evaluation.probe, evaluation.probe_suite), "few-shot").tasks:
            results.append(linear_probe(model, evaluation.asked(task), task.metric, model=name, seed=seed, cache=cache))
    return results


def renamed_classes(specs: tuple[str, ...]) -> Selection:
    """Sources with a column ``synonyms``, to be asked for under both names of their classes."""
    return Selection(specs, columns=Columns(synonyms="synonyms"), division=Division(support=None), synonyms=True)


def frames(results: Iterable[Result]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Few-shot and zero-shot results as tidy frames; of zero-shot only the top-1."""
    frame = tidy(results)
    few, zero = (frame[frame["protocol"] == protocol] for protocol in ("few-shot", "zero-shot"))
    return few, zero[zero["metric"] == "top-1"] if len(zero) else zero


def metrics(job: Job, out: Path) -> pd.DataFrame:
    """The logged steps of a job's training."""
    lines = (job.folder(out) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return pd.DataFrame([json.loads(line) for line in lines])
