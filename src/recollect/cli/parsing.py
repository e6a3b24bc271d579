"""Options from the words of a command line."""

from collections.abc import Sequence
from typing import Any, TypeVar

import tyro

T = TypeVar("T")


def parse_options(
    kind: type[T], words: Sequence[str], prog: str, config: tuple[Any, ...] = (), default: T | None = None
) -> T:
    """``kind`` as ``words`` set it, or ``default``, an instance of it, where they say nothing.

    Help is in docstrings: looking for comments, tyro would read the source of every class, a third of its time.

    Raises:
        SystemExit: help was asked for, or an option is wrong.
    """
    given: dict[str, Any] = {} if default is None else {"default": default}
    return tyro.cli(kind, args=words, prog=prog, config=(*config, tyro.conf.HelptextFromCommentsOff), **given)
