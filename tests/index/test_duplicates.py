"""Duplicates: every level against a slow reference, dense groups, bounded work, and removal that can be undone."""

import io
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from elsewhere import CARD, card
from index_rows import make_rows
from recollect.core.errors import UserError
from recollect.core.types import EncoderBase
from recollect.index import Duplicates, Index, duplicates, near_pairs
from recollect.index.near_pairs import Bounds, DisjointSets, join_all, join_neighbourhoods
from recollect.index.phash import near_hashes, phash_numbers, phash_of

WIDTH = 16


def clustered(generator, count, width=WIDTH, spread=0.25, centres=4):
    """Unit vectors around a few centres: many cosines lie near any threshold."""
    middle = generator.normal(size=(centres, width))
    rows = middle[generator.integers(centres, size=count)] + spread * generator.normal(size=(count, width))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def slow_components(count, edges):
    """Which rows hang together, by walking."""
    near = {row: {row} for row in range(count)}
    for one, other in edges:
        near[one].add(other)
        near[other].add(one)
    found = {}
    for row in range(count):
        if row not in found:
            open_, found[row] = [row], row
            while open_:
                for each in near[open_.pop()] - found.keys():
                    found[each] = row
                    open_.append(each)
    return [found[row] for row in range(count)]


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 300), st.integers(0, 7), st.sampled_from([1, 3, 40]))
def test_near_hashes_are_those_of_all_pairs_each_once(seed, count, bits, kinds):
    generator = np.random.default_rng(seed)
    hashes = generator.integers(0, 2**63, kinds, dtype=np.uint64)[generator.integers(kinds, size=count)]
    for _ in range(6):
        hashes = hashes ^ (np.uint64(1) << generator.integers(0, 64, count).astype(np.uint64))
    hashes = np.unique(hashes)
    one, other = np.triu_indices(len(hashes), 1)
    near = np.bitwise_count(hashes[one] ^ hashes[other]) <= bits
    found = [(int(a), int(b)) for some in near_hashes(hashes, bits) for a, b in zip(some[0], some[1], strict=True)]
    assert len(found) == len(set(found))
    assert {tuple(sorted(each)) for each in found} == set(zip(one[near].tolist(), other[near].tolist(), strict=True))
    assert not any(cut for _, _, cut in near_hashes(hashes, bits))
    few = [
        pair for some in near_hashes(hashes, bits, 50) for pair in zip(some[0].tolist(), some[1].tolist(), strict=True)
    ]
    assert set(few) <= set(found)


def test_equal_rows_are_one_group_without_a_pair_of_each(monkeypatch):
    """Twenty thousand equal pictures are two hundred million pairs; few are compared, and none is kept."""
    compared = []
    reach = Bounds.reach
    monkeypatch.setattr(
        Bounds, "reach", lambda self, one, other, least: compared.append(len(one)) or reach(self, one, other, least)
    )
    vectors = np.tile(clustered(np.random.default_rng(0), 2), (10_000, 1))  # two kinds, one after the other
    bounds, joined = Bounds(vectors, 0.94), DisjointSets(len(vectors))
    join_all(bounds, joined, 0.94)
    assert np.array_equal(joined.all(), np.arange(20_000) % 2)
    assert sum(compared) < 40 * len(vectors)


def test_a_bound_of_few_coordinates_loses_no_pair(monkeypatch):
    generator = np.random.default_rng(1)
    vectors = clustered(generator, 600, width=96, spread=0.2, centres=30)
    products = vectors.astype(np.float64) @ vectors.T.astype(np.float64)
    bounds = Bounds(1.003 * vectors, 0.8)  # of norms that are not quite one
    assert bounds.short.shape[1] < 96, "this is what is tested"
    bound = (bounds.short @ bounds.short.T).numpy()
    assert (bound >= products - 1e-5).all()
    joined = DisjointSets(len(vectors))
    join_all(bounds, joined, 0.8)
    near = products >= 0.8
    assert near.sum() > 2 * len(vectors)
    assert joined.all().tolist() == slow_components(600, np.argwhere(near).tolist())


def test_all_of_it_runs_on_a_card_too(monkeypatch):
    vectors, found = clustered(np.random.default_rng(3), 500, width=48, spread=0.05, centres=100), []
    for place in (nullcontext, card):
        with place() as device:
            monkeypatch.setattr(near_pairs, "best_device", lambda device=device: device or torch.device("cpu"))
            bounds, exact, fast = Bounds(vectors, 0.9), DisjointSets(500), DisjointSets(500)
            join_all(bounds, exact, 0.9)
            join_neighbourhoods(bounds, fast, 0.9)
            found.append([exact.all().tolist(), fast.all().tolist()])
    assert bounds.short.device == CARD
    assert found[0] == found[1]


