"""Duplicates: slow references for every level, bounded work, and removal with undo."""

import io
from contextlib import nullcontext

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from index_rows import make_rows, scene, unit
from recollect.core.errors import UserError
from recollect.core.types import Encoder
from recollect.index import Duplicates, Index, duplicates
from recollect.index.duplicates import near_rows
from recollect.index.picture import phash_of
from simulated_gpu import simulated_gpu

WIDTH = 16


def clustered(generator, count, width=WIDTH, spread=0.25, centers=4):
    """Return unit vectors around a few centers, with many cosines near any threshold."""
    middle = generator.normal(size=(centers, width))
    return unit(middle[generator.integers(centers, size=count)] + spread * generator.normal(size=(count, width)))


def slow_components(count, edges):
    """Return the connected component of every row, by walking the graph."""
    near = {row: {row} for row in range(count)}
    for one, other in edges:
        near[one].add(other)
        near[other].add(one)
    component = {}
    for row in range(count):
        if row not in component:
            open_, component[row] = [row], row
            while open_:
                for each in near[open_.pop()] - component.keys():
                    component[each] = row
                    open_.append(each)
    return [component[row] for row in range(count)]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 120), st.floats(0.5, 0.99))
def test_groups_and_pairs_match_comparing_all_rows(seed, count, threshold):
    generator = np.random.default_rng(seed)
    vectors = clustered(generator, count, centers=8)
    hashes = generator.integers(1, 2**63, 5, dtype=np.uint64)[generator.integers(5, size=count)]
    for _ in range(5):
        hashes = hashes ^ (np.uint64(1) << generator.integers(0, 64, count).astype(np.uint64))
    hashes[generator.random(count) < 0.2] = 0
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("_STRIPE", 16), ("_BLOCK", 48), ("_MAX_PENDING", 200)):
            patch.setattr(duplicates, name, value)
        near = near_rows(vectors, hashes, threshold)
    wide = vectors.astype(np.float64)
    cosines = wide @ wide.T
    sure = np.abs(cosines - threshold) > 1e-6
    hypothesis.assume(sure.all() and (np.abs(np.triu(cosines, 1) - 0.9) > 1e-6).all())
    groups = slow_components(count, np.argwhere(cosines >= threshold).tolist())
    assert np.array_equal(near.groups[:, None] == near.groups, np.equal.outer(groups, groups))
    expected = set()
    for one in range(count):
        others = [other for other in np.argsort(-cosines[one], kind="stable") if other != one][:8]
        expected |= {tuple(sorted((one, int(other)))) for other in others if cosines[one, other] >= 0.9}
        expected |= {(one, other) for other in range(one + 1, count) if hashes[one] and hashes[other]
                     and int(hashes[one] ^ hashes[other]).bit_count() <= 7}  # fmt: skip
    assert set(map(tuple, near.pairs.tolist())) == expected
    assert not near.cut


def test_many_equal_rows_form_a_group_without_storing_all_pairs():
    """Six thousand equal pictures have eighteen million pairs, few of which are stored."""
    vectors = np.tile(clustered(np.random.default_rng(0), 2), (3_000, 1))  # two kinds, alternating
    near = near_rows(vectors, np.zeros(len(vectors), dtype=np.uint64), 0.94)
    assert np.array_equal(near.groups == near.groups[0], np.arange(6_000) % 2 == 0)
    assert len(near.pairs) < 20 * len(vectors)


def test_too_common_hashes_are_skipped_and_reported(index, monkeypatch):
    rows = make_rows(30)
    rows.phash = ["00000000000000ff"] * 30
    index.insert(rows)
    assert index.duplicates().skipped == ()
    monkeypatch.setattr(duplicates, "MAX_HASH_PAIRS", 10)
    assert len(index.duplicates().skipped) == 1


def test_the_gpu_gives_the_same_groups_and_pairs(monkeypatch):
    vectors, results = clustered(np.random.default_rng(3), 500, width=48, spread=0.05, centers=100), []
    for place in (nullcontext, simulated_gpu):
        with place() as device:
            monkeypatch.setattr(duplicates, "best_device", lambda device=device: device or torch.device("cpu"))
            results.append(near_rows(vectors, np.zeros(500, dtype=np.uint64), 0.9))
    assert np.array_equal(results[0].groups, results[1].groups)
    assert np.array_equal(results[0].pairs, results[1].pairs)


@pytest.fixture
def index():
    return Index.create(width=8, model="model-a")


