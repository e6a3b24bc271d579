"""Classifier on disk: ``classifier.json``, one safetensors file, and a README with the measured accuracy.

The JSON contains the name of the safetensors file and the checksums of both, so loading detects corruption, partial
copies and mixed versions. A new version writes its arrays first and then replaces the JSON, so readers see the old
version or the new one, even if the writer is killed.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as dump_tensors

from recollect.core.errors import UserError, user_errors
from recollect.core.files import atomic_path, fresh_folder, locked, read_json, write_json, write_text

Restored = TypeVar("Restored")

CLASSIFIER_FORMAT = 1
CLASSIFIER_FILE = "classifier.json"
CARD_FILE = "README.md"
_LOCK = ".lock"


def save_classifier(
    description: Mapping[str, Any], tensors: Mapping[str, np.ndarray], trust: str, folder: Path, replace: bool
) -> Path:
    """Write description, arrays and README (see `Classifier.save`).

    Args:
        trust: measured accuracy as text, for the README.
    """
    numbers = dump_tensors({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()})
    arrays = {"numbers": f"numbers-{_digest(numbers)[:16]}.safetensors", "numbers_digest": _digest(numbers)}
    record = {"format": CLASSIFIER_FORMAT, **description, **arrays}
    record["digest"] = _digest(_canonical(record))
    if replace and (folder / CLASSIFIER_FILE).exists():
        with locked(folder / _LOCK):  # one writer at a time
            _write(folder, record, numbers, trust)
            for old in folder.glob("numbers-*.safetensors"):
                if old.name != record["numbers"]:
                    old.unlink(missing_ok=True)
        return folder
    with fresh_folder(folder, "classifier") as unfinished:
        _write(unfinished, record, numbers, trust)
    return folder


def _write(folder: Path, record: Mapping[str, Any], numbers: bytes, trust: str) -> None:
    with atomic_path(folder / record["numbers"]) as unfinished:
        unfinished.write_bytes(numbers)
    write_json(folder / CLASSIFIER_FILE, record)
    write_text(folder / CARD_FILE, _card(record, trust))


def _card(description: Mapping[str, Any], trust: str) -> str:
    """Return the README of a classifier."""
    classes, model, method = description["classes"], description["model"], description["method"]
    names = [_plain(each["name"]) for each in classes]
    listed = ", ".join(f"`{name}`" for name in names[:12]) + (" and others" if len(names) > 12 else "")
    chosen = " (chosen on held-out examples)" if method["asked"] == "best" else ""
    lines = [
        f"# A classifier of {len(classes)} classes",
        "",
        f"It distinguishes {listed}, with the embeddings of `{_plain(model['name'] or 'a model')}` "
        f"({model['fingerprint'][:12]}).",
        "",
        "| class | examples |",
        "|---|---|",
        *(f"| {name} | {each['examples']} |" for name, each in zip(names, classes, strict=True)),
        "",
        f"**Method**: {method['used']}{chosen}; {trust}",
        "",
        "```",
        "recollect classify --with THIS_FOLDER --images new/",
        "```",
        "",
        "```python",
        "from recollect import Classifier, load_model",
        "",
        'classifier = Classifier.load("THIS_FOLDER")',
        "model = load_model(classifier.model.name)",
        "classifier.predict(model.embed_images(pictures))",
        "```",
        "",
        "`classifier.json` describes it; the safetensors file holds embeddings. The pictures are not included.",
    ]
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """Return a name that is safe in a Markdown table."""
    return " ".join(text.replace("|", "/").replace("`", "'").split())


def load_classifier(folder: Path, restore: Callable[[dict[str, Any], dict[str, np.ndarray]], Restored]) -> Restored:
    """Read a folder and pass its record and arrays to ``restore`` (see `Classifier.load`)."""
    if not folder.is_dir():
        raise UserError(
            f"{folder}: no such classifier. Teach one with `recollect classify --support ... --save {folder}`."
        )
    if not (folder / CLASSIFIER_FILE).exists():
        held = ", ".join(sorted(entry.name for entry in folder.iterdir())[:5]) or "nothing"
        raise UserError(f"{folder}: not a classifier (it contains {held}). Name the folder with {CLASSIFIER_FILE}.")
    for attempt in (1, 2):  # another process may replace the classifier between the two reads
        record = _checked(read_json(folder / CLASSIFIER_FILE), folder)
        try:
            data = (folder / record["numbers"]).read_bytes()
            break
        except FileNotFoundError:
            if attempt == 2:
                raise UserError(f"{folder}: {record['numbers']} is missing. Copy the folder again.") from None
    if _digest(data) != record["numbers_digest"]:
        raise UserError(f"{folder}: {record['numbers']} is damaged (its checksum differs). Copy the folder again.")
    kinds = (SafetensorError, KeyError, TypeError, ValueError, IndexError)
    with user_errors(f"{folder}: cannot be opened", *kinds, then=". Copy the folder again."):
        return restore(record, load_tensors(data))


def _checked(record: Any, folder: Path) -> dict[str, Any]:
    where = folder / CLASSIFIER_FILE
    if not isinstance(record, dict) or not isinstance(record.get("format"), int):
        raise UserError(f"{where}: not a classifier of recollect")
    if record["format"] > CLASSIFIER_FORMAT:
        raise UserError(f"{where}: written by a newer recollect (format {record['format']}). Update recollect.")
    rest = {key: value for key, value in record.items() if key != "digest"}
    if _digest(_canonical(rest)) != record.get("digest"):
        raise UserError(f"{where}: changed or damaged (its checksum differs). Copy the folder again.")
    if Path(record["numbers"]).name != record["numbers"]:
        raise UserError(f"{where}: its arrays are outside the folder. Copy the folder again.")
    return record


def _canonical(record: Any) -> bytes:
    return json.dumps(record, sort_keys=True, ensure_ascii=False, allow_nan=False).encode(errors="surrogatepass")


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
