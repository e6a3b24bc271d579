"""Filling a memory from a source: resumable, without what is broken or there already."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from recollect.core.errors import UserError
from recollect.core.files import may_be_there
from recollect.core.progress import progress
from recollect.core.types import Encoder, caption_prefix
from recollect.data.sources.images import note
from recollect.data.sources.reading import BrokenCounter
from recollect.memory.backends.removals import Removal
from recollect.memory.build.editions import Deduplicator, Edition
from recollect.memory.build.reading import ROWS_AT_ONCE, Reader, RowBlock
from recollect.memory.build.renamed import Exchange, hand_on, keep_said
from recollect.memory.build.report import BuildOptions as BuildOptions
from recollect.memory.build.report import BuildReport as BuildReport
from recollect.memory.removals import KeptAway, removals_named
from recollect.memory.rows import Pairs, VectorPrecision, join
from recollect.memory.store import Memory

COMMIT = 16 * ROWS_AT_ONCE
"""Rows of a commit, at most: what a kill can lose. Small commits make a memory of many small files."""


def open_for_build(address: str | Path, encoder: Encoder, name: str, precision: VectorPrecision = "float32") -> Memory:
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


def fill_memory(memory: Memory, reader: Reader, options: BuildOptions) -> BuildReport:
    """Embed the samples of a source and add them, from where an earlier call was stopped.

    Rows are added in the source's order and in commits of whole blocks, each there whole or not at all; so the last row
    tells where to go on, and a call that was killed and made again gives the rows of an unbroken one.

    Where the memory holds an earlier edition of the source, pictures that have not changed are not embedded again, rows
    that have are replaced, and those that the source no longer has are removed once it was read to its end. Pictures
    that somebody has removed stay away (`KeptAway`), unless all of the source was removed: then it begins anew.

    Args:
        memory: embedded by the reader's model.
        reader: of the source.
        options: what to leave out.

    Raises:
        UserError: the source's name belongs to another one; a picture is to be brought back that nobody has removed; or
            too many broken pictures: whatever was committed before stays.
    """
    check_name(memory, reader)
    stop = len(reader.source) if options.limit is None else min(options.limit, len(reader.source))
    removals = memory.removals(reader.called)
    edition = Edition.read(memory, reader, {each.digest for each in removals})
    back = _brought_back(memory, reader, removals, options.bring_back)
    if removals and not edition.rows and not options.follow:  # somebody adds anew what was removed with all the rest
        memory.bring_back(removals)
        removals = []
    # A followed folder is read whole: a copy comes in once the picture it is a copy of has gone.
    start = 0 if back or options.follow else edition.start(stop, memory.backend.whole_commits)
    report = BuildReport(earlier=start)
    if start < stop:
        away = KeptAway.of(set(removals) - set(back), edition.held)
        known = replace(reader, known=edition.stamps, away=away)
        back += _fill(memory, known, (start, stop), options, edition, report)
    memory.bring_back(back)  # now that the rows are there: a call that was killed is made again as it was
    report.moved = _move(memory, edition.moves, reader.place)
    if start == 0 and stop == len(reader.source) and (gone := _gone(memory, reader.called, edition)):
        hand_on(memory, gone, reader.called)
        report.removed = memory.delete(gone, stay_away=False)
    try:
        memory.renew_indexes()
    except UserError as error:  # the rows are there; only the recall of searches is not measured again
        note(str(error))
    return report


def _brought_back(memory: Memory, reader: Reader, removals: list[Removal], names: tuple[str, ...]) -> list[Removal]:
    found = removals_named(removals, reader.called, reader.place, names)
    if isinstance(found, str):
        shown = ", ".join(repr(each.id) for each in sorted(removals)[:3]) + ", …" * (len(removals) > 3)
        there = f"was removed of {reader.called}; what was: {shown}" if removals else f"of {reader.called} was removed"
        raise UserError(f"--bring-back {found}: no such picture {there}")
    return found


def _fill(
    memory: Memory,
    reader: Reader,
    span: tuple[int, int],
    options: BuildOptions,
    edition: "Edition",
    report: BuildReport,
) -> list[Removal]:
    """Read samples and add their rows; returns the removals of doubles that are back, since the others are gone."""
    start, stop = span
    counted, deduplication = (
        BrokenCounter(options.broken_share, "--broken-share"),
        Deduplicator(memory, options, edition),
    )
    exchange, doubles = Exchange(memory, reader.called), list[tuple[int, Removal]]()
    with progress(f"embed {reader.source.name}", stop, "pairs", start) as counter:
        waiting: list[Pairs] = []
        again: list[int] = []
        for block in reader.blocks(start, stop):
            count = min(ROWS_AT_ONCE, stop - start - report.read)
            report.read += count
            report.broken += len(block.failures)
            again += _confirm(block, edition, deduplication, report)
            report.away += len(block.away)
            doubles += [(index, reader.away.removals[mark]) for _, index, mark in block.away]
            waiting.append(deduplication.sift(edition.numbered(block.pairs), report))
            if sum(map(len, waiting)) + ROWS_AT_ONCE > COMMIT:
                _commit(memory, waiting, report, edition, exchange)
                waiting = []
            counted.add(reader.source, count, block.failures)
            counter.advance(count)
        only, back = doubles if start == 0 and stop == len(reader.source) else [], list[Removal]()
        for index, removal in [*((index, None) for index in again), *only]:
            if removal is None or (removal.digest in edition.held and not edition.stays(removal.digest)):
                for block in replace(reader, known={}, away=KeptAway()).blocks(index, index + 1):
                    waiting.append(deduplication.sift(edition.numbered(block.pairs), report))
                if removal is not None:
                    back.append(removal)
        _commit(memory, waiting, report, edition, exchange)
        exchange.finish(report)
    report.away -= len(back)
    return back


def _gone(memory: Memory, source: str, edition: "Edition") -> list[str]:
    """Rows that the source has no more; a file in a folder that this user may not look into is not one that is gone."""
    gone = set(edition.gone())
    kept: set[str] = set()
    for batch in memory.columns(("id", "path"), source=source) if gone else ():
        for id, path in zip(batch["id"], batch["path"], strict=True):
            if id in gone and path and may_be_there(Path(path)):
                kept.add(id)
    if kept:
        words = "row stays, whose file lies" if len(kept) == 1 else "rows stay, whose files lie"
        note(f"{memory.address}: {len(kept):,} {words} where you may not look")
    return sorted(gone - kept)


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


def _commit(memory: Memory, waiting: list[Pairs], report: BuildReport, edition: "Edition", exchange: Exchange) -> None:
    pairs = join(waiting)
    if pairs is None:
        return
    pairs, displacing = keep_said(memory, pairs, {id for id in pairs.ids if edition.has(id)})
    if displacing:
        exchange.add(pairs.take(displacing), report)
        pairs = pairs.take(sorted(set(range(len(pairs))) - set(displacing)))
    report.count(memory.upsert(pairs), pairs)
