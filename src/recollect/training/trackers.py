"""Send a run's metrics to TensorBoard or Weights & Biases."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from recollect.core.errors import UserError, one_line
from recollect.core.files import read_json, write_json
from recollect.core.seeding import derive_seed
from recollect.core.validation import refuse

Tracker = Literal["tensorboard", "wandb"]


class MetricsTracker(ABC):
    """Receives every line of ``metrics.jsonl``."""

    @abstractmethod
    def write(self, values: Mapping[str, Any]) -> None:
        """Log one line, which contains a ``step``."""

    @abstractmethod
    def close(self) -> None:
        """Flush and close."""


def check_trackers(names: Sequence[Tracker]) -> None:
    """Check that the trackers are installed.

    Raises:
        UserError: a tracker is missing; the message has the command to install it.
    """
    for name in names:
        missing = find_spec(name) is None
        refuse((missing, f"--track {name}: {name} is not installed. Install it with: pip install {name}"))


def open_trackers(names: Sequence[Tracker], out: Path, recipe: Mapping[str, Any], step: int) -> list[MetricsTracker]:
    """Open the trackers of a run.

    Args:
        names: trackers to open; duplicates are ignored.
        out: folder of the run.
        recipe: as in ``recipe.json``.
        step: step the run resumes from; later points already logged are discarded.
    """
    return [
        _TensorBoard(out, step) if name == "tensorboard" else _WeightsAndBiases(out, recipe)
        for name in dict.fromkeys(names)
    ]


class _TensorBoard(MetricsTracker):
    """Writes event files to ``tensorboard/`` in the run's folder."""

    def __init__(self, out: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(out / "tensorboard"), purge_step=step + 1 if step else None)

    def write(self, values: Mapping[str, Any]) -> None:
        for name, value in numbers(values):
            self._writer.add_scalar(name, value, values["step"])
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _WeightsAndBiases(MetricsTracker):
    """Logs to the project ``WANDB_PROJECT`` (default: recollect); a resumed run continues the same W&B run."""

    def __init__(self, out: Path, recipe: Mapping[str, Any]) -> None:
        import wandb

        file = out / "wandb.json"
        if not file.exists():
            write_json(file, {"id": f"{derive_seed('wandb', str(out.resolve()), os.urandom(8).hex()):016x}"})
        project = os.environ.get("WANDB_PROJECT", "recollect")
        try:
            self._run = wandb.init(
                project=project,
                name=out.name,
                dir=str(out),
                config=dict(recipe),
                id=read_json(file)["id"],
                resume="allow",
            )
        except Exception as error:  # no key, no network, or any other error of wandb
            raise UserError(f"--track wandb: {one_line(error)}. Try WANDB_MODE=offline, and --resume.") from error

    def write(self, values: Mapping[str, Any]) -> None:
        self._run.log(dict(numbers(values)), step=values["step"])

    def close(self) -> None:
        self._run.finish()


def numbers(values: Mapping[str, Any], under: str = "") -> Iterator[tuple[str, float]]:
    """Yield all numbers of a line with their names; nested names are joined by a slash."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{under}{name}/")
        elif name != "step" and isinstance(value, int | float):
            yield f"{under}{name}", float(value)
