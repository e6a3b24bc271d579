"""The settings of what EFSA's episodes are compared with, and of the stand-in of a captioner."""

from dataclasses import dataclass

from recollect.core.validation import check_number


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
        check_number("epochs", self.epochs, least=1)
        check_number("batch_size", self.batch_size, least=2)
        if self.learning_rate is not None:
            check_number("learning_rate", self.learning_rate, above=0)


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
        check_number("sampled", self.sampled, least=2)
        check_number("candidates", self.candidates, least=self.sampled)
        check_number("steps", self.steps, least=1)
        check_number("learning_rate", self.learning_rate, above=0)
        check_number("weight_decay", self.weight_decay, least=0)


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
        if self.most_words is not None:
            check_number("most_words", self.most_words, least=1)
        check_number("dropped", self.dropped, least=0, below=1)
        check_number("wrong", self.wrong, least=0, most=1)
