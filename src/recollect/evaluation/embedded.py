"""Writes embeddings of a labelled set as Parquet or .npy, in the layout that `own_features` reads."""

from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recollect.classifiers.texts import learned_scale
from recollect.core.files import fresh_folder, write_json
from recollect.core.ordering import in_order
from recollect.core.types import Encoder, Kind
from recollect.evaluation.features import class_text_features, image_features
from recollect.evaluation.tasks.classification import ClassificationTask

_IMAGES, _TEXTS, _RECORD = "images", "texts", "embedded.json"

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
    """Embed a task: its examples (split ``train``), its tested pictures (``test``) and its class texts.

    ``parquet`` writes ``images.parquet`` with columns ``vector``, ``label``, ``id`` and ``split``, and
    ``texts.parquet`` with ``vector`` and ``label``. ``npy`` writes ``train.npy``, ``test.npy`` (rows, width),
    ``train-labels.npy``, ``test-labels.npy``, and ``texts.npy`` in the order of the sorted labels. ``embedded.json``
    describes model and data.

    Raises:
        UserError: ``folder`` exists.
    """
    names = np.array(task.class_names, dtype=str)
    texts = class_text_features(encoder, task, prefix)
    found = {
        split: image_features(encoder, source) for split, source in (("train", task.support), ("test", task.query))
    }
    with fresh_folder(folder, "embedded task") as unfinished:
        if form == "npy":
            for split, rows in found.items():
                np.save(unfinished / f"{split}.npy", rows.images)
                np.save(unfinished / f"{split}-labels.npy", names[rows.labels])
            np.save(unfinished / f"{_TEXTS}.npy", texts[in_order(names)])
        else:
            columns = {
                "vector": _lists(np.concatenate([rows.images for rows in found.values()])),
                "label": [name for rows in found.values() for name in names[rows.labels].tolist()],
                "id": [id for rows in found.values() for id in rows.ids],
                "split": [split for split, rows in found.items() for _ in rows.ids],
            }
            pq.write_table(pa.table(columns), unfinished / f"{_IMAGES}.parquet")
            pq.write_table(
                pa.table({"vector": _lists(texts), "label": names.tolist()}), unfinished / f"{_TEXTS}.parquet"
            )
        record = {"name": task.name, "model": model, "fingerprint": encoder.fingerprint, "metric": task.metric}
        write_json(unfinished / _RECORD, record | {"scale": learned_scale(encoder), "width": encoder.width})
    return Path(folder)


def _lists(vectors: np.ndarray) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
