"""--shrink: the value that the tries end at, beside the largest that fits, for several ways in which memory grows."""

import pytest

from cuda_magic.rescue.rungs.shrink import EXACT, next_value

GIB = 1 << 30
MODELS = {
    "in proportion": lambda n: n * 100,
    "a fixed part": lambda n: 3000 + n * 100,
    "a large fixed part": lambda n: 8000 + n * 10,
    "squared": lambda n: n * n,
    "squared and fixed": lambda n: 2000 + n * n // 2 + 7 * n,
    "in steps of 64": lambda n: 4000 * -(-n // 64),
    "more slowly": lambda n: int(900 * n**0.5),
}


def tries(needs, free, start):
    """Values tried until one fits, and the one that fits."""
    failed = [(start, needs(start), True)]
    while True:
        value = next_value(failed, 1, free)
        if value is None or needs(value) <= free:
            return [v for v, _, _ in failed[1:]] + ([value] if value else []), value
        failed.append((value, needs(value), True))


@pytest.mark.parametrize("free", [9_000, 10_000, 20_000])
@pytest.mark.parametrize("start", [256, 200, 77, 1000])
@pytest.mark.parametrize("model", MODELS)
def test_where_one_request_tells_the_end_is_near_the_largest(model, start, free):
    """In proportion, with or without a fixed part: the largest itself, in at most two tries. Else in few tries."""
    needs = MODELS[model]
    largest = max((n for n in range(1, start) if needs(n) <= free), default=None)
    seen, value = tries(needs, free, start) if needs(start) > free else ([], start)
    assert seen == sorted(set(seen), reverse=True)
    if largest is None:
        assert value is None
    elif value != start:
        assert value <= largest
        assert len(seen) <= EXACT + 2
        if model in ("in proportion", "a fixed part", "a large fixed part") and largest >= start / 16:
            assert value >= largest - 1  # whole bytes
            assert len(seen) <= 3
        else:  # a statement that needs far less than in proportion fits at once, and is not repeated to find more
            assert value >= largest // 4


def test_where_many_requests_filled_the_card_it_is_halved():
    """What would have followed is not known: half, or less if the sizes say so."""
    assert next_value([(64, 110, False)], 8, 100) == 32
    assert next_value([(64, 400, False)], 8, 100) == 16
    assert next_value([(64, 110, True), (58, 105, False)], 8, 100) == 29


def test_what_is_not_known_is_halved():
    """No size in the error, or room enough by the numbers: half, down to the floor, then no more."""
    assert next_value([(64, None, True)], 8, GIB) == 32
    assert next_value([(64, GIB, True)], 8, None) == 32
    assert next_value([(64, GIB, True)], 8, 2 * GIB) == 32
    assert next_value([(12, None, True)], 8, GIB) == 8
    assert next_value([(8, None, True)], 8, GIB) is None
    assert next_value([(1, None, True)], 1, GIB) is None


def test_after_the_exact_tries_each_is_at_most_half():
    """A statement whose errors always promise more than there is ends all the same."""
    failed = [(1000, 2000, True), (999, 1999, True), (998, 1998, True), (997, 1997, True)]
    assert next_value(failed, 1, 1996) == 498


def test_only_divisors_with_grow():
    """The largest divisor that is no larger than the aim."""
    assert next_value([(96, 200, True)], 1, 100, 96) == 48
    assert next_value([(96, 300, True)], 1, 199, 96) == 48
    assert next_value([(7, 14, True)], 1, 13, 7) == 1


def test_a_batch_beside_weights_ends_at_the_largest(practice):
    """In a cell: weights that stay, a part that does not depend on the batch, and 3 MiB for each item."""
    practice.plain("gpu.limit('2 GiB')\nbs = 1000\nweights = gpu.empty('512 MiB')")
    code = "fixed = gpu.empty('256 MiB'); batch = gpu.empty(bs * 3 << 20)"
    assert practice.guard(f"for _ in (1,):\n  {code}", shrink=("bs", 1), only=("collect", "caches", "shrink")) is None
    assert practice.names["bs"] == (2048 - 512 - 256) // 3
    assert practice.report.attempts <= 4
    assert [r.id for r in practice.report.rungs if r.state == "ran"].count("shrink") <= 3
