"""The page: an index in the browser, to search, sort and label."""

from recollect.web.server import Page, serve

__all__ = ["Page", "serve"]
