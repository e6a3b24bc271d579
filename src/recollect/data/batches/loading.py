"""Prefetching batches in worker processes."""

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

_MAX_PIECE = 256
"""Maximum rows per worker task, so that workers share a large batch (32,768 rows at 224 px are 5 GB)."""

_PREFETCH = 2  # batches prefetched during a training step

RowTokenizer = Callable[[Sequence[str], Sequence[Kind]], dict[str, Tensor]]
"""Maps texts and their kinds to tokens; the tokens of a text must not depend on the other texts."""

PieceAddress = tuple[int, int, int]
"""Step, start row and stop row."""


@dataclass(frozen=True)
class Piece:
    """Rows of a batch, built by one worker.

    Attributes:
        images: unnormalized uint8 (n, size, size, 3), or float32 inputs of the tower.
        texts: one per row.
        labels: int64 (n,), unique across sources.
        sources: source number of each row, int64 (n,).
        ids: sample id of each row.
        broken: error messages of replaced images, by source number.
        tokens: tokens of the texts, if there is a tokenizer.
    """

    images: Tensor
    texts: list[str]
    labels: np.ndarray
    sources: np.ndarray
    ids: list[str]
    broken: dict[int, list[str]] = field(default_factory=dict)
    tokens: dict[str, Tensor] | None = None

    def pin_memory(self) -> "Piece":
        """Return a copy in page-locked memory; called by torch's DataLoader."""
        tokens = self.tokens and {name: column.pin_memory() for name, column in self.tokens.items()}
        return replace(self, images=self.images.pin_memory(), tokens=tokens)


@dataclass(frozen=True)
class _Failure:
    """Error in a worker, returned as a value because torch would wrap a raised one in a traceback."""

    message: str


class _Pieces(Dataset[Piece | _Failure]):
    def __init__(self, piece: Callable[[int, int, int], Piece]) -> None:
        self.piece = piece

    def __getitem__(self, task: PieceAddress) -> Piece | _Failure:
        try:
            return self.piece(*task)
        except UserError as error:
            return _Failure(str(error))


def pieces_ahead(
    piece: Callable[[int, int, int], Piece], start: int, stop: int, size: int, workers: int, pin: bool
) -> Generator[list[Piece], None, None]:
    """Yield the pieces of each step from ``start`` up to ``stop``, in order, prefetched by worker processes.

    Args:
        piece: builds a range of rows of a step.
        start: first step.
        stop: step after the last one.
        size: number of rows per step.
        workers: number of processes; 0 builds pieces in this process, on demand.
        pin: use page-locked memory.
    """
    rows = size if workers == 0 else min(size, max(16, min(_MAX_PIECE, -(-size // workers))))
    cuts = [(first, min(first + rows, size)) for first in range(0, size, rows)]
    tasks = ((step, first, last) for step in range(start, stop) for first, last in cuts)  # lazy: a run has millions
    with warnings.catch_warnings():  # the user may request more workers than cores
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        loader = DataLoader(
            _Pieces(piece),
            batch_size=None,
            sampler=tasks,
            num_workers=workers,
            prefetch_factor=max(2, -(-_PREFETCH * len(cuts) // workers)) if workers else None,
            worker_init_fn=_init_worker if workers else None,
            in_order=True,
            pin_memory=pin,
        )
        results = iter(loader)
    pieces: list[Piece] = []
    try:
        for result in results:
            if isinstance(result, _Failure):
                raise UserError(result.message)
            pieces.append(result)
            if len(pieces) == len(cuts):
                yield pieces
                pieces = []
    finally:
        # Stop the workers now. A stored traceback could keep them alive, and each would then take five seconds to stop.
        del results


def _init_worker(worker: int) -> None:
    """Disable tokenizer threads, which do not survive a fork, and leave signal handling to the trainer.

    Ctrl-C reaches every process of a terminal, and `timeout`, Slurm or systemd send SIGTERM to every process of a job.
    Only the trainer handles them, because saving still needs its workers. If the trainer is killed, the worker exits by
    itself: torch's own shutdown would wait for a queue that has no reader.
    """
    trainer = os.getppid()

    def exit_with_trainer() -> None:
        while os.getppid() == trainer:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=exit_with_trainer, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
