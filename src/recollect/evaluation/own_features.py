"""Files of labeled embeddings: writing them, and opening them as tasks."""

import hashlib
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch import Tensor

from recollect.classifiers.texts import learned_scale
from recollect.core.errors import UserError, user_errors
from recollect.core.files import fresh_folder, write_json
from recollect.core.ordering import stable_argsort
from recollect.core.types import TEXT_SCALE, Encoder, Kind, Sample, Source
from recollect.data.sources.images import note
from recollect.evaluation.features import class_text_features, image_features
from recollect.evaluation.tasks.classification import ClassificationTask, Division, tested_mask

EMBEDDED_FILE = "embedded.json"
"""Record of model, scale and metric next to the files that `write_embedded` writes."""

_VECTORS = ("vector", "embedding", "image_vector", "features")
_LABELS = ("label", "class_name")
"""Column names, in order of preference."""


@dataclass(frozen=True)
class LabeledVectors:
    """Labeled embeddings.

    Attributes:
        vectors: unit-norm float32 (n, width).
        labels: class labels as text (n,).
        numbers: whether the labels were numbers, which are sorted by value.
        splits: split of each row, or an empty string; None if the file has no splits.
    """

    vectors: np.ndarray
    labels: np.ndarray
    numbers: bool
    splits: np.ndarray | None = None

    def take(self, kept: np.ndarray) -> "LabeledVectors":
        """Return some of the rows, without splits."""
        return LabeledVectors(self.vectors[kept], self.labels[kept], self.numbers)

    def of_split(self, path: Path, names: Sequence[str]) -> tuple[str, "LabeledVectors"]:
        """Return the first of ``names`` that is a split, and its rows.

        Raises:
            UserError: none is a split.
        """
        if self.splits is None:
            raise UserError(f"{path}: no column 'split', so no split {' or '.join(names)}")
        if name := next((name for name in names if (self.splits == name).any()), None):
            return name, self.take(self.splits == name)
        splits = ", ".join(sorted(filter(None, set(self.splits.tolist()))))
        raise UserError(
            f"{path}: no rows of split {' or '.join(names)}; it has {splits}. Name one with --support, --query."
        )


class _VectorSource(Source):
    """Rows of embeddings as samples."""

    kind: Kind = "label"

    def __init__(self, name: str, rows: LabeledVectors, class_names: tuple[str, ...]) -> None:
        self.name, self.class_names, self._vectors = name, class_names, rows.vectors
        numbers = {name: number for number, name in enumerate(class_names)}
        self.labels = np.array([numbers[label] for label in rows.labels.tolist()])

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.blake2b("\x1f".join(self.class_names).encode(), digest_size=16)
        for array in (self._vectors, self.labels):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        return Sample(self._vectors[index], (), int(self.labels[index]), self.name, "label", f"row-{index}")


