"""Tasks of the glyph label set: shifts of domain and name, and classes that occur only in captions."""

import numpy as np
import pytest

from recollect.data.prompts import GENERAL_TEMPLATES
from recollect_papers.worlds import open_world_source
from recollect_papers.worlds.glyph_table import ATTRIBUTES, SCRIPTS
from recollect_papers.worlds.glyph_tasks import NAMED_SCRIPTS
from recollect_papers.worlds.glyphs import SYNONYMS, replace_by_synonyms
from recollect_papers.worlds.tasks import world_zero_shot_tasks


@pytest.fixture(scope="module")
def own():
    return {task.name.removeprefix("glyphs-labels-half-"): task for task in world_zero_shot_tasks("glyphs:labels-half")}


def test_label_sets_have_tasks_with_and_without_shifts(own):
    assert list(own) == ["own", "faces", "styles", "held-out-faces", "names", "synonyms"]
    names = open_world_source("glyphs:labels-half").class_names
    assert own["own"].class_names == own["faces"].class_names == own["styles"].class_names == names
    assert set(own["held-out-faces"].class_names) <= set(names)
    for task in own.values():
        assert task.templates == GENERAL_TEMPLATES
        assert set(task.query.labels) == set(range(len(task.class_names)))


def test_pictures_of_shifts_differ_and_are_not_in_training(own):
    source = open_world_source("glyphs:labels-half")
    trained = {picture.numpy().tobytes() for picture in source.draw(np.arange(len(source)))[0].permute(0, 2, 3, 1)}
    for name in ("own", "faces", "styles"):
        tested = [np.ascontiguousarray(picture).tobytes() for picture in own[name].query.images]
        assert not trained & set(tested)
    learned = [np.ascontiguousarray(picture).tobytes() for picture in own["own"].support.images]
    assert set(learned) <= trained
    rough = {name: float(own[name].query.images[:, :3, :3].astype(float).std((1, 2)).mean()) for name in own}
    assert rough["styles"] > 2 * rough["faces"]  # textured against plain background


def test_synonyms_share_no_word_with_the_names_and_have_the_same_pictures(own):
    names, synonyms = own["names"], own["synonyms"]
    assert np.array_equal(names.query.images, synonyms.query.images)
    assert len(names.class_names) == len(set(synonyms.class_names)) > 20
    for name, other in zip(names.class_names, synonyms.class_names, strict=True):
        assert not set(name.split()) & set(other.split())
        assert replace_by_synonyms(name) == other
    assert replace_by_synonyms("latin capital letter a") is None  # a has no synonym


def test_synonyms_are_not_words_of_names_scripts_or_attributes():
    words = {word for name in open_world_source("glyphs:labels").class_names for word in name.split()}
    words |= {word for script, _ in SCRIPTS for word in script.split()} | {w for values in ATTRIBUTES for w in values}
    assert not set(SYNONYMS.values()) & words
    assert len(set(SYNONYMS.values())) == len(SYNONYMS)


def test_captions_use_synonyms_only_if_enabled_and_change_nothing_else():
    rows = np.arange(400)
    plain = open_world_source("glyphs:captions?says_name=1").batch(rows, 0)[1]
    other = open_world_source("glyphs:captions?says_name=1&says_synonym=0.5").batch(rows, 0)[1]
    said = {word for text in other for word in text.split()} & set(SYNONYMS.values())
    assert {"uppercase", "lowercase"} <= said
    assert not {word for text in plain for word in text.split()} & {"uppercase", "lowercase"}
    changed = [one != two for one, two in zip(plain, other, strict=True)]
    assert 0.2 < np.mean(changed) < 0.6
    for one, two in zip(plain, other, strict=True):
        assert [SYNONYMS.get(word, word) if word != new else word
                for word, new in zip(one.split(), two.split(), strict=True)] == two.split()  # fmt: skip


def test_the_small_label_set_and_the_rest_form_the_large_one():
    whole, half, rest = (open_world_source(f"glyphs:labels{part}").class_names for part in ("", "-half", "-rest"))
    assert set(half) | set(rest) == set(whole)
    assert not set(half) & set(rest)
    assert len(half) == len(rest) == 100
    renamed = open_world_source("glyphs:labels-renamed").class_names
    assert [replace_by_synonyms(name) or name for name in whole] == list(renamed)


def test_prompt_tasks_have_classes_that_are_not_labels():
    tasks = {task.name.removeprefix("glyphs-prompts-"): task for task in world_zero_shot_tasks("glyphs:prompts")}
    assert len(tasks) == 1 + len(ATTRIBUTES) + len(NAMED_SCRIPTS)
    assert "hebrew letter" in tasks["script"].class_names
    labeled = set(open_world_source("glyphs:labels").class_names)
    for script in NAMED_SCRIPTS:
        names = tasks[script.replace(" ", "-")].class_names
        assert len(names) >= 5
        assert not labeled & set(names)
