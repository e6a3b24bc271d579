"""recollect: vision-language models that learn to look things up.

These names are the stable public interface. Each is imported on first use from the module given in `__init__.pyi`,
which keeps ``import recollect`` fast.
"""

import lazy_loader

__version__ = "0.2.0"

__getattr__, _names, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]


def __dir__() -> list[str]:
    return [*_names(), "__version__"]
