"""Which rows of a table belong to a source: its address, its filters, its split."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recollect.core.errors import UserError, user_errors
from recollect.core.seeding import numpy_generator, text_fold
from recollect.core.validation import check_choice, refuse
from recollect.data.sources.columns import SPLITS

_SLICE = re.compile(r"(?P<name>[^\[\]+]+)(\[(?P<start>[\d_]+%?)?:(?P<stop>[\d_]+%?)?\])?")


@dataclass(frozen=True)
class Address:
    """A source as the user writes it: ``PLACE?column=value,value&column!=value&split=train[:100]``.

    Attributes:
        place: path, pattern or hub id.
        keep: by column, values to keep.
        drop: by column, values to drop.
        split: a split, a slice of one, or several joined by ``+``.
        config, revision: configuration and revision of a hub set.
        shuffle: seed of the order in which slices count rows; None keeps their order.
        paths: "anywhere" lets a table name pictures outside of its own folder.
        stream: "yes" reads shards in place, without a converted copy.
        only, without: ``I/N`` keeps, or leaves out, the rows whose first text falls into part I of N.
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
        """The filters in one short word, for the source's name."""
        words = [f"{column}={'+'.join(values)}" for column, values in self.keep.items()]
        words += [f"{column}!={'+'.join(values)}" for column, values in self.drop.items()]
        parts = {"only": self.only, "without": self.without}
        return ",".join(words + [f"{name} {part}" for name, part in parts.items() if part is not None])


def parse_address(spec: str) -> Address:
    """Read an address; values with a comma, ``&`` or ``%`` in them are percent-encoded.

    Raises:
        UserError: something behind the ``?`` is not ``key=value``.
    """
    if Path(spec).expanduser().exists() or "?" not in spec:
        return Address(spec, {}, {})
    place, _, query = spec.rpartition("?")
    with user_errors(f"{spec}: after '?' write key=value pairs joined by '&'", ValueError, IndexError):
        # Commas are split before decoding, so that %2C is a comma within a value.
        pairs = [pair.partition("=")[::2] for pair in query.split("&")]
        decoded = [(key, [parse_qsl(f"v={word}", strict_parsing=True)[0][1] for word in words.split(",")])
                   for key, words in pairs]  # fmt: skip
    keep: dict[str, tuple[str, ...]] = {}
    drop: dict[str, tuple[str, ...]] = {}
    reserved: dict[str, str] = {}
    for key, values in decoded:
        if key in ("split", "config", "revision", "shuffle", "paths", "stream", "only", "without"):
            reserved[key] = ",".join(values)
        elif key.endswith("!"):
            drop[key[:-1]] = drop.get(key[:-1], ()) + tuple(values)
        else:
            keep[key] = keep.get(key, ()) + tuple(values)
    shuffle = reserved.pop("shuffle", None)
    refuse(
        (not (shuffle or "0").isdecimal(), f"{spec}: shuffle takes a whole number, the seed of the order"),
        (reserved.get("paths", "anywhere") != "anywhere", f"{spec}: paths takes only 'anywhere'"),
        (reserved.get("stream", "yes") != "yes", f"{spec}: stream takes only 'yes'"),
    )
    for name in ("only", "without"):
        _part(reserved.get(name, "0/2"), f"{spec}: {name}")
    return Address(place, keep, drop, shuffle=None if shuffle is None else int(shuffle), **reserved)


def _part(text: str, where: str) -> tuple[int, int]:
    """``I/N`` as two numbers."""
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and int(part) < int(parts) >= 2):
        raise UserError(f"{where}={text}: write I/N, part I of N by the first text: from 0/N to N-1/N, N at least 2")
    return int(part), int(parts)


