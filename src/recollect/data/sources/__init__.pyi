"""Names that `__init__.py` imports on first use."""

from .address import split_of as split_of
from .specs import open_source as open_source
from .specs import split_names as split_names
