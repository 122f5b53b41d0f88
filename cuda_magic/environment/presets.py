"""Sets of values that belong together, as data."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PRESETS", "Preset"]


@dataclass(frozen=True)
class Preset:
    """One named set; `beware` is what it costs, or what it does not do."""

    name: str
    meaning: str
    values: tuple[tuple[str, str], ...]
    beware: str = ""


PRESETS: tuple[Preset, ...] = (
    Preset(
        "nvml-check",
        "torch.cuda.is_available() counts GPUs by NVML and does not start CUDA, so that a fork stays possible.",
        (("PYTORCH_NVML_BASED_CUDA_CHECK", "1"),),
        "It repairs nothing: is_available() may say True where the first tensor fails.",
    ),
    Preset(
        "low-fragmentation",
        "torch's segments grow instead of being allocated anew.",
        (("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),),
    ),
    Preset(
        "debug",
        "An error shows at the line that caused it, with the C++ stack.",
        (("CUDA_LAUNCH_BLOCKING", "1"), ("TORCH_SHOW_CPP_STACKTRACES", "1")),
        "Slow: every kernel launch waits.",
    ),
    Preset(
        "deterministic",
        "cuBLAS gives the same numbers each time.",
        (("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),),
        "torch.use_deterministic_algorithms(True) is needed too.",
    ),
    Preset("cpu-only", "This process sees no GPU.", (("CUDA_VISIBLE_DEVICES", ""),)),
)
