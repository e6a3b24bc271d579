"""Pictures that are kept decoded: the same samples, batches of the same rows, and nothing damaged is read."""

import errno
import os
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from recollect.core.errors import UserError
from recollect.data.batches.mixture import DataMix
from recollect.data.batches.stream import BatchStream
from recollect.data.sources import decoded as module
from recollect.data.sources import open_source
from recollect.data.sources.decoded import DecodedSource, decoded
from recollect.data.sources.images import BrokenImageError
from recollect.data.transforms import ImageTransform

TRANSFORM = ImageTransform(size=8, training=True, scale=(0.5, 1.0))
NEEDED = TRANSFORM.needed


@pytest.fixture
def folder(tmp_path):
    random = np.random.default_rng(0)
    for number in range(12):
        shape = (9 + number, 40) if number % 2 else (40, 11)
        pixels = random.integers(0, 256, (*shape, 3), dtype=np.uint8)
        (tmp_path / "pictures").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "pictures" / f"{number:02}.png")
    (tmp_path / "pictures" / "05.png").write_bytes(b"no picture")
    lines = "\n".join(f"{number:02}.png,picture {number}" for number in range(12))
    (tmp_path / "pictures" / "metadata.csv").write_text("file_name,caption\n" + lines)
    return tmp_path / "pictures" / "metadata.csv"


@pytest.fixture
def source(folder):
    return open_source(str(folder))


def test_kept_pictures_are_those_of_the_source_no_larger_than_needed(source, tmp_path):
    kept = decoded(source, NEEDED, tmp_path / "kept")
    assert isinstance(kept, DecodedSource)
    for index in (0, 3, 11, -1):
        mine, theirs = kept.read(index, needed=NEEDED, extra=False), source.read(index, extra=False)
        assert min(mine.image.shape[:2]) <= NEEDED
        assert (mine.texts, mine.label, mine.kind) == (theirs.texts, theirs.label, theirs.kind)
        aspect = theirs.image.width / theirs.image.height
        assert mine.image.shape[1] / mine.image.shape[0] == pytest.approx(aspect, rel=0.1)
    small = source.read(0, extra=False).image  # 40 x 11: its shorter side is no larger than needed
    assert np.array_equal(kept.read(0, needed=NEEDED, extra=False).image, np.asarray(small))
    with pytest.raises(BrokenImageError, match=r"05\.png"):
        kept.read(5, needed=NEEDED, extra=False)
    with pytest.raises(IndexError):
        kept.read(12, needed=NEEDED, extra=False)


def test_batches_show_the_same_samples_and_workers_change_nothing(source, tmp_path):
    kept = decoded(source, NEEDED, tmp_path / "kept")
    plain, fast = (BatchStream(DataMix((each,)), 6, TRANSFORM, broken_share=0.5) for each in (source, kept))
    for one, two in zip(plain.iterate(0, 4), fast.iterate(0, 4), strict=True):
        assert one.texts == two.texts
        assert (one.images - two.images).abs().mean() < 0.5
    alone = list(fast.iterate(0, 3))
    with_worker = list(fast.iterate(0, 3, workers=1))
    assert all(torch.equal(one.images, two.images) for one, two in zip(alone, with_worker, strict=True))


def test_a_second_run_decodes_nothing_and_another_picture_or_size_is_decoded_again(
    source, folder, tmp_path, monkeypatch
):
    decoded(source, NEEDED, tmp_path / "kept")
    with monkeypatch.context() as patch:
        patch.setattr(module, "_decode", lambda *_: pytest.fail("decoded again"))
        decoded(open_source(str(folder)), NEEDED, tmp_path / "kept")
    decoded(source, 2 * NEEDED, tmp_path / "kept")
    Image.new("RGB", (20, 20), "red").save(folder.parent / "03.png")
    changed = decoded(open_source(str(folder)), NEEDED, tmp_path / "kept")
    assert len(list((tmp_path / "kept").iterdir())) == 3
    assert changed.read(3, needed=NEEDED, extra=False).image[0, 0].tolist() == [255, 0, 0]


def read_all(source, tmp_path):
    kept = decoded(source, NEEDED, tmp_path / "kept")

    def read(row):
        try:
            return kept.read(row, needed=NEEDED, extra=False).image.tobytes()
        except BrokenImageError as error:
            return str(error)

    return kept.folder, [read(row) for row in range(len(kept))]


def test_a_flipped_bit_is_one_broken_picture_or_all_are_decoded_again(source, tmp_path):
    """Anywhere in the file, its metadata included: no picture is taken for another, none is lost unnoticed."""
    folder, whole = read_all(source, tmp_path)
    file = folder / "pictures.arrow"
    data = file.read_bytes()
    broken = 0
    for place in np.linspace(0, len(data) - 1, 200).astype(int).tolist():
        changed = bytearray(data)
        changed[place] ^= 16
        file.unlink()
        file.write_bytes(changed)
        found = read_all(source, tmp_path)[1]
        damaged = [row for row, (one, two) in enumerate(zip(found, whole, strict=True)) if one != two]
        assert all(str(folder) in found[row] for row in damaged)
        broken += len(damaged)
        assert len(damaged) <= 1 or file.read_bytes() == bytes(changed)
    assert broken > 20


def test_a_file_that_was_cut_short_is_made_again(source, tmp_path):
    folder, whole = read_all(source, tmp_path)
    file = folder / "pictures.arrow"
    data = file.read_bytes()
    for size in (0, 10, len(data) // 2, len(data) - 1):
        file.unlink()
        file.write_bytes(data[:size])
        assert read_all(source, tmp_path) == (folder, whole)


def test_what_is_asked_for_beyond_what_was_kept_comes_from_the_source(source, tmp_path):
    kept = decoded(source, 4, tmp_path / "kept")
    assert kept.read(0, needed=4, extra=False).image.shape == (15, 4, 3)
    assert kept.read(0).image.size == (11, 40)
    assert kept.read(0, needed=8, extra=False).image.size == (11, 40)
    again = pickle.loads(pickle.dumps(kept))
    assert np.array_equal(again.read(2, needed=4, extra=False).image, kept.read(2, needed=4, extra=False).image)


def test_made_worlds_stay_as_they_are():
    made = open_source("latents:captions")
    assert decoded(made, 8) is made


def test_no_room_is_one_line_and_leaves_nothing(source, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "_decode", full)
    with pytest.raises(UserError, match=f"{tmp_path / 'kept'}"):
        decoded(source, NEEDED, tmp_path / "kept")
    assert not list((tmp_path / "kept").iterdir())
    monkeypatch.setattr(os, "stat", _closed(tmp_path / "home"))
    with pytest.raises(UserError, match="Permission denied"):
        decoded(source, NEEDED, tmp_path / "home" / "kept")


def _closed(folder, stat=os.stat):
    """A folder that may not be looked into, as another user's home."""

    def refused(path, **options):
        if str(path).startswith(f"{folder}/"):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **options)

    return refused


def test_a_run_on_decoded_pictures_takes_the_same_steps(folder, tmp_path, monkeypatch):
    from recollect.training.loop import train
    from recollect.training.options import Data
    from recollect.training.recipes import RECIPES

    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))
    data = Data(captions=(str(folder),), broken_share=0.5, decoded=True)
    recipe = replace(RECIPES["siglip-tiny"](), data=data, steps=2, batch_size=6)
    train(recipe, tmp_path / "run", device="cpu")
    assert list((tmp_path / "cache" / "decoded").iterdir())
