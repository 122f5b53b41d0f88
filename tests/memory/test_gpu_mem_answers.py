"""%gpu_mem's answers on the practice GPU and on the fake NVML: the split, who, the map, free, the ledger."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest

import cuda_magic.testing
from cuda_magic.devices import processes
from cuda_magic.devices.command import mem, once
from cuda_magic.devices.model import Device, Memory, Process, Reading
from cuda_magic.errors import UserError
from cuda_magic.machine import use
from cuda_magic.memory.free import free
from cuda_magic.memory.ledger import Recorder
from cuda_magic.memory.map import heap_map
from cuda_magic.memory.split import cuda_to_reading, split
from cuda_magic.memory.variables import variables
from cuda_magic.memory.who import who

GIB = 1 << 30
MIB = 1 << 20


@pytest.fixture
def gpu():
    yield cuda_magic.testing.gpu(["24 GiB", "8 GiB"], force=True)
    use(None)


def test_the_parts_add_up(gpu):
    """Live, cached, fragmented, context, others and driver make up what is used and reserved, on each card."""
    large = gpu.empty("4 GiB")
    del large
    pieces = [gpu.empty("256 MiB") for _ in range(8)]
    del pieces[::2]
    gpu.empty("1 GiB", 1)
    gpu.other_process("3 GiB")
    for part in once().splits:
        assert sum(one.amount for one in part.parts()) == part.used + part.reserved
    first = once().splits[0]
    assert (first.live, first.fragmented, first.others, first.cuda) == (GIB, 3 * GIB, 3 * GIB, 0)


def test_case_58_unknown_bytes_of_a_process_stay_unknown():
    """A process without a number: others is unknown, nothing raises, the bar still adds up."""
    device = Device(0, "card", memory=Memory(10 * GIB, 4 * GIB, 6 * GIB, 0), processes=(Process(1, None),))
    (part,) = split(Reading(0.0, (device,)), None)
    assert part.others is None and part.untold == 4 * GIB
    assert part.unattributed is None, "a process is listed: it is not said that nobody holds it"
    (blind,) = split(Reading(0.0, (Device(0, "card", memory=Memory(10 * GIB, 4 * GIB, 6 * GIB, 0)),)), None)
    assert (blind.untold, blind.unattributed) == (4 * GIB, None), "no list is no list of nobody"


def test_case_60_a_number_from_another_namespace(monkeypatch):
    """In a container: a pid that is nobody here, or somebody without the driver's files, is outside."""
    monkeypatch.setattr(processes, "own_namespace", lambda: False)
    assert processes.describe(2**22 - 3).outside
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert processes.describe(other.pid).outside, "the same number by chance"
    finally:
        other.communicate(b"\n")
    me = processes.describe(os.getpid())
    assert me.outside and not me.this, "this kernel is marked only where it is certain"
    assert processes.describe(os.getpid(), this_is_known=True).this


