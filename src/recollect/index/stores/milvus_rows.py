"""Conversion of rows and filters to and from Milvus."""

import base64
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32

from recollect.core.content import hash_of
from recollect.core.errors import UserError
from recollect.core.validation import refuse
from recollect.index.arrow import caption_matrix, vector_matrix
from recollect.index.filters import MULTI_VALUED, NAMES, PHYSICAL, Condition, Filter, Junction, filter_value
from recollect.index.rows import Record, schema, unit_vectors

_MAX_BYTES = 65_535  # of a text field; there are no binary fields, so pictures are stored as base64
PICTURE = "entry < 0"
"""Filter for pictures: their entry is -1, or -2 without a vector; the entries of captions count from 0."""


def schema_of(client: Any, width: int) -> Any:
    """Return the schema of a collection whose entities are pictures and captions."""
    from pymilvus import DataType

    fields = client.create_schema(auto_id=False, enable_dynamic_field=False)
    fields.add_field("key", DataType.VARCHAR, is_primary=True, max_length=600)
    fields.add_field("vector", DataType.FLOAT_VECTOR, dim=width)
    for name, length in (("id", 512), ("row", _MAX_BYTES), ("image", _MAX_BYTES)):
        fields.add_field(name, DataType.VARCHAR, max_length=length)
    for name in ("entry", "count"):
        fields.add_field(name, DataType.INT64)
    fields.add_field("removed", DataType.BOOL)
    fields.add_field("facts", DataType.JSON)
    return fields


def _facts(row: dict[str, Any]) -> dict[str, Any]:
    """Return the filter values of a row for `milvus_filter`, without missing values.

    Lists of strings are also stored as one string with a line per value, for ``like '%words%'``.
    """
    found = {name: value for name, value in json.loads(row["metadata"]).items() if name not in NAMES}
    known = {name: filter_value(name, row[PHYSICAL.get(name, name)]) for name in NAMES if name != "id"}
    found |= {name: value for name, value in known.items() if value not in (None, [])}
    texts = {
        name: [each for each in value if isinstance(each, str)]
        for name, value in found.items()
        if isinstance(value, list)
    }
    return found | {f"{name} lines": "\n".join(some) for name, some in texts.items() if some}


def fields_of(names: Sequence[str]) -> list[str]:
    """Return the Milvus fields needed for columns of the index."""
    fields = ({"image_vector": "vector", "image": "image"}.get(name, "row") for name in names)
    return list(dict.fromkeys(["id", *fields]))


def entity_key(id: str, entry: int = -1, caption: str = "") -> str:
    """Return the key of a picture or caption; it contains a digest of the caption, so edited captions get new keys."""
    return f"-#{id}" if entry < 0 else f"{entry}#{hash_of(caption, 8)}#{id}"


def entities_of(rows: Any, record: Record, address: str) -> list[dict[str, Any]]:
    """Convert rows to Milvus entities: the captions of each picture, then the picture.

    Raises:
        UserError: a field exceeds Milvus's size limit.
    """
    flat, counts = caption_matrix(rows["caption_vectors"])
    texts, images = _rounded(flat, record, address), _rounded(vector_matrix(rows["image_vector"]), record, address)
    found, start = list[dict[str, Any]](), 0
    facts = rows.select([name for name in rows.column_names if "vector" not in name]).to_pylist()
    for row, image, count in zip(facts, images, counts.tolist(), strict=True):
        encoded, id = base64.b64encode(row.pop("image") or b"").decode(), row["id"]
        shared = {"id": id, "removed": row["removed"], "count": count, "facts": _facts(row)}
        for entry, caption in enumerate(row["captions"]):
            about = {"key": entity_key(id, entry, caption), "entry": entry, "vector": texts[start + entry]}
            found.append({**shared, **about, "row": "", "image": ""})
        about = {"key": entity_key(id), "entry": -1 if image.any() else -2, "vector": image}
        found.append({**shared, **about, "row": json.dumps(row, ensure_ascii=False), "image": encoded})
        for name in ("row", "image", "facts"):
            text = json.dumps(shared["facts"]) if name == "facts" else found[-1][name]
            what = f"{address}, picture '{id}': its {name} has more than {_MAX_BYTES:,} bytes"
            hint = " Use --pictures path or --pictures none." if name == "image" else ""
            refuse((len(text.encode()) > _MAX_BYTES, f"{what}, the limit of Milvus.{hint}"))
        start += count
    return found


