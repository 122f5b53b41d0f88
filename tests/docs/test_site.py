"""The site is built from README, the pages and the docstrings without a warning, and its links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cuda_magic

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(400)  # a dozen seconds of processor time, which a busy machine stretches


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; the build fails at a warning."""
    folder = tmp_path_factory.mktemp("site")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-W", "error", str(ROOT / "docs" / "build.py"), str(folder)]
    done = subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr[-3000:]
    return folder


def test_every_module_and_public_name_has_its_place(site):
    """Each module is a page; each name that the package exports is on the package's page, with its docstring."""
    package = ROOT / "cuda_magic"
    for path in package.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if any(part.startswith("_") for part in parts[1:]):
            continue
        assert site.joinpath(*parts).with_suffix(".html").is_file(), path
    page = (site / "cuda_magic.html").read_text()
    for name in cuda_magic.__all__:
        assert f'id="{name}"' in page, name
    assert "Raises" in (site / "cuda_magic" / "testing" / "practice.html").read_text()


def test_pages_are_there_and_link_each_other(site):
    """README is the start, each page of docs/ is in its menu, and no relative link of the pages is broken."""
    start = (site / "index.html").read_text()
    pages = [site / "index.html", *(site / f"{page.stem}.html" for page in (ROOT / "docs").glob("*.md"))]
    assert len(pages) >= 8
    for page in pages:
        assert f'href="{page.name}"' in start
        for target in re.findall(r'(?:href|src)="([^"]+)"', page.read_text()):
            if not re.match(r"https?:|data:|#|mailto:", target):
                assert (site / target.partition("#")[0]).is_file(), (page.name, target)
