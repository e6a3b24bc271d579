"""From a path or a hub id to tables: everything that touches files, through the ``datasets`` library."""

import atexit
import hashlib
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from glob import has_magic
from pathlib import Path
from typing import Any
from unittest.mock import patch

import datasets
import pyarrow as pa
import pyarrow.compute as pc
from datasets.data_files import DataFilesList
from datasets.packaged_modules.imagefolder.imagefolder import ImageFolder

from recollect.core.errors import UserError
from recollect.core.files import check_writable, near_names, read_text, refuse_slip
from recollect.core.words import counted
from recollect.data.sources.images import BROKEN_SHARE, PICTURE_ENDINGS, files_below, note, pictures_among, unread_among
from recollect.data.sources.places import HUB_ID, by_top_folder, files_named, refuse_of_hub, split_groups
from recollect.data.sources.published import is_published_shots, read_published, read_published_shots
from recollect.data.sources.remote import is_address
from recollect.data.sources.shards import check_shards

_TABLES = {".parquet": "parquet", ".csv": "csv", ".tsv": "csv", ".jsonl": "json"}
_METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
_PEEKED_MEMBERS = 200
_CHAIN = "::"
"""In a path it says to the library that a file lies within another: ``zip://inside.png::archive.zip``."""

_HUB_SECONDS = 5.0


@dataclass(frozen=True)
class OpenedTables:
    """The tables of one source.

    Attributes:
        splits: name of split to its rows.
        where: what to call the source in errors.
        files: the files that hold the content, for its fingerprint.
        base: folder that relative image paths start from; None where tables hold the bytes themselves.
        class_names: names read from a ``classnames.txt`` beside WebDataset shards, in label order.
    """

    splits: Mapping[str, datasets.Dataset]
    where: str
    files: tuple[Path, ...]
    base: Path | None = None
    class_names: tuple[str, ...] = field(default=())


def open_tables(
    place: str, config: str | None = None, revision: str | None = None, lost_share: float = BROKEN_SHARE
) -> OpenedTables:
    """Open a file, a folder, a glob or brace pattern, or a hub id.

    Args:
        place: a Parquet, CSV, TSV or JSON-lines file, or published few-shot splits (.json, .jsonl); a WebDataset tar,
            or a pattern such as ``shard-{000..099}.tar``;
            a folder of any of these, of images, or written by ``save_to_disk``; or ``owner/name`` on the hub.
        config: the hub set's configuration, where it has several.
        revision: the hub set's branch or commit.
        lost_share: share of the files in tars that may lie behind damage, where they cannot be reached.

    Raises:
        UserError: nothing is there, or it cannot be read.
    """
    path = Path(place).expanduser()
    if is_address(place):
        raise UserError(f"{place}: an address is read as a stream. Write {place}?stream=yes")
    if os.path.exists(path):
        refuse_of_hub(place, config, revision)
    if path.is_dir():
        return _open_folder(path, lost_share)
    if path.is_file():
        return _open_files([path], path.parent, path.name, lost_share)
    if "{" in place or has_magic(place):
        files = files_named(place)
        if not files:
            raise UserError(f"{place}: no file fits this pattern")
        return _open_files(files, Path(os.path.commonpath([file.parent for file in files])), path.name, lost_share)
    if path.suffix.lower() in {*_TABLES, ".tar"} or not HUB_ID.fullmatch(place):
        raise UserError(f"{place}: no such file or folder{near_names(path)}")
    refuse_slip(place, "file or folder")
    return _open_hub(place, config, revision)


def _open_hub(name: str, config: str | None, revision: str | None) -> OpenedTables:
    try:
        with _quiet(), _hub_answers(name, revision):
            splits = datasets.load_dataset(name, config, revision=revision)
    except Exception as error:
        raise UserError(f"{name}: neither a path here nor a data set the hub gave us ({_reason(error)})") from error
    files = [Path(file["filename"]) for split in splits.values() for file in split.cache_files]
    return OpenedTables(dict(splits), name, tuple(files))


