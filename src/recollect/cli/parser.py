"""Command-line parsing from dataclasses: options, help, settings files, and warnings about options without effect.

A command is a frozen dataclass with a docstring, one field per option and a method ``run``. To keep help and completion
fast, its module imports nothing heavy at the top; ``run`` imports what it needs.
"""

import argparse
import inspect
import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from recollect.cli.field_docs import field_docs
from recollect.core.errors import UserError
from recollect.core.options import OptionPath, build, converted, default_of, read_options_file, without_none
from recollect.core.paths import expanduser

_T = TypeVar("_T")


def import_object(place: str) -> Any:
    """Import and return the object at ``module:name``."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def run_imported(place: str) -> Callable[[Any], None]:
    """Return a ``run`` method that imports ``module:name`` and calls it with the command."""

    def run(command: Any) -> None:
        import_object(place)(command)

    return run


MAX_WIDTH = 100
"""Columns of help on a wide terminal."""


@dataclass(frozen=True)
class Arg:
    """Command-line settings of a field: ``size: Annotated[int, Arg(rare=True)] = 3``.

    Attributes:
        place: placeholder of a positional argument in the help, e.g. ``MODEL``.
        name: name of the option, without ``--`` (default: the field's name with hyphens).
        metavar: placeholder of the value in the help.
        rare: hide the option from ``--help``; it still works, and is part of ``--config`` and ``--print-config``.
        flat: for nested dataclasses: options have no prefix.
        shown: for nested dataclasses: the only options in ``--help``, as dotted paths with their names on the command
            line; all others are rare.
    """

    place: str | None = None
    name: str | None = None
    metavar: str | None = None
    rare: bool = False
    flat: bool = False
    shown: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Option:
    """One option or positional argument of a command.

    Attributes:
        path: field names from the command to the option.
        name: name on the command line, without ``--``.
        kind: type of the value, without None.
        optional: whether the value may be None.
        default: default value; `dataclasses.MISSING` if a value is required.
        help: help text.
        group: title of its section in the help.
        arg: declared settings.
        rare: whether it is hidden from ``--help``.
        alias: dotted name, if the help lists a shorter one.
    """

    path: OptionPath
    name: str
    kind: Any
    optional: bool
    default: Any
    help: str
    group: str
    arg: Arg = field(default_factory=Arg)
    rare: bool = False
    alias: str | None = None

    @property
    def key(self) -> str:
        """Dotted name in a settings file."""
        return (self.alias or self.name).replace("-", "_")

    @property
    def switch(self) -> bool:
        """Whether it is an on/off option."""
        return self.kind is bool or is_dataclass(self.kind)

    @property
    def many(self) -> bool:
        """Whether it takes several values."""
        return get_origin(self.kind) is tuple

    @property
    def element(self) -> Any:
        """Type of one value."""
        return get_args(self.kind)[0] if self.many else self.kind

    @property
    def choices(self) -> tuple[Any, ...]:
        """All valid values of a `Literal`; else empty."""
        return get_args(self.element) if get_origin(self.element) is Literal else ()

    @property
    def required(self) -> bool:
        """Whether the command line must set it."""
        return self.default is MISSING and not self.switch and not self.rare

    @property
    def metavar(self) -> str:
        """Placeholder of the value in the help."""
        if self.arg.metavar or self.choices:
            return self.arg.metavar or f"{{{','.join(map(str, self.choices))}}}"
        kinds: dict[Any, str] = {int: "N", float: "X", Path: "PATH"}
        return kinds.get(self.element) or self.name.split(".")[-1].split("-")[-1].upper()

    @property
    def help_text(self) -> str:
        """Help text with the default."""
        text, value = self.help, self.default
        shows = value not in (None, MISSING, (), "") and not isinstance(value, bool)  # 0 and 1 equal False and True
        if shows and not self.arg.place and "default" not in text:
            shown = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
            text = f"{text.removesuffix('.')} (default: {shown})."
        return text.replace("%", "%%")

    def read(self, word: str) -> Any:
        """Convert a word of the command line to a value.

        Raises:
            ArgumentTypeError: the word is not a valid value.
        """
        if self.optional and word == "None":
            return _NONE
        if self.choices:
            for choice in self.choices:
                if str(choice) == word:
                    return choice
            raise argparse.ArgumentTypeError(f"{word!r} is not one of {', '.join(map(str, self.choices))}")
        members = get_args(self.element) if get_origin(self.element) in (UnionType, Union) else (self.element,)
        for member in members:
            try:
                return member(word)
            except ValueError:
                continue
        wanted = " or ".join(_KINDS.get(each, "valid") for each in members)
        raise argparse.ArgumentTypeError(f"{word!r} is not {wanted}")


_CONFIG = "Read options from a file in the format of --print-config. Options on the command line override it."
_KINDS: Mapping[Any, str] = {int: "a whole number", float: "a number"}
_NONE = object()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        message = message.removeprefix("argument ").replace("the following arguments are required", "missing")
        raise UserError(f"{message}. `{self.prog} --help` lists the options.")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        print(end="", flush=True)  # report a closed pipe here
        sys.exit(status)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Do nothing: `Option.read` checks choices; argparse needs them only for completion."""


class _Once(argparse.Action):
    """Store a value that may be given only once, or append to an option with several values."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        previous = getattr(namespace, self.dest, None)
        if previous is not None and not isinstance(values, list):
            raise argparse.ArgumentError(self, "given twice")
        setattr(namespace, self.dest, [*(previous or []), *values] if isinstance(values, list) else values)


class _Help(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        width = min(shutil.get_terminal_size((MAX_WIDTH, 24)).columns, MAX_WIDTH)
        super().__init__(prog, max_help_position=26, width=width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(textwrap.fill(" ".join(each.split()), width) for each in text.split("\n\n"))

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        text = super()._format_args(action, default_metavar)
        return text.split(" [")[0].lstrip("[").rstrip("]") + " ..." if action.nargs in ("+", "*") else text


def parse(kind: type[_T], words: Sequence[str], prog: str, default: _T | None = None) -> _T:
    """Parse a command line into an instance of ``kind``.

    Args:
        kind: dataclass of the command.
        words: arguments after the command's name.
        prog: the command as a user types it.
        default: instance that provides the values of options not given (default: the fields' own defaults).

    Raises:
        UserError: an option is unknown, repeated or missing, or a value is invalid.
        SystemExit: help or settings were requested and printed.
    """
    known, values = list(options_of(kind, default)), dict[OptionPath, Any]()
    with_config = any(option.rare for option in known)
    if with_config and (file := value_of("--config", words)):
        values = _values_in(Path(file), known)
        known = [replace(each, default=values[each.path]) if each.path in values else each for each in known]
    parser = build_parser(kind, prog, known)
    words = [_normalized(word, parser) for word in words]
    if print_config := with_config and "--print-config" in words:
        for action in parser._actions:
            action.required = False
    given = vars(parser.parse_intermixed_args(words))
    for option in known:
        if option.name in given:
            value = given[option.name]
            none = value is _NONE or value == [_NONE]
            values[option.path] = None if none else tuple(value) if option.many else value
    if print_config:
        print(settings_text(known, values), end="", flush=True)
        sys.exit(0)
    return build(kind, default, values)


def build_parser(kind: type[Any], prog: str, known: Sequence[Option] | None = None) -> argparse.ArgumentParser:
    """Build an `argparse` parser for the options of ``kind``."""
    known = list(options_of(kind)) if known is None else known
    places = [f"{each.arg.place} ..." if each.many else str(each.arg.place) for each in known if each.arg.place]
    required = [each.required for each in known if each.arg.place]
    usage = [place if needed else f"[{place}]" for place, needed in zip(places, required, strict=True)]
    usage += [f"--{each.name} {each.metavar}" for each in known if each.required and not each.arg.place]
    parser = _Parser(
        prog,
        usage=" ".join([prog, *usage, "[options]"]),
        description=inspect.cleandoc(kind.__doc__ or "").split("\nAttributes:")[0].strip(),
        formatter_class=_Help,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        add_help=False,
    )
    groups: dict[str, Any] = {}
    for option in sorted(known, key=lambda each: not each.arg.place):
        title = "arguments" if option.arg.place else option.group
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        _add(groups[title], option)
    more = groups.get("options") or parser.add_argument_group("options")
    if any(option.rare for option in known):
        more.add_argument("--config", metavar="FILE", action=_Once, help=_CONFIG)
        text = "Print all options and their help, including those not listed here."
        more.add_argument("--print-config", action="store_true", help=text)
    more.add_argument("-h", "--help", action="help", help="Show this help.")
    return parser


def _add(group: Any, option: Option) -> None:
    text = argparse.SUPPRESS if option.rare else option.help_text
    if option.switch:
        negative = ".".join((*option.name.split(".")[:-1], f"no-{option.name.split('.')[-1]}"))
        for name in (option.name, negative):
            hidden = name == (option.name if option.default is True else negative)
            group.add_argument(f"--{name}", action="store_const", const=name == option.name, dest=option.name,
                               help=argparse.SUPPRESS if hidden else text)  # fmt: skip
        return
    settings: dict[str, Any] = {"type": option.read, "action": _Once, "help": text}
    if option.choices:
        settings["choices"] = [*map(str, option.choices)]
    if option.arg.place:
        nargs = ("+" if option.default is MISSING else "*") if option.many else None if option.required else "?"
        group.add_argument(option.name, nargs=nargs, metavar=option.arg.place, **settings)
        return
    settings |= {"dest": option.name, "metavar": option.metavar}
    if option.many:
        settings["nargs"] = "+" if get_args(option.kind)[-1] is ... else len(get_args(option.kind))
    group.add_argument(f"--{option.name}", required=option.required, **settings)
    if option.alias:
        group.add_argument(f"--{option.alias}", **settings | {"help": argparse.SUPPRESS})


def _normalized(word: str, parser: argparse.ArgumentParser) -> str:
    """Normalize an option (``--batch_size`` to ``--batch-size``, ``~/`` in its value); return other words unchanged.

    Raises:
        UserError: no such option.
    """
    name, equals, value = word.partition("=")
    if name.startswith("--") and value.startswith("~/"):  # shells expand ~ only at the start of a word
        word = f"{name}={expanduser(value)}"
        value = expanduser(value)
    known = parser._option_string_actions
    if not name.startswith("--") or name == "--" or " " in name or name in known:
        return word
    if (hyphens := name.replace("_", "-")) in known:
        return hyphens + equals + value
    listed = [each for each in known if known[each].help is not argparse.SUPPRESS]
    completed = [each for each in known if each.startswith(name)]
    near = completed or get_close_matches(name, listed, 1) or get_close_matches(name, known, 1)
    guess = f"Did you mean {near[0]}?" if near else f"`{parser.prog} --help` lists the options."
    raise UserError(f"{name}: no such option of `{parser.prog}`. {guess}")


def value_of(option: str, words: Sequence[str]) -> str | None:
    """Return the value of an option before parsing; None if it is not given."""
    for word, following in pairwise([*words, ""]):
        if word.startswith(f"{option}=") or (word == option and following):
            return word.partition("=")[2] or following
    return None


# ---------------------------------------------------------------- messages


def warn_unused(options: Any, *names: str, why: str, prefix: str = "", suffix: str = "") -> None:
    """Warn, in one line each, that options not at their default have no effect.

    Args:
        options: dataclass of options.
        names: fields to check; all by default.
        why: reason, printed after "has no effect:".
        prefix, suffix: of the options on the command line, e.g. ``episode.`` and ``-column``.
    """
    for each in fields(options):
        if (not names or each.name in names) and getattr(options, each.name) != default_of(each):
            warn(f"--{prefix}{each.name.replace('_', '-')}{suffix} has no effect: {why}")


def say(text: str, style: str | None = None) -> None:
    """Print a line to standard output, with file and class names taken literally."""
    from recollect.core.progress import output, printable

    output().print(printable(text), style=style, highlight=False, soft_wrap=True)


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> None:
    """Print a table to standard output, with file and class names taken literally; without columns, without a head."""
    from rich.table import Table

    from recollect.core.progress import output, printable

    table = Table(*columns, title=title, title_justify="left", show_header=bool(columns))
    for row in rows:
        table.add_row(*map(printable, row))
    output().print(table)


def warn(text: str) -> None:
    """Print a warning line to standard error."""
    from recollect.core.progress import console

    console.print(f"warning: {text}", style="yellow", highlight=False, soft_wrap=True)


# ---------------------------------------------------------------- settings files


def _values_in(file: Path, known: Sequence[Option]) -> dict[OptionPath, Any]:
    """Read and check the options in a settings file.

    Raises:
        UserError: the file cannot be read, an option is unknown, or a value has the wrong type.
    """
    options, values = {option.key: option for option in known}, {}
    for key, value in _dotted(read_options_file(file)):
        option = options.get(key)
        if option is None:
            near = get_close_matches(key, options, 1)
            guess = f"Did you mean {near[0]}?" if near else "The file may be from another command or version."
            raise UserError(f"{file}: no such option: {key}. {guess}")
        if is_dataclass(option.kind):
            values[option.path] = value is not None
        else:
            hint = option.kind | None if option.optional else option.kind
            values[option.path] = converted(hint, value, file, key)
    return values


def _dotted(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in options.items():
        if isinstance(value, Mapping) and value:
            yield from _dotted(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def settings_text(known: Sequence[Option], values: Mapping[OptionPath, Any] | None = None) -> str:
    """Format all options as TOML with their help, for ``--config``; options without a value are commented out."""
    values, lines, table = values or {}, [], ""
    switches = [each for each in known if is_dataclass(each.kind)]
    off = [each.path for each in switches if not (each.default or any(_within(key, each.path) for key in values))]
    settable = [each for each in known if not each.arg.place and not is_dataclass(each.kind)]
    for option in sorted(settable, key=lambda each: ("." in each.key, each.key.split(".")[:-1])):
        here, _, name = option.key.rpartition(".")
        mark = "# " if any(_within(option.path, each) for each in off) else ""
        if here != table:
            lines += ["", f"{mark}[{here}]"]
            table = here
        value = values.get(option.path, option.default)
        lines += [f"# {line}" for line in textwrap.wrap(option.help, MAX_WIDTH - 2)]
        lines.append(f"# {name} =" if value in (None, MISSING) else f"{mark}{name} = {_toml(value)}")
    return "\n".join(lines).strip() + "\n"


def _within(path: OptionPath, above: OptionPath) -> bool:
    return path[: len(above)] == above


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)


# ---------------------------------------------------------------- from dataclasses to options


def options_of(kind: type[Any], default: Any = None, above: Option | None = None, prefix: str = "") -> Iterator[Option]:
    """Yield all options of a command, in the order of its fields.

    Args:
        kind: dataclass of the command, or nested in it.
        default: instance that provides the defaults (default: the fields' own defaults).
        above: option whose value is ``kind``, if nested.
        prefix: prefix of the option names.
    """
    hints, docs = get_type_hints(kind, include_extras=True), field_docs(kind)
    path, group, rare = (above.path, above.group, above.rare) if above else ((), "options", False)
    for each in fields(kind):
        if not each.init:
            continue
        hint, own = hints[each.name], Arg()
        if get_origin(hint) is Annotated:
            own = next((extra for extra in get_args(hint)[1:] if isinstance(extra, Arg)), own)
            hint = get_args(hint)[0]
        bare, optional = without_none(hint)
        usual = default_of(each) if default is None else getattr(default, each.name)
        name = prefix + (own.name or each.name.replace("_", "-"))
        help = docs.get(each.name, "")
        option = Option((*path, each.name), name, bare, optional, usual, help, group, own, own.rare or rare)
        if not is_dataclass(bare):
            yield option
            continue
        assert isinstance(bare, type)
        if optional:  # None until it is switched on or one of its options is given
            yield replace(option, default=usual is not None, rare=True)
        inner = option
        if own.flat and own.shown is None:
            title = (bare.__doc__ or "options").strip().splitlines()[0].rstrip(".")
            inner = replace(option, group=title[:1].lower() + title[1:])
        value = None if usual in (None, MISSING) else usual
        below = options_of(bare, value, inner, prefix if own.flat else f"{option.name}.")
        yield from below if own.shown is None else _shown(list(below), option.path, own.shown)


def _shown(options: Sequence[Option], path: OptionPath, shown: Mapping[str, str]) -> Iterator[Option]:
    """Yield the options in ``shown`` under their short names, then all others as rare."""
    dotted = {".".join(option.path[len(path) :]): option for option in options}
    for name, short in shown.items():
        option = dotted.pop(name)
        yield replace(option, name=short, alias=None if short == option.name else option.name, rare=False)
    for option in dotted.values():
        yield replace(option, rare=True)
