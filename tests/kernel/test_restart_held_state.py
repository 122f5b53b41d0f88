"""What a restart in place keeps, beside what the restart of the menu keeps, over kinds of held state."""

from __future__ import annotations

import ast
import sys

import pytest
from held_state import COLLECT, KINDS, MODULE
from running_kernel import RESTART, RunningKernel


def kept(folder, how: str, python: str = sys.executable) -> dict[str, int]:
    """The files that each kind of state left, after this kind of restart."""
    folder.mkdir()
    (folder / "held_module.py").write_text(MODULE)
    with RunningKernel(python, cwd=str(folder)) as kernel:
        for name, code in KINDS.items():
            ran = kernel.run(code)
            assert ran.status == "ok", (name, ran)
        if how == "menu":
            kernel.manager.restart_kernel(now=False)
            kernel.client.wait_for_ready(timeout=60)
        else:
            assert kernel.run(RESTART).status == "ok"
        return ast.literal_eval(kernel.run(COLLECT).text)


def compare(tmp_path, python: str = sys.executable) -> None:
    menu, place = kept(tmp_path / "menu", "menu", python), kept(tmp_path / "place", "place", python)
    lost = {name: (size, place.get(name)) for name, size in menu.items() if place.get(name) != size}
    assert not lost, lost
    assert len(menu) >= 20
    # and nothing is empty that the menu's leaves empty only by luck
    assert {n for n in place if place[n] == 0} <= {n for n in menu if menu[n] == 0}


def test_nothing_is_lost_that_the_menu_keeps(tmp_path):
    """Files written out and closed, threads ended, finalizers run: byte for byte as after a restart from the menu."""
    assert len(KINDS) >= 15
    compare(tmp_path)


def test_a_thread_that_does_not_end_is_named(tmp_path):
    """It is waited for as long as the server would, then lost, and the new process says so."""
    with RunningKernel(cwd=str(tmp_path)) as kernel:
        ran = kernel.run(
            "import threading, time\n"
            "threading.Thread(target=time.sleep, args=(100,), name='endless').start()\n"
            "from cuda_magic.kernel.restart import restart; restart(get_ipython(), say=True)"
        )
        assert "thread endless" in ran.text and "did not end" in ran.text
        assert kernel.run("print('threading' in globals())").text == "False\n"


def test_the_magic_says_what_it_did(tmp_path):
    """One line, with the variables that were set; they are listed in the new process too."""
    with RunningKernel(cwd=str(tmp_path)) as kernel:
        kernel.run(
            "%load_ext cuda_magic\n_ = get_ipython().run_line_magic('cuda_env', 'MY_THING=1 CUDA_LAUNCH_BLOCKING=1')"
        )
        ran = kernel.run("%cuda_env --restart")
        assert ran.text.count("\n") == 1 and "a new process with MY_THING, CUDA_LAUNCH_BLOCKING set" in ran.text
        seen = kernel.run("%load_ext cuda_magic\nprint(repr(get_ipython().run_line_magic('cuda_env', '')))").text
        assert "MY_THING" in seen and "CUDA_LAUNCH_BLOCKING" in seen


@pytest.mark.parametrize("code", ["1/0", "raise SystemExit"])
def test_a_finalizer_that_fails_stops_nothing(tmp_path, code):
    """An error in the user's own clean-up is said, and the new process comes."""
    with RunningKernel(cwd=str(tmp_path)) as kernel:
        ran = kernel.run(f"class D:\n    def __del__(self): {code}\nd = D()\n{RESTART}")
        assert ran.status == "ok"
        assert kernel.run("print('d' in globals())").text == "False\n"
