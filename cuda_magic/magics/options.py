"""Options of the magics as data: from one table come the parser, the help text and TAB completion.

The parser is argparse's, built when a magic is first used; the help text costs a few string joins at load.
"""

from __future__ import annotations

import argparse
import functools
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ..errors import UserError, nearest

__all__ = ["Option", "Spec"]


@dataclass(frozen=True)
class Option:
    """One option. `arguments` go to argparse's ``add_argument``; `values` completes what follows the flag."""

    flag: str
    help: str
    metavar: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    values: Sequence[str] = ()

    @property
    def usage(self) -> str:
        return f"{self.flag} {self.metavar}".strip()


_NEGATIVE = re.compile(r"-[0-9.]")


class _Parser(argparse.ArgumentParser):
    magic = ""
    flags: Sequence[str] = ()
    usages: Mapping[str, str] = {}
    """By flag; of those that take a value."""
    words: Sequence[str] = ()
    """Of the line that is being parsed."""

    def error(self, message: str) -> NoReturn:
        hint = ""
        if message.startswith("unrecognized arguments: "):
            wrong = message.split()[2]
            if wrong.startswith("-"):
                message = f"unknown option {wrong.split('=')[0]}."
                hint = self._hint(wrong.split("=")[0])
            else:
                message = f"takes no argument {wrong!r}{self._instead(wrong)}"
        elif message.startswith("argument "):
            flag, _, what = message.removeprefix("argument ").partition(": ")
            value = what.rpartition(" value: ")[2]
            if what.startswith("expected "):
                message = f"{flag} needs a value, as in {self.usages.get(flag, flag)}"
            elif what.startswith("ignored explicit argument "):
                message = f"{flag} takes no value"
            elif what.startswith("invalid int value: "):
                message = f"{flag} takes a whole number, not {value}"
            elif what.startswith("invalid float value: "):
                unit = " of seconds" if self.usages.get(flag, "").endswith(("SECONDS", " S")) else ""
                message = f"{flag} takes a number{unit}, not {value}"
        raise UserError(f"{self.magic}: {message.removesuffix('.')}.{hint}")

    def _instead(self, wrong: str) -> str:
        """How the option before a word that is one too many is written."""
        before = list(self.words[: self.words.index(wrong)]) if wrong in self.words else []
        flag = next((word.partition("=")[0] for word in reversed(before) if word.startswith("-")), "")
        return f"; {flag} takes one word, as in {self.usages[flag]}" if flag in self.usages else ""

    def _hint(self, wrong: str) -> str:
        """The option that was meant: the only one that begins so, else the nearest; else all."""
        if wrong in ("-h", "--help"):
            return f" %{self.magic}? shows all of them."
        begins = [flag for flag in self.flags if wrong.strip("-") and flag.startswith(wrong)]
        if len(begins) == 1:
            return f" Did you mean {begins[0]!r}?"
        return nearest(wrong, self.flags) or f" Options: {', '.join(self.flags)}"


def split(line: str) -> list[str]:
    """The words of a line; quotes group and are removed.

    Raises
    ------
    UserError
        If a quote is not closed.
    """
    try:
        return shlex.split(line, comments=False, posix=True)
    except ValueError as error:
        raise UserError(f"{line!r}: {str(error).lower()}.") from None


@dataclass(frozen=True)
class Spec:
    """What one magic takes: shown by ``%name?``, parsed, and completed."""

    name: str
    summary: str
    options: Sequence[Option] = ()
    positionals: Sequence[Option] = ()
    examples: Sequence[tuple[str, str]] = ()
    """(line, what it does), one for each use."""
    more: Callable[[Any], list[str]] | None = None
    """Completions beyond options, from the completer's event."""

    @property
    def flags(self) -> list[str]:
        return [option.flag for option in self.options]

    def doc(self) -> str:
        """The help text."""
        lines = [self.summary, "", "Examples", "--------"]
        wide = max((len(line) for line, _ in self.examples), default=0)
        lines += [f"{line.ljust(wide)}   {what}" for line, what in self.examples]
        lines += ["", "Options", "-------"]
        wide = max((len(o.usage) for o in (*self.positionals, *self.options)), default=0)
        lines += [f"{o.usage.ljust(wide)}   {o.help}" for o in (*self.positionals, *self.options)]
        return "\n".join(lines)

    def asks_help(self, line: str) -> bool:
        """Whether `line` asks what the magic does; it is printed then."""
        if not {"-h", "--help"} & set(line.split()):
            return False
        print(self.doc())  # noqa: T201 - the text is what was asked for
        return True

    @functools.cached_property
    def parser(self) -> argparse.ArgumentParser:
        parser = _Parser(prog=self.name, add_help=False, allow_abbrev=False)
        parser.magic, parser.flags = self.name, self.flags
        parser.usages = {option.flag: option.usage for option in self.options if option.metavar}
        for option in (*self.positionals, *self.options):
            arguments = dict(option.arguments)
            if option.metavar and "action" not in arguments and option.flag.startswith("-"):
                arguments.setdefault("metavar", option.metavar)
            elif not option.metavar and option.flag.startswith("-"):
                arguments.setdefault("action", "store_true")
            parser.add_argument(option.flag, help=option.help.replace("%", "%%"), **arguments)
        return parser

    def parse(self, words: str | Sequence[str]) -> argparse.Namespace:
        """The arguments as a namespace.

        Raises
        ------
        UserError
            One sentence with the nearest right spelling.
        """
        try:
            words = split(words) if isinstance(words, str) else list(words)
        except UserError as error:
            raise UserError(f"{self.name}: {error}") from None
        words = self._joined(words)
        parser = self.parser
        assert isinstance(parser, _Parser)
        parser.words = words
        try:
            return parser.parse_args(words)
        except argparse.ArgumentTypeError as error:
            raise UserError(f"{self.name}: {error}") from None

    def _joined(self, words: Sequence[str]) -> list[str]:
        """The words, with a negative value joined to its option, for which argparse would take it else.

        Raises
        ------
        UserError
            If an option that takes one value is given twice: the first would be lost.
        """
        once = {o.flag: o.usage for o in self.options if o.metavar and o.arguments.get("nargs") != "+"}
        joined: list[str] = []
        seen: set[str] = set()
        for word in words:
            flag = word.partition("=")[0]
            if flag in once and flag in seen:
                usage = once[flag].removesuffix(".")
                raise UserError(f"{self.name}: {flag} is given twice; write it once, as in {usage}.")
            if joined and joined[-1] in once and _NEGATIVE.match(word):
                joined[-1] += f"={word}"
                continue
            seen.add(flag)
            joined.append(word)
        return joined

    def complete(self, shell: Any, event: Any) -> list[str]:
        """Completions for TAB, from an event with `line` (up to the cursor) and `symbol`; never raises."""
        try:
            words = event.line.split()
            typed = event.symbol
            fresh = event.line[-1:].isspace()
            before = words[-1] if fresh else words[-2] if len(words) > 1 else ""
            word = "" if fresh else words[-1]
            found = [v for o in self.options if o.flag == before for v in o.values if v.startswith(typed)]
            if not found:
                # behind NAME= an option is no answer
                found = [flag for flag in self.flags if flag.startswith(word)] if word[:1] in ("", "-") else []
                if self.more is not None and word[:1] != "-":
                    found += self.more(event)
            return found
        except Exception:  # noqa: BLE001 - TAB must never print a traceback
            return []
