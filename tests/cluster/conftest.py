"""A real ipyparallel cluster on the practice GPU: four engines on two hosts, which are this machine under two names.

Engines of the first host are started by ipyparallel's ``Cluster``. Those of the second come as from another machine:
``ipengine --file=...`` with a copy of the engines' connection file, and with folders of their own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
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

        # an engine is registered once its heart has answered: at 3 s a beat most of the tests' time was that wait; a
        # stopped engine is let be as long as before
        beats = ["--HeartMonitor.period=500", "--HeartMonitor.max_heartmonitor_misses=60"]
        self.cluster = ipp.Cluster(profile_dir=str(folder), cluster_id=name, log_level=40, controller_args=beats)
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

    @contextmanager
    def busy(self, engine: int):
        """The engine computes until the block ends or calls what it is given; gives (the job, that function)."""
        with tempfile.TemporaryDirectory() as folder:
            flag = Path(folder) / "computes"
            flag.touch()
            code = f"import os, time\nwhile os.path.exists({str(flag)!r}): time.sleep(0.02)"
            job = self.client[engine].apply_async(exec, code, {})

            def end() -> None:
                flag.unlink(missing_ok=True)
                job.get(timeout=20)

            try:
                yield job, end
            finally:
                end()

    def stop(self) -> None:
        self.client.close()
        self.cluster.stop_cluster_sync()


class Elsewhere:
    """Engines of a second host: they know the cluster by the connection file alone, which is carried to them."""

    def __init__(self, folder: Path, real: Real, host: str, numbers: tuple[int, ...]) -> None:
        folder.mkdir()
        self.real, self.numbers = real, numbers
        self.file = folder / "security" / "from-the-first-host.json"
        self.work = folder / "work"
        self.ipython = folder / "ipython"
        self.work.mkdir()
        self.ipython.mkdir()
        env = {**os.environ, **real.env, "IPYTHONDIR": str(self.ipython), "CUDA_MAGIC_PRACTICE_HOST": host}
        command = [sys.executable, "-m", "ipyparallel.engine", f"--file={self.file}"]
        command += ["--IPEngine.wait_for_url_file=60", "--log-level=40"]
        self.processes = []
        for number in numbers:
            with (folder / f"engine{number}.log").open("wb") as log:
                self.processes.append(
                    subprocess.Popen(
                        [*command, f"--IPEngine.id={number}"], cwd=self.work, env=env, stdout=log, stderr=log
                    )
                )

    def arrive(self) -> None:
        """The file is there: the engines, which have waited for it, register."""
        self.file.parent.mkdir()
        carried = self.file.with_suffix(".part")
        shutil.copy(self.real.file.with_name(self.real.file.name.replace("-client", "-engine")), carried)
        carried.rename(self.file)  # at once: an engine may look at any moment
        self.real.client.wait_for_engines(len(self.real.client.ids) + len(self.numbers), timeout=60)

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def until(true, seconds: float = 10.0, pause: float = 0.02) -> bool:
    """Whether `true()` holds within `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(pause)
    return False


@pytest.fixture(scope="session")
def two_hosts(tmp_path_factory: pytest.TempPathFactory):
    """The cluster of ``running``, and its second host."""
    folder = tmp_path_factory.mktemp("ipp")
    one = Real(folder / "profile_tests", "tests")
    south = Elsewhere(folder / "south", one, "south", (2, 3))  # starts up while the first host's engines do
    try:
        one.engines(2, "north")
        south.arrive()
        yield one, south
    finally:
        south.stop()
        one.stop()


@pytest.fixture(scope="session")
def running(two_hosts):
    """Engines 0 and 1 on ``north``; 2 and 3 on ``south``, by a connection file of their own."""
    return two_hosts[0]


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
