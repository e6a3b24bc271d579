"""Checkpoints: written atomically, safe to open, and sufficient to resume bit for bit.

A checkpoint holds a complete model (which opens like any other), the objective, the optimizer and the state of the run.
It needs no random state: every random number of a step is a function of the recipe's seed and the step.
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import AdamW

from recollect.core.checksums import CHECKSUMS, damaged_files, write_checksums
from recollect.core.errors import user_errors
from recollect.core.files import atomic_folder, read_json, sync_folder, write_json, write_text
from recollect.core.progress import note
from recollect.core.validation import refuse
from recollect.training.optimizer import Averages, parameters
from recollect.training.sharded import part_like, whole
from recollect.training.step import Towers

Facts = Mapping[str, Mapping[str, int | str]]
"""Facts about the data of a run, by source."""

CONTENT = "content"
"""Key of a digest of the content, or of parts of it for large files."""

WHOLE_CONTENT = "whole content"
"""Key of a digest of all bytes, if `CONTENT` covers only parts."""

MODIFIED = "times of change"
"""Key of the modification times of large files."""


@dataclass(frozen=True)
class State:
    """State of a run.

    Attributes:
        step: number of updates.
        loss_scale: factor of the loss, and finite steps since it last changed (`LossScale`).
        data: facts about all data of the run, by the user's name for each source.
    """

    step: int = 0
    loss_scale: tuple[float, int] = (1.0, 0)
    data: Facts = field(default_factory=dict)


def save(folder: Path, state: State, model: Towers, tensors: Mapping[str, Tensor], keep: int = 2) -> None:
    """Write ``folder/step-XXXXXXXX`` atomically, then remove all but the last ``keep``.

    Args:
        tensors: everything trained except the model (`training_tensors`).

    Raises:
        UserError: it cannot be written (no space left, for example); earlier checkpoints are untouched.
    """
    path = folder / f"step-{state.step:08d}"
    with _written(path, latest(folder)) as unfinished:
        model.save(unfinished / "model")
        save_file(dict(tensors), unfinished / "training.safetensors")
        write_json(unfinished / "state.json", asdict(state))
        write_checksums(unfinished, sorted(file for file in unfinished.rglob("*") if file.is_file()))
    prune_checkpoints(folder, keep)


def save_model(path: Path, model: Towers, card: str) -> None:
    """Write the model and its card to the folder ``path``, atomically.

    Raises:
        UserError: they cannot be written.
    """
    with _written(path, latest(path.parent / "checkpoints")) as unfinished:
        model.publish(unfinished)
        write_text(unfinished / "README.md", card)


@contextmanager
def _written(path: Path, last: Path | None) -> Iterator[Path]:
    retry = f"continue from {last} with --resume" if last else "start again"
    advice = f". Free some space, then {retry}."
    errors = user_errors(f"{path}: cannot be written", OSError, SafetensorError, then=advice)
    with errors, atomic_folder(path) as unfinished:
        yield unfinished


def latest(folder: Path) -> Path | None:
    """Return the newest checkpoint in ``folder``; None if there is none."""
    existing = _checkpoints(folder)
    return existing[-1] if existing else None


def newest_whole(folder: Path) -> Path | None:
    """Return the newest checkpoint whose files match their checksums; report damaged ones.

    Raises:
        UserError: all checkpoints are damaged.
    """
    existing = _checkpoints(folder)
    for position, checkpoint in reversed(list(enumerate(existing))):
        if not (damage := _damage(checkpoint)):
            return checkpoint
        before = f"trying {existing[position - 1].name}" if position else "no earlier checkpoint"
        note(f"{checkpoint}: damaged ({damage[0]}); {before}")
    refuse((existing, f"{folder}: every checkpoint is damaged. Start again with another --out."))
    return None


def _damage(checkpoint: Path) -> list[str]:
    listed = checkpoint / CHECKSUMS
    return damaged_files(checkpoint) if listed.exists() else [f"{CHECKSUMS} is missing"]


def restore(checkpoint: Path, objective: nn.Module, optimizer: AdamW, averages: Averages | None = None) -> State:
    """Load a checkpoint into objective, optimizer and averages, but not its model (``checkpoint/model``).

    Returns:
        State of the run.

    Raises:
        UserError: the checkpoint is damaged, or belongs to another objective or model.
    """
    file = checkpoint / "training.safetensors"
    damaged = (OSError, SafetensorError, RuntimeError)
    with user_errors(f"{file}: cannot be restored", *damaged, then=". Was the recipe changed?"):
        tensors = load_file(file)
        objective.load_state_dict(_under("objective/", tensors))
    if averages:
        averages.load(_under("average/", tensors))
    moments = _under("optimizer/", tensors)
    for name, parameter in parameters(optimizer).items():
        entries = _under(f"{name}/", moments)
        differs = any(entry.shape not in (parameter.shape, ()) for entry in entries.values())
        refuse((differs, f"{file}: {name} has a different shape in this model. Was the recipe changed?"))
        if entries:
            optimizer.state[parameter] = {key: part_like(value, parameter) for key, value in entries.items()}
    state = read_json(checkpoint / "state.json")
    return State(state["step"], (state["loss_scale"][0], state["loss_scale"][1]), state.get("data", {}))


def prune_checkpoints(folder: Path, keep: int, newest: Path | None = None) -> None:
    """Remove all but the last ``keep`` checkpoints up to ``newest``, and leftovers of interrupted processes."""
    existing = _checkpoints(folder)
    kept = [path for path in existing if newest is None or path.name <= newest.name][-keep:]
    for path in existing:
        if path not in kept:
            rename_for_removal(path)
    remove_leftovers(folder)


def rename_for_removal(path: Path) -> None:
    """Rename a folder for `remove_leftovers`, so an interrupted removal leaves no partial folder under its name."""
    if path.exists():
        path.rename(path.with_name(f".{path.name}.tmp"))


def remove_leftovers(folder: Path) -> None:
    """Delete temporary files and folders of interrupted processes in ``folder``."""
    leftovers = list(folder.glob(".*.tmp*"))
    for path in leftovers:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if leftovers:  # otherwise pruned files could reappear after a power failure
        sync_folder(folder)


def training_tensors(
    objective: nn.Module, optimizer: AdamW, averages: Averages | None, kept: bool = True
) -> dict[str, Tensor]:
    """Return all tensors of a checkpoint except the model's. A collective call; empty in processes without ``kept``."""
    tensors = {f"objective/{name}": tensor for name, tensor in objective.state_dict().items()}
    for name, parameter in parameters(optimizer).items():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer/{name}/{key}"] = value
    tensors |= {f"average/{name}": mean for name, mean in (averages.tensors() if averages else {}).items()}
    whole_tensors = {}
    for name, tensor in tensors.items():
        full = whole(tensor.detach())
        if kept:  # cloned because safetensors rejects tied temperatures, which share memory
            whole_tensors[name] = full.clone(memory_format=torch.contiguous_format)
    return whole_tensors


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints, oldest first; other files in the folder are ignored."""
    return sorted(path for path in folder.glob("step-*") if path.name[5:].isdecimal() and path.is_dir())
