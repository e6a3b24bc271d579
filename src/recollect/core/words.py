"""Numbers and names in words."""

import unicodedata


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "row"), counted(2000, "row"), counted(3, "class")
    ('1 row', '2,000 rows', '3 classes')
    """
    return f"{number:,} {noun}{'' if number == 1 else 'es' if noun.endswith('s') else 's'}"


def shortened(value: object) -> str:
    """How Python shows a value, in at most 80 characters.

    >>> shortened({"bytes": b"0123456789" * 1000})[-8:]
    "456789'}"
    """
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:70]}…{shown[-9:]}"


def looks_of(name: str) -> str:
    """Equal for names that differ only in case, spaces or Unicode form."""
    return unicodedata.normalize("NFKC", " ".join(name.split()).casefold())


def no_formula(value: object) -> object:
    """A cell that spreadsheets do not read as a formula."""
    text = str(value)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else value
