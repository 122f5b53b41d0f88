"""The kernel replaced in place, seen by a client of a real kernel process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from running_kernel import RESTART, RunningKernel


@pytest.fixture
def kernel(tmp_path):
    with RunningKernel(cwd=str(tmp_path)) as running:
        yield running


def test_next_cell_runs_in_a_new_process_with_the_new_environment_twice(kernel):
    """Same pid, new value, old names gone, nothing said, argv as before; and again; then a menu restart works."""
    argv = kernel.run("import sys; old = 1; print(sys.argv)").text
    for value in ("one", "two"):
        asked = kernel.restart_cell(value, after="print('rest of the cell')")
        assert (asked.status, asked.text, asked.states) == ("ok", "rest of the cell\n", ["busy", "idle"])
        seen = kernel.run("import os; print(os.getpid(), os.environ['FOO'], 'old' in globals()); old = 1")
        assert seen.text == f"{kernel.pid} {value} False\n"
    assert kernel.run("import sys; print(sys.argv)").text == argv
    left = "import os, sys; print([n for n in os.environ if 'RESUME' in n], 'cuda_magic.magics' in sys.modules)"
    assert kernel.run(left).text == "[] False\n"
    assert kernel.run("%load_ext cuda_magic\nprint('loaded')").text == "loaded\n"
    kernel.manager.restart_kernel()
    kernel.client.wait_for_ready(timeout=60)
    assert kernel.run("import os; print(os.environ.get('FOO'))").text == "None\n"


def test_queued_cells_run_in_the_new_process_in_order(kernel):
    """Run All with a restart in the middle: later cells run after it, in order; after an error the rest is aborted."""
    restart = f"import os; os.environ['FOO'] = 'all'; {RESTART}"
    cells = (
        "a = 1; import os",
        restart,
        "import os; print(os.environ['FOO'], 'a' in globals()); y = 1",
        "print(y + 1)",
    )
    ran = kernel.run_all(*cells, "1/0", "print('not run')")
    assert [one.text for one in ran] == ["", "", "all False\n", "2\n", "", ""]
    assert [one.status for one in ran] == ["ok"] * 4 + ["error", "aborted"]
    assert all(one.states == ["busy", "idle"] for one in ran[2:]), ran


def test_cells_sent_while_it_restarts_keep_their_order(kernel):
    """Cells sent one by one, 50 ms apart, before, during and after the change, all run in order in the new process."""
    ids = [kernel.client.execute(f"order = []; {RESTART}")]
    for number in range(30):
        ids.append(kernel.client.execute(f"order = [*globals().get('order', ()), {number}]"))
        time.sleep(0.05)
    assert kernel.run("print(order == list(range(30)))", timeout=30).text == "True\n"


def test_cell_that_fails_cancels_it(kernel):
    """The same process goes on, says that it was not restarted, and a later restart still works."""
    failed = kernel.restart_cell("x", before="kept = 1", after="1/0")
    assert failed.error == "ZeroDivisionError: division by zero"
    assert "the kernel is not restarted" in failed.text
    assert kernel.run("print(kept)").text == "1\n"
    assert kernel.restart_cell("y").status == "ok"
    assert kernel.run("print('kept' in globals())").text == "False\n"


def test_asked_twice_nested_or_awaiting(kernel):
    """Two calls in one cell are one; a nested run_cell and top-level await do not start it before the cell's end."""
    ran = kernel.run(
        f"{RESTART}; restart(get_ipython())\nget_ipython().run_cell('pass')\n"
        "import asyncio; await asyncio.sleep(0.3); print('end of the cell')"
    )
    assert (ran.status, ran.text, ran.states) == ("ok", "end of the cell\n", ["busy", "idle"])
    assert kernel.run("print('restart' in globals())").text == "False\n"


def test_interrupt_and_shutdown_work_afterwards(kernel):
    """SIGINT stops a cell of the new process; a polite shutdown ends it."""
    kernel.restart_cell("x")
    cell = kernel.client.execute("import time; time.sleep(30)")
    time.sleep(0.5)
    kernel.manager.interrupt_kernel()
    reply = kernel.client.get_shell_msg(timeout=10)
    assert (reply["parent_header"]["msg_id"], reply["content"]["ename"]) == (cell, "KeyboardInterrupt")
    kernel.manager.shutdown_kernel()
    assert not kernel.manager.is_alive()


