"""``recollect memory retrieve``: pairs of a memory that fit class names, to train on (REACT)."""

from dataclasses import dataclass
from pathlib import Path

from recollect.cli.positionals import MemoryPlace
from recollect.cli.unread import refuse_unread, split_for
from recollect.core.errors import UserError
from recollect.core.files import check_writable, read_lines
from recollect.core.progress import output, printable
from recollect.core.types import Encoder
from recollect.core.words import counted
from recollect.data.prompts import GENERAL_TEMPLATES, read_templates
from recollect.data.sources import open_source
from recollect.evaluation.features import image_features
from recollect.index import NEAR, By, Index
from recollect.index.by_class import check_ending, retrieve_by_class, write_retrieved


@dataclass(frozen=True)
class Retrieve:
    """Write the pairs of a memory that are nearest to class names to a Parquet file that training reads (REACT).

    Each picture is kept once, with its caption, the class that it is nearest to, and the distance (1 - cosine).
    """

    memory: MemoryPlace
    """Its folder, or milvus://host:port/collection."""
    names: Path
    """A text file of class names, one a line."""
    out: Path
    """The .parquet file."""
    per_class: int = 50
    """Most pairs of a class."""
    templates: Path | None = None
    """A text file of prompt templates, one a line with {} for the class name; CLIP's 80 by default."""
    by: By = "image"
    """Compare the prompts with the memory's images, or with its texts."""
    exclude: str | None = None
    """A source that will be tested: near-duplicates of its images are not retrieved."""
    split: str | None = "test"
    """For --exclude, the source's split."""
    threshold: float = NEAR
    """For --exclude, the cosine from which two images count as one."""
    model: str | None = None
    """The model that embedded the memory; by default where it was then."""
    device: str | None = None
    """Where to compute; the best there is by default."""

    def run(self) -> None:
        """Retrieve, write and say."""
        check_writable(self.out, "--out")
        check_ending(self.out)
        if not -1 <= self.threshold <= 1:
            raise UserError(f"--threshold {self.threshold:g}: a cosine lies between -1 and 1")
        if self.exclude is None:
            refuse_unread(self, "split", "threshold", why="is for --exclude SOURCE. Add that, or leave this out.")
        else:
            split_for(self.exclude, self.split, "test")
        names = list(dict.fromkeys(read_lines(self.names, "class names")))
        templates = read_templates(self.templates) if self.templates else GENERAL_TEMPLATES
        index = Index.open(self.memory)
        encoder, _ = index.open_model(self.model, self.device)
        left = self._excluded(index, encoder)
        hits = retrieve_by_class(index, encoder, names, templates, self.per_class, self.by, left)
        if left and not hits:
            raise UserError(
                f"--exclude {self.exclude}: {len(left):,} of {len(index):,} pictures are near-duplicates of its images "
                f"(cosine {self.threshold:g} or more), and no pair is found beside them. Take a higher --threshold."
            )
        broken = write_retrieved(index, hits, self.out)
        found = len({hit.name for hit in hits})
        parts = [f"{counted(len(hits) - broken, 'pair')} of {found:,} of {len(names):,} classes"]
        parts += [f"{counted(broken, 'picture')} could not be read"] if broken else []
        parts += [f"{len(left):,} near-duplicates of {self.exclude} left out"] if self.exclude else []
        output().print(printable(f"{'; '.join(parts)}: {self.out}"), highlight=False, soft_wrap=True)

    def _excluded(self, index: Index, encoder: Encoder) -> list[str]:
        if self.exclude is None:
            return []
        features = image_features(encoder, open_source(self.exclude, split=split_for(self.exclude, self.split, "test")))
        return index.near(features.images, self.threshold)
