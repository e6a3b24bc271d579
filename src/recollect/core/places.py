"""What results call models, indexes and files: no folder of this machine, no user and no key."""

import os
from collections.abc import Sequence
from pathlib import Path

_STARTS = ("/", "~", "../")
"""How paths of this machine start; others are relative to where a command runs."""


def public_place(place: str, parts: int = 1) -> str:
    """A path of this machine by its last part, an address without user and query, any other name as it is.

    Args:
        place: such as ``/data/pairs.parquet?split=train``, ``name=/data/pairs.parquet``, ``RUN/model`` or a hub id.
        parts: how many of a path's last parts to keep; a folder ``model`` keeps that of its run too.
    """
    if "://" in place:
        kind, _, rest = place.partition("?")[0].partition("://")
        host, slash, inside = rest.partition("/")
        return f"{kind}://{host.rpartition('@')[2]}{slash}{inside}"
    named, mark, query = place.partition("?")
    name, equals, file = ("", "", named) if named.startswith(_STARTS) else named.partition("=")
    if not file.startswith(_STARTS):
        return place
    path = Path(file)
    last = [part for part in path.parts if part not in ("/", "~", "..")][-(parts + (path.name == "model")) :]
    return f"{name}{equals}{'/'.join(last)}{mark}{query}"


def model_name(place: str, fingerprint: str) -> str:
    """What results call a model, however its place was spelled: no folder of this machine.

    A folder in or below the one that a command runs in by its path from there; one elsewhere by its last part, and the
    first eight digits of the model's fingerprint, since others may be called so too; a hub id as it is.
    """
    if not os.path.isdir(place):
        return place
    for path, here in ((os.path.abspath(place), os.getcwd()), (os.path.realpath(place), os.path.realpath("."))):
        if path.startswith(os.path.join(here, "")):
            return Path(os.path.relpath(path, here)).as_posix()
    return f"{public_place(os.path.abspath(place))} {fingerprint[:8]}"


def public_names(places: Sequence[str]) -> dict[str, str]:
    """A name for each place, by `public_place` of as many parts as tell them apart; each place with its name."""
    for parts in range(1, max((len(Path(place).parts) for place in places), default=0) + 1):
        names = {place: public_place(place, parts) for place in places}
        if len(set(names.values())) == len(names):
            return names
    return {place: place for place in places}
