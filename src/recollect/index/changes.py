"""Changes to the pictures of an index; each is whole or absent, in commits of 2,048 rows."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from recollect.core.validation import refuse
from recollect.index.filters import NAMES, Filter
from recollect.index.picture import File
from recollect.index.rows import COLUMNS, Rows, merged_facts, plain
from recollect.index.search import SearchableIndex

_ROWS_OF_A_COMMIT = 2_048
_ALLOWED_COLUMN = re.compile(r"[^\s\"'(),][^\"]*")


class ChangeableIndex(SearchableIndex):
    """An index whose pictures can be inserted, changed and removed."""

    def insert(self, rows: Rows) -> int:
        """Insert rows given as arrays, or replace those with the same ids; all or none.

        Returns:
            How many were replaced.

        Raises:
            UserError: vectors of another width or norm, or an id used twice.
        """
        if not len(rows):
            return 0
        complete = rows.complete(self.record, self.address)
        with self.store.writing():
            known = self.store.rows(complete.ids, ["id"]).num_rows
            self.store.upsert(complete.table(self.record))
        return int(known)

    def remove(self, ids: Collection[str] | None = None, *, where: str | Filter | None = None) -> int:
        """Remove pictures from the index, and keep them out when their source is read again; no file is touched.

        `restore` brings them back as they were.

        Returns:
            How many were removed.

        Raises:
            UserError: an id does not exist, or nothing satisfies the filter; then nothing is removed.
        """
        if (ids is None) == (where is None):
            raise ValueError("give ids or a filter, not both")
        wanted = self.ids_where(where) if where is not None else list(dict.fromkeys(ids or ()))
        self._check_known(wanted)
        return self._mark(wanted, removed=True)

    def restore(self, ids: Collection[str] | None = None) -> int:
        """Bring back pictures that were removed: some, or all of them.

        Raises:
            UserError: a picture was not removed; then none is brought back.
        """
        removed = [id for table in self.store.scan(["id"], removed=True) for id in table["id"].to_pylist()]
        wanted = removed if ids is None else list(dict.fromkeys(ids))
        missing = [id for id in wanted if id not in {*removed}] if ids is not None else []
        refuse((missing, f"{self.address}: picture {next(iter(missing), '')!r} was not removed"))
        return self._mark(wanted, removed=False)

    def forget(self, source: str) -> int:
        """Drop a source: its files, and the pictures that have no other file. They come back if it is added again.

        Returns:
            How many pictures are gone.

        Raises:
            UserError: the source does not exist.
        """
        with self.store.writing():
            rows = [row for table in self.store.scan(["id", "files"], removed=None) for row in table.to_pylist()]
            mine = [row["id"] for row in rows if any(file["source"] == source for file in row["files"])]
            known = ", ".join(sorted({file["source"] for row in rows for file in row["files"]})) or "none"
            refuse((not mine, f"{self.address}: no source called {source!r}; there are: {known}"))
            return self.drop_files(mine, lambda file: file.source == source)

    def drop_files(self, ids: Sequence[str], dropped: Callable[[File], bool]) -> int:
        """Take files from pictures, and delete those that are left without one; returns how many were deleted.

        A picture that the user removed stays, so that it is known wherever it turns up again.
        """

        def drop(rows: Rows) -> int:
            files = [tuple(file for file in each if not dropped(file)) for each in rows.files]
            kept = {place for place, each in enumerate(files) if each or rows.removed[place]}
            if kept:
                self.upsert_merged(replace(rows, files=files).take(sorted(kept)))
            lost = [id for place, id in enumerate(rows.ids) if place not in kept]
            if lost:
                self.store.delete(lost)
            return len(lost)

        return self._in_commits(ids, drop)

    def rename_files(self, ids: Sequence[str], renamed: Mapping[str, str]) -> None:
        """Note where files of some pictures are now, after they were moved on disk.

        Args:
            renamed: the new path of each old one.
        """

        def rename(rows: Rows) -> int:
            files = [tuple(replace(file, path=renamed.get(file.path, file.path)) for file in each)
                     for each in rows.files]  # fmt: skip
            self._upsert(replace(rows, files=files))
            return len(rows)

        self._in_commits(ids, rename)

    def set_captions(self, captions: Mapping[str, str | Sequence[str]], by: str = "") -> int:
        """Give pictures captions of the user's own, or of a model; those of their sources stay behind them.

        Args:
            captions: a text, or several, for each id; an empty text takes the user's captions away.
            by: the model that wrote them.

        Returns:
            How many pictures have changed.

        Raises:
            UserError: an id does not exist; then nothing is changed.
        """
        given = {id: [each] if isinstance(each, str) else list(each) for id, each in captions.items()}
        texts = {id: [text.strip() for text in each if text.strip()] for id, each in given.items()}

        def changed(id: str, own: Mapping[str, Any]) -> Mapping[str, Any]:
            kept = {key: value for key, value in own.items() if key not in ("captions", "by")}
            return kept | ({"captions": texts[id], "by": by} if texts[id] else {})

        return self._change_own(list(texts), changed)

    def set_values(self, name: str, values: Mapping[str, Any]) -> int:
        """Give pictures a value in a column of the user's own, which filters then know; None takes it away.

        Returns:
            How many pictures have changed.

        Raises:
            UserError: an id does not exist, or the name is one of the built-in ones; then nothing is changed.
        """
        taken = name in NAMES or not _ALLOWED_COLUMN.fullmatch(name)
        refuse((taken, f"column {name!r}: choose another name; these are taken: {', '.join(NAMES)}"))

        def changed(id: str, own: Mapping[str, Any]) -> Mapping[str, Any]:
            return {**own, "values": {**own.get("values", {}), name: plain(values[id])}}

        return self._change_own(list(values), changed)

    def _mark(self, ids: list[str], removed: bool) -> int:
        """Note whether the user removed some pictures; returns how many differ."""

        def rewrite(rows: Rows) -> int:
            places = [place for place, before in enumerate(rows.removed) if before != removed]
            if places:
                self._upsert(replace(rows.take(places), removed=[removed] * len(places)))
            return len(places)

        return self._in_commits(ids, rewrite)

    def _change_own(self, ids: list[str], change: Callable[[str, Mapping[str, Any]], Mapping[str, Any]]) -> int:
        """Change what the user set of some pictures; returns how many differ."""
        self._check_known(ids)

        def rewrite(rows: Rows) -> int:
            own = [change(*each) for each in zip(rows.ids, rows.own, strict=True)]
            places = [place for place, each in enumerate(own) if each != rows.own[place]]
            if places:
                self.upsert_merged(replace(rows, own=own).take(places))
            return len(places)

        return self._in_commits(ids, rewrite)

    def _in_commits(self, ids: Sequence[str], write: Callable[[Rows], int]) -> int:
        """Pass rows to ``write``, 2,048 at a time while other writers wait; returns the sum of its counts."""
        total = 0
        for start in range(0, len(ids), _ROWS_OF_A_COMMIT):
            with self.store.writing():
                total += write(Rows.of_table(self.store.rows(ids[start : start + _ROWS_OF_A_COMMIT], COLUMNS)))
        return total

    def _upsert(self, rows: Rows) -> None:
        self.store.upsert(rows.complete(self.record, self.address).table(self.record))

    def upsert_merged(self, rows: Rows) -> None:
        """Write rows whose captions, labels and metadata follow from their files and what the user set.

        Vectors of captions that a row had are kept, others are embedded.
        """
        facts = [merged_facts(files, own) for files, own in zip(rows.files, rows.own, strict=True)]
        known = [dict(zip(*each, strict=True)) for each in zip(rows.captions, rows.caption_vectors, strict=True)]
        wanted = [(text, old) for each, old in zip(facts, known, strict=True) for text in each["captions"]]
        made: dict[str, np.ndarray] = {}
        if missing := list(dict.fromkeys(text for text, old in wanted if text not in old)):
            embedded = self.encoder.embed_texts(missing, self.record.prefix).numpy()
            made = dict(zip(missing, embedded, strict=True))
        vectors = [
            np.array([old[text] if text in old else made[text] for text in each["captions"]], dtype=np.float32)
            for each, old in zip(facts, known, strict=True)
        ]
        merged: dict[str, Any] = {name: [each[name] for each in facts] for name in ("captions", "labels", "metadata")}
        self._upsert(replace(rows, caption_vectors=[each.reshape(-1, self.width) for each in vectors], **merged))
