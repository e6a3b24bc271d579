"""Sources that generate their samples, addressed as WORLD:NAME. Plugins provide them."""

from collections.abc import Callable

from recollect.core.plugins import Table
from recollect.core.types import Kind, Source
from recollect.core.validation import refuse

GENERATORS: Table[Callable[[str, str | None], Source]] = Table("sources")
"""By world: maps an address and a split to a source."""


def is_generated(spec: str) -> bool:
    """Whether an address names a generated source, existing or not."""
    name, colon, _ = spec.partition(":")
    return bool(colon) and name.isidentifier() and name in GENERATORS


def open_generated(spec: str, split: str | None, kind: Kind | None) -> Source:
    """Open a generated source.

    Raises:
        UserError: unknown name or split, or a source of the other kind.
    """
    source = GENERATORS[spec.partition(":")[0]](spec, split)
    refuse((kind not in (None, source.kind), f"{spec}: has {source.kind}s, not {kind}s"))
    return source
