"""Watching a folder for new, changed, deleted, renamed, partially copied and unreadable pictures."""

import io
import os

import pytest
from PIL import Image

from index_rows import write_picture
from recollect.core.errors import UserError
from recollect.index import Index
from recollect.index.watch import FolderWatch, folder_state


@pytest.fixture
def index(tmp_path, encoder):
    index = Index.create(tmp_path / "index", width=encoder.width, model=encoder.fingerprint)
    index.model.use(encoder, "the model")
    return index


@pytest.fixture
def watch(index, photos):
    return FolderWatch(index, photos)


def files(index):
    return {file.key for each in index for file in each.files}


def test_changes_in_the_folder_reach_the_index(index, watch, photos, encoder):
    assert watch.poll(settled=True).added == 11
    assert watch.poll() is None
    write_picture(photos / "new.png", 100)
    write_picture(photos / "home" / "4.png", 101)
    (photos / "home" / "6.png").unlink()
    write_picture(photos / "below" / "deep.png", 102)
    (photos / ".hidden.png").write_bytes(b"not a picture")
    embedded = encoder.images
    assert watch.poll() is None, "files may still be copied"
    report = watch.poll()
    assert (report.added, report.deleted, encoder.images - embedded) == (3, 2, 3)
    assert {"new.png", "below/deep.png", "home/4.png"} <= files(index)
    assert "home/6.png" not in files(index)
    assert watch.poll() is None


def test_two_files_of_equal_size_and_time_that_swap_names_are_noticed(index, watch, photos):
    for number in (0, 2):
        os.utime(photos / "home" / f"{number}.png", (1e9, 1e9))
    watch.poll(settled=True)
    before = index.find(["home/0.png", "home/2.png"])
    (photos / "home" / "0.png").rename(photos / "other")
    (photos / "home" / "2.png").rename(photos / "home" / "0.png")
    (photos / "other").rename(photos / "home" / "2.png")
    watch.poll(), watch.poll()
    assert index.find(["home/2.png", "home/0.png"]) == before


def test_watching_treats_copies_like_building(index, watch, photos, tmp_path, encoder):
    watch.poll(settled=True)
    (photos / "copy.png").write_bytes((photos / "home" / "2.png").read_bytes())
    report = watch.poll(settled=True)
    assert (report.added, report.copies, len(index)) == (0, 1, 11)
    built = Index.build(photos, encoder, out=tmp_path / "built")
    assert set(built.ids) == set(index.ids)
    (photos / "home" / "2.png").unlink()
    assert watch.poll(settled=True).deleted == 0
    assert set(index.ids) == set(built.ids), "the copy keeps the row"


def test_the_state_of_a_folder_changes_with_names_sizes_and_times(photos):
    before = folder_state(photos)
    assert folder_state(photos) == before
    (photos / "home" / "2.png").rename(photos / "home" / "two.png")
    renamed = folder_state(photos)
    os.utime(photos / "home" / "two.png", (1e9, 1e9))
    touched = folder_state(photos)
    (photos / "home" / "two.png").unlink()
    states = {before, renamed, touched, folder_state(photos)}
    assert len(states) == 4


def test_a_partially_copied_picture_is_read_once_it_is_complete(index, watch, photos):
    watch.poll(settled=True)
    whole = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(whole, "PNG")
    (photos / "late.png").write_bytes(whole.getvalue()[:60])
    watch.poll(), watch.poll()
    assert len(index) == 11
    (photos / "late.png").write_bytes(whole.getvalue())
    watch.poll(), watch.poll()
    assert len(index) == 12


def test_an_emptied_or_missing_folder_removes_nothing(index, watch, photos):
    watch.poll(settled=True)
    for file in [file for file in photos.rglob("*") if file.is_file()]:
        file.unlink()
    assert [watch.poll(), watch.poll(settled=True)] == [None, None]
    assert len(index) == 11
    for folder in [*photos.iterdir(), photos]:
        folder.rmdir()
    assert watch.poll(settled=True) is None
    with pytest.raises(UserError):
        FolderWatch(index, photos)


def test_unreadable_folders_and_files_remove_nothing(index, watch, photos, monkeypatch, capsys):
    """Patched system calls deny access, since root could read everything."""
    os.symlink(".", photos / "again")  # a loop if links are followed
    assert folder_state(photos)[0] == 12
    watch.poll(settled=True)
    (photos / "home" / "2.png").unlink()

    def denying(work, denied):
        def deny(path, *more, **options):
            if isinstance(path, str | os.PathLike) and denied(os.fspath(path)):
                raise PermissionError(13, "Permission denied", os.fspath(path))
            return work(path, *more, **options)

        return deny

    below, file = str(photos / "norway"), str(photos / "home" / "4.png")
    with monkeypatch.context() as other:
        other.setattr(os, "scandir", denying(os.scandir, lambda path: path == below))
        other.setattr(os, "stat", denying(os.stat, lambda path: path.startswith(f"{below}/")))
        other.setattr(io, "open", denying(io.open, lambda path: path == file))
        watch.poll(settled=True)
    assert len(index) == 10
    assert "norway" in capsys.readouterr().err


def test_a_picture_deleted_during_the_first_poll_does_not_end_the_watch(watch, photos, monkeypatch):
    add, reports = Index.add, []

    def vanish(*args, **options):
        (photos / "home" / "2.png").unlink()
        monkeypatch.setattr(Index, "add", add)
        raise UserError("photos: cannot be read (2.png does not exist)")

    def stop(report):
        reports.append(report)
        raise KeyboardInterrupt

    monkeypatch.setattr(Index, "add", vanish)
    with pytest.raises(KeyboardInterrupt):
        watch.follow(0.01, stop)
    assert [each.added for each in reports] == [10]
    monkeypatch.setattr(Index, "add", lambda *args, **options: (_ for _ in ()).throw(UserError("wrong")))
    write_picture(photos / "other.png", 60)
    with pytest.raises(UserError, match="wrong"):
        watch.follow(0.01, reports.append)


def test_a_new_watch_resumes_and_changes_no_other_source(index, watch, photos, tmp_path, encoder):
    watch.poll(settled=True)
    write_picture(tmp_path / "b" / "photos" / "0.png", 300)
    with pytest.raises(UserError):
        FolderWatch(index, tmp_path / "b" / "photos").poll(settled=True)
    FolderWatch(index, tmp_path / "b" / "photos", "more").poll(settled=True)
    (photos / "home" / "0.png").unlink()
    embedded = encoder.images
    again = Index.open(index.address, encoder)
    assert FolderWatch(again, photos).poll(settled=True).deleted == 1
    assert encoder.images == embedded
    assert index.refresh()
    assert index.info().sources == {"photos": 10, "more": 1}


def test_changed_captions_in_a_metadata_file_reach_the_index(index, watch, photos):
    for caption in ("a boat", "a red boat"):
        (photos / "metadata.csv").write_text(f"file_name,caption\nhome/0.png,{caption}\n")
        watch.poll(), watch.poll()
        assert [each.captions for each in index] == [(caption,)]
    for file in photos.rglob("*.png"):
        file.unlink()
    assert watch.poll() is watch.poll() is None, "an empty folder removes nothing"
    assert len(index) == 1


def test_changed_captions_in_text_files_reach_the_index(index, watch, photos):
    for caption in ("a boat", "a red boat"):
        for file in photos.rglob("*.png"):
            file.with_suffix(".txt").write_text(f"{caption}\n{file.stem}a", "utf-8")
        watch.poll(), watch.poll()
        assert {each.captions[0] for each in index} == {caption}
