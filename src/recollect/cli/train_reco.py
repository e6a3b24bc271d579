"""``recollect train reco``: train a fusion that reads an index, on a frozen model."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from recollect.cli.parser import Arg, options_of, say, settings_text, warn_unused
from recollect.core.paths import check_writable
from recollect.core.validation import refuse
from recollect.training.options import Data, Model, ObjectiveOptions

if TYPE_CHECKING:
    from recollect.reco.learning import FusionRecipe


_SAME = (
    "index", "batch_size", "chunk", "seed", "log_every", "checkpoint_every", "k", "max_score", "limit", "epochs",
)  # fmt: skip
"""Options with the same name as a field of the recipe."""


@dataclass(frozen=True)
class TrainReco:
    """Train a fusion that refines the embeddings of a frozen model with rows retrieved from an index (RECO).

    The training pairs are embedded once and their neighbors are retrieved once; training then reads only embeddings, so
    ten epochs take minutes. OUT/model is the fusion, OUT/metrics.jsonl has one line per logged step, and OUT.toml
    records all options for --config of another run. To continue an interrupted run, repeat the command with --resume.
    """

    index: str
    """Index to retrieve from: a folder, or milvus://host:port/collection."""
    data: Annotated[tuple[str, ...], Arg(metavar="SOURCE")]
    """Sources of training pairs. They may also be in the index: a pair never retrieves itself."""
    model: Annotated[str | None, Arg(place="MODEL")] = None
    """Frozen model of the index: RUN/model, the folder of a CLIP-type checkpoint, or a hub id (default: as recorded in
    the index)."""
    out: Path = Path("runs/reco")
    """Folder of the run."""
    split: str | None = None
    """Split of the sources (default: the training split)."""
    limit: int | None = None
    """Maximum number of pairs per source."""
    preset: Literal["reading", "paper"] = "reading"
    """Defaults of --start, --mask, --newness and --learning-rate: the best on held-out concepts (reading), or those of
    the paper."""
    start: Annotated[Literal["embedding", "gate"] | None, Arg(rare=True)] = None
    """Starting point that the fusion block corrects: the embedding, or its mixture with the mean of the retrieved rows,
    with a learned weight (gate). Default: gate; embedding with --preset paper."""
    weight: Annotated[float | None, Arg(rare=True)] = None
    """Initial weight of the retrieved rows with --start gate, between 0 and 1. Default: they vary scores as much as the
    embedding does."""
    mask: Annotated[Literal["none", "caption", "id", "both"] | None, Arg(rare=True)] = None
    """Pairs that are not negatives of each other: those with equal captions, those with the same id and several
    captions, both, or none. Default: caption; none with --preset paper."""
    newness: Annotated[Literal["none", "offsets"] | None, Arg(rare=True)] = None
    """Add random offsets per caption and modality, so training pairs look new to the model. Default: offsets; none with
    --preset paper."""
    k: int = 10
    """Rows to retrieve per embedding."""
    max_score: Annotated[float, Arg(rare=True)] = 0.94
    """Skip rows with at least this score to the training pair, as near-duplicates."""
    search: Annotated[Literal["uni", "cross"], Arg(rare=True)] = "uni"
    """Search by the vectors of the query's own modality (uni) or of the other one (Table 3)."""
    read: Annotated[Literal["cross", "uni", "both"], Arg(rare=True)] = "cross"
    """Read the other modality of the retrieved rows (cross), the query's own (uni; Table 3), or both as two tokens per
    row (RA-CLIP)."""
    epochs: int = 10
    """Passes over the training pairs."""
    batch_size: int = 4096
    """Pairs per step, over all processes."""
    chunk: Annotated[int | None, Arg(rare=True)] = None
    """Pairs fused at a time (default: all)."""
    learning_rate: Annotated[float | None, Arg(rare=True)] = None
    """Initial learning rate of AdamW, with cosine decay. Default: 0.0001; 0.001 with --preset paper."""
    weight_decay: Annotated[float, Arg(rare=True)] = 1e-5
    """Weight decay of AdamW."""
    seed: int = 0
    """Random seed."""
    log_every: Annotated[int, Arg(rare=True)] = 10
    """Steps between lines of metrics.jsonl."""
    checkpoint_every: Annotated[int, Arg(rare=True)] = 500
    """Steps between checkpoints."""
    resume: bool = False
    """Continue from the last checkpoint of --out."""
    device: str | None = None
    """Device, e.g. cpu or cuda (default: the fastest available)."""

    def run(self) -> None:
        """Embed the pairs, retrieve their neighbors, and train."""
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
        if recipe.fusion.start != "gate":
            warn_unused(self, "weight", why="only used with --start gate")
        check_writable(self.out, "--out", "folder")
        check_free(self.out, self.resume)
        if not self.resume:
            check_writable(settings, "--out", "new file")
        index = Index.open(self.index)  # report errors before anything is embedded
        check_k(index, self.k)
        encoder, name = index.model.open(self.model, self.device, option="MODEL")
        recipe = replace(recipe, model=Model(start=name))
        write_text(settings, settings_text(list(options_of(TrainReco, replace(self, index=index.address)))))
        sources = tuple(open_source(spec, split=split_for(spec, self.split)) for spec in self.data)
        unlimited = self.limit is None and any(source.endless for source in sources)
        refuse((unlimited, "a generated source is infinite. Set the number of pairs with --limit N."))
        pairs = embed_pairs(encoder, sources, self.limit, recipe.data.broken_share)
        model = train_fusion(recipe, encoder, pairs, self.out, resume=self.resume, device=self.device)
        say(f"fusion: {model}")
        say(f"metrics: {self.out / 'metrics.jsonl'}")

    def recipe(self) -> "FusionRecipe":
        """Return the recipe that these options describe."""
        from recollect.reco.learning import FUSION_PRESETS
        from recollect.reco.newness import Newness

        preset = FUSION_PRESETS[self.preset]()
        start = self.start or preset.fusion.start
        weight = self.weight if start == "gate" else None
        same: dict[str, Any] = {name: getattr(self, name) for name in _SAME}
        rate = {} if self.learning_rate is None else {"learning_rate": self.learning_rate}
        return replace(
            preset,
            model=Model(start=self.model or ""),
            data=Data(sources=self.data, split=self.split),
            objective=ObjectiveOptions(base="softmax"),
            fusion=replace(preset.fusion, search=self.search, read=self.read, start=start, weight=weight),
            optimizer=replace(preset.optimizer, weight_decay=self.weight_decay, **rate),
            mask=self.mask or preset.mask,
            newness=Newness(self.newness) if self.newness else preset.newness,
            **same,
        )
