"""The model of an index: opened when first needed, and checked against the one that made the vectors."""

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
from recollect.core.paths import beside
from recollect.core.types import Encoder, caption_prefix, chosen_device
from recollect.core.validation import refuse
from recollect.index.query import Query, QueryEncoder, embed_queries
from recollect.index.rows import Record
from recollect.models.pretrained import STARTER

if TYPE_CHECKING:
    import torch

    from recollect.models.starter.words import StarterWords


class IndexModel:
    """The model that made the vectors of an index; objects of several threads may share it.

    Args:
        record: of the index.
        address: of the index.
        encoder: the model, if it is open already.
    """

    def __init__(self, record: Record, address: str, encoder: Encoder | None = None) -> None:
        self.record, self.address = record, address
        self._encoder: Encoder | None = None
        self._opening = threading.RLock()
        if encoder is not None:
            self.use(encoder, "the model")

    def made(self, record: Record) -> bool:
        """Whether it made the vectors of an index too, and reads texts in the same way."""
        return (record.model, record.prefix) == (self.record.model, self.record.prefix)

    @property
    def encoder(self) -> Encoder:
        """The open model.

        Raises:
            UserError: it cannot be opened, or is another model now.
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
            named: where it is now; where it was when the index was made by default.
            device: where to compute; the best there is by default.
            option: what names the model on the command line, for messages.

        Returns:
            The model, and what opened it.

        Raises:
            UserError: it cannot be opened, or is another model.
        """
        name = named or beside(self.record.model_name, self.address)
        refuse((not name, f"{self.address}: does not say which model embedded it. Name it with {option}."))
        chosen_device(device)  # a wrong device is no missing model
        gone = f"{self.address}: its model {name} cannot be opened; say where it is with {option}"
        with nullcontext() if named else user_errors(gone, UserError):
            encoder = encoder_and_name(name, device)[0]
        self.use(encoder, name)
        return encoder, name

    def use(self, encoder: Encoder, what: str) -> None:
        """Take an open model.

        Raises:
            UserError: as `check`.
        """
        self.check(encoder, what)
        self._encoder = encoder

    def check(self, encoder: Encoder, what: str) -> None:
        """Reject a model other than the one that made the vectors, or one that reads texts differently.

        Raises:
            UserError: naming both.
        """
        self.check_fingerprint(encoder.fingerprint, what)
        before, now = (
            f"prefix {each}" if each else "no prefix" for each in (self.record.prefix, caption_prefix(encoder))
        )
        differ = f"{self.address}: its texts were read with {before}, but {what} reads them with {now}"
        refuse((before != now, f"{differ}, so they cannot be compared. Build the index again."))

    def check_fingerprint(self, fingerprint: str, what: str) -> None:
        """Reject a model other than the one that made the vectors.

        Raises:
            UserError: naming both.
        """
        before, now = f"{self.record.model_name or 'a model'} ({self.record.model[:12]})", fingerprint[:12]
        other = f"{self.address}: embedded by {before}, but {what} is another model ({now})"
        refuse((fingerprint != self.record.model, f"{other}. Use that model, or build another index with this one."))

    def embed(self, queries: Sequence[Query], encoder: Encoder | None = None) -> Float32[np.ndarray, "queries width"]:
        """Unit-norm vectors of queries, by another encoder where one is given.

        Raises:
            UserError: as `recollect.index.query.embed_queries`.
        """
        return embed_queries(encoder or self.part_for(queries), queries, self.record.prefix)

    def part_for(self, queries: Sequence[Query]) -> QueryEncoder | None:
        """What embeds these queries; None where all their terms are vectors."""
        terms = [term for query in queries for term in query.terms if term.vector is None]
        if not terms:
            return None
        words = self._words if all(term.words is not None for term in terms) else None
        return words or self.encoder

    def open_words(self) -> None:
        """Open what embeds words: all of the model, or only a part of the starter, which takes no PyTorch.

        Raises:
            UserError: it cannot be opened, or is another model now.
        """
        if self._words is None:
            _ = self.encoder

    @property
    def _words(self) -> "StarterWords | None":
        """Embeds words without PyTorch, in an index of the starter whose model is not open."""
        known = "_starter" in self.__dict__  # once open it stays in use, whatever is imported meanwhile
        if self._encoder is not None or self.record.model_name != STARTER or ("torch" in sys.modules and not known):
            return None
        return self._starter

    @cached_property
    def _starter(self) -> "StarterWords | None":
        from recollect.models.starter.words import starter_words

        return starter_words(self.record.model)


def encoder_and_name(
    model: Encoder | str | Path | None, device: "torch.device | str | None" = None
) -> tuple[Encoder, str]:
    """A model, and the name that opens it again; the starter by default."""
    if not isinstance(model, str | Path | None):
        return model, str(getattr(model, "name", ""))
    from recollect.models import load_model

    name = STARTER if model is None else str(model)
    encoder = load_model(name, device)
    if name == STARTER:
        from recollect.models.starter.words import note_starter

        note_starter(encoder)
    return encoder, name
