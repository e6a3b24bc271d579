"""Classes by clicks over one collection: what each click makes of every other picture."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from recollect.apps.classify.active_learning import next_to_label
from recollect.apps.classify.clicked_cut import CutOff, cut_off
from recollect.apps.classify.clicks import ClickFit, ClickModel
from recollect.web.collection import Collection, PictureSelection
from recollect.web.label_store import ClickedClass, LabelStore
from recollect.web.orders import Order, Orders

ASKED = 24
"""Pictures that *Ask me* shows at once."""

MOST_HELD = 2**30
"""Bytes that all classes but the one that is taught may keep between clicks: of a million pictures each needs more."""


@dataclass
class Taught:
    """A class's model and its answer to the clicks so far.

    Attributes:
        model: over every row.
        fit: to the clicks; of copies of a picture only the row that stands for them is clicked.
        copy_of: for each row the one that stands for it.
        latest: clicked rows, latest first.
    """

    model: ClickModel
    fit: ClickFit
    copy_of: np.ndarray
    latest: np.ndarray
    _cuts: dict[PictureSelection, CutOff | None] = field(default_factory=dict, repr=False)

    def cut(self, shown: PictureSelection) -> CutOff | None:
        """The cut, with the figures of what is shown; copies count once."""
        if shown not in self._cuts:
            self._cuts[shown] = cut_off(self.fit, shown.pictures)
        return self._cuts[shown]


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
        labels: LabelStore,
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

    def mark(self, key: int, rows: Sequence[int], mark: int) -> list[int]:
        """Say what some pictures are, each with all its copies; on disk when this returns.

        Returns:
            The rows that have the mark now.
        """
        self.collection.check(rows)
        copy_of = self.collection.copy_of
        asked = list(dict.fromkeys(rows))
        same = np.flatnonzero(np.isin(copy_of, copy_of[asked]))
        every = asked + sorted(set(same.tolist()) - set(asked))
        with self._lock:
            ids, digests = self.collection.ids, self.collection.digests
            self.labels.mark(key, [ids[row] for row in every], mark, [digests[row] for row in every])
        return every

    def clicked(self, found: ClickedClass) -> dict[int, int]:
        """+1 or −1 by the row that stands for a picture and its copies, in the order of the clicks; the latest counts.

        Pictures that are no longer in the memory are left out.
        """
        marks: dict[int, int] = {}
        copy_of = self.collection.copy_of
        for key, mark in found.marks.items():
            if (row := self.collection.row_of_picture(key)) is not None:
                picture = int(copy_of[row])
                marks.pop(picture, None)
                marks[picture] = mark
        return marks

    def counts(self, found: ClickedClass) -> tuple[int, int]:
        """How many pictures are Yes and No, of the whole memory and of what was removed from it since."""
        marks = list(self.clicked(found).values())
        marks += [mark for key, mark in found.marks.items() if self.collection.row_of_picture(key) is None]
        return marks.count(1), marks.count(-1)

    def undo(self) -> dict[str, Any] | None:
        """Take the last change back."""
        with self._lock:
            return self.labels.undo()

    def redo(self) -> dict[str, Any] | None:
        """Make the change again that was taken back last."""
        with self._lock:
            return self.labels.redo()

    def drop(self, key: int) -> None:
        """Remove a class."""
        with self._lock:
            self.labels.drop(key)
            self._models.pop(key, None)
            self._taught.pop(key, None)

    def ranked(self, key: int, what: str = "likely", where: str | None = None) -> Order:
        """Rows for a class.

        Args:
            what: ``likely``: the best first, those that were clicked behind all others, so that the next picture comes
                to where the last one was; ``next``: what to label next, as many as fill a screen; ``cut``: those
                nearest to the cut first; ``clicked``: only those, latest first.
            where: a filter; only what satisfies it is in the list. Every click teaches.

        Raises:
            UserError: no such class, or nothing satisfies the filter.
        """
        shown = self.collection.shown(where)
        with self._lock:
            taught = self.answer(self.labels.get(key))
        fit, scores = taught.fit, taught.fit.scores
        if what == "next":
            rows = shown.tiles_of(next_to_label(taught.model, fit, ASKED, among=shown.pictures))
            return self.orders.keep(rows, scores[rows], "next")
        if what == "clicked":
            pictures = taught.latest[shown.has(taught.latest)]
            rows = shown.tiles_of(pictures)
            return self.orders.keep(rows, scores[rows], "class")
        cut, rows = taught.cut(shown), shown.tiles
        by = -scores[rows] if what == "likely" or cut is None else np.abs(cut.probability[rows] - 0.5)
        best = rows[np.argsort(by, kind="stable")]
        clicked = np.isin(taught.copy_of[best], fit.rows)
        best = np.concatenate([best[~clicked], best[clicked]])
        return self.orders.keep(best, scores[best], "class")

    def summary(self, key: int, where: str | None = None) -> dict[str, Any]:
        """What is known of a class: clicks, cut-off with its left-out precision and coverage, whether to stop.

        Args:
            where: a filter; what is said of the cut-off is about what satisfies it, and the clicks there.
        """
        shown = self.collection.shown(where)
        with self._lock:
            found = self.labels.get(key)
            taught = self.answer(found)
            yes, no = self.counts(found)
        cut = taught.cut(shown)
        about: dict[str, Any] = {"class": key, "name": found.name, "text": found.text, "yes": yes, "no": no}
        if cut is not None:
            yes_here = [row for row, mark in self.clicked(found).items() if mark > 0 and shown.has(np.array([row]))[0]]
            above = round(len(yes_here) * (cut.coverage or 0.0))
            about["cut"] = {
                "above": cut.found,
                "expected": cut.expected,
                "reached": cut.reached,
                "precision": cut.precision if cut.enough_clicks else None,
                "coverage": cut.coverage if cut.enough_clicks else None,
                "clicks": cut.clicks,
                "enough": cut.enough_clicks,
                "yes": len(yes_here),
                "found": above,
                "wrong": cut.wrong,
                "copies": len(shown.tiles) - len(shown.pictures),
                "stop": cut.stop,
            }
        return about

    def said(self, key: int) -> tuple[dict[int, int], np.ndarray | None]:
        """Marks of a class by the row that stands for a picture, and its probabilities if enough clicks check them."""
        shown = self.collection.shown()
        with self._lock:
            found = self.labels.get(key)
            taught = self.answer(found)
            cut = taught.cut(shown)
            return self.clicked(found), cut.probability if cut is not None and cut.enough_clicks else None

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
        marks = self.clicked(found)
        latest = np.array(list(reversed(marks)), dtype=np.int64)
        taught = Taught(model, model.fit(marks), self.collection.copy_of, latest)
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
