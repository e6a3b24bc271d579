"""Classification and retrieval tasks from sources."""

import numpy as np
import pytest

from pictures import captioned
from recollect.core.errors import UserError
from recollect.core.types import NO_LABEL
from recollect.data.prompts import GENERAL_TEMPLATES
from recollect.data.sources.address import distinct_names
from recollect.data.sources.columns import Columns
from recollect.evaluation.pools import open_pools
from recollect.evaluation.tasks.classification import Division, class_name_shift, classification_task
from recollect.evaluation.tasks.retrieval import retrieval_task


@pytest.fixture
def animals(make):
    """Three classes with ten training and four test images each, and a class without test images."""
    names = ["cat", "dog", "owl"] * 14 + ["eel"] * 3
    split = ["train"] * 30 + ["test"] * 12 + ["train"] * 3
    return str(make.parquet({"label": names, "split": split}, "animals.parquet"))


def test_support_and_query_share_their_class_numbers(animals):
    task = classification_task(animals)
    assert task.name == "animals"
    assert task.class_names == ("cat", "dog", "eel", "owl")
    assert task.templates == GENERAL_TEMPLATES
    assert (len(task.support), len(task.query)) == (33, 12)
    for part in (task.support, task.query):
        labels = part.labels
        assert [part[i].label for i in range(5)] == labels[:5].tolist()
    assert not {sample.id for sample in task.support} & {sample.id for sample in task.query}


def test_classes_that_are_left_out_or_share_a_name_are_reported(make, capfd):
    """Fewer candidates make zero-shot accuracy higher, and texts cannot tell classes of one name apart."""
    columns = {"label": [0, 1, 2, 3] * 2, "class_name": ["cat", "crane", "crane", "eel"] * 2}
    path = str(make.parquet({**columns, "split": ["train"] * 4 + ["test"] * 3 + ["train"]}))
    task = classification_task(path, division=Division(support=None))
    assert task.class_names == ("cat", "crane", "crane")
    told = capfd.readouterr().err
    assert "left out 1 of 4 classes without images, such as 'eel'" in told
    assert "several classes are called 'crane'" in told
    classification_task(path)
    assert "left out" not in capfd.readouterr().err


def test_the_validation_split_replaces_a_missing_test_split(make):
    path = str(make.parquet({"label": ["a", "b"] * 4, "split": ["train"] * 4 + ["val"] * 4}))
    assert len(classification_task(path).query) == 4
    path = str(make.parquet({"label": ["a", "b"] * 4, "split": ["train"] * 4 + ["more"] * 4}))
    with pytest.raises(UserError):
        classification_task(path)
    assert len(classification_task(path, division=Division(query="more")).query) == 4


@pytest.mark.parametrize(
    ("split", "support", "query"),
    [("val", 30, 12), ("val[:6]", 30, 6), ("train", 15, 15), ("train[:12]", 6, 6), ("all", 21, 21)],
)
def test_the_split_in_an_address_is_the_query_and_divided_if_it_overlaps_training(make, split, support, query):
    path = make.parquet({"label": ["a", "b", "c"] * 14, "split": ["train"] * 30 + ["val"] * 12})
    task = classification_task(f"{path}?split={split}")
    assert (len(task.support), len(task.query)) == (support, query)
    alone = classification_task(f"{path}?split={split}", division=Division(support=None))
    assert (len(alone.support), len(alone.query)) == (0, query if support == 30 else support + query)
    assert not {sample.id for sample in task.support} & {sample.id for sample in task.query}
    given = classification_task(f"{path}?split={split}", division=Division(query="val[:3]"))
    assert (len(given.support), len(given.query)) == (30, 3)


@pytest.mark.parametrize(
    ("support", "query"),
    [("train", "train"), ("all", None), ("train[:20]", "train[10:]"), ("train+test", "test[:5]")],
)
def test_overlapping_support_and_query_splits_are_rejected(animals, support, query):
    with pytest.raises(UserError):
        classification_task(animals, division=Division(support, query))
    disjoint = classification_task(animals, division=Division("train[:20]", "train[20:30]"))
    assert (len(disjoint.support), len(disjoint.query)) == (20, 10)


