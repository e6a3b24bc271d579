"""NumPy implementation of the starter's text side: a search starts in one second, importing PyTorch takes several.

It uses the same weights as the model. Texts are embedded one at a time, so it is only suitable for queries.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float32
from threadpoolctl import threadpool_limits

from recollect.core.errors import UserError
from recollect.core.files import read_json, write_json
from recollect.core.paths import cache_folder
from recollect.core.words import is_utf8
from recollect.models.pretrained import PRETRAINED, tower_folder
from recollect.models.starter import NAME_GAIN, NAME_PULL

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor

    from recollect.core.options import Kind
    from recollect.core.types import Encoder, ImageLike

_HEAD = Path(__file__).parent / "head.safetensors"
_TEXT_TOWER, _HEADS, _EPSILON = "minilm-l6-v2", 12, 1e-12
_FORMAT = 3  # increment when a code change affects the starter's text embeddings

Weights = Mapping[str, np.ndarray]


class StarterWords:
    """Text embeddings equal to those of the starter (`recollect.models.starter.open_starter`).

    Attributes:
        width: embedding dimension.
        longest_text: maximum text length in tokens, including special tokens.
    """

    prefixes: Mapping[Kind, tuple[str, ...]] = {}

    def __init__(self) -> None:
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        folder = tower_folder(_TEXT_TOWER)
        self._tower = load_file(folder / "model.safetensors")
        self._head = {name: value.astype(np.float32) for name, value in load_file(_HEAD).items()}
        self.longest_text = PRETRAINED[_TEXT_TOWER].length
        self.width = len(self._head["text_projection.mlp.direct.bias"]) + 1  # the last entry discounts popularity
        self._tokenizer: Tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def text_lengths(self, texts: Sequence[str], prefix: Kind | None = None) -> list[int]:
        """Return the token count of each text before truncation, including special tokens."""
        return [len(self._tokenizer.encode(text).ids) for text in texts]

    def embed_texts(self, texts: Sequence[str], prefix: Kind | None = None) -> Float32[np.ndarray, "n width"]:
        """Return unit-norm embeddings.

        Raises:
            UserError: a text is not valid UTF-8.
        """
        if broken := next((text for text in texts if not is_utf8(text)), None):
            raise UserError(f"{broken!r} is not valid UTF-8. Check the encoding of the terminal or the file.")
        with threadpool_limits(1, "blas"):  # with matrices this small, OpenBLAS threads mostly wait
            rows = [self._embed(self._truncate(self._tokenizer.encode(text).ids)) for text in texts]
        return np.array(rows, dtype=np.float32).reshape(-1, self.width)

    def _truncate(self, ids: Sequence[int]) -> Sequence[int]:
        """Truncate to `longest_text` tokens, keeping the end token.

        The tokenizer's own truncation is not used because it is a setting, and threads share the tokenizer.
        """
        return ids if len(ids) <= self.longest_text else [*ids[: self.longest_text - 1], ids[-1]]

    def embed_images(self, images: Sequence[ImageLike]) -> Tensor:
        """Embed pictures with the full starter."""
        from recollect.models.starter import open_starter

        return open_starter().embed_images(list(images))

    def _embed(self, ids: Sequence[int]) -> Float32[np.ndarray, " width"]:
        features = _bert(np.asarray(ids), self._tower).mean(axis=0)
        features /= np.linalg.norm(features)
        head, size = "text_projection.mlp", len(features)
        inner = _gelu(_linear(features, self._head, f"{head}.up"))
        out = _linear(features, self._head, f"{head}.direct") + _linear(inner, self._head, f"{head}.down")
        out /= np.linalg.norm(out)
        own = features - self._head["text_projection.center"]
        out[-size:] = np.float32(NAME_GAIN) * (out[-size:] + np.float32(NAME_PULL) * own / np.linalg.norm(own))
        out = np.append(out / np.linalg.norm(out), -self._head["text_projection.discount"])
        return out / np.linalg.norm(out)


def starter_words(fingerprint: str | None) -> StarterWords | None:
    """Return the starter's text side if ``fingerprint`` is that of the installed starter.

    Return None otherwise, and if the starter's fingerprint is not cached yet (`cache_starter`) or a package is missing.
    """
    try:
        return StarterWords() if fingerprint and cached_fingerprint() == fingerprint else None
    except (UserError, OSError, ValueError, KeyError):
        return None


def cached_fingerprint() -> str | None:
    """Return the starter's fingerprint if it is cached."""
    try:
        file = _note_file()
        return str(read_json(file)["fingerprint"]) if file.is_file() else None
    except (UserError, OSError, ValueError, KeyError):
        return None