def test_children_exit_handlers_descriptors_and_signals(kernel):
    """Children ended, atexit ran once, a port free again, alarm and ignored signals cleared, directory as before."""
    setup = """
import atexit, os, signal, socket, subprocess, threading, time
ran = os.path.abspath('exit.txt'); atexit.register(lambda: open(ran, 'a').write('x'))
child, apart = subprocess.Popen(['sleep', '100']), subprocess.Popen(['sleep', '100'], start_new_session=True)
if os.fork() == 0:
    time.sleep(100); os._exit(0)
listening = socket.create_server(('127.0.0.1', 0))
os.set_inheritable(listening.fileno(), True)
leaked = os.open('/dev/zero', os.O_RDONLY); os.set_inheritable(leaked, True)
print(child.pid, apart.pid, listening.getsockname()[1])
threading.Thread(target=time.sleep, args=(100,)).start()
signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
signal.alarm(600)
cores = os.sched_getaffinity(0); os.sched_setaffinity(0, {min(cores)})
os.chdir('/')
"""
    before = kernel.run("import os; print(os.getcwd(), len(os.sched_getaffinity(0)))").text
    asked = kernel.restart_cell("x", before=setup)
    assert asked.status == "ok", asked
    child, apart, port = asked.text.split()
    seen = kernel.run(
        "import os, signal, socket\n"
        "print(os.getcwd(), len(os.sched_getaffinity(0)))\n"
        "print(*map(int, map(signal.getsignal, (signal.SIGTERM, signal.SIGCHLD))), signal.pthread_sigmask(0, []))\n"
        "print(open('exit.txt').read())\n"
        "print('alarm in', signal.alarm(0))\n"
        f"socket.create_server(('127.0.0.1', {port})).close()\n"
        "print([os.path.realpath(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd')].count('/dev/zero'))"
    )
    assert seen.text == f"{before}0 0 set()\nx\nalarm in 0\n0\n", seen
    with pytest.raises(ProcessLookupError):
        os.kill(int(child), 0)
    os.kill(int(apart), signal.SIGKILL)  # in a session of its own: it lives on, as after a restart from the menu


def test_process_pool_and_hanging_exit_handler(kernel):
    """A pool of forked workers ends in its own way; a handler that sleeps for a minute is not waited for."""
    pool = "import multiprocessing as mp; pool = mp.get_context('fork').Pool(2); print(pool.map(abs, [-1, 2]))"
    assert kernel.restart_cell("pool", before=pool).text == "[1, 2]\n"
    started = time.monotonic()
    kernel.restart_cell("slow", before="import atexit, time; atexit.register(time.sleep, 60)")
    assert time.monotonic() - started < 30  # 5 to 6 s on an idle machine; the handler would take 60
    assert kernel.run("import os; print(os.environ['FOO'])").text == "slow\n"


def test_interpreter_flags_are_kept():
    """``-X dev -W ignore`` hold in the new process too, and PYTHON variables take effect."""
    with RunningKernel(sys.executable, "-X", "dev", "-W", "ignore") as kernel:
        kernel.restart_cell("x", before="import os; os.environ['PYTHONHASHSEED'] = '7'")
        seen = kernel.run("import sys; print(sys.flags.dev_mode, sys.warnoptions[-1], sys.flags.hash_randomization)")
        assert seen.text == "True ignore 1\n"


def test_launcher_that_dies_takes_the_new_kernel_along():
    """The poller for the parent process works in the new process: no kernel is left behind."""
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from running_kernel import RunningKernel\nkernel = RunningKernel()\nkernel.restart_cell('x')\n"
        "print(kernel.pid, flush=True)\nimport time; time.sleep(60)"
    )
    launcher = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = int(launcher.stdout.readline())
    launcher.kill()
    launcher.wait()
    launcher.stdout.close()
    end = time.monotonic() + 10
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < end:
        time.sleep(0.1)
    assert not os.path.exists(f"/proc/{pid}")


def test_debugger_that_is_on_does_not_hold_it_up(kernel):
    """debugpy takes hold of every child and every execve of its process; the restart goes past it."""
    pytest.importorskip("debugpy")
    client, session = kernel.client, kernel.client.session
    for number, command in enumerate(("initialize", "attach"), 1):
        arguments = {"clientID": "test", "adapterID": "", "pathFormat": "path"} if number == 1 else {}
        content = {"type": "request", "seq": number, "command": command, "arguments": arguments}
        client.control_channel.send(session.msg("debug_request", content))
        assert client.get_control_msg(timeout=20)["content"]["success"]
    assert kernel.restart_cell("debugged").status == "ok"
    assert kernel.run("import os; print(os.environ['FOO'])").text == "debugged\n"
