"""Every place that keeps a memory's rows does what `Backend` promises; and the check finds those that do not."""

import numpy as np
import pytest

from recollect.memory.backends.base import Hits
from recollect.memory.backends.lance import LanceBackend
from recollect.memory.backends.milvus import MilvusBackend
from recollect.memory.backends.removals import Removal
from recollect.memory.rows import Record
from recollect.testing import ListBackend, check_backend


def test_a_folder_keeps_the_promises(tmp_path):
    address = str(tmp_path / "memory")
    check_backend(lambda record: LanceBackend.create(address, record), lambda: LanceBackend(address))


def test_a_collection_keeps_the_promises(tmp_path):
    address = f"milvus://{tmp_path}/lite.db/rows"
    check_backend(lambda record: MilvusBackend.create(address, record), lambda: MilvusBackend(address))
    backend = MilvusBackend(address)
    backend.keep_removals([Removal("photos", "photos:a", "content", "digest")])
    backend.client.drop_collection("rows")
    assert MilvusBackend.create(address, backend.record).removals() == [], "of a memory that was dropped, nothing stays"


def checked(kind):
    place = kind(Record(8, "model"))
    check_backend(place.clear, lambda: place)


def test_a_list_keeps_the_promises():
    checked(ListBackend)


class KeepsReplaced(ListBackend):
    def upsert(self, pairs):
        super().upsert(pairs)
        self._held = {
            (f"old {id}" if self._version > 3 and id == "row 36" else id): row for id, row in self._held.items()
        }


class FindsSilent(ListBackend):
    def search(self, vectors, k, modality, where, has_text=False, exact=False):
        return super().search(vectors, k, "image" if modality == "image" else modality, where, False, exact)


class FiltersLast(ListBackend):
    """The k best first, and the filter then: a search that a filter costs recall."""

    def search(self, vectors, k, modality, where, has_text=False, exact=False):
        found = super().search(vectors, k, modality, None, has_text, exact)
        if where is None:
            return found
        kept = set(self.ids_where(where))
        fewest = min(sum(id in kept for id in row) for row in found.ids)
        places = [[place for place, id in enumerate(row) if id in kept][:fewest] for row in found.ids]
        order = np.array(places, dtype=np.int64).reshape(len(vectors), fewest)
        return Hits(np.take_along_axis(found.ids, order, 1), np.take_along_axis(found.scores, order, 1))


class Unversioned(ListBackend):
    version = 1


class Forgetful(ListBackend):
    def delete(self, ids):
        super().delete([id for id in ids if "\\" not in id])


@pytest.mark.parametrize(
    ("kind", "promise"),
    [
        (KeepsReplaced, "row 36|upsert"),
        (FindsSilent, "search among images finds what sorting every row finds"),
        (FiltersLast, "no fewer for the filter"),
        (Unversioned, "version grows with every change"),
        (Forgetful, "delete removes the rows of these ids"),
    ],
)
def test_a_broken_promise_is_named(kind, promise):
    with pytest.raises((AssertionError, KeyError), match=promise):
        checked(kind)
