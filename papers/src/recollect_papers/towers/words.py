"""Words to numbers, for text towers that read words instead of pieces of words."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from recollect.core.errors import UserError


class WordTokenizer:
    """Words to numbers, for towers that read a bag of words; 0 is padding, and unknown words are left out.

    Args:
        words: the vocabulary; sorted before it is numbered, since a set has another order in every process.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(sorted(set(words)))
        self._numbers = {word: number for number, word in enumerate(self.words, start=1)}

    @classmethod
    def trained_on(cls, texts: Sequence[str]) -> WordTokenizer:
        """The words of ``texts``.

        Raises:
            UserError: there is none.
        """
        words = {word for text in texts for word in split_words(text)}
        if not words:
            raise UserError("the captions hold no words. Name a source with captions.")
        return cls(tuple(words))

    def __len__(self) -> int:
        """Size of the table: the words and the padding."""
        return len(self.words) + 1

    def __call__(self, texts: Sequence[str]) -> Int[Tensor, "n longest"]:
        """Numbers of the known words of each text, padded with 0 to the longest (at least one place)."""
        rows = [[self._numbers[word] for word in split_words(text) if word in self._numbers] for text in texts]
        ids = np.zeros((len(rows), max(1, max(map(len, rows), default=0))), dtype=np.int64)
        for place, row in enumerate(rows):
            ids[place, : len(row)] = row
        return torch.from_numpy(ids)


_EDGES = re.compile(r"^\W+|\W+$")


def split_words(text: str) -> list[str]:
    """Lower-case words between white space, without the punctuation around them."""
    parts = text.lower().split()
    return [word for part in parts if (word := part if part.isalnum() else _EDGES.sub("", part))]
