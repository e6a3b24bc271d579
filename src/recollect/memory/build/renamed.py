"""A picture whose row is another one now: it keeps what was said of the picture meanwhile.

Its file was renamed, so that it has another id; or its source says something else of it than before.
"""

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from recollect.memory.naming import CAPTIONED_BY, is_label_column
from recollect.memory.rows import Pairs
from recollect.memory.store import Memory

_AT_ONCE = 2_048  # rows of a commit
_WHOLE = 256  # rows with their pictures


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


def keep_said(memory: Memory, pairs: Pairs, there: Collection[str]) -> Pairs:
    """Rows that are about to take the place of others of the same pixels, with captions and labels that they lack.

    A source that says something else of its pictures than before, a class or a year, replaces their rows; what people
    or models have said of them meanwhile is no part of that.

    Args:
        there: ids of rows that the memory may hold.
    """
    places = [place for place, id in enumerate(pairs.ids) if id in there]
    for start in range(0, len(places), _WHOLE):
        some = places[start : start + _WHOLE]
        known = memory.backend.known([pairs.ids[place] for place in some])
        some = [place for place in some if pairs.ids[place] in known]
        if not some:
            continue
        old = memory.backend.rows([pairs.ids[place] for place in some])
        same = [n for n, place in enumerate(some) if pairs.digests[place] and old.digests[n] == pairs.digests[place]]
        kept, changed = _given(pairs.take([some[n] for n in same]), old.take(same))
        if changed:
            captions, metadata, vectors = list(pairs.captions), list(pairs.metadata), pairs.text_vectors.copy()
            for row in changed:
                place = some[same[row]]
                captions[place], metadata[place] = kept.captions[row], kept.metadata[row]
                vectors[place] = kept.text_vectors[row]
            pairs = replace(pairs, captions=captions, metadata=metadata, text_vectors=vectors)
    return pairs
