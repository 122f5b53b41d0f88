"""%cuda_env on a card: each verdict against what really happens, in fresh processes, and torch's own parser."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from record import record

from cuda_magic.environment.allocator_grammar import read
from cuda_magic.environment.release import installed

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).resolve().parent.parent.parent
PATHS = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
MOMENTS = {
    "before import torch": "SET\nimport torch",
    "after import torch": "import torch\nSET",
    "after is_available()": "import torch\ntorch.cuda.is_available()\nSET",
    "after the first tensor on a GPU": "import torch\nkept = torch.zeros(1, device='cuda')\nSET",
}

# variable and value -> code that says whether the value is in effect
OBSERVED = {
    "CUDA_VISIBLE_DEVICES=-1": """
try:
    torch.zeros(1, device="cuda")
    seen = False
except RuntimeError:
    seen = True
""",
    "CUDA_LAUNCH_BLOCKING=1": """
import time
torch.cuda._sleep(1000)
torch.cuda.synchronize()
begun = time.perf_counter()
torch.cuda._sleep(400_000_000)
launched = time.perf_counter()
torch.cuda.synchronize()
seen = launched - begun > 0.5 * (time.perf_counter() - begun)
""",
    "CUDA_MODULE_LOADING=EAGER": """
import ctypes
torch.zeros(1, device="cuda")
mode = ctypes.c_int()
assert ctypes.CDLL("libcuda.so.1").cuModuleGetLoadingMode(ctypes.byref(mode)) == 0
seen = mode.value == 1
""",
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True": """
torch.zeros(1, device="cuda")
seen = torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"]
""",
    "PYTORCH_ALLOC_CONF=expandable_segments:True": """
torch.zeros(1, device="cuda")
seen = torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"]
""",
    "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync": """
try:
    torch.zeros(1, device="cuda")
except RuntimeError:
    pass
seen = torch.cuda.get_allocator_backend() == "cudaMallocAsync"
""",
    "PYTORCH_NO_CUDA_MEMORY_CACHING=1": """
before = torch.cuda.memory_reserved()
more = torch.zeros(64 << 20, device="cuda")
seen = torch.cuda.memory_reserved() == before
""",
    "PYTORCH_NVML_BASED_CUDA_CHECK=1": "seen = torch.cuda._nvml_based_avail()",
    "CUBLAS_WORKSPACE_CONFIG=:16:8": """
x = torch.ones(256, 256, device="cuda")
before = torch.cuda.memory_allocated()
y = x @ x
seen = torch.cuda.memory_allocated() - before < 4 << 20
""",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1": "seen = torch.backends.cuda.matmul.allow_tf32",
    "TORCH_LINALG_PREFER_CUSOLVER=1": "seen = 'usolver' in str(torch.backends.cuda.preferred_linalg_library())",
    "TORCH_BLAS_PREFER_CUBLASLT=1": "seen = 'cublaslt' in str(torch.backends.cuda.preferred_blas_library()).lower()",
    "TORCH_SHOW_CPP_STACKTRACES=1": """
try:
    torch.zeros(2, 3) @ torch.zeros(2, 3)
except RuntimeError as error:
    seen = "frame #" in str(error) or "C++ CapturedTraceback" in str(error)
""",
    "TORCHINDUCTOR_CACHE_DIR=/tmp/cuda-magic-inductor": """
from torch._inductor.runtime.cache_dir_utils import cache_dir
seen = cache_dir() == "/tmp/cuda-magic-inductor"
""",
    "TORCH_CUDA_ARCH_LIST=8.6": """
from torch.utils.cpp_extension import _get_cuda_arch_flags
seen = any("86" in flag for flag in _get_cuda_arch_flags())
""",
}
SET = """
from cuda_magic.environment import command
from cuda_magic.errors import Refused
try:
    state = command.set_all([ASSIGNMENT]).variables[0].state
except Refused:
    import os
    name, _, value = ASSIGNMENT.partition("=")
    os.environ[name] = value
    state = "refused"
