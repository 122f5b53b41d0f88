"""Installed packages, read from their files: nothing is imported for it."""

from __future__ import annotations

import functools
import mmap
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
    imported = getattr(sys.modules.get("torch"), "__version__", None)
    version = found.get("__version__", "unknown")
    return Torch(
        version=version,
        architectures=_architectures(str(origin)) if cuda else (),
        imported=str(imported) if imported is not None and str(imported) != version else None,
        cuda=cuda,
        hip=found.get("hip"),
        cudnn=_release(f"nvidia-cudnn-cu{major}") if cuda else None,
        nccl=_release(f"nvidia-nccl-cu{major}") if cuda else None,
    )


_LIST = re.compile(rb"(?:(?:sm|compute)_\d{2,3}[af]? ?)+\0")


@functools.lru_cache(4)
def _architectures(origin: str) -> tuple[str, ...]:
    """The list that torch.cuda.get_arch_list would give: a text in the build's libtorch_python (0.1 s, read once)."""
    folder = Path(origin).parent / "lib"
    library = next((p for p in (folder / "libtorch_python.so", folder / "torch_python.dll") if p.is_file()), None)
    if library is None:
        return ()
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at, best = data.find(b"sm_"), b""
        while at >= 0:
            match = _LIST.match(data, at)
            best = max(best, match[0] if match else b"", key=len)
            at = data.find(b"sm_", at + 1 if match is None else match.end())
    return tuple(best.rstrip(b"\0").decode().split())


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
