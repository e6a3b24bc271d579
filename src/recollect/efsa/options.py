"""The settings of episodes, of what they are compared with, and of captioners."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from recollect.core.errors import UserError

if TYPE_CHECKING:
    from recollect.models.lora import AdapterOptions


BLOCKS_RATE, HEADS_RATE = 1.5e-3, 2e-2
"""Learning rates that gained most on validation pools: of towers of blocks (`recollect-papers efsa/choices`), and of
small models without blocks, whose heads alone learn (``benchmarks/adaptation.py``)."""

FULL_RATE = 3e-6
"""Learning rate of episodes that change all parameters, which the adapters' rates would destroy."""

PRINTED: dict[str, Any] = {
    "direction": "image-to-text", "learning_rate": 5e-4, "temperature": None, "contrastive": 1.7, "hinge": 0.3,
    "margin": 0.2, "soft": 0.0, "mix": 1.0, "steps": 1,
}  # fmt: skip
"""The settings that the paper prints (§3.2, §4.1)."""

PROMPT = "Describe what you see in detail with a maximum of 30 words."
"""What EFSA asks its captioner (§4.1)."""


def check_positive(name: str, value: float) -> None:
    """Refuse what is not above 0, NaN and infinity included.

    Raises:
        UserError: naming it.
    """
    if not 0 < value < math.inf:
        raise UserError(f"{name} {value}: must be a finite number above 0.")


