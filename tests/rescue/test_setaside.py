"""--reserve: set aside before a statement, given back when the cell has ended, and said what it served."""

import pytest

from cuda_magic.errors import Refused
from cuda_magic.rescue.options import GuardOptions
from cuda_magic.rescue.setaside import SetAside

GIB = 1 << 30


class Kept:
    """A reserve as the allocator gives it."""

    def __init__(self, nbytes, served=0, left=0):
        self.nbytes, self.device, self.active = nbytes, 0, True
        self._served, self._left = served, left
        self.moved = None

    def served(self):
        return self._served

    def release(self, move=True):
        self.active, self.moved = False, move
        return self._left


class Fake:
    """An allocator that sets aside what the test gives."""

    def __init__(self, kept=None, started=True, refused=""):
        self.kept, self._started, self.refused, self.asked = kept, started, refused, 0

    def started(self):
        return self._started

    def reserve(self, nbytes):
        self.asked += 1
        if self.refused:
            raise Refused(self.refused)
        return self.kept


def test_a_reserve_that_was_not_needed_is_given_back_and_not_mentioned():
    """Taken once for all statements; no note where it served nothing."""
    notes, fake = [], Fake(Kept(GIB))
    aside = SetAside(GIB, notes)
    aside.before(fake)
    aside.before(fake)
    aside.after(True)
    assert (fake.asked, fake.kept.active, fake.kept.moved, notes) == (1, False, True, [])


def test_what_it_served_is_said():
    """With where it lies now: moved out, or still in a private pool."""
    for left, words in ((0, "moved to the ordinary heap"), (GIB // 2, "512.00 MiB of it stay in a private pool")):
        notes = []
        aside = SetAside(GIB, notes)
        aside.before(Fake(Kept(GIB, GIB // 2, left)))
        aside.after(True)
        assert notes == [f"the reserve of 1.00 GiB served 512.00 MiB ({words})"]


def test_a_reserve_that_cannot_be_had_is_a_note_and_the_cell_runs():
    """Said once, however many statements there are."""
    notes, fake = [], Fake(refused="GPU 0 has 1.00 GiB free, 2.00 GiB was asked for")
    aside = SetAside(2 * GIB, notes)
    aside.before(fake)
    aside.before(fake)
    aside.after(True)
    assert notes == ["--reserve 2.00 GiB: GPU 0 has 1.00 GiB free, 2.00 GiB was asked for; nothing was set aside"]


def test_cuda_is_not_started_for_it():
    """Before CUDA runs nothing is taken, and that is said."""
    notes, fake = [], Fake(started=False)
    aside = SetAside(GIB, notes)
    aside.before(fake)
    aside.before(None)
    aside.after(True)
    assert fake.asked == 0
    assert notes == ["--reserve: CUDA was not started when the statements began; nothing was set aside"]


def test_the_practice_card_says_that_it_has_none(practice):
    """A guarded cell with --reserve runs there, with a note."""
    practice.plain("gpu.empty('1 MiB')")
    assert practice.guard("x = gpu.empty('1 GiB')", reserve=GIB) is None
    assert practice.report.status == "ok"
    assert practice.report.notes[0].startswith("--reserve 1.00 GiB: the practice GPU has no memory")


@pytest.mark.parametrize(
    ("typed", "nbytes"), [("1GiB", GIB), ("512MiB", GIB // 2), ("'2 GiB'", 2 * GIB), ("0.5g", GIB // 2)]
)
def test_sizes_as_people_write_them(typed, nbytes):
    """Units are binary; a blank needs quotes."""
    from cuda_magic.magics.guard_line import options
    from cuda_magic.settings import CudaMagic

    assert options(f"--reserve {typed}", CudaMagic())[0].reserve == nbytes
    assert GuardOptions().reserve == 0


@pytest.mark.torch
def test_a_torch_without_such_a_pool_is_named():
    """The release that has it is in the reason; this torch has it."""
    torch = pytest.importorskip("torch")
    from cuda_magic.memory.torch.reserve import unsupported

    class Pool:
        def __init__(self, allocator=None):
            pass

    class Old:
        __version__ = "2.7.0"
        cuda = type("cuda", (), {"MemPool": Pool})

    assert unsupported(torch) == ""
    assert unsupported(Old) == "torch 2.7.0 has no pool that serves when memory runs out (2.8 has)"
