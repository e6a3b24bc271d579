"""Opening tables from a path or a hub id with the ``datasets`` library."""

import atexit
import codecs
import json
import os
import re
import shutil
import sys
import tempfile
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from glob import has_magic
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasets.data_files import DataFilesList
from datasets.table import InMemoryTable

from recollect.core.cells import check_cells, not_utf8, separator_of
from recollect.core.content import hash_of
from recollect.core.errors import UserError, one_line, user_errors
from recollect.core.files import read_text
from recollect.core.paths import check_writable, did_you_mean, expanduser, reject_typo
from recollect.core.progress import note
from recollect.core.validation import refuse
from recollect.core.words import counted, is_utf8
from recollect.data.sources.file_lists import HUB_ID, by_top_folder, local_files, refuse_hub_options, split_groups
from recollect.data.sources.images import (
    BROKEN_SHARE,
    METADATA,
    PICTURE_ENDINGS,
    describe_unsupported,
    files_below,
    filter_pictures,
)
from recollect.data.sources.remote import is_address
from recollect.data.sources.table import Origin
from recollect.data.sources.tars import DAMAGE_KEY, TarRows, check_shards

_TABLES = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}
_CHAIN_SEPARATOR = "::"
"""Separator that ``datasets`` interprets as a file inside an archive: ``zip://inside.png::archive.zip``."""

_WORDNET_ID = re.compile(r"n\d{8}")  # ImageNet's folders
_HUB_SECONDS = 5.0
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_MAX_CAPTION_BYTES = 4096  # larger text files next to pictures are not captions
_CELL_COUNT_ERROR = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")  # pandas


Tables = tuple[dict[str, datasets.Dataset], Origin]
"""The rows of each split, and their origin."""


def open_tables(
    place: str, config: str | None = None, revision: str | None = None, lost_share: float = BROKEN_SHARE
) -> Tables:
    """Open a file, a folder, a glob or brace pattern, or a hub id.

    Args:
        place: a Parquet, CSV, TSV, JSON or JSON-lines file; captions in COCO's format (`_coco`); a WebDataset tar, or a
            pattern such as ``shard-{000..099}.tar``; a folder of Parquet, CSV, TSV, JSON-lines, tar or image files, or
            written by ``save_to_disk``; or ``owner/name`` on the hub.
        config: configuration of a hub data set that has several.
        revision: branch or commit of a hub data set.
        lost_share: maximum fraction of the files in tars that may be lost to damage.

    Raises:
        UserError: the place does not exist or cannot be read.
    """
    path = Path(expanduser(place))
    refuse((is_address(place), f"{place}: a URL can only be streamed. Write {place}?stream=yes"))
    if os.path.exists(path):
        refuse_hub_options(place, config, revision)
    if path.is_dir():
        return _open_folder(path, lost_share)
    files, folder = local_files(place)
    if files:
        return _open_files(files, folder, path.name, lost_share)
    if path.suffix.lower() in {*_TABLES, ".tar"} or not HUB_ID.fullmatch(place):
        missing = "no file matches this pattern" if "{" in place or has_magic(place) else "no such file or folder"
        raise UserError(f"{place}: {missing}{did_you_mean(path)}")
    reject_typo(place, "file or folder")
    return _open_hub(place, config, revision)


def _open_hub(name: str, config: str | None, revision: str | None) -> Tables:
    with user_errors(f"{name}: neither a local path nor a hub data set"), _quiet(), _hub_or_cache(name, revision):
        splits = datasets.load_dataset(name, config, revision=revision)
    files = [Path(file["filename"]) for split in splits.values() for file in split.cache_files]
    return dict(splits), Origin(name, tuple(files))


