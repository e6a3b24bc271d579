"""Options of ``recollect evaluate``; each command's code is in a file of its own."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from recollect.cli.fusion import FusionOptions
from recollect.cli.parser import Arg, run_by
from recollect.efsa.options import EpisodeOptions


@dataclass(frozen=True)
class LabeledData:
    """Labeled images."""

    data: Annotated[tuple[str, ...], Arg(metavar="SOURCE")] = ()
    """Sources with labels and class names: a path, a hub id, or for the tasks of a built-in world glyphs:captions,
    latents:captions, glyphs:labels (the label set's own classes, also in shifted styles and under synonyms)."""
    templates: Path | None = None
    """A text file of prompt templates, one a line with {} for the class name (default: CLIP's 80)."""
    label_column: str | None = None
    """Column of the labels, if it is not named label."""
    class_name_column: Annotated[str | None, Arg(rare=True)] = None
    """Column of readable names of class numbers."""
    image_column: Annotated[str | None, Arg(rare=True)] = None
    """Column of image bytes or paths."""


@dataclass(frozen=True)
class DataOptions(LabeledData):
    """Labeled images."""

    suite: str | None = None
    """A suite of benchmark sets instead, read from the hub: lixp-21, lixp-11-ablation, lixp-5 or prefix-11."""
    copies: Annotated[tuple[str, ...], Arg(rare=True)] = ()
    """NAME=SOURCE: read a set of the suite from your own copy."""
    support: Annotated[str, Arg(metavar="SPLIT")] = "train"
    """Split that examples are drawn from."""
    query: Annotated[str | None, Arg(metavar="SPLIT")] = None
    """Split to test on (default: test, or else validation)."""
    within: Annotated[str | None, Arg(metavar="SPLIT")] = None
    """Divide this one split into examples and tested images, class by class."""


@dataclass(frozen=True)
class ModelOptions:
    """Models, and where the figures go."""

    models: Annotated[tuple[str, ...], Arg(place="MODEL")] = ()
    """RUN/model, any folder of a CLIP-type checkpoint, or a hub id (default: the starter). With several, gains are over
    the first."""
    out: Path | None = None
    """Folder for one JSON file for each model and set, and for plots; or one .json file for all."""
    form: Annotated[Literal["recollect", "clip-benchmark"], Arg(rare=True)] = "recollect"
    """Format of the JSON files: recollect's, or that of LAION's CLIP_benchmark."""
    cache: Path | None = None
    """Folder for embeddings, so that they are computed once for each model and set."""
    device: str | None = None
    """Where to compute, e.g. cpu or cuda (default: the fastest there is)."""
    prefix: Literal["auto", "caption", "label", "none"] = "auto"
    """Prefix of the texts, for models trained with prefix tokens. auto reads class names as captions, which is best for
    classes that the training labels lack; label is for the training labels' own classes."""
    seed: Annotated[int, Arg(rare=True)] = 0
    """Seed that the model was trained with, kept in the JSON files for summaries over seeds."""
    reading: Annotated[FusionOptions, Arg(flat=True)] = field(default_factory=FusionOptions)


@dataclass(frozen=True)
class ZeroShot:
    """Classify by class names alone: 80 prompts a class, averaged; top-1 and mean per class, in percent."""

    model: Annotated[ModelOptions, Arg(flat=True)] = field(default_factory=ModelOptions)
    data: Annotated[DataOptions, Arg(flat=True)] = field(default_factory=DataOptions)
    synonyms_column: Annotated[str | None, Arg(rare=True)] = None
    """Column of other names of a class: test the classes that have one under their names and under these."""

    run = run_by("recollect.cli.evaluations:run_zero_shot")


@dataclass(frozen=True)
class Probe:
    """Logistic regression on frozen image embeddings; its regularization is chosen on held-out training images."""

    model: Annotated[ModelOptions, Arg(flat=True)] = field(default_factory=ModelOptions)
    data: Annotated[DataOptions, Arg(flat=True)] = field(default_factory=DataOptions)

    run = run_by("recollect.cli.evaluations:run_probe")


@dataclass(frozen=True)
class FeatureOptions:
    """Your own embeddings instead of a model and images."""

    features: tuple[Path, ...] = ()
    """Parquet files, each a set with columns vector, label and optionally split; or one or two .npy files of rows:
    examples, and tested ones. Without splits, half of each class is tested."""
    feature_labels: tuple[Path, ...] = ()
    """A .npy file of labels for each .npy file of rows."""
    texts: Path | None = None
    """Class texts by the same model: .npy in sorted order of the labels, or Parquet with columns vector and label.
    Without, class means of the examples take their place, and there is no zero-shot."""
    scale: Annotated[float, Arg(rare=True)] = 100.0
    """Inverse temperature that the model learned; CLIP's by default."""


@dataclass(frozen=True)
class FewShot:
    """Classify with a few labeled images, mostly without training.

    Examples are drawn from the support split, nested over shots, once for each seed; nothing is chosen on tested
    images. Prints mean and standard deviation over seeds, and with several models gains over the first.
    """

    model: Annotated[ModelOptions, Arg(flat=True)] = field(default_factory=ModelOptions)
    data: Annotated[DataOptions, Arg(flat=True)] = field(default_factory=DataOptions)
    methods: Annotated[tuple[str, ...], Arg(metavar="METHOD")] = ()
    """Names, paper for the paper's six (the default, with zero-shot), or all that read embeddings. clip-lora and 2sfs
    tune the model itself, for minutes to hours."""
    shots: tuple[int, ...] | None = None
    """Examples of each class (default: 1 2 4 8 16 32, as far as every class has so many)."""
    seeds: int = 5
    """Number of draws."""
    effort: Annotated[float, Arg(rare=True)] = 1.0
    """Share of the published number of steps, for methods that tune the model."""
    flip: Annotated[bool, Arg(rare=True)] = True
    """Mirror half of the images that these methods learn from; not for letters, signs or maps."""
    held_out: Annotated[bool, Arg(rare=True)] = False
    """Tune the model again without parts of the shots, so that these methods report left-out accuracy, calibrated
    confidence and conformal sets too: with up to four shots once more for each shot, else three times more."""
    own: Annotated[FeatureOptions, Arg(flat=True)] = field(default_factory=FeatureOptions)
    small_classes: Annotated[Literal["refuse", "drop", "all"], Arg(rare=True)] = "refuse"
    """Classes with fewer examples than the most shots: stop, leave them out of the set, or take all they have."""

    run = run_by("recollect.cli.evaluate_few_shot:run_few_shot")


@dataclass(frozen=True)
class Retrieval:
    """Search captioned images both ways: recall at 1, 5 and 10, with every true match counted.

    With --methods, several ways of searching are compared on the same queries, with gains over the first and the cost
    of a query. Intervals (95 %, in the JSON) are by bootstrap over images, whose captions stay together.
    """

    model: Annotated[ModelOptions, Arg(flat=True)] = field(default_factory=ModelOptions)
    data: Annotated[tuple[str, ...], Arg(metavar="SOURCE")] = ()
    """Sources with captions."""
    suite: str | None = None
    """Captioned sets of a paper as well: efsa-9, its nine sets, read from the hub where there is a copy."""
    copies: Annotated[tuple[str, ...], Arg(rare=True)] = ()
    """NAME=SOURCE: read a set of the suite from your own copy."""
    pool: Literal["single", "merged"] = "single"
    """Search every source by itself, or all as one pool of several domains."""
    methods: Annotated[tuple[str, ...], Arg(metavar="METHOD")] = ("zero-shot",)
    """Any of zero-shot, normalized, text-to-text, episode; or all."""
    captions: str | None = None
    """Captions for methods that learn from them: held-out (an image's last text, which is then no query), true (its
    first text, although it is a query: the upper bound), column:NAME (another column), or a .jsonl file of `recollect
    caption`. One for each source, separated by commas, or one for all."""
    queries: int | None = None
    """Ask at most this many texts of each domain; the pool stays whole."""
    depths: tuple[int, ...] = (1, 5, 10)
    """The k of R@k. An episode does not change R@k from its own k on: zero-shot R@16 is its upper bound."""
    episode: Annotated[EpisodeOptions, Arg(rare=True)] = field(default_factory=EpisodeOptions)
    split: str = "test"
    """Split of each source."""
    caption_column: str | None = None
    """Column of the captions, if it is not named caption."""
    image_column: Annotated[str | None, Arg(rare=True)] = None
    """Column of image bytes or paths."""

    run = run_by("recollect.cli.evaluations:run_retrieval")


@dataclass(frozen=True)
class Entities:
    """Name pictures among all entities: top-1 on those trained on, on the others, and the harmonic mean."""

    model: Annotated[ModelOptions, Arg(flat=True)] = field(default_factory=ModelOptions)
    data: Annotated[LabeledData, Arg(flat=True)] = field(default_factory=LabeledData)
    seen: Annotated[str, Arg(metavar="SPLIT")] = "train"
    """Split whose classes the model was trained on."""
    unseen: Annotated[str, Arg(metavar="SPLIT")] = "test"
    """Split of the other classes; images of both are tested, and the classes of both are candidates for each."""

    run = run_by("recollect.cli.evaluations:run_entities")


@dataclass(frozen=True)
class Multilabel:
    """Pictures that show several classes (VOC2007): mean average precision by class names, and by a linear probe.

    The label column holds a list for each picture: class numbers, names, or one 0 or 1 for each class.
    """

    model: Annotated[ModelOptions, Arg(flat=True)] = field(default_factory=ModelOptions)
    data: Annotated[LabeledData, Arg(flat=True)] = field(default_factory=LabeledData)
    support: Annotated[str, Arg(metavar="SPLIT")] = "train"
    """Split that the probe learns from."""
    query: Annotated[str | None, Arg(metavar="SPLIT")] = None
    """Split to test on (default: test)."""
    probe: bool = True
    """Do not learn a logistic regression for each class from --support."""
    class_names: Path | None = None
    """A text file of class names, one a line, in the order of their numbers, where the data has none."""

    run = run_by("recollect.cli.evaluations:run_multilabel")
