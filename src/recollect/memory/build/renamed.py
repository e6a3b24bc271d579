"""A picture whose row is another one now: it keeps what was said of the picture meanwhile.

Its file was renamed, so that it has another id, perhaps that of another picture, which took its own; or its source says
something else of it than before.
"""

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from recollect.memory.build.report import BuildReport
from recollect.memory.naming import CAPTIONED_BY, is_label_column
from recollect.memory.rows import Pairs, join
from recollect.memory.store import Memory

_AT_ONCE = 2_048  # rows of a commit
_WHOLE = 256  # rows with their pictures
_MOST = 16_384  # rows that wait


def hand_on(memory: Memory, gone: list[str], source: str) -> int:
    """Give captions and labels of rows that are about to go to rows of the same pixels that have none.

    Captions are written by people, or by large models in hours; a rename is no reason to lose them. What a row has
    stays, what a source says of its pictures is its own to say again, and doing it twice changes nothing.

    Args:
        memory: holds the old rows and the new ones.
        gone: ids of the old ones.
        source: what the memory calls their source.

    Returns:
        How many rows were given something.
    """
    leaving, old, others = set(gone), dict[str, tuple[bool, str]](), list[tuple[str, str]]()
    for batch in memory.columns(("id", "digest", "has_text"), source=source):
        for id, digest, has_text in zip(batch["id"], batch["digest"], batch["has_text"], strict=True):
            if digest and id in leaving:
                old[digest] = min(old.get(digest, (True, id)), (not has_text, id))  # one with a text, if there is one
            elif digest:
                others.append((id, digest))
    pairs = sorted((id, old[digest][1]) for id, digest in others if digest in old)
    return sum(_hand_on(memory, pairs[start : start + _AT_ONCE]) for start in range(0, len(pairs), _AT_ONCE))


def _hand_on(memory: Memory, pairs: list[tuple[str, str]]) -> int:
    backend = memory.backend
    with backend.writing():
        there = backend.known(list({id for pair in pairs for id in pair}))
        pairs = [pair for pair in pairs if there.issuperset(pair)]  # another process may have removed some
        if not pairs:
            return 0
        new, old = backend.rows([id for id, _ in pairs]), backend.rows([before for _, before in pairs])
        kept, changed = _given(new, old)
        if changed:
            backend.upsert(kept.take(changed))
        return len(changed)


def _given(new: Pairs, old: Pairs) -> tuple[Pairs, list[int]]:
    """Rows with what was said of as many others that they lack, and which of them have something now."""
    wordless = ~new.has_text & old.has_text
    captions, metadata = list(new.captions), [dict(own) for own in new.metadata]
    for row, before in enumerate(old.metadata):
        if wordless[row]:
            captions[row] = old.captions[row]
        for key, value in before.items():
            if is_label_column(key) or (key == CAPTIONED_BY and wordless[row]):
                metadata[row].setdefault(key, value)
    changed = [row for row in range(len(new)) if wordless[row] or metadata[row] != dict(new.metadata[row])]
    vectors = np.where(wordless[:, None], old.text_vectors, new.text_vectors)
    return replace(new, captions=captions, metadata=metadata, text_vectors=vectors), changed


def keep_said(memory: Memory, pairs: Pairs, there: Collection[str]) -> tuple[Pairs, list[int]]:
    """Rows that are about to take the place of others of the same pixels, with captions and labels that they lack.

    A source that says something else of its pictures than before, a class or a year, replaces their rows; what people
    or models have said of them meanwhile is no part of that.

    Args:
        there: ids of rows that the memory may hold.

    Returns:
        And which rows take the place of another picture, of which something was said (`Exchange`).
    """
    displacing: list[int] = []
    places = [place for place, id in enumerate(pairs.ids) if id in there]
    for start in range(0, len(places), _WHOLE):
        some = places[start : start + _WHOLE]
        known = memory.backend.known([pairs.ids[place] for place in some])
        some = [place for place in some if pairs.ids[place] in known]
        if not some:
            continue
        old = memory.backend.rows([pairs.ids[place] for place in some])
        equal = [old.digests[n] == pairs.digests[place] for n, place in enumerate(some)]
        displacing += [place for n, place in enumerate(some) if not equal[n] and old.digests[n] and _speaks(old, n)]
        same = [n for n, place in enumerate(some) if equal[n] and pairs.digests[place]]
        kept, changed = _given(pairs.take([some[n] for n in same]), old.take(same))
        pairs = _with(pairs, [some[same[row]] for row in changed], kept.take(changed))
    return pairs, displacing


