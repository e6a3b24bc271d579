"""``recollect export``: a model as ONNX files, with the index it reads and the classifier it was taught."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from recollect.cli.fusion import FusionOptions
from recollect.cli.parser import Arg, say
from recollect.core.paths import check_writable
from recollect.core.validation import refuse


@dataclass(frozen=True)
class Export:
    """Write both towers of a model as ONNX, with its tokenizer and its image preprocessing.

    With --index and --fusion, lookup and fusion are part of the exported towers. With --classifier there is
    classifier.onnx too: pixels in, calibrated probabilities out.
    """

    model: Annotated[str | None, Arg(place="MODEL")] = None
    """A model: RUN/model, the folder of a checkpoint, or a hub id (default: the one that --classifier was taught with,
    or that embedded --index)."""
    out: Path = Path("exported")
    """A new folder."""
    classifier: Path | None = None
    """What `recollect classify --save` wrote, taught with the same model and index."""
    reading: Annotated[FusionOptions, Arg(flat=True)] = field(default_factory=FusionOptions)

    def run(self) -> None:
        """Open, write, and print where."""
        from recollect.classifiers.classifier import Classifier
        from recollect.classifiers.export import export_all
        from recollect.core.paths import beside
        from recollect.models import load_model

        refuse((self.reading.near is not None, "--near: is for evaluation; here nothing is tested."))
        check_writable(self.out, "--out", "folder")
        self.reading.check()
        classifier = Classifier.load(self.classifier) if self.classifier else None
        kept = beside(classifier.model.name, self.classifier or "") if classifier else self.reading.model
        name = self.model or kept
        refuse((not name, "missing: MODEL. Name a model, or a --classifier or --index that records its own."))
        encoder = self.reading.encoder(load_model(name, "cpu"))
        folder = export_all(encoder, self.out, classifier)
        say(f"exported: {folder}")
