"""Cells as people write them, with too little memory: does the guard bring each to its end with the same numbers?

    python benchmarks/real_cells.py --all --out FILE.json               every cell, a table at the end
    python benchmarks/real_cells.py --all --only gpt2,lstm --twice      some, and whether two plain runs agree
    python benchmarks/real_cells.py --all --only loop,gpt2 --ways       beside what people have otherwise
    python benchmarks/real_cells.py --all --missing --out FILE.json     go on where a run was cut short
    python benchmarks/real_cells.py gpt2 --mode guard --cap 6           one cell in this process
    python benchmarks/real_cells.py --all --tiny --modes ref,guard      small, on the CPU: only what the cells do

Each run of a cell has a process of its own. ``ref`` has all the memory, and no extension; the others may have a
part of what it took (``--cap`` for one size in GiB, ``--factor`` for another part). Processes of several cells share
the card (``--jobs``); for the seconds of a published table use ``--jobs 1``.
The cells are in `real_cells_data.py`. Attention adds in a fixed order here, so that bits can be compared.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import hashlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from real_cells_data import CELLS, Cell  # noqa: E402

__all__ = ["BY_NAME", "different", "measure", "missing", "outcome", "repeated", "steady", "table"]

GIB = 1 << 30
SLACK = 64 << 20
"""Beside the largest request: small tensors and what libraries take."""
LIMIT = 120
"""Seconds that one run of a cell may take."""
BY_NAME = {cell.name: cell for cell in CELLS}
WAYS = ("save_on_cpu", "checkpointing", "executable_batch")
ENVIRONMENT = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "TORCHINDUCTOR_DETERMINISTIC": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "PYTHONWARNINGS": "ignore",
}
_TINY = {".cuda()": ".cpu()", '"cuda"': '"cpu"'}


def missing(cell: Cell) -> str:
    """The module that `cell` needs and that is not installed."""
    return next((name for name in cell.needs if find_spec(name) is None), "")


def small(text: str, cell: Cell) -> str:
    """The source for a CPU."""
    for old, new in (cell.tiny | _TINY).items():
        text = text.replace(old, new)
    return text


# One cell, in this process.


class Clock:
    """Steps by the clock of the card, without a wait that could hide what runs side by side."""

    def __init__(self) -> None:
        import torch

        self.torch = torch if torch.cuda.is_available() else None
        self.marks: list[Any] = []

    def tick(self) -> None:
        if self.torch is None:
            self.marks.append(time.perf_counter())
        else:
            event = self.torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append(event)

    def start(self) -> None:
        self.marks = []
        self.tick()

    def steps(self) -> list[float]:
        pairs = list(zip(self.marks, self.marks[1:], strict=False))
        if self.torch is None:
            return [round(b - a, 4) for a, b in pairs]
        return [round(a.elapsed_time(b) / 1000, 4) for a, b in pairs]


def digest(things: Any) -> str:
    """Of every bit of the tensors in `things`, and of what else is there."""
    import torch

    found = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found.update(f"{value.dtype} {tuple(value.shape)}".encode())
            for part in value.detach().reshape(-1).split(1 << 26):
                found.update(part.cpu().contiguous().view(torch.uint8).numpy())
        elif isinstance(value, Mapping):
            for key, one in value.items():
                add(key)
                add(one)
        elif isinstance(value, (list, tuple)):
            for one in value:
                add(one)
        else:
            found.update(repr(value).encode())

    add(things)
    return found.hexdigest()[:16]


def _told(error: BaseException | None) -> dict[str, str] | None:
    if error is None:
        return None
    where = "".join(traceback.format_exception(type(error), error, error.__traceback__)[-4:])
    return {
        "type": type(error).__name__,
        "text": (str(error).strip().splitlines() or [""])[0][:400],
        "where": where[-2000:],
    }


def _shell() -> Any:
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    shell.colors = "nocolor"
    return shell


def _same_arithmetic() -> None:
    """Nothing here is chosen by time, and no sum has an order of its own."""
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    for name in ("enable_flash_sdp", "enable_mem_efficient_sdp", "enable_cudnn_sdp"):
        getattr(torch.backends.cuda, name, lambda on: None)(False)


class _Card:
    """Memory of torch on the card; nothing at all without one."""

    def __init__(self) -> None:
        import torch

        self.torch, self.there = torch, torch.cuda.is_available()
        self.total = torch.cuda.get_device_properties(0).total_memory if self.there else 0

    def settle(self) -> None:
        import gc

        gc.collect()
        if self.there:
            self.torch.cuda.synchronize()
            self.torch.cuda.empty_cache()
            self.torch.cuda.reset_peak_memory_stats()

    def wait(self) -> None:
        if self.there:
            self.torch.cuda.synchronize()

    def cap(self, size: float | None) -> None:
        if self.there:
            self.torch.cuda.set_per_process_memory_fraction(1.0 if size is None else min(size / self.total, 1.0))

    def reserved(self) -> int:
        return int(self.torch.cuda.memory_reserved()) if self.there else 0

    def peaks(self) -> dict[str, int]:
        if not self.there:
            return {"peak_allocated": 0, "peak_reserved": 0}
        cuda = self.torch.cuda
        return {"peak_allocated": cuda.max_memory_allocated(), "peak_reserved": cuda.max_memory_reserved()}

    @contextlib.contextmanager
    def requests(self, wanted: bool) -> Iterator[list[int]]:
        """The largest request meanwhile, of a tensor and of the driver, put into the list at the end."""
        found: list[int] = []
        if not self.there or not wanted:
            yield found
            return
        history = self.torch.cuda.memory._record_memory_history
        history("all", context=None, stacks="python", max_entries=300_000)
        try:
            yield found
        finally:
            traces = self.torch.cuda.memory._snapshot()["device_traces"]
            sizes = [e["size"] for trace in traces for e in trace if e["action"] in ("alloc", "segment_alloc")]
            history(None)
            found.append(max(sizes, default=0))


def _report(shell: Any) -> dict[str, Any] | None:
    try:
        report = shell.run_line_magic("cuda_guard", "").to_dict()
    except Exception as error:
        return {"error": f"no report: {error}"}
    report["holders"] = list(report.get("holders") or [])[:12]
    return dict(report)


def run_here(cell: Cell, mode: str, cap: float | None, tiny: bool) -> dict[str, Any]:
    """One run of `cell` in this process: `cap` in bytes, None for all."""
    import torch

    warnings.simplefilter("ignore")
    _same_arithmetic()
    shell, card, clock = _shell(), _Card(), Clock()
    shell.user_ns["tick"] = clock.tick
    fit: Callable[[str], str] = (lambda text: small(text, cell)) if tiny else (lambda text: text)
    found: dict[str, Any] = {"mode": mode, "cap": cap, "torch": torch.__version__}
    body = fit(cell.ways[mode] if mode in WAYS else cell.cell).lstrip("\n")

    def run(text: str) -> BaseException | None:
        result = shell.run_cell(text, store_history=True)
        error: BaseException | None = result.error_before_exec or result.error_in_exec
        return error

    def read() -> str:
        return digest(eval(fit(cell.same), shell.user_ns))

    if mode == "guard":  # as users have it: loaded before the model is there
        shell.run_line_magic("load_ext", "cuda_magic")
    started = time.perf_counter()
    if error := run(fit(cell.before)):
        return found | {"broken": _told(error)}
    if cell.own:
        if error := run(body):
            return found | {"broken": _told(error)}
        found["own_digest"] = read()
        if error := run(fit(cell.before)):
            return found | {"broken": _told(error)}
    found["before_seconds"] = round(time.perf_counter() - started, 3)
    card.settle()
    found["reserved_before"] = card.reserved()
    card.cap(cap)
    with card.requests(mode == "ref") as requests:
        clock.start()
        started = time.perf_counter()
        failed = run(("%%cuda_guard\n" if mode == "guard" else "") + body)
        told = _told(failed)
        with contextlib.suppress(Exception):
            card.wait()
        found["seconds"] = round(time.perf_counter() - started, 4)
    found |= card.peaks() | {"raised": told, "largest": max(requests, default=0), "reserved_after": card.reserved()}
    if mode == "guard":
        found["report"] = _report(shell)
    found["steps"] = []
    with contextlib.suppress(Exception):  # a card that a failed kernel has left unusable tells no times
        found["steps"] = clock.steps()
    card.cap(None)
    if failed is None:
        found["digest"] = read()
    return found


def _one(arguments: argparse.Namespace) -> int:
    cell = BY_NAME[arguments.name]
    if name := missing(cell):
        print("RESULT " + json.dumps({"missing": name}))
        return 0
    cap = None if arguments.cap is None else arguments.cap * GIB
    if cap is None and arguments.mode != "ref" and not arguments.tiny:
        reference = measure(cell.name, "ref")
        if "digest" not in reference:
            print(json.dumps(reference, indent=1))
            return 1
        cap = allowed(cell, reference, arguments.factor)
    faulthandler.dump_traceback_later(arguments.limit - 5, exit=True)
    os.environ.update(ENVIRONMENT)
    os.environ["IPYTHONDIR"] = tempfile.mkdtemp()
    try:
        found = run_here(cell, arguments.mode, cap, arguments.tiny)
    except BaseException as error:
        found = {"broken": _told(error)}
    sys.stdout.flush()
    print("RESULT " + json.dumps(found), flush=True)
    return 0


# All cells, each run in a fresh process.


def allowed(cell: Cell, reference: dict[str, Any], factor: float | None = None) -> int:
    """Bytes for `cell`: a part of the reference's peak, but what is there before and any one request fit."""
    part = int(reference["peak_allocated"] * (factor or cell.factor))
    return max(part, int(reference["reserved_before"] + reference["largest"]) + SLACK)


