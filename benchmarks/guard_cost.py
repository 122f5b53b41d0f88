"""What a guarded cell that succeeds costs, beside ``%%time`` and the plain cell, in the same run.

    python benchmarks/guard_cost.py [FILE.json] [ROUNDS]

Prints the median processor time over rounds of interleaved runs, in microseconds, and what happened meanwhile:
collections that somebody asked for, and imports; FILE gets the same figures. The cells run in an IPython shell without
a front end, with the guard that users get. Rows below "torch" need torch (its CPU build will do) and are left out
without it; numpy and torch are imported for the rows that need them, in this order, so those above run without.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import io
import json
import os
import platform
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

STEP = """
def train(inputs):
    optimizer.zero_grad()
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    return loss
train(inputs)
"""

TRAINING = (
    """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(40)))
optimizer = torch.optim.Adam(model.parameters())
inputs = torch.randn(4, 8)
"""
    + STEP
)
"""80 parameters, and an Adam that has stepped."""

CROWD = (
    """
import numpy
generator = numpy.random.default_rng(0)
def double(value):
    return 2 * value
"""
    + "\n".join(
        f"a{i} = numpy.zeros(10)\nl{i} = list(range(10))\nd{i} = dict.fromkeys('abcde', {i})\n"
        f"n{i} = {i}\ns{i} = 'text {i}'"
        for i in range(60)
    )
    + "\n"
)
"""300 names: arrays, lists, dicts, numbers and strings, and what draws random numbers."""

THING = """
class Thing:
    def act(self, value):
        return 2 * value
thing = Thing()
"""
"""An object of the notebook's own class: it may lead to anything, so all names are marked."""

NETWORK = (
    """
import torch
torch.manual_seed(0)
class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        layers = []
        for _ in range(8):
            layers += [torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.BatchNorm2d(8)]
            layers += [torch.nn.ReLU(), torch.nn.Dropout(0.1)]
        self.layers = torch.nn.Sequential(*layers)
        self.head = torch.nn.Linear(8, 4)
    def forward(self, x):
        return self.head(self.layers(x).mean((2, 3)))
model = Network()
optimizer = torch.optim.Adam(model.parameters())
inputs = torch.randn(4, 8, 16, 16)
"""
    + STEP
)
"""The same with a model of a class of the notebook's own."""

ARRAYS = "import numpy, torch\n" + "\n".join(f"a{i} = numpy.ones(1 << 17)" for i in range(8)) + "\n"
"""Eight arrays of 1 MiB."""

LONG_LOOP = "for i in range(3):\n" + "\n".join(
    f"    a{i} = i * {i}\n    if a{i} > {i}:\n        a{i} -= 1" for i in range(20)
)

ROWS = {
    "one line": ("", "x = 1"),
    "ten lines": ("", "\n".join(f"x{i} = {i}" for i in range(10))),
    "ten calls": ("", "\n".join(f"y{i} = abs({i})" for i in range(10))),
    "twenty calls": ("def f(a):\n    return a", "\n".join(f"y{i} = f({i})" for i in range(20))),
    "a loop and an expression": ("", "total = 0\nfor i in range(100):\n    total += i\ntotal"),
    "a long loop": ("", LONG_LOOP),
    "a function and its call": (
        "",
        "def f(a, b=2):\n    c = a + b\n    for i in range(3):\n        c += i\n    return c\n\nprint(f(1), f(2))",
    ),
    "300 names: one line": (CROWD, "x = 1"),
    "300 names: one call": (CROWD, "y = double(n1)"),
    "300 names: five calls": (CROWD, "\n".join(f"y{i} = double(n{i})" for i in range(5))),
    "300 names: a method": (CROWD + THING, "y = thing.act(n1)"),
    "torch: one line": (TRAINING, "x = 1"),
    "torch: a training step": (TRAINING, "loss = train(inputs)"),
    "torch: five lines of one": (
        TRAINING,
        "optimizer.zero_grad()\noutput = model(inputs)\nloss = output.square().mean()\n"
        "loss.backward()\noptimizer.step()",
    ),
    "torch: a step of a class": (NETWORK, "loss = train(inputs)"),
    "torch: eight arrays of 1 MiB": (ARRAYS, f"x = torch.tensor({' + '.join(f'a{i}' for i in range(8))})"),
    "torch: ten calls": (TRAINING + "def f(a):\n    return a", "\n".join(f"y{i} = f({i})" for i in range(10))),
}
"""What the namespace has, and the cell."""
ON_CARD = {
    f"card: {name[7:]}": (
        setup.replace("inputs =", "model.cuda()\noptimizer = torch.optim.Adam(model.parameters())\ninputs =")
        .replace("randn(4, 8)", "randn(4, 8, device='cuda')")
        .replace("randn(4, 8, 16, 16)", "randn(4, 8, 16, 16, device='cuda')"),
        body,
    )
    for name, (setup, body) in ROWS.items()
    if setup in {TRAINING, NETWORK}
}
"""The training rows where a card is there."""
ROUNDS = 400


