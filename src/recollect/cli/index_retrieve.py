"""``recollect index retrieve``: captioned pictures of an index that fit class names, to train on (REACT)."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from recollect.cli.index import OnIndex
from recollect.cli.parser import Arg, say, warn_unused
from recollect.core.errors import UserError
from recollect.core.paths import check_writable
from recollect.core.validation import check_number

if TYPE_CHECKING:
    from recollect.core.types import Encoder
    from recollect.index import Index


@dataclass(frozen=True)
class Retrieve(OnIndex):
    """Write the captioned pictures of an index that are nearest to class names to a Parquet file (REACT).

    Each picture is written once, with its caption, the class that it is nearest to, and the distance (1 - cosine).
    """

    names: Path
    """A text file of class names, one per line."""
    out: Path
    """The .parquet file."""
    per_class: int = 50
    """Maximum number of pictures per class."""
    templates: Path | None = None
    """A text file of prompt templates, one per line with {} for the class name (default: CLIP's 80)."""
    by: Literal["image", "text"] = "image"
    """Compare the prompts with the pictures, or with their captions."""
    exclude: Annotated[str | None, Arg(metavar="SOURCE")] = None
    """A source that will be tested: near-duplicates of its pictures are left out."""
    split: str | None = None
    """Split of --exclude (default: test)."""
    threshold: float = 0.94
    """Cosine from which --exclude takes two pictures for the same."""
    model: str | None = None
    """Model of the index (default: where it was when the index was built)."""
    device: str | None = None
    """Device to embed on (default: the best one)."""

    def run(self) -> None:
        """Retrieve, write and print."""
        from recollect.core.files import read_lines
        from recollect.core.words import counted
        from recollect.data.prompts import GENERAL_TEMPLATES, read_templates
        from recollect.index import Index
        from recollect.index.by_class import check_ending, retrieve_by_class, write_retrieved

        check_writable(self.out, "--out")
        check_ending(self.out)
        check_number("--threshold", self.threshold, least=-1, most=1)
        if self.exclude is None:
            warn_unused(self, "split", "threshold", why="there is no --exclude.")
        names = list(dict.fromkeys(read_lines(self.names, "class names")))
        templates = read_templates(self.templates) if self.templates else GENERAL_TEMPLATES
        index = Index.open(self.index)
        encoder, _ = index.open_model(self.model, self.device)
        left = self._excluded(index, encoder)
        hits = retrieve_by_class(index, encoder, names, templates, self.per_class, self.by, left)
        if left and not hits:
            raise UserError(
                f"--exclude {self.exclude}: {len(left):,} of {len(index):,} pictures are near-duplicates of its "
                f"pictures (cosine {self.threshold:g} or more), and nothing else is found. Use a higher --threshold."
            )
        broken = write_retrieved(index, hits, self.out)
        found = len({hit.name for hit in hits})
        parts = [f"{counted(len(hits) - broken, 'picture')} of {found:,} of {len(names):,} classes"]
        parts += [f"{counted(broken, 'picture')} could not be read"] if broken else []
        parts += [f"{len(left):,} near-duplicates of {self.exclude} left out"] if self.exclude else []
        say(f"{'; '.join(parts)}: {self.out}")

    def _excluded(self, index: "Index", encoder: "Encoder") -> list[str]:
        if self.exclude is None:
            return []
        from recollect.data.sources import open_source, split_of
        from recollect.evaluation.features import image_features

        source = open_source(self.exclude, split=self.split or split_of(self.exclude) or "test")
        return index.near(image_features(encoder, source).images, self.threshold)
