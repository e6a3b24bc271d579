"""Embed a large source on a Ray cluster: same blocks and order as `SampleReader.blocks`."""

import logging
import os
import signal
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

import torch

from recollect.core.errors import UserError
from recollect.core.types import best_device
from recollect.index.samples import BLOCK, IngestOutcome, SampleReader

_ENVIRONMENT = {
    "GRPC_VERBOSITY": "NONE",  # warnings about too many pings on a busy machine
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a warning about a future change
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # errors of the core process, which ignores other log settings
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # reports of dead workers that were replaced
}
"""Environment variables that silence Ray, read when it is imported; variables set by the user are not changed."""

_AHEAD = 2
"""Blocks in flight per worker."""


def ray_blocks(reader: SampleReader, stop: int) -> Iterator[list[IngestOutcome]]:
    """Yield the blocks of ``reader.blocks(range(stop))``, embedded by the workers of a Ray cluster.

    Uses the cluster at ``RAY_ADDRESS``, or starts one on this machine. Encoder and source are sent to each worker once;
    the files of the source must have the same path on every machine. Dead workers are replaced and their blocks
    embedded again.

    Raises:
        UserError: the cluster does not exist, or a worker failed.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise UserError("--engine ray needs Ray: pip install 'recollect[ray]'") from None
    ours, handler = not ray.is_initialized(), signal.getsignal(signal.SIGTERM)
    try:
        if ours:
            _start(ray)
        yield from _blocks(ray, reader, stop)
    except (ray.exceptions.RayError, ConnectionError) as error:
        cause = getattr(error, "cause", None) or error
        if isinstance(cause, UserError):
            raise UserError(str(cause)) from error
        raise UserError(f"Ray: {str(cause).strip().splitlines()[-1][:200]}") from error
    finally:
        if ours:
            ray.shutdown()
            if handler is not None and current_thread() is main_thread():
                signal.signal(signal.SIGTERM, handler)  # Ray replaces it


def _start(ray: Any) -> None:
    """Start or join the cluster without Ray's warnings."""
    with warnings.catch_warnings(action="ignore"), _no_stderr():
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.CRITICAL)


@contextmanager
def _no_stderr() -> Iterator[None]:
    """Discard stderr output of native code: Ray's core logs that its logging is disabled."""
    try:
        kept = os.dup(2)
    except OSError:  # no terminal
        yield
        return
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _blocks(ray: Any, reader: SampleReader, stop: int) -> Iterator[list[IngestOutcome]]:
    if isinstance(reader.encoder, torch.nn.Module):
        reader.encoder.to("cpu")  # each worker moves its copy to its own device
    cards = int(ray.cluster_resources().get("GPU", 0))
    starts = range(0, stop, BLOCK)
    count = min(len(starts), max(1, cards or int(ray.cluster_resources().get("CPU", 1))))
    worker = ray.remote(num_gpus=1 if cards else 0, num_cpus=0 if cards else 1, max_restarts=-1, max_task_retries=-1)(
        _Worker
    )
    shared = ray.put(reader)
    workers = [worker.remote(shared) for _ in range(count)]
    waiting: deque[Any] = deque()
    for block, start in enumerate(starts):
        waiting.append(workers[block % count].embed.remote(start, min(start + BLOCK, stop)))
        if len(waiting) >= _AHEAD * count:
            yield ray.get(waiting.popleft())
    while waiting:
        yield ray.get(waiting.popleft())


class _Worker:
    """Ray actor with its own encoder and source."""

    def __init__(self, reader: Any) -> None:
        self.reader = reader
        if isinstance(reader.encoder, torch.nn.Module):
            self.reader = replace(reader, encoder=reader.encoder.to(best_device()))

    def embed(self, start: int, stop: int) -> list[IngestOutcome]:
        """Return the outcomes of one block of samples."""
        return [outcome for block in self.reader.blocks(range(start, stop)) for outcome in block]
