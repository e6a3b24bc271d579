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

from type_checks import begin_test, check_once, make_protocol_checks_static

gc.disable()  # during imports, a fifth of which went into garbage collection
make_protocol_checks_static()
check_once()
settings.register_profile(
    "recollect", deadline=None, max_examples=25, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("recollect")


UNCHECKED_FOLDERS = {"tests/cli", "papers/tests"}
UNCHECKED_FILES = {"test_bench.py", "test_classify.py", "test_commands.py", "test_docs.py", "test_export_all.py",
                  "test_notebooks.py", "test_package.py",
                  "test_real_runs.py", "test_resume.py", "test_trust.py"}  # fmt: skip
"""End-to-end tests of commands, pages, runs and studies; unit tests check the types of everything they call."""


RAM_DISK, MIN_FREE_BYTES = Path("/dev/shm"), 4 << 30


def pytest_configure(config):
    """Put temporary files in memory if it has room: on a disk, 20,000 fsyncs take minutes."""
    if os.access(RAM_DISK, os.W_OK) and not hasattr(config, "workerinput"):
        disk, memory = os.statvfs(RAM_DISK), Path("/proc/meminfo").read_text()
        free = 1024 * int(re.search(r"MemAvailable: +(\d+) kB", memory)[1])
        if min(disk.f_bavail * disk.f_frsize, free // 2) >= MIN_FREE_BYTES:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(RAM_DISK))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Let one process import first where bytecode is missing; otherwise every worker would compile everything."""
    if sys.dont_write_bytecode or Path(cache_from_source(find_spec("sklearn").origin)).exists():
        return (yield)
    with open(__file__) as file:  # a process that dies releases the lock
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(file, fcntl.LOCK_SH)
        return (yield)


def pytest_collection_finish():
    """Exclude everything imported so far from garbage collection."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Turn type checks off in end-to-end tests, where they took a quarter of the time."""
    room, file = "/".join(item.path.relative_to(Path(__file__).parent).parts[:2]), item.path.name
    begin_test()
    jaxtyping.config.update("jaxtyping_disable", room in UNCHECKED_FOLDERS or file in UNCHECKED_FILES)
    return (yield)


def _seed(name):
    """Seed every global generator, so random models do not depend on the order of tests."""
    import numpy as np
    import torch  # imported late, since the xdist controller never needs it and would start its workers later

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
    """Report how many faults of each kind the runs survived."""
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
    """Turn off run-time shape checks, to test the errors that users see."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


REAL_DATA = Path(__file__).resolve().parents[1] / "shared" / "data"


@pytest.fixture(scope="session")
def real_files():
    """Return the path of a real data file by name, or skip the test if the file is missing."""

    def path(name: str) -> Path:
        file = Path(os.environ.get("RECOLLECT_REAL_DATA", REAL_DATA)) / f"{name}.parquet"
        if not file.exists():
            pytest.skip(f"real data file {file.name} is missing (set RECOLLECT_REAL_DATA to its folder)")
        return file

    return path


@pytest.fixture
def real_data(real_files):
    """Function-scoped `real_files`."""
    return real_files
