"""All pictures sorted by a classifier learned from the labels; the classifier and tables can be saved."""

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recollect.classifiers.classifier import Classifier
from recollect.classifiers.teaching import ClassifierModel, Support, class_prompts_of, not_of_pixels
from recollect.classifiers.texts import learned_scale, prompt_ensemble
from recollect.core.errors import UserError
from recollect.core.ordering import best_first
from recollect.core.types import caption_prefix
from recollect.web.library import Library, ShownRows, View
from recollect.web.teaching import Teaching

_NAME = re.compile(r"[^\W_][\w .-]{0,80}")
_LONGEST = 200  # bytes of a folder's name
_AT_ONCE = 8_192
_DIGEST = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Sorted:
    """Every picture by label.

    A label with a cut-off has the pictures above it, which are the likely matches that the panel counts; the classifier
    decides about the others.

    Attributes:
        classifier: as `Sorting.classifier` makes it.
        members: whether each row has each label (rows, labels).
        best: index of the likeliest label of each row, among those it has if any.
        reportable: whether there are enough marks to report that probability.
        certainty: probability by the classifier, which compares the labels with one another.
    """

    view: View
    revision: int
    classifier: Classifier
    members: np.ndarray
    best: np.ndarray
    probability: np.ndarray
    reportable: np.ndarray
    certainty: np.ndarray

    @property
    def unknown(self) -> np.ndarray:
        """Rows that no label fits."""
        return np.logical_not(self.members.any(axis=1))


