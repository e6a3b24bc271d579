"""Sort all pictures with a classifier learned from the labels, and save the result."""

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recollect.classifiers.classifier import Classifier
from recollect.classifiers.clicks.cutoff import plausible
from recollect.classifiers.teaching import ClassifierModel, Support, class_prompts_of, non_pixel_digest
from recollect.classifiers.texts import learned_scale, prompt_ensemble
from recollect.core.errors import UserError
from recollect.core.ordering import best_first
from recollect.core.types import caption_prefix
from recollect.web.label_store import FAVORITES
from recollect.web.library import Library, ShownRows, View
from recollect.web.teaching import Teaching

_NAME = re.compile(r"[^\W_][\w .-]{0,80}")
_MAX_NAME_BYTES = 200  # of a folder
_BATCH = 8_192  # pictures classified at a time
_DIGEST = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class SortedPictures:
    """All pictures by label.

    If a label has a cut-off, its pictures are those above it, which are also the likely matches counted in the panel.
    The classifier assigns the other pictures, if they are `plausible` for their label.

    Attributes:
        view: version of the index.
        revision: revision of the labels.
        classifier: classifier over all labels.
        members: whether each row has each label (rows, labels).
        best: index of the most likely label of each row, among its labels if it has any.
        probability: probability of that label.
        reportable: whether there are enough marks to report the probability.
        certainty: highest class probability by the classifier, which compares the labels with one another.
        unchecked: labels without a cut-off.
        missed: number of pictures marked ✓ for these labels that would not be `plausible` without their mark.
    """

    view: View
    revision: int
    classifier: Classifier
    members: np.ndarray
    best: np.ndarray
    probability: np.ndarray
    reportable: np.ndarray
    certainty: np.ndarray
    unchecked: tuple[str, ...]
    missed: int

    @property
    def unknown(self) -> np.ndarray:
        """Rows that match no label."""
        return np.logical_not(self.members.any(axis=1))


