"""Prefix tokens: learned vectors prepended to a text to mark its kind of source (prefix conditioning, §3.2).

They are ordinary special tokens of the tokenizer and rows of the token embedding, so plain transformers can read
``"<|caption|>a photo of a cat"`` as a caption.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
import transformers

from recollect.core.errors import UserError
from recollect.core.seeding import torch_generator
from recollect.core.types import Kind

INIT_STD = 0.02
_TRIALS = ("a photo of 2 cats, and a dog.", "Zürich", "of")


def prefix_words(kind: Kind, length: int) -> tuple[str, ...]:
    """Return the names of a kind's prefix tokens: ``<|caption|>``, ``<|caption:2|>``, …"""
    return tuple(f"<|{kind}|>" if number == 1 else f"<|{kind}:{number}|>" for number in range(1, length + 1))


def add_to_tokenizer(tokenizer: transformers.PreTrainedTokenizerBase, words: Sequence[str]) -> None:
    """Add each word as a single special token, without changing how other text is tokenized.

    Raises:
        UserError: this tokenizer splits a text differently after a special token.
    """
    # rstrip ignores a space between prefix and text, so it does not matter whether there is one.
    tokens = [
        transformers.AddedToken(word, special=True, normalized=False, lstrip=False, rstrip=True) for word in words
    ]
    trial = copy.deepcopy(tokenizer)
    trial.model_max_length = 10**6  # do not truncate the trial texts
    trial.add_tokens(tokens, special_tokens=True)
    ids = trial.convert_tokens_to_ids(list(words))
    for text in _TRIALS:
        bare, prefixed = (trial(string)["input_ids"] for string in (text, "".join(words) + text))
        start = next((position for position, token in enumerate(prefixed) if token == ids[0]), 0)
        if prefixed != bare[:start] + ids + bare[start:]:
            raise UserError("this tokenizer splits a text differently after a prefix token. Use another tokenizer.")
    tokenizer.add_tokens(tokens, special_tokens=True)


def add_to_embedding(
    text_model: transformers.PreTrainedModel,
    tokenizer: transformers.PreTrainedTokenizerBase,
    words: Sequence[str],
    seed: int,
) -> None:
    """Initialize a row of the token embedding for each word from N(0, 0.02), adding rows if needed."""
    ids = tokenizer.convert_tokens_to_ids(list(words))
    if max(ids) >= text_model.get_input_embeddings().num_embeddings:
        with torch.random.fork_rng(devices=[]):  # resizing draws random rows, which are overwritten below
            text_model.resize_token_embeddings(max(ids) + 1, mean_resizing=False)
    weight = text_model.get_input_embeddings().weight
    with torch.no_grad():
        for word, row in zip(words, ids, strict=True):
            drawn = torch.randn(weight.shape[1], generator=torch_generator(seed, "prefix", word)) * INIT_STD
            weight[row] = drawn.to(weight)
