"""What `make test` runs, in order; stops at the first failure. Skips are printed, and forbidden with NO_SKIPS=1."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent


def run(title: str, *command: str, **env: str) -> None:
    print(f"\n== {title}: {' '.join(command)}", flush=True)
    started, before = time.monotonic(), _processor()
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **env})
    took, used = time.monotonic() - started, _processor() - before
    how = "FAILED" if done.returncode else "ok"
    print(f"== {title}: {how} in {took:.0f} s, {used:.0f} s of processor time", flush=True)
    if done.returncode:
        sys.exit(done.returncode)


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    python = sys.executable
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of processes: each would compile the package anew
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
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium and not subprocess.run([python, "-c", "import playwright, jupyterlab"], capture_output=True).returncode:
        run("browser", python, "-m", "pytest", "-q", "-n", "2", "-m", "browser", "tests/browser")
    elif os.environ.get("NO_SKIPS"):
        sys.exit("browser tests cannot run: Chromium, Playwright or JupyterLab is missing")
    else:
        print("== browser: SKIPPED, Chromium, Playwright or JupyterLab is not installed")
    run("stacks", python, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-m", "stack", "tests")


if __name__ == "__main__":
    main()
