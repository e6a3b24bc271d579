"""What leaves the page: a classifier, tables, labels in the memory; and every picture sorted by what was taught."""

import io
import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recollect.apps.classify.classifier import Classifier
from recollect.apps.classify.teaching import (
    ClassifierModel,
    Support,
    class_prefix,
    class_prompts_of,
    not_of_pixels,
)
from recollect.core.errors import UserError
from recollect.core.types import Encoder
from recollect.evaluation.features import learned_scale, prompt_ensemble
from recollect.memory.naming import ROWS_OF_A_COMMIT, label_columns
from recollect.web.collection import Collection
from recollect.web.orders import Order, Orders
from recollect.web.teaching import Teaching

_NAME = re.compile(r"[^\W_][\w .-]{0,80}")
_LONGEST = 200  # bytes of a folder's name
_AT_ONCE, _ROWS = 8_192, 32


@dataclass(frozen=True)
class Sorted:
    """Every row by the classifier that the clicks make.

    Attributes:
        revision: of the clicks.
        classifier: as `Keeper.classifier` makes it.
        best: index of the likeliest class of each row.
        probability: of that class.
        unknown: rows that are unlike every example.
    """

    revision: int
    classifier: Classifier
    best: np.ndarray
    probability: np.ndarray
    unknown: np.ndarray


@dataclass(frozen=True)
class Written:
    """What became of labels in the memory.

    Attributes:
        changed: rows.
        pictures: of these rows, each with its copies once.
        key: the column's name.
        foreign: columns that have the name of labels, and hold something else.
    """

    changed: int
    pictures: int
    key: str
    foreign: tuple[str, ...]


