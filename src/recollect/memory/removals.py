"""Pictures that somebody has taken out of a memory: they stay away, though their source still has them."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from recollect.memory.backends.base import Backend
from recollect.memory.backends.removals import Removal
from recollect.memory.rows import picture_of

_SHARE, _ROWS = 1_000, 32  # a thousandth of all rows is read by id, some with their pictures at a time


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
    """Keep in a memory which pictures rows are of that are about to be removed; rows of no source are of none."""
    noted = set(_removals_of(backend, ids))
    before = set(backend.removals()) if noted else noted
    if noted - before:
        backend.keep_removals(before | noted)


def _removals_of(backend: Backend, ids: Sequence[str]) -> Iterator[Removal]:
    def removal(id: str, source: str, stamp: str, digest: str) -> Removal:
        return Removal(source, picture_of(id), stamp.partition("-")[0], digest)

    if len(ids) <= max(_ROWS, len(backend) // _SHARE):
        for start in range(0, len(ids), _ROWS):
            rows = backend.rows(ids[start : start + _ROWS])
            facts = zip(rows.ids, rows.sources, rows.stamps, rows.digests, strict=True)
            yield from (removal(*each) for each in facts if each[1] and each[3])
        return
    wanted, names = set(ids), ("id", "source", "stamp", "digest")
    for batch in backend.columns(names, {}):
        for each in zip(*(batch[name] for name in names), strict=True):
            if each[0] in wanted and each[1] and each[3]:
                yield removal(*each)
