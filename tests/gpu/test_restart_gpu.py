"""After a restart in place the card is free of the old process, and CUDA starts again in the same pid."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "kernel"))
from record import record
from running_kernel import RunningKernel

SIZE = 4 << 30

# NVML is asked by the test's own process, and CUDA is not started there.
FILL = f"import torch; held = torch.zeros({SIZE}, dtype=torch.uint8, device='cuda'); torch.cuda.synchronize()"


def _used_by(pid: int) -> int | None:
    """Bytes that NVML says `pid` holds on any card; None if it lists no such process."""
    import pynvml

    pynvml.nvmlInit()
    try:
        held = None
        for index in range(pynvml.nvmlDeviceGetCount()):
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(index)):
                if process.pid == pid:
                    held = (held or 0) + (process.usedGpuMemory or 0)
        return held
    finally:
        pynvml.nvmlShutdown()


def _used_on_cards() -> int:
    import pynvml

    pynvml.nvmlInit()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return sum(pynvml.nvmlDeviceGetMemoryInfo(handle).used for handle in handles)
    finally:
        pynvml.nvmlShutdown()


@pytest.mark.gpu
def test_old_memory_is_free_when_the_next_cell_runs_and_cuda_starts_again():
    """4 GiB held before; by the time the next cell runs NVML lists no process of this pid; then CUDA starts anew."""
    with RunningKernel() as kernel:
        idle = _used_on_cards()
        assert kernel.run(FILL, timeout=90).status == "ok"
        full, by_pid = _used_on_cards(), _used_by(kernel.pid)
        assert full - idle >= SIZE
        started = time.monotonic()
        asked = kernel.restart_cell("new")
        seconds = time.monotonic() - started
        assert asked.status == "ok", asked
        assert kernel.run("import os; print(os.getpid())").text == f"{kernel.pid}\n"
        after, after_by_pid = _used_on_cards(), _used_by(kernel.pid)
        assert after_by_pid is None
        assert after - idle < SIZE // 8
        again = kernel.run(
            "import json, os, time, torch; t = time.time(); x = torch.ones(3, device='cuda').sum().item()\n"
            "print(json.dumps([os.environ['FOO'], x, time.time() - t]))",
            timeout=90,
        )
        foo, total, cuda_seconds = json.loads(again.text)
        assert (foo, total) == ("new", 3.0)
        record(
            "restart_in_place",
            {
                "used_before_bytes": full - idle,
                "listed_for_pid_before_bytes": by_pid,
                "used_after_bytes": after - idle,
                "restart_seconds": round(seconds, 2),
                "cuda_start_seconds_after": round(cuda_seconds, 2),
            },
        )


@pytest.mark.gpu
def test_visible_devices_hold_in_the_new_process_although_cuda_had_started():
    """CUDA_VISIBLE_DEVICES changed after CUDA started has no effect; after the restart it has."""
    with RunningKernel() as kernel:
        assert kernel.run("import torch; torch.zeros(1, device='cuda')", timeout=90).status == "ok"
        hide = "import os; os.environ['CUDA_VISIBLE_DEVICES'] = ''"
        late = kernel.run(hide + "; print(torch.cuda.is_available())")
        assert late.text == "True\n"
        assert kernel.restart_cell("x").status == "ok"
        assert kernel.run("import torch; print(torch.cuda.is_available())", timeout=90).text == "False\n"
