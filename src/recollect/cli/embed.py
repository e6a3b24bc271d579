"""``recollect embed``: save embeddings of labeled data as .npy or Parquet."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from recollect.cli.evaluate import DataOptions, ModelOptions
from recollect.cli.fusion import FusionOptions
from recollect.cli.parser import Arg, say
from recollect.core.paths import check_writable, new_folder


@dataclass(frozen=True)
class Embed:
    """Save embeddings of labeled data (support images, query images and class texts) for use in other programs.

    `recollect evaluate few-shot --features OUT/NAME/images.parquet --texts OUT/NAME/texts.parquet` reads them.
    """

    model: Annotated[str | None, Arg(place="MODEL")] = None
    """RUN/model, the folder of a CLIP-type checkpoint, or a hub id (default: the starter)."""
    data: Annotated[DataOptions, Arg(flat=True)] = field(default_factory=DataOptions)
    out: Path = Path("features")
    """Output folder, with one subfolder per data set."""
    form: Literal["parquet", "npy"] = "parquet"
    """Write images.parquet and texts.parquet, or .npy files of vectors and of labels."""
    device: str | None = None
    """Device, e.g. cpu or cuda (default: the fastest available)."""
    fusion_options: Annotated[FusionOptions, Arg(flat=True)] = field(default_factory=FusionOptions)

    def run(self) -> None:
        """Embed the data, write the files, and print their folders."""
        from recollect.cli.defaults import default_model
        from recollect.cli.evaluations import open_data, prefix_for, require_data
        from recollect.core.places import model_name
        from recollect.evaluation.own_features import write_embedded
        from recollect.models import load_model

        require_data(self.data)
        self.fusion_options.check()
        check_writable(self.out, "--out", "folder")
        opened = open_data(self.data, "few-shot")
        folders = [new_folder(self.out / task.name.replace("/", "-"), "embedded task") for task in opened.tasks]
        place = self.model or default_model()
        encoder = load_model(place, self.device)
        for task, folder in zip(opened.tasks, folders, strict=True):
            read = self.fusion_options.encoder(encoder, task.query)
            name = self.fusion_options.name(model_name(place, encoder.fingerprint), read)
            write_embedded(read, task, folder, model=name, form=self.form, prefix=prefix_for(ModelOptions(), read))
            say(f"embeddings: {folder}")
