"""What a person would not paste in public, taken out of text: names, home folders, tokens."""

from __future__ import annotations

import getpass
import re
import socket
from pathlib import Path

__all__ = ["clean"]

_HOME = re.compile(r"(?<![\w.])(/home|/Users|[A-Za-z]:\\Users)[/\\][^/\\\s'\"]+")
# General names of users and hosts are ordinary words here (a Jetson's user is nvidia): cutting them out would spoil
# sentences and tell nobody anything.
_WORDS = """
root jovyan user ubuntu docker localhost main this nvidia cuda torch admin administrator server driver kernel python
jupyter default notebook process container memory device card linux windows host node machine worker
"""
_NAMED_SECRET = re.compile(
    r"(?i)\b([\w-]*(?:token|secret|password|passwd|api[_-]?key|credential)[\w-]*)(\s*[=:]\s*)[^\s,;&]+"
)
_TOKEN = re.compile(r"\b(?:hf_|ghp_|gho_|github_pat_|sk-|glpat-|AKIA|xox[bp]-)[\w-]{8,}")
_URL_LOGIN = re.compile(r"(\w+://)[^/@\s]+@")


def _names() -> tuple[str, ...]:
    found = []
    for ask in (getpass.getuser, socket.gethostname):
        try:
            name = ask()
        except (OSError, KeyError, ImportError):
            continue
        if len(name) > 3 and name.lower() not in _WORDS.split():
            found.append(name)
    return tuple(found)


def clean(text: str) -> str:
    """`text` without home folders, user and host names, and what looks like a token."""
    home = str(Path.home())
    if len(home) > 2:
        text = text.replace(home, "~")
    text = _HOME.sub("~", text)
    text = _NAMED_SECRET.sub(r"\1\2(hidden)", text)
    text = _TOKEN.sub("(hidden)", text)
    text = _URL_LOGIN.sub(r"\1(hidden)@", text)
    for name in _names():
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", "(name)", text)
    return text