@dataclass(frozen=True)
class EpisodeOptions:
    """How a model adapts to one query and what it may change (EFSA, §3.2 and §4.1).

    The defaults are what gained on validation pools: the loss in both directions, at three times the paper's step where
    towers have blocks, and at forty times where heads alone learn. `EpisodeOptions.paper` is as printed.

    Attributes:
        k: images that the frozen model finds, that the episode learns from, and that are ranked again.
        steps: optimiser steps on the one batch of k pairs.
        learning_rate: of AdamW; None takes 1.5e-3, 2e-2 for adapters of a small model without blocks, whose heads alone
            learn, or 3e-6 for all parameters.
        weight_decay: of AdamW (the paper names none; 0.01 is torch's).
        contrastive: weight of the contrastive loss, Eq. 1 (the paper's α).
        hinge: weight of the hinge loss, Eq. 2 (the paper's β).
        margin: of the hinge loss.
        direction: image → text as printed in Eq. 1 and 2, or the mean of both directions.
        soft: how much less a wrong caption counts the more it says the same as the right one, from 0 (all count in
            full, as printed) to 1 (one that is embedded the same does not count).
        mix: weight of the adapted model's cosine in what ranks again; the rest is the cosine before.
        temperature: of Eq. 1; None takes the model's own.
        rank: of the low-rank adapters.
        scale: factor of the adapters; 15/64, or 15 or 15/√64 as other readings of "a scaling factor of 15".
        both_xavier: begin with both matrices of an adapter random, so not at the pretrained model.
        parameters: learn low-rank adapters, or all parameters of both towers (Fig. 4; one query at a time).
        at_once: most queries that adapt at once; fewer where they would hold more than ``gibibytes``.
        gibibytes: that the tensors of queries that adapt at once may hold, as measured on the first; one query always
            runs.
        seed: of the adapters' random start, the same for every query.
    """

    k: int = 16
    steps: int = 1
    learning_rate: float | None = None
    weight_decay: float = 0.01
    contrastive: float = 1.7
    hinge: float = 0.3
    margin: float = 0.2
    direction: Literal["image-to-text", "symmetric"] = "symmetric"
    soft: float = 0.0
    mix: float = 1.0
    temperature: float | None = None
    rank: int = 64
    scale: float = 15 / 64
    both_xavier: bool = False
    parameters: Literal["adapters", "all"] = "adapters"
    at_once: int = 8
    gibibytes: float = 2.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.k < 2:
            raise UserError(f"k {self.k}: an episode needs at least 2 images, or nothing is to be ranked.")
        for name in ("steps", "rank", "at_once"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} {getattr(self, name)}: must be at least 1.")
        for name in ("learning_rate", "scale", "gibibytes", "temperature"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        for name in ("weight_decay", "contrastive", "hinge", "margin"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"{name} {getattr(self, name)}: must be a finite number from 0 on.")
        for name in ("soft", "mix"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} {getattr(self, name)}: a share, from 0 to 1.")

    @classmethod
    def paper(cls, **changed: Any) -> "EpisodeOptions":
        """The paper's settings: image → text at the model's own temperature, one step of 5e-4 (§4.1)."""
        return cls(**{**PRINTED, **changed})

    def as_printed(self) -> "EpisodeOptions":
        """The same with the loss, the step and the ranking of the paper."""
        return replace(self, **PRINTED)

    @property
    def rate(self) -> float:
        """The learning rate; by default that of all parameters, or of adapters in towers of blocks."""
        if self.learning_rate is not None:
            return self.learning_rate
        return FULL_RATE if self.parameters == "all" else BLOCKS_RATE

    def for_sites(self, sites: Iterable[str]) -> "EpisodeOptions":
        """The same with the learning rate that adapters of these layers take where none is named."""
        from recollect.models.lora import without_blocks  # heavy, as below

        return self if self.learning_rate or not without_blocks(sites) else replace(self, learning_rate=HEADS_RATE)

    @property
    def adapters(self) -> "AdapterOptions":
        """How the adapters begin."""
        from recollect.models.lora import AdapterOptions  # heavy, and a command line only needs the settings

        return AdapterOptions(self.rank, self.scale, self.both_xavier, self.seed)

    @property
    def short_cut(self) -> bool:
        """Whether the first forward is the frozen model's and no step follows, so that no state is needed."""
        return self.steps == 1 and not self.both_xavier


@dataclass(frozen=True)
class TuningOptions:
    """How the whole captioned pool is learned at once, in addition to the settings of an episode (EFSA, §4.1, F.T).

    Attributes:
        epochs: passes over the captioned images.
        batch_size: pairs of a step; as many as an episode has.
        learning_rate: of AdamW, as found on validation pools; None takes the episodes' own, as the paper does.
        seed: of their order.
    """

    epochs: int = 4
    batch_size: int = 16
    learning_rate: float | None = 1.5e-4
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 2:
            raise UserError(f"{self.epochs} epochs of batches of {self.batch_size}: at least 1 epoch of 2 pairs.")
        if self.learning_rate is not None:
            check_positive("learning_rate", self.learning_rate)


@dataclass(frozen=True)
class RewardOptions:
    """How a teacher's rewards adapt the text tower (RLCF: Zhao et al., ICLR 2024).

    Attributes:
        sampled: images of the policy that are judged in each step (their K).
        candidates: images that the policy's softmax goes over; the whole pool where that is smaller.
        steps: RLCF takes 8, EFSA runs it for 1.
        learning_rate: of AdamW.
        weight_decay: of AdamW.
    """

    sampled: int = 12
    candidates: int = 1024
    steps: int = 1
    learning_rate: float = 1e-6
    weight_decay: float = 5e-4

    def __post_init__(self) -> None:
        if self.sampled < 2 or self.candidates < self.sampled or self.steps < 1:
            raise UserError("RLCF needs at least 2 sampled images, as many candidates, and 1 step.")
        check_positive("learning_rate", self.learning_rate)
        if not 0 <= self.weight_decay < math.inf:
            raise UserError(f"weight_decay {self.weight_decay}: must be a finite number from 0 on.")


@dataclass(frozen=True)
class CaptionerOptions:
    """How a captioner is asked.

    Attributes:
        prompt: the request, for models that take one.
        most_tokens: of an answer.
    """

    prompt: str = PROMPT
    most_tokens: int = 64

    def __post_init__(self) -> None:
        if self.most_tokens < 1:
            raise UserError(f"most_tokens {self.most_tokens}: a caption needs at least 1 token.")


@dataclass(frozen=True)
class CaptionCorruption:
    """How the stand-in of a captioner words what is true of an image.

    Attributes:
        dropped: share of the content words that it does not mention.
        wrong: share of the content words in whose place it says another word of the same source.
        most_words: where it stops; None lets it finish.
        seed: of both shares.
    """

    dropped: float = 0.1
    wrong: float = 0.02
    most_words: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.most_words is not None and self.most_words < 1:
            raise UserError(f"{self.most_words} words at most: a caption has at least 1")
        if not (0 <= self.dropped < 1 and 0 <= self.wrong <= 1):
            raise UserError(f"{self.dropped} words dropped and {self.wrong} wrong: both are shares, from 0 to 1")