def measure(name: str, mode: str, cap: float | None = None, tiny: bool = False, limit: float = LIMIT) -> dict[str, Any]:
    """What a fresh process found; ``broken`` tells what kept it from a result. `cap` in bytes."""
    words = [sys.executable, str(Path(__file__).resolve()), name, "--mode", mode, "--limit", str(limit)]
    words += ["--cap", str(cap / GIB)] if cap is not None else []
    words += ["--tiny"] if tiny else []
    environment = {"CUDA_VISIBLE_DEVICES": "0", **os.environ, **ENVIRONMENT}  # some trainers take every card there is
    child = subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    late = ""
    try:
        out, error = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        late = f"it took more than {limit:g} s"
    with contextlib.suppress(ProcessLookupError, PermissionError):  # workers of a loader may still be there
        os.killpg(child.pid, signal.SIGKILL)
    if late:
        out, error = child.communicate()
    for line in reversed(out.splitlines()):
        if line.startswith("RESULT "):
            return dict(json.loads(line.removeprefix("RESULT ")))
    if "Timeout (" in error:  # its own watch, which says where it was
        late = f"it took more than {limit - 5:g} s"
    why = late or f"it ended with {child.returncode}"
    return {"broken": {"type": "NoResult", "text": why, "where": (out[-1500:] + error[-6000:])}}