class Thumbnails(Encoder):
    """Embeds a picture as its 8 x 8 thumbnail, so similar pictures get similar vectors."""

    width = 192
    fingerprint = "thumbnails"

    def embed_images(self, images):
        small = [np.asarray(Image.fromarray(np.asarray(each)).resize((8, 8), Image.Resampling.BOX)) for each in images]
        rows = torch.tensor(np.array(small).reshape(len(small), -1).astype(np.float32)) / 128 - 1
        return torch.nn.functional.normalize(rows, dim=1)

    def embed_texts(self, texts, prefix=None):
        return torch.nn.functional.normalize(torch.ones(len(texts), 192), dim=1)


@pytest.fixture
def shots(tmp_path):
    """Eight scenes, a copy of the first, a smaller and a gray version of the second, and an edit of the third."""
    folder = tmp_path / "shots"
    folder.mkdir()
    for number in range(8):
        scene(number).save(folder / f"{number}.png")
    scene(0).save(folder / "copy.bmp")
    scene(1).resize((60, 60), Image.Resampling.LANCZOS).save(folder / "smaller.jpg", quality=80)
    scene(1).convert("L").save(folder / "gray.png")
    similar = scene(2)
    ImageDraw.Draw(similar).rectangle((40, 40, 60, 60), fill=(255, 0, 255))
    similar.save(folder / "similar.png")
    return folder


def named(index, groups):
    return [[each.path.name for each in index.pictures(group)] for group in groups]


def test_duplicates_are_identical_near_identical_or_similar(shots):
    index = Index.build(shots, Thumbnails())
    result = index.duplicates(threshold=0.9)
    (identical,) = result.identical.values()
    assert sorted(name.rsplit("/", 1)[1] for name in identical) == ["0.png", "copy.bmp"]
    (kept, *others), *more = named(index, result.near_identical)
    assert (kept, sorted(others), more) == ("1.png", ["gray.png", "smaller.jpg"], [])
    assert ["2.png", "similar.png"] in [sorted(group) for group in named(index, result.similar)]
    assert sorted(each.path.name for each in index.pictures(result.spare)) == ["gray.png", "smaller.jpg"]
    assert result.unread == 0


def test_a_picture_with_a_user_caption_is_kept(shots):
    index = Index.build(shots, Thumbnails())
    (gray,) = index.find(["gray.png"])
    index.set_captions({gray: "two squares"})
    assert index.duplicates().near_identical[0][0] == gray


def test_among_equal_sizes_the_least_compressed_file_is_kept(tmp_path):
    (tmp_path / "photos").mkdir()
    for number in range(6):  # one pair alone would pass half the time by chance
        scene(number).save(tmp_path / "photos" / f"{number}.png")
        scene(number).save(tmp_path / "photos" / f"{number}.jpg", quality=85)
    index = Index.build(tmp_path / "photos", Thumbnails())
    groups = [[each.path for each in index.pictures(group)] for group in index.duplicates().near_identical]
    assert len(groups) == 6
    for kept, other in groups:
        assert kept.stat().st_size > other.stat().st_size


def test_removing_duplicates_can_be_undone_and_deletes_no_file(shots, tmp_path):
    index = Index.build(shots, Thumbnails(), out=tmp_path / "index")
    ids, files = set(index.ids), sorted(shots.iterdir())
    assert index.remove(index.duplicates().spare) == 2
    index.add(shots)
    assert index.duplicates().near_identical == ()
    assert len(index) == len(ids) - 2
    assert index.restore() == 2
    assert set(index.ids) == ids
    assert sorted(shots.iterdir()) == files


def test_missing_files_are_counted(shots):
    index = Index.build(shots, Thumbnails())
    (shots / "smaller.jpg").unlink()
    assert index.duplicates().unread == 1


def test_rows_without_files_are_compared_by_their_vectors(index):
    rows = make_rows(12)
    rows.image_vectors[1] = rows.image_vectors[0]
    rows.image_vectors[5] = 0
    rows.phash = [f"{row:016x}" for row in range(1, 13)]
    index.insert(rows)
    assert index.duplicates(0.999).similar == (("row 1", "row 0"),)


def test_an_empty_index_has_no_duplicates_and_thresholds_above_1_are_errors(index):
    assert index.duplicates() == Duplicates()
    with pytest.raises(UserError):
        index.duplicates(1.5)


def test_a_perceptual_hash_survives_encoding_and_resizing_and_distinguishes_pictures():
    for number in range(12):
        picture, buffer = scene(number), io.BytesIO()
        picture.save(buffer, "JPEG", quality=60)
        reencoded = Image.open(io.BytesIO(buffer.getvalue())).resize((70, 70))
        hashes = [int(phash_of(each), 16) for each in (picture, reencoded, scene(number + 50))]
        assert (hashes[0] ^ hashes[1]).bit_count() <= 6
        assert (hashes[0] ^ hashes[2]).bit_count() > 12
    assert phash_of(np.zeros(5, dtype=np.float32)) == ""
    assert phash_of(Image.new("RGB", (9, 9), (5, 5, 5))) == ""
