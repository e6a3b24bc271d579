"""``recollect export``: both towers of a model as ONNX files."""

from dataclasses import dataclass
from pathlib import Path

from recollect.commands.positionals import ModelPlace
from recollect.core.progress import output
from recollect.models import load_model
from recollect.models.export import export_onnx


@dataclass(frozen=True)
class Export:
    """Write both towers of a model as ONNX, with its tokenizer and what must be done to pictures."""

    model: ModelPlace
    """A model: RUN/model, the folder of a checkpoint, or a hub id."""
    out: Path = Path("exported")
    """A new folder."""

    def run(self) -> None:
        folder = export_onnx(load_model(self.model), self.out)
        output().print(f"exported: {folder}", highlight=False)
