"""What the tests of this room share."""

import json
import os
import subprocess
import sys

import pytest

from pictures import captions, labels, make, own_cache, shade_fixture

ELSEWHERE = """
import contextlib, io, json, sys

for line in sys.stdin:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(json.loads(line), {})
    print("said " + json.dumps(said.getvalue().strip()), flush=True)
"""


@pytest.fixture(scope="session")
def elsewhere():
    """Run a program in another process, with other hashes of words; what it printed. One process for all programs."""
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    with subprocess.Popen(
        [sys.executable, "-c", ELSEWHERE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as other:

        def run(program: str) -> str:
            other.stdin.write(json.dumps(program) + "\n")
            other.stdin.flush()
            answer = next((line for line in iter(other.stdout.readline, "") if line.startswith("said ")), None)
            assert answer is not None, "the program has ended with an error"
            return json.loads(answer.removeprefix("said "))

        yield run
        other.stdin.close()


__all__ = ["captions", "labels", "make", "own_cache", "shade_fixture"]
