"""What a user can do about a cell that runs out of memory: each way as the code of the cell."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from rescue_cases import Case

__all__ = ["WAYS", "Way"]


@dataclass(frozen=True)
class Way:
    """`module` must be there; `finder` ways search a batch size, so they apply where the case has one."""

    id: str
    title: str
    code: Callable[[Case], str]
    module: str = ""
    finder: bool = False
    prelude: str = ""

    def missing(self) -> str:
        return f"{self.module} is not installed" if self.module and find_spec(self.module) is None else ""

    def applies(self, case: Case) -> bool:
        return case.wanted is not None or not self.finder


def _advice(case: Case) -> str:
    body = textwrap.indent(case.request, "    ")
    again = textwrap.indent("_tries = 2\ngc.collect()\nforget()\n" + case.request, "    ")
    return f"try:\n{body}\nexcept RuntimeError:\n{again}"


def _accelerate(case: Case) -> str:
    return (
        "_sizes = []\n@find_executable_batch_size(starting_batch_size=bs)\ndef attempt(batch_size):\n"
        "    _sizes.append(batch_size)\n    return work(batch_size)\n"
        "try: r = attempt()\nfinally: _tries = len(_sizes)\nbs = _sizes[-1]"
    )


def _toma(case: Case) -> str:
    return (
        "_sizes = []\ndef attempt(batch_size):\n    _sizes.append(batch_size)\n    return work(batch_size)\n"
        "try: r = toma.simple.batch(attempt, bs)\nfinally: _tries = len(_sizes)\nbs = _sizes[-1]"
    )


_LIGHTNING = """
import logging, tempfile, warnings
warnings.simplefilter("ignore")
import torch
import pytorch_lightning as pl
from pytorch_lightning.tuner import Tuner
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)

class Module(pl.LightningModule):
    "The work as one training step; the data set is twice as long as the wanted batch."
    def __init__(self):
        super().__init__()
        self.batch_size, self.rows = 2, 2 * bs
        self.weight = torch.nn.Parameter(torch.zeros(1))
    def training_step(self, batch, index):
        size = len(batch[0])
        if _sizes[-1:] != [size]: _sizes.append(size)
        work(size)
        return self.weight.sum() * 0
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=0.1)
    def train_dataloader(self):
        data = torch.utils.data.TensorDataset(torch.zeros(self.rows, 1))
        return torch.utils.data.DataLoader(data, batch_size=self.batch_size)
"""


def _lightning(case: Case) -> str:
    return (
        "_sizes = []\ntrainer = pl.Trainer(accelerator='auto', devices=1, max_epochs=1, logger=False,\n"
        "    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,\n"
        "    default_root_dir=tempfile.mkdtemp())\n"
        "try: bs = min(bs, Tuner(trainer).scale_batch_size(Module()))\nfinally: _tries = len(_sizes) + 1\n"
        "r = work(bs)"
    )


def _guard(case: Case) -> str:
    again = "--repeat " if case.again else ""
    return f"%%cuda_guard {again}--report report {case.options}".rstrip() + "\n" + case.request


WAYS = (
    Way("plain", "plain cell", lambda case: case.request),
    Way("advice", "collect, empty the cache, retry", _advice),
    Way(
        "accelerate",
        "accelerate",
        _accelerate,
        "accelerate",
        True,
        "from accelerate.utils import find_executable_batch_size",
    ),
    Way("toma", "toma", _toma, "toma", True, "import toma"),
    Way("lightning", "Lightning", _lightning, "pytorch_lightning", True, _LIGHTNING),
    Way("guard", "`%%cuda_guard`", _guard),
)
