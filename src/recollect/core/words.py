"""Format and normalize numbers, names and values for messages and tables."""

import re
import unicodedata

_SURROGATE = re.compile("[\ud800-\udfff]")


def counted(number: int, noun: str) -> str:
    """Format a number with its noun.

    >>> counted(1, "row"), counted(2000, "row"), counted(3, "class")
    ('1 row', '2,000 rows', '3 classes')
    """
    return f"{number:,} {noun}{'' if number == 1 else 'es' if noun.endswith('s') else 's'}"


def shortened(value: object) -> str:
    """Return the ``repr`` of a value, shortened to at most 80 characters.

    >>> shortened({"bytes": b"0123456789" * 1000})[-8:]
    "456789'}"
    """
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:70]}…{shown[-9:]}"


def is_utf8(text: str) -> bool:
    """Whether a text can be encoded as UTF-8, that is, has no lone surrogates.

    >>> is_utf8("Zürich"), is_utf8("Z\\udcfcrich")
    (True, False)
    """
    return text.isascii() or not _SURROGATE.search(text)


def normalized_name(name: str) -> str:
    """Normalize a name, so that names are equal if they differ only in case, spaces or Unicode form."""
    return unicodedata.normalize("NFKC", " ".join(name.split()).casefold())
