"""What the page does, without the web: search, order, adapt. A script could call every action."""

import secrets
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recollect.apps.classify.teaching import class_prefix
from recollect.core.errors import UserError
from recollect.core.types import Encoder
from recollect.core.words import counted
from recollect.data.sources.images import decode
from recollect.models import DualEncoder
from recollect.search.cutoff import LearntCutOff, cut_off_of
from recollect.search.query import Query, Term
from recollect.search.searcher import Hit, shortened_notes
from recollect.web.adaptive import Adaptive
from recollect.web.collection import Collection
from recollect.web.keeping import Keeper
from recollect.web.label_store import LabelStore
from recollect.web.layout import KINDS, Alike, Layout, duplicates, lay_out
from recollect.web.orders import Order, Orders
from recollect.web.teaching import Teaching

_UPLOADS, _UPLOADED = 32, 2**27  # pictures, and their bytes
MOST_TERMS = 16
_ALL = "`recollect memory duplicates` compares all with all"


@dataclass(frozen=True)
class SearchTerm:
    """A part of a query: words, a picture of the memory, or an uploaded one; a negative weight pushes away."""

    words: str | None = None
    row: int | None = None
    upload: str | None = None
    weight: float = 1.0


@dataclass
class Session:
    """One memory, one model, the labels; safe to call from several threads.

    Attributes:
        collection: what is shown.
        encoder: the model that embedded it.
        labels: classes by clicks.
        out: folder that classifiers are saved in.
        model_name: what to open the model by.
        orders: the latest lists.
        teacher: answers to clicks.
        keeper: what clicks are good for.
    """

    collection: Collection
    encoder: Encoder
    labels: LabelStore
    out: Path
    model_name: str = ""
    orders: Orders = field(default_factory=Orders, repr=False)
    _uploads: OrderedDict[str, tuple[np.ndarray, bytes]] = field(default_factory=OrderedDict, repr=False)
    _layout: Layout | None = field(default=None, repr=False)
    _alike: tuple[list[Alike], tuple[str, ...]] | None = field(default=None, repr=False)
    _cut: LearntCutOff | None = field(default=None, repr=False)
    _slow: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def __post_init__(self) -> None:
        self.teacher = Teaching(self.collection, self.labels, self.orders, self._text, self._lock)
        self.keeper = Keeper(
            self.collection, self.encoder, self.teacher, self.orders, self.out, self.model_name, self._lock
        )
        self.adaptive = Adaptive(self.collection.memory, self.encoder)

    def on(self, collection: Collection) -> "Session":
        """The same model, clicks and uploaded pictures on another version of the memory."""
        return Session(
            collection, self.encoder, self.labels, self.out, self.model_name, _uploads=self._uploads, _lock=self._lock
        )

    # ---------------------------------------------------------------- search

    def everything(self, where: str | None = None) -> Order:
        """All pictures, or those that satisfy a filter, in the memory's order."""
        rows = self.collection.shown(where).tiles
        return self.orders.keep(rows, np.full(len(rows), np.nan, dtype=np.float32), "all")

    def search(self, terms: Sequence[SearchTerm], where: str | None = None, adapt: bool = False) -> Order:
        """Every picture by its cosine with the weighted sum of the terms' unit embeddings.

        For words alone ``about`` has the learnt cut-off, where captions teach one.

        Args:
            adapt: rank the first rows again by an episode; they stand before the others, and ``about`` says what it
                learnt from.

        Raises:
            UserError: no terms or too many, a term that cannot be read, terms that cancel out, or ``adapt`` for a model
                or memory that has no episodes.
        """
        vector = self.query(terms)
        rows = self.collection.shown(where).tiles
        every = len(rows) == len(self.collection)
        vectors = self.collection.vectors if every else self.collection.vectors[rows]
        scores = (torch.from_numpy(vectors) @ torch.from_numpy(vector)).numpy()
        best = np.argsort(-scores, kind="stable")
        rows, scores = rows[best], scores[best]
        about = self._cut_for(vector, scores) if all(term.words is not None for term in terms) else {}
        if not adapt:
            return self.orders.keep(rows, scores, "search", about={**about, "notes": self._notes(terms)})
        return self._adapted(terms, where, rows, scores, about)

    def _notes(self, terms: Sequence[SearchTerm]) -> list[str]:
        """What a reader should know of a search, as the command says it."""
        words = [Term(words=each.words) for each in terms if each.words is not None]
        if not words or not isinstance(self.encoder, DualEncoder):
            return []
        return list(shortened_notes(self.encoder, Query(tuple(words))))

    def _adapted(
        self,
        terms: Sequence[SearchTerm],
        where: str | None,
        rows: np.ndarray,
        scores: np.ndarray,
        about: dict[str, Any],
    ) -> Order:
        query = Query(tuple(term for each in terms for term in self._as_query(each).terms))
        with self._lock:
            found = self.adaptive.search(query, where or None)
        row_of, tile = (
            self.collection.row_of,
            dict(zip(self.collection.tile_of[rows].tolist(), rows.tolist(), strict=True)),
        )
        best: dict[int, Hit] = {}
        for hit in found.hits:  # of rows of one picture, one for each caption, the best
            if hit.item.id in row_of:
                best.setdefault(tile[int(self.collection.tile_of[row_of[hit.item.id]])], hit)
        first, head = list(best.values()), np.array(list(best), dtype=np.int64)
        rest = ~np.isin(rows, head)
        plain = {int(row): rank for rank, row in enumerate(rows.tolist(), start=1)}
        learnt = [{**pair, "row": row_of[pair["id"]]} for pair in found.pairs() if pair["id"] in row_of]
        return self.orders.keep(
            np.concatenate([head, rows[rest]]),
            np.concatenate([np.array([hit.score for hit in first], dtype=np.float32), scores[rest]]),
            "adapted",
            {row: plain[row] for row in head.tolist()} if found.changed else {},
            {**about, "episode": {"learnt": learnt, "notes": list(found.notes), "changed": found.changed}},
        )

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
        return self._uploaded(str(term.upload))[0]

    def _as_query(self, term: SearchTerm) -> Query:
        if term.words is not None:
            return term.weight * Query.words(term.words)
        if term.row is not None:
            return term.weight * Query.picture(self.collection.picture(term.row))
        return term.weight * Query.picture(decode(self._uploaded(str(term.upload))[1], "the picture"))

    def _uploaded(self, key: str) -> tuple[np.ndarray, bytes]:
        with self._lock:
            if key not in self._uploads:
                raise UserError("this picture is not there any more. Drop it again.")
            return self._uploads[key]

    def _text(self, words: str) -> np.ndarray:
        with self._lock:
            return self.encoder.embed_texts([words], class_prefix(self.encoder)).numpy()[0]

    def upload(self, data: bytes) -> str:
        """Embed a picture to search by; kept in memory only, and only the latest few.

        Raises:
            UserError: it is no picture.
        """
        picture = decode(data, "the picture")  # all of it: its score is the one that the command says
        with self._lock:
            vector = self.encoder.embed_images([picture]).numpy()[0]
            key = secrets.token_urlsafe(12)
            self._uploads[key] = (vector, data)
            while len(self._uploads) > _UPLOADS or sum(len(each) for _, each in self._uploads.values()) > _UPLOADED:
                self._uploads.popitem(last=False)
        return key

    def prepare(self) -> None:
        """What takes a while, before anybody asks: where searches by words end, and which rows are copies.

        Where they end is learnt from captions; until then, and with too few of them, lists have no end.
        """
        collection, rows = self.collection, self.collection.shown().tiles
        with suppress(UserError, OSError):
            ids, vectors = collection.ids, collection.vectors
            if len(rows) < len(ids):  # as `recollect search` learns it: of each picture once
                ids, vectors = [ids[row] for row in rows.tolist()], vectors[rows]
            self._cut = cut_off_of(collection.memory, ids, vectors)
        _ = collection.copy_of

    def _cut_for(self, vector: np.ndarray, scores: np.ndarray) -> dict[str, Any]:
        """Where the learnt cut-off lies in these scores, best first; nothing where captions teach none."""
        cut = self._cut
        if cut is None:
            return {}
        limit = cut.score_for(vector)
        above = int((scores.astype(np.float64) >= limit).sum())
        return {"cut": {"score": limit, "above": above, "share": cut.share, "captions": cut.captions}}

    # ---------------------------------------------------------------- look

    def window(self, key: str, start: int, count: int, label: int | None = None) -> list[dict[str, Any]]:
        """Some tiles of an order.

        Args:
            label: a class, whose marks and probabilities are added.

        Raises:
            UserError: the order is not kept any more.
        """
        order = self.orders.get(key)
        shown = order.rows[start : start + count]
        items = self.collection.items(shown.tolist())
        marks, probability = self.teacher.said(label) if label is not None else ({}, None)
        copy_of = self.collection.copy_of
        told = self._told(shown) if order.kind == "sorted" else [{}] * len(items)
        tiles = []
        for place, (row, item) in enumerate(zip(shown.tolist(), items, strict=True), start=start):
            score = float(order.scores[place])
            tile = {"row": row, "id": item.id, "caption": item.caption, "source": item.source}
            tile["score"] = score if np.isfinite(score) else None
            if row in order.before:
                tile["before"] = order.before[row]
            if label is not None:
                picture = int(copy_of[row])
                tile["mark"] = marks.get(picture, 0)
                tile["p"] = float(probability[picture]) if probability is not None else None
            tiles.append(tile | told[place - start])
        return tiles

    def _told(self, rows: np.ndarray) -> list[dict[str, Any]]:
        try:
            return self.keeper.told(rows)
        except UserError:  # too few clicks are left since the list was made
            return [{}] * len(rows)

    def layout(self, where: str | None = None) -> Layout:
        """Where the pictures lie on a map, made once; those that satisfy a filter stay where they are."""
        shown = self.collection.shown(where)
        with self._slow:
            if self._layout is None:
                self._layout = lay_out(self.collection.vectors)
            found = self._layout
        kept = np.isin(found.rows, shown.tiles)
        return Layout(found.rows[kept], found.points[kept], found.method)

    def duplicates(self, where: str | None = None) -> tuple[list[Alike], str]:
        """Groups of pictures that are alike among those of a filter, and a sentence about them; looked for once."""
        shown = self.collection.shown(where)
        with self._slow:
            if self._alike is None:
                self._alike = duplicates(self.collection.memory, self.collection.row_of)
            groups, left_out = self._alike
        if shown.where:
            here = set(shown.rows.tolist())
            some = (Alike(each.kind, tuple(row for row in each.rows if row in here)) for each in groups)
            groups = [each for each in some if len(each.rows) > 1]
        counts = {kind: [len(each.rows) for each in groups if each.kind == kind] for kind in KINDS}
        said = "; ".join(f"{kind}: {_sizes(sizes)}" for kind, sizes in counts.items())
        part = f" ({'; '.join((*left_out, _ALL))})" if left_out else ""
        return groups, f"{said}{part}"


def _sizes(sizes: list[int]) -> str:
    """Groups, and all pictures in them."""
    if not sizes:
        return "none"
    return f"{counted(len(sizes), 'group')}, {counted(sum(sizes), 'picture')}"
