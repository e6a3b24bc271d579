"""Captions for studies: the truth in other words, as a captioner that was run once would have given them."""

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
    """One text of each image, drawn at random, in other words: clauses turned round, words left out or wrong."""
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
    """Say ``text`` in other words.

    ``A left of B, on a C ground`` becomes ``on a C ground, B right of A``; then each content word is left out or
    exchanged with the given probabilities, but never all of them, and what goes past the most words is cut off.
    """
    clauses = [clause.strip() for clause in " ".join(text.split()).split(",")]
    turned = ", ".join(_turned(clause) for clause in reversed(clauses) if clause)
    parts = turned.split(" ")
    content = [place for place, part in enumerate(parts) if part.strip(",.").lower() not in _KEPT]
    fate = generator.random(len(parts))
    other = generator.integers(max(1, len(words)), size=len(parts))
    said = []
    spared = content[int(generator.integers(len(content)))] if content else -1
    for place, part in enumerate(parts):
        if place == spared or place not in content:
            said.append(part)
        elif fate[place] < options.dropped:
            said += [","] if part.endswith(",") else []
        elif fate[place] < options.dropped + options.wrong and words:
            said.append(words[other[place]] + ("," if part.endswith(",") else ""))
        else:
            said.append(part)
    whole = " ".join(said).replace(" ,", ",").strip(", ")
    return " ".join(whole.split()[: options.most_words]).strip(", ")


def content_words(text: str) -> list[str]:
    """The words of a text that say more than how the others hang together."""
    return [word for part in text.split() if (word := part.strip(",.").lower()) and word not in _KEPT]


def _turned(clause: str) -> str:
    """``A left of B`` as ``B right of A``; other clauses stay."""
    found = _RELATION.search(clause)
    if found is None:
        return clause
    return f"{clause[found.end() :]} {_INVERSE[found[1]]} {clause[: found.start()]}"
