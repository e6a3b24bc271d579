"""``recollect analyse``: how a model's embeddings use their space."""

from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from recollect.cli.positionals import ModelPlaces
from recollect.cli.unread import split_for
from recollect.core.errors import UserError
from recollect.core.files import check_writable, write_json
from recollect.core.places import model_name, public_names
from recollect.core.progress import output
from recollect.data.sources import open_source
from recollect.data.sources.derived import corpus
from recollect.evaluation.analysis import energy_outside, text_span
from recollect.evaluation.features import image_features
from recollect.models import load_model

MOST_CAPTIONS = 2000


@dataclass(frozen=True)
class Span:
    """The share of image embeddings' energy that lies outside the span of the captions.

    Training with captions alone hardly touches these directions, and the context objective trains them: the share says
    what there is for context to clean up, and not what that gains. On real images, with a locked tower, it is about a
    tenth, and context gains there (docs/results.md).
    """

    models: ModelPlaces
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

    def run(self) -> None:
        """Measure, print and write."""
        if not self.models or not self.captions or not self.data:
            raise UserError("name a model, --captions SOURCE ... and --data SOURCE ...")
        check_writable(self.out, "--out")
        texts = [
            text
            for spec in self.captions
            for text in list(corpus(open_source(spec, kind="caption"), MOST_CAPTIONS))[:MOST_CAPTIONS]
        ]
        data = public_names(self.data)
        table = Table("model", "width", "rank of the span", *(f"outside, {called}" for called in data.values()))
        rows = []
        for name in self.models:
            model = load_model(name)
            span = text_span(model.embed_texts(list(dict.fromkeys(texts))).numpy(), self.share)
            outside = {
                called: energy_outside(
                    image_features(model, open_source(spec, split=split_for(spec, self.split, "test"))).images, span
                )
                for spec, called in data.items()
            }
            called = model_name(name, model.fingerprint)
            rows.append({"model": called, "width": model.width, "rank": len(span), "outside": outside})
            table.add_row(
                called, str(model.width), str(len(span)), *(f"{100 * each:.1f} %" for each in outside.values())
            )
        output().print(table)
        if self.out:
            write_json(self.out, rows)
