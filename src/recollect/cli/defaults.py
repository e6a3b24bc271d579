"""The model and the split that commands use where no option names one."""

import sys
from functools import cache

from recollect.cli.parser import warn


@cache
def default_model() -> str:
    """The starter; the first call says on standard error that there are better ones."""
    print(
        "model: starter, which comes with recollect. Where a model hub is reachable, "
        "--model google/siglip2-base-patch16-224 finds more.",
        file=sys.stderr,
    )
    return "starter"


def split_for(spec: str, split: str | None, usual: str | None = None) -> str | None:
    """The split to open a source with; None where its address names one (``photos.csv?split=val``), which goes first.

    Args:
        spec: the source's address.
        split: the value of --split.
        usual: the default of --split.
    """
    from recollect.data.sources import split_of

    named = split_of(spec)
    if named is None:
        return split
    if split not in (None, named, usual):
        warn(f"--split {split} has no effect on {spec}, whose address names its split")
    return None
