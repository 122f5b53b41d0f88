"""The smoke test of an installed wheel, run with the Python of a clean environment that has nothing but it."""

import ctypes
import importlib.metadata
import importlib.resources
import importlib.util
import subprocess
import sys
import warnings
from pathlib import Path

warnings.simplefilter("error", UserWarning)


def main():
    import cuda_magic

    environment = Path(sys.prefix).resolve()
    assert Path(cuda_magic.__file__).resolve().is_relative_to(environment), cuda_magic.__file__
    assert importlib.metadata.version("cuda-magic") == cuda_magic.__version__
    assert all(importlib.util.find_spec(name) is None for name in ("torch", "numpy", "pandas", "pytest"))
    for name in ("panel/panel.js", "panel/panel.css", "py.typed"):
        assert importlib.resources.files("cuda_magic").joinpath(name).is_file(), name

    shims = [str(path) for path in importlib.resources.files("cuda_magic").joinpath("allocation").glob("_shim.*.so")]
    assert len(shims) == 1 and ctypes.CDLL(shims[0]).cm_malloc, shims

    program = str(environment / "bin" / "cuda-magic")
    said = subprocess.run([program, "--version"], capture_output=True, text=True)
    assert said.stdout == f"cuda-magic {cuda_magic.__version__}\n", said
    for words, codes in ((["doctor"], (0, 1, 2)), (["mem"], (0, 2)), (["env"], (0, 1))):
        said = subprocess.run([program, *words], capture_output=True, text=True)
        assert said.returncode in codes and said.stdout and not said.stderr, said

    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config)

    def cell(text):
        done = shell.run_cell(text, store_history=True)
        assert done.success, (text, done)
        return done.result

    cell("%load_ext cuda_magic")
    cell("from cuda_magic.testing import gpu; card = gpu(force=True); card.limit('3 GiB')")
    assert "CUDA starts here" in repr(cell("%cuda_doctor"))
    assert "CUDA_VISIBLE_DEVICES" in repr(cell("%cuda_env CUDA_VISIBLE_DEVICES"))
    cell("whole = card.empty('3 GiB'); del whole")
    cell("parts = [card.full('64 MiB', i) for i in range(48)][::2]; card.limit('3.2 GiB')")
    assert cell("%%cuda_guard --quiet\nbig = card.full('256 MiB', 200)\ncard.sum(big)") == (256 << 20) * 200
    report = cell("%cuda_guard")
    assert report.status == "rescued", report
    assert "Practice GPU 24 GiB" in repr(cell("%gpu_mem --once"))
    assert "big" in repr(cell("%gpu_mem --who"))
    assert "</table>" in cell("%gpu_mem --once")._repr_html_()
    cell("%gpu_mem\n%gpu_mem --stop")
    mistake = shell.run_cell("%gpu_mem --onec")
    assert "Did you mean '--once'" in str(mistake.error_in_exec), mistake
    cell("%unload_ext cuda_magic")
    print(f"cuda_magic {cuda_magic.__version__} on Python {sys.version_info[0]}.{sys.version_info[1]}: well")


if __name__ == "__main__":
    main()
