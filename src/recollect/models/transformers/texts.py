"""From texts to what a text tower reads, without its weights: for worker processes too."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import transformers
from torch import Tensor

from recollect.core.errors import UserError
from recollect.core.types import Kind
from recollect.models.transformers.families import TextFormat


@dataclass(frozen=True)
class TextTokens:
    """A tokenizer, the format that a tower wants, and the prefix tokens of each kind of text.

    Attributes:
        tokenizer: of transformers.
        format: padding, length and names.
        prefixes: tokens in front of the texts of each kind.
    """

    tokenizer: transformers.PreTrainedTokenizerBase
    format: TextFormat
    prefixes: Mapping[Kind, tuple[str, ...]]

    @property
    def by_row(self) -> bool:
        """Whether the tokens of a text do not depend on the other texts (fixed length)."""
        return self.format.padding == "max_length"

    def __call__(self, texts: Sequence[str], kinds: Sequence[Kind] | Kind | None = None) -> dict[str, Tensor]:
        """See `DualEncoder.tokenize`."""
        tokens = self.tokenizer(
            self.prefixed(texts, kinds),
            padding=self.format.padding,
            truncation=True,
            max_length=self.format.length,
            return_tensors="pt",
        )
        return {name: tokens[name] for name in self.format.inputs}

    def prefixed(self, texts: Sequence[str], kinds: Sequence[Kind] | Kind | None) -> list[str]:
        """The texts with the prefix tokens of their kinds in front.

        Raises:
            UserError: a kind that has none, where others have.
            ValueError: not one kind for each text.
        """
        if kinds is None or not self.prefixes:
            return list(texts)
        each = [kinds] * len(texts) if isinstance(kinds, str) else kinds
        if len(each) != len(texts):
            raise ValueError(f"{len(texts)} texts, but {len(each)} kinds")
        return [self._prefix(kind) + text for kind, text in zip(each, texts, strict=True)]

    def _prefix(self, kind: Kind) -> str:
        if kind not in self.prefixes:
            raise UserError(f"this model has no {kind} prefix; it has {', '.join(self.prefixes)}")
        return "".join(self.prefixes[kind])
