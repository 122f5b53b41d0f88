"""How the trial itself ended: a child process that hung, died, told nothing, or was never started."""

from __future__ import annotations

import errno

from ..facts import Facts
from ..finding import ERROR, Finding
from ..places import log, reset
from ..startup import doing

__all__ = ["dies", "hangs", "silent", "unclear", "untried"]


def hangs(facts: Facts) -> Finding | None:
    """The child did not come to an end."""
    if not facts.startup.timed_out or not facts.startup.cut_off:
        return None
    return Finding(
        ERROR,
        f"CUDA was started in a child process, which hung in {doing(facts.startup.step)} and was killed.",
        "A card or the driver does not answer. In a first start without persistence mode many cards take their time.",
        f"{log(facts)}\n{reset(facts)}",
        "child process with a time limit",
        unusable=True,
    )


def dies(facts: Facts) -> Finding | None:
    """The child was ended by a signal."""
    number = facts.startup.signal
    if number is None or not facts.startup.cut_off:
        return None
    killed = " Signal 9 without a person behind it is the system, short of memory." if number == 9 else ""
    return Finding(
        ERROR,
        f"The child process that started CUDA was ended by signal {number} in {doing(facts.startup.step)}.",
        f"The driver library crashed, or the system ended the process.{killed}",
        f"{log(facts, 'nvrm -e xid -e oom')}\n$ ldconfig -p | grep libcuda",
        "exit status of the child process",
        unusable=True,
    )


def untried(facts: Facts) -> Finding | None:
    """No child process could be started, so CUDA was not tried."""
    s = facts.startup
    if not s.failed or s.step or s.returncode is not None:
        return None
    if s.errno in (errno.EMFILE, errno.ENFILE):
        do = "This kernel has as many files open as it may: close some, or restart it.\n$ ulimit -n"
    elif s.errno in (errno.EAGAIN, errno.ENOMEM):
        do = "The system lacks processes or memory for one more: end some, or lift the limit.\n$ ulimit -u\n$ free -h"
    elif "sys.executable" in s.failed or s.errno in (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR):
        do = "sys.executable of this Python is wrong (an embedded Python?). Ask from a terminal:\n$ cuda-magic doctor"
    else:
        do = "Ask from a terminal instead:\n$ cuda-magic doctor"
    return Finding(
        ERROR,
        f"CUDA could not be tried: no child process could be started ({s.failed}).",
        "Whether CUDA can be used is not known. It is never tried in this kernel itself, which it would change.",
        do,
        "subprocess.Popen",
        unusable=True,
    )


def silent(facts: Facts) -> Finding | None:
    """The child ended without an answer that can be read."""
    s = facts.startup
    if not s.failed or not s.cut_off or s.returncode is None or s.signal is not None or s.timed_out:
        return None
    where = f" in {doing(s.step)}" if s.step else ""
    return Finding(
        ERROR,
        f"The child process that starts CUDA told nothing of it{where}: {s.failed}.",
        "Whether CUDA can be used is not known: the Python that sys.executable names did not come so far, or the"
        " driver's"
        " library lacks a call.",
        "$ python -I -S -c 'import ctypes; print(ctypes.CDLL(\"libcuda.so.1\").cuInit(0))'",
        "exit code and output of the child process",
        unusable=True,
    )


def unclear(facts: Facts) -> Finding | None:
    """CUDA did not start, and no other check knows why."""
    s = facts.startup
    if s.ok or s.code is not None or s.load_error or s.timed_out or s.signal is not None or s.failed:
        return None
    return Finding(
        ERROR,
        "How CUDA starts is not known: the trial has no answer.",
        "Nothing was seen to work, and nothing to fail.",
        "$ cuda-magic doctor",
        "child process",
        unusable=True,
    )
