"""``recollect analyse attention|embeddings``: what a prefix does to a text, as figures a paper could print."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from rich.table import Table

from recollect.cli.positionals import ModelPlaces
from recollect.cli.unread import split_for
from recollect.core.errors import UserError
from recollect.core.files import check_writable, write_json
from recollect.core.progress import output
from recollect.core.seeding import numpy_generator
from recollect.core.types import Encoder, Kind, Source
from recollect.data.prompts import GENERAL_TEMPLATES
from recollect.data.sources import open_source
from recollect.data.sources.derived import Subset
from recollect.data.sources.generated import is_generated
from recollect.evaluation.features import class_prompts
from recollect.evaluation.language import AttentionMap, attention_map, in_plane, own_prefixes, reading_name
from recollect.evaluation.reports.maps import attention_figure, clouds
from recollect.evaluation.reports.panels import (
    Measured,
    Panel,
    captions_panel,
    classes_panel,
    images_panel,
    prefixes_panel,
)
from recollect.evaluation.reports.plots import save_figure
from recollect.evaluation.tasks.classification import ClassificationTask, Division, keep_classes
from recollect.evaluation.tasks.opening import Selection, open_tasks
from recollect.models import load_model

_Reading = Literal["label", "caption", "none"]
FIGURE_ENDINGS = (".png", ".pdf", ".svg")


def _checked(out: Path) -> Path:
    if out.suffix.lower() not in FIGURE_ENDINGS:
        raise UserError(
            f"--out {out}: the ending says the format of the figure. Choose one of: {', '.join(FIGURE_ENDINGS)}."
        )
    check_writable(out, "--out")
    return out


def _readings(model: Encoder, asked: Sequence[_Reading]) -> list[Kind | None]:
    """The prefixes to read with: those asked for, or all that the model has; a model without any has one reading."""
    own = own_prefixes(model)
    if not own:
        return [None]
    return [None if name == "none" else name for name in asked or own]


@dataclass(frozen=True)
class Attention:
    """Where the token that becomes a text's embedding looks, layer by layer, with each prefix side by side.

    Weights are means over heads; pieces of a word are put together. The table says how many of the text's own words a
    layer looks at (exp of the entropy over them).
    """

    models: ModelPlaces
    """RUN/model, folders or hub ids; a second one without prefix tokens stands beside the first."""
    texts: tuple[str, ...] = ("a sculpture of an airplane",)
    """What to read; a row of the figure each."""
    prefixes: tuple[_Reading, ...] = ()
    """In this order; by default all that the model has."""
    out: Path = Path("attention.png")
    """The figure; its ending (.png, .pdf, .svg) says the format."""
    json: Path | None = None
    """A JSON file for the weights."""

    def run(self) -> None:
        """Look, draw, print and write."""
        console = output()
        _checked(self.out)
        if not self.models or not self.texts:
            raise UserError("name a model, and --texts TEXT ...")
        encoders = [(name, load_model(name)) for name in self.models]
        rows = [[shown for name, model in encoders for shown in self._maps(name, model, text)] for text in self.texts]
        save_figure(attention_figure([[(title, shown) for title, _, shown in row] for row in rows]), self.out)
        layers = max(len(shown.weights) for row in rows for _, _, shown in row)
        table = Table("text", "read with", *(f"words, layer {number}" for number in range(1, layers + 1)))
        for row in rows:
            for title, _, shown in row:
                table.add_row(shown.text, title, *(f"{value:.1f}" for value in shown.spread))
        console.print(table)
        console.print(f"figure: {self.out}", highlight=False, soft_wrap=True)
        if self.json:
            write_json(self.json, [_as_json(name, shown) for row in rows for _, name, shown in row])

    def _maps(self, name: str, model: Encoder, text: str) -> list[tuple[str, str, AttentionMap]]:
        return [
            (reading_name(model, prefix), name, attention_map(model, text, prefix))
            for prefix in _readings(model, self.prefixes)
        ]


def _as_json(name: str, shown: AttentionMap) -> dict[str, object]:
    weights = [[round(float(weight), 6) for weight in layer] for layer in shown.weights]
    return {"model": name, "text": shown.text, "prefix": shown.prefix, "words": shown.words, "layers": weights}


@dataclass(frozen=True)
class Embeddings:
    """A t-SNE map of embeddings, and how far apart they are in the space itself.

    --show classes: prompts of classes, a colour a class, one map for each prefix (prefix conditioning, Fig. 4b-d, 7);
    prefixes: the same prompts, a colour a prefix (Fig. 4a); captions: prompts with the label prefix and captions with
    the caption prefix (Fig. 9); images: images of a label source and of a caption source (Fig. 8). Several models are
    drawn side by side.
    """

    models: ModelPlaces
    """RUN/model, folders or hub ids."""
    show: Literal["classes", "prefixes", "captions", "images"] = "classes"
    """What to draw."""
    data: str | None = None
    """The source with the classes: a path, a hub id, or glyphs:labels."""
    captions: tuple[str, ...] = ()
    """Sources of captions, for --show captions and images."""
    prefixes: tuple[_Reading, ...] = ()
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

    def run(self) -> None:
        """Embed, draw, print and write."""
        console = output()
        _checked(self.out)
        if not self.models or self.data is None:
            raise UserError("name a model, and --data SOURCE with classes")
        if self.show in ("captions", "images") and not self.captions:
            raise UserError(f"--show {self.show} compares with captions. Name their source with --captions SOURCE.")
        task = self._task(self.data)
        panels = [(name, panel) for name in self.models for panel in self._panels(name, load_model(name), task)]
        save_figure(clouds([panel.cloud for _, panel in panels]), self.out)
        rows: list[Measured] = [{"model": name, **panel.measured} for name, panel in panels]
        table = Table(*rows[0])
        for row in rows:
            table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()))
        console.print(table)
        console.print(f"figure: {self.out}", highlight=False, soft_wrap=True)
        if self.json:
            write_json(self.json, rows)

    def _task(self, spec: str) -> ClassificationTask:
        selection = Selection((spec,), division=Division(support=None), templates=GENERAL_TEMPLATES[: self.templates])
        task = open_tasks(selection, "zero-shot").tasks[0]
        if len(task.class_names) > self.classes:
            drawn = numpy_generator("classes", self.seed).permutation(len(task.class_names))[: self.classes]
            task = keep_classes(task, np.sort(drawn))
        return task

    def _panels(self, name: str, model: Encoder, task: ClassificationTask) -> list[Panel]:
        prompts, readings = class_prompts(task), _readings(model, self.prefixes)
        texts = [text for each in prompts for text in each]
        plane = partial(in_plane, perplexity=self.perplexity, seed=self.seed)
        if self.show == "classes":
            return [classes_panel(model, prompts, prefix, plane, task.class_names) for prefix in readings]
        if self.show == "prefixes":
            if len(readings) < 2:
                raise UserError(f"{name}: --show prefixes compares two or more, and this model has {len(readings)}")
            return [prefixes_panel(model, texts, readings, plane)]
        if self.show == "captions":
            captions = [text for source in self._sources() for text in _texts(source)][: self.samples]
            return [captions_panel(model, self._some(texts), captions, plane)]
        return [images_panel(model, self._subset(task.query, self.samples), self._sources(), plane)]

    def _some(self, texts: list[str]) -> list[str]:
        drawn = numpy_generator("texts", self.seed).permutation(len(texts))[: self.samples]
        return [texts[index] for index in np.sort(drawn)]

    def _sources(self) -> list[Source]:
        each = max(1, self.samples // len(self.captions))
        opened = [
            open_source(spec, split=None if is_generated(spec) else split_for(spec, self.split, "test"), kind="caption")
            for spec in self.captions
        ]
        return [self._subset(source, each) for source in opened]

    def _subset(self, source: Source, count: int) -> Source:
        generator = numpy_generator("samples", self.seed)
        count = min(count, len(source))
        return Subset(source, np.sort(generator.choice(len(source), count, replace=False, shuffle=False)))


def _texts(source: Source) -> list[str]:
    return [text for index in range(len(source)) for text in source.texts(index)[:1]]
