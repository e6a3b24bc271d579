"""``--index INDEX --fusion F --mode both``: any command that embeds can embed with what is found in an index (RECO)."""

from dataclasses import dataclass
from typing import Annotated, Literal

from recollect.cli.parser import Arg, warn_unused
from recollect.core.paths import beside
from recollect.core.validation import check_number, refuse

MEAN = "mean"
"""Name of the fusion that is not learned."""


@dataclass(frozen=True)
class FusionOptions:
    """An index that embeddings read (RECO)."""

    index: str | None = None
    """Embed with what is found in this index: a folder, or milvus://host:port/collection."""
    fusion: str | None = None
    """With --index: the OUT/model of `recollect train reco`, or `mean`, the plain mean with what was found."""
    mode: Annotated[Literal["image", "text", "both"] | None, Arg(rare=True)] = None
    """Which embeddings read the index: image, text, or both; by default all that the fusion refines."""
    k: int | None = None
    """Rows that each embedding reads; by default as many as the fusion was trained with, 10 for `mean`."""
    read_where: Annotated[str | None, Arg(rare=True)] = None
    """Read only rows that satisfy a filter, e.g. "source = 'emoji' and domain != 'noto'"."""
    searcher: Annotated[str | None, Arg(rare=True)] = None
    """The model that embedded the index, for a fusion that reads another model's index (default: where it was)."""
    near: Annotated[float | None, Arg(rare=True)] = None
    """Leave out rows whose image has at least this cosine with a tested image; 0.94 in RECO."""

    @property
    def asked(self) -> bool:
        """Whether an index is to be read."""
        return self.index is not None or self.fusion is not None

    def check(self) -> None:
        """Reject one of --index and --fusion without the other.

        Raises:
            UserError: naming the option.
        """
        one = self.asked and (self.index is None or self.fusion is None)
        refuse((one, "--index and --fusion: give both, the index and what `recollect train reco` trained on it."))
        if not self.asked:
            why = "no index is read. Name one with --index."
            warn_unused(self, "mode", "k", "read_where", "searcher", "near", why=why)
        if self.near is not None:
            check_number("--near", self.near, above=0, most=1)

    @property
    def model(self) -> str:
        """The model that embedded the index; empty if no index is read, or another model searches it."""
        if self.index is None or self.searcher is not None:
            return ""
        from recollect.index import Index

        index = Index.open(self.index)
        return beside(index.record.model_name, index.address)
