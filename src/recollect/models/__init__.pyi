"""Names that `__init__.py` imports on first use."""

from .dual import DualEncoder as DualEncoder
from .loading import load_model as load_model
from .presets import PRESETS as PRESETS
from .presets import build_model as build_model
from .pretrained import PRETRAINED as PRETRAINED
from .transformers.encoder import TransformersEncoder as TransformersEncoder
