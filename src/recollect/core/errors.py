"""The one kind of error that a user can mend."""


class UserError(Exception):
    """Bad input: the message says in one line what is wrong, where, and what to do.

    The command line prints it without a traceback and exits with status 2. Programming errors stay
    ordinary exceptions (``ValueError``, ``TypeError``); raise this one only where a person's input,
    file or option is at fault.
    """
