# ruff: noqa: E501 - a cell on one line is easier to read
"""Cells that run out of memory once and are rescued: to be seen as the plain cell with enough memory is seen."""

from __future__ import annotations

from dataclasses import replace

from differential import Case

SETUP = """
import gc
gc.disable()
from cuda_magic.testing import gpu as _practice
from cuda_magic.allocation.session import switch
switch(False)
gpu = _practice(force=True)
gpu.limit('3 GiB')
def fill():
    held = [gpu.empty('2 GiB')]
    held.append(held)  # a cycle: nobody but the collector lets go of it
def need(value=None):
    kept = gpu.empty('2 GiB')
    return value
"""
FILL = "fill()\n"
BEFORE = "switch(True)\n"
"""Room is made where memory is asked for; else what is done after the error is seen."""

SCRIPT = """
open('needs.py', 'w').write('a = need(4)\\nprint(a)\\n')
open('needs.ipy', 'w').write('x = 1\\na = need(4)\\nprint(a)\\n')
open('too_much.py', 'w').write('def f(here):\\n    return gpu.empty("4 GiB")\\nf(3)\\n')
open('too_much.ipy', 'w').write('x = 1\\ngpu.empty("4 GiB")\\n')
open('no_memory_matter.py', 'w').write('x = 1\\n1 / 0\\n')
import builtins
builtins.need, builtins.gpu = need, gpu
getattr(sys.modules.get("matplotlib.pyplot"), "draw_if_interactive", need).called = False  # %run draws what is left
"""
CLEAN = "import builtins\ndel builtins.need, builtins.gpu"

CASES = [
    Case("value", "need(4) + 1"),
    Case("semicolon", "need(4);"),
    Case("assignment", "x = need(3)\nx + 1", then=("x",)),
    Case("prints_before_and_after", "print('before')\nneed()\nprint('after')"),
    Case("stderr_too", "import sys\nneed()\nprint('err', file=sys.stderr)"),
    Case(
        "display_handle",
        "from IPython.display import display\nh = display('a', display_id='fixed')\nneed()\nh.update('b')\nh is not None",
    ),
    Case("loop", "for i in range(3):\n    x = need(i)\nx, i"),
    Case("comprehension", "[need(i) for i in range(3)]"),
    Case("try_finally", "try:\n    x = need(1)\nfinally:\n    y = 2\nx, y"),
    Case("random_numbers", "import random\nrandom.seed(5)\n[random.random(), need(), random.random()]"),
    Case("await", "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return need(9)\nawait f()"),
    Case(
        "async_for",
        "async def g():\n    for i in range(2):\n        yield need(i)\nasync for i in g():\n    last = i\nlast",
    ),
    Case(
        "time_outside",
        plain="%%time\nx = need(2)\nx",
        guarded="%%time\n%%cuda_guard\nx = need(2)\nx",
    ),
    Case(
        "capture_outside",
        plain="%%capture c\nprint('in')\nneed(5)",
        guarded="%%capture c\n%%cuda_guard --quiet\nprint('in')\nneed(5)",
        then=("c.stdout, c.stderr, c.outputs",),
    ),
    Case("bash_before", "!echo out\nneed()"),
    Case(
        "figure",
        "import matplotlib.pyplot as plt\n_ = plt.plot([1, 2])\nneed()",
        setup="%matplotlib inline",
        modules=("matplotlib",),
    ),
    Case(
        "figure_of_the_failed_attempt",
        "import matplotlib.pyplot as plt\nfor _i in range(1):\n    plt.figure(); plt.plot([1, 2]); need()",
        setup="%matplotlib inline",
        modules=("matplotlib",),
    ),
    Case("run_script", "%run needs.py\nprint('on')", setup=SCRIPT, after=CLEAN, then=("a, __name__",)),
    Case("run_script_here", "%run -i needs.py\nprint('on')", setup=SCRIPT, after=CLEAN, then=("a",)),
    Case("run_module", "%run -m needs\nprint('on')", setup=SCRIPT, after=CLEAN, then=("a",)),
    Case("run_ipy", "%run needs.ipy\nprint('on')", setup=SCRIPT, after=CLEAN, then=("a, x",)),
    Case(
        "run_and_a_figure",
        "%run needs.py\nimport matplotlib, matplotlib.pyplot as plt\n_ = plt.plot([1])\nmatplotlib.is_interactive()",
        setup="%matplotlib inline\nimport matplotlib.pyplot as plt\n" + SCRIPT,
        after=CLEAN,
        modules=("matplotlib",),
    ),
    Case("run_in_a_loop", "for i in range(2):\n    %run needs.py", setup=SCRIPT, after=CLEAN, then=("a, i",)),
    Case(
        "capture_inside",
        plain="%%capture c\nprint('in')\nx = need(5)",
        guarded="%%cuda_guard\n%%capture c\nprint('in')\nx = need(5)",
        then=("c.stdout, c.outputs, x",),
    ),
    Case(
        "run_in_capture",
        plain="%%capture c\n%run needs.py",
        guarded="%%cuda_guard\n%%capture c\n%run needs.py",
        setup=SCRIPT,
        after=CLEAN,
        then=("c.stdout, a",),
    ),
    Case("prun_inside", "%prun -q -T profile.txt x = need(4)\nx"),
    Case("input_before", "name = input('who? ')\nneed(name)", stdin=("me",)),
    Case(
        "interact",
        "from ipywidgets import interact, IntSlider\nneed()\n@interact(x=IntSlider(3))\ndef shown(x):\n    print('x is', x)",
    ),
    Case("silent", "print('s')\nneed(5)", silent=True, store_history=False),
    Case("not_stored", "x = need(5)\nx", store_history=False),
    Case(
        "all_expressions",
        "need(1)\n2",
        setup="get_ipython().ast_node_interactivity = 'all'",
        after="get_ipython().ast_node_interactivity = 'last_expr'",
    ),
    Case("error_after_it", "x = need(1)\n1 / 0", then=("%tb", "%debug")),
    Case("system_exit_after_it", "need()\nraise SystemExit(3)"),
    Case("keyboard_interrupt_after_it", "need()\nraise KeyboardInterrupt", then=("%tb",)),
    Case("interrupted_before_it", "import time\nprint('ready', flush=True)\ntime.sleep(30)\nneed()", interrupt=True),
    Case(
        "interrupted_in_the_repeat",
        "import time\ndef f():\n    need()\n    print('ready', flush=True)\n    time.sleep(30)\nf()",
        interrupt=True,
    ),
    Case("interrupted_after_it", "import time\nneed()\nprint('ready', flush=True)\ntime.sleep(30)", interrupt=True),
    Case(
        "interrupted_await",
        "import asyncio\nneed()\nprint('ready', flush=True)\nawait asyncio.sleep(1)",
        interrupt=True,
    ),
    Case(
        "twice",
        plain="# %%cuda_guard\nx = need(1)\n\ny = need(2)\nx, y",
        guarded="%%cuda_guard\nx = need(1)\nfill()\ny = need(2)\nx, y",
    ),
]
"""Each fills the card first, but for the plain one."""
CASES = [
    replace(one, plain=plain, guarded=guarded)
    for one in CASES
    for plain, guarded in [[text.replace("%%cuda_guard", "%%cuda_guard --repeat") for text in one.texts]]
]

