"""Who looks: leases and the budget, with a clock of the test's own."""

from __future__ import annotations

from cuda_magic.panel.watchers import Watchers


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_before_any_answer_the_plain_panel_is_taken_to_be_seen():
    """No page has spoken: the plain panel cannot, so it is updated, within the budget."""
    watchers = Watchers(budget=3)
    assert watchers.looking()
    assert [watchers.spend() for _ in range(5)] == [True, True, True, False, False]


def test_a_sign_of_life_renews_the_budget():
    """A cell that starts or ends, and each word of a page, renew it."""
    watchers = Watchers(budget=1)
    for sign in (watchers.alive, lambda: watchers.hear({"t": "beat", "cid": "a", "see": True})):
        assert watchers.spend() and not watchers.spend()
        sign()
    assert watchers.spend()


def test_a_lease_ends_when_the_page_falls_silent():
    """A browser that was killed says nothing: after the lease nobody looks."""
    clock = Clock()
    watchers = Watchers(lease=30, clock=clock)
    watchers.hear({"t": "ready", "cid": "a", "see": True})
    clock.now = 29.9
    assert watchers.looking()
    clock.now = 30.1
    assert not watchers.looking()
    watchers.hear({"t": "beat", "cid": "a", "see": True})
    assert watchers.looking()


def test_one_of_two_pages_is_enough():
    """Ticks go on while any page looks, and end when the last one hides or goes."""
    watchers = Watchers()
    for page in "ab":
        watchers.hear({"t": "show", "cid": page, "see": True})
    watchers.hear({"t": "hide", "cid": "a", "see": False})
    assert watchers.looking()
    watchers.hear({"t": "hide", "cid": "b", "see": False, "gone": True})
    assert not watchers.looking()


def test_a_page_that_comes_into_view_wants_the_history_once():
    """`ready` and `show` ask for it, a beat does not."""
    watchers = Watchers()
    watchers.hear({"t": "ready", "cid": "a", "see": False})
    assert watchers.wants() == 0 and watchers.wants() is None
    watchers.hear({"t": "beat", "cid": "a", "see": True})
    assert not watchers.wants()


def test_odd_words_are_no_error():
    """A page may say anything."""
    watchers = Watchers()
    for said in ({}, {"t": None, "cid": ["x"], "see": "yes"}, {"cid": "x" * 10_000}):
        watchers.hear(said)
