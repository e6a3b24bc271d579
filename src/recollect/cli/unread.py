"""Options that a command does not read beside the others: refused where given, so that nobody believes them heard."""

from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from recollect.core.errors import UserError
from recollect.core.given import is_given


def refuse_unread(options: Any, *names: str, why: str, before: str = "") -> None:
    """Refuse options that somebody wrote, or set to another value than they have by themselves.

    Beside another run's recipe (``--config``) only what is written counts: the rest is that run's.

    Args:
        options: a dataclass of options.
        names: of its fields; all of them by default. Of a field that holds options, all of these.
        why: what to say behind the option's name.
        before: how the options' names begin on the command line, ``episode.``.

    Raises:
        UserError: naming the first that was given.
    """
    given = next(_given(options, names, before), None)
    if given is not None:
        raise UserError(f"--{given.replace('_', '-')}: {why}")


def split_for(spec: str, split: str | None, usual: str | None = None) -> str | None:
    """The split to open a source with: none where its address names one, which then is the one that is read.

    Args:
        spec: the source's address.
        split: what --split says.
        usual: what it says by itself.

    Raises:
        UserError: somebody named another split than the address does.
    """
    from recollect.data.sources.opening import split_of  # which loads more than a search needs

    said = split_of(spec)
    if said is None:
        return split
    if split not in (None, said) and (split != usual or is_given("split")):
        raise UserError(f"--split {split}: {spec} names another split. Leave out one of both.")
    return None


def _given(options: Any, names: tuple[str, ...], before: str) -> Iterator[str]:
    for field in fields(options):
        if not names or field.name in names:
            usual = field.default_factory() if field.default_factory is not MISSING else field.default
            yield from _differences(getattr(options, field.name), usual, f"{before}{field.name}")


def _differences(value: Any, usual: Any, name: str) -> Iterator[str]:
    if is_dataclass(value) and type(value) is type(usual):
        for field in fields(value):
            yield from _differences(getattr(value, field.name), getattr(usual, field.name), f"{name}.{field.name}")
    elif is_given(name) or (value != usual and not is_given("config")):
        yield name
