"""The practice GPU against the real allocator: the same requests, the same blocks, the same words."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PATHS = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
REPLAY = Path(__file__).with_name("practice_replay.py")
MIB = 1 << 20

pytestmark = pytest.mark.gpu


def child(*words):
    env = {k: v for k, v in os.environ.items() if k not in ("CUDA_MAGIC_PRACTICE", "PYTORCH_CUDA_ALLOC_CONF")}
    env["PYTHONPATH"] = PATHS
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=env, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def told(name, figures):
    try:
        from record import record
    except ImportError:
        print(name, figures)
    else:
        record(name, figures)


@pytest.mark.parametrize("cap", [200 * MIB, 1024 * MIB, 6 * 1024 * MIB])
@pytest.mark.parametrize("kind", ["small", "large", "edges", "mixed"])
def test_the_model_is_the_allocator(kind, cap):
    """600 random requests and frees: every counter and every block of the card and of the model are the same."""
    done = [json.loads(child(str(REPLAY), str(seed), kind, str(cap), "600", "no", "card")) for seed in (1, 2)]
    told(f"practice_replay_{kind}_{cap // MIB}", {k: sum(d[k] for d in done) for k in done[0]})


@pytest.mark.parametrize("expandable", ["all", "later"])
def test_the_model_is_the_allocator_with_expandable_segments(expandable):
    """The same with expandable segments from the start, and switched on half way."""
    for kind in ("large", "mixed"):
        done = json.loads(child(str(REPLAY), "3", kind, str(1024 * MIB), "400", expandable, "card"))
        told(f"practice_replay_expandable_{expandable}_{kind}", done)


def test_the_model_alone():
    """Where no two free blocks are of one size, addresses decide nothing, and the model needs none of the card's."""
    done = json.loads(child(str(REPLAY), "4", "large", str(2048 * MIB), "300", "no", "own"))
    told("practice_replay_own_addresses", done)


def shape(text):
    """A message with its numbers taken out, and without other processes."""
    text = re.sub(r"Process \d+ has [\d.]+ \w+ memory in use\. ", "", text)
    return re.sub(r"[\d.]+ (bytes|KiB|MiB|GiB)", "N", text)


WORDS = """
import json, torch
from cuda_magic.testing import gpu
made = {}
for name, g in (("card", gpu()), ("model", gpu(force=True))):
    g.limit("3 GiB")
    kept = g.full("2 GiB", 7)
    total = g.sum(kept)
    try:
        g.empty("2 GiB")
    except RuntimeError as error:
        made[name] = [type(error).__name__, str(error), total, isinstance(error, RuntimeError)]
print(json.dumps(made))
"""


def test_the_words_of_the_error():
    """Class and text of an out-of-memory error are torch's, but for the numbers."""
    made = json.loads(child("-c", WORDS))
    card, model = made["card"], made["model"]
    if "Including non-PyTorch memory" not in card[1]:  # NVML tells no processes here
        model[1] = re.sub(r"Including non-PyTorch memory, this process has [\d.]+ \w+ memory in use\. ", "", model[1])
    assert shape(card[1]) == shape(model[1])
    assert [card[0], *card[2:]] == [model[0], *model[2:]] == ["OutOfMemoryError", (2 << 30) * 7, True]


PLAIN = """
import json, torch
from cuda_magic.testing.errors import error
torch.zeros(1, device="cuda")
torch.cuda.caching_allocator_enable(False)
made = {}
try:
    torch.empty(2**45, dtype=torch.uint8, device="cuda")
except RuntimeError as e:
    made["card"] = [type(e).__name__, str(e), e.error_code]
e = error("runtime")
made["model"] = [type(e).__name__, str(e), e.error_code]
print(json.dumps(made))
"""


def test_the_words_of_plain_cuda_malloc():
    """Without the caching allocator: torch's AcceleratorError, its code and its text."""
    made = json.loads(child("-c", PLAIN))
    assert made["card"] == made["model"]


OTHER = """
import json
from cuda_magic.testing import gpu
g = gpu()
kept = g.full("1 MiB", 1)
free = lambda: g.torch.cuda.mem_get_info()[0]
before = free()
other = g.other_process("2 GiB")
held = before - free()
other.stop()
import time
for _ in range(50):
    if free() >= before - (1 << 26):
        break
    time.sleep(0.1)
print(json.dumps({"held": held, "left": before - free(), "practice": g.practice, "repr": repr(g)}))
"""


def test_another_process_on_the_card():
    """A child process holds the memory it was asked for until it is stopped."""
    made = json.loads(child("-c", OTHER))
    assert not made["practice"] and "PRACTICE" not in made["repr"]
    assert made["held"] >= 2 << 30 and made["left"] <= 1 << 26


TUTORIAL = """
import sys
from pathlib import Path
import nbformat
from cuda_magic.testing.demo import execute
path = Path(sys.argv[1])
saved = nbformat.read(path, as_version=4)
made = execute(nbformat.read(path, as_version=4), path.parent, timeout=100)
assert not any("PRACTICE" in str(cell.get("outputs")) for cell in made.cells), "the card was not used"
compared = 0
for old, new in zip(saved.cells, made.cells):
    if "nbval-check-output" in old.metadata.get("tags", []):
        a, b = [[o.get("text") or o.data["text/plain"] for o in cell.outputs] for cell in (old, new)]
        assert a == b, (old.source, a, b)
        compared += 1
    if old.cell_type == "code" and any(o.output_type == "error" for o in old.outputs):
        # the guard's report stands below the error
        names = [[o.ename for o in cell.outputs if o.output_type == "error"] for cell in (old, new)]
        assert names[0] == names[1], (old.source, names)
print(compared)
"""


@pytest.mark.parametrize("name", ["01_first_steps", "03_out_of_memory"])
def test_the_tutorials_on_a_card(name):
    """Each tutorial runs on the card; cells whose output is the same everywhere show what they show on practice."""
    pytest.importorskip("nbclient")
    compared = int(child("-c", TUTORIAL, str(ROOT / "notebooks" / f"{name}.ipynb")))
    assert compared >= 3
    told(f"tutorial_{name}", {"cells compared": compared})
