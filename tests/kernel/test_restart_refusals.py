"""Where a restart in place cannot work, it is refused with the reason, and nothing has changed."""

from __future__ import annotations

import subprocess
import sys

import pytest
from running_kernel import RESTART, RunningKernel

from cuda_magic.errors import Refused
from cuda_magic.kernel import refusals
from cuda_magic.kernel.restart import restart


@pytest.fixture(scope="module")
def kernel():
    with RunningKernel() as running:
        running.run("from cuda_magic.kernel.restart import restart; still = 'here'")
        yield running
        assert running.run("print(still)").text == "here\n"


def test_terminal_ipython_is_refused(shell):
    """No kernel: the sentence says so, and how to start IPython with the variables set."""
    with pytest.raises(Refused, match="IPython in a terminal, not a Jupyter kernel") as refused:
        restart(shell)
    assert "%cuda_env --export shell" in str(refused.value)


def test_in_process_kernel_is_refused():
    """A kernel inside another program must not replace that program."""
    code = (
        "from ipykernel.inprocess.manager import InProcessKernelManager as M\n"
        "m = M(); m.start_kernel()\n"
        "from cuda_magic.kernel.restart import restart\n"
        "try: restart(m.kernel.shell)\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert said.stdout.startswith("Refused The kernel is not restarted: this kernel does not have its process"), said


def test_embedded_kernel_is_refused(tmp_path):
    """`embed_kernel` opens another connection each time, so a client would wait for ever."""
    from jupyter_client.blocking.client import BlockingKernelClient

    file = tmp_path / "embedded.json"
    code = f"from ipykernel.embed import embed_kernel; embed_kernel(connection_file={str(file)!r})"
    program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        client = BlockingKernelClient()
        _wait_for(file, program)
        client.load_connection_file(str(file))
        client.start_channels()
        client.wait_for_ready(timeout=60)
        reply = client.execute(RESTART, reply=True, timeout=20)
        client.stop_channels()
        assert reply["content"]["ename"] == "Refused"
        assert "embedded or started by hand" in reply["content"]["evalue"]
    finally:
        program.kill()
        program.wait()


def _wait_for(file, program):
    import json
    import time

    end = time.monotonic() + 30
    while time.monotonic() < end and program.poll() is None:
        try:
            json.loads(file.read_text())
            return
        except (OSError, ValueError):
            time.sleep(0.05)
    raise AssertionError("the embedded kernel wrote no connection file")


CALLERS = {
    "thread": (
        "import threading\ndef go():\n    try: restart(ip)\n    except Exception as error: said.append(str(error))\n"
        "t = threading.Thread(target=go, name='mine'); t.start(); t.join()",
        "from the thread 'mine'",
    ),
    "task": (
        "import asyncio\nasync def go():\n    try: restart(ip)\n"
        "    except Exception as error: said.append(str(error))\n"
        "await asyncio.gather(go())",
        "from a callback or a background task",
    ),
    "fork": (
        "import os\nr, w = os.pipe()\nif os.fork() == 0:\n    try: restart(ip)\n"
        "    except Exception as error: os.write(w, str(error).encode())\n    os._exit(0)\n"
        "os.wait(); said.append(os.read(r, 1000).decode())",
        "a forked copy of the kernel",
    ),
}


@pytest.mark.parametrize("caller", CALLERS)
def test_only_the_cell_itself_may_ask(kernel, caller):
    """A thread, a task and a forked copy are told to call it in a cell of its own."""
    code, reason = CALLERS[caller]
    ran = kernel.run(f"said, ip = [], get_ipython()\n{code}\nprint(said[0])")
    assert ran.status == "ok", ran
    assert reason in ran.text
    assert ran.text.endswith("Call it in a cell of its own in the notebook.\n")


def test_environment_in_which_python_does_not_start_is_refused(kernel):
    """PYTHONHOME=/nonexistent would kill the new process: a trial start finds it, the cell fails with one sentence."""
    ran = kernel.run("import os; os.environ['PYTHONHOME'] = '/nonexistent'; restart(get_ipython())")
    assert ran.error.startswith("Refused: The kernel is not restarted: Python does not start in this environment (")
    assert "%cuda_env --undo" in ran.error
    assert kernel.run("del os.environ['PYTHONHOME']; print(still)").text == "here\n"


def test_forked_process_that_holds_the_sockets_is_refused(kernel):
    """A fork in a session of its own outlives the restart and would keep the ports: it is named by its pid."""
    fork = (
        "import os, time\nchild = os.fork()\nif child == 0:\n    os.setsid(); time.sleep(60); os._exit(0)\n"
        "while os.getpgid(child) != child: time.sleep(0.01)\n"
        "print(child, flush=True); restart(get_ipython())"
    )
    ran = kernel.run(fork)
    assert f"process {ran.text.strip()} was forked from this kernel into a session of its own" in ran.error
    assert kernel.run("os.kill(child, 9); os.wait(); print('ended')").text == "ended\n"


def test_release_without_a_needed_name_is_refused(kernel):
    """A private name that a later ipykernel dropped leads to a sentence, not to half a restart."""
    ran = kernel.run(
        "from cuda_magic.kernel import refusals\nold = refusals._NEEDED\n"
        "refusals._NEEDED = (*old, ('kernel', '_dropped'))\n"
        "try: restart(get_ipython())\nfinally: refusals._NEEDED = old"
    )
    assert "has no kernel._dropped, which the restart needs. Restart from the menu instead" in ran.error


def test_other_platforms_are_refused(shell, monkeypatch):
    """Only Linux is tried; elsewhere the menu is named."""
    monkeypatch.setattr(refusals.sys, "platform", "darwin")
    with pytest.raises(Refused, match="only on Linux, and this is darwin. Restart from the menu"):
        restart(shell)


def test_subshell_is_refused(kernel):
    """A subshell's cell cannot restart the kernel under the main shell."""
    client, session = kernel.client, kernel.client.session
    client.control_channel.send(session.msg("create_subshell_request"))
    subshell = client.get_control_msg(timeout=10)["content"]["subshell_id"]
    content = {"code": "restart(get_ipython())", "silent": False, "store_history": True, "user_expressions": {}}
    request = session.msg("execute_request", {**content, "allow_stdin": False, "stop_on_error": True})
    request["header"]["subshell_id"] = subshell
    client.shell_channel.send(request)
    reply = client.get_shell_msg(timeout=20)
    assert reply["content"]["ename"] == "Refused"
