"""Dual encoders: any transformers checkpoint of the CLIP family, or a model built from a preset.

Modules of this package write `transformers.X` at the point of use and never evaluate annotations: importing the
architectures takes seconds, so it happens when a checkpoint is opened or built, not when a command starts.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
