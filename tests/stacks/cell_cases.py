# ruff: noqa: E501 - a cell on one line is easier to read
"""Cells that people write, each to be run plain and guarded."""

from __future__ import annotations

from differential import Case

FAIL = "def f(here):\n    return 1 / here\n"

VALUES = [
    Case("last_expression", "x = 3\nx + 1"),
    Case("none", "None"),
    Case("assignment_only", "x = 3"),
    Case("semicolon", "x = 3\nx + 1;"),
    Case("semicolon_and_comment", "x = 3\nx + 1;  # quiet"),
    Case("semicolon_in_a_comment", "x = 3\nx + 1  # not;"),
    Case("semicolon_in_a_string", "'a;'"),
    Case("two_on_a_line", "1; 2"),
    Case("only_a_comment", "# nothing"),
    Case("blank_lines_around", "\n\nx = 5\n\nx\n\n"),
    Case("multiline_string", '"""a\n  b\n"""'),
    Case("continued_line", "x = (1 +\n     2)\nx"),
    Case("decorator_and_class", "class A:\n    def __repr__(self):\n        return 'an A'\nA()"),
    Case("future_import", "from __future__ import annotations\ndef f(a: Missing): ...\nf.__annotations__"),
    Case("walrus", "(y := 4) + 1"),
    Case("braces_and_dollars", "x = 1\nprint('{x} $x {{x}}')\n!echo '{x}'"),
    Case("underscore", "_ + 1", setup="", then=("_",), plain="# %%cuda_guard\n41\n", guarded="%%cuda_guard\n41\n"),
    Case("non_ascii", "größe = 'µ ✓'\ngröße"),
    Case("loops_and_comprehensions", "[i * i for i in range(3)], {k: v for k, v in zip('ab', 'cd')}"),
    Case("prints", "print('out')\nimport sys\nprint('err', file=sys.stderr)\nprint('out again')"),
    Case("display", "from IPython.display import display, HTML\ndisplay(HTML('<b>1</b>'))\nHTML('<b>2</b>')"),
    Case(
        "display_handle",
        "from IPython.display import display\nh = display('a', display_id='fixed')\nh.update('b')\nh is not None",
    ),
    Case("clear_output", "from IPython.display import clear_output\nprint(1)\nclear_output(wait=True)\nprint(2)"),
    Case("rich_repr", "class R:\n    def _repr_html_(self):\n        return '<i>r</i>'\nR()"),
    Case("failing_repr", "class R:\n    def __repr__(self):\n        return 1 / 0\nR()"),
    Case("del", "x = 1\ndel x\n'x' in globals()"),
    Case(
        "globals_are_the_notebook",
        "x = 1\ndef g():\n    global x\n    x = 2\ng()\nx, globals() is get_ipython().user_ns",
    ),
    Case("name_and_file", "__name__, '__file__' in globals()"),
    Case("code_file", "import inspect\ndef g():\n    return 1\ninspect.getsource(g), g.__code__.co_firstlineno"),
    Case("warning", "import warnings\nwarnings.warn('careful')\n1"),
    Case("deprecation", "import warnings\nwarnings.warn('old', DeprecationWarning)\n1"),
    Case("pinfo", "int?"),
    Case("next_input", "get_ipython().set_next_input('y = 1')"),
    Case("displayhook_called", "import sys\nsys.displayhook(5)\n6"),
    Case("displayhook_called_semicolon", "import sys\nsys.displayhook(5)\nx = 6\nx;"),
    Case("references", "import sys\nx = object()\ny = [x, x]\nsys.getrefcount(x), sys.getrefcount(y)"),
    Case(
        "values_die_when_they_die",
        "class A:\n    def __del__(self): print('del')\nx = A()\nprint(1)\nx = A()\nprint(2)\nA()\nprint(3)\ndel x\nprint(4)",
    ),
    Case("automagic", plain="pwd", guarded="%%cuda_guard\npwd"),
    Case("pasted_prompts", plain=">>> x = 5\n>>> x", guarded="%%cuda_guard\n>>> x = 5\n>>> x"),
    Case("indented", plain="    x = 1\n    x", guarded="%%cuda_guard\n    x = 1\n    x"),
    Case("crlf_and_form_feed", "x = 1\r\n\x0cx\r\n"),
    Case("docstring_and_future", '"""doc"""\nfrom __future__ import annotations\nx: Missing = 1\nx'),
    Case(
        "attribute_accesses",
        "y = n.x\nn.x += 1\nz = [n, n]\nn = n\n5",
        setup="class Noisy:\n    def __getattribute__(self, k):\n        print('get', k)\n        return object.__getattribute__(self, k)\n    def __init__(self): self.x = 1\nn = Noisy()",
    ),
    Case(
        "hostile_values",
        "y = p\nz = [p]\np = [p]\nlist(map(str, [1]))\n5",
        setup="class P:\n    def __getattribute__(self, k):\n        raise RuntimeError('unbound proxy')\n    __eq__ = __bool__ = __len__ = __iter__ = __hash__ = lambda *a: 1 / 0\np = P()",
    ),
]

