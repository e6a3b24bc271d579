"""``recollect serve``: an index in the browser."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from recollect.cli.parser import Arg


@dataclass(frozen=True)
class Serve:
    """Open an index in the browser: search, browse, label pictures, save labels as a classifier.

    Everything stays on this machine: nothing is fetched from elsewhere, and nothing is sent anywhere. Labels are saved
    in INDEX/annotations.sqlite with every click.
    """

    index: Annotated[str, Arg(place="INDEX")]
    """Its folder, or milvus://host:port/collection."""
    model: str | None = None
    """Model to embed queries with (default: the one the index was built with)."""
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
    open: bool = False
    """Open the browser."""

    def run(self) -> None:
        """Serve until interrupted."""
        from recollect.index import Index
        from recollect.web import serve
        from recollect.web.server import check_address

        check_address(self.host, self.port, self.token)
        index = Index.open(self.index, self.model)
        serve(index, host=self.host, port=self.port, token=self.token, labels=self.labels, out=self.out,
              open_browser=self.open)  # fmt: skip
