"""Numbers come from files: one JSON for each (model, data, protocol, seed), and tables that are functions of them."""

import hashlib
import json
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recollect import __version__
from recollect.core.errors import UserError
from recollect.core.files import read_json, write_json
from recollect.core.types import Encoder, Source

RESULT_FORMAT = 1
"""Version of the files; raised when a reader of older files would misread newer ones."""

ResultRow = Mapping[str, Any]

_LONGEST = 200


@cache
def _environment() -> dict[str, str]:
    import transformers  # which loads more than a table of results needs

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return {
        "recollect": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "device": device,
    }


@dataclass(frozen=True)
class Result:
    """What one evaluation found.

    Attributes:
        protocol: ``zero-shot``, ``few-shot``, ``retrieval``, ``probe``, ...
        model: what the reader calls the model (a path, a hub id, a recipe).
        data: the data set's name.
        seed: of the model's training or of the protocol, as ``settings`` says.
        rows: the figures, each row with its own keys (``method``, ``shots``, ``metric``) and one ``value``.
        settings: everything else that decided the figures.
        environment: versions and device; never part of a comparison.
        notes: what was observed on the way (seconds, counts); no part of what was asked.
    """

    protocol: str
    model: str
    data: str
    seed: int
    rows: Sequence[ResultRow]
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=_environment)
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        """16 hex digits of what was evaluated: protocol, model, data, seed and every setting, not the figures."""
        asked = [self.protocol, self.model, self.data, self.seed, self.settings]
        return hashlib.blake2b(_canonical(asked), digest_size=8).hexdigest()

    @property
    def file_name(self) -> str:
        """A name that two different evaluations do not share: what it is about, to be read, and its `identity`."""
        prefix = self.settings.get("prefix")
        read = [f"{prefix}-prefix"] if prefix else []
        parts = (self.protocol, self.model, self.data, *read, f"seed{self.seed}")
        name = "--".join(re.sub(r"[^A-Za-z0-9._=-]+", "-", part).strip("-") for part in parts)
        return f"{name[: _LONGEST - 18]}--{self.identity}.json"  # file systems take 255

    def save(self, folder: str | Path) -> Path:
        """Write the result into ``folder`` under its own name; the same evaluation, made again, takes its place.

        Raises:
            UserError: the file is there and is not of this evaluation.
        """
        path = Path(folder) / self.file_name
        if path.exists() and load_result(path).identity != self.identity:
            raise UserError(f"{path}: holds another evaluation. Move it away, or name another folder.")
        write_json(path, self.as_json())
        return path

    def as_json(self) -> dict[str, Any]:
        """The result as its file holds it."""
        return {"format": RESULT_FORMAT, **asdict(self)}


def _canonical(value: Any) -> bytes:
    """JSON that does not depend on the order of keys, nor on tuple or list."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str).encode()


def content_of(encoder: Encoder, *sources: Source, asked: Any = None) -> dict[str, str]:
    """What tells models, data and texts apart that go by one name: settings for a `Result`.

    Args:
        encoder: its fingerprint covers weights, transform and dtype.
        sources: of the images, whose fingerprints cover every sample.
        asked: the texts that were read and what else was asked of the images, if any.
    """
    data = "".join(str(source.fingerprint) for source in sources)
    parts = {"model_content": str(encoder.fingerprint).encode(), "data_content": data.encode()}
    if asked is not None:
        parts["texts_content"] = _canonical(asked)
    return {name: hashlib.blake2b(text, digest_size=8).hexdigest() for name, text in parts.items()}


def check_place(path: Path | None) -> None:
    """Refuse, before any work, a place whose content results could not take the place of.

    Args:
        path: a folder, or a .json file for all results together; None is not checked.

    Raises:
        UserError: a file is there that holds no results, or a folder that is called like a file.
    """
    if path is None or not path.exists():
        return
    if path.is_dir() and path.suffix == ".json":
        raise UserError(f"--out {path}: is a folder. Name a file, or a folder that does not end in .json.")
    if path.is_file() and path.suffix != ".json":
        raise UserError(f"--out {path}: is a file. Name a folder, or a file that ends in .json.")
    if path.is_file():
        _identities(path)


def joint_identity(results: Iterable[Result]) -> str:
    """16 hex digits of several evaluations, in whatever order; of a single one its own `Result.identity`."""
    own = sorted({result.identity for result in results})
    return own[0] if len(own) == 1 else hashlib.blake2b(_canonical(own), digest_size=8).hexdigest()


def save_together(results: Sequence[Result], path: Path) -> None:
    """Write results into one JSON file; it may take the place of the same evaluations only.

    Raises:
        UserError: the file is there and holds something else; if that is other evaluations, these are written into a
            file beside it, since they may have taken hours.
    """
    values, own = [result.as_json() for result in results], {result.identity for result in results}
    if path.exists() and _identities(path) != own:
        beside = path.with_name(f"{path.stem}--{joint_identity(results)}{path.suffix}")
        write_json(beside, values)
        raise UserError(f"{path}: holds other evaluations and stays as it is. These are in {beside}")
    write_json(path, values)


def _identities(path: Path) -> set[str]:
    """Which evaluations a file of `save_together` holds."""
    try:
        return {
            Result(**{key: item for key, item in one.items() if key != "format"}).identity for one in read_json(path)
        }
    except (TypeError, AttributeError, ValueError, UserError):
        raise UserError(f"{path}: is there already and holds something else. Name another, or move it away.") from None


def load_result(path: str | Path) -> Result:
    """Read one result file.

    Raises:
        UserError: no such file, not JSON, or not a result of this format.
    """
    value = read_json(path)
    if not isinstance(value, dict) or value.get("format") != RESULT_FORMAT:
        found = value.get("format") if isinstance(value, dict) else type(value).__name__
        raise UserError(
            f"{path}: not a result of format {RESULT_FORMAT} (found {found}). Evaluate again with this version."
        )
    fields = {key: item for key, item in value.items() if key != "format"}
    try:
        return Result(**fields)
    except TypeError as error:
        raise UserError(f"{path}: not a result file ({error})") from None


def load_results(folder: str | Path) -> list[Result]:
    """Every result in ``folder``, sorted by file name."""
    paths = sorted(Path(folder).glob("*.json"))
    if not paths:
        raise UserError(f"{folder}: no result files (*.json) here")
    return [load_result(path) for path in paths]


@dataclass(frozen=True)
class Summary:
    """Mean and sample standard deviation of one figure over seeds; ``std`` is NaN for a single one."""

    mean: float
    std: float
    count: int

    def __str__(self) -> str:
        return f"{self.mean:.1f}" if self.count < 2 else f"{self.mean:.1f} ± {self.std:.1f}"

    def signed(self) -> str:
        """With a sign, as gains are printed."""
        return f"{self.mean:+.1f}" if self.count < 2 else f"{self.mean:+.1f} ± {self.std:.1f}"


def summarise(values: Iterable[float]) -> Summary:
    """Mean and sample standard deviation (n − 1) of ``values``.

    Raises:
        ValueError: no values.
    """
    array = np.array(list(values), dtype=np.float64)
    if array.size == 0:
        raise ValueError("nothing to summarise")
    return Summary(float(array.mean()), float(array.std(ddof=1)) if array.size > 1 else float("nan"), array.size)
