"""SIGINT at random moments of rescued cells, and steps of a rescue that fail: what must be so afterwards.

    python tests/gpu/interrupted.py compact 250 1          250 moments, seed 1, on a card
    python tests/gpu/interrupted.py compact 20 1 practice
    python tests/gpu/interrupted.py spill 0 1 faults       host allocations, copies, allocations fail in turn

Runs in a process of its own, in an IPython shell with the extension loaded. Prints one JSON line. The signal is raised
by a timer of the kernel, so that no other thread is there while the rescue decides what is safe.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import random
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from rescue_cases import PRACTICE, PRELUDE  # noqa: E402


@dataclass(frozen=True)
class Scene:
    """`cap` in GiB. `each` is run before every moment; `same` must hold after it, `result` where the cell finished."""

    cap: float
    once: str
    cell: str
    options: str
    same: str
    result: str = "r == 7"
    each: str = ""
    after: str = ""
    """Run after every moment: lets go of what the cell itself leaves."""


_WORK = (
    "\ndef work(g):\n    x = E(g); fill(x, 7)\n    return last(x)\n"
    "def mine(g):\n    x = E(g); fill(x, 7)\n    raise LookupError('mine')"
)
_LIVE = "all(holds(t, i + 1) for i, t in enumerate(live))"
_HALF = "live = b[::2]; del b\nfor i, t in enumerate(live): fill(t, i + 1)\ndel t"

SCENES = {
    "compact": Scene(
        1,
        "pass" + _WORK,
        "r = work(3/8)",
        "--repeat --only compact",
        f"len(live) == 56 and {_LIVE}",
        each=f"live = None; forget(); whole = E(7/8); del whole; b = [E(1/128) for _ in range(112)]; {_HALF}",
    ),
    "spill": Scene(
        1,
        f"live = [E(1/16) for _ in range(12)]\nfor i, t in enumerate(live): fill(t, i + 1)\ndel t{_WORK}",
        "r = work(1/2)",
        "--repeat --only spill",
        _LIVE,
    ),
    "activations": Scene(
        0.4,
        "torch.manual_seed(0); n = net(8); x = torch.randn(8192, 1024, device='cuda')\n"
        "def step():\n    n.zero_grad(set_to_none=True)\n    n(x).square().mean().backward()\n    return 7\n"
        "step(); want = grads(n); kept = [p.detach().cpu() for p in n.parameters()] + [x.cpu()]\n"
        "n.zero_grad(set_to_none=True); gc.collect(); forget()",
        "r = step()",
        "--repeat --only activations",
        "same([p.detach().cpu() for p in n.parameters()] + [x.cpu()], kept)",
        "r == 7 and same(grads(n), want)",
        after="n.zero_grad(set_to_none=True)",
    ),
    "retry": Scene(
        1,
        "kept = E(1/16); fill(kept, 3)\nclass N:\n    def __init__(self): self.x = E(.3); self.me = self\n"
        "def leak():\n    for _ in range(8): N()\n    return 7\ngc.disable()",
        "r = leak()",
        "--repeat --only collect,retry",
        "holds(kept, 3)",
    ),
}


class Stage:
    """The shell, and what is read of torch's state."""

    def __init__(self, practice: bool) -> None:
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets.config import Config

        config = Config()
        config.HistoryManager.enabled = False
        self.shell = InteractiveShell.instance(config=config)
        self.shell.run_line_magic("load_ext", "cuda_magic")
        self.practice = practice
        self.run(PRACTICE if practice else PRELUDE)
        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def run(self, code: str) -> None:
        """A cell that must succeed."""
        result = self.shell.run_cell(code)
        if not result.success:
            raise SystemExit(f"a cell failed: {code}\n{result.error_in_exec or result.error_before_exec!r}")

    def value(self, expression: str):
        return eval(expression, self.shell.user_ns)

    def state(self) -> dict:
        """What must be as before, whatever happened."""
        from cuda_magic.machine import machine

        allocator = machine().allocator()
        found = {"SIGINT's handler": signal.getsignal(signal.SIGINT) is signal.default_int_handler}
        found["expandable segments"] = allocator.expandable()
        if hasattr(allocator, "parked"):
            found["bytes parked"] = allocator.parked()
        if not self.practice:
            import torch

            torch._C._cuda_clearCublasWorkspaces()  # a rescue gives it back, and the next product takes it again
        found["bytes allocated"] = allocator.stats(0).allocated
        if not self.practice:
            found["modes"] = torch.utils._python_dispatch._len_torch_dispatch_stack()
            found["function modes"] = torch._C._len_torch_function_stack()
            found["hooks"] = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
            found["caching"] = _caching(torch)
        return found


