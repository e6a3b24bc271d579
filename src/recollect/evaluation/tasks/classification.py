"""Classification tasks: images to classify, and examples to learn from."""

import difflib
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from recollect.core.errors import UserError
from recollect.core.progress import note
from recollect.core.seeding import numpy_generator
from recollect.core.types import NO_LABEL, Metric, Source
from recollect.data import sources
from recollect.data.prompts import GENERAL_TEMPLATES, readable
from recollect.data.sources.columns import SPLITS, Columns
from recollect.data.sources.subset import Subset
from recollect.data.sources.table import TableSource


@dataclass(frozen=True)
class ClassificationTask:
    """Images to classify, and examples to learn from.

    Attributes:
        query: test images; never passed to ``fit``.
        class_names: readable names; labels of ``support`` and ``query`` index them.
        templates: prompt templates with ``{}`` for the class name.
        class_texts: explicit prompts of every class, in place of templates and names; empty for a task without texts.
        group: kind of task, if a source has several: ``script``, ``attributes``, ...
        shift: distribution shift: ``faces``, ``styles``, or ``names`` and ``synonyms`` (same classes, other names).
    """

    name: str
    support: Source
    query: Source
    class_names: tuple[str, ...]
    templates: tuple[str, ...]
    class_texts: tuple[tuple[str, ...], ...] | None = None
    group: str = ""
    shift: str = ""
    metric: Metric = "top-1"


RENAMED = ("names", "synonyms")
"""The two shifts with the same classes, under their usual names and under synonyms."""


@dataclass(frozen=True)
class Division:
    """Division of images into examples and tested images.

    Attributes:
        support: split to draw examples from; None for a task without examples (zero-shot only).
        query: split to test on; None uses the test split, or else the validation split.
        within: split to divide into both instead, class by class, e.g. for data sets that split classes instead of
            images, such as Omniglot.
        query_share: share of each class that ``within`` tests on.
    """

    support: str | None = "train"
    query: str | None = None
    within: str | None = None
    query_share: float = 0.5
    seed: int = 0


def classification_task(
    spec: str,
    *,
    name: str | None = None,
    division: Division | None = None,
    templates: tuple[str, ...] = GENERAL_TEMPLATES,
    columns: Columns | None = None,
) -> ClassificationTask:
    """Open a labeled source as a task.

    Both parts have the same classes, namely those that occur in either part, in the source's order.

    Args:
        spec: a source with labels and class names (see `open_source`).
        division: ``?split=`` of the address is the tested split if the division has none.

    Raises:
        UserError: no such split, no class names, a test class without examples, overlapping splits, or fewer than two
            classes.
    """
    division = division or Division()
    support, query = _parts(spec, division, columns)
    names = support.class_names
    if not names or names != query.class_names:
        raise UserError(f"{spec}: class names missing. Add a column 'class_name', or name it (--class-name-column).")
    present, tested = (np.unique(part.labels) for part in (support, query))
    if division.support is None and division.within is None:
        present = tested
    if len(lonely := np.setdiff1d(tested, present)):
        raise UserError(
            f"{spec}: {len(lonely)} of {len(tested)} test classes have no examples, such as '{names[lonely[0]]}'. If "
            "classes are split instead of images, divide one split: --within test."
        )
    if len(present) < 2:
        raise UserError(f"{spec}: only one class, '{names[present[0]]}'. Two or more are needed.")
    name = name or query.name.replace(":test", "").replace(":query", "")
    task = ClassificationTask(name, support, query, names, templates)
    if len(absent := np.setdiff1d(np.arange(len(names)), present)):
        note(f"{spec}: left out {len(absent):,} of {len(names):,} classes without images, such as '{names[absent[0]]}'")
        task = keep_classes(task, present)
    twice = [name for name, count in Counter(task.class_names).items() if count > 1]
    if twice:
        note(f"{spec}: several classes are called '{twice[0]}', so texts cannot tell them apart")
    return task


def keep_classes(task: ClassificationTask, kept: np.ndarray) -> ClassificationTask:
    """Return the task with some of its classes.

    Args:
        kept: labels of these classes, ascending; at least two.
    """
    if len(kept) < 2:
        raise UserError(f"{task.name}: only {len(kept)} classes are left. Two or more are needed.")
    renumber = np.full(len(task.class_names), NO_LABEL, dtype=np.int64)
    renumber[kept] = np.arange(len(kept))
    names = tuple(task.class_names[label] for label in kept)
    parts = [
        Subset(part, np.flatnonzero(np.isin(part.labels, kept)), class_names=names, renumber=renumber)
        for part in (task.support, task.query)
    ]
    texts = tuple(task.class_texts[label] for label in kept) if task.class_texts else task.class_texts
    return replace(task, support=parts[0], query=parts[1], class_names=names, class_texts=texts)


