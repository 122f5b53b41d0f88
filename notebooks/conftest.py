"""nbval compares the tutorials; what they showed on a card is not run again. Tutorial 06 needs torch."""

from importlib.util import find_spec

NEEDS_TORCH = [] if find_spec("torch") else ["06_larger_than_the_card.ipynb"]
collect_ignore = ["recorded", *NEEDS_TORCH]


def pytest_report_header():
    return [f"{name} is left out: torch is not installed" for name in NEEDS_TORCH]
