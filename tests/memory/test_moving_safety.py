"""The table of what forbids moving or parking: each row is seen with its reason."""

from __future__ import annotations

import gc
import os
import queue
import sys
import threading
import types
from pathlib import Path

import jupyter_client
import pytest

torch = pytest.importorskip("torch")

from cuda_magic.memory.torch import native_kernels, offload, safety, scan, threads  # noqa: E402
from cuda_magic.memory.torch.gc_objects import reach  # noqa: E402

KEEP: list[object] = []


def row(rows, name):
    return next(r for r in rows if r.id == name)


@pytest.fixture
def process(monkeypatch):
    """A torch whose CUDA half answers as on a card with nothing in the way."""
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(safety, "CONSUMERS", ("no such library",))
    monkeypatch.setattr(native_kernels, "extension", lambda torch: "")
    monkeypatch.setattr(threads, "using_cuda", lambda: "")
    yield monkeypatch
    KEEP.clear()


def a_backend(patch):
    patch.setattr(torch.cuda, "get_allocator_backend", lambda: "cudaMallocAsync")


def a_capture(patch):
    patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)


def a_graph(patch):
    class Kind:
        pass

    patch.setattr(torch.cuda, "CUDAGraph", Kind)
    KEEP.append(Kind())


def ranks(patch):
    patch.setattr(torch.distributed, "is_available", lambda: True)
    patch.setattr(torch.distributed, "is_initialized", lambda: True)
    patch.setattr(torch.distributed, "get_world_size", lambda: 4)


def foreign(patch, module, name, **attributes):
    """An object of another library's class, as the collector shows it."""
    kind = type(name, (), {"__module__": module})
    patch.setitem(sys.modules, module, types.SimpleNamespace(**{name: kind}))
    one = kind()
    one.__dict__.update(attributes, me=one)
    KEEP.append(one)
    return one


def a_raw_view(patch):
    foreign(patch, "cupy.cuda.memory", "UnownedMemory")


def a_thread(patch):
    patch.setattr(threads, "using_cuda", lambda: "Thread-7 (train)")


def a_consumer(patch):
    patch.setattr(safety, "CONSUMERS", ("types",))


def compiled(patch):
    patch.setitem(sys.modules, "torch._dynamo.utils", types.SimpleNamespace(counters={"stats": {"unique_graphs": 1}}))


def saves(patch):
    patch.setattr(offload, "saving", lambda: True)


def a_triton_kernel(patch):
    foreign(patch, "triton.runtime.jit", "JITFunction", fn=a_triton_kernel)


def an_extension(patch):
    patch.setattr(native_kernels, "extension", lambda torch: "flash_attn")


CAUSES = {
    "backend": (a_backend, "cudaMallocAsync"),
    "capturing": (a_capture, "being captured"),
    "graph": (a_graph, "captured CUDA graph remembers"),
    "ranks": (ranks, "4 ranks"),
    "views": (a_raw_view, "cupy holds the address"),
    "threads": (a_thread, "another thread (Thread-7 (train))"),
    "consumers": (a_consumer, "types is loaded"),
    "compiled": (compiled, "compile"),
    "saving": (saves, "what autograd saves"),
    "triton": (a_triton_kernel, "Triton kernel a_triton_kernel"),
    "native": (an_extension, "flash_attn may start kernels"),
}


def test_every_row_has_a_cause_here():
    """No row is left out of the tests below."""
    assert [r.id for r in safety.PROCESS] == list(CAUSES)


@pytest.mark.parametrize("name", CAUSES)
def test_a_row_forbids_with_its_reason(process, name):
    """Seen with its reason for what it forbids, silent for the rest."""
    cause, words = CAUSES[name]
    for doing in (safety.MOVE, safety.PARK, safety.SAVE):
        assert safety.refusals(torch, 0, doing=doing) == ""
    cause(process)
    one = row(safety.PROCESS, name)
    for doing in (safety.MOVE, safety.PARK, safety.SAVE):
        reason = safety.refusals(torch, 0, doing=doing)
        assert (words in reason) if doing in one.forbids else not reason


def test_a_foreign_view_that_names_its_tensor_holds_back_that_tensor_only(process):
    """cupy.asarray(t) keeps t's storage where it is, not all the others."""
    tensor, other = torch.ones(8), torch.ones(8)
    foreign(process, "cupy.cuda.memory", "UnownedMemory", owner=tensor)
    assert safety.refusals(torch, 0) == ""
    viewed = safety.viewed(torch, reach(torch)[1])
    assert viewed == {tensor.untyped_storage()._cdata}
    process.setattr(torch._C, "_has_Standard_Deleter", lambda key: True, raising=False)

    def reason(one):
        return safety.storage(safety.Found(torch, one.untyped_storage(), one, False, viewed))

    assert reason(tensor) == "cupy or numba look at its memory"
    assert reason(other) == ""


def test_a_dlpack_export_holds_its_storage_back(process):
    """A capsule raises the count of its tensor; asked only where a library that takes capsules is loaded."""
    process.setattr(torch._C, "_has_Standard_Deleter", lambda key: True, raising=False)
    tensor = torch.ones(8)

    def reason(consumers):
        return safety.storage(safety.Found(torch, tensor.untyped_storage(), tensor, consumers, frozenset()))

    assert reason(True) == ""
    capsule = torch.utils.dlpack.to_dlpack(tensor)
    assert "DLPack" in reason(True)
    assert reason(False) == ""
    del capsule
    assert reason(True) == ""