@contextmanager
def _hub_or_cache(name: str, revision: str | None) -> Iterator[None]:
    """Query the hub once; if it does not answer, use only cached files instead of retrying for minutes."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    offline = bool(constants.HF_HUB_OFFLINE)
    if not offline:
        try:
            HfApi().dataset_info(name, revision=revision, timeout=_HUB_SECONDS)
        except (HfHubHTTPError, OfflineModeIsEnabled):
            raise
        except Exception as error:  # anything a network library may raise: no route, DNS failure, timeout
            note(f"{name}: the hub does not answer ({one_line(error)}); using cached files")
            offline = True
    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = offline
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


def _open_folder(folder: Path, lost_share: float) -> Tables:
    if (folder / "dataset_dict.json").exists() or (folder / "state.json").exists():
        return _open_saved(folder)
    files = _with_utf8_names(folder, files_below(folder))
    for suffixes in ({".tar"}, {".parquet"}, PICTURE_ENDINGS, {".csv", ".tsv", ".jsonl"}):
        chosen = [file for file in files if file.suffix.lower() in suffixes]
        if chosen and suffixes is PICTURE_ENDINGS:
            return _open_pictures(folder, files)
        if chosen and not (suffixes == {".parquet"} and all(file.name.lower() in METADATA for file in chosen)):
            return _open_files(chosen, folder, folder.name, lost_share)
    unread = f"; {kinds}" if (kinds := describe_unsupported(files)) else ""
    raise UserError(f"{folder}: empty source; no images, Parquet, tar, CSV or JSON-lines files{unread}")


def _with_utf8_names(folder: Path, files: list[Path]) -> list[Path]:
    """Return the files whose names are valid UTF-8, as texts of a table must be, and report the others."""
    odd = {file for file in files if not is_utf8(str(file))}
    if odd:
        shown = ", ".join(repr(os.fsencode(file.relative_to(folder))) for file in sorted(odd)[:3])
        more = " …" if len(odd) > 3 else ""
        skipped = f"skipped {counted(len(odd), 'file')} with names that are not UTF-8"
        note(f"{folder}: {skipped}: {shown}{more}. Rename them to include them.")
    return [file for file in files if file not in odd] if odd else files


def _open_saved(folder: Path) -> Tables:
    with _table_errors(folder.name, [folder]):
        saved = datasets.load_from_disk(str(folder))
    splits = dict(saved) if isinstance(saved, datasets.DatasetDict) else {str(saved.split or "train"): saved}
    return splits, Origin(folder.name, tuple(sorted(folder.rglob("*.arrow"))), folder)


def _open_pictures(folder: Path, files: list[Path]) -> Tables:
    """Open images in one folder per class or with metadata files; top folders may be splits."""
    pictures = filter_pictures(files, folder)
    described = [file for file in files if file.name.lower() in METADATA]
    # Include pictures without metadata, because a folder "test" next to other folders is not a split.
    groups = by_top_folder({str(file): file.relative_to(folder) for file in (*pictures, *described)})
    listed = _class_list(folder)
    captions = {} if described else _caption_files(pictures, files)
    if described:
        splits = _pictures_by_metadata(groups, described, folder)
        paths = (pc.struct_field(each.data.column("image"), "path").to_pylist() for each in splits.values())
        rows = {os.path.normpath(os.path.join(folder, path)) for some in paths for path in some if path}
        if absent := sum(os.path.normpath(each) not in rows for each in pictures):
            note(f"{folder}: skipped {counted(absent, 'picture')} that no metadata file lists")
    else:
        splits = _pictures_by_folder(groups, len(listed), captions)
    read = [file for file, _ in captions.values()]
    return splits, Origin(folder.name, (*pictures, *described, *read), folder, listed)


def _caption_files(pictures: Sequence[Path], files: Sequence[Path]) -> dict[str, tuple[Path, str]]:
    """Map absolute picture paths to caption file and text (``photo.jpg``, ``photo.txt``).

    The result is empty if most pictures have none; captions that are left out are reported.

    Long text files are treated as documents, and files without letters as bounding boxes (YOLO).
    """
    texts = {file.with_suffix(""): file for file in files if file.suffix.lower() == ".txt"}
    if not texts:
        return {}
    found = {os.path.abspath(each): file for each in pictures if (file := texts.get(each.with_suffix("")))}
    captions = {picture: (file, text) for picture, file in found.items() if (text := _caption_text(file))}
    if 2 * len(captions) >= len(pictures):
        return captions
    if captions:
        file, _ = next(iter(captions.values()))
        which = f"{counted(len(captions), 'text file')} next to pictures, such as {file}"
        note(f"ignored {which}: fewer than half of the pictures have one, so they may not be captions")
    return {}


def _caption_text(file: Path) -> str:
    """Return the text of a caption file; empty if it is unreadable or no caption."""
    text = ""
    with suppress(OSError):  # no permission, or deleted meanwhile
        if file.stat().st_size <= _MAX_CAPTION_BYTES:
            data = file.read_bytes()  # Windows PowerShell writes UTF-16
            text = data.decode("utf-16" if data[:2] in _UTF16_MARKS else "utf-8-sig", errors="replace")
    return text if any(map(str.isalpha, text)) else ""


def _pictures_by_metadata(
    groups: Mapping[str, list[str]], described: Sequence[Path], folder: Path
) -> dict[str, datasets.Dataset]:
    """Open the pictures listed in metadata files by a column ``file_name``, relative to the file's own folder."""
    by_parent = attrgetter("parent")
    for parent, files in groupby(sorted(described, key=by_parent), by_parent):
        names = [file.name for file in files]
        refuse((len(names) > 1, f"{parent}: {' and '.join(names)} describe the same pictures. Keep one of them."))
    listings = _unify_types([_read_metadata(file, folder) for file in described])
    parts = dict(zip(map(str, described), listings, strict=True))
    tables = {}
    for split, names in groups.items():
        own = [parts[name] for name in names if name in parts]
        with _table_errors(folder.name, described), _quiet():
            # A split without a metadata file is empty; it must not get another split's pictures.
            tables[split] = datasets.concatenate_datasets(own or [next(iter(parts.values())).select(range(0))])
    return tables


