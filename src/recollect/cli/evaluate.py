"""Options of ``recollect evaluate``; the code is in `evaluations` and `evaluate_few_shot`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from recollect.cli.defaults import column_options
from recollect.cli.fusion import FusionOptions
from recollect.cli.parser import Arg, run_imported
from recollect.data.sources.columns import Columns
from recollect.efsa.options import EpisodeOptions


@dataclass(frozen=True)
class LabeledData:
    """Labeled images."""

    data: Annotated[tuple[str, ...], Arg(metavar="SOURCE")] = ()
    """Sources with labels and class names: a path, a hub id, or the tasks of a built-in world: glyphs:captions,
    latents:captions, or glyphs:labels (the labeled classes, also in shifted styles and under synonyms)."""
    templates: Path | None = None
    """Text file of prompt templates, one per line, with {} for the class name (default: CLIP's 80)."""
    columns: Annotated[Columns, column_options("image", "label", "class_name")] = field(default_factory=Columns)


@dataclass(frozen=True)
class DataOptions(LabeledData):
    """Labeled images."""

    suite: str | None = None
    """Suite of benchmark data sets from the hub, instead of --data: lixp-21, lixp-11-ablation, lixp-5 or prefix-11."""
    copies: Annotated[tuple[str, ...], Arg(rare=True)] = ()
    """NAME=SOURCE: read a data set of the suite from a local copy."""
    support: Annotated[str, Arg(metavar="SPLIT")] = "train"
    """Split to draw examples from."""
    query: Annotated[str | None, Arg(metavar="SPLIT")] = None
    """Split to test on (default: test, or else validation)."""
    within: Annotated[str | None, Arg(metavar="SPLIT")] = None
    """Split to divide into examples and test images, per class."""


@dataclass(frozen=True)
class ModelOptions:
    """Models and results."""

    models: Annotated[tuple[str, ...], Arg(place="MODEL")] = ()
    """RUN/model, the folder of a CLIP-type checkpoint, or a hub id (default: the starter). With several models, gains
    over the first are reported."""
    out: Path | None = None
    """Folder for plots and one JSON file per model and data set; or a single .json file."""
    form: Annotated[Literal["recollect", "clip-benchmark"], Arg(rare=True)] = "recollect"
    """Format of the JSON files: recollect's, or that of LAION's CLIP_benchmark."""
    cache: Path | None = None
    """Cache folder for embeddings."""
    device: str | None = None
    """Device, e.g. cpu or cuda (default: the fastest available)."""
    prefix: Literal["auto", "caption", "label", "none"] = "auto"
    """Prefix of the texts, for models trained with prefix tokens. auto reads class names as captions, which is best for
    classes missing from the training labels; use label for classes of the training labels."""
    seed: Annotated[int, Arg(rare=True)] = 0
    """Training seed of the model, recorded in the JSON files for summaries over seeds."""
    fusion_options: Annotated[FusionOptions, Arg(flat=True)] = field(default_factory=FusionOptions)


@dataclass(frozen=True)
class ZeroShot:
    """Classify images by class names, averaging 80 prompts per class; top-1 and mean per class, in percent."""

    model: Annotated[ModelOptions, Arg(flat=True)] = field(default_factory=ModelOptions)
    data: Annotated[DataOptions, Arg(flat=True)] = field(default_factory=DataOptions)
    synonyms_column: Annotated[str | None, Arg(rare=True)] = None
    """Column of synonyms: test the classes that have one under their names and under their synonyms."""

    run = run_imported("recollect.cli.evaluations:run_zero_shot")


@dataclass(frozen=True)
class Probe:
    """Fit a logistic regression on frozen image embeddings, regularized by the score on held-out training images."""

    model: Annotated[ModelOptions, Arg(flat=True)] = field(default_factory=ModelOptions)
    data: Annotated[DataOptions, Arg(flat=True)] = field(default_factory=DataOptions)

    run = run_imported("recollect.cli.evaluations:run_probe")


@dataclass(frozen=True)
class FeatureOptions:
    """Your own embeddings instead of a model and images."""

    features: tuple[Path, ...] = ()
    """Parquet files, one per data set, with the columns vector, label and optionally split; or one or two .npy files of
    vectors (examples and test images). Without splits, half of each class is tested."""
    feature_labels: tuple[Path, ...] = ()
    """.npy file of labels for each .npy file of vectors."""
    texts: Path | None = None
    """Class text embeddings from the same model: .npy in sorted order of the labels, or Parquet with the columns vector
    and label. Without them, class means of the examples are used, and zero-shot is skipped."""
    scale: Annotated[float | None, Arg(rare=True)] = None
    """Learned inverse temperature of the model (default: that of `recollect embed` next to the file, or CLIP's 100)."""


@dataclass(frozen=True)
class FewShot:
    """Classify images from a few labeled examples per class, mostly without training.

    Examples are drawn from the support split once per seed, nested over shots; nothing is tuned on test images. Prints
    the mean and standard deviation over seeds, and with several models the gains over the first.
    """

    model: Annotated[ModelOptions, Arg(flat=True)] = field(default_factory=ModelOptions)
    data: Annotated[DataOptions, Arg(flat=True)] = field(default_factory=DataOptions)
    methods: Annotated[tuple[str, ...], Arg(metavar="METHOD")] = ()
    """Method names, "paper" for the paper's six (default: zero-shot and paper), or "all" for all that use embeddings.
    clip-lora and 2sfs tune the model itself, which takes minutes to hours."""
    shots: tuple[int, ...] | None = None
    """Examples per class (default: 1 2 4 8 16 32, up to the size of the smallest class)."""
    seeds: int = 5
    """Number of draws of the examples."""
    effort: Annotated[float, Arg(rare=True)] = 1.0
    """Number of steps as a fraction of the published one, for methods that tune the model."""
    flip: Annotated[bool, Arg(rare=True)] = True
    """Mirror half of the images that these methods learn from; not for letters, signs or maps."""
    held_out: Annotated[bool, Arg(rare=True)] = False
    """Repeat the tuning without parts of the shots, so these methods also report held-out accuracy, calibrated
    confidence and conformal sets. Costs one more run per shot for up to four shots, else three more."""
    own: Annotated[FeatureOptions, Arg(flat=True)] = field(default_factory=FeatureOptions)
    small_classes: Annotated[Literal["refuse", "drop", "all"], Arg(rare=True)] = "refuse"
    """Classes with fewer examples than the largest number of shots: stop, drop the classes, or use all their examples.
    """

    run = run_imported("recollect.cli.evaluate_few_shot:run_few_shot")


@dataclass(frozen=True)
class Retrieval:
    """Retrieve images by caption and captions by image: recall at 1, 5 and 10, counting every true match.

    --methods compares search methods on the same queries, with gains over the first and the time per query. The JSON
    has 95 % intervals, bootstrapped over images together with their captions.
    """

    model: Annotated[ModelOptions, Arg(flat=True)] = field(default_factory=ModelOptions)
    data: Annotated[tuple[str, ...], Arg(metavar="SOURCE")] = ()
    """Sources with captions."""
    suite: str | None = None
    """Captioned data sets of a paper, in addition to --data: efsa-9 (nine sets, read from the hub if available)."""
    copies: Annotated[tuple[str, ...], Arg(rare=True)] = ()
    """NAME=SOURCE: read a data set of the suite from a local copy."""
    pool: Literal["single", "merged"] = "single"
    """Search each source separately, or all sources as one pool of several domains."""
    methods: Annotated[tuple[str, ...], Arg(metavar="METHOD")] = ("zero-shot",)
    """Any of zero-shot, normalized, text-to-text and episode; or all."""
    captions: str | None = None
    """Captions for methods that learn from them: held-out (the last text of each image, which is then not a query),
    true (the first text although it is a query, as an upper bound), column:NAME (another column), or a .jsonl file from
    `recollect caption`. One for all sources, or one per source, separated by commas."""
    queries: int | None = None
    """Maximum number of query texts per domain; the pool is not reduced."""
    depths: tuple[int, ...] = (1, 5, 10)
    """Values of k in R@k. Episodes rerank their first k images, so they do not change R@k beyond: zero-shot R@16 is
    their upper bound."""
    episode: Annotated[EpisodeOptions, Arg(rare=True)] = field(default_factory=EpisodeOptions)
    split: str = "test"
    """Split of each source."""
    columns: Annotated[Columns, column_options("image", "caption")] = field(default_factory=Columns)

    run = run_imported("recollect.cli.evaluations:run_retrieval")


@dataclass(frozen=True)
class Entities:
    """Recognize entities among all candidates: top-1 on seen and on unseen entities, and their harmonic mean."""

    model: Annotated[ModelOptions, Arg(flat=True)] = field(default_factory=ModelOptions)
    data: Annotated[LabeledData, Arg(flat=True)] = field(default_factory=LabeledData)
    seen: Annotated[str, Arg(metavar="SPLIT")] = "train"
    """Split with the classes that the model was trained on."""
    unseen: Annotated[str, Arg(metavar="SPLIT")] = "test"
    """Split with the other classes. Images of both splits are tested, and the candidates are the classes of both."""

    run = run_imported("recollect.cli.evaluations:run_entities")


@dataclass(frozen=True)
class Multilabel:
    """Classify images with several labels (VOC2007): mean average precision by class names, and with a linear probe.

    The label column contains a list per image: class numbers, class names, or a 0 or 1 for every class.
    """

    model: Annotated[ModelOptions, Arg(flat=True)] = field(default_factory=ModelOptions)
    data: Annotated[LabeledData, Arg(flat=True)] = field(default_factory=LabeledData)
    support: Annotated[str, Arg(metavar="SPLIT")] = "train"
    """Split to fit the probe on."""
    query: Annotated[str | None, Arg(metavar="SPLIT")] = None
    """Split to test on (default: test)."""
    probe: bool = True
    """Do not fit a linear probe (a logistic regression per class) on --support."""
    class_names: Path | None = None
    """Text file of class names, one per line, in the order of their numbers; for data without names."""

    run = run_imported("recollect.cli.evaluations:run_multilabel")
