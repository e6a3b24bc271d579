"""The suites match the papers' tables and open data sets in the format of the hub."""

import datasets
import numpy as np
import pytest

from recollect.core.errors import UserError
from recollect.evaluation.tasks.catalogue import suite

# LIxP, Table 7, transcribed independently from the paper: support and test sizes, classes.
TABLE_7 = {
    "cub-200-2011": (5994, 5794, 200), "stanford-cars": (8144, 8041, 196), "cassava": (5656, 1885, 5),
    "cifar-100": (50000, 10000, 100), "colorectal-histology": (2000, 3000, 8),
    "domainnet-clipart": (30000, 20000, 345), "domainnet-infograph": (30000, 20000, 345),
    "domainnet-quickdraw": (30000, 20000, 345), "domainnet-sketch": (30000, 20000, 345), "dtd": (1880, 1880, 47),
    "eurosat": (22000, 5000, 10), "food-101": (30000, 25250, 101), "imagenet": (100000, 50000, 1000),
    "imagenet-sketch": (30000, 15889, 1000), "oxford-pets": (3680, 3669, 37), "places-365": (20000, 15000, 365),
    "plant-village": (30000, 24303, 38), "resisc-45": (20000, 11500, 45), "stanford-dogs": (12000, 8580, 120),
    "sun-397": (30000, 10875, 397), "uc-merced": (1000, 1100, 21),
}  # fmt: skip


def test_the_21_sets_have_the_sizes_of_table_7():
    entries = suite("lixp-21")
    assert {e.name: (e.support_size, e.query_size, e.classes) for e in entries} == TABLE_7
    assert {e.metric for e in entries} == {"top-1"}
    assert len({e.spec for e in entries}) == 21


def test_the_sets_of_prefix_conditioning_have_the_sizes_of_its_table_6():
    sizes = {entry.name: (entry.support_size, entry.query_size) for entry in suite("prefix-11")}
    assert sizes == {
        "food-101": (75750, 25250), "cifar-10": (50000, 10000), "cifar-100": (50000, 10000), "voc-2007": (5011, 4952),
        "dtd": (3760, 1880), "oxford-pets": (3680, 3669), "caltech-101": (3060, 6084),
        "oxford-flowers-102": (1020, 6149), "patch-camelyon": (294912, 32768), "eurosat": (0, 27000),
        "resisc-45": (0, 31500),
    }  # fmt: skip
    assert {entry.name for entry in suite("prefix-11") if entry.support is None} == {"eurosat", "resisc-45"}


@pytest.mark.parametrize(
    ("name", "raw", "readable"),
    [
        ("cub-200-2011", "001.Black_footed_Albatross", "Black footed Albatross"),
        ("stanford-dogs", "n02085620-Chihuahua", "Chihuahua"),
        ("imagenet", "tench, Tinca tinca", "tench"),
        ("sun-397", "/a/apartment_building/outdoor", "apartment building outdoor"),
        ("places-365", "/a/airfield", "airfield"),
        ("places-365", "airfield", "airfield"),
        ("uc-merced", "denseresidential", "dense residential"),
        ("cassava", "cbb", "cassava bacterial blight"),
        ("eurosat", "AnnualCrop", "annual crop land"),
        ("dtd", "polka-dotted", "polka-dotted"),
    ],
)
def test_class_names_become_readable(name, raw, readable):
    entry = next(e for e in suite("lixp-21") if e.name == name)
    assert entry.class_name(3, raw) == readable


def small_copy(make, entry, per_class=10, **splits):
    """Write a small data set in the hub's format, sorted by class like many of them, and return its address."""
    image, label = entry.columns.image or "image", entry.columns.label or "label"
    names = [f"class_{i}" for i in range(entry.classes)]
    features = datasets.Features({image: datasets.Image(), label: datasets.ClassLabel(names=names)})
    labels = [number for number in range(entry.classes) for _ in range(per_class)]
    for split in splits or {"train": 1, "test": 1}:
        rows = {image: [make.picture(i % 200) for i in range(len(labels))], label: labels}
        rows = datasets.Dataset.from_dict(rows, features=features)
        rows.to_parquet(make.folder / entry.name / "data" / f"{split}-00000-of-00001.parquet")
    return str(make.folder / entry.name)


@pytest.mark.parametrize("name", ["cassava", "cifar-100"])
def test_a_set_with_splits_opens_as_a_task(make, name, monkeypatch):
    entry = next(e for e in suite("lixp-21") if e.name == name)
    copy, load = small_copy(make, entry, per_class=2), datasets.load_dataset
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: load(copy))
    task = entry.open()
    assert (task.name, len(task.class_names)) == (name, entry.classes)
    assert len(task.support) == len(task.query) == 2 * entry.classes
    assert task.class_names[1] == "class 1"


def test_slices_of_a_set_sorted_by_class_contain_all_classes(make):
    entry = next(e for e in suite("lixp-21") if e.name == "colorectal-histology")
    copy = small_copy(make, entry, per_class=300, train=1)
    task = entry.open(f"{copy}?shuffle=0")
    assert (len(task.support), len(task.query)) == (2000, 400)
    assert set(task.support.labels) == set(task.query.labels) == set(range(8))
    support, query = ({part[row].id for row in range(50)} for part in (task.support, task.query))
    assert not support & query


def test_an_entry_that_cannot_be_opened_is_named(make):
    voc = next(e for e in suite("prefix-11") if e.name == "voc-2007")
    with pytest.raises(UserError, match="voc-2007"):
        voc.open()
    cassava = next(e for e in suite("lixp-21") if e.name == "cassava")
    rows = {"label": ["a", "b"] * 4, "split": np.repeat(["train", "test"], 4).tolist()}
    with pytest.raises(UserError, match="cassava"):
        cassava.open(str(make.parquet(rows)))