FAILURES = [
    Case("not_rescued", "here = 4\ngpu.empty('4 GiB')", then=("%tb", "%debug")),
    Case(
        "in_a_function",
        "def f(here):\n    return gpu.empty('4 GiB')\nf(3)",
        then=("%tb", "%debug", "import traceback\ntraceback.print_tb(sys.last_traceback.tb_next)"),
    ),
    Case(
        "in_a_method",
        "class A:\n    def m(self, *here):\n        self.x = (here, gpu.empty('4 GiB'))\na = A()\na.m(4, [5])",
        then=("%tb", "%debug"),
    ),
    Case("in_a_class", "class A:\n    here = 3\n    x = gpu.empty('4 GiB')", then=("%tb", "%debug")),
    Case("in_a_comprehension", "(lambda here: [gpu.empty('4 GiB') for _ in [here]])(4)", then=("%tb", "%debug")),
    Case(
        "in_a_generator",
        "def g(here):\n    yield (here +\n        gpu.empty('4 GiB'))\nlist(g(3))",
        then=("%tb", "%debug"),
    ),
    Case("in_exec", "exec('here = 3\\ngpu.empty(\"4 GiB\")')", then=("%tb", "%debug")),
    Case(
        "chained",
        "def f(here):\n    try:\n        gpu.empty('4 GiB')\n    except RuntimeError as e:\n        raise ValueError('training failed') from e\nf(2)",
        then=("%tb", "%debug"),
    ),
    Case(
        "in_a_group",
        "try:\n    gpu.empty('4 GiB')\nexcept RuntimeError as e:\n    raise ExceptionGroup('two', [e, KeyError('k')])",
        needs=(3, 11),
        then=("%debug",),
    ),
    Case("after_output", "print('before')\nx = 1\ngpu.empty('4 GiB')"),
    Case(
        "in_an_await",
        "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return gpu.empty('4 GiB')\nawait f()",
        then=("%debug",),
    ),
    Case("not_stored", "gpu.empty('4 GiB')", store_history=False),
]
"""No room can be made: the plain cell's error, and the report below; what the debugger finds is the plain cell's too."""
