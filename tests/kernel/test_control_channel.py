"""The control channel of a real kernel: ours is answered while a cell runs, everybody else's as before."""

from __future__ import annotations

import pytest
from jupyter_client.manager import start_new_kernel

SETUP = """
from cuda_magic.kernel import control
heard = []
def hear(said):
    heard.append(said)
    return {"n": len(heard)} if said.get("key") == "mine" else None
assert control.listen(get_ipython(), hear)
"""


@pytest.fixture(scope="module")
def client():
    manager, one = start_new_kernel()
    one.execute_interactive(SETUP, timeout=30)
    yield one
    one.stop_channels()
    manager.shutdown_kernel(now=True)


def ask(client, content):
    message = client.session.msg("comm_info_request", content)
    client.control_channel.send(message)
    while True:
        reply = client.get_control_msg(timeout=10)
        if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
            return reply


def test_a_page_is_heard_while_a_cell_runs(client):
    """The answer comes long before the cell ends."""
    import time

    running = client.execute("import time; time.sleep(3)")
    started = time.monotonic()
    time.sleep(0.3)
    reply = ask(client, {"target_name": "cuda_magic.panel", "cuda_magic": {"key": "mine"}})
    assert reply["header"]["msg_type"] == "comm_info_reply"
    assert reply["content"]["cuda_magic"]["n"] >= 1 and reply["content"]["status"] == "ok"
    assert time.monotonic() - started < 2
    while client.get_shell_msg(timeout=10)["parent_header"].get("msg_id") != running:
        pass


def test_an_unknown_panel_is_told_so(client):
    """A page of an earlier kernel learns that this one is new."""
    assert ask(client, {"target_name": "cuda_magic.panel", "cuda_magic": {}})["content"]["cuda_magic"] is None


def test_other_requests_are_answered_as_before(client):
    """A plain comm_info_request gives the kernel's comms."""
    content = ask(client, {})["content"]
    assert content["status"] == "ok" and content["comms"] == {} and "cuda_magic" not in content


def test_deafen_puts_the_handler_back(client):
    """After it the kernel's own handler answers."""
    client.execute_interactive("control.deafen()", timeout=10)
    assert "cuda_magic" not in ask(client, {"target_name": "cuda_magic.panel", "cuda_magic": {}})["content"]
