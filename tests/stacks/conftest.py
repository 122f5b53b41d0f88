"""The kernel that the cells of a module run in: one for each stack."""

from __future__ import annotations

import pytest
from differential import Kernel
from environments import OWN_AND_STACKS, python_of


@pytest.fixture(scope="module", params=OWN_AND_STACKS)
def kernel(request, tmp_path_factory):
    """A kernel of the stack, shared by all cases, with the module's EXTENSION loaded."""
    kernel = Kernel(python_of(request.param), tmp_path_factory.mktemp("kernel"), request.module.EXTENSION)
    yield kernel
    kernel.close()
