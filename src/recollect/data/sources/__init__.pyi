"""What `__init__.py` imports when it is first used."""

from .address import split_of as split_of
from .specs import open_source as open_source
from .specs import split_names as split_names
