"""What all studies share in tests: made worlds whose tokenizer learns from a few texts, and no wait for disks."""

import os
import subprocess
import sys

import pytest

from recollect.data.sources import subset


@pytest.fixture(scope="module", autouse=True)
def quick_worlds():
    """Every word of a made world is known beforehand, and how often it occurs does not change a table's form."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subset, "_MADE_TEXTS", 300)
        patch.setattr(os, "fsync", lambda file: None)  # what a power cut leaves is tested where files are written
        yield


@pytest.fixture(scope="session")
def elsewhere():
    """Run a program in another process with another hash seed; returns what it printed."""

    def run(code):
        environment = os.environ | {"PYTHONHASHSEED": "7"}
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
        ).stdout.strip()

    return run