class Sorting:
    """A classifier from all labels, and what it gives; safe to call from several threads."""

    def __init__(self, library: Library, teacher: Teaching, out: Path, lock: threading.RLock) -> None:
        self.library, self.teacher, self.out = library, teacher, out
        self._lock = lock
        self._sorted: Sorted | None = None
        self._sorting = threading.Lock()
        self._texts: dict[tuple[str, tuple[str, ...]], np.ndarray] = {}

    # ---------------------------------------------------------------- a classifier

    def classifier(self, view: View) -> Classifier:
        """One classifier with a class for each label; a single label is separated from the pictures marked ✗.

        Raises:
            UserError: fewer than two kinds of pictures.
        """
        labels = [each for each in list(self.teacher.labels.classes.values()) if each.count(1)]
        known = [(id, each.name) for each in labels for id, mark in list(each.marks.items()) if mark > 0]
        if len(labels) == 1:
            known += [(id, f"not {labels[0].name}") for id, mark in list(labels[0].marks.items()) if mark < 0]
        texts = {each.name: (each.text,) for each in labels if each.text and each.text != each.name}
        known = [(id, name) for id, name in known if id in view.row_of]
        names = tuple(sorted({name for _, name in known}))
        if len(names) < 2:
            raise UserError("a classifier needs two kinds of pictures: mark some ✓ and some ✗, or ✓ for two labels")
        ids = tuple(id for id, _ in known)
        support = Support(
            view.vectors[[view.row_of[id] for id in ids]],
            np.array([names.index(name) for _, name in known], dtype=np.int64),
            ids,
            tuple(id if _DIGEST.fullmatch(id) else not_of_pixels(id) for id in ids),
        )
        index = self.library.index
        encoder = index.encoder
        model = ClassifierModel(
            index.record.model_name, encoder.fingerprint, learned_scale(encoder), caption_prefix(encoder)
        )
        return Classifier(names, texts, self._class_texts(names, texts), support, model)

    def _class_texts(self, names: Sequence[str], texts: Mapping[str, tuple[str, ...]]) -> np.ndarray:
        """Unit-norm class texts; each is embedded once, so that later marks need not wait for it."""
        encoder = self.library.index.encoder
        with self._lock:
            keys = [(name, texts.get(name, ())) for name in names]
            if new := [key for key in keys if key not in self._texts]:
                prompts = [class_prompts_of(*key) for key in new]
                self._texts |= zip(new, prompt_ensemble(encoder, prompts, caption_prefix(encoder)), strict=True)
            return np.stack([self._texts[key] for key in keys])

    def save(self, name: str) -> tuple[Path, Classifier, bool]:
        """Save the classifier in a folder of this name below ``out``, replacing an earlier one.

        Returns:
            The folder, the classifier, and whether an earlier one was replaced.

        Raises:
            UserError: the name cannot be a folder's, or as in `classifier`.
        """
        if not _NAME.fullmatch(name) or name.endswith((".", " ")) or len(name.encode()) > _LONGEST:
            raise UserError("a name has at most 80 letters, digits, spaces, dots, - and _")
        kept, there = self.classifier(self.library.view()), (self.out / name).exists()
        files = tuple(str(each.path or each.id) for each in self.library.pictures(kept.support.files))
        kept = replace(kept, support=replace(kept.support, files=files))
        return kept.save(self.out / name, replace=True), kept, there

    # ---------------------------------------------------------------- all pictures sorted

    def sorted(self, view: View) -> Sorted:
        """Every picture by the classifier; computed once for each change, however many ask at a time.

        Raises:
            UserError: as in `classifier`.
        """
        with self._sorting:
            revision, found = self.teacher.labels.revision, self._sorted
            if found is not None and (found.view, found.revision) == (view, revision):
                return found
            kept = self.classifier(view)
            cuts = {each.name: taught.cut(ShownRows.all(view)) for each, taught in self.teacher.answers(view)}
            blocks = [view.vectors[start : start + _AT_ONCE] for start in range(0, len(view.vectors), _AT_ONCE)]
            p = np.concatenate([kept.predict_proba(block) for block in blocks])
            best, certainty = p.argmax(axis=1), p.max(axis=1)
            unknown = np.concatenate([kept.is_unknown(block) for block in blocks])
            members = (best[:, None] == np.arange(len(kept.classes))) & ~unknown[:, None]
            reportable = np.full(len(kept.classes), kept.enough_examples)
            with_cut = {place: cut for place, name in enumerate(kept.classes) if (cut := cuts.get(name)) is not None}
            if with_cut:
                members &= ~np.any([cut.above for cut in with_cut.values()], axis=0)[:, None]
            for place, cut in with_cut.items():
                members[:, place], p[:, place], reportable[place] = cut.above, cut.probability, cut.enough_clicks
            best = np.where(members.any(axis=1), np.where(members, p, -1).argmax(axis=1), best)
            probability = p[np.arange(len(p)), best]
            self._sorted = Sorted(view, revision, kept, members, best, probability, reportable[best], certainty)
            return self._sorted

    def ranked(self, show: str, shown: ShownRows) -> tuple[list[str], np.ndarray, dict[str, Any]]:
        """Ids and probabilities of a selection, and what is known about the classifier.

        Args:
            show: ``doubtful``: pictures that a label fits, those first that could as well have another label;
                ``none``: those that no label fits; ``class:NAME``: those of one label, the most certain first.

        Raises:
            UserError: no such class, or as in `classifier`.
        """
        view, rows = shown.view, shown.rows
        found = self.sorted(view)
        names = list(found.classifier.classes)
        by = found.probability[rows]
        if show == "none":
            rows = rows[found.unknown[rows]]
            by = -found.classifier.unknown_rule.similarity(view.vectors[rows]) if len(rows) else found.probability[rows]
        elif show == "doubtful":
            rows = rows[~found.unknown[rows]]
            by = -found.certainty[rows]
        else:
            name = show.removeprefix("class:")
            if name not in names:
                raise UserError(f"no class {name!r}; there are {', '.join(names)}")
            rows = rows[found.members[rows, names.index(name)]]
            by = found.probability[rows]
        best = rows[best_first(by)]
        return [view.ids[row] for row in best.tolist()], found.probability[best], self._counts(found, shown.rows)

    def _counts(self, found: Sorted, rows: np.ndarray) -> dict[str, Any]:
        """How many pictures each class has, and how far that can be trusted."""
        kept, unknown = found.classifier, found.unknown[rows]
        known = found.members[rows].sum(axis=0).tolist()
        return {
            "classes": [{"name": name, "pictures": count} for name, count in zip(kept.classes, known, strict=True)],
            "none": int(unknown.sum()),
            "none_rate": kept.unknown_rule.rejected,
            "method": kept.method,
            "held_out": dict(kept.calibration),
        }

    def sorted_as(self, ids: Sequence[str], alpha: float = 0.1) -> dict[str, dict[str, Any]]:
        """For each id its label (None where none fits), probability if there are enough marks to report one, and the
        labels that cannot be ruled out."""
        found = self.sorted(self.library.view())
        names, row_of = found.classifier.classes, found.view.row_of
        here = [id for id in ids if id in row_of]
        rows = [row_of[id] for id in here]
        possible: np.ndarray | None = None
        if found.classifier.enough_examples and rows:
            possible = found.classifier.predict_set(found.view.vectors[rows], alpha)
        return {
            id: {
                "says": None if found.unknown[row] else names[found.best[row]],
                "p": float(found.probability[row]) if found.reportable[row] else None,
                "possible": [] if possible is None else [names[c] for c in np.flatnonzero(possible[place])],
            }
            for place, (id, row) in enumerate(zip(here, rows, strict=True))
        }

    # ---------------------------------------------------------------- tables

    def table(self, shown: ShownRows) -> pa.Table:
        """Every mark and, where a label has a cut-off, what it says about every other picture of a selection."""
        columns: dict[str, list[Any]] = {"id": [], "file": [], "class": [], "clicked": [], "probability": [], "yes": []}
        files = {each.id: str(each.path or "") for each in self.library.pictures(shown.ids)}
        for each, taught in self.teacher.answers(shown.view):
            cut = taught.cut(shown)
            for row, id in zip(shown.rows.tolist(), shown.ids, strict=True):
                mark = each.marks.get(id, 0)
                p = None if cut is None else float(cut.probability[row])
                if p is None and not mark:
                    continue
                values = (id, files[id], each.name, mark, p, mark > 0 if p is None else p >= 0.5)
                for column, value in zip(columns.values(), values, strict=True):
                    column.append(value)
        types = (pa.string(), pa.string(), pa.string(), pa.int8(), pa.float64(), pa.bool_())
        return pa.table(
            {name: pa.array(values, kind) for (name, values), kind in zip(columns.items(), types, strict=True)}
        )
