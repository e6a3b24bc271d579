"""Model of an index: opened on first use and checked against the stored fingerprint."""

import sys
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float32

from recollect.core.errors import UserError, user_errors
from recollect.core.paths import resolve_stored
from recollect.core.types import Encoder, caption_prefix, chosen_device
from recollect.core.validation import refuse
from recollect.index.query import Query, QueryEncoder, embed_queries
from recollect.index.rows import Record
from recollect.models.pretrained import STARTER

if TYPE_CHECKING:
    import torch

    from recollect.models.starter.words import StarterWords


class IndexModel:
    """Thread-safe access to the model that computed the vectors of an index.

    Args:
        record: record of the index.
        address: address of the index, for messages.
        encoder: the model, if already open.
    """

    def __init__(self, record: Record, address: str, encoder: Encoder | None = None) -> None:
        self.record, self.address = record, address
        self._encoder: Encoder | None = None
        self._opening = threading.RLock()
        if encoder is not None:
            self.use(encoder, "the model")

    def made(self, record: Record) -> bool:
        """Return whether the record names the same model and text prefix."""
        return (record.model, record.prefix) == (self.record.model, self.record.prefix)

    @property
    def encoder(self) -> Encoder:
        """Open model.

        Raises:
            UserError: it cannot be opened, or its fingerprint differs from the index.
        """
        with self._opening:
            if self._encoder is None:
                self.open()
        assert self._encoder is not None
        return self._encoder

    def open(
        self, named: str | None = None, device: "torch.device | str | None" = None, option: str = "--model"
    ) -> tuple[Encoder, str]:
        """Open the model.

        Args:
            named: path or hub id; default: the name stored in the index.
            device: default: the best available.
            option: command-line option for the model, for messages.

        Returns:
            The model and its name.

        Raises:
            UserError: it cannot be opened, or its fingerprint differs from the index.
        """
        name = named or resolve_stored(self.record.model_name, self.address)
        refuse((not name, f"{self.address}: does not record which model embedded it. Pass the model with {option}."))
        chosen_device(device)  # report an invalid device before reporting a missing model
        gone = f"{self.address}: cannot open its model {name}; pass its path or hub id with {option}"
        with nullcontext() if named else user_errors(gone, UserError):
            encoder = encoder_and_name(name, device)[0]
        self.use(encoder, name)
        return encoder, name

    def use(self, encoder: Encoder, what: str) -> None:
        """Use an open model.

        Raises:
            UserError: its fingerprint or text prefix differs from the index.
        """
        self.check(encoder, what)
        self._encoder = encoder

    def check(self, encoder: Encoder, what: str) -> None:
        """Raise `UserError` if the model's fingerprint or text prefix differs from the index."""
        self.check_fingerprint(encoder.fingerprint, what)
        before, now = (
            f"prefix {each}" if each else "no prefix" for each in (self.record.prefix, caption_prefix(encoder))
        )
        differ = f"{self.address}: its texts were embedded with {before}, but {what} uses {now}"
        refuse((before != now, f"{differ}. Build the index again."))

    def check_fingerprint(self, fingerprint: str, what: str) -> None:
        """Raise `UserError` if the fingerprint differs from the index."""
        before, now = f"{self.record.model_name or 'a model'} ({self.record.model[:12]})", fingerprint[:12]
        other = f"{self.address}: embedded by {before}, but {what} is another model ({now})"
        refuse((fingerprint != self.record.model, f"{other}. Use that model, or build another index with this one."))

    def embed(self, queries: Sequence[Query], encoder: Encoder | None = None) -> Float32[np.ndarray, "queries width"]:
        """Return unit-norm vectors of queries; ``encoder`` overrides the model.

        Raises:
            UserError: see `recollect.index.query.embed_queries`.
        """
        return embed_queries(encoder or self.encoder_for(queries), queries, self.record.prefix)

    def encoder_for(self, queries: Sequence[Query]) -> QueryEncoder | None:
        """Return the cheapest encoder for these queries; None if all their terms are vectors."""
        terms = [term for query in queries for term in query.terms if term.vector is None]
        if not terms:
            return None
        words = self._words if all(term.words is not None for term in terms) else None
        return words or self.encoder

    def open_text_encoder(self) -> None:
        """Open the text encoder: for the starter a part that needs no PyTorch, else the whole model.

        Raises:
            UserError: it cannot be opened, or its fingerprint differs from the index.
        """
        if self._words is None:
            _ = self.encoder

    @property
    def _words(self) -> "StarterWords | None":
        """Text encoder without PyTorch, for an index built with the starter while the full model is not open."""
        opened = "_starter" in self.__dict__  # once open, it stays in use even if torch is imported later
        if self._encoder is not None or self.record.model_name != STARTER or ("torch" in sys.modules and not opened):
            return None
        return self._starter

    @cached_property
    def _starter(self) -> "StarterWords | None":
        from recollect.models.starter.words import starter_words

        return starter_words(self.record.model)


def encoder_and_name(
    model: Encoder | str | Path | None, device: "torch.device | str | None" = None
) -> tuple[Encoder, str]:
    """Return the model, opened if given by name, and the name to reopen it; default: the starter."""
    if not isinstance(model, str | Path | None):
        return model, str(getattr(model, "name", ""))
    from recollect.models import load_model

    name = STARTER if model is None else str(model)
    encoder = load_model(name, device)
    if name == STARTER:
        from recollect.models.starter.words import cache_starter

        cache_starter(encoder)
    return encoder, name
