"""What rescues a notebook that runs out of GPU memory: each cause, with each way that people have.

    python benchmarks/rescue.py benchmarks/results              all rows
    python benchmarks/rescue.py benchmarks/results --cards 0,1  all rows, on two cards at once
    python benchmarks/rescue.py benchmarks/results --only fragmentation,S5 --ways plain,guard
    python benchmarks/rescue.py OUT --practice                  the rows that the practice GPU can show

Each pair of a row and a way runs in a fresh kernel. Kernels start in parallel; from the first use of CUDA on only one
of them is on a card, so the seconds are those of the cell alone. A run adds to the file that is there, each pair with
its date; ``--missing`` goes on where one was cut short. `rescue.json` has all figures, `rescue.md` the table, and
``--page`` puts it into docs/rescues.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from rescue_cases import CASES, PRACTICE, PRELUDE, Case  # noqa: E402
from rescue_table import into_page, markdown  # noqa: E402
from rescue_ways import WAYS, Way  # noqa: E402

LIMIT = 60
"""Seconds that one request may take."""
_READ = """
def _read(text):
    try: return eval(text)
    except Exception as error: return f"{type(error).__name__}: {error}"[:200]
_report = globals().get("report")
_found = {"bs": globals().get("bs"), "tries": _read("_tries"), "told": _read(_told)}
if _report is not None:
    _found["status"], _found["tries"] = _report.status, _report.attempts
    _ran = [r for r in _report.rungs if r.state != "skipped"]
    _found["rungs"] = [[r.attempt, r.id, r.state, r.reason, r.freed_bytes, round(r.seconds, 4)] for r in _ran]
    _found["skipped"] = {r.id: r.reason for r in _report.rungs if r.state == "skipped"}
    _found["notes"] = list(_report.notes)
if "other" in globals(): other.kill(); other.wait()
try: cap(None)
except Exception: pass
_found["result"], _found["intact"] = _failed or _read(_result), _read(_intact)
print("FOUND " + json.dumps(_found))
"""


@dataclass
class Card:
    """A card, which one kernel at a time may use. `index` is its number for NVML and CUDA; None: the practice GPU."""

    index: str | None
    lock: threading.Lock = field(default_factory=threading.Lock)
    at_rest: int = 0
    """Bytes in use while nothing of ours runs."""

    def __post_init__(self) -> None:
        self.at_rest = self.used()

    def used(self) -> int:
        if self.index is None:
            return 0
        import pynvml

        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(int(self.index))).used)

    def wait_until_empty(self) -> None:
        """A kernel that was ended a moment ago may still be there."""
        end = time.monotonic() + 3
        while self.used() > self.at_rest + (32 << 20) and time.monotonic() < end:
            time.sleep(0.02)

    def environment(self) -> dict[str, str]:
        if self.index is None:
            return {"CUDA_MAGIC_PRACTICE": "1"}
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": self.index}


class Kernel:
    """One fresh kernel. `run` gives (what it printed, the error's name and text or None, seconds)."""

    def __init__(self, folder: str, card: Card) -> None:
        import jupyter_client

        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": paths, "IPYTHONDIR": folder, "PYTHONWARNINGS": "ignore"}
        environment |= card.environment()
        self.manager = jupyter_client.KernelManager(kernel_name="python3")
        self.manager.start_kernel(env=environment, extra_arguments=["--HistoryManager.enabled=False", "--log-level=40"])
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=90)

    def run(self, code: str, limit: float = LIMIT) -> tuple[str, str | None, float]:
        printed: list[str] = []
        failed: list[str] = []

        def take(message: dict[str, Any]) -> None:
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                printed.append(content["text"])
            elif kind == "error":
                failed.append(f"{content['ename']}: {content['evalue']}")

        started = time.perf_counter()
        try:
            self.client.execute_interactive(code, output_hook=take, timeout=limit, stop_on_error=False)
        except TimeoutError:
            failed.append(f"Timeout: not done in {limit:g} s")
        return "".join(printed), failed[0] if failed else None, time.perf_counter() - started

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def outcome(case: Case, found: dict[str, Any], error: str | None) -> str:
    """``yes``, ``smaller`` (with a smaller batch), ``wrong`` (ran, and its numbers are not right), ``no``."""
    if error is not None:
        return "no"
    if case.wanted is not None and isinstance(found["bs"], int) and found["bs"] < case.wanted:
        return "smaller"
    return "yes" if found["result"] is True else "wrong"


def is_right(case: Case, found: dict[str, Any]) -> bool:
    """Whether the guard gave the answer that the case asks for, with the data intact."""
    ran = found["outcome"] == "yes" or (found["outcome"] == "smaller" and "--shrink" in case.options)
    whole = found["intact"] is True and found["told"] is True
    if case.right == "told":
        return whole and found["outcome"] == "no"
    return whole and ran and (case.right == "rescued" or found["tries"] == 1)