def cache_starter(encoder: Encoder) -> None:
    """Cache the starter's fingerprint for `starter_words`, which cannot compute it without PyTorch."""
    file = _note_file()
    if not file.exists():
        try:
            write_json(file, {"fingerprint": encoder.fingerprint})
        except (OSError, UserError):  # without the cache, searches are only slower
            return


def _note_file() -> Path:
    """Return the cache file; its name depends on everything that affects the fingerprint."""
    towers = sorted((name, tower.sha256, repr(tower)) for name, tower in PRETRAINED.items())
    packages = [metadata.version(name) for name in ("recollect", "torch", "transformers", "tokenizers")]
    head = hashlib.sha256(_HEAD.read_bytes()).hexdigest()
    key = hashlib.blake2b(json.dumps([towers, packages, head, _FORMAT]).encode(), digest_size=8).hexdigest()
    return cache_folder() / "pretrained" / f"starter-{key}.json"


def _bert(ids: np.ndarray, weights: Weights) -> Float32[np.ndarray, "tokens features"]:
    """Return the last hidden states of one text (Devlin et al., 2019)."""
    words = weights["embeddings.word_embeddings.weight"][ids]
    positions = weights["embeddings.position_embeddings.weight"][: len(ids)]
    states = words + positions + weights["embeddings.token_type_embeddings.weight"][0]
    states = _layer_norm(states, weights, "embeddings.LayerNorm")
    layers = sum(name.endswith(".intermediate.dense.bias") for name in weights)
    for layer in (f"encoder.layer.{number}" for number in range(layers)):
        mixed = _linear(
            _attention(states, weights, f"{layer}.attention.self"), weights, f"{layer}.attention.output.dense"
        )
        states = _layer_norm(states + mixed, weights, f"{layer}.attention.output.LayerNorm")
        inner = _gelu(_linear(states, weights, f"{layer}.intermediate.dense"))
        outer = _linear(inner, weights, f"{layer}.output.dense")
        states = _layer_norm(states + outer, weights, f"{layer}.output.LayerNorm")
    return states


def _attention(states: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    tokens, width = states.shape
    query, key, value = (
        _linear(states, weights, f"{name}.{part}").reshape(tokens, _HEADS, -1).transpose(1, 0, 2)
        for part in ("query", "key", "value")
    )
    scores = query @ key.transpose(0, 2, 1) / np.float32(math.sqrt(width // _HEADS))
    shares = np.exp(scores - scores.max(axis=2, keepdims=True))
    shares /= shares.sum(axis=2, keepdims=True)
    return (shares @ value).transpose(1, 0, 2).reshape(tokens, width)


def _linear(inputs: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    return inputs @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _layer_norm(states: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    centered = states - states.mean(axis=-1, keepdims=True)
    deviation = np.sqrt((centered**2).mean(axis=-1, keepdims=True) + np.float32(_EPSILON))
    return centered / deviation * weights[f"{name}.weight"] + weights[f"{name}.bias"]


_erf = np.frompyfunc(math.erf, 1, 1)  # importing SciPy's takes longer than embedding a query


def _gelu(values: np.ndarray) -> np.ndarray:
    return values * np.float32(0.5) * (1 + np.asarray(_erf(values / np.float32(math.sqrt(2))), dtype=np.float32))
