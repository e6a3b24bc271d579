"""Names of a pool's sources and domains."""

import pytest

from pictures import captioned
from recollect.data.sources.address import distinct_names
from recollect.evaluation.pools import open_pools


@pytest.fixture
def table(tmp_path):
    return captioned(tmp_path, ["a dog", "a cat", "a car"])


def test_sources_with_the_same_name_are_separate_domains(table):
    other = table.parent / "b"
    other.mkdir()
    for file in table.parent.glob("*.*"):
        (other / file.name).write_bytes(file.read_bytes())
    (pool,) = open_pools([str(table), str(other / table.name)], "merged", split="all")
    assert len(pool.task.images) == 6
    assert len(set(pool.task.domains)) == len(set(pool.task.images.source_names)) == 2


def test_a_domain_named_all_is_not_the_whole_pool(table):
    table.write_text("image,caption,domain\n0.png,a dog,all\n1.png,a cat,all\n2.png,a car,mean of domains\n")
    (pool,) = open_pools([str(table)], split="all")
    assert pool.task.domains == ("domain all", "domain all", "domain mean of domains")


@pytest.mark.parametrize(
    ("specs", "names", "distinct"),
    [
        (["a/x.csv", "b/x.csv"], ["x:test", "x:test"], ["a/x:test", "b/x:test"]),
        (["a/c/x", "b/c/x", "y"], ["x", "x", "y"], ["a/c/x", "b/c/x", "y"]),
        (["a/x.csv", "a/x.parquet"], ["x", "x"], ["x.csv", "x.parquet"]),
        (["a/x.csv", "a/x.csv"], ["x", "x"], ["x", "x"]),
        (["a/x.csv", "a/y.csv"], ["x", "y"], ["x", "y"]),
    ],
)
def test_sources_with_the_same_name_are_told_apart_by_their_paths(specs, names, distinct):
    assert distinct_names(specs, names) == distinct
