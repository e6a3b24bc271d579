"""Sample sources: opening them from a path or the hub, filtering, splitting and reading."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
