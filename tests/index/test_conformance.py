"""Stores keep what `Store` promises, and the check notices those that do not."""

import sys
from types import SimpleNamespace
from typing import ClassVar

import pytest

from index_rows import WIDTH, make_rows
from recollect.core.errors import UserError
from recollect.index import Index, Record
from recollect.index.conformance import check_store
from recollect.index.stores.base import STORES
from recollect.index.stores.lance import LanceStore
from recollect.index.stores.milvus import MilvusStore
from recollect.index.stores.ram import RamStore


@pytest.mark.parametrize("kind", [LanceStore, MilvusStore])
def test_stores_keep_their_promises(kind, tmp_path):
    address = str(tmp_path / "index") if kind is LanceStore else f"milvus://{tmp_path}/lite.db/pictures"
    check_store(lambda record: kind.create(address, record), lambda: kind(address))


class _Forgetful(RamStore):
    def delete(self, ids):
        super().delete(ids[:1])


class _Blind(RamStore):
    def nearest(self, queries, k, by, where=None, spoken=False, exact=False):
        return super().nearest(queries, k, by, None, spoken, exact)


class _Standing(RamStore):
    def version(self, newest=False):
        return 1


class _Losing(RamStore):
    def upsert(self, rows):
        super().upsert(rows.slice(0, 24))


@pytest.mark.parametrize("kind", [_Forgetful, _Blind, _Standing, _Losing])
def test_a_store_that_breaks_a_promise_is_noticed(kind):
    store = kind(Record(8, "model"))
    with pytest.raises(AssertionError):
        check_store(lambda record: store.__init__(record) or store, lambda: store)


def test_the_store_in_ram_passes():
    store = RamStore(Record(8, "model"))
    check_store(lambda record: store.__init__(record) or store, lambda: store)


class _Kept(RamStore):
    """Rows in RAM that an address finds again."""

    places: ClassVar[dict[str, RamStore]] = {}

    def __new__(cls, address, version=None):
        return cls.places[address]

    @classmethod
    def create(cls, address, record):
        cls.places[address] = RamStore(record)
        return cls.places[address]

    @staticmethod
    def exists(address):
        return address in _Kept.places


def test_a_store_of_another_package_is_found_by_its_addresses(monkeypatch):
    monkeypatch.setitem(STORES.data, "kept", f"{__name__}:_Kept")
    monkeypatch.setitem(sys.modules, __name__, SimpleNamespace(_Kept=_Kept))
    made = Index.create("kept://mine", width=WIDTH, model="model-a")
    made.insert(make_rows(5))
    assert Index.open("kept://mine").ids == made.ids
    with pytest.raises(UserError, match="kept://"):
        Index.open("kpt://mine")
