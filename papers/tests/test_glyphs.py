import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from recollect.core.errors import UserError
from recollect_papers.worlds import glyph_table as glyph_table_module
from recollect_papers.worlds import open_world_source, world_of
from recollect_papers.worlds.glyph_table import (
    ATTRIBUTES,
    FACES,
    HELD_OUT_FACES,
    SCRIPTS,
    SIZE,
    glyph_table,
    measure_glyphs,
)
from recollect_papers.worlds.rendering import COLORS
from recollect_papers.worlds.scenes import DETAILS, RELATIONS
from recollect_papers.worlds.tasks import world_tasks


@pytest.fixture(scope="module")
def world():
    return world_of("glyphs")


def test_no_two_characters_share_their_first_picture():
    table = glyph_table()
    pictures = {table.masks[row].tobytes() for row in table.first[:-1]}
    assert len(pictures) == len(table.code_points)


def test_a_damaged_cache_is_replaced(tmp_path, monkeypatch):
    table = glyph_table()
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path))
    glyph_table_module._cache_file().write_bytes(b"cut short")
    monkeypatch.setattr(glyph_table_module, "_draw_table", lambda: table)
    drawn = glyph_table.__wrapped__()
    assert drawn is table
    monkeypatch.setattr(glyph_table_module, "_draw_table", lambda: pytest.fail("the cache was not read"))
    cached = glyph_table.__wrapped__()
    for name in ("code_points", "scripts", "first", "faces", "masks", "attributes"):
        np.testing.assert_array_equal(getattr(cached, name), getattr(drawn, name))
    glyph_table_module._cache_file().unlink()
    monkeypatch.setattr(glyph_table_module, "_draw_table", lambda: table)
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "file"))
    (tmp_path / "file").write_text("no folder")
    assert glyph_table.__wrapped__() is table, "an unwritable cache is ignored"


def test_measured_attributes_match_their_words():
    tall, wide, ring, bars = (np.zeros((SIZE, SIZE), np.uint8) for _ in range(4))
    tall[2:26, 12:15] = 255
    wide[12:15, 2:26] = 255
    ring[6:22, 6:22] = 255
    ring[9:19, 9:19] = 0
    bars[4:8, 6:22] = bars[18:22, 6:22] = 255
    values = measure_glyphs(np.stack([tall, wide, ring, bars]))
    words = [[ATTRIBUTES[a][value] for a, value in enumerate(row)] for row in values]
    assert words[0][0] == "narrow"
    assert words[1][0] == "wide"
    assert (words[2][3], words[0][3]) == ("holed", "unholed")
    assert (words[3][2], words[2][2]) == ("twofold", "single")


def test_splits_of_characters_and_scripts_are_fixed_and_disjoint(world):
    parts = [set(world.split[name].tolist()) for name in ("train", "validation", "test")]
    assert not parts[0] & parts[1]
    assert not parts[0] & parts[2]
    assert not parts[1] & parts[2]
    trained = {SCRIPTS[number][0] for number in world.table.scripts[world.split["train"]]}
    assert not trained & {"tifinagh letter", "nko letter", "lao letter", "lisu letter"}
    assert np.array_equal(world.split["test"], world_of("glyphs?seed=5").split["test"])


def test_training_draws_only_training_characters_in_training_faces(world):
    source = open_world_source("glyphs:captions")
    characters, masks = source.subjects(np.arange(20_000))
    assert set(characters.tolist()) <= set(world.split["train"].tolist())
    faces = {FACES[face] for face in world.table.faces[masks]}
    assert not faces & set(HELD_OUT_FACES)
    assert len(faces) == len(FACES) - len(HELD_OUT_FACES)
    owners = np.searchsorted(world.table.first, masks, side="right") - 1
    assert np.array_equal(owners, characters)


def test_captions_contain_script_and_attributes(world):
    source = open_world_source("glyphs:captions")
    indices = np.arange(5000)
    characters, masks = source.subjects(indices)
    _, texts, _ = source.batch(indices, 0)
    said = right = scripts = 0
    for text, character, mask in zip(texts, characters, masks, strict=True):
        words = set(text.split())
        for number, values in enumerate(ATTRIBUTES):
            for value in words & set(values):
                said += 1
                right += value == values[world.table.attributes[mask, number]]
        script = SCRIPTS[world.table.scripts[character]][0]
        scripts += script in text
    assert 0.68 < said / (8 * len(texts)) < 0.72
    assert 0.95 < right / said < 0.98  # 5 % are random; a third of them are right by chance
    assert scripts / len(texts) > 0.79
    assert {word for text in texts for word in text.split()} <= set(world.vocabulary())


SUM = """
import sys, numpy as np
from recollect_papers.worlds import open_world_source
for spec in sys.argv[1:]:
    print(int(open_world_source(spec).batch(np.array([5, 917, 33]), 0)[0].long().sum()))
"""


def test_a_picture_is_the_same_alone_in_a_batch_and_in_another_process():
    specs, sums = ("glyphs:captions", "glyphs:labels", "glyphs:scenes?edge=48", "glyphs:hard?edge=48"), []
    for spec in specs:
        source, indices = open_world_source(spec), np.array([5, 917, 33])
        images, texts, labels = source.batch(indices, 0)
        for row, index in enumerate(indices):
            sample = source[int(index)]
            np.testing.assert_array_equal(sample.image, images[row].permute(1, 2, 0))
            assert sample.texts == ((texts[row],) if sample.kind == "caption" else ())
            assert sample.label == labels[row]
        sums.append(str(int(images.long().sum())))
    command, environment = [sys.executable, "-c", SUM, *specs], os.environ | {"PYTHONHASHSEED": "7"}
    assert subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.split() == sums


