"""Let go of IPython's and Python's references to earlier failures and, if asked, to shown values."""

from __future__ import annotations

from ...kernel import holders as kernel
from ...memory.variables import Root, Search
from ..situation import Situation
from . import Did

__all__ = ["RUNG"]


class _Holders:
    id = "holders"
    again = True
    changes = False

    def skip(self, s: Situation) -> str:
        errors = kernel.earlier_errors(s.shell)
        outputs = s.options.free_outputs and kernel.outputs(s.shell)
        return "" if errors or outputs else "no earlier failure is kept"

    def run(self, s: Situation) -> Did:
        dropped = kernel.forget_errors(s.shell)
        said = [f"{dropped} references to earlier failures"] if dropped else []
        if s.options.free_outputs and s.allocator is not None:
            held = []
            for name, value in kernel.outputs(s.shell).items():
                if Search(s.allocator, s.namespace).held([Root("output", name, value)]):
                    held.append(value)
            freed = kernel.forget_outputs(s.shell, held)
            del held
            if freed:
                said.append(f"{freed} references to shown values")
        return Did(reason="let go of " + " and ".join(said) if said else "")


RUNG = _Holders()