def one(case: Case, way: Way, card: Card, folder: str) -> dict[str, Any]:
    """Run one pair in a kernel of its own; what was found."""
    missing = way.missing() or (case.needs and not find_spec(case.needs) and f"{case.needs} is not installed")
    if missing:
        return {"outcome": "not run", "why": missing}
    if not way.applies(case):
        return {"outcome": "does not apply"}
    kernel = Kernel(folder, card)
    try:
        start = [PRELUDE if card.index else PRACTICE, way.prelude, "%load_ext cuda_magic" if way.id == "guard" else ""]
        for cell in start:
            _, error, _ = kernel.run(cell, 120)
            assert error is None, error
        with card.lock:
            if case.alone:
                card.wait_until_empty()
            for cell in case.setup:
                _, error, _ = kernel.run(cell, 120)
                if (error is None) == cell.startswith("# fails"):
                    return {"outcome": "not run", "why": f"the setup went wrong: {error}"}
            texts = {
                "_result": case.result,
                "_intact": case.intact,
                "_told": case.told if way.id == "guard" else "True",
            }
            kernel.run("".join(f"{name} = {text!r}\n" for name, text in texts.items()) + "_tries = 1")
            printed, error, seconds = kernel.run(way.code(case))
            if error and error.startswith("Timeout"):
                return {"outcome": "no", "error": error, "seconds": seconds, "tries": None, "intact": None}
            said, lost, _ = kernel.run(f"_failed = {bool(error)}\n{_READ}", 120)
            if lost or "FOUND " not in said:
                return {"outcome": "no", "error": lost or "the kernel died", "seconds": seconds, "intact": False}
            found = json.loads(said.split("FOUND ", 1)[1])
            if case.alone:
                kernel.close()  # the next one finds the card empty
        found["outcome"] = outcome(case, found, error)
        if way.id == "guard":
            found["right"] = is_right(case, found)
            found["lines"] = printed[-600:]
        first = error.split("\n")[0][:160] if error else None
        return {**found, "seconds": seconds, "error": first}
    finally:
        kernel.close()


def where(card: Card) -> dict[str, str]:
    """The card, its driver, and the releases of what was compared."""
    found = {"card": "PRACTICE", "python": ".".join(map(str, sys.version_info[:3]))}
    if card.index:
        import pynvml

        found["card"] = str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(int(card.index))))
        found["driver"] = str(pynvml.nvmlSystemGetDriverVersion())
    for name in ("torch", "ipykernel", "accelerate", "toma", "pytorch-lightning"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def cards_of(text: str | None) -> list[Card]:
    import pynvml

    pynvml.nvmlInit()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[:1]
    return [Card(index.strip()) for index in (text.split(",") if text else visible)]


def choose(text: str | None, known: list[str], what: str) -> list[str]:
    chosen = [t.strip() for t in text.split(",")] if text else known
    for name in chosen:
        if name not in known:
            sys.exit(f"no {what} {name!r}; there are: {', '.join(known)}")
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", help="where rescue.json and rescue.md are kept")
    parser.add_argument("--only", help="rows, comma separated")
    parser.add_argument("--ways", help="ways, comma separated")
    parser.add_argument("--missing", action="store_true", help="only what the file lacks, the guard first")
    parser.add_argument("--practice", action="store_true", help="on the practice GPU")
    parser.add_argument("--cards", help="numbers of the cards to use, comma separated: one unless given")
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1), help="kernels that start, for a card")
    parser.add_argument("--page", action="store_true", help="only put the table into docs/rescues.md")
    given = parser.parse_args()
    file = Path(given.folder, "rescue.json")
    kept = json.loads(file.read_text()) if file.exists() else {"rows": {}}
    if given.page:
        into_page(ROOT / "docs" / "rescues.md", kept)
        return
    cases = [c for c in CASES if c.practice or not given.practice]
    names = choose(given.only, [c.id for c in cases], "row")
    ways = choose(given.ways, [w.id for w in WAYS], "way")
    cards = [Card(None)] if given.practice else cards_of(given.cards)
    kept["where"] = where(cards[0])
    pairs = [(c, w) for c in cases if c.id in names for w in WAYS if w.id in ways]
    if given.missing:
        pairs = [(c, w) for c, w in pairs if w.id not in kept["rows"].get(c.id, {})]
        pairs.sort(key=lambda pair: pair[1].id != "guard")
    waiting, writing, began = deque(pairs), threading.Lock(), time.perf_counter()

    def go(case: Case, way: Way, card: Card) -> None:
        try:
            found = one(case, way, card, home)
        except Exception as error:
            found = {"outcome": "not run", "why": f"{type(error).__name__}: {error}"[:300]}
        found["date"] = time.strftime("%Y-%m-%d")
        figures = {k: v for k, v in found.items() if k not in ("outcome", "lines")}
        with writing:  # each at once: a run that is cut short keeps what it found
            print(f"{time.perf_counter() - began:6.1f} s  {case.id:14} {way.id:10} {found['outcome']:14} {figures}")
            sys.stdout.flush()
            kept["rows"].setdefault(case.id, {})[way.id] = found
            file.write_text(json.dumps(kept, indent=1) + "\n")

    def work(card: Card) -> None:
        while waiting:
            try:
                pair = waiting.popleft()
            except IndexError:
                return
            go(*pair, card)

    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home, ThreadPoolExecutor(given.jobs * len(cards)) as pool:
        list(pool.map(work, cards * given.jobs))
    Path(given.folder, "rescue.md").write_text(markdown(kept))
    print(f"{len(pairs)} pairs in {time.perf_counter() - began:.0f} s\n" + markdown(kept))
    wrong = [c.id for c in cases if c.id in names and kept["rows"][c.id].get("guard", {}).get("right") is False]
    if wrong:
        sys.exit(f"not the right answer of the guard: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
