"""Another card as the place where contents wait: named rightly, with room, and given back."""

from __future__ import annotations

import contextlib
import types

import pytest

from cuda_magic.errors import Refused
from cuda_magic.memory.torch.parking.neighbour import Neighbour, place

GIB = 1 << 30
QUIET = {
    "_C": types.SimpleNamespace(
        is_grad_enabled=lambda: True,
        _set_grad_enabled=lambda on: None,
        DisableTorchFunctionSubclass=contextlib.nullcontext,
        _DisableTorchDispatch=object,
    ),
}


class Full(RuntimeError):
    pass


def fake(free=8 * GIB, cached=0, cards=2, broken=False):
    """A torch with `cards` cards, of which each has so much free."""

    def empty(nbytes, dtype, device):
        if broken:
            raise Full("no piece")
        return types.SimpleNamespace(nbytes=nbytes, device=device)

    cuda = types.SimpleNamespace(
        device_count=lambda: cards,
        mem_get_info=lambda index: (free, 80 * GIB),
        memory_reserved=lambda index: cached + GIB,
        memory_allocated=lambda index: GIB,
        OutOfMemoryError=Full,
        default_stream=lambda index: f"the stream of {index}",
        stream=lambda stream: contextlib.nullcontext(),
    )
    return types.SimpleNamespace(cuda=cuda, empty=empty, uint8="uint8", **QUIET)


@pytest.mark.parametrize(
    ("name", "cards", "said"),
    [
        ("cuda:2", 2, "there is no cuda:2: this kernel sees 2 cards, cuda:0 to cuda:1"),
        ("cuda:1", 1, "there is no cuda:1: this kernel sees 1 card, cuda:0"),
        ("cuda:0", 2, "cuda:0 is the card that is full"),
    ],
)
def test_a_wrong_name_is_one_sentence(name, cards, said):
    """No such card, and the full one itself."""
    with pytest.raises(Refused, match=said):
        place(fake(cards=cards), name, full=0)


def test_the_card_keeps_some_room_for_itself():
    """A twentieth of what is free stays; what its own cache has is counted."""
    assert Neighbour(fake(free=20 * GIB), 1).room() == 19 * GIB
    assert Neighbour(fake(free=20 * GIB, cached=2 * GIB), 1).room() == 21 * GIB


def test_a_buffer_lies_on_that_card_and_is_given_back():
    """Its memory is let go when it is given."""
    there = place(fake(), "cuda:1", full=0)
    buffer = there.take(GIB)
    assert (buffer.data.device, buffer.data.nbytes, buffer.events) == ("cuda:1", GIB, ())
    assert buffer.home == "the stream of 1"
    there.give(buffer)
    assert buffer.data is None


def test_no_room_is_refused_before_anything_is_copied():
    """With both sizes; and where the free memory is in pieces."""
    with pytest.raises(Refused, match=r"cuda:1 can take 7\.60 GiB, 9\.00 GiB is needed"):
        Neighbour(fake(), 1).take(9 * GIB)
    with pytest.raises(Refused, match=r"cuda:1 has no 1\.00 GiB in one piece"):
        Neighbour(fake(broken=True), 1).take(GIB)
