"""NVML is asked in a helper process: a driver that hangs or crashes costs this process nothing, and waits are bounded.

The helper starts with the first reading (some 0.1 s), answers each further one in a fraction of a millisecond, and
ends by itself when nobody asks. Nothing of the driver is loaded here.
"""

from __future__ import annotations

import atexit
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from .apart import command
from .model import DeviceSource, Reading, Status

__all__ = ["Helper", "forget", "source"]

LIMIT = 4.0
"""Seconds that one reading may take. Without persistence mode a driver wakes each card first, about a second each."""
GIVE_UP = 30.0
"""Seconds after which a helper that does not answer is ended. A slow driver has answered by then."""
AGAIN = 5.0
"""Seconds for which a failure of the helper is remembered, unless a reading is asked for anew."""
_MOST = 1 << 26


class _Ended(Exception):
    """The helper closed its end."""


class Helper:
    """A DeviceSource that asks NVML in a process of its own. One for each process; a forked child starts its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._asked: float | None = None
        """When the request was sent whose answer is still out."""
        self._answer = bytearray()
        self._failed = Status(False)
        self._failed_at = float("-inf")

    def read(self, *, processes: bool = True, slow: bool = True, anew: bool = False) -> Reading:
        """One reading, within `LIMIT` seconds; `anew` also where it failed a moment ago. Never raises an error."""
        with self._lock:
            end = time.monotonic() + LIMIT
            if not anew and time.monotonic() - self._failed_at < AGAIN:
                return Reading(time.time(), status=self._failed)
            for last in (False, True):
                try:
                    return self._ask(f"{processes:d}{slow:d}{anew:d}\n".encode(), end)
                except TimeoutError:
                    return self._fail(
                        "hang", "The NVIDIA driver did not answer NVML in time: it hangs, or is waking up."
                    )
                except OSError as error:
                    self.close()
                    return self._fail(
                        "start", f"NVML could not be asked in a helper process: {error.strerror or error}."
                    )
                except (_Ended, EOFError, pickle.UnpicklingError, AttributeError, ValueError) as error:
                    code = self._end()
                    if code == 0 and isinstance(error, _Ended) and not last:
                        continue  # nobody had asked for a while
                    how = f"by signal {-code}" if code is not None and code < 0 else "without an answer"
                    return self._fail("crash", f"The helper process that asked NVML ended {how}.")
            raise AssertionError

    def _fail(self, trouble: str, sentence: str) -> Reading:
        self._failed, self._failed_at = Status(False, None, sentence, trouble), time.monotonic()
        return Reading(time.time(), status=self._failed)

    def _ask(self, request: bytes, end: float) -> Reading:
        if self._asked is not None:  # of a reading that was given up or interrupted: its answer is thrown away
            if time.monotonic() - self._asked > GIVE_UP:
                self._end()
            else:
                self._receive(min(end, max(self._asked + LIMIT, time.monotonic())))
        if self._process is None:
            self._start()
        process = self._process
        assert process is not None and process.stdin is not None
        self._answer.clear()
        try:
            os.write(process.stdin.fileno(), request)
        except BrokenPipeError:
            raise _Ended from None
        self._asked = time.monotonic()
        return self._receive(end)

    def _receive(self, end: float) -> Reading:
        """The answer that is out. What an interrupt cuts off is picked up by the next reading."""
        process = self._process
        assert process is not None and process.stdout is not None
        fd, answer = process.stdout.fileno(), self._answer
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        while len(answer) < 4 or len(answer) < 4 + int.from_bytes(answer[:4], "little"):
            if not poll.poll(max(0.0, 1000 * (end - time.monotonic()))):
                raise TimeoutError
            part = os.read(fd, 1 << 16)
            if not part or len(answer) > _MOST:
                raise _Ended
            answer += part
        self._asked = None
        reading = pickle.loads(answer[4:])
        if not isinstance(reading, Reading):
            raise ValueError(type(reading).__name__)
        self._failed_at = float("-inf")
        return reading

    def _start(self) -> None:
        package = str(Path(__file__).resolve().parents[2])
        paths = [package, *(str(p) for p in sys.path if p and p != package)]
        words = command("-I", "-S", str(Path(__file__).with_name("child.py")), json.dumps(paths))
        self._process = subprocess.Popen(
            words,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # an interrupt of a terminal is for the kernel alone
        )
        self._asked = None

    def close(self) -> None:
        """End the helper, without waiting for one that the driver holds."""
        self._end()

    def _end(self) -> int | None:
        """Its exit code, None where it does not end."""
        process, self._process, self._asked = self._process, None, None
        self._answer.clear()
        if process is None:
            return None
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            return process.wait(0.2)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        try:
            return process.wait(0.2)
        except subprocess.TimeoutExpired:  # in the driver, where not even SIGKILL reaches it: the system's, later
            return None

    def forked(self) -> None:
        """In a forked child: the helper is the parent's."""
        self._lock = threading.Lock()
        process, self._process, self._asked = self._process, None, None
        if process is not None:
            process.returncode = 0
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


_source: Helper | None = None


def source() -> DeviceSource:
    """The process's one source; without poll and sessions (Windows) NVML is asked here."""
    global _source
    if os.name != "posix":
        from .nvml import source as here

        return here()
    if _source is None:
        _source = Helper()
    return _source


def forget() -> None:
    """End the helper; the next reading starts another."""
    global _source
    if _source is not None:
        _source.close()
        _source = None


def _after_fork() -> None:
    if _source is not None:
        _source.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(forget)
