"""Kernels for the tests on a card. The next one is started while the last is in use: starting one takes seconds."""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jupyter_client

ROOT = Path(__file__).resolve().parents[2]
PATHS = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
GIB = 1 << 30
PRELUDE = (
    "%load_ext cuda_magic\nimport torch, gc, json, sys\nG = 2**30\n"
    "def cap(g): torch.cuda.set_per_process_memory_fraction(g*G/torch.cuda.get_device_properties(0).total_memory)\n"
    "def E(g): return torch.empty(int(g*G), dtype=torch.uint8, device='cuda')\n"
    "def net():\n"
    "    L = torch.nn.Linear; A = torch.nn.GELU\n"
    "    return torch.nn.Sequential(*[m for _ in range(16) for m in (L(1024, 1024), A())]).cuda()"
)


class Kernel:
    """A kernel in which `prelude` has run. `patience`: seconds that one cell may take."""

    def __init__(self, prelude: str = PRELUDE, patience: float = 120) -> None:
        self.patience = 60.0
        self.manager = jupyter_client.KernelManager(kernel_name="python3")
        # kernels that start together would wait for each other's lock on IPython's history
        history = ["--HistoryManager.hist_file=:memory:"]
        self.manager.start_kernel(env={**os.environ, "PYTHONPATH": PATHS}, extra_arguments=history)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        assert self.run(prelude) == []
        self.patience = patience

    def run(self, code: str) -> list[tuple[str, str]]:
        """(kind, text) of each output: a stream's name, ``error``, ``display_data`` or ``execute_result``."""
        found: list[tuple[str, str]] = []

        def take(message: dict[str, Any]) -> None:
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                found.append((content["name"], content["text"]))
            elif kind == "error":
                found.append(("error", f"{content['ename']}: {content['evalue']}"))
                print("\n".join(content["traceback"])[-3000:])
            elif kind in ("display_data", "execute_result"):
                found.append((kind, content["data"]["text/plain"]))

        try:
            self.client.execute_interactive(code, output_hook=take, timeout=self.patience, stop_on_error=False)
        except TimeoutError:
            self.manager.interrupt_kernel()
            raise
        return found

    def ok(self, code: str) -> str:
        """Run what must not fail; its stdout."""
        output = self.run(code)
        assert not any(kind == "error" for kind, _ in output), output
        return "".join(text for kind, text in output if kind == "stdout")

    def guard(self, code: str, options: str = "") -> dict[str, Any]:
        """Run a guarded cell that may run again; its report as a dict, with its error ``raised`` and its outputs."""
        output = self.run(f"%%cuda_guard --repeat --report report {options}\n{code}")
        text = "".join(t for k, t in self.run("print(json.dumps(report.to_dict()))") if k == "stdout")
        assert text, output
        report = json.loads(text)
        report["raised"] = next((t for k, t in output if k == "error"), None)
        report["output"] = output
        print({k: report.get(k) for k in ("status", "attempts", "calls", "notes", "raised")})
        print([(r["id"], r["state"], r["reason"], r["freed_bytes"]) for r in report["rungs"]])
        return report

    def value(self, expression: str) -> str:
        """What print says of it."""
        output = self.run(f"print({expression})")
        assert output and output[0][0] == "stdout", output
        return output[0][1].strip()

    def read(self, expression: str) -> Any:
        """Its value, which JSON can hold."""
        return json.loads(self.ok(f"print(json.dumps({expression}))"))

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


_starter = ThreadPoolExecutor(1)
_ahead: dict[str, Future[Kernel]] = {}


def one_each(prelude: str = PRELUDE) -> Iterator[Kernel]:
    """For a fixture: a kernel of the test's own, and the next one's start."""
    made = _ahead.pop(prelude, None) or _starter.submit(Kernel, prelude)
    kernel = made.result(timeout=120)
    _ahead[prelude] = _starter.submit(Kernel, prelude)
    yield kernel
    kernel.close()


def _close() -> None:
    for made in _ahead.values():
        if not made.cancel() and made.exception() is None:
            made.result().close()


atexit.register(_close)