@dataclass(frozen=True)
class VectorEncoder(Encoder):
    """Encoder that returns vectors unchanged, and looks up the vector of each text.

    Attributes:
        texts: unit-norm vectors (width,) by text.
    """

    width: int
    texts: Mapping[str, np.ndarray]
    scale: float = TEXT_SCALE

    @property
    def fingerprint(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for name, vector in self.texts.items():
            digest.update(name.encode() + vector.tobytes())
        return digest.hexdigest()

    def embed_images(self, images: Tensor | Sequence[Any]) -> Tensor:
        return torch.from_numpy(np.stack(list(images)))

    def embed_texts(self, texts: Sequence[str], prefix: Kind | None = None) -> Tensor:
        return torch.from_numpy(np.stack([self.texts[text] for text in texts]))


def vector_task(
    name: str,
    parts: tuple[LabeledVectors, LabeledVectors],
    texts: Path | None = None,
    label_column: str | None = None,
    scale: float = TEXT_SCALE,
) -> tuple[VectorEncoder, ClassificationTask]:
    """Create a task of examples and tested rows, with the encoder that reads it.

    Args:
        texts: class texts. A .npy file has a row for each class in the order of the sorted labels. A Parquet file has
            labels, and several rows of a class are its prompts. None for a task without texts.

    Raises:
        UserError: fewer than two classes, a class without a text, or a different width or number of rows.
    """
    labels = np.unique(np.concatenate([part.labels for part in parts])).tolist()
    classes = tuple(sorted(labels, key=float) if all(part.numbers for part in parts) else labels)
    if len(classes) < 2:
        raise UserError(f"{name}: only one class, '{classes[0]}'. Two or more are needed.")
    width = parts[0].vectors.shape[1]
    named = _texts(texts, classes, label_column) if texts else {}
    others = (parts[1].vectors, *(vectors for vectors in named.values()))
    if wrong := next((each.shape[1] for each in others if each.shape[1] != width), None):
        raise UserError(f"{texts or name}: vectors of {wrong} numbers; the examples have {width}")
    prompts = tuple(tuple(f"{each} {i}" for i in range(len(named[each]))) for each in classes if named)
    vectors = {prompt: row for each, own in zip(classes, prompts, strict=False)
               for prompt, row in zip(own, named[each], strict=True)}  # fmt: skip
    support, query = (_VectorSource(name, part, classes) for part in parts)
    return VectorEncoder(width, vectors, scale), ClassificationTask(name, support, query, classes, (), prompts)


def _texts(path: Path, classes: Sequence[str], label_column: str | None) -> dict[str, np.ndarray]:
    """Return the unit-norm texts of each class (prompts, width)."""
    if path.suffix == ".npy":
        matrix = _array(path)
        if matrix.ndim != 2 or len(matrix) != len(classes):
            raise UserError(
                f"{path}: has shape {matrix.shape}; needs one row for each of {len(classes)} classes in sorted order"
            )
        order = ", ".join(classes[:3]) + (", …" if len(classes) > 3 else "")
        note(f"{path}: its rows are taken as the texts of the classes in sorted order: {order}")
        return dict(zip(classes, _unit(matrix, path)[:, None], strict=True))
    found = read_vectors(path, label_column)
    if missing := sorted(set(classes) - set(found.labels.tolist())):
        raise UserError(f"{path}: no text for class '{missing[0]}'")
    return {name: found.vectors[found.labels == name] for name in classes}


def read_vectors(path: Path, label_column: str | None = None) -> LabeledVectors:
    """Read a Parquet file of embeddings.

    Raises:
        UserError: no such file or columns, vectors of different lengths, or zero or non-finite rows.
    """
    table = _table(path)
    if not len(table):
        raise UserError(f"{path}: no rows")
    vectors = _unit(_matrix(path, table, _column(path, table, _VECTORS, None, "vectors")), path)
    labels = table[_column(path, table, _LABELS, label_column, "labels")].to_pylist()
    return LabeledVectors(vectors, *_label_texts(labels, path), _splits(table, path))


def _splits(table: pa.Table, path: Path) -> np.ndarray | None:
    """Return the split of each row, or an empty string; None if no row has one."""
    values = table["split"].to_pylist() if "split" in table.column_names else []
    splits = np.array(["" if split is None else str(split) for split in values])
    missing = splits == ""
    if not splits.size or missing.all():
        return None
    if missing.any():
        first = int(missing.argmax())
        note(f"{path}: left out {missing.sum():,} of {len(splits):,} rows without a split (row {first} first)")
    return splits


def read_arrays(vectors: Path, labels: Path) -> LabeledVectors:
    """Read two .npy files: embeddings (n, width), and their labels (n,), numbers or text.

    Raises:
        UserError: no such file, a wrong shape, or zero or non-finite rows.
    """
    matrix, named = _array(vectors), _array(labels)
    if matrix.ndim != 2 or matrix.dtype.kind not in "fiu":
        raise UserError(f"{vectors}: has shape {matrix.shape} of {matrix.dtype}; rows of numbers (n, width) are needed")
    if named.shape != (len(matrix),):
        raise UserError(f"{labels}: has shape {named.shape}; one label for each of {len(matrix):,} rows is needed")
    return LabeledVectors(_unit(matrix, vectors), *_label_texts(named.tolist(), labels))


def _label_texts(labels: Sequence[Any], path: Path) -> tuple[np.ndarray, bool]:
    """Return labels as NFC text, and whether they were numbers; 1.0 becomes 1, bytes are decoded as UTF-8.

    Raises:
        UserError: missing labels (null, NaN, empty), or several in a row.
    """
    if any(isinstance(label, list | dict) for label in labels):
        raise UserError(
            f"{path}: a row has several labels or a structure. Each row needs one label; for several use "
            "`recollect evaluate multilabel`."
        )
    if missing := [row for row, label in enumerate(labels) if label is None or label != label or label in ("", b"")]:
        rows = ", ".join(map(str, missing[:5])) + (", …" if len(missing) > 5 else "")
        raise UserError(f"{path}: {len(missing)} rows have no label ({rows}). Remove them or add labels.")
    whole = (int(label) if isinstance(label, float) and label.is_integer() else label for label in labels)
    texts = (label.decode(errors="replace") if isinstance(label, bytes) else str(label) for label in whole)
    numbers = all(type(label) in (int, float) for label in labels)
    return np.array([_normalized(text) for text in texts]), numbers


def _normalized(label: str) -> str:
    """Return a label in the Unicode form in which labels are compared and sorted."""
    return unicodedata.normalize("NFC", label)


def divided(rows: LabeledVectors, path: Path, division: Division) -> tuple[LabeledVectors, LabeledVectors]:
    """Divide rows into examples and tested rows, by the file's splits or in halves of each class.

    Raises:
        UserError: no such split.
    """
    if rows.splits is not None and division.within is None:
        support, examples = rows.of_split(path, (division.support or "train",))
        query, tested = rows.of_split(path, (division.query,) if division.query else ("test", "validation", "val"))
        if support == query:
            raise UserError(
                f"{path}: examples and tested rows are both split '{query}'. Name another with --support or --query, "
                f"or divide it with --within {query}."
            )
        return examples, tested
    if division.within is not None:
        _, rows = rows.of_split(path, (division.within,))
    elif division.query is not None or division.support not in (None, "train"):
        wanted = division.query or division.support
        raise UserError(f"{path}: no column 'split', so no split {wanted}. Half of each class is tested.")
    else:
        note(f"{path}: no splits, so half of each class is tested and the rest are examples")
    classes, numbers = np.unique(rows.labels, return_inverse=True)
    half = tested_mask(numbers, tuple(classes.tolist()), division)
    return rows.take(~half), rows.take(half)


def _array(path: Path) -> np.ndarray:
    then = ". Save text as np.array(labels, dtype=str)."
    with user_errors(f"{path}: not a .npy file of numbers or text", ValueError, OSError, EOFError, then=then):
        return np.load(path, allow_pickle=False)


def _table(path: Path) -> pa.Table:
    with user_errors(f"{path}: not a Parquet file", pa.ArrowException, OSError):
        return pq.read_table(path)


def _column(path: Path, table: pa.Table, usual: Sequence[str], named: str | None, what: str) -> str:
    wanted = (named,) if named else usual
    if found := next((name for name in wanted if name in table.column_names), None):
        return found
    existing = ", ".join(f"'{name}'" for name in table.column_names)
    raise UserError(f"{path}: no column of {what} ({' or '.join(wanted)}). It has {existing}.")


def _matrix(path: Path, table: pa.Table, name: str) -> np.ndarray:
    column = table[name].combine_chunks()
    with user_errors(f"{path}: column '{name}' contains {column.type}; lists of numbers are needed", pa.ArrowException):
        column = column.cast(pa.large_list(pa.float64()))
    lengths = pc.unique(pc.list_value_length(column)).to_pylist()
    if len(lengths) != 1 or not lengths[0]:
        found = ", ".join(map(str, lengths[:5]))
        raise UserError(f"{path}: column '{name}' has vectors of length {found}; all need the same positive length")
    return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)


