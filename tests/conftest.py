"""What every test may use: a shell of its own, the practice GPU, and one rule on skips."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.plugin import fake_nvml, nvml_library  # noqa: F401 - fixtures for everyone

ROOT = Path(__file__).resolve().parent.parent


def pytest_configure(config: pytest.Config) -> None:
    """In CI hypothesis draws the same examples each time: a green main stays green, new ones are drawn elsewhere.

    A job that a shell started in the background ignores SIGINT, and so would every child; but tests interrupt.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.environ.get("CI") and _has("hypothesis"):
        from hypothesis import settings

        settings.register_profile("ci", derandomize=True, deadline=None)
        settings.load_profile("ci")


def _real_gpu_count() -> int:
    """Cards that CUDA can start on, asked in a child process (the tests' own process stays untouched)."""
    code = "import torch,sys; sys.exit(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode if _has("torch") else 0


def _has(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None


@pytest.hookimpl(trylast=True)  # after -m: CUDA is asked only where a test that needs it is left
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # The stacks take the longest: begun first, so that no worker is left with one of them at the end.
    items.sort(key=lambda item: item.get_closest_marker("stack") is None)
    wants_gpu = any(item.get_closest_marker("gpu") or item.get_closest_marker("two_gpus") for item in items)
    cards = _real_gpu_count() if wants_gpu else 0
    for item in items:
        if item.get_closest_marker("gpu") and cards < 1:
            item.add_marker(pytest.mark.skip(reason="no GPU on which a CUDA build of torch starts"))
        if item.get_closest_marker("two_gpus") and cards < 2:
            item.add_marker(pytest.mark.skip(reason="fewer than two GPUs"))
        if item.get_closest_marker("torch") and not _has("torch"):
            item.add_marker(pytest.mark.skip(reason="torch is not installed"))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    """In CI (NO_SKIPS=1) a skip is a failure: what cannot run must be told, not passed over."""
    outcome = yield
    report = outcome.get_result()
    if report.skipped and os.environ.get("NO_SKIPS") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which NO_SKIPS=1 forbids: {report.longrepr}"


@pytest.fixture
def shell():
    """A fresh in-process IPython shell with no history file."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    InteractiveShell.clear_instance()
    config = Config()
    config.HistoryManager.enabled = False
    new = InteractiveShell.instance(config=config)
    yield new
    # what IPython registered for the end of the process is done here and only here
    atexit.unregister(new.atexit_operations)
    # It collects: 0.2 s for all that the tests imported, several hundred times. What the test left is young.
    gc.collect(1)
    gc.freeze()
    new.atexit_operations()
    gc.unfreeze()
    InteractiveShell.clear_instance()


@pytest.fixture
def loaded(shell):
    """The same shell with cuda_magic loaded."""
    shell.run_line_magic("load_ext", "cuda_magic")
    yield shell
    shell.run_line_magic("unload_ext", "cuda_magic")
