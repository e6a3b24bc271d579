"""Errors that users can fix, as one line without a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager

_LONGEST_REASON = 200


class UserError(Exception):
    """Bad input: the message says in one line what is wrong, where, and what to do.

    The command line prints it without a traceback and exits with status 2. Programming errors stay
    ordinary exceptions (``ValueError``, ``TypeError``); raise this one only where a person's input,
    file or option is at fault.
    """


def one_line(error: BaseException) -> str:
    """The message of another library's exception on one line of at most 200 characters; its type if it has none."""
    full = getattr(error, "strerror", None) if isinstance(error, UserError) else None  # of a `FullDiskError`
    text = " ".join(str(full or getattr(error, "reason", "") or error).split()) or type(error).__name__
    return (text if len(text) < _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…").rstrip(".")


@contextmanager
def user_errors(
    message: str, *kinds: type[Exception], then: str = "", raises: type[UserError] = UserError
) -> Iterator[None]:
    """Turn exceptions of other libraries into user errors: ``message (reason)then``.

    Args:
        message: what went wrong, and where.
        kinds: exceptions to replace; by default all but `UserError`.
        then: follows the reason: what to do.
        raises: the class to raise.
    """
    try:
        yield
    except Exception as error:
        if not (isinstance(error, kinds) if kinds else not isinstance(error, UserError)):
            raise
        raise raises(f"{message} ({one_line(error)}){then}") from error