def _read_metadata(file: Path, folder: Path) -> datasets.Dataset:
    (table,) = _load({"train": [str(file)]}, folder.name).values()
    name = next((each for each in ("file_name", "image_file_name") if each in table.column_names), None)
    if name is None:
        raise UserError(f"{file}: no column 'file_name'; it has {', '.join(map(repr, table.column_names))}")
    taken = "image" in table.column_names
    refuse((taken, f"{file}: has both '{name}' and a column 'image'. Rename column 'image'."))
    with _table_errors(folder.name, [file]):
        paths, below = table.data.column(name).cast(pa.string()), file.parent.relative_to(folder)
        paths = pc.binary_join_element_wise(below.as_posix(), paths, "/") if below.parts else paths
        return table.remove_columns(name).add_column("image", paths).cast_column("image", datasets.Image())


def _unify_types(parts: list[datasets.Dataset]) -> list[datasets.Dataset]:
    """Give each column the same type in the tables of several files.

    ``datasets`` infers types from each file's values, which may be empty in one file and integers in another.
    """
    for name in dict.fromkeys(name for part in parts for name in part.column_names):
        owners = [number for number, part in enumerate(parts) if name in part.column_names]
        if len({repr(parts[number].features[name]) for number in owners}) == 1:
            continue
        empty = [number for number in owners if (column := parts[number].data.column(name)).null_count == len(column)]
        owners = [number for number in owners if number not in empty] or empty[:1]
        for number in set(empty) - set(owners):
            parts[number] = parts[number].remove_columns(name)  # concatenation fills it with nulls
        types = [parts[number].data.column(name).type for number in owners]
        if any(map(pa.types.is_nested, types)) or len(set(types)) == 1:
            continue
        numbers = all(pa.types.is_integer(type) or pa.types.is_floating(type) for type in types)
        common = "int64" if all(map(pa.types.is_integer, types)) else "float64" if numbers else "string"
        with _quiet():
            for number in owners:
                parts[number] = parts[number].cast_column(name, datasets.Value(common))
    return parts


