"""``--index INDEX --fusion F --mode both``: options of all commands that embed with retrieval from an index (RECO)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from recollect.cli.parser import Arg, say, warn_unused
from recollect.core.paths import resolve_stored
from recollect.core.places import public_place
from recollect.core.validation import check_number, refuse

if TYPE_CHECKING:
    from recollect.core.types import Encoder, Source
    from recollect.evaluation.features import FeatureCache


@dataclass(frozen=True)
class FusionOptions:
    """Retrieval from an index (RECO)."""

    index: str | None = None
    """Refine embeddings with rows retrieved from this index: a folder, or milvus://host:port/collection."""
    fusion: str | None = None
    """Fusion to use with --index: OUT/model of `recollect train reco`, or `mean`, the mean with the retrieved rows."""
    mode: Annotated[Literal["image", "text", "both"] | None, Arg(rare=True)] = None
    """Embeddings to refine: image, text, or both (default: those that the fusion was trained for; both for `mean`)."""
    weight: Annotated[float | None, Arg(rare=True)] = None
    """Weight of the retrieved rows with `--fusion mean`, between 0 and 1 (default: the one at which they vary scores as
    much as the embedding, measured on the index). A smaller weight keeps more of the model's own ranking."""
    k: int | None = None
    """Rows to retrieve per embedding (default: as in the training of the fusion; 10 for `mean`)."""
    read_where: Annotated[str | None, Arg(rare=True)] = None
    """Retrieve only rows that match a filter, e.g. "source = 'emoji' and domain != 'noto'"."""
    near: Annotated[float | None, Arg(rare=True)] = None
    """Skip rows whose image has at least this cosine with a test image (RECO uses 0.94)."""

    @property
    def given(self) -> bool:
        """Whether --index or --fusion is given."""
        return self.index is not None or self.fusion is not None

    def check(self) -> None:
        """Check the options; --index and --fusion require each other.

        Raises:
            UserError: an option is missing or out of range.
        """
        incomplete = self.given and (self.index is None or self.fusion is None)
        refuse((incomplete, "--index and --fusion: give both, the index and the fusion trained on it."))
        if not self.given:
            warn_unused(self, "mode", "weight", "k", "read_where", "near", why="only used with --index")
        elif self.fusion != "mean":
            warn_unused(self, "weight", why="only used with --fusion mean")
        if self.weight is not None:
            check_number("--weight", self.weight, above=0, below=1)
        if self.near is not None:
            check_number("--near", self.near, above=0, most=1)

    @property
    def model(self) -> str:
        """The model that embedded the index; empty if no index is read."""
        if self.index is None:
            return ""
        from recollect.index import Index

        index = Index.open(self.index)
        return resolve_stored(index.record.model_name, index.address)

    def encoder(self, encoder: "Encoder", tested: "Source | None" = None, cache: "FeatureCache | None" = None) -> Any:
        """Return the encoder, wrapped to read the index if one is given.

        Args:
            encoder: the frozen model.
            tested: test images; with --near, their near-duplicates in the index are left out and counted on the output.
            cache: cache of the model's embeddings.

        Raises:
            UserError: the index or fusion cannot be opened, or they do not match.
        """
        if self.index is None or self.fusion is None:
            return encoder
        from recollect.evaluation.features import image_features
        from recollect.index import Index
        from recollect.reco.block import FusionModule, FusionSettings
        from recollect.reco.encoder import RetrievalEnhancedEncoder
        from recollect.reco.neighbors import DEFAULT_K, balanced_mean

        index = Index.open(self.index)
        index.model.check(encoder, "the encoder")  # before the index is searched
        if self.fusion == "mean" and self.weight is None:
            fusion = balanced_mean(index, self.k or DEFAULT_K, self.read_where)
            say(f"{index.address}: --weight {fusion.settings.weight:.2f}, measured on its pictures and captions")
        elif self.fusion == "mean":
            fusion = FusionModule(FusionSettings(encoder.width, "mean", weight=self.weight))
        else:
            fusion = FusionModule.open(self.fusion)
        reading = RetrievalEnhancedEncoder(encoder, index, fusion, self.mode, self.k, self.read_where)
        if self.near is not None and tested is not None:
            left_out = index.near(image_features(encoder, tested, cache).images, self.near)
            count = f"{len(left_out):,} of {len(index):,} pictures in {index.address}"
            say(f"{tested.name}: left out {count}: near-duplicates of test images (cosine {self.near:g} or more)")
            left = f"only {len(index) - len(left_out):,} pictures are left without near-duplicates"
            few = f"{index.address}: {left}, but k = {reading.k}. Use a smaller --k or a higher --near."
            refuse((len(left_out) > len(index) - reading.k, few))
            reading.exclude_ids = frozenset(left_out)
        return reading

    def name(self, model: str, encoder: "Encoder") -> str:
        """Return the name of a model in results, with the index, its version and the fusion if it reads an index."""
        if (read := reads(encoder)) is None:
            return model
        extra = f", where {self.read_where}" if self.read_where else ""
        extra += f", near {self.near:g}" if self.near else ""
        extra += f", weight {self.weight:g}" if self.weight else ""
        fusion = f"{public_place(str(self.fusion))} {read['fusion'][:8]}"
        return f"{model} + {read['index']} version {read['version']}, {fusion}, {read['mode']}, k={read['k']}{extra}"


def reads(encoder: "Encoder") -> dict[str, Any] | None:
    """Describe the index that an encoder reads, and how; None if it reads no index."""
    from recollect.reco.encoder import RetrievalEnhancedEncoder

    return encoder.description if isinstance(encoder, RetrievalEnhancedEncoder) else None
