"""What `make test` runs, in order; stops at the first failure. Skips are printed, and forbidden with NO_SKIPS=1."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent


def run(title: str, *command: str, **env: str) -> None:
    print(f"\n== {title}: {' '.join(command)}", flush=True)
    started, before = time.monotonic(), _processor()
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **env})
    _ended(title, done.returncode, started, before)


@contextlib.contextmanager
def beside(title: str, *command: str) -> Iterator[None]:
    """Run it beside what is inside, which leaves the processor idle half of the time; its output comes at the end."""
    started, before = time.monotonic(), _processor()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            yield
            process.wait()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
            print(f"\n== {title}: {' '.join(command)}", flush=True)
            output.seek(0)
            sys.stdout.write(output.read().decode(errors="replace"))
        _ended(title, process.returncode, started, before)


def _ended(title: str, code: int, started: float, before: float) -> None:
    took, used = time.monotonic() - started, _processor() - before
    how = "FAILED" if code else "ok"
    print(f"== {title}: {how} in {took:.0f} s, {used:.0f} s of processor time", flush=True)
    if code:
        sys.exit(code)


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    python = sys.executable
    run("ruff", python, "-m", "ruff", "check", ".")
    run("format", python, "-m", "ruff", "format", "--check", ".")
    run("mypy", python, "-m", "mypy")
    # Three at a time: a test mostly waits for a kernel, a page, or a second in which nothing must be sent.
    quick = "not browser and not stack and not gpu and not two_gpus"
    run("tests", python, "-m", "pytest", "-q", "-n", "3", "--dist", "loadscope", "-m", quick)
    run(
        "tutorials",
        python,
        "-m",
        "pytest",
        "-q",
        "--nbval",
        "--nbval-current-env",
        "--nbval-cell-timeout=120",
        "--nbval-sanitize-with",
        "notebooks/sanitize.cfg",
        "notebooks",
        CUDA_MAGIC_PRACTICE="1",
    )
    with beside("stacks", python, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-m", "stack", "tests"):
        _browser(python)


def _browser(python: str) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium and not subprocess.run([python, "-c", "import playwright, jupyterlab"], capture_output=True).returncode:
        run("browser", python, "-m", "pytest", "-q", "-n", "2", "-m", "browser", "tests/browser")
    elif os.environ.get("NO_SKIPS"):
        sys.exit("browser tests cannot run: Chromium, Playwright or JupyterLab is missing")
    else:
        print("== browser: SKIPPED, Chromium, Playwright or JupyterLab is not installed")


if __name__ == "__main__":
    main()
