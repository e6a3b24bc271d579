"""``recollect evaluate zero-shot|few-shot|probe``: figures on labelled sets."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

import pandas as pd
import tyro
from rich.console import Console
from rich.table import Table

from recollect.commands.memory_options import MemoryOptions, with_memory
from recollect.commands.positionals import ModelPlaces
from recollect.core.errors import UserError
from recollect.core.progress import output
from recollect.core.types import Encoder, Kind, Source, caption_prefix
from recollect.data.prompts import GENERAL_TEMPLATES
from recollect.data.sources.columns import Columns
from recollect.evaluation.features import FeatureCache
from recollect.evaluation.few_shot import few_shot, with_enough_examples
from recollect.evaluation.probe import linear_probe
from recollect.evaluation.results import Result, save_together, summarise
from recollect.evaluation.tables import gain_over_draws, sample_efficiency, tidy
from recollect.evaluation.tuned import TuningRequest
from recollect.evaluation.unlabelled import UNLABELLED_METHODS
from recollect.evaluation.zero_shot import zero_shot
from recollect.fewshot.protocol import FEW_SHOT_METHODS, PAPER_METHODS, SET_ALPHA, TRUST_COLUMNS, Protocol
from recollect.models import load_model
from recollect.reports.plots import few_shot_curves, gain_against_examples, gain_per_data_set, save_figure
from recollect.tasks.classification import ClassificationTask, Division
from recollect.tasks.opening import OpenedTasks, Selection, open_tasks
from recollect.tuning.methods import CASCADE, TUNING_METHODS

DataArgument = TypeVar("DataArgument")


@dataclass(frozen=True)
class DataOptions:
    """Labelled images to evaluate on."""

    data: tuple[str, ...] = ()
    """Sources with labels and class names: a path, a hub id, or for the tasks of a built-in world glyphs:captions,
    latents:captions, glyphs:labels (a label set's own classes, in shifted styles and under synonyms too)."""
    suite: str | None = None
    """A suite of benchmark sets instead: lixp-21, lixp-11-ablation or prefix-11, read from the hub."""
    copies: tuple[str, ...] = ()
    """NAME=SOURCE: read a set of the suite from your own copy."""
    support: str = "train"
    """Split that examples are drawn from."""
    query: str | None = None
    """Split that is tested; test by default, else validation."""
    within: str | None = None
    """Divide this one split into examples and tested images, class by class."""
    templates: Path | None = None
    """A text file of prompt templates, one a line with {} for the class name; CLIP's 80 by default."""
    label_column: str | None = None
    """Where its name is unusual, as for the columns below."""
    class_name_column: str | None = None
    """Readable names of class numbers."""
    image_column: str | None = None
    """Image bytes or paths."""

    def open(self, purpose: str, synonyms: str | None = None) -> OpenedTasks:
        """The tasks; with a column of synonyms, their classes under both names."""
        division = Division(self.support, self.query, self.within)
        if purpose == "zero-shot" and self.within is None:
            division = replace(division, support=None)
        columns = replace(self.columns, synonyms=synonyms)
        renamed = synonyms is not None
        selection = Selection(self.data, self.suite, self.copies, division, self.read_templates(), columns, renamed)
        return open_tasks(selection, "few-shot" if purpose == "probe" else purpose)  # type: ignore[arg-type]

    @property
    def columns(self) -> Columns:
        """Which column is which."""
        return Columns(image=self.image_column, label=self.label_column, class_name=self.class_name_column)

    def read_templates(self) -> tuple[str, ...]:
        """The prompt templates.

        Raises:
            UserError: one has no place for the name.
        """
        if self.templates is None:
            return GENERAL_TEMPLATES
        lines = tuple(line.strip() for line in self.templates.read_text(encoding="utf-8").splitlines() if line.strip())
        if wrong := [line for line in lines if "{}" not in line] or ([] if lines else ["(empty)"]):
            raise UserError(f"{self.templates}: a template needs {{}} for the class name, but one reads: {wrong[0]}")
        return lines


@dataclass(frozen=True)
class ModelOptions:
    """The model, and where figures go."""

    models: ModelPlaces
    """One or more: RUN/model, any folder of a CLIP-type checkpoint, or a hub id. Gains are over the first."""
    out: Path | None = None
    """Folder for one JSON for each model and set, and for figures; or one .json file for all figures together."""
    cache: Path | None = None
    """Folder for embeddings, so that they are computed once for each model and set."""
    device: str | None = None
    """Where to compute; the best there is by default."""
    prefix: Literal["auto", "caption", "label", "none"] = "auto"
    """How texts are read by a model trained with prefix tokens: as captions, which is best for what its label set lacks
    and what auto means; as labels, for that set's own classes and pictures; or without prefix."""
    seed: int = 0
    """Seed the model was trained with, kept in the JSON so that summaries over models can be made."""
    reading: tyro.conf.OmitArgPrefixes[MemoryOptions] = field(default_factory=MemoryOptions)

    def each(self) -> Iterator[tuple[str, Encoder, FeatureCache | None]]:
        """Every model with its name and the cache."""
        if not self.models:
            raise UserError("no model was named. Give a folder or a hub id before --data.")
        self.reading.check()
        cache = FeatureCache(self.cache) if self.cache else None
        for name in self.models:
            yield name, load_model(name, self.device), cache

    def each_on(
        self, tested: Iterable[tuple[DataArgument, Source]]
    ) -> Iterator[tuple[str, Encoder, FeatureCache | None, DataArgument]]:
        """Every model on every set, and its name there; with --memory it reads the memory.

        Args:
            tested: sets, each with the images that are tested, whose near-duplicates are left out of the memory.
        """
        sets = list(tested)
        for name, encoder, cache in self.each():
            for data, images in sets:
                reading = self.reading.apply(encoder, images, cache)
                yield self.reading.name(name, reading), reading, cache, data

    def prefix_for(self, encoder: Encoder) -> Kind | None:
        """The prefix that texts get; none for a model that has none."""
        if self.prefix == "auto":
            return caption_prefix(encoder)
        return None if self.prefix == "none" else self.prefix

    def save(self, results: Sequence[Result], console: Console) -> None:
        """Write the JSON files."""
        if self.out is None:
            return
        if self.out.suffix == ".json":
            save_together(results, self.out)
            console.print(f"figures: {self.out}", highlight=False)
            return
        for result in results:
            result.save(self.out)
        console.print(f"{len(results)} JSON files in {self.out}", highlight=False)


_TUNING = (*TUNING_METHODS, CASCADE)


def _say_left_out(opened: OpenedTasks, console: Console) -> None:
    for reason in opened.left_out:
        console.print(f"left out: {reason}", style="yellow", highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class ZeroShot:
    """Classify by class names alone: 80 prompts a class, averaged; top-1 and mean per class, in percent."""

    model: tyro.conf.OmitArgPrefixes[ModelOptions]
    data: tyro.conf.OmitArgPrefixes[DataOptions] = field(default_factory=DataOptions)
    synonyms_column: str | None = None
    """A column with other names of a class: test the classes that have one under their names and under these."""
    methods: tuple[str, ...] = ()
    """Others to stand beside the plain ensemble of prompts. They read the whole folder of tested images at once
    (trans-clip, stat-a, adapt-folder), those that came before (tda, adapt), or 64 views of each (zero); or all."""

    def run(self) -> None:
        """Evaluate, print and write."""
        console = output()
        methods = tuple(UNLABELLED_METHODS) if self.methods == ("all",) else tuple(dict.fromkeys(self.methods))
        if unknown := [name for name in methods if name not in UNLABELLED_METHODS]:
            raise UserError(
                f"--methods {unknown[0]}: no such method. Choose from: {', '.join(UNLABELLED_METHODS)}, all."
            )
        opened = self.data.open("zero-shot", self.synonyms_column)
        results = []
        for name, encoder, cache, task in self.model.each_on((task, task.query) for task in opened.tasks):
            options = {"model": name, "seed": self.model.seed, "prefix": self.model.prefix_for(encoder), "cache": cache}
            try:
                found = zero_shot(encoder, task, methods=methods, **options)  # type: ignore[arg-type]
            except ValueError as error:  # e.g. too few images to have neighbours
                raise UserError(f"{task.name}: {error}") from None
            results.append(with_memory(found, encoder))
        console.print(_zero_shot_table(results, methods))
        _say_left_out(opened, console)
        self.model.save(results, console)


def _zero_shot_table(results: Sequence[Result], methods: Sequence[str]) -> Table:
    beside = ("method", "reads besides") if methods else ()
    table = Table("model", "data", "classes", "images", *beside, "top-1", "mean per class")
    for result in results:
        counts = (str(result.settings["classes"]), str(result.settings["queries"]))
        for method in ("", *methods):
            rows = [row for row in result.rows if row.get("method", "") == method]
            values = {row["metric"]: f"{row['value']:.1f}" for row in rows}
            named = (method or "prompt ensemble", str(rows[0].get("reads", ""))) if methods else ()
            table.add_row(result.model, result.data, *counts, *named, values["top-1"], values["mean per class"])
    return table


@dataclass(frozen=True)
class FewShot:
    """Classify with a few labelled images, mostly without training.

    Supports are drawn from the support split, nested over shots, anew for each seed; nothing is ever chosen on tested
    images. Prints mean and standard deviation over seeds for every set; with several models also gains over the first.
    """

    model: tyro.conf.OmitArgPrefixes[ModelOptions]
    data: tyro.conf.OmitArgPrefixes[DataOptions] = field(default_factory=DataOptions)
    methods: tuple[str, ...] = ("zero-shot", *PAPER_METHODS)
    """Names, `paper` for the paper's six, or `all` that read embeddings. These tune the model itself, on pictures, for
    minutes to hours: clip-lora, 2sfs, coop, kgcoop, maple, promptsrc, caspl."""
    shots: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    """Examples of each class."""
    seeds: int = 5
    """Number of draws."""
    effort: float = 1.0
    """Share of the published steps that methods that tune the model take."""
    flip: bool = True
    """Mirror half of the pictures that these learn from; not where they hold letters, signs or maps."""
    teacher: str | None = None
    """A larger model, that caspl learns from on all pictures of the support split, without their labels."""
    small_classes: Literal["refuse", "drop"] = "refuse"
    """What to do with classes that have fewer examples than the most shots: stop, or leave them out of the set."""

    def run(self) -> None:
        """Evaluate, print, plot and write."""
        console = output()
        protocol, tuning = self._protocol(), self._tuning()
        opened = self.data.open("few-shot")
        tasks = [self._fitting(task, protocol) for task in opened.tasks]
        results = []
        for name, encoder, cache, task in self.model.each_on((task, task.query) for task in tasks):
            options = {"model": name, "seed": self.model.seed, "prefix": self.model.prefix_for(encoder), "cache": cache}
            options["tuning"] = tuning
            found = few_shot(encoder, task, replace(protocol, metric=task.metric), **options)  # type: ignore[arg-type]
            results.append(with_memory(found, encoder))
        frame = tidy(results)
        for name in dict.fromkeys(result.model for result in results):
            for data in dict.fromkeys(frame["data"]):
                _few_shot_table(f"{name} on {data}", frame[(frame["model"] == name) & (frame["data"] == data)], console)
            if frame["data"].nunique() > 1:
                _few_shot_table(
                    f"{name}, mean of {frame['data'].nunique()} sets", frame[frame["model"] == name], console
                )
        _say_left_out(opened, console)
        self.model.save(results, console)
        self._compare(frame, console)

    def _protocol(self) -> Protocol:
        names = {"all": tuple(FEW_SHOT_METHODS), "paper": PAPER_METHODS}
        asked = [name for name in self.methods if name not in _TUNING]
        methods = tuple(dict.fromkeys(name for each in asked for name in names.get(each, (each,))))
        try:
            return Protocol(methods, tuple(sorted(set(self.shots))), tuple(range(self.seeds)))
        except ValueError as error:
            raise UserError(f"--methods, --shots: {error}") from None

    def _tuning(self) -> TuningRequest:
        methods = tuple(dict.fromkeys(name for name in self.methods if name in _TUNING))
        if CASCADE in methods and self.teacher is None:
            raise UserError("--methods caspl: learns from a larger model. Name it with --teacher MODEL.")
        teacher = load_model(self.teacher, self.model.device) if self.teacher else None
        try:
            return TuningRequest(methods, self.effort, self.flip, teacher)
        except ValueError as error:
            raise UserError(f"--effort: {error}") from None

    def _fitting(self, task: ClassificationTask, protocol: Protocol) -> ClassificationTask:
        return with_enough_examples(task, protocol.shots[-1]) if self.small_classes == "drop" else task

    def _compare(self, frame: pd.DataFrame, console: Console) -> None:
        """Figures, and with two or more models what the later ones gain over the first."""
        methods = [name for name in dict.fromkeys(frame["method"]) if name != "zero-shot"]
        models, shots = list(dict.fromkeys(frame["model"])), max(self.shots)
        for model in models[1:]:
            table = Table("method", *(f"{k} shots" for k in sorted(self.shots)), "fewer shots by")
            for method in methods:
                saved = sample_efficiency(frame, model, models[0], method)
                cells = [gain_over_draws(frame, model, models[0], method, k).signed() for k in sorted(self.shots)]
                table.add_row(method, *cells, f"{saved} ({saved.accuracy:.1f} %)")
            sets, draws = frame["data"].nunique(), frame[frame["shots"] > 0]["seed"].nunique()
            of = f"mean of {sets} sets" if sets > 1 else f"{frame['data'].iloc[0]}"
            console.print(
                f"\n{model} minus {models[0]}, {of}, ± over {draws} draws that both had",
                highlight=False,
                soft_wrap=True,
            )
            console.print(table)
        if self.model.out is None or self.model.out.suffix == ".json":
            return
        # Error bars are over draws of the support here: one model is one training.
        curves = frame.assign(training_seed=frame["seed"]) if frame["training_seed"].nunique() == 1 else frame
        zero = frame[frame["method"] == "zero-shot"].groupby("model")["value"].mean().to_dict()
        figures = {"few-shot.png": few_shot_curves(curves[curves["shots"] > 0], models, methods, zero)}
        for number, model in enumerate(models[1:], 1):
            figures[f"gain-per-data-set-{number}.png"] = gain_per_data_set(frame, model, models[0], methods[0], shots)
            figures[f"gain-against-examples-{number}.png"] = gain_against_examples(
                frame, model, models[0], methods[0], shots
            )
        for name, figure in figures.items():
            save_figure(figure, self.model.out / name)
        console.print(
            f"figures: {', '.join(str(self.model.out / name) for name in figures)}", highlight=False, soft_wrap=True
        )


def _few_shot_table(title: str, frame: pd.DataFrame, console: Console) -> None:
    """Methods by shots: the mean over sets, with the standard deviation over draws."""
    shots = sorted(k for k in frame["shots"].unique() if k)
    table = Table("method", *(f"{k} shots" for k in shots))
    for method in dict.fromkeys(frame["method"]):
        chosen = frame[frame["method"] == method]
        if method == "zero-shot":
            table.add_row(method, *[f"{chosen['value'].mean():.1f}"] * len(shots))
            continue
        draws = chosen.groupby(["shots", "seed"])["value"].mean()
        table.add_row(method, *(str(summarise(draws[k])) for k in shots))
    console.print(f"\n{title}", highlight=False, soft_wrap=True)
    console.print(table)
    _trust_table(frame, int(shots[-1]), console)


def _trust_table(frame: pd.DataFrame, shots: int, console: Console) -> None:
    """At the most shots: how far confidence is off, and what the conformal sets hold."""
    table = Table("method", "left-out accuracy", "calibration error", "coverage", "classes a set")
    for method in dict.fromkeys(frame["method"]):
        chosen = frame[(frame["method"] == method) & frame["shots"].isin((0, shots))]
        means = chosen.reindex(columns=list(TRUST_COLUMNS)).mean()  # what no method of these measures has no column
        cells = ["" if pd.isna(means[name]) else f"{means[name]:.1f}" for name in TRUST_COLUMNS]
        table.add_row(method, *cells)
    console.print(
        f"trust at {shots} shots, in percent; sets at an error rate of {100 * SET_ALPHA:g} %", highlight=False
    )
    console.print(table)


@dataclass(frozen=True)
class Probe:
    """Logistic regression on frozen image embeddings; regularisation is chosen on held-out training images."""

    model: tyro.conf.OmitArgPrefixes[ModelOptions]
    data: tyro.conf.OmitArgPrefixes[DataOptions] = field(default_factory=DataOptions)

    def run(self) -> None:
        """Evaluate, print and write."""
        console = output()
        opened = self.data.open("probe")
        results = []
        for name, encoder, cache, task in self.model.each_on((task, task.query) for task in opened.tasks):
            found = linear_probe(encoder, task, task.metric, model=name, seed=self.model.seed, cache=cache)
            results.append(with_memory(found, encoder))
        table = Table("model", "data", "metric", "accuracy", "C")
        for result in results:
            row = result.rows[0]
            table.add_row(result.model, result.data, row["metric"], f"{row['value']:.1f}", f"{row['C']:g}")
        console.print(table)
        _say_left_out(opened, console)
        self.model.save(results, console)
