"""What a `Memory` asks of the place that keeps its rows."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32, Shaped

from recollect.core.errors import UserError
from recollect.core.types import UnreadMembers
from recollect.memory.backends.cells import IndexRecord
from recollect.memory.backends.removals import Removal
from recollect.memory.filters import Filter
from recollect.memory.rows import Item, Modality, Pairs, Record, VectorPrecision


class DamagedMemoryError(UserError):
    """What is there cannot be read as it was written."""


@dataclass(frozen=True)
class Hits:
    """For each query the rows that it found, best first.

    Attributes:
        ids: texts.
        scores: cosines.
    """

    ids: Shaped[np.ndarray, "queries k"]
    scores: Float32[np.ndarray, "queries k"]


@dataclass(frozen=True)
class Compaction:
    """What was joined and freed: before and after.

    Attributes:
        files: that the newest version is read from.
        bytes: of the whole memory on disk.
        versions: that can be opened.
    """

    files: tuple[int, int]
    bytes: tuple[int, int]
    versions: tuple[int, int]


@runtime_checkable
class Backend(Protocol, metaclass=UnreadMembers):
    """Rows on disk or on a cluster; every method raises `UserError` where the place itself is at fault.

    Attributes:
        record: what the memory says of itself.
        address: what the user calls it.
        whole_commits: whether an `append` is there whole or not at all, whatever happens.
    """

    record: Record
    address: str
    whole_commits: bool

    @property
    def stored_precision(self) -> VectorPrecision:
        """Of the numbers on disk; values are rounded to the precision of the record."""
        ...

    @property
    def version(self) -> int:
        """Grows with every change."""
        ...

    def __len__(self) -> int: ...

    def writing(self) -> AbstractContextManager[None]:
        """Around looking and changing: no other writer of this machine comes between, and the newest rows are seen."""
        ...

    def append(self, pairs: Pairs) -> None:
        """Add rows, whose ids are new."""
        ...

    def upsert(self, pairs: Pairs) -> None:
        """Add rows, or replace those of the same ids."""
        ...

    def delete(self, ids: Sequence[str]) -> None:
        """Remove the rows of these ids."""
        ...

    def removals(self) -> list[Removal]:
        """Pictures that stay away, as `keep_removals` was given them last."""
        ...

    def keep_removals(self, removals: Collection[Removal]) -> None:
        """Keep these beside the rows, and none but these."""
        ...

    def known(self, ids: Sequence[str]) -> set[str]:
        """Those of the ids that are there."""
        ...

    def ids_where(self, where: Filter) -> list[str]:
        """The ids of all rows that satisfy a filter."""
        ...

    def count_texts(self) -> int:
        """How many rows have a text."""
        ...

    def fetch(self, ids: Sequence[str], pictures: bool) -> list[Item]:
        """Rows in the order of their ids, all of which are there."""
        ...

    def rows(self, ids: Sequence[str]) -> Pairs:
        """Whole rows in the order of their ids, all of which are there."""
        ...

    def vectors(self, ids: Sequence[str], modality: Modality) -> Float32[np.ndarray, "rows width"]:
        """Unit-norm vectors in the order of their ids, all of which are there; zeros for a row that has no text."""
        ...

    def matrix(self, modality: Modality) -> tuple[list[str], Float32[np.ndarray, "rows width"]]:
        """The ids of all rows, and their unit-norm vectors; zeros for a row that has no text."""
        ...

    def prepare(self) -> None:
        """Make now what the first search would make."""
        ...

    def columns(self, names: Sequence[str], where: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Columns of all rows whose columns in ``where`` have these values, in batches: lists, or unit-norm vectors."""
        ...

    def search(
        self,
        vectors: Float32[np.ndarray, "queries width"],
        k: int,
        modality: Modality,
        where: Filter | None,
        has_text: bool = False,
        exact: bool = False,
    ) -> Hits:
        """The k nearest rows; fewer columns, or none, where fewer satisfy the filter.

        Args:
            has_text: search only rows that have a text, as a search among texts always does.
            exact: use no index.
        """
        ...

    def index(self, modality: Modality, target: float, train: bool = True) -> IndexRecord | None:
        """Make searches of a modality fast, at a measured recall@10; None where the store has an index of its own.

        Args:
            train: begin anew; else keep what was trained, and only measure it again.
        """
        ...

    def indexes(self) -> list[IndexRecord]:
        """What was measured of them."""
        ...

    def drop_index(self) -> None:
        """Search exactly from now on."""
        ...

    def damage(self) -> list[str]:
        """What of the rows or of what was derived from them cannot be trusted, a line each."""
        ...

    def optimize(self, keep_days: float) -> Compaction | None:
        """Join small files and let go of what deleted rows and older versions take up; None where the store does so.

        Args:
            keep_days: versions younger than so many days stay.
        """
        ...

    def refresh(self) -> None:
        """See what others have changed."""
        ...

    def snapshot(self) -> "Backend":
        """The memory as it is now, whatever is changed later; it cannot be written to."""
        ...


def matrix_of_columns(backend: Backend, modality: Modality) -> tuple[list[str], Float32[np.ndarray, "rows width"]]:
    """`Backend.matrix` of a store that keeps no matrix of its own."""
    ids: list[str] = []
    found = [np.empty((0, backend.record.width), dtype=np.float32)]
    for batch in backend.columns(["id", f"{modality}_vector"], {}):
        ids += batch["id"]
        found.append(np.asarray(batch[f"{modality}_vector"], dtype=np.float32).reshape(-1, backend.record.width))
    return ids, np.concatenate(found)