def measure(shell, body: str, rounds: int = ROUNDS) -> SimpleNamespace:
    """Median microseconds of the three ways to run `body`, and the guard's cost over the plain cell."""
    ways = {"plain": "# plain\n", "time": "%%time\n", "guard": "%%cuda_guard\n"}
    spent: dict[str, list[float]] = {way: [] for way in ways}
    with contextlib.redirect_stdout(io.StringIO()):
        for line in ways.values():
            shell.run_cell(line + body)
        gc.disable()  # so that a collection is one that somebody asked for
        modules, collections = set(sys.modules), sum(s["collections"] for s in gc.get_stats())
        try:
            for number in range(rounds):
                for way, line in ways.items():
                    text = f"{line}# edit {number}\n{body}"  # a cell that was edited: nothing of it is known
                    start = time.process_time()
                    shell.run_cell(text)
                    spent[way].append(time.process_time() - start)
            collected = sum(s["collections"] for s in gc.get_stats()) - collections
        finally:
            gc.enable()
    medians = {way: statistics.median(times) * 1e6 for way, times in spent.items()}
    return SimpleNamespace(**medians, collections=collected, imports=sorted(set(sys.modules) - modules))


def make_shell():
    """A shell with the extension loaded, as `%load_ext` does it."""
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config)
    shell.run_line_magic("load_ext", "cuda_magic")
    return shell


def _has_card() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_available()


def table(shell, rounds: int):
    """(row, its figures), one after the other."""
    for name, (setup, body) in (*ROWS.items(), *ON_CARD.items()):
        if name.startswith("card") and not _has_card():
            continue
        if name.startswith("torch") and importlib.util.find_spec("torch") is None:
            continue
        before = set(shell.user_ns)
        exec(setup, shell.user_ns)
        yield name, measure(shell, body, rounds)
        for new in set(shell.user_ns) - before:
            del shell.user_ns[new]


def main(path: str | None = None, rounds: str = str(ROUNDS)) -> None:
    shell, figures = make_shell(), {}
    print(f"{'cell':26}{'plain':>9}{'%%time':>9}{'guarded':>9}{'beside %%time':>15}   collections, imports")
    for name, m in table(shell, int(rounds)):
        ratio = f"{100 * (m.guard / m.time - 1):+.0f} %"
        print(
            f"{name:26}{m.plain:9.0f}{m.time:9.0f}{m.guard:9.0f}{ratio:>15}   {m.collections}, {m.imports}", flush=True
        )
        figures[name] = {
            "plain_us": round(m.plain),
            "time_us": round(m.time),
            "guarded_us": round(m.guard),
            "collections": m.collections,
            "imports": m.imports,
        }
    if path:
        releases = {
            name: version(name)
            for name in ("ipython", "numpy", "torch")
            if importlib.util.find_spec({"ipython": "IPython"}.get(name, name))
        }
        about = {
            "machine": f"CPU, {platform.machine()}, {os.cpu_count()} cores",
            "python": platform.python_version(),
            **releases,
            "rounds": int(rounds),
        }
        Path(path).write_text(json.dumps({"where": about, "rows": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
