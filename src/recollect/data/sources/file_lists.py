"""Listing the files of a path, pattern, folder, URL or hub set, and their splits from words in their paths."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from glob import glob
from pathlib import Path, PurePath, PurePosixPath
from typing import TypeVar
from urllib.parse import urlsplit

from recollect.core.errors import UserError, user_errors
from recollect.core.paths import expanduser, near_names, refuse_slip
from recollect.core.validation import check_choice, refuse
from recollect.data.sources.columns import SPLITS
from recollect.data.sources.images import files_below
from recollect.data.sources.remote import is_address, listed

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
"""What may be the name of a data set on the hub."""

NamedFile = TypeVar("NamedFile", str, Path)


def stream_files(place: str, revision: str | None, split: str | None, config: str | None = None) -> list[str]:
    """The Parquet files or tars of a file, a folder, a pattern, URLs or a hub id, for `open_stream`.

    Args:
        revision: branch or commit of a hub set.
        split: training by default; the names of files or folders tell which split they belong to.
        config: folder of a hub set.

    Raises:
        UserError: nothing is there, or no such split.
    """
    path = Path(expanduser(place))
    if is_address(place):
        refuse_of_hub(place, config, revision)
        return _chosen(place, _below_all(_addresses(place)), split)
    local, folder = local_files(place)
    local = _of_one_kind(local) if path.is_dir() else local
    if local:
        refuse_of_hub(place, config, revision)
        return _chosen(place, {str(file): file.relative_to(folder) for file in local}, split)
    if not HUB_ID.fullmatch(place) or path.suffix or path.is_dir():
        raise UserError(f"{place}: no Parquet files or tars to stream{near_names(path)}")
    refuse_slip(place, "file or folder")
    chosen = _chosen(place, _hub_files(place, revision), split)
    chosen = [file for file in chosen if config is None or f"/{config}/" in file]
    parts = "".join(f" for {part} '{value}'" for part, value in (("split", split), ("config", config)) if value)
    refuse((not chosen, f"{place}: no Parquet files or tars to stream{parts}"))
    return chosen


def _hub_files(name: str, revision: str | None) -> dict[str, PurePath]:
    from huggingface_hub import HfApi

    with user_errors(f"{name}: the hub does not provide this data set"):
        about = HfApi().dataset_info(name, revision=revision, timeout=5.0)
    names = _of_one_kind(sorted(each.rfilename for each in about.siblings or []), (".parquet", ".tar"))
    return {f"hf://datasets/{name}@{about.sha}/{each}": PurePosixPath(each) for each in names}


def _addresses(place: str) -> list[str]:
    """All URLs of a pattern or folder."""
    found = [
        file
        for each in _expand_braces(place)
        for file in (_of_one_kind(listed(each)) if "*" in each or each.endswith("/") else [each])
    ]
    refuse((not found, f"{place}: no Parquet files or tars to stream"))
    return found


def _below_all(addresses: Sequence[str]) -> dict[str, PurePath]:
    """Each URL with its path relative to their common folder."""
    paths = [PurePosixPath("/") / urlsplit(address).path for address in addresses]
    shared = os.path.commonpath([path.parent for path in paths])
    return {address: path.relative_to(shared) for address, path in zip(addresses, paths, strict=True)}


def _of_one_kind(files: Sequence[NamedFile], endings: tuple[str, str] = (".tar", ".parquet")) -> list[NamedFile]:
    """The files with the first ending; those with the second if there are none."""
    for ending in endings:
        if found := [file for file in files if str(file).endswith(ending)]:
            return found
    return []


def _chosen(place: str, files: Mapping[str, PurePath], split: str | None) -> list[str]:
    """The files of one split."""
    groups = split_groups(files)
    wanted = SPLITS.get(split or "train", split or "train")
    if split is None and len(groups) == 1:
        return next(iter(groups.values()))
    return groups[check_choice(wanted, groups, f"{place}: split")]


def refuse_of_hub(place: str, config: str | None, revision: str | None) -> None:
    """Refuse options that only data sets on the hub have.

    Raises:
        UserError: one is set.
    """
    for name, value in (("config", config), ("revision", revision)):
        refuse((value is not None, f"{place}: {name}={value} is for data sets on the hub. Remove it."))


def local_files(place: str) -> tuple[list[Path], Path]:
    """The files of a folder, a file, or those that match a pattern of shell braces and wildcards; and their folder."""
    path = Path(expanduser(place))
    if path.is_dir():
        return files_below(path), path
    if path.is_file():
        return [path], path.parent
    files = [Path(name) for each in _expand_braces(str(path)) for name in sorted(glob(each))]
    return files, Path(os.path.commonpath([file.parent for file in files])) if files else path.parent


def _expand_braces(pattern: str) -> Iterator[str]:
    """Shell braces: ``{000..012}`` and ``{a,b}``."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if not match:
        yield pattern
        return
    ends = re.fullmatch(r"(\d+)\.\.(\d+)", match[1])
    words = match[1].split(",")
    if ends:
        words = [str(number).zfill(len(ends[1])) for number in range(int(ends[1]), int(ends[2]) + 1)]
    for word in words:
        yield from _expand_braces(pattern[: match.start()] + word + pattern[match.end() :])


def split_groups(files: Mapping[str, PurePath]) -> dict[str, list[str]]:
    """Files by their split: from their top folders, their own folders, or the first words of their names.

    The first of these counts that names a split for every file; if none does, all are called train.

    Args:
        files: by name, the path below the folder that all share.
    """
    for word in (_top, _own_folder, _first_word) if len(files) > 1 else ():
        groups = _by_word({name: word(path) for name, path in files.items()})
        if list(groups) != ["train"]:
            return groups
    return {"train": list(files)}


def by_top_folder(files: Mapping[str, PurePath]) -> dict[str, list[str]]:
    """One split for each top folder if all of them are named like splits; else all files in one, called train.

    ``datasets`` would take any "test" in a file or class name for a split.
    """
    return _by_word({name: _top(path) for name, path in files.items()})


def _top(path: PurePath) -> str:
    return path.parts[0].lower()


def _own_folder(path: PurePath) -> str:
    return path.parent.name.lower()


def _first_word(path: PurePath) -> str:
    return re.split(r"[^a-z]", path.name.lower(), maxsplit=1)[0]


def _by_word(files: Mapping[str, str]) -> dict[str, list[str]]:
    if not all(word in SPLITS for word in files.values()):
        return {"train": list(files)}
    groups: dict[str, list[str]] = {}
    for name, word in files.items():
        groups.setdefault(SPLITS[word], []).append(name)
    return groups