"""
IN_EFFECT = ("in effect", "when CUDA starts", "from the next import of torch", "at first use")
VARIABLES = sorted({assignment.partition("=")[0] for assignment in OBSERVED})


def _clean() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return {**kept, "PYTHONPATH": PATHS}


def _one(assignment: str, moment: str) -> dict[str, object]:
    code = f"ASSIGNMENT = {assignment!r}\n" + MOMENTS[moment].replace("SET", SET) + "\n" + OBSERVED[assignment]
    code += "\nimport json\nprint(json.dumps([state, bool(seen)]))\nimport os, sys\nsys.stdout.flush()\nos._exit(0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=_clean(), timeout=150)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"assignment": assignment, "moment": moment, "error": done.stderr[-400:]}
    state, seen = json.loads(lines[-1])
    return {"assignment": assignment, "moment": moment, "state": state, "seen": seen}


@pytest.mark.timeout(300)
def test_every_verdict_agrees_with_the_card():
    """Each observable variable, set at each of the four moments in a fresh process, does what its verdict says."""
    if installed().release < (2, 10):
        pytest.skip("the observations are written for torch 2.10 and newer")
    runs = [(assignment, moment) for assignment in OBSERVED for moment in MOMENTS]
    with ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(lambda run: _one(*run), runs))
    record("environment_matrix", {f"{r['assignment']} @ {r['moment']}": r.get("seen", r.get("error")) for r in rows})
    wrong = [r for r in rows if "error" in r or (r["state"] in IN_EFFECT) != r["seen"]]
    assert not wrong, "\n".join(map(str, wrong))


PARSER = """
import json, os, random, sys
sys.path[:0] = [sys.argv[1]]
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
import torch
from allocator_strings import configuration
torch.zeros(1, device="cuda")
give = torch._C._accelerator_setAllocatorSettings
random_ = random.Random(int(sys.argv[2]))
out = []
for _ in range(int(sys.argv[3])):
    text = configuration(random_)
    give("large_segment_size_mb:20")
    try:
        give(text)
        out.append([text, False])
    except Exception:
        out.append([text, True])
json.dump(out, sys.stdout)
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.timeout(300)
def test_refused_is_what_the_cuda_parser_raises_on():
    """For 100,000 strings in ten seeded slices, what we call refused is what torch raises on: keys and backend too."""
    release = installed().release
    if release < (2, 11):
        pytest.skip("this torch has no runtime parser for all options")
    folder = str(ROOT / "tests" / "environment")

    def slice_(seed: int) -> list[list]:
        command = [sys.executable, "-c", PARSER, folder, str(1000 + seed), "10000"]
        done = subprocess.run(command, capture_output=True, text=True, env=_clean(), check=True, timeout=200)
        return json.loads(done.stdout)

    with ThreadPoolExecutor(5) as pool:
        pairs = [pair for part in pool.map(slice_, range(10)) for pair in part]
    differ = [
        (text, raised, reading.refused)
        for text, raised in pairs
        if bool((reading := read(text, release, loaded="native")).refused) != raised
    ]
    refused = sum(raised for _, raised in pairs)
    record("allocator_strings", {"strings": len(pairs), "refused_by_torch": refused, "disagreements": len(differ)})
    assert len(pairs) == 100_000
    assert not differ, f"{len(differ)} differ: {differ[:10]}"


def test_reading_the_state_starts_nothing():
    """%cuda_env before CUDA starts leaves cuInit uncalled, so that a forked child can still start CUDA."""
    code = """
import ctypes, os
cuda = ctypes.CDLL("libcuda.so.1")
count = ctypes.c_int()
from cuda_magic.environment import command
command.listing(); command.set_all(["CUDA_LAUNCH_BLOCKING=0"]); command.explain("CUDA_VISIBLE_DEVICES"); command.undo()
assert cuda.cuDeviceGetCount(ctypes.byref(count)) == 3
import torch
assert command.listing().moment == "torch is already imported; CUDA is not started."
assert cuda.cuDeviceGetCount(ctypes.byref(count)) == 3
pid = os.fork()
if not pid:
    try:
        torch.zeros(1, device="cuda")
        os._exit(0)
    finally:
        os._exit(9)
assert os.waitpid(pid, 0)[1] == 0
torch.cuda.is_available()
assert "cuInit" in command.listing().moment, command.listing().moment
torch.zeros(1, device="cuda")
assert command.listing().moment.endswith("uses CUDA in this process.")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=_clean(), timeout=120)
    assert not done.returncode, done.stderr[-800:]


def test_a_context_of_another_library_is_seen():
    """A primary context that something other than torch holds is noticed, and torch's variables are still in time."""
    code = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
from cuda_magic.environment.state import progress, Moment
assert progress().moment == Moment.BEFORE_IMPORT
cuda.cuInit(0)
assert progress().moment == Moment.STARTED
context = ctypes.c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert progress().moment == Moment.CONTEXT and not progress().imported
from cuda_magic.environment import command
assert command.set_all(["PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"]).variables[0].state == "when CUDA starts"
assert command.set_all(["CUDA_LAUNCH_BLOCKING=1"]).variables[0].state == "after a kernel restart"
import torch
torch.zeros(1, device="cuda")
assert torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=_clean(), timeout=120)
    assert not done.returncode, done.stderr[-800:]


def test_live_settings_are_read_back():
    """A setting that the running allocator does not use is named, and one that it uses is in effect."""
    code = """
import os
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
from cuda_magic.environment import command, change
command.set_all(["PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"])
import torch
torch.zeros(1, device="cuda")
row = command.listing().variables[0]
assert row.state == "in effect" and "inactive" not in row.note, row
torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
row = command.listing().variables[0]
assert "requested but inactive: expandable_segments" in row.note, row
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=_clean(), timeout=120)
    assert not done.returncode, done.stderr[-800:]
