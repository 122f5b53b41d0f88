"""The rung that lets what autograd saves wait on the host: when it is tried, when not, and that it ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cuda_magic.rescue.options import RUNGS
from cuda_magic.rescue.rungs.activations import RUNG

GIB = 1 << 30


class Hooks:
    """What the allocator gives: notes that it was entered and ended."""

    def __init__(self):
        self.log, self.moved, self.most_kept = [], {"out": 3 * GIB, "in": 2 * GIB, "ooms": 1}, 0

    def __enter__(self):
        self.log.append("on")

    def __exit__(self, *_):
        self.off()

    def off(self):
        self.log.append("off")


@pytest.fixture
def short(practice):
    """A card of 24 GiB where a statement takes 10 GiB, then asks for 20: what it took could be elsewhere."""
    practice.names["GIB"] = GIB
    allocator = practice.gpu.allocator if hasattr(practice.gpu, "allocator") else None
    from cuda_magic.machine import machine

    allocator = machine().allocator()
    practice.hooks = Hooks()
    allocator.recorded = lambda error: practice.recorded

    def activations(device, request):
        return practice.hooks

    allocator.activations = activations
    practice.recorded, practice.repeat = "", True
    practice.allocator = allocator
    practice.plain("def step():\n    first = gpu.empty('10 GiB'); gpu.empty('20 GiB')\n")
    return practice


ONLY = ("activations",)


def test_its_place_in_the_ladder():
    """After what the user asked for, before plain cudaMalloc."""
    assert RUNGS.index("else") < RUNGS.index("activations") < RUNGS.index("cudamalloc")
    assert RUNG.id == "activations"


def test_it_is_in_force_for_one_repeat_and_told_in_the_report(short):
    """Entered for the repeat, ended when that failed too, with what it did as a note; not tried again."""
    error = short.guard("step()", only=ONLY)
    assert "out of memory" in str(error)
    assert short.hooks.log[:2] == ["on", "off"]
    assert short.hooks.log.count("on") == 1
    rung = short.rung("activations")
    assert (rung.state, rung.reason) == ("on", "what autograd saves waits on the host")
    assert "activations: 3.00 GiB went to the host and 2.00 GiB came back" in short.report.notes
    assert short.report.attempts == 2


def test_a_rescue_is_told_too(short):
    """The repeat that succeeds ends the hooks, and the report has the note."""
    short.plain("def step():\n    first = gpu.empty('10 GiB')\n    return ask(first)\n")
    asked = []

    def ask(first):
        asked.append(1)
        return short.gpu.empty("20 GiB" if len(asked) == 1 else "1 GiB")

    short.names["ask"] = ask
    assert short.guard("x = step()", only=ONLY) is None
    assert short.report.status == "rescued"
    assert short.hooks.log[0] == "on"
    assert short.hooks.log[-1] == "off"
    assert len(short.report.notes) == 1


@pytest.mark.parametrize(
    "reason", ["the failed attempt recorded no graph for a backward pass", "the failed call ran under torch.compile"]
)
def test_it_is_skipped_where_nothing_was_recorded(short, reason):
    """What the frames told is the reason."""
    short.recorded = reason
    assert short.guard("step()", only=ONLY) is not None
    assert (short.rung("activations").state, short.rung("activations").reason) == ("skipped", reason)
    assert short.hooks.log == []


def test_it_is_skipped_where_the_request_alone_does_not_fit(short):
    """Then it does not matter where the rest is."""
    short.names["keep"] = short.gpu.empty("8 GiB")
    assert short.guard("step()", only=ONLY) is not None
    assert "the request alone is 20.00 GiB" in short.rung("activations").reason


def test_it_is_skipped_where_the_attempt_took_nothing(short):
    """The first request of a statement: there is nothing to move."""
    short.names["keep"] = short.gpu.empty("10 GiB")
    short.allocator.caching[0].limit = None
    assert short.guard("gpu.empty('14.5 GiB')", only=ONLY) is not None
    reason = short.rung("activations").reason
    assert "little to save" in reason or "the request alone" in reason


def test_it_is_skipped_where_moving_is_refused(short):
    """Graphs, ranks, compiled code: the table's reason."""
    short.allocator.refusal = "a captured CUDA graph remembers the addresses of its tensors"
    assert short.guard("step()", only=ONLY) is not None
    assert short.rung("activations").reason.startswith("a captured CUDA graph")


