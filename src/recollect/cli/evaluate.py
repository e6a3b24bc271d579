"""``recollect evaluate zero-shot|probe``: figures on labelled sets."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

import tyro
from rich.console import Console
from rich.table import Table

from recollect.cli.default_model import STARTER, default_model
from recollect.cli.memory_options import MemoryOptions
from recollect.cli.memory_reading import reading, reading_name, with_memory
from recollect.cli.positionals import ModelPlaces
from recollect.cli.unread import refuse_unread
from recollect.core.errors import UserError
from recollect.core.files import check_writable
from recollect.core.places import model_name
from recollect.core.progress import output
from recollect.core.types import Encoder, Kind, Source, caption_prefix
from recollect.data.definitions import knowledge_prompts, open_definitions
from recollect.data.prompts import GENERAL_TEMPLATES, read_templates
from recollect.data.sources.columns import Columns
from recollect.evaluation.clip_benchmark import CLIP_BENCHMARK_TASKS, save_clip_benchmark
from recollect.evaluation.features import FeatureCache
from recollect.evaluation.probe import linear_probe
from recollect.evaluation.results import Result, check_place, save_together
from recollect.evaluation.tasks.classification import ClassificationTask, Division
from recollect.evaluation.tasks.opening import OpenedTasks, Selection, open_tasks
from recollect.evaluation.unlabelled import UNLABELLED_METHODS
from recollect.evaluation.zero_shot import zero_shot
from recollect.models import load_model, loading

DataArgument = TypeVar("DataArgument")


@dataclass(frozen=True)
class DataOptions:
    """Labelled images to evaluate on."""

    data: tuple[str, ...] = ()
    """Sources with labels and class names: a path, a hub id, or for the tasks of a built-in world glyphs:captions,
    latents:captions, glyphs:labels (a label set's own classes, in shifted styles and under synonyms too)."""
    suite: str | None = None
    """A suite of benchmark sets instead: lixp-21, lixp-11-ablation, lixp-5 or prefix-11, read from the hub."""
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
    definitions: Path | None = None
    """What the class names mean, to stand behind them in every prompt: a .json, .csv or .tsv file, the folder of a
    WordNet database, or wordnet for the installed one (K-LITE). For models that were trained on such texts."""
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
        opened = open_tasks(selection, "few-shot" if purpose == "probe" else purpose)  # type: ignore[arg-type]
        if self.definitions is None:
            return opened
        look_up = open_definitions(self.definitions)
        return replace(opened, tasks=tuple(self._with_definitions(task, look_up) for task in opened.tasks))

    def check(self) -> None:
        """Refuse options that say nothing beside the others.

        Raises:
            UserError: one was given.
        """
        if self.suite is None:
            refuse_unread(
                self, "copies", why="is of the sets of a suite. Name it with --suite, or the copy with --data."
            )
        if self.within is not None:
            refuse_unread(self, "support", "query", why="--within divides one split into both. Leave one of them out.")

    def refuse(self, command: str, *options: str) -> None:
        """Refuse options that a command would not read, so that nobody believes that they were heeded.

        Raises:
            UserError: one was given.
        """
        refuse_unread(self, *options, why=f"is not read by `recollect evaluate {command}`. Leave it out.")

    def _with_definitions(
        self, task: ClassificationTask, look_up: Callable[[str], tuple[str, ...]]
    ) -> ClassificationTask:
        known = sum(bool(look_up(name)) for name in task.class_names)
        output().print(f"{task.name}: {known} of {len(task.class_names)} classes have a definition", highlight=False)
        return replace(task, class_texts=knowledge_prompts(task.templates, task.class_names, look_up))

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
        return read_templates(self.templates)


@dataclass(frozen=True)
class ModelOptions:
    """The model, and where figures go."""

    models: ModelPlaces
    """RUN/model, any folder of a CLIP-type checkpoint, or a hub id; by default the starter. Of several, gains are over
    the first."""
    out: Path | None = None
    """Folder for one JSON for each model and set, and for figures; or one .json file for all figures together."""
    form: Literal["recollect", "clip-benchmark"] = "recollect"
    """Of the JSON: recollect's own, or that of LAION's CLIP_benchmark (one file for each model and set)."""
    cache: Path | None = None
    """Folder for embeddings, so that they are computed once for each model and set."""
    device: str | None = None
    """Where to compute; the best there is by default."""
    prefix: Literal["auto", "caption", "label", "none"] = "auto"
    """How texts are read by a model trained with prefix tokens: as captions, which is best for what its label set lacks
    and what auto means; as labels, for that set's own classes and pictures; or without prefix. Of several models, those
    without prefix tokens are asked as they are."""
    seed: int = 0
    """Seed the model was trained with, kept in the JSON so that summaries over models can be made."""
    reading: tyro.conf.OmitArgPrefixes[MemoryOptions] = field(default_factory=MemoryOptions)

    def check(self, protocol: str) -> None:
        """Refuse, before any work, a place or a form for the figures that could not be.

        Args:
            protocol: what is evaluated.

        Raises:
            UserError: naming the option.
        """
        self.reading.check()
        check_writable(self.out, "--out")
        check_writable(self.cache, "--cache")
        check_place(self.out)
        if self.out is None:
            refuse_unread(self, "form", why="is of the files that are written. Add --out FOLDER.")
        elif self.form == "clip-benchmark" and self.out.suffix == ".json":
            raise UserError(f"--out {self.out}: CLIP_benchmark has one file for each model and set; name a folder.")
        if self.form == "clip-benchmark" and protocol not in CLIP_BENCHMARK_TASKS:
            known = ", ".join(CLIP_BENCHMARK_TASKS)
            raise UserError(f"--form clip-benchmark: it has no such task as {protocol}. It has {known}.")
        for name in self.models:  # of several, the last would be missed when the others are done
            loading.check_model_place(name)

    def each_on(
        self, tested: Iterable[tuple[DataArgument, Source]]
    ) -> Iterator[tuple[str, Encoder, FeatureCache | None, DataArgument]]:
        """Every model on every set, and its name there; with --memory it reads the memory.

        Args:
            tested: sets, each with the images that are tested, whose near-duplicates are left out of the memory.
        """
        sets = list(tested)
        cache = FeatureCache(self.cache) if self.cache else None
        for name in self.models or (default_model(),):
            encoder = load_model(name, self.device)
            for data, images in sets:
                read = reading(self.reading, encoder, images, cache)
                called = model_name(name, encoder.fingerprint)
                yield reading_name(self.reading, called, read), read, cache, data

    def refuse(self, command: str, *options: str) -> None:
        """See `DataOptions.refuse`."""
        refuse_unread(self, *options, why=f"is not read by `recollect evaluate {command}`. Leave it out.")

    def prefix_for(self, encoder: Encoder) -> Kind | None:
        """The prefix that texts get; none for a model that has none."""
        if self.prefix == "auto":
            return caption_prefix(encoder)
        if self.prefix != "none" and self.prefix not in encoder.prefixes and len(self.models) < 2:
            name = "".join(self.models) or STARTER
            raise UserError(f"--prefix {self.prefix}: {name} has no prefix for {self.prefix}s. Leave it out.")
        return None if self.prefix == "none" else self.prefix

    def save(self, results: Sequence[Result], console: Console) -> None:
        """Write the JSON files."""
        if self.out is None:
            return
        if self.form == "clip-benchmark":
            for result in results:
                save_clip_benchmark(result, self.out)
        elif self.out.suffix == ".json":
            save_together(results, self.out)
            console.print(f"figures: {self.out}", highlight=False)
            return
        else:
            for result in results:
                result.save(self.out)
        console.print(f"{len(results)} JSON files in {self.out}", highlight=False)


def say_left_out(left_out: Sequence[str], console: Console) -> None:
    """Name the sets of a suite that could not be opened, and why."""
    for reason in left_out:
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
        self.data.refuse("zero-shot", "support")
        self.data.check()
        self.model.check("zero-shot")
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
        say_left_out(opened.left_out, console)
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
class Probe:
    """Logistic regression on frozen image embeddings; regularisation is chosen on held-out training images."""

    model: tyro.conf.OmitArgPrefixes[ModelOptions]
    data: tyro.conf.OmitArgPrefixes[DataOptions] = field(default_factory=DataOptions)

    def run(self) -> None:
        """Evaluate, print and write."""
        console = output()
        self.data.refuse("probe", "templates", "definitions")
        self.model.refuse("probe", "prefix")
        self.data.check()
        self.model.check("probe")
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
        say_left_out(opened.left_out, console)
        self.model.save(results, console)
