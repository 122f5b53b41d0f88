"""What GitHub runs agrees with the package and with CONTRIBUTING: read as data, nothing is sent."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".github"
FILES = sorted(FOLDER.rglob("*.yml"))

pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="an unpacked sdist has no workflows")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_can_be_read_and_runs_nothing_that_is_not_here(path):
    """YAML; each `make` goal is one of the Makefile; each pinned action names a release."""
    text = path.read_text()
    data = yaml.safe_load(text)
    goals = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake (\w+)", text)) <= goals
    for job in data.get("jobs", {}).values():
        assert job.get("timeout-minutes", 10) <= 90
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step), step
            assert "@" in step.get("uses", "@")


def test_the_pythons_are_those_of_the_classifiers():
    """Each Python that the package names is tested."""
    tested = yaml.safe_load((FOLDER / "workflows/test.yml").read_text())["jobs"]["test"]["strategy"]["matrix"]["python"]
    named = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert tested == named


def test_a_release_builds_what_contributing_says():
    """The same commands, in the same order."""
    steps = yaml.safe_load((FOLDER / "workflows/release.yml").read_text())["jobs"]["build"]["steps"]
    runs = [step["run"] for step in steps if "-m build" in step.get("run", "")]
    said = (ROOT / "CONTRIBUTING.md").read_text().partition("## A release")[2]
    kinds = ("build --sdist", "CUDA_MAGIC_SHIM_FOR=x86_64", "aarch64", "CUDA_MAGIC_NO_SHIM=1")
    assert len(runs) == len(kinds)
    for run, kind in zip(runs, kinds, strict=True):
        assert kind in run and kind in said


def test_the_version_of_a_tag_is_read_as_it_stands():
    """The line that the release workflow looks for is there."""
    version = re.findall(r'^__version__ = "(.*)"', (ROOT / "cuda_magic/__init__.py").read_text(), re.MULTILINE)
    assert len(version) == 1
