"""For child processes: room that is made where memory is asked for, on a card of which 2 GiB may be used.

    python tests/gpu/allocation_scenes.py main        one of the names in SCENES

Prints one JSON line: what each scene found. A scene that raises has its error there, and the next one runs.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

import capped  # noqa: E402
import torch  # noqa: E402

from cuda_magic.allocation import session as sessions  # noqa: E402
from cuda_magic.allocation.native import CARD, HOST  # noqa: E402
from cuda_magic.allocation.session import Session  # noqa: E402
from cuda_magic.machine import machine  # noqa: E402
from cuda_magic.memory.torch.room.install import installed  # noqa: E402

MIB, GIB = capped.MIB, capped.GIB
CAP = 2 * GIB
TIMES = int(os.environ.get("CUDA_MAGIC_INTERRUPTS", "50"))
"""How often the scene of interrupts interrupts."""
FIRST: list[float] = []
"""Seconds that it took to set the slots."""


@contextlib.contextmanager
def guarded(**options: Any) -> Iterator[Session]:
    session = Session({}, **options)
    session.begin(machine().allocator())
    try:
        yield session
    finally:
        session.end()


def helped(session: Session) -> list[str]:
    return [done.id for done in session.handler.helped()]


def filled(nbytes: int, value: int) -> torch.Tensor:
    return torch.full((nbytes,), value, dtype=torch.uint8, device="cuda")


def holds(tensor: torch.Tensor, value: int) -> bool:
    """In pieces: the comparison needs memory too, where there is hardly any."""
    return all(bool((piece == value).all()) for piece in tensor.reshape(-1).split(2 * MIB))


def moved(where: int) -> int:
    """Every chunk goes there; how many bytes went."""
    shim = installed().shim
    assert shim.find_host(0)
    nbytes, error = shim.exchange([c.address for c in shim.chunks() if c.where not in (where, 0)], where)
    assert error == 0, error
    return nbytes


def clean() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    here = installed()
    if here is not None:
        here.shim.trim(0)


# -- in one process, one after the other


def slots() -> dict[str, Any]:
    """They were set before CUDA gave anything; large segments are chunks."""
    started = time.perf_counter()
    for _ in range(100):
        sessions.ready()
    again = (time.perf_counter() - started) / 100
    x = filled(256 * MIB, 1)
    chunks = installed().shim.chunks()
    inside = any(c.address <= x.data_ptr() < c.address + c.size for c in chunks)
    return {"inside": inside, "ready_us": round(1e6 * FIRST[0]), "ready_again_us": round(1e6 * again, 1)}


def live() -> dict[str, Any]:
    """Addresses, bytes, views, a product's bits, a replayed graph: while the memory is the host's, and back."""
    torch.manual_seed(0)
    tensors = [filled(64 * MIB, i) for i in range(8)]
    views = [t[5 * MIB + 3 :] for t in tensors]
    a, b = torch.randn(2, 4096, 4096, device="cuda")
    product = a @ b
    static = torch.ones(16 * MIB, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        static * 2 + 1
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = static * 2 + 1
    addresses = [t.data_ptr() for t in tensors]
    found: dict[str, Any] = {}
    for where, name in ((HOST, "host"), (CARD, "card")):
        found[f"to {name}"] = moved(where)
        static.fill_(3 if where == HOST else 5)
        graph.replay()
        found[name] = {
            "addresses": addresses == [t.data_ptr() for t in tensors],
            "bytes": all(holds(t, i) for i, t in enumerate(tensors)),
            "views": all(holds(t, i) for i, t in enumerate(views)),
            "cublas": torch.equal(a @ b, product),
            "graph": bool((result == (7 if where == HOST else 11)).all()),
        }
    return found


def pages() -> dict[str, Any]:
    """More than the card has, all of it live: each request is met, nothing changes, and what fits comes back."""
    tensors = [filled(128 * MIB, i) for i in range(12)]
    addresses = [t.data_ptr() for t in tensors]
    with guarded() as session:
        more = [filled(128 * MIB, 100 + i) for i in range(12)]
        inside = all(holds(t, i) for i, t in enumerate(tensors)) and all(holds(t, 100 + i) for i, t in enumerate(more))
        card = installed().shim.counts(0).card
    behind = all(holds(t, i) for i, t in enumerate(tensors))
    same = addresses == [t.data_ptr() for t in tensors]
    left = session.left
    del more
    clean()
    with guarded() as second:
        pass
    return {
        "helped": helped(session),
        "failed": session.handler.failed,
        "bytes": inside and behind and all(holds(t, i) for i, t in enumerate(tensors)),
        "same": same,
        "within": card <= CAP,
        "left": left,
        "left_behind": second.left,
        "limit": torch.cuda.get_per_process_memory_fraction() * capped.TOTAL,
    }


def limit() -> dict[str, Any]:
    """A limit of the cell's own, below the process's."""
    with guarded(limit=GIB) as session:
        tensors = [filled(256 * MIB, i) for i in range(6)]
        card = installed().shim.counts(0).card
    good = all(holds(t, i) for i, t in enumerate(tensors))
    more = filled(384 * MIB, 9)  # plain: within the process's own limit
    good = good and holds(more, 9)
    del tensors, more
    clean()
    with guarded() as outer:
        with guarded(limit=GIB):
            tensors = [filled(256 * MIB, i) for i in range(6)]
            inner = installed().shim.counts(0).card
        tensors += [filled(256 * MIB, i) for i in range(6, 8)]
        after = installed().shim.counts(0).card
    good = good and all(holds(t, i) for i, t in enumerate(tensors))
    return {
        "within": card <= GIB and inner <= GIB < after,
        "bytes": good,
        "failed": session.handler.failed + outer.handler.failed,
    }


def layers(depth: int = 24) -> torch.nn.Sequential:
    torch.manual_seed(0)
    parts = [part for _ in range(depth) for part in (torch.nn.Linear(1024, 1024), torch.nn.GELU())]
    return torch.nn.Sequential(*parts).cuda()


def trained(model: torch.nn.Module, steps: int = 3, rows: int = 8192) -> list[float]:
    """24 layers save 48 activations of 32 MiB."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        torch.manual_seed(step)
        x = torch.randn(rows, 1024, device="cuda")
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        del x, loss
    return losses


