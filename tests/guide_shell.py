"""Run the guides' shell blocks as printed: bash runs the loops, this process runs each `recollect` command."""

import io
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from recollect import cli
from recollect.core import progress

METHODS = ["zero-shot", "prototype", "tip-adapter-cv"]  # three fast ones; "all" has sixteen, some of them trained

# Options by command, with small values that replace the guides' own.
SMALL_VALUES: dict[str, dict[str, list[str]]] = {
    "train": {"--steps": ["2"], "--batch-size": ["8"], "--device": ["cpu"]},
    "train reco": {"--epochs": ["1"], "--batch-size": ["8"], "--device": ["cpu"]},
    "evaluate few-shot": {"--methods": METHODS, "--shots": ["1", "2"], "--seeds": ["1"]},
    "evaluate retrieval": {"--queries": ["4"]},
}

REMOVED_OPTIONS = {"evaluate few-shot": {"--effort"}}  # an option of tuned methods, which METHODS does not have

# With the interpreter's full path: `python` on PATH may be a slow wrapper script.
_SHIM = f"""#!{sys.executable} -SE
import json, os, socket, sys
line = socket.socket(socket.AF_UNIX)
line.connect(os.environ["RECOLLECT_GUIDE"])
line.sendall(json.dumps([os.getcwd(), sys.argv[1:]]).encode())
line.shutdown(socket.SHUT_WR)
answer = b""
while part := line.recv(65536):
    answer += part
status, out, err = json.loads(answer)
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(status)
"""


def shortened(words: Sequence[str]) -> list[str]:
    """Return the command with small values."""
    name = next((" ".join(words[:n]) for n in (2, 1) if " ".join(words[:n]) in SMALL_VALUES), None)
    if name is None or "--help" in words or "--features" in words or list(words) == ["train"]:
        return list(words)
    kept, skipping = [], False
    for word in words:
        if word.startswith("--"):
            skipping = word.split("=")[0] in {*SMALL_VALUES[name], *REMOVED_OPTIONS.get(name, ())}
        if not skipping:
            kept.append(word)
    if name == "evaluate retrieval" and "--methods" not in words:
        return kept
    return [*kept, *(word for option, values in SMALL_VALUES[name].items() for word in (option, *values))]


def remove_old_output(words: Sequence[str]) -> None:
    """Remove output that an earlier page left where this command writes."""
    if words[0] in {"train", "index"} and "--out" in words and "--resume" not in words:
        shutil.rmtree(words[words.index("--out") + 1], ignore_errors=True)


def command(words: Sequence[str], folder: str | Path = ".") -> tuple[int, str, str]:
    """Run one `recollect` command in this process; return its exit status, output and errors."""
    out, err = io.StringIO(), io.StringIO()
    with chdir(folder), redirect_stdout(out), redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress.console, "_file", err)
        remove_old_output(words)
        try:
            status = cli.main(shortened(words))
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    return status, out.getvalue(), err.getvalue()


def run_script(
    script: str, folder: Path, scratch: Path, run: Callable[[Sequence[str], str], tuple[int, str, str]] = command
) -> tuple[int, str]:
    """Run a bash script whose `recollect` commands run in this process; return its exit status and output."""
    path = scratch / "bin"
    path.mkdir(exist_ok=True)
    shim = path / "recollect"
    shim.write_text(_SHIM)
    shim.chmod(0o755)
    address = scratch / "line"
    address.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(address))
        server.listen()
        server.settimeout(0.02)
        environment = os.environ | {"PATH": f"{path}:{os.environ['PATH']}", "RECOLLECT_GUIDE": str(address)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        with subprocess.Popen(["bash", "-euc", script], cwd=folder, env=environment, **pipes) as bash:
            while bash.poll() is None:
                _answer(server, run)
            return bash.returncode, bash.stdout.read()


def _answer(server: socket.socket, run: Callable[[Sequence[str], str], tuple[int, str, str]]) -> None:
    try:
        line, _ = server.accept()
    except TimeoutError:
        return
    with line:
        line.settimeout(None)
        request = b""
        while part := line.recv(65536):
            request += part
        folder, words = json.loads(request)
        line.sendall(json.dumps(run(words, folder)).encode())
