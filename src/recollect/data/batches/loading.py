"""Batches made ahead by worker processes."""

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from recollect.core.errors import UserError
from recollect.core.types import Kind

_PIECE = 256
"""Rows that a worker makes at once, so that workers share a batch of 32,768 (5 GB at 224 px)."""

_AHEAD = 2  # batches in the making while one is being trained on

RowTokenizer = Callable[[Sequence[str], Sequence[Kind]], dict[str, Tensor]]
"""Maps texts and their kinds to tokens; those of a text do not depend on the other texts."""

PieceOfStep = tuple[int, int, int]
"""A step, and the first and last row to make of it."""


@dataclass(frozen=True)
class Piece:
    """Some rows of a batch, from a worker.

    Attributes:
        images: uint8 (n, size, size, 3), not normalized, or float32 that is ready.
        texts: one for each row.
        labels: int64 (n,), unique across sources.
        sources: int64 (n,), the number of each row's source.
        ids: of each row.
        broken: for each source number, what was wrong with images that had to be replaced.
        tokens: of the texts, if there is a tokenizer.
    """

    images: Tensor
    texts: list[str]
    labels: np.ndarray
    sources: np.ndarray
    ids: list[str]
    broken: dict[int, list[str]] = field(default_factory=dict)
    tokens: dict[str, Tensor] | None = None

    def pin_memory(self) -> "Piece":
        """The same in page-locked memory; torch's loader calls this."""
        tokens = self.tokens and {name: column.pin_memory() for name, column in self.tokens.items()}
        return replace(self, images=self.images.pin_memory(), tokens=tokens)


@dataclass(frozen=True)
class _Failure:
    """An error of a worker, returned as a value; raised, it would come wrapped in a traceback."""

    message: str


class _Pieces(Dataset[Piece | _Failure]):
    def __init__(self, piece: Callable[[int, int, int], Piece]) -> None:
        self.piece = piece

    def __getitem__(self, task: PieceOfStep) -> Piece | _Failure:
        try:
            return self.piece(*task)
        except UserError as error:
            return _Failure(str(error))


def pieces_ahead(
    piece: Callable[[int, int, int], Piece], start: int, stop: int, size: int, workers: int, pin: bool
) -> Generator[list[Piece], None, None]:
    """The pieces of each step from ``start`` to ``stop``, in order, made ahead by worker processes.

    Args:
        piece: makes the rows of a step between two numbers.
        size: rows of a step.
        workers: 0 makes them in this process, when they are due.
        pin: make them in page-locked memory.
    """
    rows = size if workers == 0 else min(size, max(16, min(_PIECE, -(-size // workers))))
    cuts = [(first, min(first + rows, size)) for first in range(0, size, rows)]
    # Drawn as it is needed: a run has millions.
    tasks = ((step, first, last) for step in range(start, stop) for first, last in cuts)
    with warnings.catch_warnings():  # more workers than cores were requested
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        loader = DataLoader(
            _Pieces(piece),
            batch_size=None,
            sampler=tasks,
            num_workers=workers,
            prefetch_factor=max(2, -(-_AHEAD * len(cuts) // workers)) if workers else None,
            worker_init_fn=_start_worker if workers else None,
            in_order=True,
            pin_memory=pin,
        )
        made = iter(loader)
    pieces: list[Piece] = []
    try:
        for each in made:
            if isinstance(each, _Failure):
                raise UserError(each.message)
            pieces.append(each)
            if len(pieces) == len(cuts):
                yield pieces
                pieces = []
    finally:
        # Ends the workers now. A stored traceback could keep them alive, and each would then take five seconds to end.
        del made


def _start_worker(worker: int) -> None:
    """A worker uses one core, and tokenizers' threads do not outlive a fork.

    Ctrl-C reaches every process of a terminal, and `timeout`, Slurm or systemd send SIGTERM to every process of a job.
    Only the trainer handles them: it saves, for which it needs its workers, then ends them. If it is killed, torch's
    own end of a worker waits for a queue that nobody reads any more.
    """
    trainer = os.getppid()

    def end_with_trainer() -> None:
        while os.getppid() == trainer:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=end_with_trainer, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
