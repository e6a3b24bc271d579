"""Default model, split and columns of commands."""

import sys
from functools import cache

from recollect.cli.parser import Arg, warn


@cache
def default_model() -> str:
    """Return the starter; the first call prints on standard error that larger models are better."""
    print(
        "model: starter (small, included in recollect). With access to a model hub, "
        "--model google/siglip2-base-patch16-224 gives better results.",
        file=sys.stderr,
    )
    return "starter"


def column_options(*roles: str) -> Arg:
    """Return the settings of a field of `Columns`: an option such as ``--image-column`` for each of these roles."""
    return Arg(shown={role: f"{role.replace('_', '-')}-column" for role in roles})


def split_for(spec: str, split: str | None, usual: str | None = None) -> str | None:
    """Return the split to open a source with; None if its address has one (``photos.csv?split=val``), which wins.

    Args:
        spec: address of the source.
        split: value of --split.
        usual: default of --split.
    """
    from recollect.data.sources import split_of

    named = split_of(spec)
    if named is None:
        return split
    if split not in (None, named, usual):
        warn(f"--split {split} has no effect on {spec}, whose address has a split")
    return None