@contextmanager
def _hub_answers(name: str, revision: str | None) -> Iterator[None]:
    """Ask the hub once and briefly; if it does not answer, take what was fetched before instead of trying for long."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    offline = bool(constants.HF_HUB_OFFLINE)
    if not offline:
        try:
            HfApi().dataset_info(name, revision=revision, timeout=_HUB_SECONDS)
        except (HfHubHTTPError, OfflineModeIsEnabled):
            raise
        except Exception as error:  # whatever the network's libraries raise: no route, no name, no answer
            note(f"{name}: the hub does not answer ({_reason(error)}); looking among what was fetched before")
            offline = True
    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = offline
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


def _open_folder(folder: Path, lost_share: float) -> OpenedTables:
    if (folder / "dataset_dict.json").exists() or (folder / "state.json").exists():
        return _open_saved(folder)
    files = _readable_names(folder, files_below(folder))
    for suffixes in ({".tar"}, {".parquet"}, PICTURE_ENDINGS, {".csv", ".tsv", ".jsonl"}):
        chosen = [file for file in files if file.suffix.lower() in suffixes]
        if suffixes == {".parquet"}:
            chosen = [file for file in chosen if file.name not in _METADATA]
        if chosen and suffixes is PICTURE_ENDINGS:
            return _open_pictures(folder, files)
        if chosen:
            return _open_files(chosen, folder, folder.name, lost_share)
    unread = f"; {kinds}" if (kinds := unread_among(files)) else ""
    raise UserError(f"{folder}: an empty source; it holds no images, Parquet, tar, CSV or JSON-lines files{unread}")


def _readable_names(folder: Path, files: list[Path]) -> list[Path]:
    """Those whose names can be read: no table can hold one that is not UTF-8, and to the library that reads files
    "::" says that one lies within another (`_linked`). It is said of the others that they are left out."""
    odd = [os.fsencode(file.relative_to(folder)) for file in files if _is_odd(file, folder)]
    if odd:
        shown = ", ".join(map(repr, odd[:3])) + (" …" if len(odd) > 3 else "")
        why = "a name that is not UTF-8, or has '::' in it"
        note(f"{folder}: {counted(len(odd), 'file')} left out, because of {why}: {shown}. Rename what should be read.")
    return [file for file in files if not _is_odd(file, folder)]


def _is_odd(file: Path, folder: Path) -> bool:
    return _CHAIN in str(file.relative_to(folder)) or any("\ud800" <= sign <= "\udfff" for sign in str(file))


def _open_saved(folder: Path) -> OpenedTables:
    with _one_line(folder.name, [folder]):
        saved = datasets.load_from_disk(str(folder))
    splits = dict(saved) if isinstance(saved, datasets.DatasetDict) else {str(saved.split or "train"): saved}
    return OpenedTables(splits, folder.name, tuple(sorted(folder.rglob("*.arrow"))), base=folder)


def _open_pictures(folder: Path, files: list[Path]) -> OpenedTables:
    """Images in one folder a class, or with a metadata file; top folders named like splits are splits."""
    pictures = pictures_among(files, folder)
    read = [*pictures, *(file for file in files if file.name in _METADATA)]
    groups = by_top_folder({str(file): file.relative_to(folder) for file in read})
    with patch.object(ImageFolder, "EXTENSIONS", list(PICTURE_ENDINGS)):  # the library's own list is of other days
        splits = _load("imagefolder", groups, folder.name)
    return OpenedTables(splits, folder.name, tuple(read), base=folder)


def _open_files(files: Sequence[Path], folder: Path, where: str, lost_share: float) -> OpenedTables:
    kinds = {file.suffix.lower() for file in files}
    if len(kinds) > 1:
        raise UserError(f"{where}: files of different kinds ({', '.join(sorted(kinds))}). Name those of one kind.")
    suffix = kinds.pop()
    if empty := next((file for file in files if file.stat().st_size == 0), None):
        raise UserError(f"{empty}: an empty file")
    groups = split_groups({str(file): file.relative_to(folder) for file in files})
    if suffix == ".tar":
        check_shards(files, lost_share)
        splits = _load("webdataset", groups, where, features=_shard_features(files[0], where))
        return OpenedTables(splits, where, tuple(files), class_names=_class_list(folder))
    if suffix == ".json" and len(files) == 1:
        published, base = read_published(files[0])
        return OpenedTables(published, where, tuple(files), base=base)
    if suffix == ".jsonl" and len(files) == 1 and is_published_shots(files[0]):
        published, base, read = read_published_shots(files[0])
        return OpenedTables(published, where, read, base=base)
    if suffix not in _TABLES:
        raise UserError(
            f"{where}: not a kind of file that can be opened; give Parquet, CSV, JSON lines, tar or a folder"
        )
    options: dict[str, Any] = {}
    if _TABLES[suffix] == "csv":
        # Only an empty cell is missing: pandas would also lose captions such as "None" and "NA".
        options = {"keep_default_na": False, "na_values": [""], "sep": "\t" if suffix == ".tsv" else ","}
    return OpenedTables(_load(_TABLES[suffix], groups, where, **options), where, tuple(files), base=files[0].parent)


def _load(builder: str, groups: Mapping[str, list[str]], where: str, **options: Any) -> dict[str, datasets.Dataset]:
    files = [Path(name) for names in groups.values() for name in names]
    with _one_line(where, files), _quiet():
        chained = any(
            _CHAIN in os.path.dirname(os.path.abspath(name)) for names in groups.values() for name in names[:1]
        )
        folder = os.path.commonpath([os.path.dirname(os.path.abspath(file)) for file in files]) if chained else ""
        link = _linked(folder) if chained else ""
        data_files = {
            split: _as_named(
                [os.path.join(link, os.path.relpath(name, folder)) for name in names] if chained else names
            )
            for split, names in groups.items()
        }
        splits = dict(datasets.load_dataset(builder, data_files=data_files, cache_dir=_room(), **options))
        return {split: _back(table, link, folder) for split, table in splits.items()} if chained else splits


def _linked(folder: str) -> str:
    """A link to a folder whose own path has "::" in it, which the library cannot read: always the same one, so that
    what the library keeps of its files is found again."""
    room = Path(_room() or datasets.config.HF_DATASETS_CACHE)
    link = room / f"linked-{hashlib.blake2b(folder.encode(), digest_size=16).hexdigest()}"
    room.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        link.symlink_to(folder)
    return str(link)


def _back(table: datasets.Dataset, link: str, folder: str) -> datasets.Dataset:
    """A table whose pictures are named where they are, not by a link."""
    found = table.data.table
    for name, feature in table.features.items():
        if isinstance(feature, datasets.Image):
            pictures = found[name].combine_chunks()
            fields = {field.name: pictures.field(field.name) for field in pictures.type}
            fields["path"] = pc.replace_substring(fields["path"], f"{link}/", f"{folder}/", max_replacements=1)
            named = pa.StructArray.from_arrays(list(fields.values()), list(fields), mask=pictures.is_null())
            found = found.set_column(found.column_names.index(name), found.schema.field(name), named)
    return datasets.Dataset(found, info=table.info, split=table.split)


@cache
def _room() -> str | None:
    """Where the library keeps tables as it reads them: its own folder, or if nobody may write there, another that goes
    when the process ends."""
    own = Path(datasets.config.HF_DATASETS_CACHE)
    with suppress(UserError):
        check_writable(own, "HF_HOME")
        return None
    folder = tempfile.mkdtemp(prefix="recollect-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    note(f"{own}: cannot be written to, so what is read is kept until the end only. Name a folder with HF_HOME.")
    return folder


def _as_named(names: Sequence[str]) -> DataFilesList:
    """Files, and what changes when they do. The library takes a mere list of names for patterns: it would pass over
    "image[1].jpg", and ask the disk once more about every file."""
    paths = [os.path.abspath(name) for name in names]
    facts = [os.stat(path) for path in paths]
    # The time of the bytes alone is not enough: whoever unpacks or copies a file may set it.
    return DataFilesList(paths, [(f"{each.st_mtime_ns} {each.st_ctime_ns} {each.st_size}",) for each in facts])


def _shard_features(shard: Path, where: str) -> datasets.Features:
    """Columns of a WebDataset from its first members, so that samples may lack fields and JSON may vary."""
    names: list[str] = []
    with _one_line(where, [shard]), tarfile.open(shard) as archive:
        for _, member in zip(range(_PEEKED_MEMBERS), archive, strict=False):
            if member.isfile() and "." in Path(member.name).name:
                names.append(Path(member.name).name.split(".", 1)[1])
    kinds: dict[str, Callable[[], Any]] = {"json": datasets.Json, "txt": lambda: datasets.Value("string")}
    kinds |= {"text": kinds["txt"], "cls": lambda: datasets.Value("int64")}
    features = {}
    for name in dict.fromkeys(names):
        if f".{name.rsplit('.', 1)[-1].lower()}" in PICTURE_ENDINGS:
            features[name] = datasets.Image(decode=False)
        elif name in kinds:
            features[name] = kinds[name]()
    if not features:
        raise UserError(f"{shard}: no samples; a WebDataset shard holds files such as 0001.jpg and 0001.txt")
    return datasets.Features(features | {"__key__": datasets.Value("string"), "__url__": datasets.Value("string")})


def _class_list(folder: Path) -> tuple[str, ...]:
    """Class names in label order from ``classnames.txt``, as CLIP_benchmark's shards have it beside or above them."""
    for file in (folder / "classnames.txt", folder.parent / "classnames.txt"):
        if file.exists():
            return tuple(line.strip() for line in read_text(file).splitlines() if line.strip())
    return ()