def test_hooks_that_fail_to_start_are_a_failed_rung(short):
    """The ladder goes on; the user's error is the one that shows."""

    def fail(device, request):
        raise RuntimeError("no stream\nmore")

    short.allocator.activations = fail
    error = short.guard("step()", only=ONLY)
    assert "out of memory" in str(error)
    assert (short.rung("activations").state, short.rung("activations").reason) == ("failed", "no stream")


@pytest.mark.torch
class TestWhatWasRecorded:
    """The frames of an error tell whether autograd was at work."""

    def said(self, function, *arguments):
        import torch

        from cuda_magic.memory.torch import autograd_trace

        try:
            function(*arguments)
        except RuntimeError as error:
            return autograd_trace.reason(torch, error)
        raise AssertionError

    def model(self):
        import torch

        class Fails(torch.nn.Module):
            def forward(self, x):
                raise RuntimeError("CUDA out of memory")

        return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), Fails())

    def test_a_forward_pass_that_records(self):
        """A module's input has a graph."""
        import torch

        assert self.said(self.model(), torch.ones(2, 4)) == ""

    def test_without_gradients(self):
        """torch.no_grad and inference_mode record nothing."""
        import torch

        for mode in (torch.no_grad, torch.inference_mode):
            assert "recorded no graph" in self.said(mode()(self.model()), torch.ones(2, 4))

    def test_a_backward_pass(self):
        """The loss has a graph."""
        import torch

        class Fails(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 1

            @staticmethod
            def backward(ctx, g):
                raise RuntimeError("CUDA out of memory")

        def run():
            Fails.apply(torch.ones(3, requires_grad=True)).sum().backward()

        assert self.said(run) == ""

    def test_torch_func(self):
        """Its transforms forbid hooks: seen by the file."""
        import torch

        def f(x):
            raise RuntimeError("CUDA out of memory")

        assert "torch.func" in self.said(torch.func.grad(f), torch.ones(3))

    def test_a_hostile_subclass(self):
        """An attribute that raises is passed by."""
        import torch

        class Hostile(torch.Tensor):
            @property
            def grad_fn(self):
                raise ValueError("mine")

        def run():
            x = torch.ones(3).as_subclass(Hostile)
            raise RuntimeError("CUDA out of memory", x.shape)

        assert "recorded no graph" in self.said(run)

    def test_nothing_is_kept(self):
        """Looking makes no dictionary of a frame's locals: they die with the frames."""
        import gc
        import traceback
        import weakref

        import torch

        from cuda_magic.memory.torch import autograd_trace

        seen = []

        def run():
            x = torch.ones(3, requires_grad=True) * 2
            seen.append(weakref.ref(x))
            raise RuntimeError("CUDA out of memory")

        try:
            run()
        except RuntimeError as error:
            assert autograd_trace.reason(torch, error) == ""
            traceback.clear_frames(error.__traceback__)
            gc.disable()
            try:
                assert seen[0]() is None
            finally:
                gc.enable()


COMPILED = """
import torch
from cuda_magic.memory.torch import native_kernels, safety, threads
torch.cuda.get_allocator_backend = lambda: "native"
torch.cuda.is_current_stream_capturing = lambda: False
threads.using_cuda = lambda: ""
print(repr(safety.refusals(torch, 0, doing=safety.SAVE)))
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
print(safety.refusals(torch, 0, doing=safety.SAVE))
"""


@pytest.mark.torch
def test_compiled_code_is_seen():
    """A real torch.compile leaves the mark that the table looks for; before it there is none."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", COMPILED], capture_output=True, text=True, check=True)
    before, after = done.stdout.splitlines()
    assert before == "''"
    assert after == "torch.compile is in use: its backward pass takes all that was saved at once"
