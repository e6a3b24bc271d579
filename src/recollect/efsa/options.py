"""Settings of episodes and captioners; light to import."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from recollect.core.validation import check_number

if TYPE_CHECKING:
    from recollect.models.lora import AdapterOptions


BLOCKS_RATE, HEADS_RATE = 1.5e-3, 2e-2
"""Learning rates that gained most on validation pools: of towers of blocks (``results/efsa/choices.json``), and of
small models without blocks, whose heads alone learn (``results/efsa/adaptation-steps.json``)."""

PROMPT = "Describe what you see in detail with a maximum of 30 words."
"""What EFSA asks its captioner (§4.1)."""


@dataclass(frozen=True)
class EpisodeOptions:
    """How a model adapts to one query: by one step of AdamW on the k pairs of image and caption (EFSA, §3.2 and §4.1).

    The defaults gained most on validation pools: the loss in both directions, at three times the paper's step for
    towers of blocks, and at forty times for small models whose heads alone learn. `EpisodeOptions.paper` is as printed.

    Attributes:
        k: images that the frozen model finds, the episode learns from, and the adapted model ranks again.
        learning_rate: of AdamW; None takes 1.5e-3, or 2e-2 for a small model without blocks, whose heads alone learn.
        weight_decay: of AdamW (the paper names none; 0.01 is torch's).
        contrastive: weight of the contrastive loss, Eq. 1 (the paper's α).
        hinge: weight of the hinge loss, Eq. 2 (the paper's β).
        margin: of the hinge loss.
        direction: image → text as printed in Eq. 1 and 2, or the mean of both directions.
        temperature: of Eq. 1; by default the model's own.
        rank: of the low-rank adapters.
        scale: factor of the adapters; 15/64, or 15 or 15/√64 as other readings of "a scaling factor of 15".
        at_once: maximum number of queries that adapt together.
        gibibytes: memory for the tensors of queries that adapt together, as estimated from the first; a single query
            always runs.
        seed: of the adapters' random start, the same for every query.
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
        """The paper's settings: image → text at the model's own temperature, one step of 5e-4 (§4.1)."""
        return cls(**{"direction": "image-to-text", "learning_rate": 5e-4, **changed})

    @property
    def rate(self) -> float:
        """The learning rate; by default that of towers of blocks."""
        return BLOCKS_RATE if self.learning_rate is None else self.learning_rate

    def for_sites(self, sites: Iterable[str]) -> "EpisodeOptions":
        """The options with the default learning rate for adapters of these layers."""
        from recollect.models.lora import without_blocks  # heavy, as below

        return self if self.learning_rate or not without_blocks(sites) else replace(self, learning_rate=HEADS_RATE)

    @property
    def adapters(self) -> "AdapterOptions":
        """How the adapters are initialized."""
        from recollect.models.lora import AdapterOptions  # heavy, and a command line only needs the settings

        return AdapterOptions(self.rank, self.scale, seed=self.seed)


@dataclass(frozen=True)
class CaptionerOptions:
    """Options of a captioner.

    Attributes:
        prompt: the request, for models that take one.
        most_tokens: of an answer.
    """

    prompt: str = PROMPT
    most_tokens: int = 64

    def __post_init__(self) -> None:
        check_number("most_tokens", self.most_tokens, least=1)
