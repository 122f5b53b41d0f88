"""With the debugger on: the children that ask NVML and start CUDA are not held up by it."""

from __future__ import annotations

import time

import pytest
from running_kernel import RunningKernel


def test_the_debugger_does_not_hold_up_our_children(fake_nvml):
    """debugpy takes hold of each Python that its process starts; ours answer as without it."""
    pytest.importorskip("debugpy")
    fake_nvml.device(0)
    with RunningKernel() as kernel:
        client, session = kernel.client, kernel.client.session
        for number, command in enumerate(("initialize", "attach"), 1):
            arguments = {"clientID": "test", "adapterID": "", "pathFormat": "path"} if number == 1 else {}
            content = {"type": "request", "seq": number, "command": command, "arguments": arguments}
            client.control_channel.send(session.msg("debug_request", content))
            assert client.get_control_msg(timeout=20)["content"]["success"]
        begun = time.monotonic()
        ran = kernel.run(
            "from cuda_magic.machine import machine; from cuda_magic.doctor.startup import probe\n"
            "print(machine().devices().read().status.ok, probe(limit=8).timed_out)"
        )
        assert ran.text == "True False\n" and time.monotonic() - begun < 5
