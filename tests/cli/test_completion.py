"""A shell that has read `recollect completion` completes commands, options and values."""

import shutil
import subprocess

import pytest

from recollect.cli import COMMANDS, completion, main


@pytest.fixture(scope="module")
def options():
    """Of every command."""
    return {name: completion.options_of(text) for name, text in completion._kept().items()}


@pytest.fixture(scope="module")
def complete(options, tmp_path_factory):
    script = tmp_path_factory.mktemp("completion") / "recollect.bash"
    script.write_text(completion.bash_script(options), encoding="utf-8")

    def ask(*words):
        line = f'source "{script}"; COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); _recollect; echo "${{COMPREPLY[@]}}"'
        done = subprocess.run(["bash", "-euc", line, "bash", "recollect", *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    return ask


def test_options_are_those_of_the_command(options):
    assert {"--help", "--data.sources", "--steps", "--resume"} <= options["train"].keys()
    assert options["train"]["--data.sampling"] == ["proportional", "equal", "debiased"]
    assert options["search"] == options["memory search"]
    assert options["search"]["--k"] == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["mem"], ["memory"]),
        (["memory", "b"], ["build"]),
        (["train", "siglixp-t"], ["siglixp-tiny"]),
        (["train", "re"], ["reco"]),
        (["train", "siglixp-tiny", "--data.sam"], ["--data.sampling"]),
        (["train", "siglixp-tiny", "--data.sampling", "e"], ["equal"]),
        (["train", "reco", "M", "--memo"], ["--memory"]),
        (["search", "m", "--rerank", "episode-"], ["episode-paper", "episode-full"]),
        (["memory", "build", "M", "--precision", ""], ["float32", "float16"]),
        (["completion", "f"], ["fish"]),
        (["search", "m", "--image", "photo"], []),  # the shell's own: files
    ],
)
def test_bash_completes(complete, words, expected):
    assert complete(*words) == expected


def test_every_command_can_be_asked_for(capsys):
    for shell in ("bash", "zsh", "fish"):
        assert main(["completion", shell]) == 0
        said = capsys.readouterr().out
        assert all(word in said for name in COMMANDS for word in name.split())


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_another_shell_reads_its_script(options, shell, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    write = completion.fish_script if shell == "fish" else completion.bash_script
    (tmp_path / "script").write_text(write(options), encoding="utf-8")
    done = subprocess.run([shell, "-n", str(tmp_path / "script")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
