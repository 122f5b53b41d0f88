"""Python packages that get in each other's way."""

from __future__ import annotations

from ..facts import Facts
from ..finding import INFO, WARNING, Check, Finding

REPAIR = "%pip uninstall -y pynvml nvidia-ml-py3\n%pip install --force-reinstall nvidia-ml-py"


def two_owners(facts: Facts) -> Finding | None:
    """Two distributions that both own the module pynvml."""
    owners = [p for p in facts.packages if p.owns_pynvml]
    wrong = facts.pynvml_file == "pynvml/__init__.py" or (owners and all(p.name != "nvidia-ml-py" for p in owners))
    if len(owners) < 2 and not wrong:
        return None
    listed = ", ".join(f"{p.name} {p.version}" for p in owners)
    taken = f" An import takes {facts.pynvml_file}." if facts.pynvml_file else ""
    return Finding(
        WARNING,
        f"The module pynvml comes from {listed or 'a package that is not nvidia-ml-py'}.{taken}",
        "Old packages of that name hide NVIDIA's own (nvidia-ml-py): names arrive as bytes, functions are missing.",
        REPAIR,
        "vllm-project/vllm#7649, wookayin/gpustat#105",
    )


def deprecated(facts: Facts) -> Finding | None:
    """The deprecated pynvml beside nvidia-ml-py."""
    if not any(p.name == "pynvml" and not p.owns_pynvml for p in facts.packages):
        return None
    return Finding(
        INFO,
        "The deprecated package pynvml is installed beside nvidia-ml-py.",
        "It makes a FutureWarning appear when torch is imported, and does no other harm.",
        "%pip uninstall -y pynvml",
        "lincc-frameworks/hyrax#778",
    )


CHECKS = (
    Check("packages.two-pynvml", two_owners),
    Check("packages.deprecated-pynvml", deprecated),
)
