"""``recollect embed``: the embeddings of a task or of any pictures as .npy or Parquet."""

from dataclasses import dataclass, field
from pathlib import Path

import tyro

from recollect.cli.evaluate import DataOptions, ModelOptions
from recollect.cli.memory_options import MemoryOptions
from recollect.cli.memory_reading import reading, reading_name
from recollect.cli.positionals import ModelPlace
from recollect.core.files import check_writable
from recollect.core.places import model_name
from recollect.core.progress import output
from recollect.evaluation.embedded import FileForm, write_embedded
from recollect.models import load_model


@dataclass(frozen=True)
class Embed:
    """Write the embeddings of labelled sets: examples, tested pictures and class texts, for any other program.

    `recollect evaluate few-shot --features OUT/NAME/images.parquet --texts OUT/NAME/texts.parquet` reads them.
    """

    model: ModelPlace
    """RUN/model, any folder of a CLIP-type checkpoint, or a hub id."""
    data: tyro.conf.OmitArgPrefixes[DataOptions] = field(default_factory=DataOptions)
    out: Path = Path("features")
    """A folder for each set goes into this one."""
    form: FileForm = "parquet"
    """images.parquet and texts.parquet, or .npy files with labels beside them."""
    device: str | None = None
    """Where to compute; the best there is by default."""
    reading: tyro.conf.OmitArgPrefixes[MemoryOptions] = field(default_factory=MemoryOptions)

    def run(self) -> None:
        """Embed, write, and say where."""
        self.data.check()
        self.reading.check()
        check_writable(self.out, "--out")
        opened = self.data.open("few-shot")
        encoder = load_model(self.model, self.device)
        for task in opened.tasks:
            read = reading(self.reading, encoder, task.query)
            name = reading_name(self.reading, model_name(self.model, encoder.fingerprint), read)
            prefix = ModelOptions(()).prefix_for(read)
            folder = self.out / task.name.replace("/", "-")
            write_embedded(read, task, folder, model=name, form=self.form, prefix=prefix)
            output().print(f"embeddings: {folder}", highlight=False, soft_wrap=True)
