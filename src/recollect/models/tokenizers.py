"""A unigram tokenizer trained on the captions at hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import transformers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from recollect.core.errors import UserError

_PAD, _END, _UNKNOWN = "<pad>", "</s>", "<unk>"  # ids 0, 1, 2; see store_end_token for why the end is not 2

_BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
_BYTE_SCORE = -100.0  # a byte is the last resort
_MOST_TEXTS = 1_000_000
_LEFTOVER_STEP = 1e-4  # tokenizers scores the characters it must keep as the least score + k · 1e-4, in no fixed order


def train_unigram(texts: Sequence[str], vocabulary: int, length: int) -> transformers.PreTrainedTokenizerBase:
    """A unigram tokenizer of the SentencePiece type (Kudo, 2018), trained on ``texts``.

    Text is normalized (NFC), lower-cased, and its white space made single spaces. A character that no text holds is
    spelt as its UTF-8 bytes, so that any string can be read back. Equal texts give equal tokenizers in every process.

    Args:
        texts: captions; of more than a million, every n-th is read.
        vocabulary: most tokens, the 256 bytes and three special tokens included; few texts give fewer.
        length: most tokens of a text.

    Raises:
        UserError: there is no text.
    """
    step = -(-len(texts) // _MOST_TEXTS)
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
    pieces = _canonical([(piece, score) for piece, score in _pieces(draft) if piece not in special])
    table = [(word, 0.0) for word in special] + [(byte, _BYTE_SCORE) for byte in _BYTES] + pieces
    return _finished(Tokenizer(models.Unigram(table, special.index(_UNKNOWN), byte_fallback=True)), length)


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


def _pieces(tokenizer: Tokenizer) -> list[tuple[str, float]]:
    return [(piece, score) for piece, score in json.loads(tokenizer.to_str())["model"]["vocab"]]


def _canonical(pieces: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Take out what the trainer leaves to chance: last bits of scores, order of ties and of leftover characters."""
    least = min(score for _, score in pieces)

    def settled(piece: str, score: float) -> float:
        steps = (score - least) / _LEFTOVER_STEP
        left_over = len(piece) == 1 and abs(steps - round(steps)) < 1e-6
        return round(least if left_over else score, 6)

    return sorted(((piece, settled(piece, score)) for piece, score in pieces), key=lambda entry: (-entry[1], entry[0]))


def _finished(tokenizer: Tokenizer, length: int) -> transformers.PreTrainedTokenizerBase:
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