class Sorting:
    """Thread-safe classifier over all labels, and its results."""

    def __init__(self, library: Library, teacher: Teaching, out: Path, lock: threading.RLock) -> None:
        self.library, self.teacher, self.out = library, teacher, out
        self._lock = lock
        self._sorted: SortedPictures | None = None
        self._sorting = threading.Lock()
        self._texts: dict[tuple[str, tuple[str, ...]], np.ndarray] = {}

    # ---------------------------------------------------------------- a classifier

    def classifier(self, view: View) -> Classifier:
        """Teach a classifier with one class per label; a single label is separated from the pictures marked ✗.

        Raises:
            UserError: there are examples of fewer than two classes.
        """
        classes = list(self.teacher.labels.classes.values())
        labels = [each for each in classes if each.count(1) and each.name != FAVORITES]
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
            tuple(id if _DIGEST.fullmatch(id) else non_pixel_digest(id) for id in ids),
        )
        index = self.library.index
        encoder = index.encoder
        model = ClassifierModel(
            index.record.model_name, encoder.fingerprint, learned_scale(encoder), caption_prefix(encoder)
        )
        return Classifier(names, texts, self._class_texts(names, texts), support, model)

    def _class_texts(self, names: Sequence[str], texts: Mapping[str, tuple[str, ...]]) -> np.ndarray:
        """Return unit-norm class texts; each text is embedded only once, so later marks are fast."""
        encoder = self.library.index.encoder
        with self._lock:
            keys = [(name, texts.get(name, ())) for name in names]
            if new := [key for key in keys if key not in self._texts]:
                prompts = [class_prompts_of(*key) for key in new]
                self._texts |= zip(new, prompt_ensemble(encoder, prompts, caption_prefix(encoder)), strict=True)
            return np.stack([self._texts[key] for key in keys])

    def save(self, name: str) -> tuple[Path, Classifier, bool]:
        """Save the classifier to the folder ``name`` below ``out``, replacing an earlier one.

        Returns:
            The folder, the classifier, and whether an earlier one was replaced.

        Raises:
            UserError: the name is not a valid folder name, or as in `classifier`.
        """
        if not _NAME.fullmatch(name) or name.endswith((".", " ")) or len(name.encode()) > _MAX_NAME_BYTES:
            raise UserError("a name can have up to 80 letters, digits, spaces, dots, - and _")
        classifier, replaced = self.classifier(self.library.view()), (self.out / name).exists()
        files = tuple(str(each.path or each.id) for each in self.library.pictures(classifier.support.files))
        classifier = replace(classifier, support=replace(classifier.support, files=files))
        return classifier.save(self.out / name, replace=True), classifier, replaced

    # ---------------------------------------------------------------- all pictures sorted

    def sorted(self, view: View) -> SortedPictures:
        """Sort all pictures; computed once per change, even with concurrent calls.

        Raises:
            UserError: as in `classifier`.
        """
        with self._sorting:
            revision, found = self.teacher.labels.revision, self._sorted
            if found is not None and (found.view, found.revision) == (view, revision):
                return found
            classifier = self.classifier(view)
            names = classifier.classes
            answers = self.teacher.answers(view)
            cuts = {each.name: taught.cut(ShownRows.all(view)) for each, taught in answers}
            blocks = [view.vectors[start : start + _BATCH] for start in range(0, len(view.vectors), _BATCH)]
            p = np.concatenate([classifier.predict_proba(block) for block in blocks])
            best, certainty = p.argmax(axis=1), p.max(axis=1)
            unknown = np.concatenate([classifier.is_unknown(block) for block in blocks])
            members = (best[:, None] == np.arange(len(names))) & ~unknown[:, None]
            unchecked = [(each, taught) for each, taught in answers if each.name in names and cuts[each.name] is None]
            missed = 0
            for each, taught in unchecked:
                if (may := plausible(taught.fit)) is not None:
                    members[:, names.index(each.name)] &= may[0]
                    missed += may[1]
            reportable = np.full(len(names), classifier.enough_examples)
            with_cut = {c: cut for c, name in enumerate(names) if (cut := cuts.get(name)) is not None}
            if with_cut:
                members &= ~np.any([cut.above for cut in with_cut.values()], axis=0)[:, None]
            for c, cut in with_cut.items():
                members[:, c], p[:, c], reportable[c] = cut.above, cut.probability, cut.enough_clicks
            best = np.where(members.any(axis=1), np.where(members, p, -1).argmax(axis=1), best)
            probability = p[np.arange(len(p)), best]
            self._sorted = SortedPictures(
                view,
                revision,
                classifier,
                members,
                best,
                probability,
                reportable[best],
                certainty,
                tuple(each.name for each, _ in unchecked),
                missed,
            )
            return self._sorted

    def ranked(self, show: str, shown: ShownRows) -> tuple[list[str], np.ndarray, dict[str, Any]]:
        """Rank the pictures of a selection; return ids, probabilities, and facts about the classifier.

        Args:
            show: ``doubtful``: pictures that match a label, least certain first; ``none``: pictures that match no
                label; ``class:NAME``: pictures of one label, most certain first.

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

    def _counts(self, found: SortedPictures, rows: np.ndarray) -> dict[str, Any]:
        """Return the number of pictures per class, and held-out figures of the classifier."""
        classifier, unknown = found.classifier, found.unknown[rows]
        rejected = classifier.unknown_rule.rejected
        counts = zip(classifier.classes, found.members[rows].sum(axis=0).tolist(), strict=True)
        return {
            "classes": [{"name": name, "pictures": count} for name, count in counts],
            "unchecked": list(found.unchecked),
            "none": int(unknown.sum()),
            "none_rate": None if rejected is None else min(1.0, rejected + found.missed / len(classifier.support)),
            "method": classifier.method,
            "held_out": dict(classifier.calibration),
        }

    def sorted_as(self, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return for each id its label (None if no label matches), its probability if there are enough marks to report
        one, and the labels that cannot be ruled out at an error rate of 0.1."""
        found = self.sorted(self.library.view())
        names, row_of = found.classifier.classes, found.view.row_of
        known = [id for id in ids if id in row_of]
        rows = [row_of[id] for id in known]
        possible: np.ndarray | None = None
        if found.classifier.enough_examples and rows:
            possible = found.classifier.predict_set(found.view.vectors[rows], 0.1)
        return {
            id: {
                "says": None if found.unknown[row] else names[found.best[row]],
                "p": float(found.probability[row]) if found.reportable[row] else None,
                "possible": [] if possible is None else [names[c] for c in np.flatnonzero(possible[number])],
            }
            for number, (id, row) in enumerate(zip(known, rows, strict=True))
        }

    # ---------------------------------------------------------------- tables

    def table(self, shown: ShownRows) -> pa.Table:
        """Return all marks and, for labels with a cut-off, predictions for the other pictures of a selection."""
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
