"""%gpu_mem's readings on a real card. Each scenario runs in a child process, so that CUDA's state is its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from record import record

ROOT = Path(__file__).resolve().parents[2]
PATHS = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
GIB = 1 << 30


MINE = """
def mine(table):
    return next(split.device for split in table.splits if split.cuda == 0)
"""


def child(code: str, **environment: str) -> dict:
    """What `code` prints as its last line, as JSON. `mine(table)` gives it the place of CUDA's first card."""
    env = {**os.environ, "PYTHONPATH": PATHS, **environment}
    done = subprocess.run([sys.executable, "-c", MINE + code], capture_output=True, text=True, env=env, timeout=170)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.gpu
def test_a_fast_reading_costs_less_than_a_slow_one():
    """Memory, utilisation and processes of all devices in one pass; the library is not asked for anything slow."""
    found = child("""
import json, statistics, time
from cuda_magic.devices.nvml import source
first = time.perf_counter(); source().read(); first = time.perf_counter() - first
def median(slow, n=400):
    # the best of five medians: other guests of the host must not decide
    found = []
    for _ in range(5):
        times = []
        for _ in range(n):
            t = time.perf_counter(); r = source().read(slow=slow); times.append(time.perf_counter() - t)
        found.append(statistics.median(times) * 1e6 / len(r.devices))
    return min(found)
print(json.dumps({"first_ms": first * 1e3, "fast_us": median(False), "slow_us": median(True),
                  "devices": len(source().read().devices), "name": source().read().devices[0].name}))
""")
    record("gpu_mem reading", found)
    assert found["fast_us"] < found["slow_us"]


@pytest.mark.gpu
def test_the_helper_reads_what_this_process_reads():
    """Names, sizes and UUIDs are equal, nothing of NVML is loaded here, and a further reading costs little more."""
    found = child("""
import json, statistics, time
from cuda_magic.machine import machine
def median(source, n=300):
    times = []
    for _ in range(n):
        t = time.perf_counter(); source.read(slow=False); times.append(time.perf_counter() - t)
    return statistics.median(times) * 1e6
first = time.perf_counter(); helper = machine().devices().read(); first = time.perf_counter() - first
loaded = "libnvidia-ml" in open("/proc/self/maps").read()
apart = median(machine().devices())
from cuda_magic.devices.nvml import source
here = source().read()
names = [[(d.name, d.uuid, d.memory.total) for d in reading.devices] for reading in (helper, here)]
print(json.dumps({"first_ms": first * 1e3, "helper_us": apart, "here_us": median(source()),
                  "same": names[0] == names[1], "loaded": loaded}))
""")
    record("gpu_mem helper", found)
    assert found["same"] and not found["loaded"] and found["helper_us"] - found["here_us"] < 1000


@pytest.mark.gpu
def test_numbers_agree_with_nvidia_smi():
    """Total, reserved and used are nvidia-smi's, to the MiB that it prints; name and UUID are the same."""
    found = child("""
import json, subprocess, torch
x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda"); torch.cuda.synchronize()
from cuda_magic.devices.nvml import source
d = source().read().devices[0]
fields = "name,uuid,memory.total,memory.reserved,memory.used,power.limit"
smi = subprocess.run(["nvidia-smi", "-i", "0", "--query-gpu=" + fields, "--format=csv,noheader,nounits"],
                     capture_output=True, text=True).stdout.strip().split(", ")
m = d.memory
print(json.dumps({"smi": smi, "ours": [d.name, d.uuid, m.total, m.reserved, m.used, d.power_limit]}))
""")
    name, uuid, total, reserved, used, limit = found["smi"]
    ours = found["ours"]
    assert ours[:2] == [name, uuid] and abs(ours[5] - float(limit)) < 1
    for mine, theirs in zip(ours[2:5], (total, reserved, used), strict=True):
        assert abs(mine / (1 << 20) - float(theirs)) <= 2