def _caching(torch) -> bool:
    """Whether a new tensor is the caching allocator's."""
    probe = torch.empty(1 << 12, dtype=torch.uint8, device="cuda")
    return bool(torch._C._has_Standard_Deleter(probe.untyped_storage()._cdata))


def difference(before: dict, after: dict) -> list[str]:
    return [f"{name}: {before[name]} -> {after[name]}" for name in before if before[name] != after[name]]


def guarded(scene: Scene, text: str = "") -> str:
    return f"%%cuda_guard --quiet --report report {scene.options}\n{text or scene.cell}"


def check(stage: Stage, scene: Scene, before: dict, ended: str) -> list[str]:
    """What is not as it must be after a moment."""
    wrong = []
    if ended == "finished" and not stage.value(scene.result):
        wrong.append("the result is wrong")
    stage.run(f"r = None\n{scene.after}")
    stage.shell.run_cell("1/0")  # the shell lets go of the frames of the cell before
    gc.collect()
    stage.run("pass")  # what found no room while the interrupted frames held theirs comes back behind a cell
    stage.run("cap(None)")
    wrong += difference(before, stage.state())
    if not stage.value(scene.same):
        wrong.append("data lost")
    return wrong


def start(stage: Stage, scene: Scene) -> dict:
    """Set the heap up, and the limit; the state to compare with, read without the limit: it takes memory too."""
    stage.run(f"cap({scene.cap})\nr = None\n{scene.each}\ncap(None)")
    gc.collect()  # as `check` does: what lies in cycles is no loss when it goes
    before = stage.state()
    stage.run(f"cap({scene.cap})")
    return before


def one(stage: Stage, scene: Scene, delay: float = 0.0, cell: str = "") -> tuple[str, float, list[str]]:
    """One guarded cell, interrupted after `delay` seconds (0: not): how it ended, seconds, what is wrong."""
    before = start(stage, scene)
    began = time.perf_counter()
    try:
        signal.setitimer(signal.ITIMER_REAL, delay)
        result = stage.shell.run_cell(guarded(scene, cell))
        signal.setitimer(signal.ITIMER_REAL, 0)
        error = result.error_in_exec or result.error_before_exec
        ended = f"{type(error).__name__}: {str(error)[:200]}" if error is not None else "finished"
    except KeyboardInterrupt:
        ended = "outside of the cell"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    seconds = time.perf_counter() - began
    result = error = None
    if ended.startswith("KeyboardInterrupt"):
        ended = "KeyboardInterrupt"
    return ended, seconds, check(stage, scene, before, ended)


def moments(name: str, count: int, seed: int, practice: bool) -> dict:
    """Run the cell `count` times, each interrupted at a random moment."""
    stage, scene, draw = Stage(practice), SCENES[name], random.Random(seed)
    started = time.monotonic()
    quiet, told = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(told):
        stage.run(scene.once)
        spent = []
        for _ in range(4):
            ended, seconds, wrong = one(stage, scene)
            spent.append(seconds)
            status = stage.value("report.status")
            if ended != "finished" or status != "rescued" or wrong:
                rungs = stage.value("[(r.id, r.state, r.reason) for r in report.rungs]")
                raise SystemExit(f"{name}, not interrupted: {ended}, {status}, {wrong}, {rungs}\n{told.getvalue()}")
        whole = statistics.median(spent[1:])
        ends: Counter[str] = Counter()
        failures = []
        for number in range(count):
            delay = draw.uniform(0.0005, whole * 1.02)
            ended, _, wrong = one(stage, scene, delay)
            ends[ended] += 1
            if ended not in ("KeyboardInterrupt", "outside of the cell", "finished"):
                wrong.append(f"ended with {ended}")
            if wrong:
                stage.shell.run_cell("%%cuda_guard --quiet\npass")  # the next chance to settle
                failures.append({"moment": number, "delay": delay, "ended": ended, "wrong": wrong})
                failures[-1]["after the next cell"] = stage.state()
                if len(failures) > 10 or "data lost" in wrong:
                    break
    words = told.getvalue()
    at = words.find("an error of its own")
    return {
        "rung": name,
        "seed": seed,
        "moments": sum(ends.values()),
        "ends": dict(ends),
        "cell_s": round(whole, 4),
        "seconds": round(time.monotonic() - started, 1),
        "errors of its own": words.count("an error of its own"),
        "the first": words[at : at + 300] if at >= 0 else "",
        "failures": failures,
    }


