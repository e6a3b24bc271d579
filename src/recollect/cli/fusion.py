"""``--index INDEX --fusion F --mode both``: any command that embeds can embed with what is found in an index (RECO)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from recollect.cli.parser import Arg, say, warn_unused
from recollect.core.paths import beside
from recollect.core.places import public_place
from recollect.core.validation import check_number, refuse

if TYPE_CHECKING:
    from recollect.core.types import Encoder, Source
    from recollect.evaluation.features import FeatureCache


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
            warn_unused(self, "mode", "k", "read_where", "near", why=why)
        if self.near is not None:
            check_number("--near", self.near, above=0, most=1)

    @property
    def model(self) -> str:
        """The model that embedded the index; empty if no index is read."""
        if self.index is None:
            return ""
        from recollect.index import Index

        index = Index.open(self.index)
        return beside(index.record.model_name, index.address)

    def encoder(self, encoder: "Encoder", tested: "Source | None" = None, cache: "FeatureCache | None" = None) -> Any:
        """The encoder itself, or one that reads the index.

        Args:
            encoder: the frozen model.
            tested: images whose near-duplicates in the index are left out if --near is given; their number is printed.
            cache: of the model's own embeddings.

        Raises:
            UserError: index or fusion cannot be opened, or they do not belong together.
        """
        if self.index is None or self.fusion is None:
            return encoder
        from recollect.evaluation.features import image_features
        from recollect.index import Index
        from recollect.reco.block import FusionModule, FusionSettings
        from recollect.reco.encoder import RetrievalEnhancedEncoder

        index = Index.open(self.index)
        mean = self.fusion == "mean"  # the plain mean, which is not learned
        fusion = FusionModule(FusionSettings(encoder.width, "mean")) if mean else FusionModule.open(self.fusion)
        mode = self.mode or fusion.settings.modalities
        k, left_out = fusion.trained.get("k", 10) if self.k is None else self.k, list[str]()
        if self.near is not None and tested is not None:
            left_out = index.near(image_features(encoder, tested, cache).images, self.near)
            near = f"near-duplicates of tested images (cosine {self.near:g} or more)"
            say(f"{tested.name}: {len(left_out):,} of {len(index):,} pictures of {index.address} are {near}, left out")
            few = (
                f"{index.address}: {len(index) - len(left_out):,} pictures are left without near-duplicates, fewer than"
            )
            refuse((len(left_out) > len(index) - k, f"{few} k = {k}. Use a smaller --k or a higher --near."))
        return RetrievalEnhancedEncoder(encoder, index, fusion, mode, k, self.read_where, exclude_ids=left_out)

    def name(self, model: str, encoder: "Encoder") -> str:
        """What results call a model: if it reads an index, with the index's version and the fusion's fingerprint."""
        if (read := reads(encoder)) is None:
            return model
        extra = f", where {self.read_where}" if self.read_where else ""
        extra += f", near {self.near:g}" if self.near else ""
        fusion = f"{public_place(str(self.fusion))} {read['fusion'][:8]}"
        return f"{model} + {read['index']} version {read['version']}, {fusion}, {read['mode']}, k={read['k']}{extra}"


def reads(encoder: "Encoder") -> dict[str, Any] | None:
    """What an encoder reads and how; None if it reads no index."""
    from recollect.reco.encoder import RetrievalEnhancedEncoder

    return encoder.description if isinstance(encoder, RetrievalEnhancedEncoder) else None
