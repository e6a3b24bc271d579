"""What all ``recollect evaluate`` commands share: open data and models, and write results."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from recollect.cli.defaults import default_model
from recollect.cli.evaluate import DataOptions, LabelledData, ModelOptions
from recollect.cli.fusion_encoder import name_with_index, reading, with_index
from recollect.cli.parser import say, warn_unused
from recollect.core.paths import check_writable
from recollect.core.places import model_name
from recollect.core.types import Encoder, Kind, Source, caption_prefix
from recollect.core.validation import check_choice, refuse
from recollect.data.definitions import knowledge_prompts, open_definitions
from recollect.data.prompts import GENERAL_TEMPLATES, read_templates
from recollect.data.sources.columns import Columns
from recollect.evaluation.clip_benchmark import CLIP_BENCHMARK_TASKS, save_clip_benchmark
from recollect.evaluation.features import FeatureCache
from recollect.evaluation.results import Result, check_place, save_together
from recollect.evaluation.tasks.classification import ClassificationTask, Division
from recollect.evaluation.tasks.opening import OpenedTasks, Selection, open_tasks
from recollect.models import load_model
from recollect.models.parts import check_model_place
from recollect.models.pretrained import STARTER

DataArgument = TypeVar("DataArgument")


def open_data(options: DataOptions, purpose: str, synonyms: str | None = None) -> OpenedTasks:
    """The tasks; with a column of synonyms, their classes under both names."""
    division = Division(options.support, options.query, options.within)
    if purpose == "zero-shot" and options.within is None:
        division = replace(division, support=None)
    columns = replace(columns_of(options), synonyms=synonyms)
    renamed = synonyms is not None
    selection = Selection(
        options.data, options.suite, options.copies, division, prompt_templates(options), columns, renamed
    )
    opened = open_tasks(selection, "few-shot" if purpose == "probe" else purpose)  # type: ignore[arg-type]
    if options.definitions is None:
        return opened
    look_up = open_definitions(options.definitions)
    return replace(opened, tasks=tuple(_with_definitions(task, look_up) for task in opened.tasks))


def require_data(data: LabelledData) -> None:
    """Require data, or a suite of sets.

    Raises:
        UserError: no data was named.
    """
    no_data = not data.data and not (isinstance(data, DataOptions) and data.suite)
    refuse((no_data, "missing: --data SOURCE. Name the data to evaluate on."))


def check_named_data(options: DataOptions, *unread: str, command: str = "") -> None:
    """Require data, and warn of options without effect.

    Args:
        options: the command's.
        unread: options that ``command`` does not read.
        command: `recollect evaluate`'s.

    Raises:
        UserError: no data was named.
    """
    require_data(options)
    if unread:
        warn_unused(options, *unread, why=f"`recollect evaluate {command}` does not read it")
    if options.suite is None:
        warn_unused(options, "copies", why="it replaces sets of a --suite")
    if options.within is not None:
        warn_unused(options, "support", "query", why="--within divides one split into both")


def _with_definitions(task: ClassificationTask, look_up: Callable[[str], tuple[str, ...]]) -> ClassificationTask:
    known = sum(bool(look_up(name)) for name in task.class_names)
    say(f"{task.name}: {known} of {len(task.class_names)} classes have a definition")
    return replace(task, class_texts=knowledge_prompts(task.templates, task.class_names, look_up))


def columns_of(options: LabelledData) -> Columns:
    """Which column is which."""
    return Columns(image=options.image_column, label=options.label_column, class_name=options.class_name_column)


def prompt_templates(options: LabelledData) -> tuple[str, ...]:
    """The prompt templates.

    Raises:
        UserError: one has no place for the name.
    """
    if options.templates is None:
        return GENERAL_TEMPLATES
    return read_templates(options.templates)


def check_models(options: ModelOptions, protocol: str) -> None:
    """Refuse, before any work, a place or a form for the figures that could not be.

    Args:
        protocol: what is evaluated.

    Raises:
        UserError: naming the option.
    """
    options.reading.check()
    check_writable(options.out, "--out")
    check_writable(options.cache, "--cache")
    check_place(options.out)
    if options.out is None:
        warn_unused(options, "form", why="nothing is written without --out FOLDER")
    elif options.form == "clip-benchmark":
        one_file = options.out.suffix == ".json"
        refuse((one_file, f"--out {options.out}: CLIP_benchmark has one file per model and data set; name a folder."))
    if options.form == "clip-benchmark":
        check_choice(protocol, CLIP_BENCHMARK_TASKS, "--form clip-benchmark: task")
    for name in options.models:  # of several, the last would be missed when the others are done
        check_model_place(name)


def each_on(
    options: ModelOptions, tested: Iterable[tuple[DataArgument, Source]]
) -> Iterator[tuple[str, Encoder, FeatureCache | None, DataArgument]]:
    """Every model on every set, and its name there; with --index it reads the index.

    Args:
        tested: sets, each with the images that are tested, whose near-duplicates are left out of the index.
    """
    sets = list(tested)
    cache = FeatureCache(options.cache) if options.cache else None
    for name in options.models or (default_model(),):
        encoder = load_model(name, options.device)
        for data, images in sets:
            read = reading(options.reading, encoder, images, cache)
            called = model_name(name, encoder.fingerprint)
            yield name_with_index(options.reading, called, read), read, cache, data


def evaluate_each(
    options: ModelOptions, tested: Iterable[tuple[DataArgument, Source]], evaluate: Callable[..., Result]
) -> list[Result]:
    """``evaluate(encoder, data, model=…, seed=…, prefix=…, cache=…)`` of every model on every set (`each_on`)."""
    results = []
    for name, encoder, cache, data in each_on(options, tested):
        prefix = prefix_for(options, encoder)
        found = evaluate(encoder, data, model=name, seed=options.seed, prefix=prefix, cache=cache)
        results.append(with_index(found, encoder))
    return results


def prefix_for(options: ModelOptions, encoder: Encoder) -> Kind | None:
    """The prefix that texts get; none for a model that has none."""
    if options.prefix == "auto":
        return caption_prefix(encoder)
    unknown = options.prefix != "none" and options.prefix not in encoder.prefixes and len(options.models) < 2
    name = "".join(options.models) or STARTER
    refuse((unknown, f"--prefix {options.prefix}: {name} has no prefix for {options.prefix}s. Leave it out."))
    return None if options.prefix == "none" else options.prefix


def write_results(options: ModelOptions, results: Sequence[Result]) -> None:
    """Write the JSON files."""
    if options.out is None:
        return
    if options.form == "clip-benchmark":
        for result in results:
            save_clip_benchmark(result, options.out)
    elif options.out.suffix == ".json":
        save_together(results, options.out)
        say(f"figures: {options.out}")
        return
    else:
        for result in results:
            result.save(options.out)
    say(f"{len(results)} JSON files in {options.out}")


def say_left_out(left_out: Sequence[str]) -> None:
    """Name the sets of a suite that could not be opened, and why."""
    for reason in left_out:
        say(f"left out: {reason}", "yellow")
