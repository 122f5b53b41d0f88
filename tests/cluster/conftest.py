"""A real ipyparallel cluster on the practice GPU: four engines on two hosts, which are this machine under two names."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    from importlib.util import find_spec

    if find_spec("ipyparallel") is None:
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="ipyparallel is not installed"))


class Real:
    """The running cluster: `file` for --cluster, `client` to talk to engines past us."""

    def __init__(self, folder: Path, name: str, practice: bool = True) -> None:
        import ipyparallel as ipp

        self.cluster = ipp.Cluster(profile_dir=str(folder), cluster_id=name, log_level=40)
        self.file = folder / "security" / f"ipcontroller-{name}-client.json"
        self.env = {
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "CUDA_MAGIC_PRACTICE": "1" if practice else "0",
        }
        self.cluster.start_controller_sync()
        self.client = self.cluster.connect_client_sync()

    def engines(self, count: int, host: str, **env: str) -> None:
        """Start `count` engines on a host of this name."""
        wanted = len(self.client.ids) + count
        self.cluster.start_engines_sync(count, environment={**self.env, "CUDA_MAGIC_PRACTICE_HOST": host, **env})
        self.client.wait_for_engines(wanted, timeout=60)

    def on(self, engine: int, code: str):
        """The value of an expression on one engine."""
        return self.client[engine].apply_sync(eval, code)

    def do(self, engine: int, code: str) -> None:
        """Run statements on one engine."""
        self.client[engine].apply_sync(exec, code, {})

    def stop(self) -> None:
        self.client.close()
        self.cluster.stop_cluster_sync()


def until(true, seconds: float = 10.0, pause: float = 0.02) -> bool:
    """Whether `true()` holds within `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(pause)
    return False


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory):
    """Engines 0 and 1 on ``north``, 2 and 3 on ``south``."""
    one = Real(tmp_path_factory.mktemp("ipp") / "profile_tests", "tests")
    try:
        one.engines(2, "north")
        one.engines(2, "south")
        yield one
    finally:
        one.stop()


@pytest.fixture(scope="session")
def spare(tmp_path_factory: pytest.TempPathFactory):
    """A controller without engines."""
    one = Real(tmp_path_factory.mktemp("ipp") / "profile_other", "other")
    try:
        yield one
    finally:
        one.stop()


@pytest.fixture
def other(spare):
    """A cluster that a test may break: two engines on ``east``."""
    spare.engines(2, "east")
    yield spare
    if spare.client.ids:
        spare.client.shutdown(block=False)
    assert until(lambda: not spare.client.ids, 20)
