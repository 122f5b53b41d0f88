"""What is called once a module has been imported: the module is the one that Python finds anyway."""

from __future__ import annotations

import importlib
import sys

import pytest

from cuda_magic.allocation.on_import import forget, when_imported


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "late_one.py").write_text("value = 3\n")
    (tmp_path / "broken_one.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "late_one"
    forget()
    for name in ("late_one", "broken_one"):
        sys.modules.pop(name, None)


def test_it_is_called_once_behind_the_import(module):
    """With the module whole, and the finder gone again."""
    seen = []
    before = list(sys.meta_path)
    for _ in range(2):
        when_imported(module, lambda: seen.append(sys.modules[module].value))
    assert len(sys.meta_path) == len(before) + 1
    found = importlib.import_module(module)
    assert seen == [3] and found.__spec__.origin.endswith("late_one.py")
    assert sys.meta_path == before
    assert "exec_module" not in vars(found.__spec__.loader)
    importlib.reload(found)
    assert seen == [3]


def test_an_import_that_fails_fails_as_without(module):
    when_imported("broken_one", lambda: pytest.fail("called"))
    with pytest.raises(ZeroDivisionError):
        importlib.import_module("broken_one")
    with pytest.raises(ModuleNotFoundError):
        when_imported("nowhere_at_all", lambda: pytest.fail("called"))
        importlib.import_module("nowhere_at_all")


def test_an_error_of_ours_does_not_fail_the_import(module):
    when_imported(module, lambda: 1 / 0)
    assert importlib.import_module(module).value == 3


def test_what_is_there_is_not_waited_for():
    before = list(sys.meta_path)
    when_imported("sys", lambda: pytest.fail("called"))
    assert sys.meta_path == before
