"""Filling a memory from a source: resumable, without what is broken or there already."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from recollect.core.errors import UserError
from recollect.core.progress import progress
from recollect.core.types import Encoder, caption_prefix
from recollect.data.sources.images import note
from recollect.data.sources.reading import BrokenCounter
from recollect.memory.build.editions import Deduplicator, Edition
from recollect.memory.build.reading import ROWS_AT_ONCE, Reader, RowBlock
from recollect.memory.build.renamed import hand_on, keep_said
from recollect.memory.build.report import BuildOptions as BuildOptions
from recollect.memory.build.report import BuildReport as BuildReport
from recollect.memory.rows import Pairs, Precision
from recollect.memory.store import Memory

COMMIT = 16 * ROWS_AT_ONCE
"""Rows of a commit, at most: what a kill can lose. Small commits make a memory of many small files."""


def open_for_build(address: str | Path, encoder: Encoder, name: str, precision: Precision = "float32") -> Memory:
    """The memory at an address, which is made if nothing is there.

    Raises:
        UserError: something else is there, or a memory of another model.
    """
    fingerprint = encoder.fingerprint
    if not Memory.exists(address):
        return Memory.create(
            address,
            width=encoder.width,
            model=fingerprint,
            model_name=name,
            prefix=caption_prefix(encoder),
            precision=precision,
        )
    memory = Memory.open(address)
    memory.check_encoder(encoder, name)
    return memory


def check_alone(memory: Memory, reader: Reader) -> None:
    """Refuse to build over rows of other sources: only the same source may go on, or a newer edition of it.

    Raises:
        UserError: the memory holds other rows.
    """
    if set(memory.info().sources) - {reader.called}:
        raise UserError(
            f"{memory.address}: holds rows of other sources already. Add to it with `recollect memory add`, "
            "or name another --out."
        )


def check_name(memory: Memory, reader: Reader, given: bool | None = None) -> None:
    """Refuse a source whose name belongs to another one, unless the user gave it that name.

    Args:
        given: whether the user did; by default whether the reader has a name.

    Raises:
        UserError: saying where the other one lies, before anything is embedded.
    """
    places = memory.info().places.get(reader.called)
    if (bool(reader.name) if given is None else given) or places is None or reader.place in places:
        return
    other = f"read from {places[0]}" if places else "added without a source"
    raise UserError(
        f"{memory.address}: holds rows of another source called '{reader.called}' already, {other}. Call this one "
        f"otherwise with --name NAME; or, if it is a newer edition of that one, say so with --name '{reader.called}'."
    )


def fill_memory(
    memory: Memory, reader: Reader, options: BuildOptions, engine: Literal["local", "ray"] = "local"
) -> BuildReport:
    """Embed the samples of a source and add them, from where an earlier call was stopped.

    Rows are added in the source's order and in commits of whole blocks, each there whole or not at all; so the last row
    tells where to go on, and a call that was killed and made again gives the rows of an unbroken one.

    Where the memory holds an earlier edition of the source, pictures that have not changed are not embedded again, rows
    that have are replaced, and those that the source no longer has are removed once it was read to its end.

    Args:
        memory: embedded by the reader's model.
        reader: of the source.
        options: what to leave out.
        engine: embed in this process, or on a Ray cluster.

    Raises:
        UserError: the source's name belongs to another one; or too many broken pictures: whatever was committed before
            stays.
    """
    check_name(memory, reader)
    stop = len(reader.source) if options.limit is None else min(options.limit, len(reader.source))
    edition = Edition.read(memory, reader)
    start = edition.start(stop, memory.backend.whole_commits)
    report = BuildReport(earlier=start)
    if start < stop:
        _fill(memory, replace(reader, known=edition.stamps), (start, stop), options, edition, report, engine)
    report.moved = _move(memory, edition.moves, reader.place)
    if start == 0 and stop == len(reader.source) and (gone := edition.gone()):
        hand_on(memory, gone, reader.called)
        report.removed = memory.delete(gone)
    try:
        memory.renew_indexes()
    except UserError as error:  # the rows are there; only the recall of searches is not measured again
        note(str(error))
    return report


def _fill(
    memory: Memory,
    reader: Reader,
    span: tuple[int, int],
    options: BuildOptions,
    edition: "Edition",
    report: BuildReport,
    engine: str,
) -> None:
    start, stop = span
    counted, deduplication = BrokenCounter(options.broken_share), Deduplicator(memory, options, edition)
    with progress(f"embed {reader.source.name}", stop, "pairs", start) as counter:
        waiting: list[Pairs] = []
        again: list[int] = []
        for block in _blocks(reader, start, stop, engine):
            count = min(ROWS_AT_ONCE, stop - start - report.read)
            report.read += count
            report.broken += len(block.failures)
            again += _confirm(block, edition, deduplication, report)
            waiting.append(deduplication.sift(edition.numbered(block.pairs), report))
            if sum(map(len, waiting)) + ROWS_AT_ONCE > COMMIT:
                _commit(memory, waiting, report, edition)
                waiting = []
            counted.add(reader.source, count, block.failures)
            counter.advance(count)
        for index in again:
            for block in replace(reader, known={}).blocks(index, index + 1):
                waiting.append(deduplication.sift(edition.numbered(block.pairs), report))
        _commit(memory, waiting, report, edition)


def _move(memory: Memory, files: Mapping[str, str | None], place: str) -> int:
    """Let rows name the files that their pictures lie in now; returns how many there were."""
    moved = 0
    for start in range(0, len(files), COMMIT):
        with memory.backend.writing():
            ids = sorted(memory.backend.known(list(files)[start : start + COMMIT]))
            if ids:
                rows = memory.backend.rows(ids)
                memory.backend.upsert(replace(rows, paths=[files[id] for id in ids], places=[place] * len(ids)))
                moved += len(ids)
    return moved


def _confirm(block: RowBlock, edition: "Edition", deduplication: "Deduplicator", report: BuildReport) -> list[int]:
    """Note what a block says of rows that are there.

    Returns:
        Samples whose row another text of the same picture has taken since: they are to be read again.
    """
    again = []
    for picture in block.failed:  # a file that cannot be read now is not a file that is gone
        edition.seen.update(edition.rows.get(picture, {}))
    for picture, stamp, index, path in block.unchanged:
        ids = edition.confirm(picture, stamp, path)
        if ids is None:
            again.append(index)
            continue
        report.unchanged += len(ids)
        for id in ids:
            deduplication.confirm(id)
    return again


def _blocks(reader: Reader, start: int, stop: int, engine: str) -> Iterator[RowBlock]:
    if engine == "ray":
        from recollect.memory.build.ray import ray_blocks

        return ray_blocks(reader, start, stop)
    return reader.blocks(start, stop)


def _commit(memory: Memory, waiting: list[Pairs], report: BuildReport, edition: "Edition") -> None:
    pairs = join(waiting)
    if pairs is None:
        return
    pairs = keep_said(memory, pairs, {id for id in pairs.ids if edition.has(id)})
    replaced = memory.upsert(pairs)
    report.replaced += replaced
    report.added += len(pairs) - replaced
    report.wordless += int((~pairs.has_text).sum())


def join(parts: list[Pairs]) -> Pairs | None:
    """Rows one after the other; None where there are none."""
    parts = [part for part in parts if len(part)]
    if not parts:
        return None

    def chain(name: str) -> list:
        return [value for part in parts for value in getattr(part, name)]

    return Pairs(
        ids=chain("ids"),
        image_vectors=np.concatenate([part.image_vectors for part in parts]),
        text_vectors=np.concatenate([part.text_vectors for part in parts]),
        captions=chain("captions"),
        model=parts[0].model,
        sources=chain("sources"),
        metadata=chain("metadata"),
        images=chain("images"),
        paths=chain("paths"),
        origins=chain("origins"),
        ordinals=np.concatenate([part.ordinals for part in parts if part.ordinals is not None]),
        digests=chain("digests"),
        places=chain("places"),
        stamps=chain("stamps"),
        looks=chain("looks"),
    )
