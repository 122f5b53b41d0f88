"""The doctor on a real card: healthy, under ``ulimit -v``, full, hidden, forked; each in processes of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import textwrap
import time

import pytest
from record import record

pytestmark = pytest.mark.gpu


def command(*words, limit=None, **variables):
    """(exit code, JSON, seconds) of ``cuda-magic doctor --json`` in a process of its own."""
    line = [sys.executable, "-m", "cuda_magic", "doctor", "--json", *words]
    if limit is not None:
        line = ["sh", "-c", f'ulimit -v {limit}; exec "$@"', "sh", *line]
    started = time.monotonic()
    done = subprocess.run(line, env={**os.environ, **variables}, capture_output=True, text=True, timeout=150)
    seconds = time.monotonic() - started
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), seconds


def python(code, **variables):
    """What a fresh Python prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


def test_a_healthy_card_is_healthy():
    """No error, CUDA and NVML agree, and a first tensor succeeds on each device."""
    code, found, _ = command()
    assert code in (0, 1), found["findings"]
    assert found["failed_checks"] == []
    assert not [f for f in found["findings"] if f["severity"] == "error"]
    nvml, cuda = found["answers"]
    assert (nvml["code"], cuda["code"]) == (0, 0)
    assert nvml["devices"] >= cuda["devices"] >= 1
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        assert nvml["devices"] == cuda["devices"]
    code, full, seconds = command("--full")
    assert code in (0, 1), full["findings"]
    record("doctor_healthy", {"findings": [f["id"] for f in found["findings"]], "full_seconds": round(seconds, 2)})


def test_all_checks_take_under_one_and_a_half_seconds():
    """With the start of CUDA in a child; the fastest of three, without the start of the interpreter."""
    out = python(
        """
        import json, time
        from cuda_magic.doctor.command import look
        took = []
        for _ in range(3):
            started = time.perf_counter(); found = look(); took.append(time.perf_counter() - started)
        print(json.dumps([took, found.startup_seconds]))
        """
    )
    took, probe = json.loads(out)
    record("doctor_seconds", {"all_checks": [round(t, 3) for t in took], "probe": probe})
    assert min(took) < 1.5


def test_a_limit_on_the_address_space_is_named():
    """``ulimit -v 12000000`` gives Error 2 in torch, and the first finding is the limit."""
    out = subprocess.run(
        ["sh", "-c", 'ulimit -v 12000000; exec "$@"', "sh", sys.executable, "-c",
         "import torch, warnings; warnings.simplefilter('always'); print(torch.cuda.is_available())"],
        capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    assert out.stdout.strip() == "False"
    assert "Error 2" in out.stderr
    code, found, _ = command(limit=12000000)
    assert code == 2
    assert found["findings"][0]["id"] == "host.address-space"
    assert "not about video memory" in found["findings"][0]["means"]
    explained = {one["id"]: one["explained_by"] for one in found["explained"]}
    assert explained["startup.out-of-memory"] == "host.address-space"
    assert explained["startup.disagreement"] == "host.address-space"
    code, found, _ = command(limit=12000000, PYTORCH_NVML_BASED_CUDA_CHECK="1")
    assert found["findings"][0]["id"] == "host.address-space"
    record("doctor_address_space", {"answers": found["answers"]})


def test_a_hidden_card_is_named():
    """An empty mask, and an index that no card has."""
    code, found, _ = command(CUDA_VISIBLE_DEVICES="")
    assert (code, found["findings"][0]["id"]) == (2, "visible.all-hidden")
    assert found["findings"][0]["severity"] == "warning"
    code, found, _ = command(CUDA_VISIBLE_DEVICES="97")
    assert (code, found["findings"][0]["id"]) == (2, "visible.all-hidden")
    assert "no GPU 97" in found["findings"][0]["means"]


HOLD = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuInit(0)
context = ctypes.c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
cuda.cuCtxSetCurrent(context)
free, total, pointer = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_uint64()
size = 1 << 40
while size >= 1 << 20:
    if cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)) != 0:
        size //= 2
cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
print(free.value, flush=True)
sys.stdin.read()
"""


def test_a_full_card_is_named_though_cuda_starts():
    """Another process fills the card: cuInit is well, the finding names the card, --full proves it."""
    holder = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        free = int(holder.stdout.readline())
        card = os.environ.get("CUDA_VISIBLE_DEVICES", "0")  # the one that the other process fills
        code, found, _ = command(CUDA_VISIBLE_DEVICES=card)
        assert found["answers"][1]["code"] == 0
        full = [f for f in found["findings"] if f["id"] == "devices.full"]
        assert full, found["findings"]
        _, tried, _ = command("--full", CUDA_VISIBLE_DEVICES=card)
        ids = [one["id"] for one in (*tried["findings"], *tried["explained"])]
        assert "torch.allocation" in ids
        record("doctor_full_card", {"free_bytes": free, "seen": full[0]["seen"], "exit": code})
    finally:
        holder.stdin.close()
        holder.wait(timeout=60)
        holder.stdout.close()


FORK = """
import os, sys
def child():
    import torch
    torch.zeros(1, device="cuda")
pid = os.fork()
if pid == 0:
    try:
        child()
    except BaseException as error:
        print(type(error).__name__, str(error)[:60], flush=True)
        os._exit(1)
    os._exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""

MAGICS = """
import contextlib, io
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
with contextlib.redirect_stdout(io.StringIO()):
    shell.run_line_magic("load_ext", "cuda_magic")
    shell.run_line_magic("cuda_env", "")
    shell.run_line_magic("gpu_mem", "--once")
    print(shell.run_line_magic("cuda_doctor", ""))
    print(shell.run_line_magic("cuda_doctor", "--full"))
    import torch
    print(shell.run_line_magic("cuda_doctor", ""), shell.run_line_magic("gpu_mem", "--once"))
import cuda_magic
"""


def test_case_33_a_forked_child_starts_cuda_after_all_our_magics():
    """Loading, %cuda_env, %gpu_mem --once and both doctors leave this process safe to fork, and a child proves it."""
    out = python(MAGICS + "check = cuda_magic.check_cuda(); assert check.can_fork\n" + FORK + "print('child', status)")
    assert out == "child 0"


def test_a_process_that_started_cuda_is_not_safe_to_fork():
    """is_available() is enough; the child really fails, and the doctor in the child names it."""
    out = python(
        """
        import torch
        assert torch.cuda.is_available()
        import cuda_magic
        check = cuda_magic.check_cuda()
        assert check.usable and not check.can_fork
        import os
        pid = os.fork()
        if pid == 0:
            try:
                torch.zeros(1, device="cuda")
            except RuntimeError as error:
                assert "forked" in str(error)
                found = cuda_magic.check_cuda()
                print(found.cause, found.can_fork, flush=True)
                os._exit(0)
            os._exit(1)
        print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """
    )
    assert out.splitlines() == ["kernel.forked-after-start False", "child 0"]


def test_a_mask_changed_after_the_start_is_seen():
    """CUDA of this process sees one device more than a new process would."""
    out = python(
        """
        import os, torch
        assert torch.cuda.is_available()
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        from cuda_magic.doctor.command import look
        found = look()
        print([one.id for one in (*found.findings, *found.explained)])
        """
    )
    assert "visible.changed-after-start" in out


@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed")
def test_notebook_launcher_works_after_our_magics(tmp_path):
    """accelerate forks a worker from a process in which all our magics ran; the worker uses the card."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    script = MAGICS + textwrap.dedent(
        f"""
        def work():
            import os, torch
            torch.ones(4, device="cuda").sum().item()
            open({str(tmp_path)!r} + "/worked-" + os.environ["LOCAL_RANK"], "w").close()
        if __name__ == "__main__":
            from accelerate import notebook_launcher
            assert cuda_magic.check_cuda().can_fork
            notebook_launcher(work, num_processes=2, use_port={port!r})  # two: with one it does not fork
        """
    )
    path = tmp_path / "launch.py"
    path.write_text(script)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(p.name for p in tmp_path.glob("worked-*")) == ["worked-0", "worked-1"]