@pytest.mark.gpu
def test_the_split_adds_up():
    """Live is torch's, context is what the driver counts above torch's reserve, and the parts make up the whole."""
    found = child("""
import json, torch
keep = [torch.empty(64 << 20, dtype=torch.uint8, device="cuda") for _ in range(8)]
big = torch.empty(1 << 30, dtype=torch.uint8, device="cuda"); del big
from cuda_magic.devices.command import once
t = once(); s = t.splits[mine(t)]
print(json.dumps({"live": s.live, "torch": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved(),
   "held": s.live + s.cached + s.fragmented, "context": s.context, "used": s.used, "driver": s.reserved,
   "unattributed": s.unattributed, "others": s.others, "cuda": s.cuda,
   "sum": sum(p.amount for p in s.parts()), "text": repr(t)}))
""")
    print(found.pop("text"))
    record("gpu_mem split", found)
    assert found["live"] == found["torch"] and found["held"] == found["reserved"] and found["cuda"] == 0
    if found["context"] is not None:  # the driver lists this process under its own pid
        assert found["context"] > 0 and found["sum"] == found["used"] + found["driver"]
    else:
        assert found["unattributed"] > 0


@pytest.mark.gpu
def test_a_child_forked_after_ticks_can_start_cuda():
    """Twenty readings and a --who start nothing: the forked child computes on the card."""
    found = child("""
import json, os, torch
from cuda_magic.devices.command import once
from cuda_magic.memory.who import who
for _ in range(20): once()
who({}); repr(once())
import ctypes
count = ctypes.c_int()
code = ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(count))
r, w = os.pipe()
if os.fork() == 0:
    try: answer = float(torch.ones(1000, device="cuda").sum())
    except BaseException as e: answer = repr(e)
    os.write(w, json.dumps(answer).encode()); os._exit(0)
os.wait()
print(json.dumps({"sum": json.loads(os.read(r, 5000)), "cuda": torch.cuda.is_initialized(), "driver": code}))
""")
    assert found == {"sum": 1000.0, "cuda": False, "driver": 3}, "3: nobody has called cuInit"


@pytest.mark.gpu
def test_who_names_real_variables():
    """A model's submodules, an optimizer's state, a list and a view: by name, each storage once, adding up."""
    found = child("""
import json, torch
from torch import nn
model = nn.Sequential(); model.add_module("encoder", nn.Linear(4096, 4096))
model.add_module("head", nn.Linear(4096, 10))
model.cuda(); opt = torch.optim.Adam(model.parameters())
model(torch.randn(8, 4096, device="cuda")).sum().backward(); opt.step()
a = torch.empty(1 << 28, device="cuda", dtype=torch.uint8); view = a[:10]; kept = [torch.empty(1 << 27, device="cuda")]
from cuda_magic.memory.who import who
w = who(globals()); print(repr(w))
print(json.dumps({"held": [[h.name, h.nbytes, h.kind] for h in w.held], "torch": torch.cuda.memory_allocated()}))
""")
    names = {name: size for name, size, _ in found["held"]}
    assert names["a"] == 1 << 28 and "view" not in names and names["kept"] == 4 << 27
    # weights and their gradients
    assert names["model.encoder"] == 2 * 4 * (4096 * 4096 + 4096)
    assert names["opt"] >= names["model.encoder"]
    assert sum(names.values()) <= found["torch"]


@pytest.mark.gpu
def test_map_promises_what_the_card_gives(tmp_path):
    """The largest tensor that the map says fits does fit, 64 MiB more than that does not; the snapshot is torch's."""
    found = child(f"""
import json, pickle, torch
from cuda_magic.memory.map import heap_map
torch.cuda.set_per_process_memory_fraction(4 * 2**30 / torch.cuda.get_device_properties(0).total_memory)
keep = [torch.empty(64 << 20, dtype=torch.uint8, device="cuda") for _ in range(48)]
del keep[::2]
m = heap_map(); d = m.devices[0]; print(repr(m))
def fits(n):
    try: torch.empty(n, dtype=torch.uint8, device="cuda"); return True
    except torch.OutOfMemoryError: return False
after = d.compacted
from cuda_magic.machine import machine
size = machine().allocator().dump(__import__("pathlib").Path({str(tmp_path / "s.pickle")!r}))
segments = len(pickle.load(open({str(tmp_path / "s.pickle")!r}, "rb"))["segments"])
print(json.dumps({{"fits": d.fits, "now": fits(d.fits - (2 << 20)), "more": fits(d.fits + (64 << 20)),
                  "compacted": after, "reason": d.reason, "segments": segments}}))
""")
    record("gpu_mem map", found)
    assert found["now"] and not found["more"] and found["segments"] > 0
    assert found["compacted"] is None or found["compacted"] >= found["fits"]


