"""Our reading of the allocator's configuration against torch's own parser."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cuda_magic.environment.allocator_grammar import read
from cuda_magic.environment.release import installed

STRINGS = 20_000
CHILD = """
import json, os, random, sys
sys.path[:0] = [sys.argv[1]]
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
import torch
from allocator_strings import configuration
give = torch._C._accelerator_setAllocatorSettings
random_ = random.Random(int(sys.argv[2]))
strings, raised = [], []
for _ in range(int(sys.argv[3])):
    text = configuration(random_)
    give("large_segment_size_mb:20")  # the one setting that outlives a call and changes what is legal
    try:
        give(text)
        raised.append(False)
    except Exception:
        raised.append(True)
    strings.append(text)
json.dump([strings, raised], sys.stdout)
"""


@pytest.mark.torch
def test_refused_is_what_torch_raises_on():
    """For 20,000 strings, what we call refused is what the installed torch's parser raises on."""
    release = installed().release
    if release < (2, 12):
        pytest.skip("this torch has no runtime parser without a card")
    command = [sys.executable, "-c", CHILD, str(Path(__file__).parent), "7", str(STRINGS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    strings, raised = json.loads(done.stdout)
    differ = [
        (text, torch_raises, reading.refused)
        for text, torch_raises in zip(strings, raised, strict=True)
        if bool((reading := read(text, release, cuda=False)).refused) != torch_raises
    ]
    assert not differ, f"{len(differ)} of {len(strings)} differ: {differ[:10]}"
    assert 0.2 < sum(raised) / len(raised) < 0.8, "the strings are neither all legal nor all broken"
    assert len(set(strings)) > STRINGS // 2
