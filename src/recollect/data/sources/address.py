"""Parsing source addresses: a place with optional filters and settings."""

import itertools
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl

from recollect.core.errors import UserError, user_errors
from recollect.core.paths import expanduser
from recollect.core.validation import refuse
from recollect.data.sources.generated import is_generated

_RESERVED = ("split", "config", "revision", "shuffle", "paths", "stream", "only", "without")


@dataclass(frozen=True)
class Address:
    """Parsed source address, ``PLACE?column=value,value&column!=value&split=train[:100]``.

    Attributes:
        place: path, pattern or hub id.
        keep: values to keep, by column.
        drop: values to drop, by column.
        split: a split, a slice of a split, or several joined by ``+``.
        config, revision: configuration and revision of a hub data set.
        shuffle: seed for shuffling rows before slicing; None keeps the stored order.
        paths: "anywhere" allows pictures outside the table's folder.
        stream: "yes" reads shards in place, without a converted copy.
        only, without: ``I/N`` keeps, or drops, the rows whose first text falls into part I of N.
    """

    place: str
    keep: Mapping[str, tuple[str, ...]]
    drop: Mapping[str, tuple[str, ...]]
    split: str | None = None
    config: str | None = None
    revision: str | None = None
    shuffle: int | None = None
    paths: str | None = None
    stream: str | None = None
    only: str | None = None
    without: str | None = None

    @property
    def filters(self) -> str:
        """Short description of the filters, for the source's name."""
        words = [f"{column}={'+'.join(values)}" for column, values in self.keep.items()]
        words += [f"{column}!={'+'.join(values)}" for column, values in self.drop.items()]
        parts = {"only": self.only, "without": self.without}
        return ",".join(words + [f"{name} {part}" for name, part in parts.items() if part is not None])


def parse_address(spec: str) -> Address:
    """Parse an address; commas, ``&`` and ``%`` in values must be percent-encoded.

    Raises:
        UserError: the part after ``?`` does not consist of ``key=value`` pairs, or a setting has an invalid value.
    """
    if Path(expanduser(spec)).exists() or "?" not in spec:
        return Address(spec, {}, {})
    place, _, query = spec.rpartition("?")
    with user_errors(f"{spec}: after '?' write key=value pairs joined by '&'", ValueError, IndexError):
        # Split at commas before decoding, so that %2C is a literal comma.
        pairs = [(key, words) for key, _, words in (pair.partition("=") for pair in query.split("&"))]
        # In `split`, a plus joins splits; elsewhere it is a space, as in any URL.
        pairs = [(key, words.replace("+", "%2B") if key == "split" else words) for key, words in pairs]
        decoded = [(key, [parse_qsl(f"v={word}", strict_parsing=True)[0][1] for word in words.split(",")])
                   for key, words in pairs]  # fmt: skip
    keep: dict[str, tuple[str, ...]] = {}
    drop: dict[str, tuple[str, ...]] = {}
    reserved: dict[str, str] = {}
    for key, values in decoded:
        if key in _RESERVED:
            reserved[key] = ",".join(values)
        elif key.endswith("!"):
            drop[key[:-1]] = drop.get(key[:-1], ()) + tuple(values)
        else:
            keep[key] = keep.get(key, ()) + tuple(values)
    shuffle = reserved.pop("shuffle", None)
    refuse(
        (not (shuffle or "0").isdecimal(), f"{spec}: shuffle must be a whole number, the random seed"),
        (reserved.get("paths", "anywhere") != "anywhere", f"{spec}: paths must be 'anywhere'"),
        (reserved.get("stream", "yes") != "yes", f"{spec}: stream must be 'yes'"),
    )
    for name in ("only", "without"):
        parse_part(reserved.get(name, "0/2"), f"{spec}: {name}")
    return Address(place, keep, drop, shuffle=None if shuffle is None else int(shuffle), **reserved)


def distinct_names(specs: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the names of sources, with duplicates distinguished by parts of their paths.

    ``a/train.parquet`` and ``b/train.parquet`` become ``a/train`` and ``b/train``; ``x.csv`` and ``x.parquet`` keep
    their suffixes. Equal addresses keep equal names, and generated sources are not renamed.
    """
    distinct = list(names)
    for name, count in Counter(names).items():
        paths = {row: Path(os.path.abspath(parse_address(specs[row]).place)).parts for row, each in enumerate(names)
                 if each == name and not is_generated(specs[row])}  # fmt: skip
        if count > 1 and len(set(paths.values())) == count:
            depth = next(n for n in itertools.count(1) if len({parts[-n:] for parts in paths.values()}) == count)
            for row, parts in paths.items():
                distinct[row] = parts[-1] if depth == 1 else "/".join((*parts[-depth:-1], name))
    return distinct


def parse_part(text: str, where: str) -> tuple[int, int]:
    """Parse ``I/N`` into two numbers.

    Raises:
        UserError: the text is not of this form, or not 0 <= I < N with N >= 2.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not int(match[1]) < int(match[2]) >= 2:
        raise UserError(f"{where}={text}: write I/N for part I of N, from 0/N to N-1/N, with N at least 2")
    return int(match[1]), int(match[2])


def split_of(spec: str) -> str | None:
    """Return the split in an address such as ``photos.parquet?split=test[:100]``, or None."""
    return None if is_generated(spec) else parse_address(spec).split
