"""Pictures that were removed from a memory on Milvus: a small collection beside that of its rows."""

import hashlib
from collections.abc import Collection
from dataclasses import asdict, astuple, fields
from typing import Any

from recollect.memory.backends.removals import Removal

_NAMES = [field.name for field in fields(Removal)]
_PAGE, _ROWS = 1_000, 256  # of what is read, and of a message
_LONGEST = 65_535  # bytes of a text field
_MARK = "recollect.removed"


def read_removed(client: Any, collection: str) -> list[Removal]:
    """All that are kept."""
    found = list[Removal]()
    if not client.has_collection(place := _place(collection)):
        return found
    client.load_collection(place)
    rows = client.query_iterator(place, batch_size=_PAGE, filter='key >= ""', output_fields=_NAMES)
    while batch := rows.next():
        found += [Removal(**{name: row[name] for name in _NAMES}) for row in batch]
    rows.close()
    return found


def keep_removed(client: Any, collection: str, removals: Collection[Removal]) -> None:
    """Keep these and no others: those that are new first."""
    before, wanted, place = set(read_removed(client, collection)), set(removals), _place(collection)
    if wanted and not client.has_collection(place):
        _create(client, place)
    rows = [{"key": _key(each), "unread": [1.0, 0.0], **asdict(each)} for each in wanted - before]
    for start in range(0, len(rows), _ROWS):
        client.upsert(place, rows[start : start + _ROWS])
    keys = [f'"{_key(each)}"' for each in before - wanted]
    for start in range(0, len(keys), _ROWS):
        client.delete(place, filter=f"key in [{', '.join(keys[start : start + _ROWS])}]")


def drop_removed(client: Any, collection: str) -> None:
    """Forget all, and that there was a place for them; a collection of that name that is none of ours stays."""
    if client.has_collection(place := _place(collection)) and _MARK in client.describe_collection(place)["properties"]:
        client.drop_collection(place)


def _place(collection: str) -> str:
    return f"{collection}__removed_pictures"


def _create(client: Any, place: str) -> None:
    from pymilvus import DataType

    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("key", DataType.VARCHAR, is_primary=True, max_length=64)
    schema.add_field("unread", DataType.FLOAT_VECTOR, dim=2)  # a collection has to have one
    for name in _NAMES:
        schema.add_field(name, DataType.VARCHAR, max_length=_LONGEST)
    index = client.prepare_index_params()
    index.add_index("unread", index_type="FLAT", metric_type="IP")
    more: dict[str, Any] = {"consistency_level": "Strong", "properties": {_MARK: "1"}}
    client.create_collection(place, schema=schema, index_params=index, **more)


def _key(removal: Removal) -> str:
    """Of letters and digits alone, whatever signs an id has."""
    return hashlib.blake2b(repr(astuple(removal)).encode(), digest_size=16).hexdigest()
