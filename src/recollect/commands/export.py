"""``recollect export``: a model as ONNX files, with the memory it reads and the classifier it was taught."""

from dataclasses import dataclass, field
from pathlib import Path

import tyro

from recollect.apps.classify.classifier import Classifier
from recollect.apps.export import export_all
from recollect.commands.memory_options import MemoryOptions
from recollect.commands.positionals import ModelPlace
from recollect.core.errors import UserError
from recollect.core.files import check_writable
from recollect.core.progress import output
from recollect.models import load_model


@dataclass(frozen=True)
class Export:
    """Write both towers of a model as ONNX, with its tokenizer and what must be done to pictures.

    With --memory and --fusion search and fusion stand behind the towers, in the same files. With --classifier there is
    classifier.onnx too: pixels in, calibrated probabilities out.
    """

    model: ModelPlace
    """A model: RUN/model, the folder of a checkpoint, or a hub id."""
    out: Path = Path("exported")
    """A new folder."""
    classifier: Path | None = None
    """What `recollect classify --save` wrote; taught with the same model, and memory if one is read."""
    reading: tyro.conf.OmitArgPrefixes[MemoryOptions] = field(default_factory=MemoryOptions)

    def run(self) -> None:
        """Open, write, and say where."""
        if self.reading.near is not None:
            raise UserError("--near: is for evaluation; here nothing is tested.")
        check_writable(self.out, "--out")
        classifier = Classifier.load(self.classifier) if self.classifier else None
        encoder = self.reading.apply(load_model(self.model, "cpu"))
        folder = export_all(encoder, self.out, classifier)
        output().print(f"exported: {folder}", highlight=False, soft_wrap=True)
