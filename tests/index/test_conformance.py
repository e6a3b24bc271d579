"""Stores pass `check_store`, and broken ones fail it."""

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
def test_stores_on_disk_pass_the_check(kind, tmp_path):
    address = str(tmp_path / "index") if kind is LanceStore else f"milvus://{tmp_path}/lite.db/pictures"
    check_store(lambda record: kind.create(address, record), lambda: kind(address))


def check_in_ram(kind):
    store = kind(Record(8, "model"))
    check_store(lambda record: store.__init__(record) or store, lambda: store)


def test_the_store_in_ram_passes_the_check():
    check_in_ram(RamStore)


class _DeletesOne(RamStore):
    def delete(self, ids):
        super().delete(ids[:1])


class _IgnoresFilters(RamStore):
    def nearest(self, queries, k, by, where=None, captioned=False, exact=False):
        return super().nearest(queries, k, by, None, captioned, exact)


class _FixedVersion(RamStore):
    def version(self, newest=False):
        return 1


class _LosesRows(RamStore):
    def upsert(self, rows):
        super().upsert(rows.slice(0, 24))


@pytest.mark.parametrize("kind", [_DeletesOne, _IgnoresFilters, _FixedVersion, _LosesRows])
def test_a_broken_store_fails_the_check(kind):
    with pytest.raises(AssertionError):
        check_in_ram(kind)


class _Registered(RamStore):
    """Stores in RAM, by address."""

    stores: ClassVar[dict[str, RamStore]] = {}

    def __new__(cls, address, version=None):
        return cls.stores[address]

    @classmethod
    def create(cls, address, record):
        cls.stores[address] = RamStore(record)
        return cls.stores[address]

    @staticmethod
    def exists(address):
        return address in _Registered.stores


def test_another_package_can_register_a_store_for_its_addresses(monkeypatch):
    monkeypatch.setitem(STORES.data, "mine", f"{__name__}:_Registered")
    monkeypatch.setitem(sys.modules, __name__, SimpleNamespace(_Registered=_Registered))
    index = Index.create("mine://mine", width=WIDTH, model="model-a")
    index.insert(make_rows(5))
    assert Index.open("mine://mine").ids == index.ids
    with pytest.raises(UserError, match="mine://"):
        Index.open("kpt://mine")