def _pictures_by_folder(
    groups: Mapping[str, list[str]], listed: int, captions: Mapping[str, tuple[Path, str]]
) -> dict[str, datasets.Dataset]:
    """Build the tables that ``imagefolder`` of ``datasets`` builds, which takes minutes for a million pictures.

    Folders are labels if there are several of them, all on the same level.

    Args:
        groups: picture files by split.
        listed: number of names in the class list (`_class_list`), in the order of the folders.
        captions: see `_caption_files`.
    """
    paths = {split: [os.path.abspath(name) for name in names] for split, names in groups.items()}
    all_paths = [path for some in paths.values() for path in some]
    names = sorted({_folder_name(path) for path in all_paths})
    labeled = len(names) > 1 and len({path.count(os.sep) for path in all_paths}) == 1
    number = {name: index for index, name in enumerate(names)}
    kind = datasets.Value("int64") if listed == len(names) else datasets.ClassLabel(names=names)
    label = {"label": kind} if labeled else {}
    if labeled and listed not in (0, len(names)):
        note(f"ignored classnames.txt: it has {counted(listed, 'name')} for {len(names)} folders")
    elif labeled and not listed and all(map(_WORDNET_ID.fullmatch, names)):
        note("classes are named by WordNet ids. List readable names in classnames.txt, in the order of the folders.")
    texts = {"txt": datasets.Value("string")} if captions else {}  # one caption per line, as in a WebDataset
    features = datasets.Features({"image": datasets.Image(), **label, **texts})
    tables = {}
    for split, some in paths.items():
        files = pa.StructArray.from_arrays(
            [pa.nulls(len(some), pa.binary()), pa.array(some, pa.string())], ["bytes", "path"]
        )
        columns = {"image": files}
        if labeled:
            columns["label"] = pa.array([number[_folder_name(path)] for path in some], pa.int64())
        written = [captions[path][1] if path in captions else "" for path in some] if captions else []
        if captions:
            columns["txt"] = pa.array(written, pa.string())
        table = InMemoryTable(pa.table(columns, schema=features.arrow_schema))
        digest = hash_of("\n".join([*some, *written]), 8)
        info = datasets.DatasetInfo(features=features)
        tables[split] = datasets.Dataset(table, info=info, split=datasets.NamedSplit(split), fingerprint=digest)
    return tables


def _folder_name(path: str) -> str:
    """Return the name of a picture's folder in composed form; macOS writes it in decomposed form."""
    return unicodedata.normalize("NFC", os.path.basename(os.path.dirname(path)))


def _open_files(files: Sequence[Path], folder: Path, where: str, lost_share: float) -> Tables:
    kinds = {file.suffix.lower() for file in files}
    empty = next((file for file in files if file.stat().st_size == 0), None)
    refuse(
        (len(kinds) > 1, f"{where}: files of different formats ({', '.join(sorted(kinds))}). Name only one format."),
        (empty, f"{empty}: empty file"),
    )
    suffix = kinds.pop()
    groups = split_groups({str(file): file.relative_to(folder) for file in files})
    if suffix == ".tar":
        columns = {column for state in check_shards(files, lost_share) for column in state.columns}
        return _load_shards(groups, columns, where), Origin(where, tuple(files), class_names=_class_list(folder))
    refuse((suffix not in _TABLES, f"{where}: not Parquet, CSV, JSON, JSON lines, tar or a folder"))
    coco = {str(file): _coco(file) for file in files} if suffix == ".json" else {}
    if any(coco.values()):
        other = next((name for name, table in coco.items() if table is None), None)
        refuse((other, f"{other}: not captions in COCO's format, unlike the other files"))
        tables = {
            split: datasets.concatenate_datasets([coco[name] for name in names]) for split, names in groups.items()
        }
    else:
        tables = _load(groups, where)
    return tables, Origin(where, tuple(files), files[0].parent)


