"""Listing the files of a path, pattern, folder, URL or hub data set, and inferring splits from their paths."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from glob import glob
from pathlib import Path, PurePath, PurePosixPath
from typing import TypeVar
from urllib.parse import urlsplit

from recollect.core.errors import UserError, user_errors
from recollect.core.paths import did_you_mean, expanduser, reject_typo
from recollect.core.validation import check_choice, refuse
from recollect.data.sources.columns import SPLITS
from recollect.data.sources.images import files_below
from recollect.data.sources.remote import is_address, listed

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
"""Possible ids of data sets on the hub."""

NamedFile = TypeVar("NamedFile", str, Path)


def stream_files(place: str, revision: str | None, split: str | None, config: str | None = None) -> list[str]:
    """Return the Parquet files or tars at a place, for `open_stream`.

    Args:
        place: a file, folder, pattern, URL or hub id.
        revision: branch or commit of a hub data set.
        split: the split to select, inferred from names of files or folders; by default the training split.
        config: folder of a hub data set.

    Raises:
        UserError: there are no such files, or no such split.
    """
    path = Path(expanduser(place))
    if is_address(place):
        refuse_hub_options(place, config, revision)
        return _files_of_split(place, _relative_paths(_expand_urls(place)), split)
    local, folder = local_files(place)
    local = _first_kind(local) if path.is_dir() else local
    if local:
        refuse_hub_options(place, config, revision)
        return _files_of_split(place, {str(file): file.relative_to(folder) for file in local}, split)
    if not HUB_ID.fullmatch(place) or path.suffix or path.is_dir():
        raise UserError(f"{place}: no Parquet files or tars to stream{did_you_mean(path)}")
    reject_typo(place, "file or folder")
    chosen = _files_of_split(place, _hub_files(place, revision), split)
    chosen = [file for file in chosen if config is None or f"/{config}/" in file]
    parts = "".join(f" for {part} '{value}'" for part, value in (("split", split), ("config", config)) if value)
    refuse((not chosen, f"{place}: no Parquet files or tars to stream{parts}"))
    return chosen


def _hub_files(name: str, revision: str | None) -> dict[str, PurePath]:
    from huggingface_hub import HfApi

    with user_errors(f"{name}: the hub does not provide this data set"):
        about = HfApi().dataset_info(name, revision=revision, timeout=5.0)
    names = _first_kind(sorted(each.rfilename for each in about.siblings or []), (".parquet", ".tar"))
    return {f"hf://datasets/{name}@{about.sha}/{each}": PurePosixPath(each) for each in names}


def _expand_urls(place: str) -> list[str]:
    """Return all URLs of a pattern or folder."""
    urls = [
        file
        for each in _expand_braces(place)
        for file in (_first_kind(listed(each)) if "*" in each or each.endswith("/") else [each])
    ]
    refuse((not urls, f"{place}: no Parquet files or tars to stream"))
    return urls


def _relative_paths(addresses: Sequence[str]) -> dict[str, PurePath]:
    """Return the path of each URL relative to their common folder."""
    paths = [PurePosixPath("/") / urlsplit(address).path for address in addresses]
    shared = os.path.commonpath([path.parent for path in paths])
    return {address: path.relative_to(shared) for address, path in zip(addresses, paths, strict=True)}


def _first_kind(files: Sequence[NamedFile], endings: tuple[str, str] = (".tar", ".parquet")) -> list[NamedFile]:
    """Return the files with the first of ``endings`` that any file has."""
    for ending in endings:
        if matches := [file for file in files if str(file).endswith(ending)]:
            return matches
    return []


def _files_of_split(place: str, files: Mapping[str, PurePath], split: str | None) -> list[str]:
    """Return the files of one split."""
    groups = split_groups(files)
    wanted = SPLITS.get(split or "train", split or "train")
    if split is None and len(groups) == 1:
        return next(iter(groups.values()))
    return groups[check_choice(wanted, groups, f"{place}: split")]


def refuse_hub_options(place: str, config: str | None, revision: str | None) -> None:
    """Reject options that only apply to data sets on the hub.

    Raises:
        UserError: such an option is set.
    """
    for name, value in (("config", config), ("revision", revision)):
        refuse((value is not None, f"{place}: {name}={value} only applies to data sets on the hub. Remove it."))


def local_files(place: str) -> tuple[list[Path], Path]:
    """Return the files of a path, folder, or pattern with shell braces and wildcards; and their common folder."""
    path = Path(expanduser(place))
    if path.is_dir():
        return files_below(path), path
    if path.is_file():
        return [path], path.parent
    files = [Path(name) for each in _expand_braces(str(path)) for name in sorted(glob(each))]
    return files, Path(os.path.commonpath([file.parent for file in files])) if files else path.parent


def _expand_braces(pattern: str) -> Iterator[str]:
    """Expand shell braces: ``{000..012}`` and ``{a,b}``."""
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
    """Group files into splits by their top folders, their own folders, or the first word of their names.

    The first of these that gives a split for every file is used; otherwise all files are in "train".

    Args:
        files: paths relative to the common folder, by file.
    """
    for word in (_top, _own_folder, _first_word) if len(files) > 1 else ():
        groups = _by_word({name: word(path) for name, path in files.items()})
        if list(groups) != ["train"]:
            return groups
    return {"train": list(files)}


def by_top_folder(files: Mapping[str, PurePath]) -> dict[str, list[str]]:
    """Group files into splits by their top folders if all of these are named like splits; else all are in "train".

    ``datasets`` would treat any "test" in a file or class name as a split.
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
