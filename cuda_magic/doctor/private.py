"""What a person would not paste in public, taken out of text: names, home folders, tokens."""

from __future__ import annotations

import getpass
import re
import socket
from pathlib import Path

from ..environment.secrets import HIDDEN, NAMED, SHAPES

__all__ = ["clean"]

_HOME = re.compile(r"(?<![\w.])(/home|/Users|[A-Za-z]:\\Users)[/\\][^/\\\s'\"]+")
# General names of users and hosts are ordinary words here (a Jetson's user is nvidia): cutting them out would spoil
# sentences and tell nobody anything.
_WORDS = """
root jovyan user ubuntu docker localhost main this nvidia cuda torch admin administrator server driver kernel python
jupyter default notebook process container memory device card linux windows host node machine worker
"""
_MAIL = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b")
# four numbers of a release (9.19.0.56) follow a sign or a word of it
_BYTE = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_IP = re.compile(
    r"(?<![\w.=+-])(?<!version )(?<!cuDNN )(?!127\.0\.0\.1\b|0\.0\.0\.0\b)" + rf"(?:{_BYTE}\.){{3}}{_BYTE}(?![\w.]\w)"
)
_IP6 = re.compile(r"(?<![\w:.])(?:[0-9a-fA-F]{1,4}:){3,7}(?::|[0-9a-fA-F]{1,4})(?::[0-9a-fA-F]{1,4})*(?![\w:.])")
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
    text = SHAPES.sub(HIDDEN, text)
    text = NAMED.sub(rf"\1\2{HIDDEN}", text)
    text = _URL_LOGIN.sub(r"\1(hidden)@", text)
    for form in (_MAIL, _IP, _IP6):
        text = form.sub(HIDDEN, text)
    for name in _names():
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", "(name)", text)
    return text
