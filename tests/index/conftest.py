"""Random rows on every kind of store."""

import pytest

from index_rows import WIDTH, HashEncoder, write_picture
from recollect.index import Index

STORES = ("ram", "lance", "milvus")


def address_of(kind, folder):
    return {"ram": None, "lance": f"{folder}/index", "milvus": f"milvus://{folder}/lite.db/pictures"}[kind]


@pytest.fixture(params=STORES)
def index(request, tmp_path):
    """An empty index on each kind of store."""
    return Index.create(address_of(request.param, tmp_path), width=WIDTH, model="model-a")


@pytest.fixture
def encoder():
    return HashEncoder()


@pytest.fixture
def photos(tmp_path):
    """A folder of twelve pictures, two of them equal."""
    folder = tmp_path / "photos"
    for number in range(12):
        write_picture(folder / ("norway" if number % 2 else "home") / f"{number}.png", min(number, 10))
    return folder
