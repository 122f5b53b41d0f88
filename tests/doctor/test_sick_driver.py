"""A driver that hangs or crashes, in every magic: the shell lives, the answer comes in time and is a sentence."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest
from fakes.build import build, compiler

SHELL = textwrap.dedent(
    """
    import contextlib, io, json, os, signal, sys, threading, time
    from IPython.core.interactiveshell import InteractiveShell
    shell = InteractiveShell.instance()
    shell.run_cell("%load_ext cuda_magic")
    line, interrupt = sys.argv[1], float(sys.argv[2])
    out = io.StringIO()
    if interrupt:
        threading.Timer(interrupt, os.kill, (os.getpid(), signal.SIGINT)).start()
    begun = time.monotonic()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        result = shell.run_cell(line)
    took = time.monotonic() - begun
    kind = type(result.error_in_exec).__name__ if result.error_in_exec else ""
    libs = "libnvidia-ml" in open("/proc/self/maps").read()
    print(json.dumps([took, kind, out.getvalue(), repr(result.result), libs]))
    sys.stdout.flush()
    os._exit(0)
    """
)
LINES = [
    "%cuda_doctor",
    "%cuda_env MY_THING=1",
    "%cuda_env",
    "%gpu_mem --once",
    "%gpu_mem --who",
    "%gpu_mem",
    "import cuda_magic; cuda_magic.check_cuda()",
]


@pytest.fixture(scope="module")
def libcuda(tmp_path_factory):
    """A libcuda that starts."""
    if compiler() is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("libcuda")
    build(folder, "cuda.c", "libcuda.so.1")
    return folder


def ask(fake_nvml, libcuda, line: str, interrupt: float = 0.0, **more: str):
    env = fake_nvml.environment
    env["LD_LIBRARY_PATH"] = f"{libcuda}:{env['LD_LIBRARY_PATH']}"
    words = [sys.executable, "-c", SHELL, line, str(interrupt)]
    done = subprocess.run(words, env={**env, **more}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr  # the shell itself lives
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("how", ["hang", "crash"])
def test_each_magic_answers_in_time(fake_nvml, libcuda, line, how):
    """At most five seconds (and the imports of a first use), one sentence, nothing of NVML in this process."""
    fake_nvml.device(0)
    fake_nvml.error("nvmlInitWithFlags", how)
    took, error, out, shown, loaded = ask(fake_nvml, libcuda, line)
    assert took < 5.5 and error == "" and not loaded, (took, error, out)
    text = out + shown
    if line in LINES[3:6] or line == "%cuda_doctor":  # the others have nothing to say of it
        assert ("did not answer" in text) if how == "hang" else ("signal 11" in text), text
    assert "Traceback" not in text


@pytest.mark.parametrize("line", LINES)
def test_an_interrupt_works_at_once(fake_nvml, libcuda, line):
    """KeyboardInterrupt within a moment, whatever the driver does."""
    fake_nvml.device(0)
    fake_nvml.error("nvmlInitWithFlags", "hang")
    took, error, *_ = ask(fake_nvml, libcuda, line, interrupt=1.5, FAKE_CUDA_HANG="1")
    assert error == "KeyboardInterrupt" and took < 2.5, (took, error)


def test_both_hang(fake_nvml, libcuda):
    """NVML and cuInit: the doctor waits for them side by side, and names the start first."""
    fake_nvml.device(0)
    fake_nvml.error("nvmlInitWithFlags", "hang")
    took, error, out, shown, _ = ask(fake_nvml, libcuda, "%cuda_doctor", FAKE_CUDA_HANG="1")
    assert took < 17.5 and error == "" and "[startup.hangs]" in out + shown and "[nvml.fails]" not in out + shown
