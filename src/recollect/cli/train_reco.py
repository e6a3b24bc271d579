"""``recollect train reco``: teach a frozen model to read an index."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from recollect.cli.parser import Arg, options_of, say, settings_text
from recollect.core.paths import check_writable
from recollect.core.validation import refuse
from recollect.training.options import Data, Model, ObjectiveOptions, Optimizer

if TYPE_CHECKING:
    from recollect.reco.learning import FusionRecipe


_SAME = (
    "index", "optimizer", "batch_size", "chunk", "seed", "log_every", "checkpoint_every", "k", "max_score", "limit",
    "epochs",
)  # fmt: skip
"""Options that are fields of the recipe."""


def _optimizer() -> Optimizer:
    return Optimizer(1e-3, weight_decay=1e-5, warmup=0.0)


@dataclass(frozen=True)
class TrainReco:
    """Train the fusion that reads an index, on top of a frozen model (RECO).

    The training pairs are embedded once and their neighbors are found once; training then reads embeddings, so that
    ten epochs take minutes. The fusion learns to read by --start, --mask and --newness; --preset paper trains as RECO
    is printed. OUT/model is the fusion, OUT/metrics.jsonl has a line for each logged step, and OUT.toml has all
    options, for --config of another run. A run that was stopped continues with the same command and --resume.
    """

    index: str
    """The index to read: a folder, or milvus://host:port/collection."""
    data: Annotated[tuple[str, ...], Arg(metavar="SOURCE")]
    """Sources of training pairs. They may also be in the index: no pair reads itself."""
    model: Annotated[str | None, Arg(place="MODEL")] = None
    """The frozen model, which embedded the index: RUN/model, any folder of a CLIP-type checkpoint, or a hub id
    (default: where it was then)."""
    out: Path = Path("runs/reco")
    """Folder of the run."""
    split: str | None = None
    """Split of the sources (default: the training split)."""
    limit: int | None = None
    """Maximum number of pairs of each source."""
    preset: Literal["reading", "paper"] = "reading"
    """Defaults of --start, --mask and --newness: what reads best on held-out concepts, or the paper's."""
    start: Annotated[Literal["embedding", "mean", "gate"] | None, Arg(rare=True)] = None
    """What the block corrects: the embedding (the paper), the mean of it and of what it reads, or a mixture of both
    whose weight is learned (gate); by default as the preset says: gate, paper: embedding."""
    mask: Annotated[Literal["none", "caption", "id", "both"] | None, Arg(rare=True)] = None
    """Pairs of a batch that are no negatives of each other: of equal caption, of one id with several captions, both, or
    none; by default as the preset says: caption, paper: none."""
    newness: Annotated[Literal["none", "offsets"] | None, Arg(rare=True)] = None
    """Make training pairs look new to the model by random offsets for each caption and modality; by default as the
    preset says: offsets, paper: none."""
    k: int = 10
    """Rows that each embedding reads."""
    max_score: Annotated[float, Arg(rare=True)] = 0.94
    """Pass over rows that are at least this near to the training pair, as near-duplicates."""
    search: Annotated[Literal["uni", "cross"], Arg(rare=True)] = "uni"
    """Find by the vectors of the query's own modality, or of the other (Table 3)."""
    read: Annotated[Literal["cross", "uni", "both"], Arg(rare=True)] = "cross"
    """Read the other modality of what was found, or the query's own (Table 3); or both, two tokens a row (RA-CLIP)."""
    epochs: int = 10
    """Passes over the training pairs."""
    batch_size: int = 4096
    """Pairs of a step, over all processes."""
    chunk: Annotated[int | None, Arg(rare=True)] = None
    """Pairs fused at a time; all by default."""
    optimizer: Annotated[Optimizer, Arg(rare=True)] = field(default_factory=_optimizer)
    """AdamW and its schedule."""
    seed: int = 0
    """Random seed."""
    log_every: Annotated[int, Arg(rare=True)] = 10
    """Steps between lines of metrics.jsonl."""
    checkpoint_every: Annotated[int, Arg(rare=True)] = 500
    """Steps between checkpoints."""
    resume: bool = False
    """Continue from the last checkpoint of --out."""
    device: str | None = None
    """Where to compute, e.g. cpu or cuda (default: the fastest there is)."""

    def run(self) -> None:
        """Embed, look up, train."""
        from recollect.cli.defaults import split_for
        from recollect.core.files import write_text
        from recollect.data.sources import open_source
        from recollect.index import Index
        from recollect.models.parts import check_model_place
        from recollect.reco.learning import train_fusion
        from recollect.reco.neighbors import check_k
        from recollect.reco.pairs import embed_pairs
        from recollect.training.run_folder import check_free

        settings = self.out.with_name(f"{self.out.name}.toml")
        if self.model is not None:
            check_model_place(self.model)
        recipe = self.recipe()
        replace(recipe, fusion=replace(recipe.fusion, width=1), steps=1).check()
        check_writable(self.out, "--out", "folder")
        check_free(self.out, self.resume)
        if not self.resume:
            check_writable(settings, "--out", "new file")
        index = Index.open(self.index)  # what is wrong with it should show before anything is embedded
        check_k(index, self.k)
        encoder, name = index.model.open(self.model, self.device, option="MODEL")
        recipe = replace(recipe, model=Model(start=name))
        write_text(settings, settings_text(list(options_of(TrainReco, self))))
        sources = tuple(open_source(spec, split=split_for(spec, self.split)) for spec in self.data)
        unlimited = self.limit is None and any(source.endless for source in sources)
        refuse((unlimited, "a generated source is endless. Set the number of pairs with --limit N."))
        pairs = embed_pairs(encoder, sources, self.limit, recipe.data.broken_share)
        model = train_fusion(recipe, encoder, pairs, self.out, resume=self.resume, device=self.device)
        say(f"fusion: {model}")
        say(f"metrics: {self.out / 'metrics.jsonl'}")

    def recipe(self) -> "FusionRecipe":
        """The recipe that these options describe."""
        from recollect.reco.learning import FUSION_PRESETS
        from recollect.reco.newness import Newness

        preset = FUSION_PRESETS[self.preset]()
        start = self.start or preset.fusion.start
        same: dict[str, Any] = {name: getattr(self, name) for name in _SAME}
        return replace(
            preset,
            model=Model(start=self.model or ""),
            data=Data(sources=self.data, split=self.split),
            objective=ObjectiveOptions(base="softmax"),
            fusion=replace(preset.fusion, search=self.search, read=self.read, start=start),
            mask=self.mask or preset.mask,
            newness=Newness(self.newness) if self.newness else preset.newness,
            **same,
        )
