"""One loss over many processes: each process holds some rows of the batch and sees all columns.

The batch's loss is the sum over processes. Rows needed by other processes are gathered, and their gradients summed in
the backward pass; the column sums of a softmax are combined in log space.
"""

from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor


class Shard:
    """The rows of the batch held by one process: all of them here, a part in `recollect.training.ranks`.

    Attributes:
        size: number of processes; each holds the same number of rows.
        rank: rank of this process.
    """

    size: int = 1
    rank: int = 0

    def first(self, rows: int) -> int:
        """Return the batch index of this process's first row if it holds ``rows`` rows."""
        return self.rank * rows

    def gather(self, rows: Tensor) -> Tensor:
        """Return the rows of all processes, in rank order. Gradients are summed over processes."""
        return rows

    def log_sum(self, parts: Float[Tensor, " columns"]) -> Float[Tensor, " columns"]:
        """Compute ``log sum exp`` over processes, elementwise."""
        return parts

    def total(self, numbers: Tensor) -> Tensor:
        """Sum over processes, detached."""
        return numbers


WHOLE = Shard()


class Copies(NamedTuple):
    """(row, column) pairs that are copies of one sample, and therefore neither negatives nor context.

    Attributes:
        rows, columns: ids of each row and column; samples that share a non-negative id are copies.
        first: the column paired with row 0; row i is paired with ``first + i``. None if rows have no paired column.
        row_groups, column_groups: classes; copies of the same class remain positives.
    """

    rows: Int[Tensor, "rows columns"]
    columns: Int[Tensor, "others columns"]
    first: int | None
    row_groups: Tensor | None = None
    column_groups: Tensor | None = None

    def among(self, rows: slice, columns: slice) -> Tensor:
        """Return a boolean mask of the copies in a tile."""
        mask = self._share(0, rows, columns)
        for mark in range(1, self.rows.shape[1]):
            mask |= self._share(mark, rows, columns)
        if self.row_groups is not None and self.column_groups is not None:
            mask &= self.row_groups[rows, None] != self.column_groups[None, columns]
        own = None if self.first is None else own_diagonal(mask, self.first, rows, columns)
        if own is not None:
            own.fill_(False)
        return mask

    def _share(self, mark: int, rows: slice, columns: slice) -> Tensor:
        ids = self.rows[rows, None, mark]
        return (ids == self.columns[None, columns, mark]) & (ids >= 0)


def own_diagonal(tile: Tensor, first: int, rows: slice, columns: slice) -> Tensor | None:
    """Return a view of the tile's entries that pair a row with its own column; None if there are none."""
    offset = first + rows.start - columns.start
    return tile.diagonal(offset) if -tile.shape[0] < offset < tile.shape[1] else None


def find_copies(
    duplicate_ids: Int[Tensor, "rows columns"] | None, shard: Shard, groups: Tensor | None = None
) -> Copies | None:
    """Find the copies in a batch; return None if all rows are distinct.

    Args:
        duplicate_ids: ids of this process's rows; rows that share one are copies. Negative values mean no id.
        shard: this process's part of the batch.
        groups: classes of the whole batch; see `Copies`.

    Raises:
        ValueError: the ids are not a matrix.
    """
    if duplicate_ids is None:
        return None
    if duplicate_ids.ndim != 2:
        raise ValueError(f"duplicate_ids must have shape (batch, columns), got {tuple(duplicate_ids.shape)}")
    everything = shard.gather(duplicate_ids)
    known = (column[column >= 0] for column in everything.T)
    if all(len(column.unique()) == len(column) for column in known):
        return None
    first = shard.first(len(duplicate_ids))
    own = None if groups is None else groups[first : first + len(duplicate_ids)]
    return Copies(duplicate_ids, everything, first, own, groups)
