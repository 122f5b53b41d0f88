"""Loading: light, silent, and undone without a trace."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import warnings

import pytest

HEAVY = ("torch", "pynvml", "pandas", "numpy", "ipywidgets", "anywidget")
NAMES = ("cuda_env", "cuda_guard", "gpu_mem", "cuda_doctor")


def run(code: str) -> str:
    """What a fresh Python prints, with warnings as errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", textwrap.dedent(code)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_loading_registers_the_four_magics_silently_and_imports_nothing_heavy():
    """Case 71: no torch, pynvml, pandas, numpy, ipywidgets or anywidget; nothing printed; the magics are there."""
    out = run(
        f"""
        import sys
        from IPython.core.interactiveshell import InteractiveShell
        shell = InteractiveShell.instance()
        before = set(sys.modules)
        shell.run_line_magic("load_ext", "cuda_magic")
        print([m for m in {HEAVY!r} if m in sys.modules and m not in before])
        print([n for n in {NAMES!r} if shell.find_line_magic(n) is None])
        """
    )
    assert out == "[]\n[]\n"


def test_loading_imports_nothing_but_our_own_light_rooms():
    """What costs time is importing: of our package only names and options load (benchmarks/load.py has the time)."""
    out = run(
        """
        import sys
        from IPython.core.interactiveshell import InteractiveShell
        shell = InteractiveShell.instance()
        import IPython.core.magics.extension
        before = set(sys.modules)
        shell.run_line_magic("load_ext", "cuda_magic")
        print(*sorted({m for m in set(sys.modules) - before}))
        """
    ).split()
    ours = {m.split(".")[1] for m in out if m.startswith("cuda_magic.")}
    assert ours <= {"allocation", "cells", "errors", "magics", "settings", "kernel"}, out
    assert not any(m.startswith("cuda_magic.allocation.") and not m.endswith("on_import") for m in out), out
    assert [m for m in out if not m.startswith("cuda_magic")] == [], out


def _state(shell):
    return {
        "line": {k for k in shell.magics_manager.magics["line"] if not k.endswith("load_ext")},
        "cell": set(shell.magics_manager.magics["cell"]),
        "registry": set(shell.magics_manager.registry),
        "configurables": len(shell.configurables),
        "transformers": len(shell.input_transformers_post),
        "cleanup": len(shell.input_transformers_cleanup),
        "ast": len(shell.ast_transformers),
        "events": {name: len(callbacks) for name, callbacks in shell.events.callbacks.items()},
        "completers": (len(getattr(shell.Completer, "custom_matchers", ())), "_complete" in vars(shell.Completer)),
        "hooks": set(vars(shell.hooks)) if hasattr(shell.hooks, "__dict__") else set(shell.hooks),
    }


def test_unloading_leaves_nothing_behind_and_reloading_doubles_nothing(shell):
    """The shell's tables are the same before loading and after unloading; after a reload as after one load."""
    import threading

    shell.run_line_magic("load_ext", "cuda_magic")  # IPython's own lazy parts are up after the first round
    shell.run_line_magic("unload_ext", "cuda_magic")
    before = _state(shell)
    threads = threading.active_count()
    shell.run_line_magic("load_ext", "cuda_magic")
    once = _state(shell)
    shell.run_line_magic("reload_ext", "cuda_magic")
    assert _state(shell) == once
    shell.run_line_magic("unload_ext", "cuda_magic")
    assert _state(shell) == before
    assert threading.active_count() == threads


@pytest.mark.parametrize("name", NAMES)
def test_help_shows_each_option_and_an_example_of_each(loaded, name):
    """`%name?` prints the table that the parser is built from."""
    from cuda_magic.magics import SPECS

    spec = next(s for s in SPECS if s.name == name)
    text = loaded.find_line_magic(name).__doc__
    for option in spec.options:
        assert option.flag in text
        assert option.help in text
    for line, what in spec.examples:
        assert line in text
        assert what in text


@pytest.mark.parametrize("name", NAMES)
def test_tab_completes_every_option(loaded, name):
    """TAB after `--` gives every option of the magic."""
    from cuda_magic.magics import SPECS

    spec = next(s for s in SPECS if s.name == name)
    line = f"%{name} --"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)  # the call that IPython 7.34 has too
        _, found = loaded.complete("--", line, len(line))
    assert set(spec.flags) <= set(found)


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_option_is_one_sentence_with_the_nearest_right_spelling(loaded, name):
    """A mistake raises our own exception, shown without a stack."""
    from cuda_magic.errors import UserError
    from cuda_magic.magics import SPECS

    spec = next(s for s in SPECS if s.name == name)
    wrong = spec.flags[0][:-1] + "x"
    with pytest.raises(UserError) as caught:
        loaded.run_line_magic(name, wrong)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert wrong in sentence
    assert caught.value._render_traceback_() == [f"UserError: {sentence}"]


def test_settings_are_reachable_through_config(loaded):
    """%config CudaMagic shows and sets the defaults; an illegal value is refused by its trait."""
    from traitlets import TraitError

    loaded.run_line_magic("config", "CudaMagic.retries = 5")
    settings = next(c for c in loaded.configurables if type(c).__name__ == "CudaMagic")
    assert settings.retries == 5
    with pytest.raises(TraitError):
        settings.interval = 0.01


def test_a_local_file_of_the_same_name_can_be_found_out(tmp_path):
    """Case 70: `python -m cuda_magic` prints where the package that is used lies."""
    import cuda_magic

    done = subprocess.run([sys.executable, "-m", "cuda_magic"], capture_output=True, text=True)
    assert cuda_magic.__version__ in done.stdout
    assert "cuda_magic" in done.stdout.split(" from ")[1]
