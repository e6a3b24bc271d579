"""What the page does, without the web: search, order, teach, save. A script could call every action."""

import io
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from recollect.apps.classify.classifier import Classifier, ClassifierModel, Support, class_prefix, class_prompts_of
from recollect.apps.classify.clicks import ClickFit, ClickModel, CutOff, cut_off, next_to_label
from recollect.apps.serve.collection import Collection
from recollect.apps.serve.labels import ClickedClass, ClickedLabels
from recollect.apps.serve.layout import KINDS, Alike, Layout, compared, duplicates, lay_out
from recollect.core.errors import UserError
from recollect.core.types import Encoder
from recollect.data.sources.images import decode
from recollect.evaluation.features import learned_scale, prompt_ensemble
from recollect.memory.filters import parse_filter

_ORDERS = 16
_UPLOADS = 32
MOST_TERMS = 16
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,80}")


@dataclass(frozen=True)
class SearchTerm:
    """A part of a query: words, a picture of the memory, or an uploaded one; a negative weight pushes away."""

    words: str | None = None
    row: int | None = None
    upload: str | None = None
    weight: float = 1.0


@dataclass(frozen=True)
class Order:
    """Rows in the order of some scores.

    Attributes:
        key: to ask for parts of it.
        rows: best first.
        scores: of these rows.
        kind: ``all``, ``search``, ``class``, ``next``.
    """

    key: str
    rows: np.ndarray
    scores: np.ndarray
    kind: str


@dataclass
class _Taught:
    """A class's model and its answer to the clicks so far."""

    model: ClickModel
    fit: ClickFit
    cut: CutOff | None


