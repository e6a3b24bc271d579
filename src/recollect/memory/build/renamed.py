"""A picture whose file was renamed: its row has another id, and keeps what was said of the picture meanwhile."""

from dataclasses import replace

import numpy as np

from recollect.memory.naming import CAPTIONED_BY, is_label_column
from recollect.memory.store import Memory

_AT_ONCE = 2_048  # rows of a commit


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
        wordless = ~new.has_text & old.has_text
        captions, metadata = list(new.captions), [dict(own) for own in new.metadata]
        for row, before in enumerate(old.metadata):
            if wordless[row]:
                captions[row] = old.captions[row]
            for key, value in before.items():
                if is_label_column(key) or (key == CAPTIONED_BY and wordless[row]):
                    metadata[row].setdefault(key, value)
        changed = [row for row in range(len(pairs)) if wordless[row] or metadata[row] != dict(new.metadata[row])]
        if changed:
            vectors = np.where(wordless[:, None], old.text_vectors, new.text_vectors)
            kept = replace(new, captions=captions, metadata=metadata, text_vectors=vectors)
            backend.upsert(kept.take(changed))
        return len(changed)