LEDGER = """
import json
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance(); shell.run_line_magic("load_ext", "cuda_magic")
import torch
torch.empty(1, device="cuda")
from cuda_magic.memory.ledger import Recorder
seen = []
plain = Recorder.done
Recorder.done = lambda self: seen.append(plain(self)) or seen[-1]
shell.run_cell("%%gpu_mem --nvtx\\nimport torch\\na = torch.empty(1 << 30, dtype=torch.uint8, device='cuda')\\n"
               "b = torch.empty(1 << 29, dtype=torch.uint8, device='cuda')\\ndel b")
e = seen[0].entries[0]
print(json.dumps({"stays": e.stays, "up": e.peak - e.before, "mallocs": e.mallocs}))
"""


@pytest.mark.gpu
def test_the_ledger_of_a_real_cell():
    """A cell that takes 1.5 GiB and keeps 1: peak and rest are exact."""
    found = child(LEDGER)
    assert (found["stays"], found["up"]) == (GIB, GIB + GIB // 2) and found["mallocs"] >= 2


@pytest.mark.gpu
def test_free_gives_the_cache_back():
    """Cached memory goes back to the driver by the bytes that it says; a variable stays."""
    found = child("""
import gc, json, torch
gc.disable()  # the cycle must still be there when free looks
x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda"); y = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
l = [y]; l.append(l); del y, l
before = torch.cuda.mem_get_info()[0]
from cuda_magic.memory.free import free
f = free(); print(repr(f))
print(json.dumps({"said": f.returned, "got": torch.cuda.mem_get_info()[0] - before, "x": x.numel(),
                  "cycles": [s.unused for s in f.steps if s.cause == "reference cycles"]}))
""")
    assert found["said"] >= GIB and found["got"] == found["said"] and found["x"] == GIB and found["cycles"] == [GIB]


TRAIN = """
import json, sys, time, torch
from pathlib import Path
from torch import nn
from cuda_magic.devices import recording
from cuda_magic.devices.command import once
path = Path(sys.argv[1] if len(sys.argv) > 1 else PATH)
recording.start(path, once, 0.25)
torch.manual_seed(0)
for size in (1024, 4096, 8192):
    model = nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(size, size), nn.ReLU())]).cuda()
    opt = torch.optim.Adam(model.parameters())
    until = time.monotonic() + 2.5
    while time.monotonic() < until:
        loss = model(torch.randn(8192, size, device="cuda")).square().mean()
        opt.zero_grad(); loss.backward(); opt.step(); torch.cuda.synchronize()
    del model, opt, loss; torch.cuda.empty_cache()
said = recording.stop()
from cuda_magic.devices.replay import replay
r = replay(path); print(repr(r))
card = mine(r.tables[-1])
used = [t.reading.devices[card].memory.used for t in r.tables]
print(json.dumps({"said": said, "readings": len(used), "low": min(used), "high": max(used),
                  "util": max(t.reading.devices[card].utilization or 0 for t in r.tables)}))
"""


@pytest.mark.gpu
def test_a_training_run_is_recorded(tmp_path):
    """Three models trained one after the other: the recording rises and falls, and can be read again."""
    folder = Path(os.environ.get("RECORD_DIR", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    found = child(TRAIN.replace("PATH", repr(str(folder / "training.csv"))))
    record("gpu_mem recording", found)
    assert found["readings"] >= 20 and found["high"] - found["low"] > GIB and found["util"] > 0


@pytest.mark.two_gpus
@pytest.mark.parametrize("order", ["PCI_BUS_ID", "FASTEST_FIRST"])
@pytest.mark.parametrize("mask", ["1,0", "1", None])
def test_both_rows_are_right_under_a_mask(order, mask):
    """cuda:0 holds 1 GiB: it stands in the row of the card whose UUID torch names, whatever mask and order."""
    environment = {"CUDA_DEVICE_ORDER": order}
    if mask is not None:
        environment["CUDA_VISIBLE_DEVICES"] = mask
    found = child(
        """
import json, torch
x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda:0")
if torch.cuda.device_count() > 1: y = torch.empty(1 << 29, dtype=torch.uint8, device="cuda:1")
from cuda_magic.devices.command import once
from cuda_magic.memory.who import who
t = once()
uuids = ["GPU-" + str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())]
w = who(globals())
print(json.dumps({"uuids": uuids, "rows": [[r["uuid"], r["cuda"], r["allocated"], r["used"]] for r in t.rows()],
                  "names": {h.name: h.cuda for h in w.held}, "text": repr(w)}))
""",
        **environment,
    )
    rows = {uuid: (cuda, live, used) for uuid, cuda, live, used in found["rows"]}
    for cuda, uuid in enumerate(found["uuids"]):
        assert rows[uuid][:2] == (cuda, GIB >> cuda), found
        assert rows[uuid][2] > GIB >> cuda
    assert found["names"]["x"] == 0
    if mask == "1":
        hidden = [row for uuid, row in rows.items() if uuid not in found["uuids"]]
        assert all(cuda is None and live is None for cuda, live, _ in hidden)


@pytest.mark.gpu
def test_cupys_pool_is_told_and_given_back():
    """CuPy's pool holds what it took from the driver; what no array uses goes back, and torch was never imported."""
    pytest.importorskip("cupy")
    found = child("""
import json, sys
from cuda_magic.memory.pools import pools, release
before = [p.owner for p in pools()]
import cupy
none = [p.owner for p in pools()]  # imported, and CUDA not started: nothing is asked
x = cupy.zeros(1 << 28, "u1"); y = cupy.zeros(1 << 29, "u1"); del y
from cuda_magic.devices.command import once
t = once(); s = t.splits[mine(t)]
p = next(p for p in pools() if p.owner == "CuPy")
held, free = p.held, p.free
done = release()
after = next(p for p in pools() if p.owner == "CuPy")
print(json.dumps({"before": before, "none": none, "held": held, "free": free, "split": s.pools, "context": s.context,
                  "done": done, "after": [after.held, after.free], "torch": "torch" in sys.modules,
                  "sum": int(x.sum())}))
""")
    record("gpu_mem CuPy's pool", found)
    assert found["before"] == found["none"] == [] and not found["torch"]
    assert found["held"] == 3 << 28 and found["free"] == 1 << 29
    assert found["split"] >= 3 << 28 and found["done"] == ["CuPy's pool"] and found["after"] == [1 << 28, 0]


@pytest.mark.gpu
def test_the_drivers_own_pool_is_told_and_given_back():
    """CuPy's asynchronous pool lives in the driver's default pool: reserved and used are its, and trimming frees."""
    pytest.importorskip("cupy")
    found = child("""
import json
import cupy
cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
cupy.cuda.runtime.memPoolSetAttribute(cupy.cuda.runtime.deviceGetDefaultMemPool(0),
                                      cupy.cuda.runtime.cudaMemPoolAttrReleaseThreshold, 1 << 40)
x = cupy.zeros(1 << 28, "u1"); y = cupy.zeros(1 << 29, "u1"); del y
cupy.cuda.Device(0).synchronize()
from cuda_magic.memory.pools import pools, release
row = lambda: next(([p.held, p.free] for p in pools() if p.owner == "cudaMallocAsync"), None)
before = row(); done = release(); print(json.dumps({"before": before, "done": done, "after": row()}))
""")
    record("gpu_mem cudaMallocAsync's pool", found)
    held, free = found["before"]
    assert held >= 3 << 28 and free >= 1 << 29 and held - free >= 1 << 28
    assert found["done"] == ["cudaMallocAsync's pool"] and found["after"][1] < free


@pytest.mark.gpu
def test_jaxs_pool_is_told():
    """JAX without preallocation: its pool's bytes, with the array in it; before it starts a client nothing is asked."""
    pytest.importorskip("jax")
    found = child(
        """
import json
import jax
from cuda_magic.memory.pools import pools
before = [p.owner for p in pools()]
x = jax.numpy.zeros(1 << 28, "uint8").block_until_ready()
y = jax.numpy.zeros(1 << 29, "uint8").block_until_ready(); y.delete()
print(json.dumps({"before": before, "rows": [[p.owner, p.device, p.held, p.free, p.kept] for p in pools()],
                  "stats": jax.local_devices()[0].memory_stats(), "platform": jax.local_devices()[0].platform}))
""",
        XLA_PYTHON_CLIENT_PREALLOCATE="false",
    )
    record("gpu_mem JAX's pool", found)
    assert found["before"] == []
    (row,) = [r for r in found["rows"] if r[0] == "JAX"]
    assert row[1] == 0 and row[2] >= 1 << 28 and row[2] - row[3] >= 1 << 28 and row[4]
