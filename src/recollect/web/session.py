"""The page's actions without the web server: lists, searches and labels. Scripts can call all of them."""

import base64
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from recollect.core.errors import UserError
from recollect.core.paths import check_writable
from recollect.core.progress import output, printable
from recollect.core.recent import LruCache
from recollect.data.sources.images import decode
from recollect.index import CutOff, Index, Query, Term
from recollect.index.annotations import LABELED
from recollect.index.cutoff import MIN_CAPTIONS, learn_cut_off
from recollect.index.facets import FACETS, Arrangement, sorted_ids
from recollect.index.filters import match_ids
from recollect.index.search import rank_pictures
from recollect.web.actions import Actions
from recollect.web.duplicates import DuplicateFinder
from recollect.web.folder import Additions, library_name
from recollect.web.label_store import LabelStore
from recollect.web.layout import Layout, lay_out
from recollect.web.library import Library, ShownRows, View
from recollect.web.requests import ListRequest, PicturesBody, SearchTerm, Slice

if TYPE_CHECKING:
    from recollect.efsa.rerank import EpisodeReranker
    from recollect.web.sorting import Sorting
    from recollect.web.teaching import Teaching

Answer = TypeVar("Answer")

_MAX_UPLOADS, _MAX_UPLOAD_BYTES = 32, 2**27  # cached uploads
_MAX_LISTS, _MAX_FILTERS = 16, 8  # cached
_FIRST = 5_000  # pictures that a search ranks at first; the others follow when the user scrolls further
MAX_ARRANGED = 500
_MIN_DESCRIBED = 0.5
"""Standard deviations by which the words of a label must score its marked pictures above the average. With the starter,
"dog" and "sunflower" reach 2.3 and 1.7, "Hunde" and other unrelated words -0.9 to 0.5."""

_WARM_AFTER = 1.0  # seconds


@dataclass
class Listing:
    """List of pictures for a `ListRequest`.

    Attributes:
        ids: ids of the pictures, best first; only the first ones of a long search.
        scores: scores of these pictures; None if the order has no score.
        total: number of pictures in the complete list.
        about: additional facts for the page.
        before: rank before reranking, for pictures reranked by an adapted model.
        vector: for a search, the unit-norm query (width,), used to extend a long list.
    """

    ids: Sequence[str]
    scores: np.ndarray | None
    total: int
    about: dict[str, Any] = field(default_factory=dict)
    before: Mapping[str, int] = field(default_factory=dict)
    vector: np.ndarray | None = None

    def after(self, ids: Sequence[str], scores: np.ndarray) -> "Listing":
        """Return this list with the given pictures moved to the front."""
        assert self.scores is not None
        first = set(ids)
        rest = [position for position, id in enumerate(self.ids) if id not in first]
        ids = [*ids, *(self.ids[position] for position in rest)]
        return replace(self, ids=ids, scores=np.concatenate([scores, self.scores[rest]]))


ListKey = tuple[ListRequest, int | None, int | None]
"""Definition of a list, with the version of the index and the revision of the labels it was computed from."""