def _unit(matrix: np.ndarray, path: Path) -> np.ndarray:
    if not len(matrix):
        raise UserError(f"{path}: no rows")
    matrix = matrix.astype(np.float64)
    if not np.isfinite(matrix).all():
        raise UserError(f"{path}: row {int(np.argmin(np.isfinite(matrix).all(axis=1)))} contains NaN or infinity")
    largest = np.abs(matrix).max(axis=1, initial=0, keepdims=True)  # scale first, so squares stay in range
    if not largest.all():
        raise UserError(f"{path}: row {int(largest.argmin())} is zero")
    matrix /= largest
    return (matrix / np.linalg.norm(matrix, axis=1, keepdims=True)).astype(np.float32)


FileForm = Literal["parquet", "npy"]


def write_embedded(
    encoder: Encoder,
    task: ClassificationTask,
    folder: str | Path,
    *,
    model: str,
    form: FileForm = "parquet",
    prefix: Kind | None = None,
) -> Path:
    """Embed a task and write its examples (split ``train``), tested pictures (``test``) and class texts.

    ``parquet`` writes ``images.parquet`` with columns ``vector``, ``label``, ``id`` and ``split``, and
    ``texts.parquet`` with ``vector`` and ``label``. ``npy`` writes ``train.npy``, ``test.npy`` (rows, width),
    ``train-labels.npy``, ``test-labels.npy``, and ``texts.npy`` in the order of the sorted labels. ``embedded.json``
    describes model and data.

    Raises:
        UserError: ``folder`` exists.
    """
    names = np.array([_normalized(name) for name in task.class_names], dtype=str)
    texts = class_text_features(encoder, task, prefix)
    found = {
        split: image_features(encoder, source) for split, source in (("train", task.support), ("test", task.query))
    }
    with fresh_folder(folder, "embedded task") as unfinished:
        if form == "npy":
            for split, rows in found.items():
                np.save(unfinished / f"{split}.npy", rows.images)
                np.save(unfinished / f"{split}-labels.npy", names[rows.labels])
            np.save(unfinished / "texts.npy", texts[stable_argsort(names)])
        else:
            columns = {
                "vector": _lists(np.concatenate([rows.images for rows in found.values()])),
                "label": [name for rows in found.values() for name in names[rows.labels].tolist()],
                "id": [id for rows in found.values() for id in rows.ids],
                "split": [split for split, rows in found.items() for _ in rows.ids],
            }
            pq.write_table(pa.table(columns), unfinished / "images.parquet")
            pq.write_table(pa.table({"vector": _lists(texts), "label": names.tolist()}), unfinished / "texts.parquet")
        record = {"name": task.name, "model": model, "fingerprint": encoder.fingerprint, "metric": task.metric}
        write_json(unfinished / EMBEDDED_FILE, record | {"scale": learned_scale(encoder), "width": encoder.width})
    return Path(folder)


def _lists(vectors: np.ndarray) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
