"""What `make test` runs, in order; stops at the first failure. Skips are printed, and forbidden with NO_SKIPS=1."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run(steps: dict[str, list[str]], **env: str) -> None:
    """Run steps (title: command) at once; what the later ones print comes after the first's end."""
    started, running = time.monotonic(), []
    for title, command in steps.items():
        print(f"\n== {title}: {' '.join(command)}", flush=True)
        later = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if running else {}
        running.append((title, subprocess.Popen(command, cwd=ROOT, env={**os.environ, **env}, **later)))
    failed = 0
    for title, process in running:
        if process.stdout:
            print(process.stdout.read().decode(errors="replace"), flush=True)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        failed = failed or process.returncode
        how = "FAILED" if process.returncode else "ok"
        took, processor = time.monotonic() - started, used.ru_utime + used.ru_stime
        print(f"== {title}: {how} in {took:.0f} s, {processor:.0f} s of processor time", flush=True)
    if failed:
        sys.exit(failed)


def main() -> None:
    started = time.monotonic()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of processes: each would compile the package anew
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch's threads would wait for each other's processors
    python = sys.executable
    pytest = [python, "-m", "pytest", "-q"]
    run({"ruff": [python, "-m", "ruff", "check", "."]})
    run({"format": [python, "-m", "ruff", "format", "--check", "."]})
    nbval = ["--nbval", "--nbval-current-env", "--nbval-cell-timeout=120"]
    nbval += ["--nbval-sanitize-with", "notebooks/sanitize.cfg", "notebooks"]
    run({"mypy": [python, "-m", "mypy"], "tutorials": [*pytest, *nbval]}, CUDA_MAGIC_PRACTICE="1")
    # Three at a time: a test mostly waits for a kernel, a page, or a second in which nothing must be sent. A module
    # stays on one worker, which has its kernels; in the order of tests/conftest.py, the longest first.
    spread = ["-n", "3", "--dist", "loadscope", "--no-loadscope-reorder"]
    run({"tests": [*pytest, *spread, "-m", "not browser and not gpu and not two_gpus"]})
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium and not subprocess.run([python, "-c", "import playwright, jupyterlab"], capture_output=True).returncode:
        # alone: a page that is slow once is late
        run({"browser": [*pytest, "-n", "2", "-m", "browser", "tests/browser"]})
    elif os.environ.get("NO_SKIPS"):
        sys.exit("browser tests cannot run: Chromium, Playwright or JupyterLab is missing")
    else:
        print("== browser: SKIPPED, Chromium, Playwright or JupyterLab is not installed")
    print(f"\n== all of it in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