def test_two_seeds_give_two_views_with_the_same_caption():
    source = open_world_source("glyphs:captions")
    one, two = source.batch(np.arange(50), 1), source.batch(np.arange(50), 2)
    assert one[1] == two[1]
    assert (one[0] != two[0]).float().mean() > 0.5


def test_scenes_match_their_captions():
    source = open_world_source("glyphs:scenes?edge=64")
    indices = np.arange(300)
    scenes = source.scenes(indices)
    images, texts, _ = source.batch(indices, 0)
    pixels = images.float() / 255
    right = []
    for row in range(len(indices)):
        ground = torch.tensor(list(COLORS.values())[scenes.ground[row]])
        assert (pixels[row, :, 0, 0] - ground).abs().max() < 0.3
        assert texts[row].endswith(f"{list(COLORS)[scenes.ground[row]]} ground")
        if scenes.count[row] == 2:
            relation = RELATIONS[scenes.relation[row]]
            away = (pixels[row] - pixels[row, :, 0, 0][:, None, None]).abs().sum(0) > 0.6
            first = list(COLORS.values())[scenes.colors[row, 0]]
            near = (pixels[row] - torch.tensor(first)[:, None, None]).abs().sum(0) < 0.5
            if scenes.colors[row, 0] == scenes.colors[row, 1] or (away & near).sum() < 8:
                continue
            y, x = (part.float().mean() for part in (away & near).nonzero(as_tuple=True))
            center = x if relation in {"left of", "right of"} else y
            right.append(bool(center < 32) == (relation in {"left of", "above"}))
    assert len(right) > 40
    assert np.mean(right) > 0.93  # edges of a character may have the other's color


def test_hard_negatives_differ_from_their_scene_in_exactly_one_detail():
    source = open_world_source("glyphs:hard?edge=64")
    indices = np.arange(60 * 6)
    scenes = source.scenes(indices)
    _, texts, _ = source.batch(indices, 0)
    assert len(set(texts)) == len(texts)
    for row in indices:
        base = row - row % 6
        changed = set()
        if (scenes.colors[row] != scenes.colors[base]).sum() == 1:
            changed.add("color")
        if (scenes.sizes[row] != scenes.sizes[base]).sum() == 1:
            changed.add("size")
        if scenes.relation[row] != scenes.relation[base]:
            changed.add("relation")
        if (scenes.characters[row] != scenes.characters[base]).sum() == 1:
            changed.add("character")
        if scenes.ground[row] != scenes.ground[base]:
            changed.add("ground")
        detail = ("none", *DETAILS)[row % 6]
        assert changed == (set() if detail == "none" else {detail})
        assert scenes.ground[row] not in scenes.colors[row]
        sample = source[int(row)] if row < 6 else None
        assert sample is None or (sample.extra["group"], sample.extra["detail"]) == (0, detail)


def test_few_shot_tasks_are_held_out_characters_of_one_script(world):
    shifted = 0
    for split in ("validation", "test"):
        members = {world.table.names[character] for character in world.split[split]}
        tasks = world_tasks("glyphs", split)
        shifted += sum(task.query.domain == "held-out faces" for task in tasks)
        assert len(tasks) >= 15
        for task in tasks:
            assert 14 <= len(task.class_names) <= 24
            assert set(task.class_names) <= members
            assert np.bincount(task.support.labels).tolist() == [32] * len(task.class_names)
            assert task.support.domain == "training faces"
    assert shifted >= 10


def test_reversed_captions_have_the_same_meaning():
    """The address gives their percentage."""
    plain = open_world_source("glyphs:scenes?size=200")
    turned = open_world_source("glyphs:scenes?size=200&turned=50")
    pairs = [(plain.texts(row)[0], turned.texts(row)[0]) for row in range(200)]
    other = [(before, after) for before, after in pairs if before != after]
    assert 60 < len(other) < 140
    assert all(sorted(_said(before)) == sorted(_said(after)) for before, after in other)
    assert any(after.startswith("on a ") and " right of " in after for _, after in other)
    pictures, texts, _ = turned.batch(np.arange(5), 0)
    assert texts == [after for _, after in pairs[:5]]
    assert torch.equal(pictures, plain.batch(np.arange(5), 0)[0])
    assert turned.fingerprint != plain.fingerprint


def _said(text):
    """Return the clauses of a caption, with relations in a canonical direction."""
    said = []
    for clause in text.split(", "):
        for one, other in (("right of", "left of"), ("below", "above")):
            first, found, second = clause.partition(f" {one} ")
            if found:
                clause = f"{second} {other} {first}"
        said.append(clause)
    return said


@pytest.mark.parametrize(
    "spec",
    ["glyphs:scenes?size=0", "glyphs:scenes?size=many", "glyphs:labels?groups=3", "glyphs:captions?seed=three",
     "latents:labels", "latents:captions?color=3"],
)  # fmt: skip
def test_invalid_addresses_are_rejected(spec):
    with pytest.raises(UserError):
        open_world_source(spec)
