"""Which options somebody wrote on the command line: what is written is meant, also where it is what holds anyway."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

_given: ContextVar[frozenset[str]] = ContextVar("given", default=frozenset())


def option_of(word: str) -> str:
    """The option that a word names, as Python calls it: ``--data.broken-share=0.1`` is ``data.broken_share``."""
    return word.partition("=")[0].removeprefix("--").replace("-", "_")


@contextmanager
def options_given(words: Sequence[str]) -> Iterator[None]:
    """Within, `is_given` knows the options among the words of a command line."""
    named = [option_of(word) for word in words if word.startswith("--")]
    parts = (name.rpartition(".") for name in named)
    switched_off = [room + dot + name.removeprefix("no_") for room, dot, name in parts]
    token = _given.set(frozenset((*named, *switched_off)))
    try:
        yield
    finally:
        _given.reset(token)


def is_given(name: str) -> bool:
    """Whether somebody wrote an option, ``episode.k``; from Python nobody does, and only its value can tell."""
    return name in _given.get()
