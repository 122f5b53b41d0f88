"""Installed packages, read from their files: nothing is imported for it."""

from __future__ import annotations

import re
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from .facts import Package, Torch

__all__ = ["packages", "pynvml_file", "torch_build"]

# The distributions that have shipped a module named pynvml.
_PYNVML = ("nvidia-ml-py", "pynvml", "nvidia-ml-py3", "nvidia-ml-py2")


def _origin(module: str) -> Path | None:
    """The file of a top-level module that an import would load."""
    loaded = getattr(sys.modules.get(module), "__file__", None)
    if loaded:
        return Path(loaded)
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None


def _release(*names: str) -> str | None:
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def torch_build() -> Torch | None:
    """What torch's version.py says; None where torch is not installed."""
    origin = _origin("torch")
    if origin is None:
        return None
    try:
        text = origin.with_name("version.py").read_text("utf-8")
    except OSError:
        return None
    found = {
        match[1]: match[2]
        for match in re.finditer(r"^(__version__|cuda|hip)\b[^=\n]*= *['\"]([^'\"]+)['\"]", text, re.M)
    }
    cuda = found.get("cuda")
    major = cuda.split(".")[0] if cuda else ""
    return Torch(
        version=found.get("__version__", "unknown"),
        cuda=cuda,
        hip=found.get("hip"),
        cudnn=_release(f"nvidia-cudnn-cu{major}") if cuda else None,
        nccl=_release(f"nvidia-nccl-cu{major}") if cuda else None,
    )


def packages() -> tuple[Package, ...]:
    """Installed distributions around ``pynvml``, and whether each one put the module there."""
    found = []
    for name in _PYNVML:
        try:
            one = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        files = {str(f) for f in one.files or ()}
        found.append(Package(name, one.version, bool(files & {"pynvml.py", "pynvml/__init__.py"})))
    return tuple(found)


def pynvml_file() -> str | None:
    """``pynvml.py`` or ``pynvml/__init__.py``: which of the two an import takes; None without either."""
    origin = _origin("pynvml")
    if origin is None:
        return None
    return "pynvml/__init__.py" if origin.name == "__init__.py" else origin.name
