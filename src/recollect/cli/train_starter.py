"""``recollect train starter``: the text head of the starter."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from recollect.cli.parser import Arg, say
from recollect.core.paths import check_writable
from recollect.core.validation import refuse


@dataclass(frozen=True)
class TrainStarter:
    """Train the text head of the starter, the model that recollect uses where none is named.

    The image tower stays as it is. `--model HEAD.safetensors` uses the result.
    """

    pairs: Annotated[str, Arg(place="SOURCE")]
    """Pictures with captions."""
    out: Path = Path("head.safetensors")
    """File to write."""
    split: str | None = None
    """Split to train on (default: train, where there is one)."""
    seed: int = 0
    """Random seed."""

    def run(self) -> None:
        """Train, and print where the head is."""
        from recollect.data.sources import open_source
        from recollect.models.parts import HEAD_SUFFIX
        from recollect.training.starter import HeadOptions, train_starter

        refuse((self.out.suffix != HEAD_SUFFIX, f"--out {self.out}: name a file that ends in {HEAD_SUFFIX}."))
        check_writable(self.out, "--out", "new file")
        head = train_starter(open_source(self.pairs, split=self.split), self.out, HeadOptions(seed=self.seed))
        say(f"head: {head}")
