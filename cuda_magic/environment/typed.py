"""What was typed or pasted, read: forms of several shells, comments, ``$HOME`` and ``~``, files of assignments."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from ..errors import UserError
from .secrets import secret

__all__ = ["assignments", "dotenv", "expanded", "words"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFERENCE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_PREFIXES = {
    "export",
    "set",
    "declare",
    "typeset",
    "-x",
    "-gx",
    "env",
    "%env",
    "!export",
    "ENV",
    "ARG",
    "$",
    "-e",
    "--env",
    "!",
}
"""Words of other places before an assignment: bash, cmd, fish, Docker, IPython."""
_LANGUAGES = (
    re.compile(r"""^(?:os\.)?environ\[\s*["'](\w+)["']\s*\]\s*=\s*(?P<q>["'])(?P<value>.*)(?P=q)\s*$"""),
    re.compile(r"""^os\.putenv\(\s*["'](\w+)["']\s*,\s*(?P<q>["'])(?P<value>.*)(?P=q)\s*\)\s*$"""),
    re.compile(r"""^\$env:(\w+)\s*=\s*(?P<q>["']?)(?P<value>.*)(?P=q)\s*$""", re.IGNORECASE),
    re.compile(r"""^setenv\s+(\w+)\s+(?P<q>["']?)(?P<value>.*)(?P=q)\s*$"""),
    re.compile(r"""^([A-Z_][A-Z0-9_]*):\s+(?P<q>["']?)(?P<value>.*)(?P=q)\s*$"""),
    re.compile(r"""^set\s+-gx\s+(\w+)\s+(?P<q>["']?)(?P<value>.*)(?P=q)\s*$"""),
)
"""Lines of Python, PowerShell, csh, YAML and fish that set one variable."""


def words(line: str) -> list[str]:
    """The words of a line as a shell has them: quotes and brackets group, ``#`` begins a comment, ``$NAME`` (not in
    single quotes) and a leading ``~`` are replaced.

    Raises
    ------
    UserError
        If a quote or bracket is left open, or a variable that is referred to is not set.
    """
    for form in _LANGUAGES:
        if match := form.match(line.strip()):
            return [f"{match[1]}={match['value']}"]
    found: list[str] = []
    word, quote, depth, started = "", "", 0, False
    i = 0
    while i < len(line):
        c = line[i]
        reference = _REFERENCE.match(line, i) if c == "$" and quote != "'" else None
        if reference:
            word += _value(reference[1] or reference[2])
            started, i = True, reference.end()
            continue
        i += 1
        if quote:
            quote, word = ("", word) if c == quote else (quote, word + c)
        elif c in "'\"":
            quote, started = c, True
        elif c == "#" and not word and not started:
            break
        elif c.isspace() and not depth:
            if started or word:
                found.append(word)
            word, started = "", False
        elif c == "~" and (not word or word[-1] in "=:") and line[i : i + 1] in ("", "/", " ", ":"):
            word += str(Path.home())
        else:
            depth += (c == "[") - (c == "]")
            word += c
    if quote or depth > 0:
        raise UserError(f"cuda_env: {quote or '['} is not closed in this line.")
    return [*found, word] if started or word else found


def _value(name: str) -> str:
    if name not in os.environ:
        raise UserError(f"cuda_env: ${name} is not set here; in single quotes it stays as it is.")
    return os.environ[name]


def expanded(line: str) -> bool:
    """Whether `line` has something that `words` replaces."""
    if any(form.match(line.strip()) for form in _LANGUAGES):
        return False
    outside = re.sub(r"'[^']*'", "", line)
    return bool(_REFERENCE.search(outside) or re.search(r"[=:\s]~(?:[/\s:]|$)", outside))


def assignments(given: Sequence[str]) -> list[str]:
    """`given` without what other places put around an assignment: ``export``, ``;``, ``&&``, a prompt."""
    found = []
    for word in given:
        if "=" not in word and (word in _PREFIXES or word in ("&&", ";", "\\")):
            continue
        found.append(word.rstrip(";") if "=" in word else word)
    return found


def parse(given: Sequence[str]) -> dict[str, str]:
    """Names to values of ``NAME=VALUE`` words.

    Raises
    ------
    UserError
        If a word is no assignment, a name is no name, or one name has two values.
    """
    wanted: dict[str, str] = {}
    if "=" in given:
        raise UserError("cuda_env: write NAME=VALUE without spaces around the equals sign.")
    last = ""
    for word in assignments(given):
        name, equals, value = word.partition("=")
        if not equals and last and re.fullmatch(r"[\w-]+", word) and re.fullmatch(r"[\w,-]+", wanted[last]):
            if word[0].isdigit() or word.startswith(("GPU-", "MIG-")):
                raise UserError(f"cuda_env: a list is written with commas: {last}={wanted[last].rstrip(',')},{word}.")
            raise UserError(f"cuda_env: {word!r} is no assignment; NAME=VALUE is set here, and no command is run.")
        if not equals:
            raise UserError(f"cuda_env: {word!r} has no value; write {word}=VALUE.")
        if not _NAME.fullmatch(name):
            raise UserError(f"cuda_env: {name!r} is not the name of a variable.")
        if wanted.setdefault(name, value) != value:
            both = "" if secret(name, value) or secret(name, wanted[name]) else f", {wanted[name]} and {value}"
            raise UserError(f"cuda_env: {name} is given two values{both}; write one.")
        last = name
    return wanted


_LINE = re.compile(
    r"""[^\S\n]*(?:export[^\S\n]+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)[^\S\n]*=[^\S\n]*
    (?:'(?P<single>(?:\\'|[^'])*)'|"(?P<double>(?:\\.|[^"\\])*)"|(?P<plain>[^\n]*?))[^\S\n]*(?:\#[^\n]*)?(?:\n|$)""",
    re.VERBOSE,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "$": "$"}


def dotenv(path: Path) -> dict[str, str]:
    """The assignments of a ``.env`` file: comments, ``export``, quotes, lines that go on inside quotes, ``${NAME}``.

    Raises
    ------
    UserError
        If it cannot be read, or a line is no assignment; values are not shown.
    """
    try:
        text = path.expanduser().read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cuda_env: {path} cannot be read: {getattr(error, 'strerror', None) or 'it is no text'}."
        ) from None
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        end = text.find("\n", at) + 1 or len(text)
        if not text[at:end].strip() or text[at:end].lstrip().startswith("#"):
            at = end
            continue
        match = _LINE.match(text, at)
        if match is None:
            raise UserError(f"cuda_env: line {text.count(chr(10), 0, at) + 1} of {path} is no NAME=VALUE.")
        if match["single"] is not None:
            value = match["single"].replace("\\'", "'").replace("\\\\", "\\")
        else:
            raw = match["double"] if match["double"] is not None else re.split(r"\s+#", match["plain"])[0]
            value = _REFERENCE.sub(lambda m: found.get(m[1] or m[2], os.environ.get(m[1] or m[2], "")), raw)
            if match["double"] is not None:
                value = re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[0]), value)
        found[match["name"]] = value
        at = match.end()
    return found
