"""Options of episodes and captioners; cheap to import."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from recollect.core.validation import check_number

if TYPE_CHECKING:
    from recollect.models.lora import AdapterOptions


BLOCKS_RATE, HEADS_RATE = 1.5e-3, 2e-2
"""Learning rates with the largest gain on validation pools: for towers of blocks (``results/efsa/choices.json``), and
for small models without blocks, where only the heads adapt (``results/efsa/adaptation-steps.json``)."""

PROMPT = "Describe what you see in detail with a maximum of 30 words."
"""EFSA's captioner prompt (§4.1)."""


@dataclass(frozen=True)
class EpisodeOptions:
    """Options of the adaptation to a query: one AdamW step on its k image-caption pairs (EFSA, §3.2 and §4.1).

    The defaults have the largest gain on validation pools: the loss in both directions, with three times the paper's
    learning rate for towers of blocks, and forty times for small models where only the heads adapt.
    `EpisodeOptions.paper` returns the paper's settings.

    Attributes:
        k: number of images per query that are retrieved, learned from and re-ranked.
        learning_rate: learning rate of AdamW; None: 1.5e-3, or 2e-2 for a small model without blocks.
        weight_decay: weight decay of AdamW (not given in the paper; 0.01 is torch's default).
        contrastive: weight of the contrastive loss, Eq. 1 (the paper's α).
        hinge: weight of the hinge loss, Eq. 2 (the paper's β).
        margin: margin of the hinge loss.
        direction: image → text as printed in Eq. 1 and 2, or the mean of both directions.
        temperature: temperature of Eq. 1; None: the model's own.
        rank: rank of the adapters.
        scale: factor of the adapters: 15/64; 15 and 15/√64 are other readings of "a scaling factor of 15".
        at_once: maximum number of queries that adapt together.
        gibibytes: memory limit for queries that adapt together, as estimated from the first query; a single query
            always runs.
        seed: seed of the adapters' initialization, the same for every query.
    """

    k: int = 16
    learning_rate: float | None = None
    weight_decay: float = 0.01
    contrastive: float = 1.7
    hinge: float = 0.3
    margin: float = 0.2
    direction: Literal["image-to-text", "symmetric"] = "symmetric"
    temperature: float | None = None
    rank: int = 64
    scale: float = 15 / 64
    at_once: int = 8
    gibibytes: float = 2.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_number("k", self.k, least=2)
        for name in ("rank", "at_once"):
            check_number(name, getattr(self, name), least=1)
        for name in ("learning_rate", "scale", "gibibytes", "temperature"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), above=0)
        for name in ("weight_decay", "contrastive", "hinge", "margin"):
            check_number(name, getattr(self, name), least=0)

    @classmethod
    def paper(cls, **changed: Any) -> "EpisodeOptions":
        """Return the paper's settings: image → text, the model's own temperature, learning rate 5e-4 (§4.1)."""
        return cls(**{"direction": "image-to-text", "learning_rate": 5e-4, **changed})

    @property
    def rate(self) -> float:
        """Learning rate; default: `BLOCKS_RATE`."""
        return BLOCKS_RATE if self.learning_rate is None else self.learning_rate

    def for_sites(self, sites: Iterable[str]) -> "EpisodeOptions":
        """Return the options with the default learning rate for adapters of these layers."""
        from recollect.models.lora import without_blocks  # slow to import

        return self if self.learning_rate or not without_blocks(sites) else replace(self, learning_rate=HEADS_RATE)

    @property
    def adapters(self) -> "AdapterOptions":
        """Options for initializing the adapters."""
        from recollect.models.lora import AdapterOptions  # slow to import

        return AdapterOptions(self.rank, self.scale, seed=self.seed)


@dataclass(frozen=True)
class CaptionerOptions:
    """Options of a captioner.

    Attributes:
        prompt: prompt for models that accept one.
        most_tokens: maximum length of a caption in tokens.
    """

    prompt: str = PROMPT
    most_tokens: int = 64

    def __post_init__(self) -> None:
        check_number("most_tokens", self.most_tokens, least=1)
