"""Errors that users can fix, shown as one line without a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager

_MAX_REASON = 200  # characters


class UserError(Exception):
    """Invalid user input. The message says in one line what is wrong, where, and what to do.

    The command line prints the message without a traceback and exits with status 2. Raise it only if the user's
    input, file or option is at fault; programming errors stay ordinary exceptions (``ValueError``, ``TypeError``).
    """


def one_line(error: BaseException) -> str:
    """Return the message of another library's exception (or its type) as one line of at most 200 characters."""
    full = getattr(error, "strerror", None) if isinstance(error, UserError) else None  # of a `FullDiskError`
    text = " ".join(str(full or getattr(error, "reason", "") or error).split()) or type(error).__name__
    return (text if len(text) < _MAX_REASON else f"{text[:_MAX_REASON]}…").rstrip(".")


@contextmanager
def user_errors(
    message: str, *kinds: type[Exception], then: str = "", raises: type[UserError] = UserError
) -> Iterator[None]:
    """Convert exceptions from other libraries into user errors of the form ``message (reason)then``.

    Args:
        message: what went wrong, and where.
        kinds: exception types to convert; all except `UserError` by default.
        then: what to do, appended after the reason.
        raises: exception class to raise.
    """
    try:
        yield
    except Exception as error:
        if not (isinstance(error, kinds) if kinds else not isinstance(error, UserError)):
            raise
        raise raises(f"{message} ({one_line(error)}){then}") from error
