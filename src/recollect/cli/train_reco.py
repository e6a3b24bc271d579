"""``recollect train reco``: teach a frozen model to read an index."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from recollect.cli.parser import Arg, run_by
from recollect.training.options import Optimizer


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

    run = run_by("recollect.cli.train_reco_run:run_reco")