class Exchange:
    """Pictures that take the places of others, in an order that keeps what was said of these.

    Where files have exchanged their pictures, each row is about to be written over before its picture is met again
    under another name. Such rows wait until the source was read, and are written together with what was said of their
    pictures where they were: a kill before leaves the old rows, a kill after the new ones, with their captions.

    Args:
        memory: holds the old rows.
        source: what the memory calls their source.
    """

    def __init__(self, memory: Memory, source: str) -> None:
        self.memory, self.source = memory, source
        self._waiting: list[Pairs] = []
        self._said: dict[str, Pairs] = {}

    def add(self, pairs: Pairs, report: BuildReport) -> None:
        """Let rows wait; a great many are written before the end, and then a kill may cost what was said of them."""
        self._waiting.append(pairs)
        if sum(map(len, self._waiting)) > _MOST:
            self.finish(report)

    def finish(self, report: BuildReport) -> None:
        """Write them, and give rows that are there already what was said of their pictures elsewhere."""
        pairs, self._waiting = join(self._waiting), []
        if pairs is None:
            return
        backend = self.memory.backend
        pairs.check(backend.record, backend.address)
        with backend.writing():
            there = sorted(backend.known(list(pairs.ids)))
            for start in range(0, len(there), _WHOLE):
                self._note(backend.rows(there[start : start + _WHOLE]))
            pairs = self._give(pairs)[0]
            others, changed = self._give(self._elsewhere(set(pairs.ids)))
            together = join([pairs, others.take(changed)] if changed else [pairs])
            assert together is not None
            backend.upsert(together)
        report.count(len(there), pairs)

    def _note(self, old: Pairs) -> None:
        """Keep what was said of pictures, without them."""
        for row in range(len(old)):
            digest = old.digests[row]
            if digest and _speaks(old, row) and (digest not in self._said or old.has_text[row]):
                self._said[digest] = replace(old.take([row]), images=[None])

    def _elsewhere(self, written: Collection[str]) -> Pairs:
        """Rows of the source, beside those that are written, of pictures that something was said of elsewhere."""
        ids = [
            id
            for batch in self.memory.columns(("id", "digest"), source=self.source)
            for id, digest in zip(batch["id"], batch["digest"], strict=True)
            if digest in self._said and id not in written
        ]
        rows = [self.memory.backend.rows(ids[start : start + _WHOLE]) for start in range(0, len(ids), _WHOLE)]
        return join(rows) or _nothing(self.memory)

    def _give(self, pairs: Pairs) -> tuple[Pairs, list[int]]:
        some = [row for row, digest in enumerate(pairs.digests) if digest in self._said]
        said = join([self._said[pairs.digests[row]] for row in some])
        if said is None:
            return pairs, []
        given, changed = _given(pairs.take(some), said)
        return _with(pairs, [some[row] for row in changed], given.take(changed)), [some[row] for row in changed]


def _speaks(rows: Pairs, row: int) -> bool:
    """Whether a row has a caption or a label of the page's."""
    return bool(rows.has_text[row]) or any(is_label_column(key) for key in rows.metadata[row])


def _with(pairs: Pairs, places: list[int], given: Pairs) -> Pairs:
    """Rows, some of which have the captions and metadata of others."""
    if not places:
        return pairs
    captions, metadata, vectors = list(pairs.captions), list(pairs.metadata), pairs.text_vectors.copy()
    for row, place in enumerate(places):
        captions[place], metadata[place] = given.captions[row], given.metadata[row]
        vectors[place] = given.text_vectors[row]
    return replace(pairs, captions=captions, metadata=metadata, text_vectors=vectors)


def _nothing(memory: Memory) -> Pairs:
    none = np.empty((0, memory.width), dtype=np.float32)
    return Pairs([], none, none, [], memory.model)
