"""``recollect serve``: an index in the browser."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from recollect.cli.parser import Arg


@dataclass(frozen=True)
class Serve:
    """Open a folder of pictures, or an index, in the browser: search, browse, label pictures.

    A folder of pictures is indexed while its page is open; pictures that are indexed already can be searched. Its index
    is kept in your data directory, so that the same folder opens at once the next time, and it follows changes of the
    folder.

    Everything stays on this machine: nothing is fetched from elsewhere, and nothing is sent anywhere. Labels are saved
    with every click.
    """

    index: Annotated[str, Arg(place="FOLDER|INDEX")]
    """A folder of pictures, an index's folder, or milvus://host:port/collection."""
    model: str | None = None
    """Model to embed with (default: the one the index was built with; for a new folder the small one of recollect)."""
    host: str = "127.0.0.1"
    """Address to listen on; beyond this machine only with --token."""
    port: int = 8517
    """Port to listen on; 0 takes any free port."""
    token: str | None = None
    """A secret of at least 16 letters and digits that a browser must know; needed when others can reach the page."""
    labels: Path | None = None
    """File for labels (default: INDEX/annotations.sqlite)."""
    out: Path | None = None
    """Folder for saved classifiers (default: INDEX/page/classifiers)."""
    open: bool = True
    """Do not open the browser."""

    def run(self) -> None:
        """Serve until interrupted."""
        from recollect.web.folder import pictures_in

        pictures_in(self.index)  # reports a wrong place before what takes seconds to import
        from recollect.web import serve

        serve(self.index, self.model, host=self.host, port=self.port, token=self.token, labels=self.labels,
              out=self.out, open_browser=self.open)  # fmt: skip
