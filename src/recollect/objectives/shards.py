"""One loss over many processes: each keeps its rows of the batch and sees all columns.

The loss of the whole batch is the sum of what the processes return. Rows that others look at or are compared with are
gathered with their gradient, which comes back summed; column sums of a softmax are joined by their logarithms.
"""

from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor


class Shard:
    """The rows of the batch that a process holds: here all of them; `recollect.training.ranks` has a part's.

    Attributes:
        size: processes that share the batch; each holds as many rows.
        place: of this one among them.
    """

    size: int = 1
    place: int = 0

    def first(self, rows: int) -> int:
        """Number in the batch of the first of this process's ``rows`` rows."""
        return self.place * rows

    def gather(self, rows: Tensor) -> Tensor:
        """All processes' rows in their order; the gradient of each row is the sum of what all processes found."""
        return rows

    def log_sum(self, parts: Float[Tensor, " columns"]) -> Float[Tensor, " columns"]:
        """``log sum exp`` over the processes, entry by entry."""
        return parts

    def total(self, numbers: Tensor) -> Tensor:
        """Sum over the processes, without graph."""
        return numbers


WHOLE = Shard()


class Copies(NamedTuple):
    """Which pairs of rows and columns are two copies of one sample, and so neither negatives nor context.

    Attributes:
        rows, columns: numbers of each row and column; where any of them agree, the two are copies.
        first: column that is row 0's own pair, row 1's is the next; None where no column is a row's own.
        row_groups, column_groups: classes; of one class, two copies are positives and stay.
    """

    rows: Int[Tensor, "rows marks"]
    columns: Int[Tensor, "columns marks"]
    first: int | None
    row_groups: Tensor | None = None
    column_groups: Tensor | None = None

    def among(self, rows: slice, columns: slice) -> Tensor:
        """True for the copies in a tile."""
        mask = self.rows[rows, None, 0] == self.columns[None, columns, 0]
        for mark in range(1, self.rows.shape[1]):
            mask |= self.rows[rows, None, mark] == self.columns[None, columns, mark]
        if self.row_groups is not None and self.column_groups is not None:
            mask &= self.row_groups[rows, None] != self.column_groups[None, columns]
        own = None if self.first is None else own_diagonal(mask, self.first, rows, columns)
        if own is not None:
            own.fill_(False)
        return mask


def own_diagonal(tile: Tensor, first: int, rows: slice, columns: slice) -> Tensor | None:
    """The entries of a tile that hold a row's own pair, as a view; None where there are none."""
    offset = first + rows.start - columns.start
    return tile.diagonal(offset) if -tile.shape[0] < offset < tile.shape[1] else None


def find_copies(marks: Int[Tensor, "rows marks"] | None, shard: Shard, groups: Tensor | None = None) -> Copies | None:
    """The copies in a batch, None where no two rows share a mark.

    Args:
        marks: of this process's rows, not negative; rows that share one are copies.
        shard: which rows those are.
        groups: of the whole batch; see `Copies`.
    """
    if marks is None:
        return None
    everything = shard.gather(marks)
    if all(len(column.unique()) == len(column) for column in everything.T):
        return None
    first = shard.first(len(marks))
    own = None if groups is None else groups[first : first + len(marks)]
    return Copies(marks, everything, first, own, groups)
