import os
import subprocess
import sys

import pytest

from recollect import cli
from recollect.core.errors import UserError
from recollect.core.progress import output


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "recollect", *words], capture_output=True, text=True)


def test_help_lists_every_command():
    result = run("--help")
    assert result.returncode == 0
    for name in cli.COMMANDS:
        assert name in result.stdout


@pytest.mark.parametrize("words", [("pretrain",), ("studies", "lixp"), ("",)])
def test_an_unknown_command_is_one_line_and_status_2(words):
    result = run(*words)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "no such command. Choose one of:" in result.stderr


@pytest.mark.parametrize(("error", "status"), [(UserError("x.csv: empty"), 2), (OSError(28, "No space left"), 2)])
def test_errors_of_the_user_are_one_line_without_traceback(monkeypatch, capsys, error, status):
    def fail(words):
        raise error

    monkeypatch.setattr(cli, "_run", fail)
    assert cli.main(["serve"]) == status
    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    assert printed.count("\n") == 1
    assert cli.main(["serve", "--debug"]) == status
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("count", [1, 1_000])  # what stays in Python's buffer, and what does not
def test_a_reader_that_has_gone_is_no_failure(monkeypatch, count):
    """`recollect ... | head -1`, in a script that stops at the first failure."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        monkeypatch.setattr(sys, "stderr", pipe)
        monkeypatch.setattr(cli, "_run", lambda words: output().print("a line of some words\n" * count))
        assert cli.main(["search"]) == 0
        pipe.write("what Python has still to write at its end")


def test_an_interrupt_leaves_with_130(monkeypatch):
    def interrupt(words):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_run", interrupt)
    assert cli.main(["serve"]) == 130


@pytest.mark.parametrize("group", ["memory", "evaluate"])
def test_a_group_lists_its_commands(group, capsys):
    assert cli.main([group, "--help"]) == 0
    printed = capsys.readouterr().out
    assert f"usage: recollect {group} COMMAND" in printed
    assert all((name in printed) == name.startswith(f"{group} ") for name in cli.COMMANDS if " " in name)


@pytest.mark.parametrize("words", [("--data", "a", "--data", "b"), ("--data=a", "--data", "b")])
def test_an_option_that_is_given_twice_loses_nothing_silently(words, capsys):
    assert cli.main(["train", "siglip-tiny", *words, "--out", "run"]) == 2
    assert (
        capsys.readouterr().err == "error: --data: given twice. Give several values behind one: --data FIRST SECOND.\n"
    )
