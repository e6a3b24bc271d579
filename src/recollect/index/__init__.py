"""Index of pictures: search, filter, look up nearest neighbors, and keep in sync with a source."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
