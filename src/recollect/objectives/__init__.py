"""Training objectives: pure loss functions of embeddings, and small modules with learned temperatures.

Names are imported on first use, so reading an objective's options does not load torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
