"""An extension: a terminal IPython takes each cell as one JSON line, in its own main loop."""

from __future__ import annotations

import json


def load_ipython_extension(shell):
    def prompt() -> str:
        return json.loads(input(f"\nREADY {shell.execution_count}\n"))

    shell.prompt_for_code = prompt
