"""Dual encoders: any transformers checkpoint of the CLIP family, or one built from a preset.

Here `transformers.X` is written where X is used, and annotations are not evaluated: its architectures take seconds to
import, and are imported when a checkpoint is opened or built, not when a command starts.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
