"""recollect: vision-language models that learn to look things up.

What stands here is the package's front door: these names stay where they are. Each is imported when it is first used,
from the place that `__init__.pyi` names, so that ``import recollect`` costs nothing.
"""

import lazy_loader

__version__ = "0.2.0"

__getattr__, _names, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]


def __dir__() -> list[str]:
    return [*_names(), "__version__"]
