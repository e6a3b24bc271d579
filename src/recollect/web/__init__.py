"""The web page: search, browse and label an index in the browser."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from recollect.web.server import Page, serve

__getattr__, _, _ = lazy_loader.attach(__name__, submod_attrs={"server": ["Page", "serve"]})

__all__ = ["Page", "serve"]
