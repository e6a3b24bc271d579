"""Ingest a source into an index: upsert by pixel digest and by (source, key).

Used by `Index.build`, `Index.add` and `FolderWatch`. A picture already in the index gains a file entry and is not
embedded again. A file whose content changed moves to a different row. Rows are committed in whole blocks, so an
interrupted call resumes where it stopped.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from recollect.core.paths import may_exist_unlisted
from recollect.core.progress import progress
from recollect.core.types import Source
from recollect.core.validation import refuse
from recollect.data.sources.images import note
from recollect.data.sources.reader import BrokenCounter
from recollect.index.changes import drop_files, with_files, with_merged_facts, write_rows
from recollect.index.lookup import look_up
from recollect.index.options import IngestOptions
from recollect.index.picture import PICTURE_FACTS, File
from recollect.index.rows import COLUMNS, ROUNDING, Rows
from recollect.index.samples import BLOCK, Failed, IngestOutcome, ReadPicture, SampleReader, Unchanged

if TYPE_CHECKING:
    from recollect.data.sources.columns import Columns
    from recollect.index.index import Index

_MAX_PENDING = 16 * BLOCK  # samples per commit; an interruption loses at most these
_MIN_INTERVAL = 1.0  # minimum seconds between early commits
_INTERVAL_SHARE = 0.1  # minimum time between early commits as a fraction of the time elapsed
_MAX_LISTED = 20  # unreadable pictures listed by name


@dataclass
class IngestReport:
    """Outcome of one ingest call.

    Attributes:
        read: samples read.
        added: new pictures.
        updated: existing pictures with a new file, caption, label or value.
        unchanged: unchanged samples.
        copies: samples whose picture is already in the index under another name or source.
        deleted: pictures no longer in any source.
        excluded: samples whose picture the user removed.
        near: pictures skipped as near-duplicates.
        broken: error messages of unreadable pictures.
    """

    read: int = 0
    added: int = 0
    updated: int = 0
    unchanged: int = 0
    copies: int = 0
    deleted: int = 0
    excluded: int = 0
    near: int = 0
    broken: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """Return a one-line summary."""
        parts = {
            "added": self.added, "updated": self.updated, "unchanged": self.unchanged, "copies": self.copies,
            "gone": self.deleted, "removed by you and kept out": self.excluded, "near-duplicates left out": self.near,
            "unreadable": len(self.broken),
        }  # fmt: skip
        return f"{self.read:,} read: " + ", ".join(f"{count:,} {what}" for what, count in parts.items() if count)


def ingest(
    index: "Index",
    source: str | Path | Source,
    name: str = "",
    options: IngestOptions | None = None,
    on_block: Callable[[IngestReport, int], None] | None = None,
) -> IngestReport:
    """Implement `Index.add`."""
    options = options or IngestOptions()
    if not isinstance(source, Source):
        source = open_pictures(str(source))
    source_name = name or source.name.removesuffix(":all")
    writer = _Writer(index, options, source_name)
    other = next(iter(writer.places), "") or "an earlier source"
    refuse((
        not name and writer.places and source.place not in writer.places,
        f"{index.address}: the name '{source_name}' is already used by a source read from {other}. Choose another name "
        f"with --name NAME, or replace that source by this one with --name '{source_name}'.",
    ))  # fmt: skip
    stop = len(source) if options.limit is None else min(options.limit, len(source))
    reader = SampleReader(index.encoder, source, source_name, options, writer.files, frozenset(writer.ids))
    counted = BrokenCounter(options.broken_share, "--broken-share", shown=_MAX_LISTED)
    with progress(f"embed {source.name}", stop, "pictures") as counter:
        try:
            for block in _blocks(reader, stop, options.engine):
                writer.take(block)
                counted.add(source, len(block), [each.message for each in block if isinstance(each, Failed)])
                counter.advance(len(block))
                if on_block is not None:
                    on_block(writer.report, stop)
        except KeyboardInterrupt:
            writer.commit()  # the next call resumes here
            raise
        writer.commit()
    writer.drop_unseen(whole=stop == len(source))
    return writer.report


def open_pictures(spec: str, split: str | None = None, columns: "Columns | None" = None) -> Source:
    """Open a source for an index: all splits by default, including pictures without texts.

    Raises:
        UserError: the source, split or column does not exist.
    """
    from recollect.data.sources import (
        open_source,  # imports datasets, which a search does not need
        split_of,
    )
    from recollect.data.sources.generated import is_generated

    if split is None and not is_generated(spec):
        split = split_of(spec) or "all"
    return open_source(spec, split=split, columns=columns, keep_textless=True)


def _blocks(reader: SampleReader, stop: int, engine: str) -> Iterator[list[IngestOutcome]]:
    if engine == "ray":
        from recollect.index.ray import ray_blocks

        return ray_blocks(reader, stop)
    return reader.blocks(range(stop))


class _Writer:
    """Collects ingest outcomes and commits them to the index.

    Attributes:
        source_name: name of the source in the index.
        report: counts so far.
        files: existing files of this source, with their picture's id, by key and stamp.
        ids: all ids in the index; True for pictures that the user removed.
        places: existing places of this source.
    """

    def __init__(self, index: "Index", options: IngestOptions, source_name: str) -> None:
        self.index, self.options, self.source_name, self.report = index, options, source_name, IngestReport()
        self.files: dict[str, dict[str, tuple[str, File]]] = {}
        self.ids: dict[str, bool] = {}
        for row in index.store.dicts(["id", "files", "removed"], removed=None):
            self.ids[row["id"]] = row["removed"]
            for file in (File(**each) for each in row["files"] if each["source"] == source_name):
                self.files.setdefault(file.key, {})[file.stamp] = (row["id"], file)
        self.places = {file.place for entries in self.files.values() for _, file in entries.values()}
        self._seen: dict[str, set[str]] = {}  # stamps by key
        self._key_unknown = False  # a picture failed before its key was known: it may be any key not yet seen
        self._pending: dict[str, list[ReadPicture]] = {}
        self._moved: dict[str, list[File]] = {}
        self._pending_samples = 0
        self._started = self._committed = time.monotonic()

    def take(self, block: list[IngestOutcome]) -> None:
        """Count the outcomes of a block, and commit if enough samples are pending."""
        near = self._near(block)
        for outcome in block:
            self.report.read += 1
            if isinstance(outcome, Failed):
                self.report.broken.append(outcome.message)
                if outcome.key is None:
                    self._key_unknown = True
                else:
                    self._seen.setdefault(outcome.key, set()).update(self.files.get(outcome.key, ()))
                continue
            file = outcome.file
            self._seen.setdefault(file.key, set()).add(file.stamp)
            if isinstance(outcome, Unchanged):
                self.report.unchanged += 1
                id, before = self.files[file.key][file.stamp]
                self.report.excluded += self.ids[id]
                if before != file:  # moved or rewritten, with the same content
                    self._moved.setdefault(id, []).append(file)
            elif outcome.id in near:
                self.report.near += 1
            else:
                self._pending.setdefault(outcome.id, []).append(outcome)
                self._pending_samples += 1
        if self._pending_samples >= _MAX_PENDING:
            self.commit()
        self._commit_early()

    def _commit_early(self) -> None:
        """Commit pending samples if due, at growing intervals since each commit adds a part to the matrix."""
        now = time.monotonic()
        interval = max(_MIN_INTERVAL, _INTERVAL_SHARE * (now - self._started))
        if self.options.early and now - self._committed > interval:
            self.commit()

    def _near(self, block: list[IngestOutcome]) -> set[str]:
        """Return ids of new pictures with a near-duplicate in the index, pending, or earlier in the block."""
        read = (each for each in block if isinstance(each, ReadPicture) and each.id not in self._pending)
        new = {each.id: each.vector for each in read if each.vector is not None and each.id not in self.ids}
        if self.options.near is None or not new:
            return set()
        vectors, limit = np.stack([*new.values()]), self.options.near - 2 * ROUNDING  # half and single precision
        near = look_up(self.index.store, vectors, 1, exact=True).scores[:, 0] >= limit
        if pending := [vector for reads in self._pending.values() if (vector := reads[0].vector) is not None]:
            near |= (vectors @ np.stack(pending).T >= limit).any(axis=1)
        alike = vectors @ vectors.T >= limit
        for row in range(len(near)):
            near[row] |= (alike[row, :row] & ~near[:row]).any()
        return {id for id, skipped in zip(new, near.tolist(), strict=True) if skipped}

    def commit(self) -> None:
        """Write all pending samples in one commit."""
        ids = list(dict.fromkeys((*self._pending, *self._moved)))
        if not ids:
            return
        with self.index.store.writing():
            changed = self._changed(Rows.of_table(self.index.store.rows(ids, COLUMNS)))
            known = {*changed.ids}
            new = self._new([reads for id, reads in self._pending.items() if id not in known])
            write_rows(self.index, with_merged_facts(self.index, Rows.joined([changed, new])))
        self.report.updated += len(changed)
        self.report.added += len(new)
        self.ids |= {id: self.ids.get(id, False) for id in self._pending}
        self._pending, self._moved, self._pending_samples = {}, {}, 0
        self._committed = time.monotonic()

    def _changed(self, existing: Rows) -> Rows:
        """Return existing rows with the files read; a rewritten file keeps its position."""
        files, images = list(existing.files), list(existing.images)
        for row, id in enumerate(existing.ids):
            reads, known = self._pending.get(id, []), {each.name for each in files[row]}
            again = [each for each in reads if each.file.name in known]
            new = [each for each in reads if each.file.name not in known]
            every = (*files[row], *(each.file for each in reads), *self._moved.get(id, []))
            rank = {name: number for number, name in enumerate(dict.fromkeys(each.name for each in every))}
            distinct = {(each.name, each.stamp): each for each in every}
            files[row] = sorted(distinct.values(), key=lambda each: rank[each.name])
            stored = (*(each.stored for each in again), images[row], *(each.stored for each in new))
            images[row] = next(filter(None, stored), None)
            self.report.copies += len(new) if not existing.removed[row] else 0
            self.report.excluded += len(reads) if existing.removed[row] else 0
        return replace(with_files(existing, files), images=images)

    def _new(self, pictures: list[list[ReadPicture]]) -> Rows:
        """Return rows for new pictures, each read from one or several files."""
        firsts, vectors = [reads[0] for reads in pictures], list[np.ndarray]()
        for first in firsts:
            message = f"{self.index.address}: another process deleted picture {first.id}. Run the command again."
            refuse((first.vector is None, message))  # not embedded, since it was in the index when it was read
            vectors.append(np.asarray(first.vector))
        self.report.copies += sum(len(reads) - 1 for reads in pictures)
        count, none = len(firsts), np.zeros((0, self.index.width), dtype=np.float32)
        return Rows(
            image_vectors=np.array(vectors, dtype=np.float32).reshape(count, self.index.width),
            captions=[()] * count, caption_vectors=[none] * count, ids=[first.id for first in firsts],
            files=[tuple(dict.fromkeys(each.file for each in reads)) for reads in pictures],
            images=[first.stored for first in firsts], own=[{}] * count, removed=[False] * count,
            labels=[()] * count, metadata=[{}] * count,
            **{name: [each.facts[name] for each in firsts] for name in PICTURE_FACTS},
        )  # fmt: skip

    def drop_unseen(self, whole: bool) -> None:
        """Drop outdated versions of files, and files that the source no longer has if all of it was read (``whole``).

        Files in the trash are kept, so they can be restored. A table may list a picture in several rows. After a
        partial read, versions are dropped only if as many were seen as are stored, since the remaining rows may still
        follow.
        """
        deleted: dict[str, set[tuple[str, str]]] = {}
        hidden, whole = 0, whole and not self._key_unknown
        for key, entries in self.files.items():
            seen = self._seen.get(key, set())
            for stamp, (id, file) in entries.items():
                if stamp in seen or not (whole or len(seen) >= len(entries)) or file.in_trash:
                    continue
                if not seen and file.path and may_exist_unlisted(Path(file.path)):
                    hidden += 1
                    continue
                deleted.setdefault(id, set()).add((key, stamp))
        if hidden:
            note(f"{self.index.address}: kept the pictures of {hidden:,} files in folders that cannot be read now")
        stale = set[tuple[str, str]]().union(*deleted.values())

        def dropped(file: File) -> bool:
            is_stale = file.source == self.source_name and (file.key, file.stamp) in stale
            return is_stale and not file.in_trash  # it may have been deleted on the page since the start

        self.report.deleted += drop_files(self.index, list(deleted), dropped)
