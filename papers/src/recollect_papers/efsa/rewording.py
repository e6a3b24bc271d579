"""Simulated captions: reworded and partly wrong versions of the true ones."""

import re
from collections.abc import Sequence

import numpy as np

from recollect.core.seeding import numpy_generator
from recollect.core.types import Source
from recollect.evaluation.retrieval import PoolCaptions
from recollect_papers.efsa.options import CaptionCorruption

_INVERSE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
_RELATION = re.compile(rf" ({'|'.join(_INVERSE)}) ")
_KEPT = frozenset({"a", "an", "the", "on", "in", "of", "and", "with", "left", "right", "above", "below", "is", "are"})


def corrupted_captions(source: Source, options: CaptionCorruption | None = None) -> PoolCaptions:
    """Reword one random caption of each image: clauses reversed, words dropped or replaced."""
    options = options or CaptionCorruption()
    texts = [source.texts(index) for index in range(len(source))]
    words = sorted({word for each in texts for text in each for word in content_words(text)})
    captions: list[str | None] = []
    for index, each in enumerate(texts):
        if not each:
            captions.append(None)
            continue
        generator = numpy_generator("rewording", options.seed, index)
        captions.append(reword(each[int(generator.integers(len(each)))], words, options, generator))
    return PoolCaptions(tuple(captions))


def reword(text: str, words: Sequence[str], options: CaptionCorruption, generator: np.random.Generator) -> str:
    """Reword ``text``.

    ``A left of B, on a C ground`` becomes ``on a C ground, B right of A``. Then content words are dropped or replaced
    with the given probabilities, except a random one, and the result is truncated to the maximum length.
    """
    clauses = [clause.strip() for clause in " ".join(text.split()).split(",")]
    parts = ", ".join(_inverted(clause) for clause in reversed(clauses) if clause).split(" ")
    content = [position for position, part in enumerate(parts) if part.strip(",.").lower() not in _KEPT]
    fate = generator.random(len(parts))
    other = generator.integers(max(1, len(words)), size=len(parts))
    words_out = []
    spared = content[int(generator.integers(len(content)))] if content else -1
    for position, part in enumerate(parts):
        if position == spared or position not in content:
            words_out.append(part)
        elif fate[position] < options.dropped:
            words_out += [","] if part.endswith(",") else []
        elif fate[position] < options.dropped + options.wrong and words:
            words_out.append(words[other[position]] + ("," if part.endswith(",") else ""))
        else:
            words_out.append(part)
    whole = " ".join(words_out).replace(" ,", ",").strip(", ")
    return " ".join(whole.split()[: options.most_words]).strip(", ")


def content_words(text: str) -> list[str]:
    """Return the words of a text except function words."""
    return [word for part in text.split() if (word := part.strip(",.").lower()) and word not in _KEPT]


def _inverted(clause: str) -> str:
    """Convert ``A left of B`` to ``B right of A``; other clauses are unchanged."""
    found = _RELATION.search(clause)
    if found is None:
        return clause
    return f"{clause[found.end() :]} {_INVERSE[found[1]]} {clause[: found.start()]}"
