"""Fixtures on the fakes; tests/conftest.py imports them."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.build import FakeNvml, build, compiler


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake libnvidia-ml.so.1, built once."""
    if compiler() is None:
        pytest.skip("no C compiler to build the fake NVML with")
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def fake_nvml(nvml_library: Path, tmp_path: Path):
    """A fake NVML with no card yet, attached to this process; ``fake_nvml.environment`` is for children."""
    fake = FakeNvml(nvml_library, tmp_path)
    fake.attach()
    yield fake
    fake.detach()
