"""The variables of torch.compile, JAX, TensorFlow, Hugging Face and of the process, as data (see variable.py)."""

from __future__ import annotations

from .variable import Variable, integer, number, one_of

__all__ = ["FRAMEWORKS"]

_JAX = "JAX's first operation"
_TF = "TensorFlow's first operation"
_XLA = "jaxlib/xla_client.py, generate_pjrt_gpu_plugin_options"


def _switch(name: str, meaning: str, first: str, source: str, values: tuple[str, ...] = ("1",)) -> Variable:
    return Variable(
        name, meaning, "use", one_of("0", "1"), values, "0 or 1", first_use=first, documented=True, source=source
    )


def _process(name: str, meaning: str, legal: str, source: str) -> Variable:
    return Variable(name, meaning, "process", legal=legal, source=source)


FRAMEWORKS: tuple[Variable, ...] = (
    # -- torch.compile, extensions, logs
    Variable(
        "TORCH_LOGS",
        "Which parts of torch log, and how much.",
        "import",
        values=("recompiles", "graph_breaks", "+dynamo", "output_code"),
        legal="names with commas; + more, - less (recompiles, +dynamo, output_code)",
        late="torch._logging.set_logs(...)",
        documented=True,
        source="torch/_logging/_internal.py, _init_logs at import",
    ),
    _switch(
        "TORCH_COMPILE_DISABLE",
        "1 makes torch.compile do nothing.",
        "the import of torch._dynamo",
        "torch/_dynamo/config.py",
    ),
    _switch(
        "TORCHINDUCTOR_FX_GRAPH_CACHE",
        "1 keeps compiled graphs between processes, 0 does not.",
        "the import of torch._inductor",
        "torch/_inductor/config.py, fx_graph_cache",
        ("0", "1"),
    ),
    Variable(
        "TORCHINDUCTOR_COMPILE_THREADS",
        "How many workers compile kernels.",
        "use",
        integer(),
        ("1",),
        "a whole number; 1 compiles in this process",
        first_use="the import of torch._inductor",
        documented=True,
        source="torch/_inductor/config.py, decide_compile_threads",
    ),
    _switch(
        "TRITON_INTERPRET",
        "1 runs Triton's kernels in Python, for debugging.",
        "the definition of a kernel",
        "triton/knobs.py",
    ),
    Variable(
        "TORCH_EXTENSIONS_DIR",
        "Where torch.utils.cpp_extension.load builds.",
        "always",
        legal="a folder",
        source="torch/utils/cpp_extension.py, _get_build_directory",
    ),
    Variable(
        "MAX_JOBS",
        "How many compilers a build of extensions starts at once.",
        "always",
        integer(),
        ("4",),
        "a whole number",
        source="torch/utils/cpp_extension.py, _get_num_workers",
    ),
    Variable(
        "CUDA_HOME",
        "Where the CUDA toolkit is that compiles extensions; torch's own kernels do not need it.",
        "use",
        values=("/usr/local/cuda",),
        legal="a folder with bin/nvcc",
        first_use="the import of torch.utils.cpp_extension",
        documented=True,
        source="torch/utils/cpp_extension.py, _find_cuda_home at import",
    ),
    # -- JAX
    Variable(
        "JAX_PLATFORMS",
        "Which platforms JAX looks for.",
        "use",
        values=("cuda", "cpu"),
        legal="cuda, cpu, rocm, tpu with commas",
        first_use="import jax",
        documented=True,
        source="jax/_src/config.py, jax_platforms",
    ),
    Variable(
        "XLA_FLAGS",
        "Flags of XLA's compiler; an unknown one ends the process.",
        "use",
        legal="--xla_...=... with spaces",
        first_use=_JAX,
        documented=True,
        source="xla/parse_flags_from_env.cc",
    ),
    Variable(
        "XLA_PYTHON_CLIENT_PREALLOCATE",
        "false keeps JAX from taking most of the card at its start.",
        "use",
        values=("false",),
        legal="false, False or 0 switch it off; anything else is on",
        default="true",
        first_use=_JAX,
        source=f"{_XLA}; measured",
    ),
    Variable(
        "XLA_CLIENT_MEM_FRACTION",
        "Share of the card that JAX takes at its start; above 1 with unified memory.",
        "use",
        number(),
        (".50", ".90"),
        "a number (above 1 only with TF_FORCE_UNIFIED_MEMORY=1)",
        ".75",
        first_use=_JAX,
        documented=True,
        refuses=True,
        source=f"{_XLA}: float()",
    ),
    Variable(
        "XLA_PYTHON_CLIENT_MEM_FRACTION",
        "The older name of XLA_CLIENT_MEM_FRACTION; JAX raises where both are set.",
        "use",
        number(),
        (".50", ".90"),
        "a number (above 1 only with TF_FORCE_UNIFIED_MEMORY=1)",
        first_use=_JAX,
        documented=True,
        refuses=True,
        source=f"{_XLA}: float()",
    ),
    Variable(
        "XLA_PYTHON_CLIENT_ALLOCATOR",
        "How JAX allocates.",
        "use",
        one_of("default", "platform", "bfc", "cuda_async", "vmm", case=False),
        ("default", "platform", "cuda_async"),
        "default, platform, bfc, cuda_async or (newer releases) vmm",
        first_use=_JAX,
        documented=True,
        refuses=True,
        source=f"{_XLA}: raises on any other",
    ),
    # -- TensorFlow
    Variable(
        "TF_FORCE_GPU_ALLOW_GROWTH",
        "true lets TensorFlow take memory as it needs it.",
        "use",
        one_of("true", "false"),
        ("true", "false"),
        "true or false",
        first_use=_TF,
        documented=True,
        source="tensorflow/core/common_runtime/gpu, BFC allocator",
    ),
    Variable(
        "TF_FORCE_UNIFIED_MEMORY",
        "1 lets TensorFlow and JAX take more memory than the card has, from the host.",
        "use",
        values=("1",),
        legal="1 or true",
        first_use="the first operation",
        documented=True,
        source="xla and tensorflow, GPU memory allocator",
    ),
    Variable(
        "TF_GPU_ALLOCATOR",
        "cuda_malloc_async uses CUDA's pool.",
        "use",
        values=("cuda_malloc_async",),
        legal="cuda_malloc_async",
        first_use=_TF,
        documented=True,
        source="tensorflow.org",
    ),
    Variable(
        "TF_CPP_MIN_LOG_LEVEL",
        "How much TensorFlow's native part logs: 0 all, 3 errors only.",
        "use",
        one_of("0", "1", "2", "3"),
        ("2", "3"),
        "0, 1, 2 or 3",
        "0",
        first_use="import tensorflow",
        documented=True,
        source="tsl/platform/default/logging.cc",
    ),
    # -- Hugging Face
    Variable(
        "TOKENIZERS_PARALLELISM",
        "false keeps tokenizers from threads, and from its warning after a fork.",
        "use",
        values=("false", "true"),
        legal="false (off, f, no, n, 0 or empty) or anything else",
        first_use="the first tokenizer that works on a batch",
        documented=True,
        source="huggingface/tokenizers, utils/parallelism.rs",
    ),
    Variable(
        "HF_HOME",
        "Where Hugging Face's libraries keep models and tokens.",
        "use",
        legal="a folder",
        default="~/.cache/huggingface",
        first_use="the import of huggingface_hub",
        documented=True,
        source="huggingface_hub/constants.py",
    ),
    # -- what counts when a process or a library starts
    Variable(
        "OMP_NUM_THREADS",
        "How many threads OpenMP uses in torch and numpy on the CPU.",
        "use",
        integer(lists=True),
        ("1", "4"),
        "a whole number above 0",
        late="torch.set_num_threads(n)",
        first_use="the load of an OpenMP library (import numpy, import torch)",
        documented=True,
        source="OpenMP specification",
    ),
    _process(
        "LD_LIBRARY_PATH",
        "Where the loader looks for libraries first.",
        "folders with colons",
        "ld.so(8): read when a process starts",
    ),
    _process(
        "LD_PRELOAD",
        "Libraries that the loader puts before all others.",
        "paths with colons or spaces",
        "ld.so(8): read when a process starts",
    ),
    _process(
        "PYTHONPATH",
        "Folders in which Python looks for modules.",
        "folders with colons",
        "Python documentation, command line and environment",
    ),
    _process(
        "PYTHONHASHSEED",
        "The seed of str's hashes.",
        "random, or a number up to 4294967295",
        "Python documentation, command line and environment",
    ),
    # -- AMD
    Variable(
        "HIP_VISIBLE_DEVICES",
        "Which AMD GPUs this process sees (torch built for ROCm).",
        "cuinit",
        legal="indices with commas",
        documented=True,
        source="ROCm documentation, GPU isolation",
    ),
    Variable(
        "ROCR_VISIBLE_DEVICES",
        "The same one layer below: indices or UUIDs.",
        "cuinit",
        legal="indices or GPU-UUIDs with commas",
        documented=True,
        source="ROCm documentation, GPU isolation",
    ),
)