@dataclass
class Session:
    """One memory, one model, the labels; safe to call from several threads.

    Attributes:
        collection: what is shown.
        encoder: the model that embedded it.
        labels: classes by clicks.
        out: folder that classifiers are saved in.
        model_name: what to open the model by.
    """

    collection: Collection
    encoder: Encoder
    labels: ClickedLabels
    out: Path
    model_name: str = ""
    _orders: OrderedDict[str, Order] = field(default_factory=OrderedDict, repr=False)
    _uploads: OrderedDict[str, np.ndarray] = field(default_factory=OrderedDict, repr=False)
    _taught: dict[int, tuple[int, _Taught]] = field(default_factory=dict, repr=False)
    _models: dict[int, ClickModel] = field(default_factory=dict, repr=False)
    _layout: Layout | None = field(default=None, repr=False)
    _alike: list[Alike] | None = field(default=None, repr=False)
    _slow: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    # ---------------------------------------------------------------- looking

    def everything(self, where: str | None = None) -> Order:
        """All rows, or those that satisfy a filter, in the memory's order."""
        rows = self._rows(where)
        return self._keep(rows, np.full(len(rows), np.nan, dtype=np.float32), "all")

    def search(self, terms: Sequence[SearchTerm], where: str | None = None) -> Order:
        """Every row by its cosine with the weighted sum of the terms' unit embeddings.

        Raises:
            UserError: no terms or too many, a term that cannot be read, or terms that cancel out.
        """
        vector = self.query(terms)
        rows = self._rows(where)
        vectors = self.collection.vectors if where is None else self.collection.vectors[rows]
        scores = (torch.from_numpy(vectors) @ torch.from_numpy(vector)).numpy()
        best = np.argsort(-scores, kind="stable")
        return self._keep(rows[best], scores[best], "search")

    def query(self, terms: Sequence[SearchTerm]) -> np.ndarray:
        """The unit vector along the weighted sum of the terms' unit embeddings."""
        if not 1 <= len(terms) <= MOST_TERMS:
            raise UserError(f"{len(terms)} terms: search by 1 to {MOST_TERMS}")
        total = np.zeros(self.collection.vectors.shape[1], dtype=np.float64)
        for term in terms:
            if not np.isfinite(term.weight) or term.weight == 0:
                raise UserError("a weight is a finite number other than 0")
            total += term.weight * self._vector(term)
        norm = float(np.linalg.norm(total))
        if not norm > 1e-6:
            raise UserError("the terms cancel out, so that they ask for nothing. Change a weight.")
        return (total / norm).astype(np.float32)

    def _vector(self, term: SearchTerm) -> np.ndarray:
        if sum(each is not None for each in (term.words, term.row, term.upload)) != 1:
            raise UserError("a term has words or a picture, one of both")
        if term.words is not None:
            if not term.words.strip():
                raise UserError("one of the terms is empty. Say what to look for.")
            return self._text(term.words)
        if term.row is not None:
            self.collection.check([term.row])
            return self.collection.vectors[term.row]
        with self._lock:
            if term.upload not in self._uploads:
                raise UserError("this picture is not there any more. Drop it again.")
            return self._uploads[str(term.upload)]

    def _text(self, words: str) -> np.ndarray:
        with self._lock:
            return self.encoder.embed_texts([words], class_prefix(self.encoder)).numpy()[0]

    def upload(self, data: bytes) -> str:
        """Embed a picture to search by; kept in memory only, and only the latest few.

        Raises:
            UserError: it is no picture.
        """
        picture = decode(data, "the picture", needed=512)
        with self._lock:
            vector = self.encoder.embed_images([picture]).numpy()[0]
            key = secrets.token_urlsafe(12)
            self._uploads[key] = vector
            while len(self._uploads) > _UPLOADS:
                self._uploads.popitem(last=False)
        return key

    def layout(self) -> Layout:
        """Where the pictures lie on a map; made once."""
        with self._slow:
            if self._layout is None:
                self._layout = lay_out(self.collection.vectors)
            return self._layout

    def duplicates(self) -> tuple[list[Alike], str]:
        """Groups of pictures that are alike, and a sentence about them; looked for once."""
        with self._slow:
            if self._alike is None:
                self._alike = duplicates(self.collection.memory, self.collection.row_of)
            groups = self._alike
        counts = {kind: [len(each.rows) for each in groups if each.kind == kind] for kind in KINDS}
        said = "; ".join(f"{kind}: {len(sizes):,} groups of {sum(sizes):,}" for kind, sizes in counts.items())
        first, rows = compared(len(self.collection)), len(self.collection)
        part = "" if first == rows else f" (of the first {first:,} pictures with all {rows:,})"
        return groups, f"{said}{part}"

    def window(self, key: str, start: int, count: int, label: int | None = None) -> list[dict[str, Any]]:
        """Some tiles of an order.

        Args:
            label: a class, whose marks and probabilities are added.

        Raises:
            UserError: the order is not kept any more.
        """
        order = self.order(key)
        rows = order.rows[start : start + count].tolist()
        items = self.collection.items(rows)
        cut = marks = None
        if label is not None:
            with self._lock:
                taught = self._answer(self.labels.get(label))
                cut, marks = taught.cut, dict(self.labels.get(label).marks)
        tiles = []
        for place, (row, item) in enumerate(zip(rows, items, strict=True), start=start):
            score = float(order.scores[place])
            tile = {"row": row, "id": item.id, "caption": item.caption, "source": item.source}
            tile["score"] = score if np.isfinite(score) else None
            if marks is not None:
                tile["mark"] = marks.get(item.id, 0)
                tile["p"] = float(cut.probability[row]) if cut is not None else None
            tiles.append(tile)
        return tiles

    def order(self, key: str) -> Order:
        """An order that was made before.

        Raises:
            UserError: it is not kept any more.
        """
        with self._lock:
            if key not in self._orders:
                raise UserError("this list is not there any more. Search again.")
            self._orders.move_to_end(key)
            return self._orders[key]

    def _keep(self, rows: np.ndarray, scores: np.ndarray, kind: str) -> Order:
        order = Order(secrets.token_urlsafe(9), rows, scores, kind)
        with self._lock:
            self._orders[order.key] = order
            while len(self._orders) > _ORDERS:
                self._orders.popitem(last=False)
        return order

    def _rows(self, where: str | None) -> np.ndarray:
        if where is None or not where.strip():
            return np.arange(len(self.collection))
        ids = self.collection.memory.backend.ids_where(parse_filter(where))
        rows = [self.collection.row_of[id] for id in ids if id in self.collection.row_of]
        if not rows:
            raise UserError(f"no picture satisfies {where}")
        return np.sort(np.array(rows, dtype=np.int64))

    # ---------------------------------------------------------------- teaching

    def create(self, name: str, text: str = "") -> ClickedClass:
        """A new class; ``text`` describes it and orders the pictures until there are clicks."""
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
            taught, marks = self._answer(found), list(found.marks)
        scores = taught.fit.scores
        if what == "next":
            rows = next_to_label(taught.model, taught.fit, 24)
            return self._keep(rows, scores[rows], "next")
        if what == "clicked":
            known = [self.collection.row_of[id] for id in reversed(marks) if id in self.collection.row_of]
            rows = np.array(known, dtype=np.int64)
            return self._keep(rows, scores[rows], "class")
        by = -scores if what == "likely" or taught.cut is None else np.abs(taught.cut.probability - 0.5)
        best = np.argsort(by, kind="stable")
        clicked = np.isin(best, taught.fit.rows)
        best = np.concatenate([best[~clicked], best[clicked]])
        return self._keep(best, scores[best], "class")

    def summary(self, key: int) -> dict[str, Any]:
        """What is known of a class: clicks, cut-off with its left-out precision and coverage, whether to stop."""
        with self._lock:
            found = self.labels.get(key)
            taught = self._answer(found)
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

    def _answer(self, found: ClickedClass) -> _Taught:
        known = self._taught.get(found.key)
        if known is not None and known[0] == self.labels.revision:
            return known[1]
        model = self._models.get(found.key)
        if model is None:
            text = self._text(found.text) if found.text else None
            model = self._models[found.key] = ClickModel(self.collection.vectors, text, seed=found.key)
        rows = {self.collection.row_of[id]: mark for id, mark in found.marks.items() if id in self.collection.row_of}
        fit = model.fit(rows)
        taught = _Taught(model, fit, cut_off(fit))
        self._taught[found.key] = (self.labels.revision, taught)
        return taught

    # ---------------------------------------------------------------- keeping

    def classifier(self) -> Classifier:
        """All classes with their Yes as one classifier; one class alone is told from its No.

        Raises:
            UserError: fewer than two kinds of pictures.
        """
        with self._lock:
            classes = [each for each in self.labels.classes.values() if each.count(1)]
            examples = [(id, each.name) for each in classes for id, mark in each.marks.items() if mark > 0]
            if len(classes) == 1:
                examples += [(id, f"not {classes[0].name}") for id, mark in classes[0].marks.items() if mark < 0]
            texts = {each.name: (each.text,) for each in classes if each.text and each.text != each.name}
        known = [(id, name) for id, name in examples if id in self.collection.row_of]
        names = tuple(sorted({name for _, name in known}))
        if len(names) < 2:
            raise UserError("a classifier needs two kinds of pictures: click Yes and No, or Yes in two classes")
        prompts = [class_prompts_of(name, texts.get(name, ())) for name in names]
        with self._lock:
            vectors = prompt_ensemble(self.encoder, prompts, class_prefix(self.encoder))
        rows = [self.collection.row_of[id] for id, _ in known]
        support = Support(
            self.collection.vectors[rows],
            np.array([names.index(name) for _, name in known], dtype=np.int64),
            tuple(id for id, _ in known),
            tuple(id for id, _ in known),
        )
        model = ClassifierModel(
            self.model_name, self.encoder.fingerprint, learned_scale(self.encoder), class_prefix(self.encoder)
        )
        return Classifier(names, texts, vectors, support, model)

    def save(self, name: str) -> tuple[Path, Classifier]:
        """Keep the classifier in a folder of this name below ``out``; an earlier one of the name is replaced.

        Raises:
            UserError: a name that is none for a folder, or as in `classifier`.
        """
        if not _NAME.fullmatch(name) or name.endswith((".", " ")):
            raise UserError("name it with letters, digits, spaces, dots, - and _")
        kept = self.classifier()
        return kept.save(self.out / name, replace=True), kept

    def table(self) -> pa.Table:
        """Every click and, where a class has a cut-off, what it says of every other picture."""
        with self._lock:
            classes = list(self.labels.classes.values())
            answers = {each.key: self._answer(each) for each in classes}
        columns: dict[str, list[Any]] = {"id": [], "class": [], "clicked": [], "probability": [], "yes": []}
        for each in classes:
            taught = answers[each.key]
            rows = range(len(self.collection)) if taught.cut is not None else taught.fit.rows.tolist()
            for row in rows:
                id = self.collection.ids[row]
                mark = each.marks.get(id, 0)
                p = float(taught.cut.probability[row]) if taught.cut is not None else None
                values = (id, each.name, mark, p, mark > 0 if p is None else p >= 0.5)
                for column, value in zip(columns.values(), values, strict=True):
                    column.append(value)
        types = (pa.string(), pa.string(), pa.int8(), pa.float64(), pa.bool_())
        return pa.table(
            {name: pa.array(values, kind) for (name, values), kind in zip(columns.items(), types, strict=True)}
        )

    def parquet(self) -> bytes:
        """`table` as a Parquet file."""
        sink = io.BytesIO()
        pq.write_table(self.table(), sink)
        return sink.getvalue()
