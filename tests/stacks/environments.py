"""Environments of their own for the IPython releases that are supported: one folder per constraints file and Python."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".stacks"
# The least that a kernel, the package and the cells need: pinned by the stack's own constraints where it matters.
ALSO = ("ipykernel", "ipython", "ipywidgets", "psutil", "packaging", "pexpect", "matplotlib-inline", "matplotlib")
ALSO_EVERYWHERE = ("nvidia-ml-py",)


@dataclass(frozen=True)
class Stack:
    """One environment: the Pythons that it may be built on, best first, its constraints file, and its packages."""

    name: str
    pythons: tuple[str, ...]
    constraints: str
    packages: tuple[str, ...] = (*ALSO, *ALSO_EVERYWHERE)


STACKS = (
    Stack("colab", ("3.13", "3.12"), "stack-colab.txt"),
    Stack("newest", ("3.13", "3.12", "3.11"), "stack-newest.txt"),
)
if os.environ.get("ALL_STACKS"):  # the oldest and the newest tell most; those between cost a minute each
    STACKS += (
        Stack("ipython8", ("3.10",), "stack-ipython8.txt"),
        Stack("ipython9", ("3.11", "3.12"), "stack-ipython9.txt"),
    )
OWN_AND_STACKS = ["own", *(pytest.param(stack, marks=pytest.mark.stack, id=stack.name) for stack in STACKS)]
"""Parameters of a fixture: the environment that the tests run in, and each stack's."""


def python_of(stack: Stack | str) -> str:
    """The Python of one of OWN_AND_STACKS or of another stack; skips where this machine has none for it."""
    python = sys.executable if isinstance(stack, str) else build(stack)
    if python is None:
        pytest.skip(f"no Python {' or '.join(stack.pythons)} for the stack {stack.name}")
    return str(python)


def interpreter(release: str) -> str | None:
    """A Python of that release: on the path, else pyenv's."""
    candidates = [sys.executable if release == f"{sys.version_info[0]}.{sys.version_info[1]}" else None]
    candidates.append(shutil.which(f"python{release}"))
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates += [str(path / "bin" / "python") for path in sorted(pyenv.glob(f"{release}.*"), reverse=True)]
    for candidate in candidates:
        if candidate and _release(candidate) == release:
            return candidate
    return None


def _release(python: str) -> str:
    code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def build(stack: Stack) -> Path | None:
    """The Python of the stack's environment, built if it is not there; None if no Python of its kind is."""
    found = next(((release, path) for release in stack.pythons if (path := interpreter(release))), None)
    if found is None:
        return None
    release, base = found
    constraints = (ROOT / "constraints" / stack.constraints).read_text()
    text = constraints + " ".join(stack.packages) + release
    folder = FOLDER / f"{stack.name}-{release}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    pinned = [line for line in constraints.splitlines() if line and not line.startswith("#")]
    FOLDER.mkdir(exist_ok=True)
    with open(FOLDER / f"{folder.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two workers may want the same one
        if not (folder / "done").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _install(base, folder, [*pinned, *stack.packages])
            (folder / "done").touch()
    return folder / "bin" / "python"


def _install(base: str, folder: Path, packages: list[str]) -> None:
    """By uv, which takes a fifth of pip's time; by pip where uv is not there, or knows no index that has them."""
    python = str(folder / "bin" / "python")
    uv = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    subprocess.run([base, "-m", "venv", *(["--without-pip"] if uv else []), str(folder)], check=True)
    if uv:
        command = [uv, "pip", "install", "-q", "--python", python, *packages]
        if not subprocess.run(command, check=False).returncode:
            return
        subprocess.run([base, "-m", "venv", "--clear", str(folder)], check=True)
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, *packages], check=True)
