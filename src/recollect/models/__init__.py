"""Dual encoders: any transformers checkpoint of the CLIP family, or one built from a preset.

Here `transformers.X` is written where X is used, and annotations are not evaluated: its architectures take seconds to
import, and are imported when a checkpoint is opened or built, not when a command starts.
"""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from recollect.models.dual import DualEncoder
    from recollect.models.loading import load_model
    from recollect.models.presets import PRESETS, build_model
    from recollect.models.pretrained import PRETRAINED
    from recollect.models.transformers.encoder import TransformersEncoder

__getattr__, _, _ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "dual": ["DualEncoder"],
        "loading": ["load_model"],
        "presets": ["PRESETS", "build_model"],
        "pretrained": ["PRETRAINED"],
        "transformers.encoder": ["TransformersEncoder"],
    },
)

__all__ = [
    "PRESETS",
    "PRETRAINED",
    "DualEncoder",
    "TransformersEncoder",
    "build_model",
    "load_model",
]