def own_error(name: str, practice: bool) -> dict:
    """A repeat that raises an exception of its own: the memory error shows, and everything is put back."""
    stage, scene = Stage(practice), SCENES[name]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        stage.run(scene.once)
        ended, _, wrong = one(stage, scene, cell=scene.cell.replace("work", "mine"))
    if "out of memory" not in ended:
        wrong.append(f"shown: {ended}")
    return {"rung": name, "failures": wrong}


@contextlib.contextmanager
def failing(owner: type, name: str, at: int, error: BaseException, counts) -> Iterator[list[int]]:
    """The `at`-th call of a method raises, once; calls for which `counts` is False are not counted."""
    calls, own = [0], name in vars(owner)
    original = getattr(owner, name)

    def call(self, *arguments, **named):
        if counts(*arguments):
            calls[0] += 1
            if calls[0] == at:
                raise type(error)(*error.args)  # a new one: the old one's traceback would keep frames alive
        return original(self, *arguments, **named)

    setattr(owner, name, call)
    try:
        yield calls
    finally:
        if own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)


def breakages() -> dict:
    """What may fail: (class, method, the error, which calls count)."""
    import torch

    from cuda_magic.memory.torch.offload.host_pool import HostPool, NoHostMemory

    full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB (injected).")
    return {
        "a host allocation": (HostPool, "take", NoHostMemory("no host memory (injected)"), lambda *a: True),
        "a copy": (torch.Tensor, "copy_", RuntimeError("CUDA error: a copy failed (injected)"), lambda *a: True),
        "memory for what moves or comes back": (torch.UntypedStorage, "resize_", full, lambda n, *a: n > 0),
    }


def faults(name: str, most: int = 16) -> dict:
    """Each step that may fail fails once, at its first, second ... call: data stays, the user's error shows."""
    stage, scene = Stage(False), SCENES[name]
    failures, counted = [], {}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        stage.run(scene.once)
        ended, _, wrong = one(stage, scene)  # everything is imported and warm
        if ended != "finished" or wrong:
            raise SystemExit(f"{name}, nothing failed: {ended}, {wrong}")
        for what, (owner, method, error, counts) in breakages().items():
            counted[what] = 0
            for at in range(1, most + 1):
                before = start(stage, scene)
                with failing(owner, method, at, error, counts) as calls:
                    result = stage.shell.run_cell(guarded(scene))
                if calls[0] < at:
                    check(stage, scene, before, "finished")  # what the next step starts from is tidied up
                    break
                counted[what] += 1
                raised = result.error_in_exec
                shown = f"{type(raised).__name__}: {str(raised)[:150]}" if raised is not None else "finished"
                result = raised = None
                fine = shown == "finished" or ("OutOfMemory" in shown and "injected" not in shown)
                found = [] if fine else [shown]
                stage.run("cap(None)")
                if not stage.value(scene.same):  # by plain ops: what still waits must be safe to touch
                    found.append("data lost")
                stage.shell.run_cell("%%cuda_guard --quiet\npass")  # the next chance
                found += check(stage, scene, before, "finished" if shown == "finished" else "failed")
                if found:
                    failures.append({"failed": what, "call": at, "shown": shown, "wrong": found})
    return {"rung": name, "failed": counted, "failures": failures}


def main() -> None:
    name, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    practice = sys.argv[4:] == ["practice"]
    if sys.argv[4:] == ["faults"]:
        found = faults(name)
    else:
        found = moments(name, count, seed, practice) if count else own_error(name, practice)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