def _coco(file: Path) -> datasets.Dataset | None:
    """Read pictures and captions from JSON in the format of COCO or of Karpathy's splits; None for other JSON."""
    with _table_errors(file.name, [file]):
        content = json.loads(file.read_bytes())
        if not isinstance(content, dict) or not isinstance(content.get("images"), list):
            return None
        captions: dict[Any, list[str]] = {}
        for each in content.get("annotations", ()):
            captions.setdefault(each["image_id"], []).extend([each["caption"]] if "caption" in each else ())
        rows = []
        for image in content["images"]:
            name = "/".join(image[key] for key in ("filepath", "file_name", "filename") if key in image)
            texts = [each["raw"] for each in image.get("sentences", ())]
            split = {"split": image["split"]} if "split" in image else {}
            rows.append({"image": name, "captions": captions.get(image.get("id"), texts), **split})
        return datasets.Dataset.from_list(rows)


def _load(groups: Mapping[str, list[str]], where: str) -> dict[str, datasets.Dataset]:
    """Load tables of one format with `datasets`, which caches them."""
    files = [Path(name) for names in groups.values() for name in names]
    chained = next((path for file in files if _CHAIN_SEPARATOR in (path := os.path.abspath(file))), None)
    refuse((chained, f"{chained}: paths with '{_CHAIN_SEPARATOR}' cannot be read. Rename the file or folder."))
    suffix, options = files[0].suffix.lower(), dict[str, Any]()
    if _TABLES[suffix] == "csv":
        # Treat only empty cells as missing, not "None" and "NA". Without index_col=False, a row with one extra cell
        # would shift all columns.
        separators = {separator_of(file) for file in files}
        refuse((len(separators) > 1, f"{where}: its files use different cell separators"))
        sep = separators.pop()
        filled, codes = zip(*(check_cells(file, sep) for file in files), strict=True)
        refuse((not any(filled), f"{where}: has a header but no rows"))
        options = {"keep_default_na": False, "na_values": [""], "sep": sep, "index_col": False}
        if texts := sorted(set[str]().union(*codes)):
            options["converters"] = dict.fromkeys(texts, _text_or_none)

    def load(groups: Mapping[str, list[str]]) -> dict[str, datasets.Dataset]:
        data_files = {split: _data_files(names) for split, names in groups.items()}
        return dict(datasets.load_dataset(_TABLES[suffix], data_files=data_files, cache_dir=_cache_dir(), **options))

    with _table_errors(where, files), _quiet():
        try:
            return load(groups)
        except Exception as error:
            if getattr(error, "errno", None) is not None:
                raise
        # The type of a column may have been inferred from rows unlike later ones: infer it from whole files.
        if _TABLES[suffix] != "parquet":
            options |= {"chunksize": max(file.stat().st_size for file in files)}
        options |= {"engine": "python"} if _TABLES[suffix] == "csv" else {}
        parts = iter(_unify_types([load({"train": [str(file)]})["train"] for file in files]))
        return {split: datasets.concatenate_datasets([next(parts) for _ in names]) for split, names in groups.items()}


def _text_or_none(cell: str) -> str | None:
    return cell or None


