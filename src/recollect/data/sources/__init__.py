"""Sources of samples: opened from a path or the hub, filtered, split, and read row by row."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