def training() -> dict[str, Any]:
    """A loop that fails plain: the losses and parameters of one that has enough."""
    capped.cap(capped.TOTAL)
    model = layers()
    want = trained(model)
    parameters = [p.detach().clone() for p in model.parameters()]
    del model
    clean()
    capped.cap(3 * GIB // 2)
    try:
        trained(layers())
        plain = "ended"
    except torch.OutOfMemoryError:
        plain = "out of memory"
    clean()
    started = time.perf_counter()
    with guarded() as session:
        model = layers()
        got = trained(model)
        host = installed().shim.counts(0).host
    seconds = time.perf_counter() - started
    same = all(torch.equal(p, one) for p, one in zip(model.parameters(), parameters, strict=True))
    capped.cap(CAP)
    return {
        "plain": plain,
        "losses": got == want,
        "parameters": same,
        "helped": helped(session),
        "failed": session.handler.failed,
        "host": host,
        "hooks": torch._C._autograd._top_saved_tensors_default_hooks(True) is None,
        "seconds": round(seconds, 2),
    }


def threads() -> dict[str, Any]:
    """Another thread of the user's may start kernels: no page is exchanged, and the host serves."""
    tensors = [filled(256 * MIB, i) for i in range(6)]
    stop, begun = threading.Event(), threading.Event()

    def work() -> None:
        x = torch.zeros(1024, device="cuda")
        while not stop.is_set():
            x.add_(1)
            begun.set()
            time.sleep(0.001)

    thread = threading.Thread(target=work, name="worker")
    thread.start()
    begun.wait()
    try:
        with guarded() as session:
            more = [filled(256 * MIB, 100 + i) for i in range(4)]
            good = all(holds(t, 100 + i) for i, t in enumerate(more)) and all(
                holds(t, i) for i, t in enumerate(tensors)
            )
            del more, tensors
            clean()
            capped.cap(3 * GIB // 2)
            model = layers()
            losses = trained(model, 1)
    finally:
        stop.set()
        thread.join()
        capped.cap(CAP)
    refused = session.handler.done["pages"].refused if "pages" in session.handler.done else ""
    return {"refused": refused, "helped": helped(session), "bytes": good, "loss": losses[0] > 0}


def fork() -> dict[str, Any]:
    """A forked child ends as it likes; the parent's memory is the parent's."""
    tensors = [filled(128 * MIB, i) for i in range(8)]
    with guarded():
        child = os.fork()
        if not child:
            gc.collect()
            os._exit(0 if float(torch.ones(1000).sum()) == 1000 else 1)
        status = os.waitpid(child, 0)[1]
        more = [filled(128 * MIB, 100 + i) for i in range(12)]
        good = all(holds(t, i) for i, t in enumerate(tensors)) and all(holds(t, 100 + i) for i, t in enumerate(more))
    return {"status": status, "bytes": good}


def cost() -> dict[str, Any]:
    """A launch-bound step that never runs out: guarded against plain, and what it costs to arm."""
    torch.manual_seed(0)
    parts = [part for _ in range(40) for part in (torch.nn.Linear(128, 128), torch.nn.GELU())]
    model, x = torch.nn.Sequential(*parts).cuda(), torch.randn(16, 128, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def steps(n: int = 60) -> float:
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(n):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
        torch.cuda.synchronize()
        return (time.perf_counter() - started) / n

    steps()
    ratios, arming = [], []
    for _ in range(7):
        plain = steps()
        started = time.perf_counter()
        session = Session({})
        session.begin(machine().allocator())
        arming.append(time.perf_counter() - started)
        armed = steps()
        session.end()
        ratios.append(armed / plain)
    return {"ratio": round(statistics.median(ratios), 4), "arming_us": round(1e6 * statistics.median(arming))}


def capture() -> dict[str, Any]:
    """No room while a graph is captured: torch's own error, and nothing was done. The last scene of its process."""
    tensors = [filled(256 * MIB, i) for i in range(7)]
    graph, error = torch.cuda.CUDAGraph(), ""
    with guarded() as session:
        try:
            with torch.cuda.graph(graph):
                torch.empty(GIB, dtype=torch.uint8, device="cuda")
        except Exception as caught:
            error = f"{type(caught).__name__}: {caught}"
            context = caught.__context__
            if context is not None:
                error += f" / {type(context).__name__}: {context}"
    return {
        "error": error,
        "reasons": session.handler.reasons,
        "done": sorted(session.handler.done),
        "bytes": all(holds(t, i) for i, t in enumerate(tensors)),
    }


# -- each in a process of its own


def interrupts() -> dict[str, Any]:
    """SIGINT at random moments of guarded loops that exchange: what is held keeps its bytes."""
    import random

    draw, came, wrong = random.Random(5), 0, 0
    held = [filled(128 * MIB, i) for i in range(12)]
    signal.signal(signal.SIGALRM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    for _ in range(TIMES):
        try:
            with guarded():
                signal.setitimer(signal.ITIMER_REAL, draw.uniform(0.001, 0.12))
                try:
                    while True:
                        more = [filled(256 * MIB, 100 + i) for i in range(4)]
                        wrong += not all(holds(t, 100 + i) for i, t in enumerate(more))
                        del more
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            came += 1
        more = None
        wrong += not all(holds(t, i) for i, t in enumerate(held))
    clean()
    with guarded() as session:
        pass
    return {
        "times": TIMES,
        "came": came,
        "wrong": wrong,
        "left": session.left,
        "running": sessions.running() is not None,
    }


def distributed() -> dict[str, Any]:
    """One rank of NCCL, after an exchange and around one: the same numbers; what is new is plain."""
    import torch.distributed as dist

    x = torch.arange(32 * MIB, dtype=torch.float32, device="cuda")
    want = x.double().sum().item()
    moved(HOST)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("nccl", init_method=f"file://{folder}/meet", rank=0, world_size=1)
        sessions.ready()
        dist.all_reduce(x)
        on_host = x.double().sum().item() == want
        moved(CARD)
        dist.all_reduce(x)
        on_card = x.double().sum().item() == want
        chunks = len(installed().shim.chunks())
        new = filled(256 * MIB, 1)
        plain = len(installed().shim.chunks()) == chunks
        dist.all_reduce(new)
        dist.destroy_process_group()
    return {"on_host": on_host, "on_card": on_card, "plain": plain, "bytes": holds(new, 1)}


def receives(queue: Any, answers: Any) -> None:
    """The other end of a queue: sums of what comes, until None."""
    for tensor in iter(queue.get, None):
        answers.put(int(tensor.to(torch.int64).sum()))
        del tensor


def queue() -> dict[str, Any]:
    """CUDA IPC: what lies in a chunk moves to a plain segment before it is shared; in a guarded and in a later cell."""
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    tensors, answers = context.Queue(), context.Queue()
    child = context.Process(target=receives, args=(tensors, answers))
    child.start()
    found = {}
    try:
        a, b = filled(64 * MIB, 3), filled(64 * MIB, 4)
        with guarded():
            moved(HOST)
            tensors.put(a)
            found["guarded"] = answers.get(timeout=60) == 3 * 64 * MIB
        tensors.put(b)
        found["later"] = answers.get(timeout=60) == 4 * 64 * MIB
        found["bytes"] = holds(a, 3) and holds(b, 4)
    finally:
        tensors.put(None)
        child.join(20)
        if child.is_alive():
            child.kill()
    return found


def unload() -> dict[str, Any]:
    """Refused while tensors are on the host, possible after del; then everything is torch's own again."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config)
    shell.run_line_magic("load_ext", "cuda_magic")
    capped.cap(GIB)
    shell.user_ns.update(torch=torch, filled=filled, MIB=MIB)
    shell.run_cell("a = filled(640 * MIB, 3)")
    ok = shell.run_cell("%%cuda_guard\nb = filled(640 * MIB, 4)").success
    on_host = sessions.left()
    try:
        shell.run_line_magic("unload_ext", "cuda_magic")
        refused = ""
    except Exception as error:
        refused = f"{type(error).__name__}: {error}"
    shell.run_cell("del b\n_ = get_ipython().run_line_magic('gpu_mem', '--free')")
    left = sessions.left()
    share = "_share_cuda_" in vars(torch.UntypedStorage)
    shell.run_line_magic("unload_ext", "cuda_magic")
    plain = shell.run_cell("c = filled(640 * MIB, 5)").error_in_exec
    return {
        "ok": ok,
        "on_host": on_host,
        "refused": refused,
        "left": left,
        "shared": [share, "_share_cuda_" in vars(torch.UntypedStorage)],
        "module": torch.cuda.set_per_process_memory_fraction.__module__,
        "plain": type(plain).__name__,
        "bytes": holds(shell.user_ns["a"], 3),
    }


SCENES = {
    "main": (slots, live, pages, limit, training, threads, fork, cost, capture),
    "interrupts": (interrupts,),
    "distributed": (distributed,),
    "queue": (queue,),
    "unload": (unload,),
    "expandable": (training,),
}


def main() -> None:
    capped.cap(CAP)
    started = time.perf_counter()
    sessions.ready()
    FIRST.append(time.perf_counter() - started)
    results: dict[str, Any] = {}
    for scene in SCENES[sys.argv[1]]:
        started = time.perf_counter()
        try:
            results[scene.__name__] = scene()
        except BaseException:
            results[scene.__name__] = {"broken": traceback.format_exc()[-3000:]}
        results[scene.__name__]["took"] = round(time.perf_counter() - started, 1)
        clean()
    print(json.dumps(results))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
