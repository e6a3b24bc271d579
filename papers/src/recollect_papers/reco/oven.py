"""OVEN (Hu et al., 2023): entity recognition among all of Wikipedia, from its published files.

The format follows the release page (github.com/open-vision-language/oven) and github.com/edchengg/oven_eval, read in
2026; it was not tested on the data themselves:

- ``oven_SET_PART.jsonl``, SET entity or query, PART train, val or test: on each line ``data_id``, ``image_id``,
  ``question``, ``entity_id`` (Wikidata's), ``entity_text`` and ``data_split``, which contains ``_seen`` or ``_unseen``
  (such as ``entity_val_unseen``): whether the entity occurs in training.
- pictures ``oven_images/NN/IMAGE_ID.ext`` with NN the first two digits of the number, or ``NN/IMAGE_ID.ext``.
- ``Wiki6M_ver_1_0_title_only.jsonl``: ``wikidata_id`` and ``wikipedia_title`` of the six million candidates.
"""

from pathlib import Path
from urllib.parse import parse_qsl

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from jaxtyping import Bool

from recollect.core.errors import UserError
from recollect.core.types import Source
from recollect.data.sources.columns import Columns
from recollect.data.sources.images import BROKEN_SHARE
from recollect.data.sources.subset import Subset
from recollect.data.sources.table import Origin, TableSource
from recollect.evaluation.tasks.classification import ClassificationTask

_PREFIX = "oven:"
"""``oven:FOLDER?set=query&part=val`` is an address of such a folder."""

TITLES_FILE = "Wiki6M_ver_1_0_title_only.jsonl"

_CHOICES = {"set": ("entity", "query"), "part": ("val", "train", "test")}
"""Settings of an address; the first of each is the default."""

_TEXT = ("data_id", "image_id", "question", "entity_id", "entity_text", "data_split")


def is_oven(spec: str) -> bool:
    """Whether this is an address of OVEN."""
    return spec.startswith(_PREFIX)


def open_oven(spec: str, templates: tuple[str, ...]) -> tuple[ClassificationTask, Bool[np.ndarray, " classes"]]:
    """A part of OVEN as a task over its candidates, and whether each of them is seen.

    Candidates are the six million titles if their file is in the folder, else the entities of all annotations there.
    The question is not used. Texts of all candidates are in memory (18 GB for six million at a width of 768), so use
    one template rather than CLIP's 80.

    Args:
        spec: ``oven:FOLDER``, with ``?set=query`` for the other set and ``?part=test`` for another part.
        templates: prompt templates for the entities' names.

    Raises:
        UserError: no such folder, set, part or file; another file format; annotations without entities; more than 1 %
            of the pictures are missing; no row of seen or of unseen entities.
    """
    folder, chosen = _parse(spec)
    stem = f"oven_{chosen['set']}_{chosen['part']}"
    file = folder / f"{stem}.jsonl"
    rows = _read(file, _TEXT)
    if (absent := rows.column("entity_id").null_count) > 0:
        raise UserError(f"{file}: {absent:,} of {len(rows):,} rows have no entity_id, so that nothing can be measured.")
    ids, names = _candidates(folder, file)
    place = {entity: number for number, entity in enumerate(ids)}
    labels = np.array([place[entity] for entity in rows.column("entity_id").to_pylist()], dtype=np.int64)
    seen = _seen(rows, labels, len(ids), file)
    query = _pictures(stem.replace("_", "-"), folder, file, rows, labels, names)
    return ClassificationTask(query.name, Subset(query, np.arange(0)), query, names, templates), seen


def _parse(spec: str) -> tuple[Path, dict[str, str]]:
    """The folder, the set and the part."""
    place, _, options = spec.removeprefix(_PREFIX).partition("?")
    chosen = {name: values[0] for name, values in _CHOICES.items()}
    for key, value in parse_qsl(options, keep_blank_values=True):
        if value not in _CHOICES.get(key, ()):
            raise UserError(f"{spec}: write {_PREFIX}FOLDER?set=entity|query&part=train|val|test, not {key}={value}")
        chosen[key] = value
    folder = Path(place).expanduser()
    if not folder.is_dir():
        raise UserError(f"{spec}: no folder {folder}")
    return folder, chosen


