"""A real kernel process of its own, talked to as a front end does."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

ROOT = Path(__file__).resolve().parent.parent.parent
PATHS = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
RESTART = "from cuda_magic.kernel.restart import restart; restart(get_ipython())"


@dataclass
class Ran:
    """What came back of one cell."""

    status: str = ""
    text: str = ""
    error: str = ""
    states: list[str] = field(default_factory=list)


class RunningKernel:
    """One kernel, with a client; `restart_cell` asks for a restart with FOO set anew."""

    def __init__(self, python: str = sys.executable, *flags: str, cwd: str | None = None, **env: str) -> None:
        self.manager = KernelManager(kernel_name="python3")
        self.manager._kernel_spec = KernelSpec(
            argv=[python, *flags, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            display_name="under test",
            language="python",
        )
        environment = {**os.environ, "PYTHONPATH": PATHS, "PYTHONWARNINGS": "", **env}
        environment.pop("FOO", None)
        self.manager.start_kernel(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment, cwd=cwd)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.pid = self.manager.provisioner.process.pid

    def __enter__(self) -> RunningKernel:
        return self

    def __exit__(self, *exc: object) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()

    def run(self, code: str, timeout: float = 60.0) -> Ran:
        """Run one cell to its end."""
        return self.run_all(code, timeout=timeout)[0]

    def restart_cell(self, value: str, before: str = "", after: str = "") -> Ran:
        """Set FOO to `value` and restart in place."""
        return self.run(f"{before}\nimport os; os.environ['FOO'] = {value!r}; {RESTART}\n{after}")

    def run_all(self, *cells: str, timeout: float = 60.0) -> list[Ran]:
        """Send all cells at once, as Run All does; ends when each has its reply and is idle."""
        ids = [self.client.execute(code, allow_stdin=False) for code in cells]
        ran = {one: Ran() for one in ids}
        end = time.monotonic() + timeout
        while any(not one.status or one.states[-1:] != ["idle"] for one in ran.values()):
            assert time.monotonic() < end, f"no end after {timeout} s: {list(ran.values())}"
            self._read(ran)
        return list(ran.values())

    def _read(self, ran: dict[str, Ran]) -> None:
        for get, wait in ((self.client.get_iopub_msg, 0.02), (self.client.get_shell_msg, 0.001)):
            while True:
                try:
                    message: dict[str, Any] = get(timeout=wait)
                except queue.Empty:
                    break
                self._take(ran.get(message["parent_header"].get("msg_id", "")), message)

    def _take(self, one: Ran | None, message: dict[str, Any]) -> None:
        if one is None:
            return
        content = message["content"]
        match message["msg_type"]:
            case "status":
                one.states.append(content["execution_state"])
            case "stream":
                one.text += content["text"]
            case "error":
                one.error = f"{content['ename']}: {content['evalue']}"
            case "execute_reply":
                assert not one.status, "two replies to one cell"
                one.status = content["status"]