def test_memory_that_is_not_the_allocators_alone_never_moves(process):
    """IPC, DLPack import, caching off: another deleter; a storage of fixed size: not resizable."""
    tensor = torch.ones(8)
    found = safety.Found(torch, tensor.untyped_storage(), tensor, False, frozenset())
    process.setattr(torch._C, "_has_Standard_Deleter", lambda key: False, raising=False)
    assert "not the caching allocator's alone" in safety.storage(found)
    process.setattr(torch._C, "_has_Standard_Deleter", lambda key: True, raising=False)
    fixed = types.SimpleNamespace(_cdata=1, resizable=lambda: False)
    found = safety.Found(torch, fixed, tensor, False, frozenset())
    assert "cannot be resized" in safety.storage(found)
    process.delattr(torch._C, "_has_Standard_Deleter")
    assert "does not tell" in safety.storage(found)


def test_only_threads_that_may_use_cuda_count():
    """A worker that waits in the standard library is no reason; one with a function of the user's on its stack is."""
    assert threads.using_cuda() == ""
    idle: queue.Queue = queue.Queue()
    waiting = threading.Thread(target=idle.get, name="idle worker", daemon=True)
    waiting.start()
    assert threads.using_cuda() == ""
    idle.put(None)
    waiting.join()
    stop, started = threading.Event(), threading.Event()

    def train():
        started.set()
        stop.wait()

    # what a library makes at run time (a named tuple, a dataclass) is not a cell of the user's
    made: dict = {}
    exec(compile("def made(stop):\n    stop.wait()", "<string>", "exec"), made)
    library = threading.Thread(target=made["made"], args=(stop,), daemon=True)
    library.start()
    assert threads.using_cuda() == ""
    stop.set()
    library.join()
    stop.clear()
    worker = threading.Thread(target=train, name="my training", daemon=True)
    worker.start()
    started.wait()
    assert threads.using_cuda() == "my training"
    stop.set()
    worker.join()
    assert threads.using_cuda() == ""


def test_no_library_of_this_process_counts_as_native_by_mistake():
    """torch's own libraries and those without kernels are passed over."""
    assert native_kernels.extension(torch) == ""


def test_every_tensor_is_reached_and_nothing_of_the_users_runs():
    """Subclasses, parameters and tensors in cycles are found; hostile classes are passed by."""

    class Mine(torch.Tensor):
        pass

    class Hostile:
        @property
        def __class__(self):
            raise AssertionError("asked")

    kept = [torch.ones(3), torch.ones(3).as_subclass(Mine), torch.nn.Parameter(torch.ones(3)), Hostile()]
    kept.append(kept)
    ids = {id(t) for t in reach(torch)[0]}
    assert {id(t) for t in kept[:3]} <= ids
    assert list(scan.tensors(torch)) == []  # none of them is on a card
    del kept
    gc.collect()


@pytest.mark.parametrize(("folder", "told"), [("lib/ipykernel", ""), ("work", "poller")])
def test_a_thread_of_the_notebooks_own_packages_counts_nowhere(tmp_path, monkeypatch, folder, told):
    """Packages in a folder of PYTHONPATH (pip install --target) are libraries too; a user's module is not."""
    place = tmp_path / "lib" / "ipykernel" / "__init__.py"
    monkeypatch.setitem(sys.modules, "ipykernel", types.SimpleNamespace(__file__=str(place)))
    stop = threading.Event()
    names: dict = {"stop": stop}
    exec(compile("def wait():\n    stop.wait(20)", str(tmp_path / folder / "poller.py"), "exec"), names)
    thread = threading.Thread(target=names["wait"], name="poller", daemon=True)
    thread.start()
    try:
        assert threads.using_cuda() == told
    finally:
        stop.set()
        thread.join()


def test_the_page_has_the_table():
    """docs/ladder.md names each row and what it forbids, as the code has it."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "ladder.md").read_text()
    told = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.count("|") == 4]
    rows = {cells[0]: cells[1] for cells in told}
    for one in (*safety.PROCESS, *safety.STORAGE):
        forbids = ", ".join(doing for doing in (safety.MOVE, safety.PARK) if doing in one.forbids)
        if forbids:
            assert rows[one.id] == forbids


def test_the_threads_of_a_kernel_and_of_the_panel_do_not_count():
    """In a real kernel with a live panel no thread forbids moving; a thread started in a cell does."""
    root = Path(__file__).resolve().parents[2]
    paths = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    manager = jupyter_client.KernelManager(kernel_name="python3")
    manager.start_kernel(env={**os.environ, "PYTHONPATH": paths, "CUDA_MAGIC_PRACTICE": "1"})
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)

        def said(code: str) -> str:
            found = []

            def take(message):
                if message["msg_type"] == "execute_result":
                    found.append(message["content"]["data"]["text/plain"])

            client.execute_interactive(code, output_hook=take, timeout=60)
            return found[-1] if found else ""

        said("%load_ext cuda_magic\nimport torch\nfrom cuda_magic.testing import gpu\nx = gpu().empty('1 GiB')")
        said("%gpu_mem --interval 0.25")
        look = (
            "from cuda_magic.memory.torch.threads import using_cuda\nimport time\nseen = set()\n"
            "for _ in range(200):\n    seen.add(using_cuda())\n    time.sleep(0.005)\nseen"
        )
        assert said(look) == "{''}"
        said("import threading\nstop = threading.Event()\ndef train():\n    stop.wait()")
        said("threading.Thread(target=train, name='mine').start()")
        assert said("using_cuda()") == "'mine'"
        said("stop.set()")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
