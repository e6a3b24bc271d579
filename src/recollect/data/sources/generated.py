"""Generated sources, addressed as WORLD:NAME and provided by plugins."""

from collections.abc import Callable

from recollect.core.plugins import Table
from recollect.core.types import Kind, Source
from recollect.core.validation import refuse

GENERATORS: Table[Callable[[str, str | None], Source]] = Table("sources")
"""Functions from an address and a split to a source, by world."""


def is_generated(spec: str) -> bool:
    """Whether an address has the form of a generated source, which may not exist."""
    name, colon, _ = spec.partition(":")
    return bool(colon) and name.isidentifier() and name in GENERATORS


def open_generated(spec: str, split: str | None, kind: Kind | None) -> Source:
    """Open a generated source.

    Raises:
        UserError: the name or split is unknown, or the source is not of ``kind``.
    """
    source = GENERATORS[spec.partition(":")[0]](spec, split)
    refuse((kind not in (None, source.kind), f"{spec}: has {source.kind}s, not {kind}s"))
    return source
