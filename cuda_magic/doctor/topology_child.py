"""Runs in a child process, as a script: asks NVML what lies between each pair of cards, and prints it as JSON.

``python -I -S topology_child.py PATHS``, PATHS a JSON list of folders to import pynvml from.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

LINKS = 18
"""NVML_NVLINK_MAX_LINKS of nvml.h."""
SWITCH = 2
"""NVML_NVLINK_DEVICE_TYPE_SWITCH."""


def links(nvml: Any, handle: Any) -> tuple[dict[str, int], int]:
    """({bus id of the card at the other end: links to it}, links into a switch) of one card."""
    to: dict[str, int] = {}
    switched = 0
    for link in range(LINKS):
        try:
            if nvml.nvmlDeviceGetNvLinkState(handle, link) != 1:
                continue
            far = nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)
            if far == SWITCH:
                switched += 1
                continue
            bus = nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId
        except (nvml.NVMLError, AttributeError):
            continue
        bus = (bus.decode() if isinstance(bus, bytes) else bus).lower()
        to[bus] = to.get(bus, 0) + 1
    return to, switched


def main() -> None:
    out = os.dup(1)
    os.dup2(2, 1)
    sys.path[:0] = json.loads(sys.argv[1])
    import pynvml as nvml  # noqa: TID251 - a process of its own, which ends here

    nvml.nvmlInit()
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    cards, pairs = [], []
    for handle in handles:
        bus, name = nvml.nvmlDeviceGetPciInfo(handle).busId, nvml.nvmlDeviceGetName(handle)
        bus, name = (x.decode() if isinstance(x, bytes) else x for x in (bus, name))
        to, switched = links(nvml, handle)
        cards.append({"bus": bus.lower(), "name": name, "to": to, "switched": switched})
    for a, one in enumerate(handles):
        for b in range(a + 1, len(handles)):
            try:
                level = nvml.nvmlDeviceGetTopologyCommonAncestor(one, handles[b])
            except nvml.NVMLError as error:
                level = None if error.value else 0
            pairs.append([a, b, level])
    os.write(out, json.dumps({"cards": cards, "pairs": pairs}).encode())


if __name__ == "__main__":
    main()
