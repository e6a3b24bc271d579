"""Training a unigram tokenizer on captions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import transformers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from recollect.core.errors import UserError

_PAD, _END, _UNKNOWN = "<pad>", "</s>", "<unk>"  # ids 0, 1, 2; see store_end_token for why the end is not 2

_BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
_BYTE_SCORE = -100.0  # low enough that bytes are the last resort
_MAX_TEXTS = 1_000_000
_LEFTOVER_STEP = 1e-4  # tokenizers scores required characters as the minimum score + k · 1e-4, in random order


def train_unigram(texts: Sequence[str], vocabulary: int, length: int) -> transformers.PreTrainedTokenizerBase:
    """Train a SentencePiece-style unigram tokenizer (Kudo, 2018) on ``texts``.

    Text is NFC-normalized and lowercased, and whitespace is collapsed. Characters not in ``texts`` are encoded as UTF-8
    bytes, so any string can be decoded again. Equal texts give equal tokenizers in every process.

    Args:
        texts: captions; above one million, every n-th is used.
        vocabulary: maximum vocabulary size, including 256 bytes and three special tokens; few texts give fewer.
        length: maximum text length in tokens.

    Raises:
        UserError: all texts are empty.
    """
    step = -(-len(texts) // _MAX_TEXTS)
    read = list(texts[:: max(1, step)])
    if not any(text.strip() for text in read):
        raise UserError("the captions are empty: no tokenizer can be trained on them. Name a source with captions.")
    special = [_PAD, _END, _UNKNOWN]
    draft = Tokenizer(models.Unigram())
    draft.normalizer, draft.pre_tokenizer = _normalizer(), pre_tokenizers.Metaspace(prepend_scheme="always")
    draft.train_from_iterator(
        read,
        trainers.UnigramTrainer(
            vocab_size=max(len(special) + 1, vocabulary - len(_BYTES)),
            special_tokens=special,
            unk_token=_UNKNOWN,
            show_progress=False,
        ),
    )
    scores = json.loads(draft.to_str())["model"]["vocab"]
    pieces = _canonical([(piece, score) for piece, score in scores if piece not in special])
    table = [(word, 0.0) for word in special] + [(byte, _BYTE_SCORE) for byte in _BYTES] + pieces
    return _to_transformers(Tokenizer(models.Unigram(table, special.index(_UNKNOWN), byte_fallback=True)), length)


def _normalizer() -> Any:
    return normalizers.Sequence(
        [
            normalizers.NFC(),
            normalizers.Lowercase(),
            normalizers.NFC(),
            normalizers.Replace(Regex(r"\s+"), " "),
            normalizers.Strip(),
        ]
    )


def _canonical(pieces: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Remove the trainer's nondeterminism: last bits of scores, order of ties and of leftover characters."""
    minimum = min(score for _, score in pieces)

    def stable(piece: str, score: float) -> float:
        steps = (score - minimum) / _LEFTOVER_STEP
        left_over = len(piece) == 1 and abs(steps - round(steps)) < 1e-6
        return round(minimum if left_over else score, 6)

    return sorted(((piece, stable(piece, score)) for piece, score in pieces), key=lambda entry: (-entry[1], entry[0]))


def _to_transformers(tokenizer: Tokenizer, length: int) -> transformers.PreTrainedTokenizerBase:
    tokenizer.normalizer, tokenizer.pre_tokenizer = _normalizer(), pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {_END}", special_tokens=[(_END, tokenizer.token_to_id(_END))]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = {
        name: transformers.AddedToken(word, special=True, normalized=False)
        for name, word in (("pad_token", _PAD), ("eos_token", _END), ("unk_token", _UNKNOWN))
    }
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=length, **special)