class Keeper:
    """What the clicks are good for.

    Args:
        collection: what was clicked.
        encoder: the model that embedded it.
        teacher: answers to the clicks.
        orders: keeps the lists that are made.
        out: folder that classifiers are saved in.
        model_name: what to open the model by.
        lock: shared with whatever else uses the model.
    """

    def __init__(
        self,
        collection: Collection,
        encoder: Encoder,
        teacher: Teaching,
        orders: Orders,
        out: Path,
        model_name: str,
        lock: threading.RLock,
    ) -> None:
        self.collection, self.encoder, self.teacher, self.orders = collection, encoder, teacher, orders
        self.out, self.model_name = out, model_name
        self._lock = lock
        self._sorted: Sorted | None = None
        self._sorting = threading.Lock()
        self._digests: dict[str, str] = {}
        self._texts: dict[tuple[str, tuple[str, ...]], np.ndarray] = {}

    # ---------------------------------------------------------------- a classifier

    def classifier(self) -> Classifier:
        """All classes with their Yes as one classifier; one class alone is told from its No.

        Raises:
            UserError: fewer than two kinds of pictures.
        """
        with self._lock:
            clicks = {each: self.teacher.clicked(each) for each in self.teacher.labels.classes.values()}
            classes = [each for each in clicks if each.count(1)]
            known = [(row, each.name) for each in classes for row, mark in clicks[each].items() if mark > 0]
            if len(classes) == 1:
                known += [(row, f"not {classes[0].name}") for row, mark in clicks[classes[0]].items() if mark < 0]
            texts = {each.name: (each.text,) for each in classes if each.text and each.text != each.name}
        names = tuple(sorted({name for _, name in known}))
        if len(names) < 2:
            raise UserError("a classifier needs two kinds of pictures: click Yes and No, or Yes in two classes")
        rows = [row for row, _ in known]
        ids = tuple(self.collection.ids[row] for row in rows)
        clicked = Support(
            self.collection.vectors[rows],
            np.array([names.index(name) for _, name in known], dtype=np.int64),
            ids,
            self._digests_of(ids),
        )
        width = self.collection.vectors.shape[1]
        nothing = Support(np.empty((0, width), np.float32), np.empty(0, np.int64), (), ())
        support = nothing.joined(clicked)  # copies of a picture are one example: held out, each would find the other
        model = ClassifierModel(
            self.model_name, self.encoder.fingerprint, learned_scale(self.encoder), class_prefix(self.encoder)
        )
        return Classifier(names, texts, self._class_texts(names, texts), support, model)

    def _digests_of(self, ids: Sequence[str]) -> tuple[str, ...]:
        """Of the pictures' pixels, as `recollect classify` takes them of files; the id where that is not known."""
        with self._lock:
            new, backend = sorted(set(ids) - self._digests.keys()), self.collection.memory.backend
            with suppress(UserError):  # gone, or cleared away: then two copies count as two
                for start in range(0, len(new), _ROWS):  # whole rows, with their pictures
                    if there := sorted(backend.known(new[start : start + _ROWS])):
                        self._digests |= zip(there, backend.rows(there).digests, strict=True)
            return tuple(self._digests.get(id) or not_of_pixels(id) for id in ids)

    def _class_texts(self, names: Sequence[str], texts: Mapping[str, tuple[str, ...]]) -> np.ndarray:
        """Unit-norm class texts; each is embedded once, and no click waits for it again."""
        with self._lock:
            keys = [(name, texts.get(name, ())) for name in names]
            if new := [key for key in keys if key not in self._texts]:
                prompts = [class_prompts_of(*key) for key in new]
                self._texts |= zip(new, prompt_ensemble(self.encoder, prompts, class_prefix(self.encoder)), strict=True)
            return np.stack([self._texts[key] for key in keys])

    def save(self, name: str) -> tuple[Path, Classifier, bool]:
        """Keep the classifier in a folder of this name below ``out``; an earlier one of the name is replaced.

        Returns:
            The folder, the classifier, and whether another one was there.

        Raises:
            UserError: a name that is none for a folder, or as in `classifier`.
        """
        if not _NAME.fullmatch(name) or name.endswith((".", " ")) or len(name.encode()) > _LONGEST:
            raise UserError("name it with at most 80 letters, digits, spaces, dots, - and _")
        kept, there = self.classifier(), (self.out / name).exists()
        items = self.collection.items([self.collection.row_of[id] for id in kept.support.files])
        files = tuple(str(item.path or item.id) for item in items)
        kept = replace(kept, support=replace(kept.support, files=files))
        return kept.save(self.out / name, replace=True), kept, there

    # ---------------------------------------------------------------- every picture sorted

    def sorted(self) -> Sorted:
        """Every row by the classifier; computed once for each change, however many ask at a time.

        Raises:
            UserError: as in `classifier`.
        """
        with self._sorting:
            with self._lock:
                revision = self.teacher.labels.revision
                if self._sorted is not None and self._sorted.revision == revision:
                    return self._sorted
                kept = self.classifier()
            self._sorted = self._sort_by(kept, revision)
            return self._sorted

    def _sort_by(self, kept: Classifier, revision: int) -> Sorted:
        vectors = self.collection.vectors
        best, probability, unknown = [], [], []
        for start in range(0, len(vectors), _AT_ONCE):
            block = vectors[start : start + _AT_ONCE]
            p = kept.predict_proba(block)
            best.append(p.argmax(axis=1))
            probability.append(p.max(axis=1))
            unknown.append(kept.is_unknown(block))
        return Sorted(revision, kept, np.concatenate(best), np.concatenate(probability), np.concatenate(unknown))

    def sort(self, show: str, where: str | None = None) -> Order:
        """A list of pictures by what they are said to be.

        Args:
            show: ``doubtful``: all, the least probable first; ``none``: those that are none of the classes, unlike
                every example; ``class:NAME``: those of one class, surest first.
            where: a filter; only what satisfies it is sorted and counted. Every click teaches.

        Raises:
            UserError: no such class, nothing satisfies the filter, or as in `classifier`.
        """
        rows = shown = self.collection.shown(where).tiles
        found = self.sorted()
        names = list(found.classifier.classes)
        by = found.probability
        if show == "none":
            rows = rows[found.unknown[rows]]
            by = -found.classifier.unknown_rule.similarity(self.collection.vectors[rows]) if len(rows) else by[rows]
            best = rows[np.argsort(-by, kind="stable")]
        elif show == "doubtful":
            best = rows[np.argsort(by[rows], kind="stable")]
        else:
            name = show.removeprefix("class:")
            if name not in names:
                raise UserError(f"no class {name!r}; there are {', '.join(names)}")
            rows = rows[((found.best == names.index(name)) & ~found.unknown)[rows]]
            best = rows[np.argsort(-by[rows], kind="stable")]
        return self.orders.keep(best, found.probability[best], "sorted", about=self.counts(found, shown))

    def counts(self, found: Sorted, rows: np.ndarray) -> dict[str, Any]:
        """How many of some pictures each class has, and how far that can be trusted."""
        kept, unknown = found.classifier, found.unknown[rows]
        known = np.bincount(found.best[rows][~unknown], minlength=len(kept.classes)).tolist()
        return {
            "classes": [{"name": name, "pictures": count} for name, count in zip(kept.classes, known, strict=True)],
            "none": int(unknown.sum()),
            "none_rate": kept.unknown_rule.rejected,
            "none_accepted": kept.unknown_rule.accepted,
            "method": kept.method,
            "held_out": dict(kept.calibration),
        }

    def told(self, rows: np.ndarray, alpha: float = 0.1) -> list[dict[str, Any]]:
        """What each of some rows is said to be, and what it cannot be ruled out to be."""
        found = self.sorted()
        names = found.classifier.classes
        possible: np.ndarray | None = None
        if found.classifier.enough_examples and len(rows):
            possible = found.classifier.predict_set(self.collection.vectors[rows], alpha)
        return [
            {
                "says": None if found.unknown[row] else names[found.best[row]],
                "p": float(found.probability[row]),
                "possible": [] if possible is None else [names[c] for c in np.flatnonzero(possible[place])],
            }
            for place, row in enumerate(rows.tolist())
        ]

    # ---------------------------------------------------------------- tables, and the memory

    def table(self, where: str | None = None) -> pa.Table:
        """Every click and, where a class has a cut-off, what it says of every other picture.

        Args:
            where: a filter; only what satisfies it is in the table.
        """
        columns: dict[str, list[Any]] = {"id": [], "class": [], "clicked": [], "probability": [], "yes": []}
        shown = self.collection.shown(where)
        copy_of = self.collection.copy_of[shown.rows]
        for each, taught in self.teacher.answers():
            marks, cut = self.teacher.clicked(each), taught.cut(shown)
            for row, picture in zip(shown.rows.tolist(), copy_of.tolist(), strict=True):
                mark = marks.get(picture, 0)
                p = None if cut is None else float(cut.probability[picture])
                if p is None and not mark:
                    continue
                values = (self.collection.ids[row], each.name, mark, p, mark > 0 if p is None else p >= 0.5)
                for column, value in zip(columns.values(), values, strict=True):
                    column.append(value)
        types = (pa.string(), pa.string(), pa.int8(), pa.float64(), pa.bool_())
        return pa.table(
            {name: pa.array(values, kind) for (name, values), kind in zip(columns.items(), types, strict=True)}
        )

    def parquet(self, where: str | None = None) -> bytes:
        """`table` as a Parquet file."""
        sink = io.BytesIO()
        pq.write_table(self.table(where), sink)
        return sink.getvalue()

    def write_labels(self, where: str | None = None) -> Written:
        """Write each picture's classes into the memory's metadata, where filters find them.

        A picture of several classes has them in the order of their names, with ``; `` between. A picture whose Yes was
        taken back loses its label. The name is `LABELLED`; where a column of that name is not this log's, so that
        somebody would lose what is in it, the first of ``clicked_2``, ``clicked_3``, … that is free, or its own.

        Args:
            where: a filter; only what satisfies it is written.

        Raises:
            UserError: the memory cannot be written, or nothing satisfies the filter.
        """
        shown, labels = self.collection.shown(where), self.teacher.labels
        names: dict[int, list[str]] = {}
        with self._lock:
            for each in labels.classes.values():
                for picture, mark in self.teacher.clicked(each).items():
                    if mark > 0:
                        names.setdefault(picture, []).append(each.name)
        copy_of = dict(zip(shown.rows.tolist(), self.collection.copy_of[shown.rows].tolist(), strict=True))
        ids = {self.collection.ids[row]: picture for row, picture in copy_of.items()}
        values = {id: "; ".join(sorted(names[picture])) for id, picture in ids.items() if picture in names}
        memory = self.collection.memory
        there = label_columns(memory.backend)
        key, foreign = labels.free_column(there)
        with self._lock:
            labels.wrote(key)
        before_of = there.get(key, {})
        pictures = {picture for id, picture in ids.items() if before_of.get(id) != values.get(id)}
        before = memory.version
        changed = memory.set_metadata(key, values, list(ids) if shown.where else None)
        if memory.version - before == -(-changed // ROWS_OF_A_COMMIT):  # nobody else has changed anything meanwhile
            self.collection.known = memory.fingerprint
        return Written(changed, len(pictures), key, foreign)