@cache
def _cache_dir() -> str | None:
    """Return the cache folder for ``datasets``: None for its default, or a temporary one if that is not writable."""
    default = Path(datasets.config.HF_DATASETS_CACHE)
    with suppress(UserError):
        check_writable(default, "HF_HOME")
        return None
    folder = tempfile.mkdtemp(prefix="recollect-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    note(f"{default}: not writable, so tables are cached only until this command ends. Set HF_HOME to another folder.")
    return folder


def _data_files(names: Sequence[str]) -> DataFilesList:
    """Return files with version stamps; ``datasets`` would treat plain names as patterns and skip "image[1].jpg"."""
    paths = [os.path.abspath(name) for name in names]
    stats = [os.stat(path) for path in paths]
    # Unpacking or copying a file may preserve its mtime, so ctime is included.
    return DataFilesList(paths, [(f"{each.st_mtime_ns} {each.st_ctime_ns} {each.st_size}",) for each in stats])


def _load_shards(groups: Mapping[str, list[str]], columns: set[str], where: str) -> dict[str, datasets.Dataset]:
    """Load WebDataset tars as tables; fields may be missing in some samples."""
    kinds = {"json": "string", "txt": "string", "text": "string", "caption": "string", "cls": "int64"}
    features = datasets.Features({name: datasets.Value(kinds[name]) for name in sorted(columns & kinds.keys())})
    for name in sorted(columns - kinds.keys()):
        if f".{name.rpartition('.')[2].lower()}" in PICTURE_ENDINGS:
            features[name] = datasets.Image(decode=False)
    refuse((not features, f"{where}: no samples; a WebDataset shard contains files such as 0001.jpg and 0001.txt"))
    features["__key__"] = features[DAMAGE_KEY] = datasets.Value("string")
    tables = {}
    for split, names in groups.items():
        stamps = repr((_data_files(names).origin_metadata, names, features))
        with _table_errors(where, [Path(name) for name in names]), _quiet():
            table = datasets.Dataset.from_generator(
                _shard_rows,
                features,
                _cache_dir(),
                gen_kwargs={"files": names, "columns": tuple(features)},
                split=datasets.NamedSplit(split),
                fingerprint=hash_of(stamps, 8),
            )
        whole = table.data.column(DAMAGE_KEY).null_count == len(table)
        tables[split] = table.remove_columns(DAMAGE_KEY) if whole else table
    return tables


def _shard_rows(files: Sequence[str], columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for file in files:
        with Path(file).open("rb") as opened:
            rows = TarRows(opened)
            for number in range(len(rows.samples)):
                row = rows(number)
                damage = {name: why for name, why in row.pop(DAMAGE_KEY, {}).items() if name in columns}
                for name in columns:
                    value = row.setdefault(name, None)
                    if isinstance(value, bytes):
                        row[name] = {"path": f"{row['__key__']}.{name}", "bytes": value}
                row |= dict.fromkeys(damage.keys() & {"txt", "text", "caption", "json"})
                row[DAMAGE_KEY] = "; ".join(damage.values()) or None
                yield row


def _class_list(folder: Path) -> tuple[str, ...]:
    """Return the names in ``classnames.txt`` of the folder or its parent (CLIP_benchmark), in label or folder order."""
    for file in (folder / "classnames.txt", folder.parent / "classnames.txt"):
        if file.exists():
            return tuple(line.strip() for line in read_text(file).splitlines() if line.strip())
    return ()


@contextmanager
def _table_errors(where: str, files: Sequence[Path]) -> Iterator[None]:
    """Convert a library's exception about a damaged file into a one-line error that names the file."""
    try:
        yield
    except Exception as error:
        if isinstance(error, UserError) or getattr(error, "errno", None) is not None:  # e.g. disk full, no permission
            raise
        name = next((file for file in files if len(files) == 1 or _is_damaged(file)), where)
        while error.__cause__ is not None:
            error = error.__cause__  # type: ignore[assignment]
        if isinstance(error, UnicodeDecodeError):
            raise UserError(not_utf8(Path(name))) from error
        if cells := _CELL_COUNT_ERROR.search(str(error)):
            expected, line, count = cells.groups()
            what = f"line {line} has {counted(int(count), 'cell')}, and the lines above {expected}"
            raise UserError(f"{name}: {what}. Put double quotes around texts that contain the separator.") from error
        raise UserError(f"{name}: damaged, truncated, or in another format ({one_line(error)})") from error


def _is_damaged(file: Path) -> bool:
    with suppress(OSError, pa.ArrowException):
        if file.suffix == ".parquet":
            pq.ParquetFile(file)
        return False
    return True


@contextmanager
def _quiet() -> Iterator[None]:
    """Show progress bars only on terminals, and silence logging, because errors become user errors."""
    bars, level = datasets.is_progress_bar_enabled() and not sys.stderr.isatty(), datasets.logging.get_verbosity()
    with ExitStack() as undo:
        undo.callback(datasets.logging.set_verbosity, level)
        datasets.logging.set_verbosity(datasets.logging.CRITICAL)
        if bars:
            undo.callback(datasets.enable_progress_bars)
            datasets.disable_progress_bars()
        yield
