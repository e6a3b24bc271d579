"""Embedding on Ray gives the same index as one process and leaves no process running."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
import zlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from index_rows import write_picture
from recollect.core.types import Encoder
from recollect.index import Index, IngestOptions


def dying_encoder(folder):
    """Return an encoder of a local class, which is pickled by value since workers cannot import this file."""

    class Dying(Encoder):
        """Kills the first worker that embeds."""

        width, fingerprint = 16, "hashes"
        mark, parent = str(folder / "killed"), os.getpid()

        def embed_images(self, images):
            if os.getpid() != self.parent:
                with contextlib.suppress(FileExistsError):
                    os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
                    os.kill(os.getpid(), signal.SIGKILL)
            return self.hashed(np.asarray(image).tobytes() for image in images)

        def embed_texts(self, texts, prefix=None):
            return self.hashed(text.encode() for text in texts)

        def hashed(self, parts):
            rows = np.stack([np.random.default_rng(zlib.crc32(part)).normal(size=16) for part in parts])
            return torch.nn.functional.normalize(torch.from_numpy(rows).float())

    return Dying()


def build(engine, folder):
    """Build an index; with Ray in a separate process, since forking is unreliable afterwards."""
    before = signal.getsignal(signal.SIGTERM)
    options = IngestOptions(engine=engine)
    index = Index.build(folder / "photos", dying_encoder(folder), out=folder / engine, options=options)
    assert index.report.added == 600
    assert signal.getsignal(signal.SIGTERM) == before
    return index


def processes_marked(mark):
    """Return the command lines of processes whose environment contains the mark."""
    commands = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                commands.append((folder / "cmdline").read_bytes().decode(errors="replace")[:100])
        except OSError:
            continue
    return commands


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'recollect[ray]'")
def test_ray_gives_the_rows_of_one_process_even_if_a_worker_is_killed(tmp_path):
    for number in range(600):
        write_picture(tmp_path / "photos" / f"{number}.png", number)
    mark = uuid.uuid4().hex
    environment = {"RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0", "RECOLLECT_MARK": mark}
    environment["PYTHONPATH"] = str(Path(__file__).parents[1])
    program = "import sys, pathlib, test_ray; test_ray.build('ray', pathlib.Path(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program, str(tmp_path)],
        capture_output=True, text=True, timeout=240, cwd=Path(__file__).parent, env=os.environ | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith("embed photos")]
    assert printed == []
    assert (tmp_path / "killed").exists()
    one, other = build("local", tmp_path), Index.open(tmp_path / "ray")
    assert one.ids == other.ids
    assert np.array_equal(one.vectors(), other.vectors())
    deadline = time.monotonic() + 90
    while (left := processes_marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []
