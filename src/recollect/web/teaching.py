"""Teach labels by clicks: every mark updates the scores of all pictures."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from recollect.classifiers.clicks.active_learning import next_to_label
from recollect.classifiers.clicks.cutoff import ClickCutOff, cut_off
from recollect.classifiers.clicks.model import ClickFit, ClickModel
from recollect.core.errors import UserError
from recollect.core.ordering import best_first
from recollect.web.label_store import ClickedClass, LabelStore
from recollect.web.library import Library, ShownRows, View

_SUGGESTED = 12
"""Number of pictures that *Suggest pictures to mark* shows."""

MAX_CACHED_BYTES = 2**30
"""Maximum number of bytes cached between clicks by the models of all labels except the active one."""


@dataclass
class LabelModel:
    """Model of a label, fitted to the marks so far.

    Attributes:
        view: version of the index whose rows are scored.
        words: text or name of the label.
        revision: revision of the labels.
        model: the model.
        fit: scores of all rows.
        latest: marked rows, latest first.
    """

    view: View
    words: str
    revision: int
    model: ClickModel
    fit: ClickFit
    latest: np.ndarray
    _cuts: dict[str, ClickCutOff | None] = field(default_factory=dict, repr=False)

    def cut(self, shown: ShownRows) -> ClickCutOff | None:
        """Return the cut-off with its figures for a selection; None if there is no cut-off."""
        if shown.where not in self._cuts:
            self._cuts[shown.where] = cut_off(self.fit, shown.rows)
        return self._cuts[shown.where]


class Teaching:
    """Thread-safe models of the labels, fitted to the marks."""

    def __init__(self, library: Library, labels: LabelStore, lock: threading.RLock) -> None:
        self.library, self.labels = library, labels
        self._lock = lock
        self._taught: dict[int, LabelModel] = {}

    def mark(self, key: int, ids: Sequence[str], mark: int) -> None:
        """Mark pictures; the marks are on disk when this returns.

        Raises:
            UserError: no such label or picture; nothing is marked.
        """
        distinct = list(dict.fromkeys(ids))
        known = self.library.view().row_of
        if missing := next((id for id in distinct if id not in known), None):
            raise UserError(f"picture {missing[:40]!r} is no longer in the library")
        self.labels.mark(key, distinct, mark)

    def drop(self, key: int) -> None:
        """Remove a label."""
        self.labels.drop(key)
        with self._lock:
            self._taught.pop(key, None)

    def ranked(self, key: int, order: str, shown: ShownRows) -> tuple[list[str], np.ndarray]:
        """Rank the pictures of a selection for a label; return ids and scores.

        Args:
            order: ``likely``: best first, marked pictures at the end; ``next``: the `_SUGGESTED` pictures to mark next;
                ``cut``: nearest to the cut-off first; ``clicked``: marked pictures, latest first.

        Raises:
            UserError: no such label.
        """
        _, taught = self.answer(key, shown.view)
        fit, scores, rows = taught.fit, taught.fit.scores, shown.rows
        if order == "next":
            best = next_to_label(taught.model, fit, _SUGGESTED, among=rows)
        elif order == "clicked":
            best = taught.latest[np.isin(taught.latest, rows)]
        else:
            cut = taught.cut(shown)
            by = scores[rows] if order == "likely" or cut is None else -np.abs(cut.probability[rows] - 0.5)
            best = rows[best_first(by)]
            marked = np.isin(best, fit.rows)
            best = np.concatenate([best[~marked], best[marked]])
        return [taught.view.ids[row] for row in best.tolist()], scores[best]

    def summary(self, key: int, shown: ShownRows) -> dict[str, Any]:
        """Return facts about a label: marks, cut-off with held-out precision and coverage, and whether to stop.

        The figures of the cut-off cover the selection and the marks in it.
        """
        found, taught = self.answer(key, shown.view)
        yes, no = found.count(1), found.count(-1)  # including pictures that have left the library
        cut = taught.cut(shown)
        about: dict[str, Any] = {"class": key, "name": found.name, "text": found.text, "yes": yes, "no": no}
        if cut is not None:
            yes_here = int(((taught.fit.marks > 0) & np.isin(taught.fit.rows, shown.rows)).sum())
            about["cut"] = {
                "above": cut.found,
                "precision": cut.precision if cut.enough_clicks else None,
                "coverage": cut.coverage if cut.enough_clicks else None,
                "clicks": cut.clicks,
                "enough": cut.enough_clicks,
                "yes": yes_here,
                "found": round(yes_here * (cut.coverage or 0.0)),
                "wrong": cut.wrong,
                "stop": cut.stop,
            }
        return about

    def known(self, key: int, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return for each id its mark, and its probability if there are enough marks to check it."""
        view = self.library.view()
        found, taught = self.answer(key, view)
        cut = taught.cut(ShownRows.all(view))
        reportable = cut is not None and cut.enough_clicks
        rows = {id: view.row_of[id] for id in ids if id in view.row_of} if reportable else {}
        return {
            id: {
                "mark": found.marks.get(id, 0),
                "p": float(cut.probability[rows[id]]) if cut is not None and id in rows else None,
            }
            for id in ids
        }

    def answers(self, view: View) -> list[tuple[ClickedClass, LabelModel]]:
        """Return all labels with their fitted models, skipping labels removed meanwhile."""
        with self._lock:
            found = list[tuple[ClickedClass, LabelModel]]()
            for key in list(self.labels.classes):
                try:
                    found.append(self.answer(key, view))
                except UserError:
                    if key in self.labels.classes:
                        raise
            return found

    def answer(self, key: int, view: View) -> tuple[ClickedClass, LabelModel]:
        """Return a label and its fitted model; computed once per change.

        Raises:
            UserError: no such label.
        """
        with self._lock:
            revision = self.labels.revision  # read before the label, so a change in between is fitted next time
            found, taught = self.labels.get(key), self._taught.pop(key, None)
            if taught is None or (taught.view, taught.revision) != (view, revision):
                words = found.text or found.name
                if taught is not None and taught.view is view and taught.words == words:
                    model = taught.model
                else:
                    model = ClickModel(view.vectors, self.library.index.query_vector(words), seed=key)
                marks = {view.row_of[id]: mark for id, mark in list(found.marks.items()) if id in view.row_of}
                latest = np.array(list(reversed(marks)), dtype=np.int64)
                taught = LabelModel(view, words, revision, model, model.fit(marks), latest)
            self._taught[key] = taught  # reinserted last: the dictionary is ordered by last use
            self._free_memory()
            return found, taught

    def _free_memory(self) -> None:
        """Free memory cached by models between clicks beyond `MAX_CACHED_BYTES`, least recently used first."""
        others = [taught.model for taught in list(self._taught.values())[:-1]]
        held = sum(model.held for model in others)
        for model in others:
            if held <= MAX_CACHED_BYTES:
                return
            held -= model.held
            model.forget()
