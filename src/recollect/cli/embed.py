"""``recollect embed``: the embeddings of a task or of any pictures as .npy or Parquet."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from recollect.cli.evaluate import DataOptions, ModelOptions
from recollect.cli.fusion import FusionOptions
from recollect.cli.parser import Arg, say
from recollect.core.paths import check_writable, new_folder


@dataclass(frozen=True)
class Embed:
    """Write the embeddings of labeled sets: examples, tested pictures and class texts, for any other program.

    `recollect evaluate few-shot --features OUT/NAME/images.parquet --texts OUT/NAME/texts.parquet` reads them.
    """

    model: Annotated[str, Arg(place="MODEL")]
    """RUN/model, any folder of a CLIP-type checkpoint, or a hub id."""
    data: Annotated[DataOptions, Arg(flat=True)] = field(default_factory=DataOptions)
    out: Path = Path("features")
    """Folder with a subfolder for each set."""
    form: Literal["parquet", "npy"] = "parquet"
    """images.parquet and texts.parquet, or .npy files of rows and of labels."""
    device: str | None = None
    """Where to compute, e.g. cpu or cuda (default: the fastest there is)."""
    reading: Annotated[FusionOptions, Arg(flat=True)] = field(default_factory=FusionOptions)

    def run(self) -> None:
        """Embed, write, and print where."""
        from recollect.cli.evaluations import open_data, prefix_for, require_data
        from recollect.core.places import model_name
        from recollect.evaluation.own_features import write_embedded
        from recollect.models import load_model

        require_data(self.data)
        self.reading.check()
        check_writable(self.out, "--out", "folder")
        opened = open_data(self.data, "few-shot")
        folders = [new_folder(self.out / task.name.replace("/", "-"), "embedded task") for task in opened.tasks]
        encoder = load_model(self.model, self.device)
        for task, folder in zip(opened.tasks, folders, strict=True):
            read = self.reading.encoder(encoder, task.query)
            name = self.reading.name(model_name(self.model, encoder.fingerprint), read)
            write_embedded(read, task, folder, model=name, form=self.form, prefix=prefix_for(ModelOptions(), read))
            say(f"embeddings: {folder}")
