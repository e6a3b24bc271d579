"""``recollect-papers analyse``: how a model's embeddings use their space, and what a prefix does to a text."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from recollect.cli.parser import Arg, run_by

PrefixName = Literal["label", "caption", "none"]
"""The prefix that a text is read with."""


@dataclass(frozen=True)
class Span:
    """The share of image embeddings' energy that is outside the span of the captions.

    Training with captions alone hardly touches these directions, and the context objective trains them: the share says
    what context could clean up, not what that would gain. On real images, with a locked tower, it is about a
    tenth, and context gains there (docs/results.md).
    """

    models: Annotated[tuple[str, ...], Arg(place="MODEL")]
    """RUN/model, folders or hub ids."""
    captions: tuple[str, ...] = ()
    """Sources of the captions, as in training."""
    data: tuple[str, ...] = ()
    """Sources of the images."""
    split: str = "test"
    """Split of the images."""
    share: float = 0.99
    """Share of the captions' energy that their span holds."""
    out: Path | None = None
    """A JSON file for the figures."""

    run = run_by("recollect_papers.analyse.span:run_span")


@dataclass(frozen=True)
class Attention:
    """Where the token that becomes a text's embedding looks, layer by layer, with each prefix side by side.

    Weights are means over heads; pieces of a word are put together. The table says how many of the text's own words a
    layer looks at (exp of the entropy over them).
    """

    models: Annotated[tuple[str, ...], Arg(place="MODEL")]
    """RUN/model, folders or hub ids; a second one without prefix tokens is compared with the first."""
    texts: tuple[str, ...] = ("a sculpture of an airplane",)
    """What to read; a row of the figure each."""
    prefixes: tuple[PrefixName, ...] = ()
    """In this order; by default all that the model has."""
    out: Path = Path("attention.png")
    """The figure; its ending (.png, .pdf, .svg) says the format."""
    json: Path | None = None
    """A JSON file for the weights."""

    run = run_by("recollect_papers.analyse.texts:run_attention")


@dataclass(frozen=True)
class Embeddings:
    """A t-SNE map of embeddings, and how far apart they are in the space itself.

    --show classes: prompts of classes, a colour a class, one map for each prefix (prefix conditioning, Fig. 4b-d, 7);
    prefixes: the same prompts, a colour a prefix (Fig. 4a); captions: prompts with the label prefix and captions with
    the caption prefix (Fig. 9); images: images of a label source and of a caption source (Fig. 8). Several models are
    drawn side by side.
    """

    models: Annotated[tuple[str, ...], Arg(place="MODEL")]
    """RUN/model, folders or hub ids."""
    show: Literal["classes", "prefixes", "captions", "images"] = "classes"
    """What to draw."""
    data: str | None = None
    """The source with the classes: a path, a hub id, or glyphs:labels."""
    captions: tuple[str, ...] = ()
    """Sources of captions, for --show captions and images."""
    prefixes: tuple[PrefixName, ...] = ()
    """For --show classes and prefixes; by default all that the model has."""
    classes: int = 20
    """At most this many classes, drawn at random."""
    templates: int = 80
    """At most this many of CLIP's 80 prompt templates."""
    samples: int = 500
    """At most this many captions, or images of each source."""
    split: str = "test"
    """Split of captions and images."""
    perplexity: float = 30.0
    """Neighbours that count in t-SNE."""
    seed: int = 0
    """Of what is drawn and of t-SNE."""
    out: Path = Path("embeddings.png")
    """The figure; its ending (.png, .pdf, .svg) says the format."""
    json: Path | None = None
    """A JSON file for the figures of the table."""

    run = run_by("recollect_papers.analyse.texts:run_embeddings")
