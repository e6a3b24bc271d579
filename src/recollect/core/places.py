"""Names of models, indexes and files in results, without local folders, user names and keys."""

import os
from pathlib import Path

_LOCAL_PREFIXES = ("/", "~", "../")
"""Prefixes of paths outside the working directory."""


def public_place(place: str, parts: int = 1) -> str:
    """Shorten a local path to its last parts, remove user and query from an address, and keep any other name.

    Args:
        place: such as ``/data/pairs.parquet?split=train``, ``name=/data/pairs.parquet``, ``RUN/model`` or a hub id.
        parts: number of trailing path components to keep; a folder ``model`` also keeps the name of its run.
    """
    if "://" in place:
        kind, _, rest = place.partition("?")[0].partition("://")
        host, slash, inside = rest.partition("/")
        return f"{kind}://{host.rpartition('@')[2]}{slash}{inside}"
    named, mark, query = place.partition("?")
    name, equals, file = ("", "", named) if named.startswith(_LOCAL_PREFIXES) else named.partition("=")
    if not file.startswith(_LOCAL_PREFIXES):
        return place
    path = Path(file)
    last = [part for part in path.parts if part not in ("/", "~", "..")][-(parts + (path.name == "model")) :]
    return f"{name}{equals}{'/'.join(last)}{mark}{query}"


def model_name(place: str, fingerprint: str) -> str:
    """Return the name of a model in results, which reveals no local folder and does not depend on the path's spelling.

    A folder below the working directory is named by its relative path; a folder elsewhere by its last component and
    the first eight digits of the model's fingerprint, since several may share that name. A hub id is unchanged.
    """
    if not os.path.isdir(place):
        return place
    for path, here in ((os.path.abspath(place), os.getcwd()), (os.path.realpath(place), os.path.realpath("."))):
        if path.startswith(os.path.join(here, "")):
            return Path(os.path.relpath(path, here)).as_posix()
    return f"{public_place(os.path.abspath(place))} {fingerprint[:8]}"
