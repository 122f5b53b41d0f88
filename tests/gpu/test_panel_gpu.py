"""The panel's sampler beside a torch that has not started CUDA, on a real card: it starts nothing either."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from record import record

ROOT = Path(__file__).resolve().parents[2]
PATHS = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

TICKS = """
import ctypes, json, os, threading, time
import torch
from IPython.core.interactiveshell import InteractiveShell

class Kernel:  # what the panel needs of a kernel: a control thread and its handlers
    control_thread = object()
    control_handlers = {"comm_info_request": lambda *_: None}

shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "cuda_magic")
shell.kernel = Kernel()
from cuda_magic.devices.command import once
from cuda_magic.panel import live

def contexts():  # this process's among the compute processes that the driver lists, a number for each card
    lists = [d.processes for d in once().reading.devices]
    return [sum(p.pid == os.getpid() for p in found) if found is not None else None for found in lists]

before = contexts()
shell.run_line_magic("gpu_mem", "--interval 0.25")
panel = live.current()
end = time.monotonic() + 20
while panel._seq < 10 and time.monotonic() < end:
    time.sleep(0.05)
samplers = sum(t.name == "cuda_magic panel" for t in threading.enumerate())
count = ctypes.c_int()
code = ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(count))
after = contexts()
r, w = os.pipe()
pid = os.fork()
if pid == 0:
    try: answer = float(torch.ones(1000, device="cuda").sum())
    except BaseException as e: answer = repr(e)
    os.write(w, json.dumps(answer).encode()); os._exit(0)
os.waitpid(pid, 0)
answer = json.loads(os.read(r, 5000))
print(json.dumps({"ticks": panel._seq, "samplers": samplers, "driver": code, "before": before, "after": after,
                  "cuda": torch.cuda.is_initialized(), "sum": answer, "rich": panel.rich is not None}))
shell.run_line_magic("gpu_mem", "--stop")
"""


@pytest.mark.gpu
def test_ticks_of_the_panel_start_no_cuda():
    """Ten ticks with torch imported: no cuInit, no context, and a forked child computes on the card."""
    env = {**os.environ, "PYTHONPATH": PATHS}
    done = subprocess.run([sys.executable, "-c", TICKS], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(next(line for line in done.stdout.splitlines()[::-1] if line.startswith("{")))
    record("panel ticks", found)
    assert found["ticks"] >= 10 and found["samplers"] == 1
    assert found["driver"] == 3, "3: nobody has called cuInit"
    assert not found["cuda"] and found["after"] == found["before"]
    assert found["sum"] == 1000.0
