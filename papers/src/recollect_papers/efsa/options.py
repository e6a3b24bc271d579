"""Options of EFSA's baselines, and of simulated captioners."""

from dataclasses import dataclass

from recollect.core.validation import check_number


@dataclass(frozen=True)
class TuningOptions:
    """Options of fine-tuning on the whole captioned pool, in addition to those of episodes (EFSA, §4.1, F.T).

    Attributes:
        epochs: passes over the captioned images.
        batch_size: pairs per step; the default equals the size of an episode.
        learning_rate: AdamW learning rate; the default was chosen on validation pools, None means that of episodes,
            as in the paper.
        seed: seed of the order of images.
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
    """Options of adapting the text tower by a teacher's rewards (RLCF: Zhao et al., ICLR 2024).

    Attributes:
        sampled: images rewarded in each step (K in the paper).
        candidates: maximum number of images in the policy's softmax.
        steps: number of steps: 8 in RLCF, 1 in EFSA.
        learning_rate: AdamW learning rate.
        weight_decay: AdamW weight decay.
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
    """How a simulated captioner changes an image's caption.

    Attributes:
        dropped: fraction of content words to drop.
        wrong: fraction of content words to replace by another word of the source.
        most_words: maximum length in words, or None.
        seed: seed of the random choices.
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