def _read(file: Path, fields: tuple[str, ...]) -> pa.Table:
    """Text columns of a file of JSON lines; a field that a line does not have is null there."""
    if not file.is_file():
        raise UserError(f"{file}: no such file. It is published at github.com/open-vision-language/oven")
    schema = pa.schema([(name, pa.string()) for name in fields])
    options = pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    try:
        return pa.json.read_json(file, parse_options=options, read_options=pa.json.ReadOptions(block_size=2**24))
    except pa.ArrowInvalid as error:
        raise UserError(f"{file}: not of the published form, a line with {', '.join(fields)} ({error})") from None


def _candidates(folder: Path, asked: Path) -> tuple[list[str], tuple[str, ...]]:
    """Wikidata's ids and names of the candidates; those of the annotations that are asked are always among them."""
    parts = []
    if (titles := folder / TITLES_FILE).is_file():
        parts.append(_read(titles, ("wikidata_id", "wikipedia_title")))
        files = [asked]
    else:
        files = sorted(folder.glob("oven_*.jsonl"))
    parts += [_read(file, ("entity_id", "entity_text")) for file in files]
    named = pa.concat_tables([part.rename_columns(["id", "name"]) for part in parts]).drop_null()
    first = named.append_column("row", pa.array(np.arange(len(named))))
    kept = np.sort(first.group_by("id").aggregate([("row", "min")]).column("row_min").to_numpy())
    chosen = named.take(pa.array(kept))
    return chosen.column("id").to_pylist(), tuple(chosen.column("name").to_pylist())


def _seen(rows: pa.Table, labels: np.ndarray, classes: int, file: Path) -> np.ndarray:
    """Of each candidate whether it occurs in training, as the rows say; one that no row shows counts as unseen."""
    split = pc.fill_null(rows.column("data_split"), "")
    known, new = (pc.match_substring(split, word).to_numpy() for word in ("_seen", "_unseen"))
    if not (known | new).all():
        wrong = split[int(np.flatnonzero(~(known | new))[0])].as_py()
        raise UserError(f"{file}: data_split '{wrong}' says neither _seen nor _unseen. Take ?part=val or ?part=test.")
    found = np.zeros((2, classes), dtype=bool)
    found[0, labels[known]], found[1, labels[new]] = True, True
    if (both := np.flatnonzero(found.all(axis=0))).size:
        raise UserError(f"{file}: {both.size} entities are seen in some rows and unseen in others; the file is damaged")
    return found[0]


def _pictures(
    name: str, folder: Path, file: Path, rows: pa.Table, labels: np.ndarray, names: tuple[str, ...]
) -> Source:
    """The rows as a source; a picture that is missing is left out as a broken one is, if they are few."""
    shards: dict[str, dict[str, str]] = {}
    ids, paths = list(map(str, rows.column("image_id").to_pylist())), []
    for each in ids:
        number = each.rpartition("_")[2][:2]
        if number not in shards:
            shards[number] = _shard(folder, number)
        paths.append(shards[number].get(each))
    missing = [each for each, path in zip(ids, paths, strict=True) if path is None]
    if len(missing) > BROKEN_SHARE * len(paths):
        raise UserError(
            f"{file}: {len(missing):,} of {len(paths):,} pictures are not there, such as {missing[0]}. They belong in "
            f"{folder}/oven_images/{missing[0].rpartition('_')[2][:2]}/"
        )
    table = datasets.Dataset(pa.table({"data_id": rows.column("data_id"), "image": pa.array(paths, pa.string())}))
    columns, origin = Columns(image="image", id="data_id"), Origin(file.name, (file,), folder)
    return TableSource(name, "label", names, table, np.arange(len(table)), labels, columns, origin)


def _shard(folder: Path, number: str) -> dict[str, str]:
    """Pictures of one shard: their path in the folder by their id."""
    found: dict[str, str] = {}
    for place in (f"oven_images/{number}", number):
        if (folder / place).is_dir():
            found |= {path.stem: f"{place}/{path.name}" for path in sorted((folder / place).iterdir())}
    return found


ENTITY_SETS = {"oven": open_oven}