def test_one_split_can_be_divided_per_class(make):
    names = [f"letter {i // 8}" for i in range(48)]
    path = str(make.parquet({"label": names, "split": ["train"] * 24 + ["test"] * 24}))
    with pytest.raises(UserError, match="'letter 3'"):
        classification_task(path)
    with pytest.raises(UserError):
        classification_task(path, division=Division(within="test[7:9]"))
    task = classification_task(path, division=Division(within="test", query_share=0.25))
    assert task.class_names == ("letter 3", "letter 4", "letter 5")
    assert np.bincount(task.support.labels).tolist() == [6, 6, 6]
    assert np.bincount(task.query.labels).tolist() == [2, 2, 2]
    ids = [{sample.id for sample in part} for part in (task.support, task.query)]
    assert not ids[0] & ids[1]
    again = classification_task(path, division=Division(within="test", query_share=0.25))
    assert {sample.id for sample in again.query} == ids[1]
    other = classification_task(path, division=Division(within="test", query_share=0.25, seed=1))
    assert {sample.id for sample in other.query} != ids[1]


def test_class_name_shift_keeps_classes_with_a_different_synonym(make):
    names = [["frog", "toad"], ["polar bear", "ice bear", "Ursus maritimus"], ["cat", "cats"], ["bus", "coach"]]
    rows = {"label": [0, 1, 2, 3] * 4, "split": (["train"] * 4 + ["test"] * 4) * 2}
    rows |= {"class_name": [names[i][0] for i in rows["label"]], "names": [names[i] for i in rows["label"]]}
    task = classification_task(str(make.parquet(rows)), columns=Columns(synonyms="names"))
    original, shifted = class_name_shift(task)
    assert original.class_names == ("frog", "polar bear", "bus")
    assert shifted.class_names == ("toad", "Ursus maritimus", "coach")
    assert original.query.labels.tolist() == [0, 1, 2] * 2
    assert NO_LABEL not in [sample.label for sample in shifted.support]
    with pytest.raises(UserError):
        class_name_shift(classification_task(str(make.folder / "set.parquet")))


def test_without_splits_half_of_each_class_is_the_query_or_all_of_it_without_support(make, capfd):
    path = str(make.parquet({"label": ["a", "b"] * 6}))
    task = classification_task(path)
    assert [np.bincount(part.labels).tolist() for part in (task.support, task.query)] == [[3, 3], [3, 3]]
    assert not set(task.support.indices) & set(task.query.indices)
    assert "half of each class" in " ".join(capfd.readouterr().err.split())
    assert len(classification_task(path, division=Division(support=None)).query) == 12
    make.parquet({"caption": ["a", "b"]}, "captions.parquet")
    assert len(retrieval_task(str(make.folder / "captions.parquet")).images) == 2
    splits = make.parquet({"caption": ["a", "b", "c"], "split": ["train", "train", "more"]}, "other.parquet")
    with pytest.raises(UserError):
        retrieval_task(str(splits))


# --- retrieval ---------------------------------------------------------------------------------------------------


def test_a_caption_matches_every_image_it_describes(make):
    captions = [["a field", "a  green field"], ["a town"], ["a field"], ["a green field ", "a town", "a town"]]
    path = str(make.parquet({"captions": captions, "split": ["test"] * 4, "ambiguous": [False, True, False, False]}))
    task = retrieval_task(path)
    assert dict(zip(task.texts, task.matches, strict=True)) == {
        "a field": (0, 2),
        "a green field": (0, 3),
        "a town": (1, 3),
    }
    assert task.ambiguous == (False, True, False, False)
    assert task.domains == ("set:test",) * 4
    assert len(task.images) == 4


def test_several_sources_form_one_pool_and_share_captions(make, shade):
    first = make.parquet({"caption": ["a dog", "a cat"], "domain": ["photo", "sketch"]}, "first.parquet")
    second = make.parquet({"caption": ["a cat", "a map"], "split": ["test", "train"]}, "second.parquet")
    task = retrieval_task([f"{first}?split=train", str(second)], name="pool")
    assert task.name == "pool"
    assert dict(zip(task.texts, task.matches, strict=True)) == {"a dog": (0,), "a cat": (1, 2)}
    assert task.domains == ("photo", "sketch", "second:test")
    assert [shade(sample) for sample in task.images] == [0, 1, 0]
    assert task.ambiguous == (False,) * 3


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
