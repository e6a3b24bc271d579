"""Dataclasses as command lines."""

import json
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest

from recollect.cli.parser import Arg, options_of, parse, settings_text, warn_unused
from recollect.core import progress
from recollect.core.errors import UserError


@dataclass(frozen=True)
class Inner:
    """Inner options.

    Attributes:
        rank: of a matrix,
            continued.
        rate: a number.
    """

    rank: int = 4
    rate: float | None = None

    def __post_init__(self):
        if self.rank < 1:
            raise ValueError(f"rank {self.rank}: must be at least 1")


@dataclass(frozen=True)
class Command:
    """What it does.

    More about it.
    """

    model: Annotated[str, Arg(place="MODEL")]
    """The model."""
    words: Annotated[tuple[str, ...], Arg(place="WORDS")] = ()
    """Words."""
    k: int = 10
    """How many."""
    share: float = 0.5
    """A share."""
    near: float | None = 0.94
    """A cosine."""
    flip: bool = True
    """Mirror."""
    form: Literal["json", "csv"] = "json"
    """Of the file."""
    layers: Literal[1, 2] = 1
    """How many layers."""
    images: tuple[Path, ...] = ()
    """Files."""
    size: tuple[int, int] | None = None
    """Height and width."""
    folder: Annotated[Path | None, Arg(name="with")] = None
    """A folder."""
    flat: Annotated[Inner, Arg(flat=True)] = field(default_factory=Inner)
    deep: Annotated[Inner, Arg(rare=True)] = field(default_factory=Inner)
    maybe: Annotated[Inner | None, Arg(rare=True)] = None
    """Switches the inner options on."""


def parsed(*words, default=None):
    return parse(Command, words, "prog", default)


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ((), "k", 10),
        (("--k", "3"), "k", 3),
        (("--k=3",), "k", 3),
        (("--share", "1e-3"), "share", 0.001),
        (("--share", "-2"), "share", -2.0),
        (("--near", "None"), "near", None),
        ((), "flip", True),
        (("--no-flip",), "flip", False),
        (("--form", "csv"), "form", "csv"),
        (("--layers", "2"), "layers", 2),
        (("--images", "a", "b"), "images", (Path("a"), Path("b"))),
        (("--images", "a", "--images", "b"), "images", (Path("a"), Path("b"))),
        (("--size", "2", "3"), "size", (2, 3)),
        (("--with", "x"), "folder", Path("x")),
        (("--with=~/x",), "folder", Path.home() / "x"),
        (("--with=x/~/y",), "folder", Path("x/~/y")),
        (("a red", "boat"), "words", ("a red", "boat")),
        (("--k", "3", "boat"), "words", ("boat",)),
        (("--rank", "3"), "flat", Inner(3)),
        (("--deep.rank", "3", "--deep.rate=2"), "deep", Inner(3, 2.0)),
        ((), "maybe", None),
        (("--maybe",), "maybe", Inner()),
        (("--maybe.rank", "9"), "maybe", Inner(9)),
    ],
)
def test_arguments_are_parsed_into_fields(words, name, value):
    assert getattr(parsed("m", *words), name) == value


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "MODEL"),
        (("m", "--k", "two"), "--k"),
        (("m", "--k"), "--k"),
        (("m", "--k", "1", "--k", "2"), "--k"),
        (("m", "--form", "xml"), "csv"),
        (("m", "--size", "2"), "--size"),
        (("m", "--imges", "a"), "--images"),
        (("m", "--fli"), "--flip"),
        (("m", "--rank", "0"), "rank 0"),
    ],
)
def test_bad_arguments_give_a_one_line_error(words, message):
    with pytest.raises(UserError) as error:
        parsed(*words)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_arguments_override_only_their_own_default():
    default = Command("m", k=7, flip=False, deep=Inner(2), maybe=Inner(8, 1.0))
    assert parsed("m", default=default) == default
    changed = parsed("m", "--flip", "--maybe.rank", "9", default=default)
    assert (changed.k, changed.flip, changed.deep, changed.maybe) == (7, True, Inner(2), Inner(9, 1.0))
    assert parsed("m", "--no-maybe", default=default).maybe is None


def test_help_hides_rare_options(capsys):
    with pytest.raises(SystemExit):
        parsed("--help")
    text = capsys.readouterr().out
    assert "usage: prog MODEL [WORDS ...] [options]" in text
    for shown in ("What it does.", "--no-flip", "--with", "--rank", "Of a matrix, continued", "(default: 10)"):
        assert shown in text
    assert "(default: 1)" in text
    for hidden in ("--deep", "--flip ", "None"):
        assert hidden not in text


@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_the_output_of_print_config_can_be_used_as_config(suffix, tmp_path, capsys):
    arguments = ("m", "--k", "3", "--no-flip", "--deep.rank", "5", "--images", "a", 'b"\\', "--share", "1e-7")
    with pytest.raises(SystemExit):
        parsed(*arguments, "--print-config")
    text = capsys.readouterr().out
    assert "# Of a matrix, continued." in text
    file = tmp_path / f"options{suffix}"
    if suffix == ".json":
        text = json.dumps(tomllib.loads(text) | {"near": None})
    file.write_text(text)
    again = parsed("m", "--config", str(file), "--k", "4")
    near = None if suffix == ".json" else 0.94
    files = (Path("a"), Path('b"\\'))
    assert again == Command("m", k=4, flip=False, deep=Inner(5), images=files, share=1e-7, near=near)


@pytest.mark.parametrize(
    ("text", "message"),
    [("[deep]\nrnk = 3", "rank"), ("k = 'a'", "whole number"), ("k = true", "whole number"), ("k = ", "options.toml")],
)
def test_an_error_in_a_config_names_the_file(text, message, tmp_path):
    file = tmp_path / "options.toml"
    file.write_text(text)
    with pytest.raises(UserError) as error:
        parsed("m", "--config", str(file))
    assert message in str(error.value)
    assert str(file) in str(error.value)


def test_an_option_without_effect_gives_a_one_line_warning(capsys, monkeypatch):
    monkeypatch.setattr(progress.console, "_file", sys.stderr)
    warn_unused(Command("m", k=3), "k", "share", why="there is nothing to count.")
    warning = capsys.readouterr().err
    assert warning.count("\n") == 1
    assert "--k" in warning


def test_settings_list_every_option():
    text = settings_text(list(options_of(Command)))
    assert all(f"{name} =" in text for name in ("k", "rank", "rate", "form", "with"))
