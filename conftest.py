"""Settings for the whole suite: few threads (tests run side by side), no network, quiet libraries."""

import fcntl
import gc
import os
import random
import re
import sys
import zlib

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("MPLBACKEND", "agg")

from importlib.util import cache_from_source, find_spec
from pathlib import Path

import jaxtyping
import pytest
from hypothesis import HealthCheck, settings

from checks_of_types import begin_test, check_once, run_no_property_to_know_a_protocol

gc.disable()  # until all is imported: a fifth of that time went into looking for garbage
run_no_property_to_know_a_protocol()
check_once()
settings.register_profile(
    "recollect", deadline=None, max_examples=25, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("recollect")


ROOMS_OF_USERS = {"tests/cli", "papers/tests"}
FILES_OF_USERS = {"test_bench.py", "test_classify.py", "test_commands.py", "test_docs.py", "test_export_all.py",
                  "test_notebooks.py", "test_package.py",
                  "test_real_runs.py", "test_resume.py", "test_trust.py"}  # fmt: skip
"""Whole commands, pages, runs and studies: what they call is checked in the tests of the parts."""


MEMORY_DISK, ROOM = Path("/dev/shm"), 4 << 30


def pytest_configure(config):
    """Write to memory where there is room: what asks a disk 20,000 times whether it has written waits for minutes."""
    if os.access(MEMORY_DISK, os.W_OK) and not hasattr(config, "workerinput"):
        disk, memory = os.statvfs(MEMORY_DISK), Path("/proc/meminfo").read_text()
        free = 1024 * int(re.search(r"MemAvailable: +(\d+) kB", memory)[1])
        if min(disk.f_bavail * disk.f_frsize, free // 2) >= ROOM:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY_DISK))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """One process alone imports what nobody has compiled yet: side by side, each would compile all of it."""
    if sys.dont_write_bytecode or Path(cache_from_source(find_spec("sklearn").origin)).exists():
        return (yield)
    with open(__file__) as file:  # whoever falls lets go of it
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(file, fcntl.LOCK_SH)
        return (yield)


def pytest_collection_finish():
    """What is imported now stays, and need not be looked through again."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Check no types at run time where commands run as their users run them: that took a quarter of the time there."""
    room, file = "/".join(item.path.relative_to(Path(__file__).parent).parts[:2]), item.path.name
    begin_test()
    jaxtyping.config.update("jaxtyping_disable", room in ROOMS_OF_USERS or file in FILES_OF_USERS)
    return (yield)


def _seed(name):
    """Seed every global generator, so that a model with random weights is the same in each run and in any order."""
    import numpy as np
    import torch  # not above: the process that only hands out tests would wait for it before it starts the others

    number = zlib.crc32(name.encode())
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002
    torch.manual_seed(number)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef):
    _seed(fixturedef.argname)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    _seed(item.nodeid)
    return (yield)


def pytest_terminal_summary(terminalreporter):
    """How many faults of which kind the runs came through."""
    found = [
        value
        for report in terminalreporter.stats.get("passed", [])
        for name, value in getattr(report, "user_properties", [])
        if name == "faults" and report.when == "call"
    ]
    if found:
        terminalreporter.section("faults")
        for value in found:
            terminalreporter.write_line(value)


@pytest.fixture
def unchecked():
    """Turn off the run-time check of shapes, to see the error that users without it get."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


REAL_DATA = Path(__file__).resolve().parents[1] / "shared" / "data"


@pytest.fixture(scope="session")
def real_files():
    """Path of a real data file by name, or a skip that says which one is absent."""

    def path(name: str) -> Path:
        file = Path(os.environ.get("RECOLLECT_REAL_DATA", REAL_DATA)) / f"{name}.parquet"
        if not file.exists():
            pytest.skip(f"real data file {file.name} is not on this machine (set RECOLLECT_REAL_DATA to its folder)")
        return file

    return path


@pytest.fixture
def real_data(real_files):
    """As `real_files`, for one test."""
    return real_files
