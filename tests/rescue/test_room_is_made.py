"""A guarded cell as users have it: room is made where memory is asked for, and the report says how, or why not."""

from __future__ import annotations

import pytest

GIB = 1 << 30


@pytest.fixture
def armed24(armed, practice):
    """A practice card of 24 GiB of which 16 are a model's that the cell does not name."""
    armed.plain("model = gpu.full('16 GiB', 7)")
    return armed


def test_nothing_is_repeated_and_the_report_says_what_was_done(armed24):
    """A loop that has counted goes on; one line, a table, and no attempt more than one."""
    assert armed24.guard("n = 0\nfor _ in range(3):\n    n += 1\n    x = gpu.empty('12 GiB')\n    del x") is None
    assert armed24.names["n"] == 3
    report = armed24.report
    assert (report.status, report.attempts, report.rungs) == ("rescued", 1, ())
    assert report.requests == 1
    assert "Room was made where memory was asked for" in str(report)
    assert [line for line in armed24.lines if "nothing was repeated" in line] == armed24.lines[-1:]
    assert armed24.names["model"].sum() == 7 * 16 * GIB


def test_no_move_is_torchs_error_and_says_why(armed24):
    """--no-move: the model stays, the error is the plain one's."""
    error = armed24.guard("x = gpu.empty('12 GiB')", no_move=True)
    assert "out of memory" in str(error)
    said = "no room was made where memory was asked for: nothing may be moved"
    assert any(note.startswith(said) for note in armed24.report.notes)


def test_a_request_that_no_host_has_either(armed24):
    """Nothing was moved in vain, and the numbers are in the report."""
    error = armed24.guard("x = gpu.empty('900 TiB')")
    assert "out of memory" in str(error)
    assert any("the host can give" in note for note in armed24.report.notes)
    assert armed24.gpu.machine.allocator().room().out_bytes() == 0
    assert not [line for line in armed24.lines if "0 times" in line or "nothing was repeated" in line]


def test_an_error_of_ours_is_told_and_torchs_is_raised(armed24, monkeypatch):
    """Every way fails: the user's own error, and ours in the report."""

    def broken(*asked):
        raise RuntimeError("a fault of ours")

    for way in ("caches", "holes", "saved", "pages", "host_room"):
        monkeypatch.setattr(f"cuda_magic.testing.room.PracticeRoom.{way}", broken)
    error = armed24.guard("x = gpu.empty('12 GiB')", without=("spill",))
    assert "out of memory" in str(error)
    assert any("a fault of ours" in note for note in armed24.report.notes)


@pytest.mark.parametrize("options", [{"shrink": ("n", 1)}, {"otherwise": (("n", "2"),)}], ids=["shrink", "else"])
def test_what_the_user_named_comes_before_anything_is_moved(armed24, options):
    """--shrink and --else: the value is another, the model stays where it is."""
    armed24.plain("n = 12")
    assert armed24.guard("x = gpu.empty(f'{n} GiB')", **options) is None
    assert armed24.names["n"] < 12
    assert armed24.gpu.machine.allocator().room().out_bytes() == 0
    assert not [line for line in armed24.lines if "0 times" in line or "nothing was repeated" in line]


def test_a_cell_that_does_not_run_out_costs_no_report(armed24):
    """status ok, nothing to tell, no line."""
    assert armed24.guard("x = gpu.empty('4 GiB')") is None
    assert (armed24.report.status, armed24.report.requests, armed24.lines) == ("ok", 0, [])


def test_an_error_of_the_users_behind_a_request(armed24):
    """It is theirs, as it is; what was made room for is no reason to say anything of memory."""
    error = armed24.guard("x = gpu.empty('12 GiB')\ndel x\n1 / 0")
    assert isinstance(error, ZeroDivisionError)
    assert armed24.names["model"].sum() == 7 * 16 * GIB
