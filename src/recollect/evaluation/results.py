"""Result files: one JSON for each model, data set, protocol and seed."""

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
from recollect.core.errors import UserError, user_errors
from recollect.core.files import locked, make_folder, read_json, write_json
from recollect.core.types import Encoder, Source
from recollect.core.validation import refuse

RESULT_FORMAT = 1
"""Version of the files."""

ResultRow = Mapping[str, Any]

_MAX_NAME_LENGTH = 200  # file systems allow 255 bytes


@cache
def _environment() -> dict[str, str]:
    import transformers  # slow to import

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
    """Result of one evaluation.

    Attributes:
        protocol: ``zero-shot``, ``few-shot``, ``retrieval``, ``probe``, ...
        model: name of the model (a path, a hub id, a recipe).
        seed: seed of the model's training or of the protocol.
        rows: figures, each with its own keys (``method``, ``shots``, ``metric``) and a ``value``.
        settings: everything else that affects the figures.
        environment: versions and device; not part of `identity`.
        notes: observations such as seconds and counts; not part of `identity`.
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
        """Hash of protocol, model, data, seed and settings (16 hex digits)."""
        inputs = [self.protocol, self.model, self.data, self.seed, self.settings]
        return hashlib.blake2b(_canonical(inputs), digest_size=8).hexdigest()

    @property
    def file_name(self) -> str:
        """Readable name with `identity`, unique to this evaluation."""
        prefix = self.settings.get("prefix")
        read = [f"{prefix}-prefix"] if prefix else []
        parts = (self.protocol, self.model, self.data, *read, f"seed{self.seed}")
        name = "--".join(re.sub(r"[^A-Za-z0-9._=-]+", "-", part).strip("-") for part in parts)
        return f"{name[: _MAX_NAME_LENGTH - 18]}--{self.identity}.json"

    def save(self, folder: str | Path) -> Path:
        """Write the result into ``folder`` as `file_name`, replacing an earlier result of the same evaluation."""
        path = Path(folder) / self.file_name
        write_json(path, self.as_json())
        return path

    def as_json(self) -> dict[str, Any]:
        """Return the content of the result file."""
        return {"format": RESULT_FORMAT, **asdict(self)}


def _canonical(value: Any) -> bytes:
    """Return JSON that does not depend on the order of keys, or on tuple or list."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str).encode()


def content_of(encoder: Encoder, *sources: Source, inputs: Any = None) -> dict[str, str]:
    """Return hashes of model, data and texts, as settings of a `Result`.

    Args:
        encoder: its fingerprint covers weights, transform and dtype.
        sources: their fingerprints cover every sample.
        inputs: texts and other inputs, if any.
    """
    data = "".join(str(source.fingerprint) for source in sources)
    parts = {"model_content": str(encoder.fingerprint).encode(), "data_content": data.encode()}
    if inputs is not None:
        parts["texts_content"] = _canonical(inputs)
    return {name: hashlib.blake2b(text, digest_size=8).hexdigest() for name, text in parts.items()}


def check_place(path: Path | None) -> None:
    """Check before an evaluation that its results can be written to a folder or, together, to a .json file.

    Raises:
        UserError: a file without results, a file that is not .json, or a folder with the name of a .json file.
    """
    if path is None or not path.exists():
        return
    refuse(
        (path.is_dir() and path.suffix == ".json", f"--out {path}: is a folder. Use a name without .json."),
        (path.is_file() and path.suffix != ".json", f"--out {path}: is a file. Name a folder, or a .json file."),
    )
    if path.is_file():
        load_results(path)


def joint_identity(results: Iterable[Result]) -> str:
    """Hash several evaluations in any order (16 hex digits); a single one has its `Result.identity`."""
    identities = sorted({result.identity for result in results})
    return identities[0] if len(identities) == 1 else hashlib.blake2b(_canonical(identities), digest_size=8).hexdigest()


def save_together(results: Sequence[Result], path: Path) -> None:
    """Add results to one JSON file; earlier results of the same evaluations are replaced, others stay.

    Raises:
        UserError: the file has other content.
    """
    new = {result.identity for result in results}
    make_folder(path.parent)
    with locked(path.with_name(f".{path.name}.lock")):  # other evaluations may add to it at the same time
        others = [result for result in load_results(path) if result.identity not in new] if path.exists() else []
        write_json(path, [result.as_json() for result in (*others, *results)])


def _result(value: Any, path: str | Path) -> Result:
    if not isinstance(value, dict) or value.get("format") != RESULT_FORMAT:
        found = value.get("format") if isinstance(value, dict) else type(value).__name__
        raise UserError(f"{path}: not a result of format {RESULT_FORMAT} (found {found}). Evaluate again.")
    with user_errors(f"{path}: not a result file", TypeError):
        return Result(**{key: item for key, item in value.items() if key != "format"})


def load_results(place: str | Path) -> list[Result]:
    """Read the results in a folder's .json files, sorted by file name, or in one .json file.

    Raises:
        UserError: no such file, or one that is not JSON or not of this format.
    """
    place = Path(place)
    paths = sorted(place.glob("*.json")) if place.is_dir() else [place]
    if not paths:
        raise UserError(f"{place}: no result files (*.json)")
    values = ((path, read_json(path)) for path in paths)
    return [_result(each, path) for path, value in values for each in (value if isinstance(value, list) else [value])]


@dataclass(frozen=True)
class Summary:
    """Mean and sample standard deviation over seeds; ``std`` is NaN for a single one."""

    mean: float
    std: float
    count: int

    def __str__(self) -> str:
        return f"{self.mean:.1f}" if self.count < 2 else f"{self.mean:.1f} ± {self.std:.1f}"

    def signed(self) -> str:
        """Format the summary with a sign, for gains."""
        return f"{self.mean:+.1f}" if self.count < 2 else f"{self.mean:+.1f} ± {self.std:.1f}"


def summarize(values: Iterable[float]) -> Summary:
    """Compute mean and sample standard deviation (n − 1) of ``values``.

    Raises:
        ValueError: no values.
    """
    array = np.array(list(values), dtype=np.float64)
    if array.size == 0:
        raise ValueError("nothing to summarize")
    return Summary(float(array.mean()), float(array.std(ddof=1)) if array.size > 1 else float("nan"), array.size)
