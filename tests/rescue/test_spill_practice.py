"""Spill on the practice card: the same rung, the same words."""

GIB = 1 << 30


def test_an_idle_tensor_waits_and_comes_back(practice):
    """16 of 24 GiB idle, 12 asked: rescued, the contents intact, nothing parked afterwards."""
    practice.plain("model = gpu.full('16 GiB', 7)")
    assert practice.guard("n = gpu.empty('12 GiB').numel()") is None
    assert practice.report.status == "rescued"
    assert practice.report.handled == 0
    assert practice.rung("spill").reason == "16.00 GiB wait on the host (model)"
    assert practice.gpu.allocator.parked() == 0
    assert practice.names["model"].sum() == 7 * 16 * GIB


def test_too_full_afterwards_and_back_at_the_next_chance(practice):
    """It stays on the host, said; reading it without room is an error of its own; then it comes back."""
    practice.plain("model = gpu.full('16 GiB', 7)")
    assert practice.guard("x = gpu.empty('12 GiB')") is None
    assert practice.report.handled == 0
    assert practice.report.notes[-1].startswith("16.00 GiB of this kernel's tensors wait on the host")
    error = practice.guard("model.sum() + 0 * x.numel()", only=("caches",))
    assert "out of memory" in str(error)
    practice.plain("del x")
    assert practice.guard("y = model.sum()") is None
    assert practice.names["y"] == 7 * 16 * GIB
    assert practice.gpu.allocator.parked() == 0


def test_what_is_in_use_stays(practice):
    """The statement names it: nothing is idle."""
    practice.plain("model = gpu.full('16 GiB', 7)")
    assert practice.guard("n = gpu.empty('12 GiB').numel() + model.numel()") is not None
    assert practice.rung("spill").reason == "no tensor is idle that may be parked"
