"""``recollect serve``: search, browse and label pictures in the browser."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from recollect.cli.parser import Arg


@dataclass(frozen=True)
class Serve:
    """Open a folder of pictures or an index in the browser, to search, browse and label pictures.

    A folder is indexed in the background, and the pictures indexed so far can be searched. The index is saved in your
    data directory, so the folder opens immediately the next time, and it is updated when the folder changes.

    Everything stays on this machine: the page loads nothing from the internet and sends nothing to it. Every label is
    saved immediately.
    """

    index: Annotated[str, Arg(place="FOLDER|INDEX")]
    """Folder of pictures, folder of an index, or milvus://host:port/collection."""
    model: str | None = None
    """Model to embed with (default: the model of the index, or the starter for a new folder)."""
    host: str = "127.0.0.1"
    """Address to listen on; any address that other machines can reach requires --token."""
    port: int = 8517
    """Port to listen on; 0 chooses a free port."""
    token: str | None = None
    """Secret that browsers must send, at least 16 letters and digits; required if other machines can reach the page."""
    labels: Path | None = None
    """File for labels (default: INDEX/annotations.sqlite)."""
    out: Path | None = None
    """Folder for saved classifiers (default: INDEX/page/classifiers)."""
    open: bool = True
    """Do not open the browser."""

    def run(self) -> None:
        """Serve until interrupted."""
        from recollect.web.folder import pictures_in

        pictures_in(self.index)  # reports a wrong path before the slow import
        from recollect.web import serve

        serve(self.index, self.model, host=self.host, port=self.port, token=self.token, labels=self.labels,
              out=self.out, open_browser=self.open)  # fmt: skip
