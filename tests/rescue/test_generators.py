"""The state of a generator is read again exactly when it may have changed."""

import random

import pytest

from cuda_magic.rescue import generators


def same(a, b):
    """Whether two states of numpy's are equal."""
    return a[0] == b[0] and (a[1] == b[1]).all() and a[2:] == b[2:]


def test_python_state_is_read_once_until_a_draw():
    """Nothing drawn: the very same object; after a draw, a seed or half a normal number: the state that is."""
    first = generators.python_state(random)
    assert generators.python_state(random) is first == random.getstate()
    for change in (random.random, lambda: random.gauss(0, 1), lambda: random.gauss(0, 1), lambda: random.seed(3)):
        change()
        assert generators.python_state(random) == random.getstate()
    assert generators._python[0]._known  # the bytes were found: else this would be a test of nothing


def test_numpy_state_is_read_once_until_a_draw():
    """The second of two normal numbers changes no byte of the twister and is noticed all the same."""
    numpy = pytest.importorskip("numpy.random")
    numpy.seed(3)
    first = generators.numpy_state(numpy)
    assert generators.numpy_state(numpy) is first
    for change in (numpy.rand, numpy.randn, numpy.randn, numpy.randn, lambda: numpy.seed(3), lambda: numpy.bytes(1)):
        change()
        assert same(generators.numpy_state(numpy), numpy.get_state())
    assert generators._numpy[0]._known


def test_mixed_draws_are_all_noticed():
    """A thousand random changes of both generators: the state given is always the state that is."""
    numpy = pytest.importorskip("numpy.random")
    choice = random.Random(0)
    for _ in range(1000):
        change = choice.choice((random.random, lambda: random.gauss(0, 1), numpy.randn, numpy.rand, int))
        change()
        assert generators.python_state(random) == random.getstate()
        assert same(generators.numpy_state(numpy), numpy.get_state())


def test_a_layout_that_is_not_known_is_read_each_time(monkeypatch):
    """Where the bytes are not those of the state, nothing is concluded from them."""
    kept = generators._Kept(random.getstate, lambda state: b"nowhere to be found")
    monkeypatch.setattr(generators, "_python", [kept])
    before = generators.python_state(random)
    assert kept._known is False
    assert generators.python_state(random) is not before
    random.random()
    assert generators.python_state(random) == random.getstate()


def test_a_generator_of_anothers_is_read_plainly(monkeypatch):
    """random.getstate of some other object: what it says."""
    monkeypatch.setattr(random, "getstate", lambda: "theirs")
    assert generators.python_state(random) == "theirs"