def in_parts(address: Address, first_texts: Iterable[str]) -> np.ndarray:
    """True for each row that ``only`` and ``without`` of an address keep.

    A part holds all rows of a text, whatever their case and spaces, and is the same in every file and on every machine:
    what a model was trained without can be asked of it in another source too.
    """
    texts = list(first_texts)
    mask = np.ones(len(texts), dtype=bool)
    for given, inside in ((address.only, True), (address.without, False)):
        if given is not None:
            part, parts = _part(given, "part")
            mask &= np.array([(text_fold(text, parts) == part) == inside for text in texts], dtype=bool)
    return mask


def filter_mask(table: datasets.Dataset, address: Address, where: str) -> np.ndarray:
    """True for each row that passes the address's filters."""
    mask = np.ones(len(table), dtype=bool)
    for column, values in address.keep.items():
        mask &= _matches(table, column, values, where)
    for column, values in address.drop.items():
        mask &= ~_matches(table, column, values, where)
    return mask


def _matches(table: datasets.Dataset, name: str, values: tuple[str, ...], where: str) -> np.ndarray:
    check_choice(name, table.column_names, f"{where}: column")
    column = table.data.column(name)
    feature = table.features[name]
    if isinstance(feature, datasets.ClassLabel):
        values = tuple(str(feature.str2int(value)) if value in feature.names else value for value in values)
    other = pa.types.is_nested(column.type) or pa.types.is_binary(column.type)
    refuse((other, f"{where}: column '{name}' holds {column.type}; filter by a column of words or numbers"))
    words = column.cast(pa.string())
    found = pc.is_in(words, value_set=pa.array(values, pa.string()))
    mask = pc.fill_null(found, False).to_numpy()
    for value in values:
        if not pc.any(pc.equal(words, value)).as_py():
            known = sorted(str(word) for word in pc.unique(words).to_pylist())
            check_choice(value, known[:20], f"{where}: in column '{name}', value")
    return mask


def choose_split(
    names: np.ndarray, choices: tuple[str, ...], mask: np.ndarray, wanted: str | None, where: str, shuffle: int | None
) -> np.ndarray:
    """Row numbers of a split, of a slice, or of several in their order.

    Args:
        names: for each row the position of its split in ``choices``.
        choices: the splits there are.
        mask: rows that passed the filters; slices count these only.
        wanted: such as ``train``, ``train[:2000]``, ``train[80%:]``, ``train+validation`` or ``all``; None takes the
            only split there is, else the training split, so that test rows are never trained on by oversight.
        shuffle: seed of a fixed random order for slices, for data sorted by class.

    Raises:
        UserError: there is no such split.
    """
    shown = ", ".join(choices)
    if wanted is None:
        refuse((len(choices) > 1 and "train" not in choices, f"{where}: name a split; it has {shown}"))
        wanted = choices[0] if len(choices) == 1 else "train"
    parts = []
    for word in wanted.split("+"):
        match = _SLICE.fullmatch(word.strip())
        if not match:
            raise UserError(f"{where}: '{word}' is not a split such as train, train[:2000] or train[80%:]")
        rows = np.flatnonzero(mask & _in_split(names, choices, match["name"], where))
        if shuffle is not None:
            rows = numpy_generator("split", shuffle).permutation(rows)
        start, stop = (_edge(match[edge], len(rows)) for edge in ("start", "stop"))
        parts.append(rows[start:stop])
    rows = np.concatenate(parts)
    refuse((len(np.unique(rows)) < len(rows), f"{where}: '{wanted}' contains some rows twice"))
    return rows.astype(np.int64)


def _in_split(names: np.ndarray, choices: tuple[str, ...], wanted: str, where: str) -> np.ndarray:
    if wanted == "all":
        return np.ones(len(names), dtype=bool)
    exact = [position for position, name in enumerate(choices) if name == wanted]
    alike = [position for position, name in enumerate(choices) if SPLITS.get(name, name) == SPLITS.get(wanted, wanted)]
    if not (exact or alike):
        check_choice(wanted, (*choices, "all"), f"{where}: split")
    return np.isin(names, exact or alike)


def _edge(text: str | None, count: int) -> int | None:
    if text is None:
        return None
    return round(count * int(text[:-1]) / 100) if text.endswith("%") else int(text)
