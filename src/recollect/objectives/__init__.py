"""What training minimizes: pure functions of embeddings, and small modules that own their temperatures.

Names are imported when they are first used, so that the options of an objective do not load torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
