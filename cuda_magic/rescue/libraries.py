"""Other libraries of this kernel that take memory of the card by themselves, and how each gives it back: a table."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from .lines import variable

__all__ = ["HELD", "Library", "imported"]

HELD = "library"
"""Kind of the row for what neither torch nor the CUDA context of this process explains."""


@dataclass(frozen=True)
class Library:
    """`module` is its name in ``sys.modules``; `setting` a variable that lets it take less from its next start on."""

    module: str
    name: str
    why: str = ""
    line: str = ""
    setting: tuple[str, str] | None = None
    source: str = ""

    @property
    def step(self) -> tuple[str, str] | None:
        """(why, the line to run); None where nothing is known that helps."""
        line = variable(*self.setting) if self.setting is not None else self.line
        return (f"{self.name} {self.why}", line) if line else None


_KEEPS = "keeps the share of the card that it took until the kernel restarts; from then on let it take as it needs"
_DELETE = "gives its memory back with the last reference to it: delete it, then collect"

LIBRARIES = (
    Library(
        "tensorflow",
        "TensorFlow",
        _KEEPS,
        setting=("TF_FORCE_GPU_ALLOW_GROWTH", "true"),
        source="tensorflow.org/guide/gpu, Limiting GPU memory growth; docker-rstats#182",
    ),
    Library(
        "jax",
        "JAX",
        _KEEPS,
        setting=("XLA_PYTHON_CLIENT_PREALLOCATE", "false"),
        source="docs.jax.dev, GPU memory allocation",
    ),
    Library(
        "paddle",
        "Paddle",
        "gives back what it has cached",
        "import paddle; paddle.device.cuda.empty_cache()",
        source="paddle/device/cuda/__init__.py",
    ),
    Library(
        "numba.cuda",
        "Numba",
        "frees what was deleted only later, by the batch",
        "from numba import cuda; cuda.current_context().deallocations.clear()",
        source="numba/cuda/cudadrv/driver.py, _PendingDeallocs",
    ),
    Library("rmm", "RMM (cuDF, cuML)", "gives its memory back with the frames: delete them", "import gc; gc.collect()"),
    Library("onnxruntime", "ONNX Runtime", f"(a session) {_DELETE}", "import gc; gc.collect()"),
    Library("ctranslate2", "CTranslate2", f"(a model) {_DELETE}", "import gc; gc.collect()"),
    Library("llama_cpp", "llama.cpp", f"(a model) {_DELETE}", "import gc; gc.collect()"),
    Library("tensorrt", "TensorRT", f"(an engine) {_DELETE}", "import gc; gc.collect()"),
    Library("faiss", "Faiss", f"(an index and its GpuResources) {_DELETE}", "import gc; gc.collect()"),
    Library("xgboost", "XGBoost", f"(a booster and its data) {_DELETE}", "import gc; gc.collect()"),
    Library("catboost", "CatBoost"),
    Library("lightgbm", "LightGBM"),
    Library("mxnet", "MXNet"),
    Library("pycuda.driver", "PyCUDA"),
    Library("taichi", "Taichi"),
    Library("warp", "Warp"),
    Library("drjit", "Dr.Jit"),
    Library("cupy", "CuPy"),
)


def imported() -> list[Library]:
    """Those of the table that this kernel has imported; nothing is imported or started by looking."""
    return [library for library in LIBRARIES if sys.modules.get(library.module) is not None]
