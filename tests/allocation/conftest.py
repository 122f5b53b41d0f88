"""A CUDA of our own, compiled once."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from cuda_magic.allocation.native import shim


@pytest.fixture(scope="session")
def fake_cuda(tmp_path_factory):
    """The folder in which a ``libcuda.so.1`` of our own lies."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler")
    if shim() is None:
        pytest.skip("the shim was not built for this machine")
    folder = tmp_path_factory.mktemp("fake_cuda")
    source = Path(__file__).with_name("fake_cuda.c")
    built = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(folder / "libcuda.so.1")]
    subprocess.run([*built, str(source)], check=True)
    return folder
