"""Help, completion and errors of all commands."""

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Annotated

import pytest

from recollect import cli
from recollect.cli import parser
from recollect.core.errors import UserError
from recollect.core.progress import output

HEAVY = {"torch", "numpy", "transformers", "PIL", "pyarrow", "pandas", "sklearn", "matplotlib", "datasets", "lancedb",
         "faiss", "rich"}  # fmt: skip
TWO_SCREENS = 90
MAX_OPTIONS = 350


def options(name):
    return [each for each in parser.options_of(cli.COMMANDS[name].kind) if not each.rare]


def test_help_imports_nothing_heavy():
    code = f"""
import sys
from recollect.cli import main
for name in {sorted(cli.COMMANDS)}:
    try:
        main([*name.split(), "--help"])
    except SystemExit as stop:
        assert not stop.code
print(sorted({HEAVY} & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_option_has_help_and_it_fits_on_two_screens(name):
    assert [each.name for each in options(name) if not each.help] == []
    text = parser.build_parser(cli.COMMANDS[name].kind, f"recollect {name}").format_help()
    assert text.count("\n") <= TWO_SCREENS
    assert max(map(len, text.splitlines())) <= parser.MAX_WIDTH + 20
    assert "None" not in text


def test_the_number_of_options_is_limited():
    assert sum(len(options(name)) for name in cli.COMMANDS) <= MAX_OPTIONS


def test_a_group_lists_its_commands(recollect):
    listed = recollect("index").stdout
    assert "index build" in listed
    assert "evaluate probe" not in listed
    assert "evaluate probe" in recollect().stdout


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (["exprot"], "recollect export"),
        (["evaluate", "zero-shoot"], "recollect evaluate zero-shot"),
        (["zero-shot"], "recollect evaluate zero-shot"),
        (["export", "--clasifier", "x"], "--classifier"),
    ],
)
def test_a_typo_gets_a_suggestion(check_error, words, suggestion):
    check_error(suggestion, *words)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["exp"], ["export"]),
        (["export", "--class"], ["--classifier"]),
        (["embed", "m", "--form", "n"], ["npy"]),
        (["completion", "z"], ["zsh"]),
        (["train", "siglixp-t"], ["siglixp-tiny"]),
        (["train", "siglixp-tiny", "--lo"], ["--locked", "--lora"]),
        (["train", "rec"], ["reco"]),
    ],
    ids=" ".join,
)
def test_bash_completes_commands_options_and_values(recollect, tmp_path, words, expected):
    script = tmp_path / "recollect.bash"
    script.write_text(recollect("completion", "bash").stdout)
    ask = f"""source "{script}"; COMP_WORDS=("$@"); COMP_CWORD=$(($#-1))
completes=$(complete -p recollect); completes=${{completes##*-F }}; ${{completes%% *}}; echo "${{COMPREPLY[@]}}" """
    done = subprocess.run(["bash", "-uc", ask, "bash", "recollect", *words], capture_output=True, text=True)
    assert done.stdout.split() == expected, done.stderr


@dataclass(frozen=True)
class Ends:
    """Ends in the given way."""

    how: Annotated[str, parser.Arg(place="HOW")]
    """A way to end."""

    def run(self):
        ends = {
            "bad input": UserError("x.csv: empty"),
            "full": OSError(28, "No space left"),
            "stop": KeyboardInterrupt(),
        }
        if self.how.isdigit():
            output().print("a line of some words\n" * int(self.how))
        else:
            raise ends.get(self.how, RuntimeError("what?"))


def end(*words):
    return cli.run("prog", {"end": cli.Command(f"{__name__}:Ends", "help")}, ["end", *words])


@pytest.mark.parametrize(("how", "status"), [("bad input", 2), ("full", 2), ("bug", 1)])
def test_an_error_is_one_line_and_debug_adds_the_traceback(how, status, capsys):
    assert end(how) == status
    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    assert printed.count("\n") == 1
    assert end(how, "--debug") == status
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_exits_with_status_130():
    assert end("stop") == 130


PIPED = [["end", "1"], ["end", "1000"], ["--help"], ["--version"], ["end", "--help"]]


@pytest.mark.parametrize("words", PIPED, ids=" ".join)  # output that fits in Python's buffer, and output that does not
def test_a_closed_pipe_is_not_a_failure(monkeypatch, words):
    """`recollect ... | head -1` in a script with `set -e`."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        monkeypatch.setattr(sys, "stderr", pipe)
        assert cli.run("prog", {"end": cli.Command(f"{__name__}:Ends", "help")}, words) == 0
        pipe.write("text left in Python's buffer at exit")


def test_commands_run_without_a_standard_output(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)  # `recollect ... >&-`, or a service
    assert end("1") == 0