ERRORS = [
    Case("error", "x = 1\n1 / 0\ny = 2", then=("%tb", "%debug")),
    Case("error_in_a_function", f"{FAIL}\nf(0)", then=("%tb", "%debug")),
    Case("error_in_the_first_line", "1 / 0"),
    Case("error_after_output", "print('before')\n[][1]"),
    Case("error_in_a_library", "import json\njson.loads('{')"),
    Case("chained", "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e"),
    Case("in_handling", "try:\n    1 / 0\nexcept ZeroDivisionError:\n    undefined"),
    Case("suppressed_context", "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise KeyError('k') from None"),
    Case("group", "raise ExceptionGroup('two', [ValueError(1), KeyError(2)])", needs=(3, 11)),
    Case(
        "chained_group",
        "try:\n    1 / 0\nexcept Exception:\n    raise ExceptionGroup('g', [ValueError(1)])",
        needs=(3, 11),
    ),
    Case("notes", "e = ValueError('v')\ne.add_note('a note')\nraise e", needs=(3, 11)),
    Case(
        "own_renderer", "class E(Exception):\n    def _render_traceback_(self):\n        return ['mine']\nraise E('x')"
    ),
    Case(
        "slots_only",
        "class E(Exception):\n    __slots__ = ()\n    def __setattr__(self, *a):\n        raise TypeError\nraise E('x')",
    ),
    Case("syntax_error", "x = 1\nx = = 2"),
    Case("syntax_error_first", "def"),
    Case("indentation_error", "if True:\nx = 1"),
    Case("return_outside", "x = 1\nprint(x)\nreturn 3"),
    Case("keyword_repeated", "x = 1\nprint(x)\ndict(a=1, a=2)", then=("%tb",)),
    Case("break_outside", "x = 1\nif x:\n    break", then=("1",)),
    Case("compiler_warns", "x = 1\nx is 1"),
    Case("parser_warns", "x = '\\d'\nx"),
    Case("compiler_warns_and_refuses", "x = 1\nx is 1\nreturn 3"),
    Case("same_constants_are_two_objects", "a = 2570\nb = 2570\na is b, (lambda: 2570)() is a"),
    Case("bad_await", "def f():\n    await g()"),
    Case("syntax_error_at_run_time", "x = 1\neval('1 +')"),
    Case("unknown_magic", "%no_such_magic"),
    Case("usage_error", "%run"),
    Case("system_exit", "raise SystemExit(3)"),
    Case("sys_exit", "import sys\nprint('bye')\nsys.exit()"),
    Case("keyboard_interrupt", "x = 1\nraise KeyboardInterrupt", then=("%tb",)),
    Case("interrupted", "import time\nprint('ready', flush=True)\ntime.sleep(30)", interrupt=True),
    Case(
        "interrupted_and_caught",
        "import time\ntry:\n    print('ready', flush=True)\n    time.sleep(30)\nexcept KeyboardInterrupt:\n    print('caught')\n7",
        interrupt=True,
    ),
    Case("stop_iteration", "next(iter([]))"),
    Case("generator_error", "def g():\n    yield 1\n    raise ValueError('g')\nlist(g())"),
    Case("recursion", "def r(n):\n    return r(n + 1)\ntry:\n    r(0)\nexcept RecursionError:\n    print('deep')"),
    Case("raised_again", "raise saved", setup="try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    saved = e"),
    Case("error_in_exec", "exec('1 / 0')"),
    Case("too_deep_for_the_parser", "-" * 20000 + "1"),
    Case("yield_outside", "x = 1\nyield x"),
    Case("await_in_a_class", "class A:\n    await x"),
    Case("unfinished", "x = (1,\n  2"),
    Case("cell_magic_in_the_middle", "x = 1\n%%time\ny = 2"),
    Case("cause_in_a_circle", "a = ValueError(1)\nb = KeyError(2)\na.__cause__ = b\nb.__cause__ = a\nraise a"),
    Case(
        "long_chain",
        "def f(n):\n    try:\n        1 / 0 if n == 0 else f(n - 1)\n    except Exception as e:\n        raise ValueError(n) from e\nf(5)",
    ),
    Case(
        "traceback_of_another",
        "try:\n    1 / 0\nexcept Exception as e:\n    t = e.__traceback__\nraise ValueError(1).with_traceback(t)",
    ),
    Case(
        "error_in_exit",
        "class C:\n    def __enter__(s):\n        pass\n    def __exit__(s, *a):\n        raise KeyError('exit')\nwith C():\n    1 / 0",
    ),
    Case("base_exception", "raise BaseException('b')"),
    Case("generator_exit", "raise GeneratorExit"),
    Case("stop_async_iteration", "raise StopAsyncIteration(3)"),
    Case(
        "own_stop_iteration", "class S(StopIteration): pass\ndef f(here):\n    raise S(4)\nf(1)", then=("%tb", "%debug")
    ),
    Case("stop_iteration_from", "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise StopIteration from e"),
    Case("cancelled", "import asyncio\nraise asyncio.CancelledError('c')"),
    Case("interrupt_while_handling", "try:\n    1 / 0\nexcept Exception:\n    raise KeyboardInterrupt('k')"),
    Case("exit_with_a_text", "raise SystemExit('text')", then=("%tb",)),
    Case(
        "group_in_a_function",
        "def f(here):\n    raise ExceptionGroup('o', [ValueError(2), ExceptionGroup('i', [KeyError(1)])])\nf(1)",
        needs=(3, 11),
        then=("%debug",),
    ),
    Case(
        "except_star",
        "try:\n    raise ExceptionGroup('o', [ValueError(2), KeyError(1)])\nexcept* KeyError:\n    raise OSError(1)",
        needs=(3, 11),
    ),
    Case("base_group", "raise BaseExceptionGroup('o', [KeyboardInterrupt(), ValueError(2)])", needs=(3, 11)),
    Case("called_magic_fails", "get_ipython().run_cell_magic('time', '', '1 / 0')"),
    Case(
        "interrupted_in_a_function",
        "import time\ndef f(here):\n    print('ready', flush=True)\n    time.sleep(30)\nf(3)",
        interrupt=True,
        then=("%debug", "%tb"),
    ),
    Case("interrupted_loop", "print('ready', flush=True)\nwhile True:\n    pass", interrupt=True),
    Case("interrupted_shell", "print('ready', flush=True)\n!sleep 3\nprint('after')", interrupt=True),
    Case("verbose_mode", f"{FAIL}f(0)", setup="%xmode Verbose", after="%xmode Context"),
    Case("plain_mode", f"{FAIL}f(0)", setup="%xmode Plain", after="%xmode Context"),
    Case("minimal_mode", f"{FAIL}f(0)", setup="%xmode Minimal", after="%xmode Context"),
    Case(
        "custom_handler",
        "raise KeyError('k')",
        setup="get_ipython().set_custom_exc((KeyError,), lambda self, t, v, tb, tb_offset=None: print('handled', t.__name__))",
        after="get_ipython().set_custom_exc((), None)",
    ),
    Case(
        "out_of_memory_given_up",
        f"{FAIL}def g():\n    raise OutOfMemoryError('no room')\ng()",
        plain="# %%cuda_guard 0\ndef g():\n    raise OutOfMemoryError('no room')\ng()",
        guarded="%%cuda_guard 0\ndef g():\n    raise OutOfMemoryError('no room')\ng()",
        then=("%tb",),
    ),
]

