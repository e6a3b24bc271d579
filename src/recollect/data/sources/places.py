"""Listing the files of a path, pattern, folder or URL, and their splits from words in their paths."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from glob import glob
from pathlib import Path, PurePath, PurePosixPath
from typing import TypeVar
from urllib.parse import urlsplit

from recollect.core.errors import UserError
from recollect.core.paths import near_names, refuse_slip
from recollect.core.validation import check_choice, refuse
from recollect.data.sources.columns import SPLITS
from recollect.data.sources.images import files_below
from recollect.data.sources.remote import is_address, listed
from recollect.data.sources.streamed import hub_files

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
"""What may be the name of a set on the hub."""

NamedFile = TypeVar("NamedFile", str, Path)


def stream_files(place: str, revision: str | None, split: str | None, config: str | None = None) -> list[str]:
    """The Parquet files or tars of a place, for `open_stream`: a file, a folder, a pattern, addresses, or a hub id.

    Args:
        revision: the hub set's branch or commit.
        split: training by default; the files' names or folders say which they are of, as for `open_tables`.
        config: a folder of the hub set.

    Raises:
        UserError: nothing is there, or no such split.
    """
    path = Path(place).expanduser()
    if is_address(place):
        refuse_of_hub(place, config, revision)
        return _chosen(place, _below_all(_addresses(place)), split)
    if path.is_dir():
        files = _of_one_kind(files_below(path))
    elif path.is_file():
        files = [path]
    else:
        files = files_named(place)
    if not files:
        if HUB_ID.fullmatch(place) and not path.suffix:
            refuse_slip(place, "file or folder")
            return hub_files(place, revision, split, config)
        raise UserError(f"{place}: no Parquet files or tars to stream{near_names(path)}")
    refuse_of_hub(place, config, revision)
    below = path if path.is_dir() else None
    return _chosen(place, {str(file): file.relative_to(below) if below else Path(file.name) for file in files}, split)


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


def _of_one_kind(files: Sequence[NamedFile]) -> list[NamedFile]:
    """The tars among files, or where there are none the Parquet files."""
    for ending in (".tar", ".parquet"):
        if found := [file for file in files if str(file).endswith(ending)]:
            return found
    return []


def _chosen(place: str, files: Mapping[str, PurePath], split: str | None) -> list[str]:
    """Of files, by the part of their paths that may name their split, those of one."""
    groups = split_groups(files)
    wanted = SPLITS.get(split or "train", split or "train")
    if split is None and len(groups) == 1:
        return next(iter(groups.values()))
    return groups[check_choice(wanted, groups, f"{place}: split")]


def refuse_of_hub(place: str, config: str | None, revision: str | None) -> None:
    """Refuse what only sets on the hub have, for a place that is none."""
    refuse(
        (config is not None, f"{place}: config={config} is for data sets on the hub. Remove it."),
        (revision is not None, f"{place}: revision={revision} is for data sets on the hub. Remove it."),
    )


def files_named(pattern: str) -> list[Path]:
    """The files here that fit a pattern of shell braces and wildcards."""
    return [Path(name) for each in _expand_braces(pattern) for name in sorted(glob(str(Path(each).expanduser())))]


def _expand_braces(pattern: str) -> Iterator[str]:
    """Shell braces: ``{000..012}`` and ``{a,b}``."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if not match:
        yield pattern
        return
    ends = re.fullmatch(r"(\d+)\.\.(\d+)", match[1])
    words = (
        [str(number).zfill(len(ends[1])) for number in range(int(ends[1]), int(ends[2]) + 1)]
        if ends
        else match[1].split(",")
    )
    for word in words:
        yield from _expand_braces(pattern[: match.start()] + word + pattern[match.end() :])


def split_groups(files: Mapping[str, PurePath]) -> dict[str, list[str]]:
    """Files by their split, as their top folders say, or else their names; all are called train where nothing says it.

    Args:
        files: name of each, and its path below what all have in common.
    """
    groups = by_top_folder(files) if len(files) > 1 else {"train": list(files)}
    return _by_file_name(files) if len(groups) == 1 and len(files) > 1 else groups


def by_top_folder(files: Mapping[str, PurePath]) -> dict[str, list[str]]:
    """One split for each top folder if all of them are named like splits; else all in one, called train.

    Done here because ``datasets`` takes any "test" in a file or class name for a split.
    """
    return _by_word({name: path.parts[0].lower() for name, path in files.items()})


def _by_file_name(files: Mapping[str, PurePath]) -> dict[str, list[str]]:
    """Splits from names such as ``train-00000-of-00002.parquet``, if every file has one."""
    return _by_word({name: re.split(r"[^a-z]", path.name.lower(), maxsplit=1)[0] for name, path in files.items()})


def _by_word(files: Mapping[str, str]) -> dict[str, list[str]]:
    if not all(word in SPLITS for word in files.values()):
        return {"train": list(files)}
    groups: dict[str, list[str]] = {}
    for name, word in files.items():
        groups.setdefault(SPLITS[word], []).append(name)
    return groups