def class_name_shift(task: ClassificationTask) -> tuple[ClassificationTask, ClassificationTask]:
    """Return the same images under usual class names and under synonyms (prefix conditioning, appendix B).

    Only classes with a synonym that shares no word with the name and has a similarity below 0.7 (`difflib`) are kept.
    The source must have a column of synonyms.

    Raises:
        UserError: fewer than two classes have such a synonym.
    """
    synonyms = _synonyms(task)
    kept = np.array(sorted(synonyms), dtype=np.int64)
    if len(kept) < 2:
        raise UserError(f"{task.name}: {len(kept)} classes have a synonym; at least two are needed. Name their column.")
    usual = keep_classes(task, kept)
    shifted = tuple(synonyms[label] for label in kept.tolist())
    return replace(usual, shift="names"), replace(
        usual, name=f"{task.name}:synonyms", class_names=shifted, shift="synonyms"
    )


def _synonyms(task: ClassificationTask) -> dict[int, str]:
    """Return the first sufficiently different synonym of each class that has one."""
    labels = task.query.labels
    found = {}
    for label in np.unique(labels[labels != NO_LABEL]).tolist():
        texts = task.query.texts(int(np.flatnonzero(labels == label)[0]))
        name = task.class_names[label]
        if other := next((text for text in texts if not _alike(readable(text), name)), None):
            found[label] = readable(other)
    return found


def _alike(one: str, other: str) -> bool:
    one, other = one.casefold(), other.casefold()
    shared = set(one.replace("-", " ").split()) & set(other.replace("-", " ").split())
    return bool(shared) or difflib.SequenceMatcher(None, one, other).ratio() >= 0.7


def _parts(spec: str, requested: Division, columns: Columns | None) -> tuple[Source, Source]:
    division = _as_addressed(spec, requested, columns)
    if division.within is None:
        split = division.query or _query_split(spec, columns)
        query = sources.open_source(spec, split=split, kind="label", columns=columns)
        if division.support is None:
            return Subset(query, np.arange(0), name=f"{query.name}:none"), query
        support = sources.open_source(spec, split=division.support, kind="label", columns=columns)
        if shared := shared_images(support, query):
            raise UserError(
                f"{spec}: {shared} of {len(query)} tested images of split '{split}' are also examples (split "
                f"'{division.support}'). Name other splits with --support and --query, or divide one: --within {split}."
            )
        return support, query
    whole = sources.open_source(spec, split=division.within, kind="label", columns=columns)
    tested = tested_mask(whole.labels, whole.class_names, division)
    if not tested.any():
        raise UserError(f"{spec}: split '{division.within}' has one image per class; a class needs two")
    if requested.within is None and sources.split_of(spec) is None:
        note(f"{spec}: no splits, so half of each class is tested and the rest are examples")
    return (
        Subset(whole, np.flatnonzero(~tested), name=f"{whole.name}:support"),
        Subset(whole, np.flatnonzero(tested), name=f"{whole.name}:query"),
    )


def shared_images(support: Source, query: Source) -> int:
    """Return the number of tested images that are also examples."""
    if isinstance(support, TableSource) and isinstance(query, TableSource):  # rows of the same table
        return int(np.isin(query.rows, support.rows).sum())
    return len(query) if support.fingerprint == query.fingerprint else 0


def _as_addressed(spec: str, division: Division, columns: Columns | None) -> Division:
    """Complete the division for an address with a split (``photos.parquet?split=val``), or a source with a single one:
    that split is tested, and also divided if no other split has the examples."""
    if division.query is not None or division.within is not None:
        return division
    split = sources.split_of(spec)
    if split is None:
        names = sources.split_names(spec, columns)
        if len(names) > 1:
            return division
        (split,) = names
    tested = {part.partition("[")[0] for part in split.split("+")}
    others: set[str] = set() if "all" in tested else set(sources.split_names(spec, columns)) - tested
    separate = division.support is None or division.support in others
    return replace(division, query=split) if separate else replace(division, within=split)


def _query_split(spec: str, columns: Columns | None) -> str:
    choices = sources.split_names(spec, columns)
    usual = [SPLITS.get(choice, choice) for choice in choices]
    if wanted := next((split for split in ("test", "validation") if split in usual), None):
        return choices[usual.index(wanted)]
    raise UserError(
        f"{spec}: neither a test nor a validation split (it has {', '.join(choices)}). Name one, as in "
        f"{spec}{'&' if '?' in spec else '?'}split={choices[0]}."
    )


def tested_mask(labels: np.ndarray, names: tuple[str, ...], division: Division) -> np.ndarray:
    """Return a mask of the tested share of every class; the draw of a class does not depend on other classes."""
    tested = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels[labels != NO_LABEL]):
        rows = np.flatnonzero(labels == label)
        drawn = numpy_generator("division", division.seed, names[label] if names else int(label)).permutation(rows)
        tested[drawn[: round(division.query_share * len(rows))]] = True
    return tested
