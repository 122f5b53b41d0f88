"""Environments of their own for the IPython releases that are supported: one folder per constraints file and Python."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".stacks"
# The least that a kernel, the package and the cells need: pinned by the stack's own constraints where it matters.
ALSO = ("ipykernel", "ipython", "ipywidgets", "psutil", "packaging", "pexpect", "matplotlib-inline")
ALSO_EVERYWHERE = ("nvidia-ml-py",)


@dataclass(frozen=True)
class Stack:
    """One environment: the constraints file, and the Pythons that it may be built on, best first."""

    name: str
    pythons: tuple[str, ...]
    matplotlib: bool = False

    @property
    def constraints(self) -> Path:
        return ROOT / "constraints" / f"stack-{self.name}.txt"


STACKS = (
    Stack("colab", ("3.13", "3.12")),
    Stack("ipython8", ("3.10",)),
    Stack("ipython9", ("3.11", "3.12")),
    Stack("newest", ("3.13", "3.12", "3.11"), matplotlib=True),
)


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
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def build(stack: Stack) -> Path | None:
    """The Python of the stack's environment, built if it is not there; None if no Python of its kind is."""
    found = next(((release, path) for release in stack.pythons if (path := interpreter(release))), None)
    if found is None:
        return None
    release, base = found
    packages = [*ALSO, *ALSO_EVERYWHERE, *(["matplotlib"] if stack.matplotlib else [])]
    text = stack.constraints.read_text() + " ".join(packages) + release
    folder = FOLDER / f"{stack.name}-{release}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    python = folder / "bin" / "python"
    if (folder / "done").exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    pinned = [line for line in stack.constraints.read_text().splitlines() if line and not line.startswith("#")]
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "-q", "--python", base, str(folder)], check=True)
    pip = [*uv, "pip", "install", "-q", "--compile-bytecode", "--python", str(python)]
    subprocess.run([*pip, *pinned, *packages], check=True)
    (folder / "done").touch()
    return python
