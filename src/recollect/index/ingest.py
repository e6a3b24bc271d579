"""From a source to rows: an upsert by the digest of the pixels, and by the set of (source, key).

`Index.build`, `Index.add` and `Index.watch` all come here. A picture that is there already, under any name and from any
source, gets another file and is not embedded again; a file that holds another picture now leaves its old row. Rows are
written in commits of whole blocks, so that a call that was killed continues where it was when it is made again.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recollect.core.paths import may_be_there
from recollect.core.progress import progress
from recollect.core.types import Source
from recollect.core.validation import refuse
from recollect.data.sources.images import note
from recollect.data.sources.reader import BrokenCounter
from recollect.index.changes import drop_files, upsert_merged, with_files
from recollect.index.lookup import look_up
from recollect.index.picture import PICTURE_FACTS, File
from recollect.index.rows import COLUMNS, ROUNDING, Rows
from recollect.index.samples import BLOCK, Failed, IngestOptions, IngestOutcome, ReadPicture, SampleReader, Unchanged

if TYPE_CHECKING:
    from recollect.data.sources.columns import Columns

_COMMIT = 16 * BLOCK  # rows of a commit, at most: what a kill can lose
_EARLY, _LATER = 1.0, 0.1  # seconds between early commits, at least, and as a share of the time so far
_NAMED = 20  # unreadable pictures that are named


@dataclass
class IngestReport:
    """What became of the samples of one call.

    Attributes:
        read: samples.
        added: new pictures.
        updated: pictures that were there and changed: another file, caption, label or value.
        unchanged: samples that are as they were.
        copies: samples whose picture was there already, under another name or from another source.
        gone: pictures that no source has any more.
        kept_out: samples whose picture the user removed.
        near: pictures left out because a near-duplicate was there.
        broken: what was wrong with pictures that could not be read.
    """

    read: int = 0
    added: int = 0
    updated: int = 0
    unchanged: int = 0
    copies: int = 0
    gone: int = 0
    kept_out: int = 0
    near: int = 0
    broken: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """One line for a reader."""
        parts = {
            "added": self.added, "updated": self.updated, "unchanged": self.unchanged, "copies": self.copies,
            "gone": self.gone, "removed by you and kept out": self.kept_out, "near-duplicates left out": self.near,
            "unreadable": len(self.broken),
        }  # fmt: skip
        return f"{self.read:,} read: " + ", ".join(f"{count:,} {what}" for what, count in parts.items() if count)


def ingest(
    index: Any,
    source: str | Path | Source,
    name: str = "",
    options: IngestOptions | None = None,
    on_block: Callable[[IngestReport, int], None] | None = None,
) -> IngestReport:
    """See `Index.add`."""
    options = options or IngestOptions()
    if not isinstance(source, Source):
        source = open_pictures(str(source))
    called = name or source.name.removesuffix(":all")
    writer = _Writer(index, options, called)
    other = next(iter(writer.places), "") or "an earlier source"
    refuse((
        not name and writer.places and source.place not in writer.places,
        f"{index.address}: another source is called '{called}' already, read from {other}. Give this one another name "
        f"with --name NAME; if it is a newer version of that one, say so with --name '{called}'.",
    ))  # fmt: skip
    stop = len(source) if options.limit is None else min(options.limit, len(source))
    reader = SampleReader(index.encoder, source, called, options, writer.files, frozenset(writer.ids))
    counted = BrokenCounter(options.broken_share, "--broken-share", shown=_NAMED)
    with progress(f"embed {source.name}", stop, "pictures") as counter:
        try:
            for block in _blocks(reader, stop, options.engine):
                writer.take(block)
                counted.add(source, len(block), [each.message for each in block if isinstance(each, Failed)])
                counter.advance(len(block))
                if on_block is not None:
                    on_block(writer.report, stop)
        except KeyboardInterrupt:
            writer.commit()  # the next call goes on from here
            raise
        writer.commit()
    writer.drop_unseen(whole=stop == len(source))
    return writer.report


def open_pictures(spec: str, split: str | None = None, columns: "Columns | None" = None) -> Source:
    """Open a source for an index: all its splits where none is named, pictures without texts included.

    Raises:
        UserError: the source, split or column does not exist.
    """
    from recollect.data.sources import (
        open_source,  # loads datasets, which a search does not need
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
    """Writes what was read in commits.

    Args:
        index: to write to.
        options: of the call.
        called: the name of the source.

    Attributes:
        report: counts.
        files: what the index knew of this source before: by key and stamp, with the id of the picture.
        ids: of all pictures; True for those that the user removed.
        places: of this source.
    """

    def __init__(self, index: Any, options: IngestOptions, called: str) -> None:
        self.index, self.options, self.called, self.report = index, options, called, IngestReport()
        self.files: dict[str, dict[str, tuple[str, File]]] = {}
        self.ids: dict[str, bool] = {}
        for row in index.store.dicts(["id", "files", "removed"], removed=None):
            self.ids[row["id"]] = row["removed"]
            for file in (File(**each) for each in row["files"] if each["source"] == called):
                self.files.setdefault(file.key, {})[file.stamp] = (row["id"], file)
        self.places = {file.place for entries in self.files.values() for _, file in entries.values()}
        self._seen: dict[str, set[str]] = {}  # stamps by key
        self._nameless = False  # whether a picture broke before its name was known: it may be any that is not seen
        self._waiting: dict[str, list[ReadPicture]] = {}
        self._moved: dict[str, list[File]] = {}
        self._count = 0  # of samples that are waiting
        self._began = self._committed = time.monotonic()

    def take(self, block: list[IngestOutcome]) -> None:
        """Count samples, and write when enough are waiting."""
        near = self._near(block)
        for outcome in block:
            self.report.read += 1
            if isinstance(outcome, Failed):
                self.report.broken.append(outcome.message)
                if outcome.key is None:
                    self._nameless = True
                else:
                    self._seen.setdefault(outcome.key, set()).update(self.files.get(outcome.key, ()))
                continue
            file = outcome.file
            self._seen.setdefault(file.key, set()).add(file.stamp)
            if isinstance(outcome, Unchanged):
                self.report.unchanged += 1
                id, before = self.files[file.key][file.stamp]
                self.report.kept_out += self.ids[id]
                if before != file:  # the same picture in another place, or written again
                    self._moved.setdefault(id, []).append(file)
            elif outcome.id in near:
                self.report.near += 1
            else:
                self._waiting.setdefault(outcome.id, []).append(outcome)
                self._count += 1
        if self._count >= _COMMIT:
            self.commit()
        self._commit_early()

    def _commit_early(self) -> None:
        """Write what is waiting if it is due: ever less often, since each commit is a new part."""
        now = time.monotonic()
        if self.options.early and now - self._committed > max(_EARLY, _LATER * (now - self._began)):
            self.commit()

    def _near(self, block: list[IngestOutcome]) -> set[str]:
        """Ids of new pictures of a block with a near-duplicate in the index, waiting, or before them in the block."""
        read = (each for each in block if isinstance(each, ReadPicture) and each.id not in self._waiting)
        news = {each.id: each.vector for each in read if each.vector is not None and each.id not in self.ids}
        if self.options.near is None or not news:
            return set()
        vectors, limit = np.stack([*news.values()]), self.options.near - 2 * ROUNDING  # half and single precision
        near = look_up(self.index.store, vectors, 1, exact=True).scores[:, 0] >= limit
        if waiting := [vector for reads in self._waiting.values() if (vector := reads[0].vector) is not None]:
            near |= (vectors @ np.stack(waiting).T >= limit).any(axis=1)
        alike = vectors @ vectors.T >= limit
        for row in range(len(near)):
            near[row] |= (alike[row, :row] & ~near[:row]).any()
        return {id for id, left_out in zip(news, near.tolist(), strict=True) if left_out}

    def commit(self) -> None:
        """Write what is waiting, all of it or nothing."""
        ids = list(dict.fromkeys((*self._waiting, *self._moved)))
        if not ids:
            return
        with self.index.store.writing():
            changed = self._changed(Rows.of_table(self.index.store.rows(ids, COLUMNS)))
            known = {*changed.ids}
            new = self._new([reads for id, reads in self._waiting.items() if id not in known])
            upsert_merged(self.index, Rows.joined([changed, new]))
        self.report.updated += len(changed)
        self.report.added += len(new)
        self.ids |= {id: self.ids.get(id, False) for id in self._waiting}
        self._waiting, self._moved, self._count = {}, {}, 0
        self._committed = time.monotonic()

    def _changed(self, there: Rows) -> Rows:
        """Rows that exist, with the files that were read; one that was written again keeps its place among them."""
        files, images = list(there.files), list(there.images)
        for row, id in enumerate(there.ids):
            reads, known = self._waiting.get(id, []), {each.name for each in files[row]}
            again = [each for each in reads if each.file.name in known]
            new = [each for each in reads if each.file.name not in known]
            every = (*files[row], *(each.file for each in reads), *self._moved.get(id, []))
            place = {name: number for number, name in enumerate(dict.fromkeys(each.name for each in every))}
            distinct = {(each.name, each.stamp): each for each in every}
            files[row] = sorted(distinct.values(), key=lambda each: place[each.name])
            stored = (*(each.stored for each in again), images[row], *(each.stored for each in new))
            images[row] = next(filter(None, stored), None)
            self.report.copies += len(new) if not there.removed[row] else 0
            self.report.kept_out += len(reads) if there.removed[row] else 0
        return replace(with_files(there, files), images=images)

    def _new(self, pictures: list[list[ReadPicture]]) -> Rows:
        """New pictures, each read from one file or several."""
        firsts, vectors = [reads[0] for reads in pictures], list[np.ndarray]()
        for first in firsts:
            gone = f"{self.index.address}: picture {first.id} was deleted meanwhile. Run the command again."
            refuse((first.vector is None, gone))  # another process deleted the row that made embedding unnecessary
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
        """Drop files that changed, and after a whole reading those that the source no longer has.

        A table may name a picture in several rows: where only some of them were read, the others may come later.
        """
        gone: dict[str, set[tuple[str, str]]] = {}
        hidden, whole = 0, whole and not self._nameless
        for key, entries in self.files.items():
            seen = self._seen.get(key, set())
            for stamp, (id, file) in entries.items():
                if stamp in seen or not (whole or len(seen) >= len(entries)):
                    continue
                if not seen and file.path and may_be_there(Path(file.path)):
                    hidden += 1
                    continue
                gone.setdefault(id, set()).add((key, stamp))
        if hidden:
            note(f"{self.index.address}: {hidden:,} files are in folders that cannot be read now; their pictures stay")
        unwanted = set[tuple[str, str]]().union(*gone.values())
        self.report.gone += drop_files(
            self.index, list(gone), lambda file: file.source == self.called and (file.key, file.stamp) in unwanted
        )
