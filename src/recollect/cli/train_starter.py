"""``recollect train starter``: the text head of the starter."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from recollect.cli.parser import Arg, say
from recollect.core.paths import check_writable
from recollect.core.validation import refuse


@dataclass(frozen=True)
class TrainStarter:
    """Train the text head of the starter, recollect's default model.

    The image tower is not changed. Use the result with `--model HEAD.safetensors`.
    """

    pairs: Annotated[str, Arg(place="SOURCE")]
    """Source of pictures with captions."""
    out: Path = Path("head.safetensors")
    """Output file."""
    split: str | None = None
    """Split to train on (default: train, if it exists)."""
    seed: int = 0
    """Random seed."""

    def run(self) -> None:
        """Train, and print the path of the head."""
        from recollect.cli.defaults import split_for
        from recollect.data.sources import open_source
        from recollect.models.parts import HEAD_SUFFIX
        from recollect.training.starter import HeadOptions, train_starter

        refuse((self.out.suffix != HEAD_SUFFIX, f"--out {self.out}: name a file that ends in {HEAD_SUFFIX}."))
        check_writable(self.out, "--out", "new file")
        pairs = open_source(self.pairs, split=split_for(self.pairs, self.split))
        head = train_starter(pairs, self.out, HeadOptions(seed=self.seed))
        say(f"head: {head}")
