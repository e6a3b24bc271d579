"""Classes by clicks over one collection: what each click makes of every other picture."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from recollect.apps.classify.clicks import ClickFit, ClickModel, CutOff, cut_off, next_to_label
from recollect.apps.serve.collection import Collection
from recollect.apps.serve.labels import ClickedClass, ClickedLabels
from recollect.apps.serve.orders import Order, Orders

ASKED = 24
"""Pictures that *Ask me* shows at once."""

MOST_HELD = 2**30
"""Bytes that all classes but the one that is taught may keep between clicks: of a million pictures each needs more."""


@dataclass
class Taught:
    """A class's model and its answer to the clicks so far."""

    model: ClickModel
    fit: ClickFit
    cut: CutOff | None


class Teaching:
    """Answers to clicks; safe to call from several threads.

    Args:
        collection: what is clicked.
        labels: classes and their clicks.
        orders: keeps the lists that are made.
        text: embeds the words that describe a class.
        lock: shared with whatever else uses the model.
    """

    def __init__(
        self,
        collection: Collection,
        labels: ClickedLabels,
        orders: Orders,
        text: Callable[[str], np.ndarray],
        lock: threading.RLock,
    ) -> None:
        self.collection, self.labels, self.orders = collection, labels, orders
        self._text, self._lock = text, lock
        self._taught: dict[int, tuple[int, Taught]] = {}
        self._models: dict[int, ClickModel] = {}

    def create(self, name: str, text: str = "") -> ClickedClass:
        """A new class; ``text``, or its name, orders the pictures until there are clicks."""
        with self._lock:
            return self.labels.create(name, text)

    def mark(self, key: int, rows: Sequence[int], mark: int) -> ClickedClass:
        """Say what some pictures are; on disk when this returns."""
        self.collection.check(rows)
        with self._lock:
            return self.labels.mark(key, [self.collection.ids[row] for row in rows], mark)

    def undo(self) -> dict[str, Any] | None:
        """Take the last change back."""
        with self._lock:
            return self.labels.undo()

    def drop(self, key: int) -> None:
        """Remove a class."""
        with self._lock:
            self.labels.drop(key)
            self._models.pop(key, None)
            self._taught.pop(key, None)

    def ranked(self, key: int, what: str = "likely") -> Order:
        """Rows for a class.

        Args:
            what: ``likely``: the best first, those that were clicked behind all others, so that the next picture comes
                to where the last one was; ``next``: what to label next, as many as fill a screen; ``cut``: those
                nearest to the cut first; ``clicked``: only those, latest first.
        """
        with self._lock:
            found = self.labels.get(key)
            taught, marks = self.answer(found), list(found.marks)
        scores = taught.fit.scores
        if what == "next":
            rows = next_to_label(taught.model, taught.fit, ASKED)
            return self.orders.keep(rows, scores[rows], "next")
        if what == "clicked":
            known = [self.collection.row_of[id] for id in reversed(marks) if id in self.collection.row_of]
            rows = np.array(known, dtype=np.int64)
            return self.orders.keep(rows, scores[rows], "class")
        by = -scores if what == "likely" or taught.cut is None else np.abs(taught.cut.probability - 0.5)
        best = np.argsort(by, kind="stable")
        clicked = np.isin(best, taught.fit.rows)
        best = np.concatenate([best[~clicked], best[clicked]])
        return self.orders.keep(best, scores[best], "class")

    def summary(self, key: int) -> dict[str, Any]:
        """What is known of a class: clicks, cut-off with its left-out precision and coverage, whether to stop."""
        with self._lock:
            found = self.labels.get(key)
            taught = self.answer(found)
        cut = taught.cut
        about: dict[str, Any] = {"class": key, "name": found.name, "text": found.text}
        about |= {"yes": found.count(1), "no": found.count(-1)}
        if cut is not None:
            about["cut"] = {
                "above": int(cut.above.sum()),
                "expected": cut.expected,
                "reached": cut.reached,
                "precision": cut.precision,
                "coverage": cut.coverage,
                "clicks": len(taught.fit.rows),
                "stop": cut.stop,
            }
        return about

    def said(self, key: int) -> tuple[dict[str, int], np.ndarray | None]:
        """Marks of a class by id, and every row's probability where there is a cut."""
        with self._lock:
            found = self.labels.get(key)
            cut = self.answer(found).cut
            return dict(found.marks), None if cut is None else cut.probability

    def answers(self) -> list[tuple[ClickedClass, Taught]]:
        """Every class with what its clicks say."""
        with self._lock:
            return [(each, self.answer(each)) for each in self.labels.classes.values()]

    def answer(self, found: ClickedClass) -> Taught:
        """What a class's clicks say of every row; computed once for each change."""
        known = self._taught.get(found.key)
        if known is not None and known[0] == self.labels.revision:
            return known[1]
        model = self._models.pop(found.key, None)
        if model is None:
            text = self._text(found.text or found.name)
            model = ClickModel(self.collection.vectors, text, seed=found.key)
        self._models[found.key] = model  # the last is the latest used
        rows = {self.collection.row_of[id]: mark for id, mark in found.marks.items() if id in self.collection.row_of}
        fit = model.fit(rows)
        taught = Taught(model, fit, cut_off(fit))
        self._taught[found.key] = (self.labels.revision, taught)
        self._forget()
        return taught

    def _forget(self) -> None:
        """Keep no more between clicks than fits: the classes that were not asked about for longest go first."""
        others = list(self._models.values())[:-1]
        held = sum(model.held for model in others)
        for model in others:
            if held <= MOST_HELD:
                return
            held -= model.held
            model.forget()