def row_of(cell: Cell, arguments: argparse.Namespace, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Every wanted run of one cell; those in `known` are taken from there."""
    row: dict[str, Any] = {"title": cell.title, "fixed": cell.fixed, "own": cell.own}
    row["date"] = time.strftime("%Y-%m-%d")
    row |= known or {}
    tiny = arguments.tiny
    if name := missing(cell):
        return row | {"skipped": f"{name} is not installed"}
    if cell.card and tiny:
        return row | {"skipped": "needs a card"}
    modes = [mode for mode in arguments.modes if mode not in WAYS]
    reference = row["ref"] = row.get("ref") or measure(cell.name, "ref", tiny=tiny, limit=arguments.limit)
    if "digest" not in reference:
        return row
    if arguments.twice:
        row["ref2"] = measure(cell.name, "ref", tiny=tiny, limit=arguments.limit)
    fixed_cap = None if arguments.cap is None else int(arguments.cap * GIB)
    cap = row["cap"] = None if tiny else fixed_cap or row.get("cap") or allowed(cell, reference, arguments.factor)
    ways = [mode for mode in WAYS if mode in cell.ways and (arguments.ways or mode in arguments.modes)]
    for mode in [*(m for m in modes if m != "ref"), *ways]:
        row[mode] = row.get(mode) or measure(cell.name, mode, cap, tiny, arguments.limit)
    return row


def outcome(found: dict[str, Any] | None) -> str:
    """One run in a word or two."""
    if found is None:
        return "–"
    if "missing" in found:
        return f"{found['missing']} missing"
    if found.get("broken"):
        return f"broken: {found['broken']['type']}, {found['broken']['text'][:50]}"
    return found["raised"]["type"] if found.get("raised") else "yes"


def repeated(report: dict[str, Any] | None) -> str:
    """What of the cell ran more than once, by the guard's report; empty where nothing did."""
    if not report or "status" not in report:
        return "no report"
    if report.get("attempts", 1) > 1:
        return f"a statement ran {report['attempts']} times"
    again = [rung["id"] for rung in report.get("rungs") or () if (rung.get("attempt") or 1) > 1]
    return f"again after {', '.join(again)}" if again else ""


def different(row: dict[str, Any], mode: str = "guard") -> str:
    """How the numbers of a run differ from the reference's; empty where they are the same, bit for bit."""
    found, reference = row.get(mode) or {}, row.get("ref") or {}
    if "digest" not in found or "digest" not in reference:
        return "no numbers"
    wanted = found["own_digest"] if row.get("own") else reference["digest"]
    return "" if found["digest"] == wanted else f"{found['digest']} instead of {wanted}"


def steady(found: dict[str, Any]) -> float | None:
    """Seconds of a step after the first."""
    rest = found.get("steps", [])[1:]
    return statistics.median(rest) if rest else None


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _line(name: str, row: dict[str, Any]) -> list[str]:
    reference, guard = row.get("ref") or {}, row.get("guard") or {}
    if "skipped" in row or "digest" not in reference:
        return [name, "", "", row.get("skipped") or f"ref: {outcome(reference)}", *[""] * 6]
    first = (guard.get("steps") or [None])[0]
    plain, guarded = steady(reference), steady(guard)
    ratio = f"{guarded / plain:.2f}" if plain and guarded else ""
    same = ("no" if different(row) else "yes") if "digest" in guard else ""
    if "ref2" in row and different(row, "ref2"):
        same += " (nor do two plain runs agree)"
    return [
        name,
        f"{reference['peak_allocated'] / GIB:.2f}",
        f"{(row.get('cap') or 0) / GIB:.2f}",
        outcome(row.get("plain")),
        outcome(row.get("guard")),
        f"{_seconds(reference['seconds'])} / {_seconds(guard.get('seconds'))}",
        _seconds(first),
        f"{_seconds(plain)} / {_seconds(guarded)} {ratio}".strip(" /"),
        same,
        repeated(guard.get("report")) or "no" if "report" in guard else "",
    ]


def table(kept: dict[str, Any]) -> str:
    """The rows in Markdown; seconds are those of the run with all memory and of the guarded one."""
    head = ["cell", "peak GiB", "cap GiB", "plain", "guard", "s, all memory / guard", "first step s"]
    head += ["later steps s, all memory / guard, ratio", "same numbers", "repeated"]
    where, rows = kept["where"], kept["rows"]
    lines = [", ".join(f"{k} {v}" for k, v in where.items()), "", " | ".join(head), "|".join(["---"] * len(head))]
    lines += [" | ".join(_line(name, rows[name])) for name in BY_NAME if name in rows]
    others = [(name, mode, rows[name]) for name in rows for mode in WAYS if mode in rows[name]]
    if others:
        head = ["cell", "way", "ran", "s", "first step s", "later steps s", "peak GiB", "same numbers"]
        lines += ["", " | ".join(head), "|".join(["---"] * len(head))]
    for name, mode, row in others:
        found = row[mode]
        first, peak = (found.get("steps") or [None])[0], found.get("peak_allocated", 0) / GIB
        same = ("no" if different(row, mode) else "yes") if "digest" in found else ""
        figures = [_seconds(found.get("seconds")), _seconds(first), _seconds(steady(found)), f"{peak:.2f}"]
        lines.append(" | ".join([name, mode, outcome(found), *figures, same]))
    ran = [row for row in rows.values() if "digest" in (row.get("guard") or {})]
    right = [row for row in ran if not different(row) and not repeated(row["guard"].get("report"))]
    asked = [row for row in rows.values() if "guard" in row]
    lines += ["", f"{len(right)} of {len(asked)} guarded cells ran to the end with the same numbers, nothing repeated."]
    return "\n".join(lines)


def where() -> dict[str, str]:
    """The card, its driver and the releases."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": sys.version.split()[0]}
    for name in ("torch", "transformers", "accelerate", "peft", "diffusers", "lightning", "timm"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    try:
        import pynvml

        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
        found["card"] = card.decode() if isinstance(card, bytes) else card
        found["driver"] = str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:
        found["card"] = "none"
    return found


def _all(arguments: argparse.Namespace) -> int:
    kept: dict[str, Any] = {"where": where(), "rows": {}}
    path = Path(arguments.out) if arguments.out else None
    if path and path.exists():
        kept["rows"] = json.loads(path.read_text())["rows"]
    names = arguments.only.split(",") if arguments.only else list(BY_NAME)
    if unknown := [name for name in names if name not in BY_NAME]:
        print(f"no such cells: {', '.join(unknown)}; there are {', '.join(BY_NAME)}", file=sys.stderr)
        return 2
    if arguments.missing:
        names = [n for n in names if not all(mode in kept["rows"].get(n, {}) for mode in arguments.modes)]
    lock = threading.Lock()

    def work(name: str) -> None:
        row = row_of(BY_NAME[name], arguments, kept["rows"].get(name) if arguments.missing else None)
        with lock:
            kept["rows"][name] = row
            said = [f"{mode} {outcome(row[mode])}" for mode in ("ref", *arguments.modes, *WAYS) if mode in row]
            print(f"{name}: {row.get('skipped') or ', '.join(said)}", file=sys.stderr, flush=True)
            if path:
                path.write_text(json.dumps(kept, indent=1) + "\n")

    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(work, names))
    print(table(kept))
    return 0


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", choices=list(BY_NAME), metavar="NAME", help=", ".join(BY_NAME))
    parser.add_argument("--mode", default="ref", choices=["ref", "plain", "guard", *WAYS])
    parser.add_argument("--cap", type=float, help="GiB that the cell may have")
    parser.add_argument("--factor", type=float, help="part of the reference's peak, instead of the cell's own")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for one run of a cell")
    parser.add_argument("--tiny", action="store_true", help="small sizes on the CPU")
    parser.add_argument("--all", action="store_true", help="every cell, or --only some")
    parser.add_argument("--only", default="", help="names, with commas")
    parser.add_argument("--jobs", type=int, default=4, help="cells at once")
    parser.add_argument("--modes", default="plain,guard", type=lambda text: text.split(","))
    parser.add_argument("--twice", action="store_true", help="a second reference: do two plain runs agree?")
    parser.add_argument("--ways", action="store_true", help="also what people do otherwise, where a cell has it")
    parser.add_argument("--missing", action="store_true", help="only runs that --out does not have")
    parser.add_argument("--out", help="JSON file; rows that are there already stay")
    parser.add_argument("--table", metavar="FILE", help="only the table of such a file")
    arguments = parser.parse_args(words)
    if arguments.table:
        print(table(json.loads(Path(arguments.table).read_text())))
        return 0
    if arguments.all:
        return _all(arguments)
    if not arguments.name:
        parser.error("name a cell, or --all")
    return _one(arguments)


if __name__ == "__main__":
    sys.exit(main())
