"""An index and the model that made its vectors."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from recollect.core.errors import UserError
from recollect.core.paths import beside
from recollect.core.types import Encoder, ImageLike, caption_prefix
from recollect.index.contents import IndexContents
from recollect.index.query import Query, QueryEncoder
from recollect.index.stores.base import Store

if TYPE_CHECKING:
    import torch

    from recollect.models.starter.words import StarterWords


class EmbeddedIndex(IndexContents):
    """The contents of an index with their model."""

    def __init__(
        self, store: Store, encoder: Encoder | None = None, read: Callable[[str], ImageLike] | None = None
    ) -> None:
        super().__init__(store, encoder, read)
        self._starter: tuple[StarterWords | None] | None = None
        if encoder is not None:
            self.check_encoder(encoder, "the model")

    @property
    def encoder(self) -> Encoder:
        """The model that made the vectors.

        Raises:
            UserError: it cannot be opened, or is another model now.
        """
        if self._encoder is None:
            self.open_model()
        assert self._encoder is not None
        return self._encoder

    def open_model(
        self, named: str | None = None, device: "torch.device | str | None" = None, option: str = "--model"
    ) -> tuple[Encoder, str]:
        """Open the model of the index.

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
        if not name:
            raise UserError(f"{self.address}: does not say which model embedded it. Name it with {option}.")
        try:
            encoder = encoder_and_name(name, device)[0]
        except UserError as error:
            if named is not None:
                raise
            raise UserError(
                f"{self.address}: its model {self.record.model_name} cannot be opened; say where it is with {option}. "
                f"({error})"
            ) from error
        self.check_encoder(encoder, name)
        self._encoder = encoder
        return encoder, name

    def check_encoder(self, encoder: Encoder, what: str) -> None:
        """Reject a model other than the one that made the vectors, or one that reads texts differently.

        Raises:
            UserError: naming both.
        """
        self.check_model(encoder.fingerprint, what)
        if caption_prefix(encoder) != self.record.prefix:
            before, now = ("no prefix" if each is None else f"a {each} prefix"
                           for each in (self.record.prefix, caption_prefix(encoder)))  # fmt: skip
            raise UserError(
                f"{self.address}: its texts were read with {before}, but {what} reads them with {now}, so they cannot "
                "be compared. Build the index again."
            )

    def check_model(self, fingerprint: str, what: str) -> None:
        """Reject a model other than the one that made the vectors.

        Raises:
            UserError: naming both.
        """
        if fingerprint != self.record.model:
            raise UserError(
                f"{self.address}: embedded by {self.record.model_name or 'a model'} ({self.record.model[:12]}), but "
                f"{what} is another model ({fingerprint[:12]}). Use that model, or build another index with this one."
            )

    def _embeds(self, queries: Sequence[Query]) -> QueryEncoder | None:
        """What embeds these queries; None where all their terms are vectors."""
        terms = [term for query in queries for term in query.terms if term.vector is None]
        if terms and all(term.words is not None for term in terms) and self._words is not None:
            return self._words
        return self.encoder if terms else None

    @property
    def _words(self) -> "StarterWords | None":
        """Embeds words without PyTorch, in an index of the starter whose model is not open."""
        from recollect.models.pretrained import STARTER

        if self._encoder is not None or self.record.model_name != STARTER or "torch" in sys.modules:
            return None
        if self._starter is None:
            from recollect.models.starter.words import starter_words

            self._starter = (starter_words(self.record.model),)
        return self._starter[0]


def encoder_and_name(
    model: Encoder | str | Path | None, device: "torch.device | str | None" = None
) -> tuple[Encoder, str]:
    """A model, and the name that opens it again; the starter by default."""
    if not isinstance(model, str | Path | None):
        return model, str(getattr(model, "name", ""))
    from recollect.models import load_model
    from recollect.models.pretrained import STARTER

    name = STARTER if model is None else str(model)
    encoder = load_model(name, device)
    if name == STARTER:
        from recollect.models.starter.words import note_starter

        note_starter(encoder)
    return encoder, name