def test_in_a_container_no_byte_is_counted_twice(gpu, monkeypatch):
    """The driver tells the machine's pids: what this kernel holds is not another process's too."""
    monkeypatch.setattr(processes, "own_namespace", lambda: False)
    mine = gpu.empty("14 GiB")
    listed = (Process(2**22 - 3, 14 * GIB + GIB // 2), Process(2**22 - 4, 20 * GIB))
    card = Device(0, "card", memory=Memory(40 * GIB, 69 * GIB // 2, 11 * GIB // 2, 0), processes=listed)
    (part,) = split(Reading(0.0, (card,)), gpu.allocator)
    assert (part.live, part.context, part.others, part.outside) == (14 * GIB, GIB // 2, 20 * GIB, 1)
    assert sum(one.amount for one in part.parts()) == part.used
    del mine


def test_a_kernel_is_named_by_its_notebook(tmp_path):
    """The notebook's path and the kernel's id come from the process's environment and command line."""
    connection = tmp_path / "kernel-1234-abcd.json"
    environment = {**os.environ, "JPY_SESSION_NAME": "/home/me/my notebook.ipynb"}
    command = [sys.executable, "-c", "print(1, flush=True); input()", "-f", str(connection)]
    kernel = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    try:
        kernel.stdout.readline()
        person = processes._read(kernel.pid)
        assert (person.notebook, person.kernel) == ("/home/me/my notebook.ipynb", "1234-abcd")
        assert person.mine and person.idle is None and processes._read(kernel.pid).idle is not None
    finally:
        kernel.communicate(b"\n")


@pytest.mark.parametrize(
    ("order", "mask", "expected"),
    [
        ("PCI_BUS_ID", None, [0, 1]),
        ("PCI_BUS_ID", "1,0", [1, 0]),
        ("PCI_BUS_ID", "1", [1]),
        ("PCI_BUS_ID", "GPU-bb", [1]),
        ("PCI_BUS_ID", "0,9,1", [0]),
        ("PCI_BUS_ID", "0,0", []),
        ("PCI_BUS_ID", "", []),
        ("FASTEST_FIRST", "1,0", []),
        (None, None, []),
    ],
)
def test_cuda_index_under_a_mask(monkeypatch, order, mask, expected):
    """Two cards of different models: the mask is resolved by bus order only, else nothing is claimed."""
    for name, value in (("CUDA_DEVICE_ORDER", order), ("CUDA_VISIBLE_DEVICES", mask)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    reading = Reading(0.0, (Device(0, "A", "GPU-aa"), Device(1, "B", "GPU-bb")))
    assert cuda_to_reading(reading) == expected


def test_the_allocators_own_word_wins_over_the_mask(monkeypatch):
    """A started allocator names the UUID of each cuda index: that is the card, whatever the environment says now."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")

    class Told:
        def started(self):
            return True

        def uuids(self):
            return ["bb", "aa"]

    reading = Reading(0.0, (Device(0, "A", "GPU-aa"), Device(1, "B", "GPU-bb")))
    assert cuda_to_reading(reading, Told()) == [1, 0]


class Hostile:
    """Every hook that a careless look would run ends the test."""

    def __getattr__(self, name):
        raise SystemExit(name)

    def __eq__(self, other):
        raise SystemExit("eq")

    __hash__ = None

    @property
    def __class__(self):
        raise SystemExit("class")

    def __iter__(self):
        raise SystemExit("iter")

    def __repr__(self):
        raise SystemExit("repr")


def test_variables_by_path_each_storage_once(gpu):
    """Modules, containers, closures, slots, outputs and hostile objects: all found by name, no user code runs."""

    class Module:
        pass

    class Slots:
        __slots__ = ("kept",)

    model, encoder = Module(), Module()
    encoder._parameters = {"weight": gpu.empty("64 MiB")}
    model._modules = {"encoder": encoder}
    hostile = Hostile()
    object.__getattribute__(hostile, "__dict__")["x"] = gpu.empty("32 MiB")
    slots = Slots()
    slots.kept = gpu.empty("16 MiB", 1)
    table = gpu.empty("8 MiB")
    first = gpu.empty("128 MiB")
    shown = gpu.empty("4 MiB")
    names = {
        "model": model,
        "hostile": hostile,
        "slots": slots,
        "lookup": lambda: table,
        "first": first,
        "again": [first],
        "Out": {7: shown},
        "_": shown,
    }
    held = variables(gpu.allocator, names)
    assert [(h.name, h.nbytes, h.cuda, h.kind) for h in held] == [
        ("first", 128 * MIB, 0, "variable"),
        ("model.encoder", 64 * MIB, 0, "variable"),
        ("hostile", 32 * MIB, 0, "variable"),
        ("slots", 16 * MIB, 1, "variable"),
        ("lookup", 8 * MIB, 0, "variable"),
        ("Out[7]", 4 * MIB, 0, "output"),
    ]
    assert {h.name: h.largest for h in held}["lookup"] == "lookup (closure: table)"


def test_a_traceback_and_what_nobody_reaches(loaded, gpu):
    """The frame of an earlier error is named by its cell; a tensor only in a cycle is said to be unreached."""
    loaded.user_ns["gpu"] = gpu
    loaded.run_cell("def f():\n    kept = gpu.empty('2 GiB')\n    1 / 0\nf()", store_history=True)
    answer = who(loaded.user_ns, loaded)
    (held,) = answer.held
    assert held.kind == "traceback" and held.nbytes == 2 * GIB and held.name == "traceback of In[1]", held
    freed = free(loaded)
    assert freed.returned >= 2 * GIB
    assert {s.cause: s.unused for s in freed.steps}["earlier errors"] + {s.cause: s.unused for s in freed.steps}[
        "reference cycles"
    ] == 2 * GIB


def test_outputs_go_only_when_asked(loaded, gpu):
    """--free keeps Out; --free --outputs lets go of it; a variable stays in both."""
    loaded.user_ns["gpu"] = gpu
    loaded.run_cell("mine = gpu.empty('1 GiB')", store_history=True)
    loaded.run_cell("gpu.empty('2 GiB')", store_history=True)
    free(loaded)
    assert gpu.allocator.stats(0).allocated == 3 * GIB
    freed = free(loaded, outputs=True)
    gc.collect()
    assert gpu.allocator.stats(0).allocated == GIB and freed.returned == 2 * GIB


def test_the_map_keeps_its_word(gpu):
    """What the map says fits does fit, 2 MiB more does not, and what it says of compaction comes true."""
    gpu.limit("5 GiB")
    large = gpu.empty("4 GiB")
    del large
    pieces = [gpu.empty("256 MiB") for _ in range(16)]
    del pieces[::2]
    before = gpu.allocator.segments(0)
    (device,) = heap_map().devices
    assert gpu.allocator.segments(0) == before, "looking changes nothing"
    assert device.fits == GIB and device.compacted >= 2 * GIB - (32 << 20)
    with pytest.raises(RuntimeError):
        gpu.empty(device.fits + 2 * MIB)
    from cuda_magic.memory.compaction import compact

    assert compact(gpu.allocator, 0, device.compacted).done
    gpu.empty(device.compacted)
    assert "~" in repr(heap_map()) or "#" in repr(heap_map())
    drawn = heap_map()._repr_html_()
    assert drawn.count('role="img"') == len(heap_map().devices[0].segments)


def test_the_ledger_nests(gpu):
    """Peak above the start, what stays, and an inner ledger that does not hide the outer peak."""
    keep = gpu.empty("1 GiB")
    outer = Recorder()
    work = gpu.empty("4 GiB")
    del work
    inner = Recorder()
    stays = gpu.empty("2 GiB")
    (few,) = [e for e in inner.done().entries if e.cuda == 0]
    (all_of_it,) = [e for e in outer.done().entries if e.cuda == 0]
    assert (few.stays, few.peak) == (2 * GIB, 3 * GIB)
    assert (all_of_it.before, all_of_it.stays, all_of_it.peak) == (GIB, 2 * GIB, 5 * GIB)
    assert Recorder._open == [] and keep.nbytes + stays.nbytes == 3 * GIB


def test_the_cell_is_the_plain_cell(loaded, gpu, capsys):
    """%%gpu_mem: the value is shown and kept, an error is the cell's own, a syntax error leaves nothing open."""
    loaded.user_ns["gpu"] = gpu
    result = loaded.run_cell("%%gpu_mem\na = gpu.empty('2 GiB')\na.nbytes", store_history=True)
    assert result.result == 2 * GIB and loaded.user_ns["Out"][1] == 2 * GIB
    assert "+2.00 GiB" in capsys.readouterr().out
    assert isinstance(loaded.run_cell("%%gpu_mem\n1/0").error_in_exec, ZeroDivisionError)
    loaded.run_cell("%%gpu_mem\n1 +")
    assert Recorder._open == []


def test_without_torch_everything_is_one_calm_line(loaded, monkeypatch):
    """No torch, no driver: --who, --map, --free, --snapshot and %%gpu_mem say so and start nothing."""
    for name in [n for n in sys.modules if n == "torch" or n.startswith("torch.")]:
        monkeypatch.delitem(sys.modules, name)
    assert "torch is not imported" in repr(heap_map()) and "torch is not imported" in repr(free())
    assert "torch is not imported" in loaded.run_line_magic("gpu_mem", "--who").note
    assert "nothing to write" in str(loaded.run_cell("%gpu_mem --snapshot x.pickle").error_in_exec)
    assert loaded.run_cell("%%gpu_mem\n1 + 1").result == 2


def test_mistakes_are_one_sentence(loaded):
    """Two questions at once, a cell option on a line, a line option on a cell, a wrong ending, a missing file."""
    for line, part in {
        "--once --who": "ask one at a time",
        "--nvtx": "%%gpu_mem --nvtx",
        "--outputs": "goes with --free",
        "--log run.txt": ".csv, .jsonl or .parquet",
        "--replay none.csv": "there is no file none.csv",
        "--interval 0": "from 0.25 to 86400",
        "--alert 0": "from 1 to 100",
        "--wo": "Did you mean '--who'",
    }.items():
        error = loaded.run_cell(f"%gpu_mem {line}").error_in_exec
        assert isinstance(error, UserError) and part in str(error), (line, error)
    assert "no --who" in str(loaded.run_cell("%%gpu_mem --who\n1").error_in_exec)
    with pytest.raises(UserError, match="--who"):
        mem(["--wo"])


def test_names_from_outside_stay_text(monkeypatch):
    """A process called <img onerror> is escaped in HTML."""
    evil = processes.Person(5, "<img src=x onerror=alert(1)>", "u", None)
    from cuda_magic.memory.who import Holding, Who

    device = Device(0, "<b>", memory=Memory(1, 1, 0))
    answer = Who(Reading(0.0, (device,)), (), (Holding(0, 1, "compute", evil),), ())
    assert "<img" not in answer._repr_html_() and "&lt;img" in answer._repr_html_()


@pytest.mark.parametrize(
    "lines", ["%%gpu_mem\n%%cuda_guard", "%%cuda_guard\n%%gpu_mem", "%%gpu_mem\nimport asyncio\nawait asyncio.sleep(0)"]
)
def test_the_ledger_inside_and_outside_of_the_guard(loaded, gpu, capsys, lines):
    """Both nestings and a cell that awaits: the value comes out, and the ledger is shown once."""
    loaded.user_ns["gpu"] = gpu
    result = loaded.run_cell(f"{lines}\na = gpu.empty('2 GiB')\na.nbytes", store_history=True)
    result.raise_error()
    assert result.result == 2 * GIB
    assert capsys.readouterr().out.count("This cell") == 1


def test_case_64_looking_starts_nothing(loaded):
    """torch imported and CUDA untouched: every question leaves it so, and says that CUDA is not started."""
    torch = pytest.importorskip("torch")
    use(None)
    for line in ("--once", "--who", "--map", "--free", "--df"):
        loaded.run_cell(f"%gpu_mem {line}").raise_error()
    loaded.run_cell("%%gpu_mem\n1").raise_error()
    assert not torch.cuda.is_initialized()
    assert "has not started CUDA" in repr(heap_map())
