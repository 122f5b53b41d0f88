"""A guarded cell is the plain cell: same messages, reply, Out, count, history and traceback, on each IPython stack."""

from __future__ import annotations

import pytest
from cell_cases import CASES

EXTENSION = "guarded_by_tests"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_guarded_is_plain(kernel, case):
    """Plain and guarded run of the same cell look the same to a front end."""
    if kernel.python < case.needs or not all(kernel.has(module) for module in case.modules):
        return  # what the cell is about is not in this environment; other stacks have it
    plain, guarded = case.texts
    expected, seen = kernel.see(plain, case), kernel.see(guarded, case)
    assert seen.messages == expected.messages
    assert seen.reply == expected.reply
    assert seen.state == expected.state
    assert seen.then == expected.then


def test_enough_cases():
    """The suite is not thinned out unnoticed."""
    assert len(CASES) >= 60
    assert len({case.name for case in CASES}) == len(CASES)