AWAITS = [
    Case("await", "import asyncio\nawait asyncio.sleep(0.01)\n7"),
    Case("await_value", "import asyncio\nawait asyncio.sleep(0.01, 'v')"),
    Case("await_semicolon", "import asyncio\nawait asyncio.sleep(0.01, 'v');"),
    Case("async_for", "async def g():\n    for i in range(3):\n        yield i\nasync for i in g():\n    print(i)\ni"),
    Case(
        "async_with",
        "import contextlib\n@contextlib.asynccontextmanager\nasync def c():\n    yield 5\nasync with c() as v:\n    print(v)",
    ),
    Case("async_comprehension", "async def g():\n    for i in range(3):\n        yield i\n[i async for i in g()]"),
    Case(
        "await_error",
        "import asyncio\nasync def f(here):\n    await asyncio.sleep(0)\n    1 / here\nawait f(0)",
        then=("%tb",),
    ),
    Case("await_interrupted", "import asyncio\nprint('ready', flush=True)\nawait asyncio.sleep(1)", interrupt=True),
    Case("same_loop", "import asyncio\nt = asyncio.ensure_future(asyncio.sleep(0, 'done'))\nawait t"),
    Case("await_syntax_error", "await = 3"),
    Case(
        "await_in_a_branch",
        "import asyncio\nif True:\n    x = await asyncio.sleep(0, 4)\nf'{await asyncio.sleep(0, x)}'",
    ),
    Case(
        "task_group",
        "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    1 / 0\nasync with asyncio.TaskGroup() as tg:\n    tg.create_task(f())",
        needs=(3, 11),
    ),
    Case(
        "context_variable",
        "import contextvars, asyncio\nv = contextvars.ContextVar('v', default=0)\n_ = v.set(5)\nawait asyncio.sleep(0)\nv.get()",
    ),
    Case(
        "await_caught",
        "import asyncio\ntry:\n    print('ready', flush=True)\n    await asyncio.sleep(1)\nexcept asyncio.CancelledError:\n    print('cancelled')\n5",
        interrupt=True,
    ),
    Case("coroutine_not_awaited", "async def f(): ...\nc = f()\nc.close()\ntype(c).__name__"),
]