def _rounded(vectors: np.ndarray, record: Record, address: str) -> Float32[np.ndarray, "rows width"]:
    """Round vectors to the precision of the index, as an index on disk would, and normalize them."""
    stored = vectors.reshape(-1, record.width).astype(record.precision).astype(np.float32)
    return unit_vectors(stored, record.width, address)


def arrow_table(
    rows: list[dict[str, Any]], names: list[str], record: Record, captions: Sequence[np.ndarray] = ()
) -> Any:
    """Convert Milvus results to an Arrow table in the schema of the index.

    Args:
        names: names of the columns.
        captions: caption vectors of each row, if ``caption_vectors`` is among the columns.
    """
    import pyarrow as pa

    types, converted = schema(record), list[dict[str, Any]]()
    for number, row in enumerate(rows):
        found = json.loads(row["row"]) if "row" in row else {}
        if "image_vector" in names:
            found["image_vector"] = np.array(row["vector"], dtype=record.precision)
        if "caption_vectors" in names:
            found["caption_vectors"] = list(captions[number].astype(record.precision))
        if "image" in names:
            found["image"] = base64.b64decode(row["image"]) or None
        converted.append({**found, "id": row["id"]})
    return pa.Table.from_pylist(converted, pa.schema([types.field(name) for name in names]))


def milvus_filter(where: Filter) -> str:
    """Convert a filter to a Milvus expression.

    Raises:
        UserError: a comparison of several values that Milvus does not support.
    """
    if isinstance(where, Junction):
        return "(" + f" {where.word} ".join(map(milvus_filter, where.parts)) + ")"
    return _condition(where)


def among(name: str, values: Sequence[str], inside: bool = True) -> str:
    """Return an ``in`` condition on strings; unlike with pymilvus's own templates, backslashes are escaped."""
    return f"{name} {'in' if inside else 'not in'} [{', '.join(map(milvus_text, values))}]"


def milvus_text(text: str) -> str:
    """Quote a string for Milvus, which supports C escapes but not JSON's ``\\u``."""
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return '"' + "".join(escapes.get(char, char) for char in text) + '"'


def conditions_on_lists(where: Filter) -> Iterator[tuple[Condition, str]]:
    """Yield the conditions that Milvus cannot test on lists, and the expression that is true for lists."""
    if isinstance(where, Junction):
        for part in where.parts:
            yield from conditions_on_lists(part)
    elif where.name not in NAMES and _list_values(where) is None:
        yield where, f"exists {_fact(where.name)}[0]"


def list_error(where: Condition) -> UserError:
    """Return the error for a condition that Milvus cannot test on lists."""
    return UserError(
        f"{where.name} {where.operator} {where.value!r}: on Milvus, {where.name} supports only =, !=, in and like "
        "'%words%', with texts, because pictures may have several values"
    )


def _fact(name: str) -> str:
    return f"facts[{json.dumps(name, ensure_ascii=False)}]"


def _condition(where: Condition) -> str:
    name = "id" if where.name == "id" else _fact(where.name)
    if isinstance(where.value, frozenset):
        return among("id", sorted(where.value), where.operator == "in")
    several = None if where.name in NAMES and where.name not in MULTI_VALUED else _list_values(where)
    if where.name not in MULTI_VALUED:
        one = _single_value(where, name, _literal(where.value))
        return one if several is None else f"({one} or {several})"
    if several is None:
        raise list_error(where)
    return several


def _literal(value: Any) -> str:
    return milvus_text(value) if isinstance(value, str) else json.dumps(value)


def _single_value(where: Condition, name: str, value: str) -> str:
    """Return the condition for a single value."""
    if where.operator == "!=":  # in Milvus, != is true for values of different types
        if isinstance(where.value, bool):
            return f"{name} == {json.dumps(not where.value)}"
        return f"({name} < {value} or {name} > {value})"
    if where.operator == "not like":
        # `not` is also true for missing values; every existing string is >= "".
        return f'({name} >= "" and not ({name} like {value}))'
    return f"{name} {'==' if where.operator == '=' else where.operator} {value}"


def _list_values(where: Condition) -> str | None:
    """Return the condition for a list of strings; None if Milvus cannot express it."""
    if not isinstance(where.value, str):
        return None
    name, lines, value = _fact(where.name), _fact(f"{where.name} lines"), _literal(where.value)
    inner = where.value.strip("%")
    if where.operator in ("=", "!="):
        condition = f"json_contains({name}, {value})"
    elif where.operator in ("like", "not like") and where.value == f"%{inner}%" and not {*"%\n"} & {*inner}:
        condition = f"{lines} like {value}"
    else:
        return None
    return f'({lines} >= "" and not ({condition}))' if where.operator in ("!=", "not like") else condition
