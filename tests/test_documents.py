"""What README and the pages say is so: links lead somewhere, options exist, the mistake shown is the real one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cuda_magic.magics import SPECS

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FLAGS = {flag for spec in SPECS for flag in spec.flags}
OTHERS = {"--json", "--full", "--show-private"}  # of the command line
FOREIGN = re.compile(r"docker|pip |jupyter|pytest|python|nvidia-smi|scontrol|sbatch|kernel|ipcluster|make ")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    """Every relative link of a page names a file of the project."""
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_options_named_in_readme_exist():
    """An option in README is one of a magic's or of the command line."""
    text = (ROOT / "README.md").read_text()
    named = {
        flag
        for code in re.findall(r"`([^`\n]+)`", text)
        if not FOREIGN.search(code)
        for flag in re.findall(r"--[a-z][a-z-]*", code)
    }
    assert named <= FLAGS | OTHERS, named - FLAGS - OTHERS


def test_the_mistake_in_readme_is_the_real_answer(loaded, monkeypatch):
    """The misspelt allocator option gives the sentence that README shows."""
    from cuda_magic.errors import CudaMagicError

    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    text = (ROOT / "README.md").read_text()
    line, answer = re.search(r"^%cuda_env (PYTORCH\S+)\n```\n```text\n(\w+Error: .+)$", text, re.MULTILINE).groups()
    with pytest.raises(CudaMagicError) as caught:
        loaded.run_line_magic("cuda_env", line)
    assert f"{type(caught.value).__name__}: {caught.value}" == answer


def test_rungs_on_the_page_are_the_ladders():
    """The table of docs/guard.md names every rung of the ladder, in its order."""
    from cuda_magic.magics import cuda_guard
    from cuda_magic.rescue.options import RUNGS

    assert cuda_guard.RUNGS == RUNGS  # the magic's own list spares the import
    part = (ROOT / "docs" / "guard.md").read_text().split("## The ladder")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\w+) \|", part, re.MULTILINE)
    assert rows[1:] == list(RUNGS)


def test_ways_on_the_page_are_the_handlers():
    """The table of docs/guard.md names every way to make room, in its order; each has its sentence in the report."""
    from cuda_magic.allocation.handler import WAYS
    from cuda_magic.rescue.outcome import _WHAT

    part = (ROOT / "docs" / "guard.md").read_text().split("## How room is made")[1].split("\n##")[0]
    assert re.findall(r"^\| (\w+) \|", part, re.MULTILINE) == ["way", *WAYS] == ["way", *_WHAT]


def test_each_kind_of_error_is_on_the_page():
    """docs/guard.md has a row for each kind, with its sentence and whether it is repeated."""
    from cuda_magic.rescue.kinds import KINDS

    done = {"ladder": "rescued", "ambiguous": "rescued where little is free", "never": "no"}
    page = (ROOT / "docs" / "guard.md").read_text()
    for kind in KINDS.values():
        assert f"| {kind.id} | {kind.sentence} | {done[kind.repeat]} |" in page, kind.id