def test_neighbourhoods_join_nothing_that_is_not_near_and_miss_little(monkeypatch):
    monkeypatch.setattr(near_pairs, "CELL", 100)
    monkeypatch.setattr(near_pairs, "MOST_IN_CELL", 150)
    generator = np.random.default_rng(2)
    vectors = clustered(generator, 2_000, width=32, spread=0.03, centres=800)
    exact, fast = (DisjointSets(2_000) for _ in range(2))
    bounds = Bounds(vectors, 0.94)
    join_all(bounds, exact, 0.94)
    assert join_neighbourhoods(bounds, fast, 0.94) >= 20
    whole, parts = exact.all(), fast.all()
    assert len(np.unique(whole)) < 900
    assert all(len(np.unique(whole[parts == root])) == 1 for root in np.unique(parts)), "no group too many"
    assert len(np.unique(parts)) < 1.1 * len(np.unique(whole))


def scene(number, size=96):
    """A picture with shapes, as photographs have them: encoders do not preserve noise."""
    draw = np.random.default_rng(number)
    image = Image.new("RGB", (size, size), tuple(draw.integers(0, 256, 3).tolist()))
    pen = ImageDraw.Draw(image)
    for _ in range(6):
        corners = np.sort(draw.integers(0, size, (2, 2)), axis=0).reshape(-1).tolist()
        pen.rectangle(corners, fill=tuple(draw.integers(0, 256, 3).tolist()))
    return image


class Thumbnails(EncoderBase):
    """Embeds a picture by its colors at 8 x 8: similar pictures get similar vectors."""

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
    """Eight scenes; a copy of one file, a smaller JPEG and a gray version of another, and a similar third scene."""
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


def test_three_levels_of_duplicates(shots):
    index = Index.build(shots, Thumbnails())
    found = index.duplicates(threshold=0.9)
    assert [sorted(name.rsplit("/", 1)[1] for name in group) for group in found.identical] == [["0.png", "copy.bmp"]]
    (kept, *others), *more = named(index, found.near_identical)
    assert (kept, sorted(others), more) == ("1.png", ["gray.png", "smaller.jpg"], [])
    assert ["2.png", "similar.png"] in [sorted(group) for group in named(index, found.similar)]
    assert sorted(each.path.name for each in index.pictures(found.spare)) == ["gray.png", "smaller.jpg"]
    assert found.unread == 0


def test_a_picture_with_a_caption_of_its_own_is_kept(shots):
    index = Index.build(shots, Thumbnails())
    (gray,) = index.find(["gray.png"])
    index.set_captions({gray: "two squares"})
    assert index.duplicates().near_identical[0][0] == gray


def test_of_equal_size_the_file_that_was_compressed_less_is_kept(tmp_path):
    (tmp_path / "photos").mkdir()
    for number in range(6):  # ids are digests: one picture alone would be kept by chance every other time
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


def test_pictures_whose_files_are_gone_are_counted(shots):
    index = Index.build(shots, Thumbnails())
    (shots / "smaller.jpg").unlink()
    assert index.duplicates().unread == 1


def test_rows_without_pixels_or_vectors_are_compared_by_what_they_have(index):
    rows = make_rows(12)
    rows.image_vectors[1] = rows.image_vectors[0]
    rows.image_vectors[5] = 0
    rows.phash = [f"{row:016x}" for row in range(1, 13)]
    index.insert(rows)
    assert index.duplicates(0.999).similar == (("row 1", "row 0"),)


def test_an_empty_index_has_no_duplicates_and_a_threshold_is_a_cosine(index):
    assert index.duplicates() == Duplicates()
    with pytest.raises(UserError):
        index.duplicates(1.5)


def test_skipped_comparisons_are_reported(index, monkeypatch):
    rows = make_rows(30)
    rows.phash = [f"{number:016x}" for number in range(1, 31)]
    index.insert(rows)
    assert index.duplicates().skipped == ()
    assert len(index.duplicates(everything=False).skipped) == 1
    monkeypatch.setattr(duplicates, "MOST_HASHES", 10)
    assert len(index.duplicates(everything=False).skipped) == 2
    assert index.duplicates().skipped == ()


def test_a_perceptual_hash_survives_encoding_and_resizing_and_tells_pictures_apart():
    for number in range(12):
        picture, buffer = scene(number), io.BytesIO()
        picture.save(buffer, "JPEG", quality=60)
        again = Image.open(io.BytesIO(buffer.getvalue())).resize((70, 70))
        hashes = phash_numbers([phash_of(picture), phash_of(again), phash_of(scene(number + 50))])
        assert np.bitwise_count(hashes[0] ^ hashes[1]) <= 6
        assert np.bitwise_count(hashes[0] ^ hashes[2]) > 12
    assert phash_of(np.zeros(5, dtype=np.float32)) == ""
    assert phash_of(Image.new("RGB", (9, 9), (5, 5, 5))) == ""
