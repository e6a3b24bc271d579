"""The model of commands that name none."""

import sys
from functools import cache


@cache
def default_model() -> str:
    """The starter; the first call says on standard error that there are better ones."""
    print(
        "model: starter, which comes with recollect. Where a model hub is reachable, "
        "--model google/siglip2-base-patch16-224 finds more.",
        file=sys.stderr,
    )
    return "starter"
