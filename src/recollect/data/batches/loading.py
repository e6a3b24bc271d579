"""Batches made ahead by worker processes, so that the model need not wait for its data."""

import signal
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.utils.data import DataLoader, Dataset

from recollect.core.errors import UserError
from recollect.core.types import Batch
from recollect.data.batches.stream import BatchStream, Piece

_PIECE = 256
"""Rows that a worker makes at once: a batch of 32,768 is shared out instead of being one worker's (5 GB at 224 px)."""

_AHEAD = 2  # batches in the making while one is being trained on

PieceOfStep = tuple[int, int, int]
"""A step, and the first and last row to make of it."""


@dataclass(frozen=True)
class _Failure:
    """What went wrong in a worker, carried home as a value: raised there, it would come wrapped in a traceback."""

    message: str


class _Pieces(Dataset[Piece | _Failure]):
    def __init__(self, stream: BatchStream, view: int) -> None:
        self.stream, self.view = stream, view

    def __getitem__(self, task: PieceOfStep) -> Piece | _Failure:
        try:
            return self.stream.piece(*task, view=self.view)
        except UserError as error:
            return _Failure(str(error))


def iterate(
    stream: BatchStream, start: int, stop: int, workers: int, *, view: int, device: torch.device | None
) -> Iterator[Batch]:
    """See `BatchStream.iterate`."""
    size = stream.local_size
    rows = size if workers == 0 else min(size, max(16, min(_PIECE, -(-size // workers))))
    cuts = [(first, min(first + rows, size)) for first in range(0, size, rows)]
    tasks = _Tasks(start, stop, cuts)
    loader = DataLoader(
        _Pieces(stream, view),
        batch_size=None,
        sampler=tasks,
        num_workers=workers,
        prefetch_factor=max(2, -(-_AHEAD * len(cuts) // workers)) if workers else None,
        worker_init_fn=_ignore_interrupt if workers else None,
        in_order=True,
    )
    pieces: list[Piece] = []
    for piece in loader:
        if isinstance(piece, _Failure):
            raise UserError(piece.message)
        pieces.append(piece)
        if len(pieces) == len(cuts):
            yield stream.join(pieces, device)
            pieces = []


@dataclass(frozen=True)
class _Tasks:
    """Every piece of every step, in order; not a list, since a run has millions."""

    start: int
    stop: int
    cuts: list[tuple[int, int]]

    def __len__(self) -> int:
        return (self.stop - self.start) * len(self.cuts)

    def __iter__(self) -> Iterator[PieceOfStep]:
        return ((step, first, last) for step in range(self.start, self.stop) for first, last in self.cuts)


def _ignore_interrupt(worker: int) -> None:
    """Ctrl-C reaches every process of the terminal, but it is the trainer's to handle: it saves, then ends its workers.

    SIGTERM needs no such care, since torch gives its workers a handler of their own.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