MAGICS = [
    Case("line_time", "%time x = sum(range(10))\nx"),
    Case("time_of_an_expression", "%time 1 + 1"),
    Case("shell", "!echo out\n!echo err >&2"),
    Case("shell_assignment", "files = !echo one two\nfiles"),
    Case("magic_assignment", "here = %pwd\ntype(here).__name__"),
    Case("env", "%env CUDA_MAGIC_TEST=1\n!echo $CUDA_MAGIC_TEST", after="%env CUDA_MAGIC_TEST="),
    Case("bash_inside", plain="%%bash\necho hi\necho no >&2", guarded="%%cuda_guard\n%%bash\necho hi\necho no >&2"),
    Case(
        "capture_inside",
        plain="%%capture c\nprint('in')\n5",
        guarded="%%cuda_guard\n%%capture c\nprint('in')\n5",
        then=("c.stdout",),
    ),
    Case("time_inside", plain="%%time\nx = 1\nx", guarded="%%cuda_guard\n%%time\nx = 1\nx"),
    Case(
        "writefile_inside",
        plain="%%writefile a.txt\nhello",
        guarded="%%cuda_guard\n%%writefile a.txt\nhello",
        setup="import os\nif os.path.exists('a.txt'):\n    os.remove('a.txt')",
        then=("print(open('a.txt').read())",),
    ),
    Case("time_outside", plain="%%time\nx = 1\nx", guarded="%%time\n%%cuda_guard\nx = 1\nx"),
    Case(
        "capture_outside",
        plain="%%capture c\nprint('in')\n5",
        guarded="%%capture c\n%%cuda_guard\nprint('in')\n5",
        then=("c.stdout, c.outputs",),
    ),
    Case(
        "itself_inside",
        plain="# %%cuda_guard\n# %%cuda_guard\nx = 1\nx / 0",
        guarded="%%cuda_guard\n%%cuda_guard\nx = 1\nx / 0",
    ),
    Case(
        "run_ipy",
        plain="%run cells.ipy",
        guarded="%run guarded.ipy",
        setup="open('cells.ipy', 'w').write('x = 4\\nprint(x)\\n')\nopen('guarded.ipy', 'w').write('%%cuda_guard\\nx = 4\\nprint(x)\\n')",
    ),
    Case("run_ipy_inside", "%run cells.ipy\nx", setup="open('cells.ipy', 'w').write('x = 4\\nprint(x)\\n')"),
    Case("run_py_inside", "%run script.py\nz", setup="open('script.py', 'w').write('z = 6\\nprint(__name__)\\n')"),
    Case("run_that_fails", "%run script.py", setup="open('script.py', 'w').write('z = 6\\n1 / 0\\n')"),
    Case("run_without_a_name", "%run", then=("%tb",)),
    Case(
        "run_that_exits", "%run script.py\n5", setup="open('script.py', 'w').write('import sys\\nsys.exit(3)\\n')\nNone"
    ),
    Case(
        "run_interrupted",
        "%run script.py\n5",
        setup="open('script.py', 'w').write('import time\\nprint(\"ready\", flush=True)\\ntime.sleep(30)\\n')\nNone",
        interrupt=True,
    ),
    Case("run_cell_inside", "get_ipython().run_cell('print(1)')\n2"),
    Case("timeit", "%timeit -n1 -r1 pass"),
    Case(
        "autoreload",
        "import importlib, os, _mod_r\nopen('_mod_r.py', 'w').write('v = 22\\n')\nos.utime('_mod_r.py', (3, 3))\nimportlib.invalidate_caches()",
        setup="import sys, os\nsys.path.insert(0, '') if '' not in sys.path else None\nopen('_mod_r.py', 'w').write('v = 1\\n')\nos.utime('_mod_r.py', (1, 1))\nsys.modules.pop('_mod_r', None)\n%load_ext autoreload\n%autoreload 2",
        then=("import _mod_r\n_mod_r.v",),
        after="%autoreload 0",
    ),
    Case("debug_inside", f"{FAIL}try:\n    f(0)\nexcept ZeroDivisionError:\n    pass\nprint('after')"),
    Case("pdb_statement", "def f():\n    here = 5\n    breakpoint()\n    return here\nf()", stdin=("p here", "c")),
    Case(
        "interact",
        "from ipywidgets import interact, IntSlider\n@interact(x=IntSlider(3))\ndef shown(x):\n    print('x is', x)",
    ),
    Case("interact_error", "from ipywidgets import interact\n@interact(x=3)\ndef shown(x):\n    1 / 0"),
    Case("output_widget", "from ipywidgets import Output\no = Output()\nwith o:\n    print('inside')\n1"),
    Case(
        "figure", "%matplotlib inline\nimport matplotlib.pyplot as plt\n_ = plt.plot([1, 2])", modules=("matplotlib",)
    ),
    Case(
        "figure_and_value",
        "%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.figure()\nplt.show()\n8",
        modules=("matplotlib",),
    ),
    Case("input", "name = input('who? ')\nprint('hello', name)", stdin=("me",)),
    Case("input_twice", "input('a '), input('b ')", stdin=("1", "2")),
    Case("pdb_on", f"%pdb on\n{FAIL}f(0)", stdin=("p here", "q"), after="%pdb off"),
    Case("extension_reloaded", "%reload_ext autoreload\n1 / 0", then=("%tb",)),
    Case(
        "own_cell_magic_inside",
        plain="%%mine abc\ndef",
        guarded="%%cuda_guard\n%%mine abc\ndef",
        setup="from IPython.core.magic import register_cell_magic\n@register_cell_magic\ndef mine(line, cell):\n    print(repr(line), repr(cell))\n    return 7",
    ),
    Case(
        "display_updated_later",
        "h.update('z')",
        setup="from IPython.display import display\nh = display('a', display_id='fx')",
    ),
    Case(
        "widget_callback",
        "s = IntSlider(3)\ns.observe(lambda change: print(change['new'] / 0), 'value')",
        setup="from ipywidgets import IntSlider",
        then=("s.value = 8",),
    ),
    Case(
        "figure_and_error",
        "%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1])\n1 / 0",
        modules=("matplotlib",),
    ),
    Case("history", "print(len(In) - get_ipython().execution_count)\n%history -l 0"),
]

