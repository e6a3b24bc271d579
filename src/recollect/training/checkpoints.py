"""Checkpoints: whole or absent, the last few kept, safe to open, and enough to go on bit for bit.

A checkpoint holds a complete model (which opens wherever models open), the objective, the optimiser and how far the
run has come. No random state: every random number of a step is a function of the recipe's seed and the step.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import AdamW

from recollect.core.errors import UserError
from recollect.core.files import atomic_folder, read_json, write_json
from recollect.training.optimiser import parameters
from recollect.training.step import Towers


@dataclass(frozen=True)
class State:
    """How far a run has come.

    Attributes:
        step: updates made.
        seen: examples seen of each source.
    """

    step: int = 0
    seen: dict[str, int] = field(default_factory=dict)


def save(folder: Path, state: State, model: Towers, objective: nn.Module, optimiser: AdamW, keep: int = 2) -> None:
    """Write ``folder/step-XXXXXXXX`` atomically, then remove all but the last ``keep``.

    Raises:
        UserError: it cannot be written (no space left, say); the checkpoints before it are untouched.
    """
    path = folder / f"step-{state.step:08d}"
    with _written(path, latest(folder)) as unfinished:
        model.save(unfinished / "model")
        save_file(_training_tensors(objective, optimiser), unfinished / "training.safetensors")
        write_json(unfinished / "state.json", asdict(state))
    prune_checkpoints(folder, keep)


def save_model(path: Path, model: Towers) -> None:
    """Write the model to the folder ``path``, whole or not at all.

    Raises:
        UserError: it cannot be written.
    """
    with _written(path, latest(path.parent / "checkpoints")) as unfinished:
        model.save(unfinished)


@contextmanager
def _written(path: Path, last: Path | None) -> Iterator[Path]:
    try:
        with atomic_folder(path) as unfinished:
            yield unfinished
    except (OSError, SafetensorError) as error:
        go_on = f"then continue from {last} with --resume" if last else "then start again"
        raise UserError(f"{path}: could not be written ({error}). Make room, {go_on}.") from error


def latest(folder: Path) -> Path | None:
    """The newest whole checkpoint in ``folder``, if there is one."""
    found = _checkpoints(folder)
    return found[-1] if found else None


def restore(checkpoint: Path, objective: nn.Module, optimiser: AdamW) -> State:
    """Give objective and optimiser the tensors of a checkpoint; its model is opened from ``checkpoint/model``.

    Returns:
        How far the run had come.

    Raises:
        UserError: the checkpoint is damaged, or belongs to another objective or model.
    """
    file = checkpoint / "training.safetensors"
    try:
        tensors = load_file(file)
        objective.load_state_dict(_under("objective/", tensors))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise UserError(f"{file}: cannot be restored ({error}). Remove {checkpoint} to use the one before.") from error
    moments = _under("optimiser/", tensors)
    for name, parameter in parameters(optimiser).items():
        entries = _under(f"{name}/", moments)
        if any(entry.shape not in (parameter.shape, ()) for entry in entries.values()):
            raise UserError(f"{file}: {name} has another shape in this model. Was the recipe changed?")
        if entries:
            optimiser.state[parameter] = {key: value.to(parameter.device) for key, value in entries.items()}
    return State(**read_json(checkpoint / "state.json"))


def prune_checkpoints(folder: Path, keep: int) -> None:
    """Remove all but the last ``keep`` checkpoints, and what a killed process left unfinished."""
    for old in _checkpoints(folder)[:-keep]:
        # Renamed first: a kill half-way must not leave a part of a checkpoint under its own name.
        old.rename(old.with_name(f".{old.name}.tmp"))
    remove_leftovers(folder)


def remove_leftovers(folder: Path) -> None:
    """Delete what was being written, or removed, in ``folder`` when a process was killed."""
    for path in folder.glob(".*.tmp*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _training_tensors(objective: nn.Module, optimiser: AdamW) -> dict[str, Tensor]:
    tensors = {f"objective/{name}": tensor for name, tensor in objective.state_dict().items()}
    for name, parameter in parameters(optimiser).items():
        for key, value in optimiser.state.get(parameter, {}).items():
            tensors[f"optimiser/{name}/{key}"] = value
    # Cloned: tied temperatures share memory, which safetensors refuses.
    return {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if (path / "state.json").exists())
