"""Embedding a large source on a Ray cluster: the blocks of one process, in their order, made side by side."""

import json
import logging
import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

import numpy as np
import torch

from recollect.core.errors import UserError
from recollect.core.types import best_device
from recollect.memory.backends.arrow import vectors_of
from recollect.memory.build.reading import ROWS_AT_ONCE, Reader, RowBlock
from recollect.memory.rows import COLUMNS, Pairs

_QUIET = {
    "GRPC_VERBOSITY": "NONE",  # by which its parts speak: on a busy machine it tells of pings that were too many
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else it warns of what it will do one day
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # its core writes errors to the terminal, whatever its other logs are set to
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # and prints what the cluster says of a worker that died, though it is replaced
}
"""What Ray is told by its environment, which it reads when it is imported; what the user has set stays."""


def ray_blocks(reader: Reader, start: int, stop: int) -> Iterator[RowBlock]:
    """What ``reader.blocks(start, stop)`` yields, embedded by the workers of a Ray cluster.

    The cluster is the one that ``RAY_ADDRESS`` names, or one of this machine's cores. Encoder and source travel to each
    worker once; the files that the source reads must lie under the same path on every machine.

    Raises:
        UserError: there is no such cluster, or a worker failed.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
        import ray.data
    except ImportError:
        raise UserError("--engine ray needs Ray: pip install 'recollect[ray]'") from None
    ours, handler = not ray.is_initialized(), signal.getsignal(signal.SIGTERM)
    try:
        if ours:
            _start(ray)
        yield from _blocks(ray, reader, range(start, stop, ROWS_AT_ONCE), stop)
    except (ray.exceptions.RayError, ConnectionError) as error:
        cause = getattr(error, "cause", None) or error
        if isinstance(cause, UserError):
            raise UserError(str(cause)) from error
        raise UserError(f"Ray: {str(cause).strip().splitlines()[-1][:200]}") from error
    finally:
        if ours:  # also where the build was interrupted: no worker is left behind
            ray.shutdown()
            if handler is not None and current_thread() is main_thread():
                signal.signal(signal.SIGTERM, handler)  # Ray's own stayed, and a program's was lost


def _start(ray: Any) -> None:
    """Begin, or join the cluster, without Ray's own warnings."""
    with warnings.catch_warnings(action="ignore"), _silent():
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.CRITICAL)


@contextmanager
def _silent() -> Iterator[None]:
    """What is written past Python to the terminal goes nowhere: Ray's core says there that it was told to be silent."""
    try:
        kept = os.dup(2)
    except OSError:  # there is no terminal
        yield
        return
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _blocks(ray: Any, reader: Reader, starts: range, stop: int) -> Iterator[RowBlock]:
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    if isinstance(reader.encoder, torch.nn.Module):
        reader.encoder.to("cpu")  # a worker moves its copy to its own device
    resources = ray.cluster_resources()
    workers = max(1, int(resources.get("GPU") or resources.get("CPU", 1)))
    numbered = ray.data.from_items(
        [{"start": first, "stop": min(first + ROWS_AT_ONCE, stop)} for first in starts], override_num_blocks=len(starts)
    )
    embedded = numbered.map_batches(
        _Embedder,
        fn_constructor_args=(ray.put(reader),),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=min(workers, len(starts))),
        num_gpus=1 if resources.get("GPU") else None,
        num_cpus=None if resources.get("GPU") else 1,
    )
    for row in embedded.iter_rows():
        said = json.loads(row["said"])
        unchanged = [(picture, stamp, index, path) for picture, stamp, index, path in said["unchanged"]]
        away = [(picture, index, mark) for picture, index, mark in said["away"]]
        yield RowBlock(_unpack(row["pairs"], reader), said["failures"], said["failed"], unchanged, away)


class _Embedder:
    """A worker: an encoder and a source, asked for one block at a time."""

    def __init__(self, reader: Any) -> None:
        import ray

        self.reader = ray.get(reader) if isinstance(reader, ray.ObjectRef) else reader
        if isinstance(self.reader.encoder, torch.nn.Module):
            self.reader = replace(self.reader, encoder=self.reader.encoder.to(best_device()))

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        block = next(self.reader.blocks(int(batch["start"][0]), int(batch["stop"][0])))
        said = {"failures": block.failures, "failed": block.failed, "unchanged": block.unchanged, "away": block.away}
        return {"pairs": [_pack(block.pairs)], "said": [json.dumps(said)]}


def _pack(pairs: Pairs) -> bytes:
    """Rows as Arrow's own bytes: vectors travel bit for bit."""
    import pyarrow as pa

    table, sink = pairs.table(), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def _unpack(packed: bytes, reader: Reader) -> Pairs:
    import pyarrow as pa

    table = pa.ipc.open_stream(packed).read_all().combine_chunks()
    if not len(table):
        nothing = np.empty((0, reader.encoder.width), dtype=np.float32)
        return Pairs([], nothing, nothing, [], reader.model, ordinals=np.empty(0, dtype=np.int64))
    columns = {
        name: vectors_of(table[name].chunk(0)) if name.endswith("_vector") else table[name].to_pylist()
        for name in COLUMNS
    }
    return Pairs.of_columns(columns, reader.model)
