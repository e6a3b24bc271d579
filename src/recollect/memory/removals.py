"""Pictures that somebody has taken out of a memory: they stay away, though their source still has them."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from recollect.memory.backends.base import Backend
from recollect.memory.backends.removals import Removal
from recollect.memory.rows import further_id, picture_of

_SHARE, _ROWS = 1_000, 32  # a thousandth of all rows is read by id, some with their pictures at a time
_FURTHER, _ASKED = 32, 2_048  # captions of a picture that are looked for, and ids at a time


@dataclass(frozen=True)
class KeptAway:
    """Which pictures of a source stay away while it is read; `Edition` says which of them the memory holds.

    A picture of which the memory holds no copy stays away under whatever name it comes. Where it holds one, somebody
    has removed a double, and that one alone stays away: the picture that was kept may be renamed.

    Attributes:
        marks: digests of content and of pixels, of pictures that stay away under any name.
        doubles: the same by id, of pictures that stay away under that id.
        removals: by either digest.
    """

    marks: frozenset[str] = frozenset()
    doubles: Mapping[str, frozenset[str]] = field(default_factory=dict)
    removals: Mapping[str, Removal] = field(default_factory=dict)

    @classmethod
    def of(cls, removals: Iterable[Removal], held: Mapping[str, Collection[str]]) -> "KeptAway":
        """Of the removals of one source.

        Args:
            held: pictures of the source that the memory holds, by the digest of their pixels.
        """
        marks, doubles, known = set[str](), dict[str, frozenset[str]](), dict[str, Removal]()
        for each in removals:
            both = {each.content, each.digest}
            known |= dict.fromkeys(both, each)
            if not (holders := held.get(each.digest)):
                marks |= both
            elif each.id not in holders:
                doubles[each.id] = doubles.get(each.id, frozenset()) | both
        return cls(frozenset(marks), doubles, known)

    def has(self, picture: str, mark: str) -> bool:
        """Whether a picture of this id, with this digest of its content or its pixels, stays away."""
        return mark in self.marks or mark in self.doubles.get(picture, ())


def removals_named(removals: Sequence[Removal], source: str, place: str, names: Sequence[str]) -> list[Removal] | str:
    """The removals of a source that somebody names by an id, by a file or a name within the source; or all of them.

    Args:
        source: its name.
        place: where it lies.
        names: of pictures; ``all`` alone.

    Returns:
        The first name that is of none, where there is one.
    """
    if list(names) == ["all"]:
        return list(removals)
    found: list[Removal] = []
    for name in names:
        keys = {name, f"{source}:{name}"}
        file, folder = Path(name).resolve(), Path(place).resolve()
        if file.is_relative_to(folder):
            keys.add(f"{source}:{file.relative_to(folder).as_posix()}")
        if not (some := [each for each in removals if each.id in keys]):
            return name
        found += some
    return found


def note_removals(backend: Backend, ids: Sequence[str]) -> None:
    """Keep in a memory which pictures are about to be removed with rows; rows of no source are of none.

    A picture of which other rows stay, with further captions, is not removed.
    """
    few = len(ids) <= max(_ROWS, len(backend) // _SHARE)
    found = list(_by_id(backend, ids) if few else _among_all(backend, set(ids)))
    stay = _that_stay(backend, {each.id for each in found}, set(ids), few)
    noted = {each for each in found if each.id not in stay}
    before = set(backend.removals()) if noted else noted
    if noted - before:
        backend.keep_removals(before | noted)


def _removal(id: str, source: str, stamp: str, digest: str) -> Iterator[Removal]:
    if source and digest:
        yield Removal(source, picture_of(id), stamp.partition("-")[0], digest)


def _by_id(backend: Backend, ids: Sequence[str]) -> Iterator[Removal]:
    for start in range(0, len(ids), _ROWS):
        rows = backend.rows(ids[start : start + _ROWS])
        for each in zip(rows.ids, rows.sources, rows.stamps, rows.digests, strict=True):
            yield from _removal(*each)


def _among_all(backend: Backend, wanted: Collection[str]) -> Iterator[Removal]:
    names = ("id", "source", "stamp", "digest")
    for batch in backend.columns(names, {}):
        for each in zip(*(batch[name] for name in names), strict=True):
            if each[0] in wanted:
                yield from _removal(*each)


def _that_stay(backend: Backend, pictures: Collection[str], gone: Collection[str], few: bool) -> set[str]:
    """Of some pictures those that have other rows than these."""
    if not few:
        ids = (id for batch in backend.columns(("id",), {}) for id in batch["id"])
        return {picture_of(id) for id in ids if id not in gone}.intersection(pictures)
    rows = [further_id(picture, number) for picture in pictures for number in range(_FURTHER)]
    there = (backend.known(rows[start : start + _ASKED]) for start in range(0, len(rows), _ASKED))
    return {picture_of(id) for some in there for id in some if id not in gone}