class Session:
    """Thread-safe session of an index, its model and its labels.

    Args:
        out: folder for saved classifiers.
        folder: folder of pictures to add to the index and watch, if any.
        local: whether only this machine can open the page.
    """

    def __init__(
        self, index: Index, labels: LabelStore, out: Path, folder: Path | None = None, local: bool = False
    ) -> None:
        name = library_name(index.address) if folder is None else folder.resolve().name
        self.library, self.labels, self.local = Library(index, name), labels, local
        self._lock = threading.RLock()  # for the model
        self._layout_lock = threading.Lock()
        self._out = out
        self.duplicates = DuplicateFinder(self.library)
        self.additions = Additions(self.library, folder)
        self.actions = Actions(self.library, labels)
        self._uploads: LruCache[str, tuple[np.ndarray, bytes]] = LruCache(
            _MAX_UPLOAD_BYTES, lambda upload: max(len(upload[1]), _MAX_UPLOAD_BYTES // _MAX_UPLOADS)
        )
        self._lists: LruCache[ListKey, Listing] = LruCache(_MAX_LISTS)
        self._selections: LruCache[tuple[Any, ...], ShownRows] = LruCache(_MAX_FILTERS)
        self._facets: LruCache[tuple[Any, ...], dict[str, list[tuple[str, int]]]] = LruCache(_MAX_FILTERS)
        self._layout: tuple[int, Layout] | None = None
        self._cut: CutOff | None = None
        self._cut_from: tuple[int, int] | None = None  # see `_taught_by`
        self._preparing = threading.Lock()
        self._warmed = False

    @cached_property
    def teacher(self) -> "Teaching":
        """Models of the labels. Imports PyTorch and SciPy, which happens after the first pictures are shown."""
        from recollect.web.teaching import Teaching

        return Teaching(self.library, self.labels, self._lock)

    @cached_property
    def sorting(self) -> "Sorting":
        """Classifier over all labels."""
        from recollect.web.sorting import Sorting

        return Sorting(self.library, self.teacher, self._out, self._lock)

    def with_retry(self, question: Callable[[], Answer]) -> Answer:
        """Call ``question``, and call it again if it fails because the open version was deleted meanwhile.

        Raises:
            UserError: the call fails for another reason.
        """
        version = self.library.version
        try:
            return question()
        except UserError:
            if self.library.refresh().version == version:
                raise
            return question()

    # ---------------------------------------------------------------- lists

    def answer(self, part: Slice) -> dict[str, Any]:
        """Return a range of tiles of a list, and facts about the complete list.

        Raises:
            UserError: the filter, a term or the label is invalid, or nothing matches the filter.
        """
        start = time.perf_counter()
        view, (_, version, revision), listing = self._listing(part, part.start + part.count)
        self._warm_later()
        return {
            "total": listing.total,
            "of": len(view.ids),
            "version": version,
            "revision": revision,
            "start": part.start,
            "tiles": self._tiles(part, listing),
            "shapes": base64.b64encode(view.shapes_of(listing.ids, _FIRST)).decode() if not part.start else "",
            **listing.about,
            "milliseconds": round(1000 * (time.perf_counter() - start), 1),
        }

    def shapes(self, part: Slice) -> bytes:
        """Return the aspect ratio of each picture in a list as a byte (see `View.shapes`)."""
        view, _, listing = self._listing(part, None)
        return view.shapes_of(listing.ids)

    def ids(self, part: Slice, end: int | None) -> list[str]:
        """Return the ids of a list from ``part.start`` to ``end``, or to the end of the list if None."""
        return list(self._listing(part, end)[2].ids[part.start : end])

    def chosen(self, some: PicturesBody) -> list[str]:
        """Return the ids of the selected pictures.

        Raises:
            UserError: no pictures are selected.
        """
        ids = list(some.ids) if some.of is None else self.ids(some.of, some.first)
        if not ids:
            raise UserError("no pictures are selected")
        return ids

    def _listing(self, part: Slice, end: int | None) -> tuple[View, ListKey, Listing]:
        """Return the list with at least ``end`` ids, or with all of them if None."""
        view, request = self.library.view(), part.request
        key: ListKey = (request, part.version, part.revision)
        listing = self._lists.get(key)
        if listing is None:
            key = (request, view.version, self.labels.revision)
            listing = self._lists.get_or_create(key, lambda: self._make(request, view))
        if len(listing.ids) < listing.total and (end is None or end > len(listing.ids)):
            listing = self._lists.put(key, self._extended(request, listing))
        return view, key, listing

    def _make(self, request: ListRequest, view: View) -> Listing:
        if request.order == "search":
            return self._search(request) if request.terms else self._everything(request, view)
        if not view.ids:
            raise UserError("there are no pictures yet")
        shown = self.selection(request.where, view)
        if request.order == "sorted":
            ids, scores, about = self.sorting.ranked(request.show, shown)
            return Listing(ids, scores, len(ids), about)
        if request.label is None:
            raise UserError("choose a label first")
        ids, scores = self.teacher.ranked(request.label, request.order, shown)
        return Listing(ids, scores, len(ids), {"summary": self.teacher.summary(request.label, shown)})

    def _everything(self, request: ListRequest, view: View) -> Listing:
        if request.arrange == "score":
            ids = self.selection(request.where, view).ids
        else:
            ids = sorted_ids(self.library.index, request.arrange, request.where or None)
            ids = view.ids if ids == view.ids else ids  # unchanged order: share the list
        return Listing(ids, None, len(ids))

    def _search(self, request: ListRequest) -> Listing:
        listing = self._ranked(request)
        listing = self._adapted(request, listing) if request.adapt else listing
        return listing if request.arrange == "score" else self._arranged(request.arrange, listing)

    def _ranked(self, request: ListRequest) -> Listing:
        """Rank pictures as `Index.search` does, without reading them."""
        where, cut = request.where or None, self._cut
        (found,) = rank_pictures(
            self.library.index, [self.query(request.terms)], _FIRST, where=where, min_score=cut, lock=self._lock
        )
        about: dict[str, Any] = {"notes": list(found.notes)}
        if cut is not None and found.limit is not None:
            above = int((found.scores.astype(np.float64) >= found.limit).sum())
            about["cut"] = {"score": found.limit, "above": above, "share": cut.share, "texts": cut.texts,
                            "basis": cut.basis}  # fmt: skip
        total = found.searched if len(found.ids) == _FIRST else len(found.ids)
        return Listing(found.ids, found.scores, total, about, vector=found.vector)

    def _arranged(self, by: Arrangement, listing: Listing) -> Listing:
        """Sort the likely matches of a search by date or name; without a cut-off, the best `MAX_ARRANGED` results."""
        count = listing.about["cut"]["above"] if "cut" in listing.about else MAX_ARRANGED
        rank = {id: position for position, id in enumerate(listing.ids[:count])}
        ids = sorted_ids(self.library.index, by, match_ids(rank)) if rank else []
        assert listing.scores is not None
        about = {"notes": listing.about["notes"], "arranged": len(ids)}
        return Listing(ids, listing.scores[[rank[id] for id in ids]], len(ids), about, listing.before)

    def _extended(self, request: ListRequest, listing: Listing) -> Listing:
        """Extend a search to all its results, keeping the order of those already shown."""
        assert listing.scores is not None
        assert listing.vector is not None
        found = self.library.index.lookup(listing.vector[None], listing.total, where=request.where or None)
        ids = [id for id in found.ids[0].tolist() if id]
        complete = replace(listing, ids=ids, scores=found.scores[0, : len(ids)])
        complete = complete.after(listing.ids, listing.scores)  # an adapted model may have reordered them
        return replace(complete, total=len(complete.ids))

    @property
    def ends(self) -> str:
        """Identifier of the cut-off of searches by words; changes when the cut-off changes, empty without one."""
        return "" if self._cut is None else f"{self._cut.basis} {self._cut.texts}"

    @property
    def cannot_adapt(self) -> str | None:
        """Reason why this model cannot adapt to these pictures, as a sentence; None if it can."""
        if not self.library.index.texts:
            return "Refining learns from captions, and these pictures have none."
        from recollect.models import DualEncoder
        from recollect.models.lora import adapter_sites

        encoder = self.library.index.encoder
        with suppress(UserError):  # raised for the starter, for example
            if isinstance(encoder, DualEncoder) and adapter_sites(encoder):
                return None
        return "This model cannot refine results."

    @cached_property
    def reranker(self) -> "EpisodeReranker":
        """Reranker that adapts the model to a query."""
        from recollect.efsa.rerank import episode_reranker

        return episode_reranker(self.library.index)

    def _adapted(self, request: ListRequest, plain: Listing) -> Listing:
        """Rerank the top results with the model adapted to the query (EFSA)."""
        from recollect.efsa.rerank import EPISODE

        if missing := self.cannot_adapt:
            raise UserError(missing)
        with self._lock:
            query, depth = self.query(request.terms, pixels=True), self.reranker.depth
            hits = self.library.index.search(query, depth, where=request.where or None, rerank=self.reranker)
        learned = [
            {"id": hit.id, "caption": hit.caption, "before": hit.zero_shot_rank, "after": rank}
            for rank, hit in enumerate(hits, start=1)
            if hit.caption.strip() and hit.scored_by == EPISODE
        ]
        changed = any(hit.scored_by == EPISODE for hit in hits)
        listing = plain.after([hit.id for hit in hits], np.array([hit.score for hit in hits], dtype=np.float32))
        listing.about = {**plain.about, "episode": {"learned": learned, "notes": list(hits.notes), "changed": changed}}
        listing.before = {hit.id: hit.zero_shot_rank or 0 for hit in hits} if changed else {}
        return listing

    def _tiles(self, part: Slice, listing: Listing) -> list[dict[str, Any]]:
        ids = list(listing.ids[part.start : part.start + part.count])
        known = self.teacher.known(part.label, ids) if part.label is not None else {}
        sorted_as = self._sorted_as(ids) if part.order == "sorted" else {}
        tiles: list[dict[str, Any]] = []
        for position, picture in enumerate(self.library.pictures(ids), start=part.start):
            score = None if listing.scores is None else float(listing.scores[position])
            tile: dict[str, Any] = {
                "id": picture.id,
                "caption": picture.caption,
                "name": picture.path.name if picture.path else "",
                "folder": picture.folder,
                "score": score,
            }
            if picture.id in listing.before:
                tile["before"] = listing.before[picture.id]
            tiles.append(tile | known.get(picture.id, {}) | sorted_as.get(picture.id, {}))
        return tiles

    def _sorted_as(self, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        try:
            return self.sorting.sorted_as(ids)
        except UserError:  # marks were removed since the list was computed
            return {}

    def selection(self, where: str | None = None, view: View | None = None) -> ShownRows:
        """Return the rows that match a filter, or all rows.

        Raises:
            UserError: the filter is malformed, or nothing matches it.
        """
        where, view = (where or "").strip(), view or self.library.view()
        key = (where, view.version, self.labels.revision if where else 0)  # filters may depend on labels

        def make() -> ShownRows:
            rows = view.rows(self.library.index.ids_where(where)) if where else np.arange(len(view.ids))
            return ShownRows(view, np.sort(rows), where)

        return self._selections.get_or_create(key, make)

    # ---------------------------------------------------------------- queries

    def query(self, terms: Sequence[SearchTerm], pixels: bool = False) -> Query:
        """Convert terms to a query, as the command line and Python do.

        Args:
            pixels: include pictures instead of their vectors, so an adapted model can embed them.

        Raises:
            UserError: a term is invalid.
        """
        return Query(tuple(self._term(term, pixels) for term in terms))

    def _term(self, term: SearchTerm, pixels: bool) -> Term:
        if term.words is not None:
            if not term.words:
                raise UserError("a search term is empty. Type what to search for, or remove the term.")
            return Term(words=term.words, weight=term.weight)
        if term.id is not None:
            if pixels:
                return Term(picture=self.library.index.pictures([term.id])[0].open(), weight=term.weight)
            vector, name = self.library.index.vectors([term.id])[0], f"picture {term.id[:8]}"
        else:
            vector, data = self._uploaded(str(term.upload))
            if pixels:
                return Term(picture=decode(data, "the upload"), weight=term.weight)
            name = "the uploaded image"
        return Term(vector=vector, weight=term.weight, name=name)

    def _uploaded(self, key: str) -> tuple[np.ndarray, bytes]:
        if (found := self._uploads.get(key)) is None:
            raise UserError("this upload has expired. Please upload the image again.")
        return found

    def upload(self, data: bytes) -> str:
        """Embed a picture to search with, and return its key; only the most recent uploads are cached, in memory.

        Raises:
            UserError: the data is not a picture.
        """
        picture = decode(data, "the upload")
        with self._lock:
            vector = self.library.index.encoder.embed_images([picture]).numpy()[0]
        key = secrets.token_urlsafe(12)
        self._uploads.put(key, (vector, data))
        return key

    def prepare(self) -> None:
        """Learn the cut-off of searches by words from captions, marks or scores; until then, lists have no cut-off."""
        with self._preparing:
            if self._cut_from == (state := self._taught_by):
                return
            cut = None
            with suppress(UserError, OSError):
                cut = self.library.index.cut_off()
                cut = (self._cut_of_marks() or cut) if cut.basis == "scores" else cut
            self._cut, self._cut_from = cut, state
            self._lists = LruCache(_MAX_LISTS)  # existing lists lack the new cut-off

    def _cut_of_marks(self) -> CutOff | None:
        """Learn a cut-off from marked pictures and the words of their labels; None if there are too few.

        Labels whose words do not describe their pictures to the model (*Favorites*, or a name in another language) are
        left out: they would make almost every picture a likely match.
        """
        view, texts, rows = self.library.view(), list[np.ndarray](), list[int]()
        for each in list(self.labels.classes.values()):
            marked = view.rows([id for id, mark in list(each.marks.items()) if mark > 0]).tolist()
            text = self.library.index.query_vector(each.text or each.name)
            scores = view.vectors @ text
            if not marked or np.median(scores[marked]) < scores.mean() + _MIN_DESCRIBED * scores.std():
                continue
            texts += [text] * len(marked)
            rows += marked
        if len(rows) < MIN_CAPTIONS:
            return None
        return learn_cut_off(view.vectors, np.stack(texts), np.array(rows, dtype=np.int64), basis="marks")

    @property
    def _taught_by(self) -> tuple[int, int]:
        """Version and bit length of the number of marks: the cut-off is learned again when the marks have doubled."""
        marks = sum(each.count(1) for each in list(self.labels.classes.values()))
        return self.library.index.version, marks.bit_length() if marks >= MIN_CAPTIONS else 0

    def prepare_later(self) -> None:
        """Call `prepare` in a thread if there is new data, no folder is being indexed and no such thread is running."""
        busy = (self.additions.progress() or {}).get("busy")
        if not busy and not self._preparing.locked() and self._cut_from != self._taught_by:
            threading.Thread(target=self.prepare, name="prepare", daemon=True).start()

    def _warm_later(self) -> None:
        """Import the packages for labels and open the model after the first pictures are shown; this takes seconds."""
        if not self._warmed:
            self._warmed = True
            timer = threading.Timer(_WARM_AFTER, self._warm)
            timer.daemon = True
            timer.start()

    def _warm(self) -> None:
        with suppress(UserError):
            _ = self.teacher, self.sorting, self.library.index.encoder

    # ---------------------------------------------------------------- undo

    def pending(self) -> dict[str, Any]:
        """Describe what undo and redo would change."""
        pending = self.labels.pending()
        return {**pending, "undo": self.actions.pending() or pending["undo"]}

    def undo(self) -> dict[str, Any] | None:
        """Undo the latest change of labels, or of pictures and their files."""
        if self.actions.pending() is None:
            return self.labels.undo()
        undone = self.actions.undo()
        self.library.refresh()
        return undone

    def start(self) -> None:
        """Start watching the folder of the library, if any, and learning the cut-off of searches."""
        if self.additions.watched is not None:
            self.additions.watched.start()
        self.prepare_later()

    def close(self) -> None:
        """Stop reading folders, and close the labels."""
        self.additions.stop()
        self.labels.close()

    # ---------------------------------------------------------------- overviews

    def facets(self, names: Sequence[str], where: str | None = None) -> dict[str, list[tuple[str, int]]]:
        """Count pictures by folder, month, camera, label and source under a filter; cached per version.

        Raises:
            UserError: the filter is malformed, nothing matches it, or there is no such facet.
        """
        if unknown := set(names) - {*FACETS, LABELED}:
            raise UserError(f"no facet {sorted(unknown)[0]!r}; there are {', '.join((*FACETS, LABELED))}")
        key = (tuple(names), where, self.library.view().version, self.labels.revision)
        return self._facets.get_or_create(key, lambda: self.library.index.facets(names, where or None))

    def layout(self, where: str | None = None) -> tuple[list[str], np.ndarray, str]:
        """Return the ids of the pictures on the map, their positions (pictures, 2) in the unit square, and the method.

        The map is computed once per version; filters do not move pictures.
        """
        shown = self.selection(where)
        view = shown.view
        with self._layout_lock:
            if self._layout is None or self._layout[0] != view.version:
                self._layout = view.version, lay_out(view.vectors)
            found = self._layout[1]
        kept = np.isin(found.rows, shown.rows)
        return [view.ids[row] for row in found.rows[kept].tolist()], found.points[kept], found.method

    def map_groups(self, by: Literal["folder", "label"], where: str | None = None) -> tuple[list[str], list[int]]:
        """Return folders or labels, most frequent first, and for each picture on the map the number of its group.

        Folders are top-level folders. A picture with several labels belongs to the one created last; -1 means none.
        """
        ids, _, _ = self.layout(where)
        if by == "folder":
            rows = self.library.index.store.dicts(["id", "folder"])
            value_of = {row["id"]: (row["folder"] or "").split("/")[0] for row in rows}
        else:
            classes = list(self.labels.classes.values())
            value_of = {id: each.name for each in classes for id, mark in list(each.marks.items()) if mark > 0}
        values = [value_of.get(id) for id in ids]
        names = [name for name, _ in Counter(value for value in values if value is not None).most_common()]
        number = {name: index for index, name in enumerate(names)}
        return names, [-1 if value is None else number[value] for value in values]


def open_session(
    index: Index, folder: Path | None = None, labels: Path | None = None, out: Path | None = None, local: bool = False
) -> Session:
    """Open the session of an index, with its labels.

    Args:
        folder: folder of pictures to add to the index and watch, if any.
        labels: SQLite file for labels; in the folder of the index by default.
        out: folder for saved classifiers; in the folder of the index by default.
        local: whether only this machine can open the page.

    Raises:
        UserError: labels cannot be saved, or the model of the index cannot be opened.
    """
    file = labels or index.annotations
    if file is None:
        raise UserError(f"{index.address}: not a folder. Name a file for the labels with --labels.")
    check_writable(labels, "--labels")
    check_writable(out, "--out")
    store = LabelStore(file)
    index.model.open_text_encoder()  # report a model that cannot be opened now
    if index.folder is not None and labels is not None:
        _note_read_only(index.folder, labels)
    page = labels.parent if labels else file.parent / "page"
    return Session(index, store, out or page / "classifiers", folder, local)


def _note_read_only(folder: Path, labels: Path) -> None:
    try:
        check_writable(folder, "INDEX")
    except UserError:
        text = f"note: {folder} is not writable: labels are saved in {labels}, and filters cannot use them"
        output().print(printable(text), style="yellow", highlight=False, soft_wrap=True)
