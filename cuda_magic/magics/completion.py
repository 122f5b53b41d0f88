"""TAB on a line of ours: our words alone, where there are any; else IPython's own, as without us.

IPython merges what all completers give, and jedi's (on ``%cuda_env X=`` all of Python's builtins) come first. From
IPython 8.6 on a matcher can say that it suffices; before, the method that merges is asked through ours.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from .options import Spec

__all__ = ["Completion"]

_FRAGMENT = re.compile(r"[^\s=,:\[\]]*$")


class Completion:
    """Of one shell."""

    def __init__(self, shell: Any, specs: Sequence[Spec]) -> None:
        self.shell, self.completer = shell, shell.Completer
        self.specs = {spec.name: spec for spec in specs}
        self._line = re.compile(rf"\s*(?:\w+\s*=\s*)?%%?({'|'.join(self.specs)})\s")
        self._before: Any = None
        self._matcher: Any = None

    def find(self, line: str) -> tuple[str, list[str]]:
        """(the typed end of `line` that is replaced, what may stand there); `line` ends at the cursor."""
        match = self._line.match(line)
        fragment = _FRAGMENT.search(line)
        if match is None or fragment is None:
            return "", []
        event = SimpleNamespace(line=line.partition("%")[2], symbol=fragment[0])
        found = self.specs[match[1]].complete(self.shell, event)
        return fragment[0], list(dict.fromkeys(found))

    def install(self) -> None:
        """Let TAB ask us first."""
        try:
            from IPython.core.completer import context_matcher
        except ImportError:  # before IPython 8.6
            context_matcher = None
        if context_matcher is not None:

            def cuda_magic(context: Any) -> Any:
                from IPython.core.completer import SimpleCompletion

                fragment, found = self.find(context.text_until_cursor)
                return {
                    "completions": [SimpleCompletion(text=word, type="magic") for word in found],
                    "matched_fragment": fragment,
                    "suppress": bool(found),
                }

            self._matcher = context_matcher(priority=1000, identifier="cuda_magic")(cuda_magic)
            self.completer.custom_matchers.append(self._matcher)
            return
        before = self._before = self.completer._complete

        def complete(**given: Any) -> Any:
            result = before(**given)
            line = given.get("line_buffer") or (given.get("full_text") or "").split("\n")[given.get("cursor_line") or 0]
            fragment, found = self.find(line[: given.get("cursor_pos")])
            if not found:
                return result
            ours = (fragment, found, ["cuda_magic"] * len(found), ())
            return type(result)(*ours) if hasattr(result, "_fields") else ours

        self.completer._complete = complete

    def remove(self) -> None:
        """Leave IPython's completer as it was."""
        if self._before is not None:
            self.completer.__dict__.pop("_complete", None)
            self._before = None
        elif self._matcher in self.completer.custom_matchers:
            self.completer.custom_matchers.remove(self._matcher)
