"""What `__init__.py` imports when it is first used."""

from .opening import open_source as open_source
from .opening import split_names as split_names
from .opening import split_of as split_of
