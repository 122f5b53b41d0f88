"""Whose code deals with an out-of-memory error itself, by what its handlers do; that code then gets the error."""

from __future__ import annotations

import importlib.util
import itertools
import linecache
import textwrap

import pytest

from cuda_magic.allocation.own_way import deals_with_it

ASKED = "ask()"
_number = itertools.count()


@pytest.fixture
def asked():
    """Runs code whose `ask()` is an allocation; what was answered there."""

    def run(code: str, name: str = "__main__", filename: str = "<ipython-input-{}-x>") -> list[bool]:
        found: list[bool] = []
        code = textwrap.dedent(code)
        file = filename.format(next(_number))
        linecache.cache[file] = (len(code), None, code.splitlines(True), file)
        try:
            exec(compile(code, file, "exec"), {"__name__": name, "ask": lambda: found.append(deals_with_it())})
        finally:
            linecache.cache.pop(file)
        return found

    return run


@pytest.fixture
def library(tmp_path):
    """A module of a library, from a file."""

    def made(code: str):
        name = f"library_{next(_number)}"
        path = tmp_path / f"{name}.py"
        path.write_text(textwrap.dedent(code))
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return made


HANDLED = {
    "torch's class": """
        try:
            ask()
        except torch.OutOfMemoryError:
            small = True
        """,
    "torch's class by its name": """
        try:
            ask()
        except (ValueError, OutOfMemoryError):
            pass
        """,
    "a loop that halves": """
        batch = 64
        while batch > 32:
            try:
                ask()
            except RuntimeError:
                batch //= 2
            batch //= 2
        """,
    "the text": """
        try:
            ask()
        except Exception as error:
            if "out of memory" not in str(error):
                raise
        """,
    "given up for memory, else raised": """
        for batch in (64, 32):
            try:
                ask()
                break
            except RuntimeError as error:
                if "out of memory" in str(error):
                    continue
                raise
        """,
    "a function around": """
        def work():
            ask()
        def run():
            try:
                for _ in range(1):
                    work()
            except RuntimeError as error:
                print("smaller")
                work
        run()
        """,
    "everything is caught, and the class asked": """
        try:
            ask()
        except BaseException as error:
            if isinstance(error, torch.cuda.OutOfMemoryError):
                done = 1
        """,
}
NOT_HANDLED = {
    "nothing": "ask()",
    "raised again": """
        try:
            ask()
        except RuntimeError:
            raise
        """,
    "logged and raised again": """
        try:
            ask()
        except RuntimeError as error:
            print("failed", error)
            raise
        """,
    "logged at length, and raised again": """
        try:
            ask()
        except torch.OutOfMemoryError as error:
            print("failed", error)
            if error.args:
                print(error.args)
            torch.cuda.empty_cache()
            raise
        """,
    "told in other words": """
        try:
            ask()
        except RuntimeError as error:
            raise ValueError("too large") from error
        """,
    "finally only": """
        try:
            ask()
        finally:
            done = True
        """,
    "another error": """
        try:
            ask()
        except KeyError:
            pass
        """,
    "behind the try": """
        try:
            pass
        except RuntimeError:
            pass
        ask()
        """,
    "in the handler": """
        try:
            raise RuntimeError
        except RuntimeError:
            ask()
        """,
    "else": """
        try:
            pass
        except RuntimeError:
            pass
        else:
            ask()
        """,
}


@pytest.mark.parametrize("case", HANDLED)
def test_the_notebooks_code_deals_with_it(asked, case):
    """The error reaches it."""
    assert asked(HANDLED[case]) == [True]


@pytest.mark.parametrize("case", NOT_HANDLED)
def test_the_notebooks_code_does_not(asked, case):
    """Room is made."""
    assert asked(NOT_HANDLED[case]) == [False]


ACCELERATE = """
    import functools, gc, inspect
    def clear_device_cache(garbage_collection=False):
        pass
    def should_reduce_batch_size(exception):
        _statements = ["CUDA out of memory.", "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED."]
        if isinstance(exception, RuntimeError) and len(exception.args) == 1:
            return any(err in exception.args[0] for err in _statements)
        return False
    def find_executable_batch_size(function=None, starting_batch_size=128):
        if function is None:
            return functools.partial(find_executable_batch_size, starting_batch_size=starting_batch_size)
        batch_size = starting_batch_size
        def decorator(*args, **kwargs):
            nonlocal batch_size
            clear_device_cache(garbage_collection=True)
            params = list(inspect.signature(function).parameters.keys())
            while True:
                if batch_size == 0:
                    raise RuntimeError("No executable batch size found, reached zero.")
                try:
                    return function(batch_size, *args, **kwargs)
                except Exception as e:
                    if should_reduce_batch_size(e):
                        clear_device_cache(garbage_collection=True)
                        batch_size //= 2
                    else:
                        raise
        return decorator
    """


def test_accelerates_finder_of_batch_sizes(library):
    """As accelerate 1.x has it."""
    answers = []

    def train(batch_size):
        answers.append(deals_with_it())
        if batch_size > 32:
            raise RuntimeError("CUDA out of memory. Tried to allocate")
        return batch_size

    assert library(ACCELERATE).find_executable_batch_size(train)() == 32
    assert answers == [True] * 3


def test_broad_handlers_of_libraries_are_no_way(library):
    """``except Exception`` in a library means anything; RuntimeError alone does not mean memory there."""
    found = []
    made = library("""
        def broad(call):
            try:
                return call()
            except Exception:
                return None
        def runtime(call):
            try:
                return call()
            except RuntimeError:
                return None
        def text(call):
            try:
                return call()
            except RuntimeError as error:
                if "CUDA out of memory" in str(error):
                    return None
                raise
        """)
    for run in (made.broad, made.runtime, made.text):
        run(lambda: found.append(deals_with_it()))
    assert found == [False, False, True]


def test_ours_and_torchs_code_is_not_asked(asked):
    """torch's own handlers, IPython's, and ours."""
    for name in ("torch._inductor.runtime", "cuda_magic.rescue", "IPython.core"):
        assert asked(HANDLED["torch's class"], name) == [False]


def test_code_without_a_source_is_no_way():
    """exec of a text: nobody knows; room is made."""
    found: list[bool] = []
    exec(HANDLED["torch's class"].replace("\n        ", "\n"), {"ask": lambda: found.append(deals_with_it())})
    assert found == [False]


@pytest.mark.torch
def test_through_a_guarded_cell(loaded, monkeypatch):
    """The loop gets torch's error and halves, though tensors could have left the card; without it they do."""
    pytest.importorskip("torch")
    import torch

    from cuda_magic.testing.torch_card import torch_card

    monkeypatch.setenv("CUDA_MAGIC_PRACTICE", "1")
    card = torch_card(practice="8 MiB")
    try:
        loaded.user_ns["torch"] = torch
        loaded.run_cell("kept, n = torch.ones(1 << 20), 1 << 20")  # 4 of 8 MiB
        cell = "%%cuda_guard --report report\nwhile True:\n    try:\n        new = torch.ones(2 * n)\n        break\n"
        cell += "    except torch.OutOfMemoryError:\n        n //= 2"
        assert loaded.run_cell(cell).success
        assert loaded.user_ns["n"] == 1 << 19
        report = loaded.user_ns["report"]
        assert report.status != "failed"
        assert loaded.run_cell("%%cuda_guard --report report\nmore = torch.ones(1 << 20)").success
        assert loaded.user_ns["report"].status == "rescued"
    finally:
        for name in ("kept", "new", "more", "report"):
            loaded.user_ns.pop(name, None)
        card.close()