SETTINGS = [
    Case(
        f"interactivity_{mode}_{what}",
        body,
        setup=f"get_ipython().ast_node_interactivity = {mode!r}",
        after="get_ipython().ast_node_interactivity = 'last_expr'",
    )
    for mode in ("all", "last", "last_expr", "none", "last_expr_or_assign")
    for what, body in (
        ("expressions", "x = 1\nx\nx + 1"),
        ("assignment", "x = 1\ny = 2"),
        ("loop", "for i in range(2):\n    i"),
    )
] + [
    *(
        Case(
            f"interactivity_{mode}_{what}",
            body,
            setup=f"get_ipython().ast_node_interactivity = {mode!r}",
            after="get_ipython().ast_node_interactivity = 'last_expr'",
        )
        for mode, what, body in (
            ("all", "semicolon", "1\n2\n3;"),
            ("all", "error", "1\n1 / 0\n3"),
            ("all", "await", "import asyncio\n1\nawait asyncio.sleep(0, 2)"),
            ("last", "semicolon", "for i in range(2): i;"),
            ("last_expr_or_assign", "semicolon", "x = 5;"),
            ("last_expr_or_assign", "annotation_alone", "x: int"),
            ("last_expr_or_assign", "constants", "x = 5\ny = 6"),
            ("none", "magic", "%time 5\n6"),
        )
    ),
    Case("silent_await", "import asyncio\nawait asyncio.sleep(0, 4)", silent=True, store_history=False),
    Case("silent", "print('s')\n5", silent=True, store_history=False),
    Case("silent_error", "1 / 0", silent=True, store_history=False),
    Case("not_stored", "x = 5\nx", store_history=False),
    Case("not_stored_semicolon", "x = 5\nx;", store_history=False),
    Case("not_stored_error", "x = 5\nx / 0", store_history=False),
    Case("not_stored_await", "import asyncio\nawait asyncio.sleep(0, 6)", store_history=False),
    Case("autoawait_off", "import asyncio\nawait asyncio.sleep(0)", setup="%autoawait False", after="%autoawait True"),
    Case(
        "ast_transformer",
        "1 + 1",
        setup="import ast\nclass T(ast.NodeTransformer):\n    def visit_Constant(self, node):\n        return ast.copy_location(ast.Constant(node.value * 10 if isinstance(node.value, int) else node.value), node)\nget_ipython().ast_transformers.append(T())",
        after="get_ipython().ast_transformers.clear()",
    ),
    Case(
        "ast_transformer_rejects",
        "1 + 1",
        setup="import ast\nfrom IPython.core.error import InputRejected\nclass T(ast.NodeTransformer):\n    def visit_BinOp(self, node):\n        raise InputRejected('no')\nget_ipython().ast_transformers.append(T())",
        after="get_ipython().ast_transformers.clear()",
    ),
    Case(
        "ast_transformer_is_asked_once",
        "1 + 1",
        setup="import ast\nclass T(ast.NodeTransformer):\n    def visit_Module(self, node):\n        print('module')\n        return node\nget_ipython().ast_transformers.append(T())",
        after="get_ipython().ast_transformers.clear()",
    ),
    Case(
        "somebody_elses_showtraceback",
        "1 / 0",
        setup="get_ipython().showtraceback = lambda *a, **k: print('mine', a, k)",
        after="del get_ipython().showtraceback",
    ),
    Case(
        "input_transformer",
        "@@ 5",
        setup="def _t(lines):\n    return [l.replace('@@', 'x =') for l in lines]\nget_ipython().input_transformers_cleanup.append(_t)",
        then=("x",),
        after="get_ipython().input_transformers_cleanup.pop()",
    ),
    Case(
        "events",
        "print('cell')",
        setup="_ = None; _seen = []\n_calls = {n: (lambda *a, n=n: _seen.append(n)) for n in ('pre_execute', 'pre_run_cell', 'post_execute', 'post_run_cell')}\nfor n, c in _calls.items():\n    get_ipython().events.register(n, c)",
        then=("for n, c in _calls.items():\n    get_ipython().events.unregister(n, c)\n_seen",),
    ),
]

CASES = [*VALUES, *ERRORS, *AWAITS, *MAGICS, *SETTINGS]