@contextmanager
def _one_line(where: str, files: Sequence[Path]) -> Iterator[None]:
    """Turn what a library says of a damaged file into one line that names the file."""
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        if error.errno is not None:  # no space, no permission: the system's own words are clear
            raise
        raise UserError(f"{_guilty(files) or where}: cannot be read ({_reason(error)})") from error
    except Exception as error:
        raise UserError(
            f"{_guilty(files) or where}: damaged, cut short or not what its name says ({_reason(error)})"
        ) from error


def _guilty(files: Sequence[Path]) -> Path | None:
    """The first shard that cannot be read to its end, among several; the only file, if there is one."""
    if len(files) == 1:
        return files[0]
    for file in files:
        if file.suffix == ".tar":
            try:
                with tarfile.open(file) as archive:
                    for member in archive:
                        if member.isfile() and member.offset_data + member.size > file.stat().st_size:
                            return file
            except tarfile.TarError:
                return file
        elif file.suffix == ".parquet" and not _ends_with(file, b"PAR1"):
            return file
    return None


def _ends_with(file: Path, ending: bytes) -> bool:
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - len(ending)))
        return opened.read() == ending


def _reason(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) < 200 else f"{text[:200]}…"


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the library's progress bars for terminals, and its error log for nobody: our one line says the same."""
    bars, level = datasets.is_progress_bar_enabled() and not sys.stderr.isatty(), datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    if bars:
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
        if bars:
            datasets.enable_progress_bars()
