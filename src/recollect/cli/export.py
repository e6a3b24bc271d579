"""``recollect export``: export a model to ONNX, with its index and classifier."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from recollect.cli.fusion import FusionOptions
from recollect.cli.parser import Arg, say
from recollect.core.paths import check_writable
from recollect.core.validation import refuse


@dataclass(frozen=True)
class Export:
    """Export both towers of a model to ONNX, with tokenizer and image preprocessing.

    With --index and --fusion, the exported towers include lookup and fusion. With --classifier, classifier.onnx maps
    pixels to calibrated probabilities.
    """

    model: Annotated[str | None, Arg(place="MODEL")] = None
    """RUN/model, the folder of a checkpoint, or a hub id (default: the model of --classifier or --index)."""
    out: Path = Path("exported")
    """Output folder; must not exist."""
    classifier: Path | None = None
    """Classifier saved by `recollect classify --save` with the same model and index."""
    fusion_options: Annotated[FusionOptions, Arg(flat=True)] = field(default_factory=FusionOptions)

    def run(self) -> None:
        """Open the model, export it, and print the folder."""
        from recollect.classifiers.classifier import Classifier
        from recollect.classifiers.export import export_all
        from recollect.core.paths import resolve_stored
        from recollect.models import load_model

        refuse((self.fusion_options.near is not None, "--near: only for evaluation. Remove it."))
        check_writable(self.out, "--out", "folder")
        self.fusion_options.check()
        classifier = Classifier.load(self.classifier) if self.classifier else None
        recorded = (
            resolve_stored(classifier.model.name, self.classifier or "") if classifier else self.fusion_options.model
        )
        name = self.model or recorded
        refuse((not name, "missing: MODEL. Give a model, or a --classifier or --index that records its model."))
        encoder = self.fusion_options.encoder(load_model(name, "cpu"))
        folder = export_all(encoder, self.out, classifier)
        say(f"exported: {folder}")
