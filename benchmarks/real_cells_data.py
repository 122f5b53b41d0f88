"""Cells as people write them, on the libraries that they use: what each needs before, the cell, what must be the same.

Weights are random and nothing is downloaded. `real_cells.py` runs them. ``tick()`` at the end of a loop's body marks a
step for the clock. Sizes are for a large card; `tiny` names the text that makes a cell small enough for any CPU.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field

__all__ = ["CELLS", "Cell"]


@dataclass(frozen=True)
class Cell:
    """`before` runs unguarded with enough memory; `same` is an expression whose value is compared bit for bit."""

    name: str
    title: str
    before: str
    cell: str
    same: str
    peak: float
    """GiB, by arithmetic; a run measures it."""
    factor: float = 0.5
    """Of the measured peak: what the cell may have."""
    needs: tuple[str, ...] = ()
    """Modules beside torch."""
    fixed: bool = True
    """Whether two plain runs agree bit for bit."""
    own: bool = False
    """Algorithms are chosen by time: the reference is a first run in the same process."""
    card: bool = False
    """Has no meaning on a CPU."""
    tiny: dict[str, str] = field(default_factory=dict)
    ways: dict[str, str] = field(default_factory=dict)
    """Other ways that people have, each as the code of the cell."""


def _indented(text: str, by: int = 4) -> str:
    return textwrap.indent(text.strip("\n"), " " * by)


def _offloaded(cell: str) -> str:
    """torch's own way: everything that autograd saves waits on the host."""
    return f"with torch.autograd.graph.save_on_cpu(pin_memory=True):\n{_indented(cell)}\n"


# What several cells start from.
_MLP = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*[nn.Sequential(nn.Linear(2048, 2048), nn.GELU()) for _ in range(20)]).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
data = [torch.randn(32768, 2048) for _ in range(4)]
"""
_MLP_TINY = {"2048": "8", "range(20)": "range(2)", "32768": "16"}

_GPT2 = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
config = GPT2Config(vocab_size=32000, n_layer=12, n_embd=768, n_head=12)
model = GPT2LMHeadModel(config).cuda().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
data = torch.randint(0, 32000, (4, 8, 512))
"""
_GPT2_TINY = {
    "32000": "101",
    "n_layer=12, n_embd=768, n_head=12": "n_layer=2, n_embd=16, n_head=2",
    "(4, 8, 512)": "(4, 2, 8)",
}

_LLAMA_TINY = {
    "32000": "101",
    "num_hidden_layers=22": "num_hidden_layers=2",
    "hidden_size=2048, intermediate_size=5632": "hidden_size=32, intermediate_size=48",
    "num_attention_heads=32, num_key_value_heads=4": "num_attention_heads=4, num_key_value_heads=2",
}

_BLOCKS = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x):
        return x + self.mlp(self.norm(x))

class Net(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(depth)])
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x.mean(1))

torch.manual_seed(0)
model = Net(512, 16).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
data = [(torch.randn(256, 512, 512), torch.randint(0, 10, (256,))) for _ in range(3)]
"""
_BLOCKS_TINY = {"Net(512, 16)": "Net(8, 2)", "256, 512, 512": "4, 8, 8", "(256,)": "(4,)"}

_ENCODER = """
import torch
from torch import nn

class Classifier(nn.Module):
    def __init__(self, vocabulary, width, depth, classes):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens):
        return self.head(self.encoder(self.embed(tokens)).mean(1))

torch.manual_seed(0)
"""

_IMAGE_LOOP = """
losses = []
for images, labels in data:
    loss = nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    tick()
"""

_LOOP = """
losses = []
for x in data:
    x = x.cuda()
    optimizer.zero_grad()
    loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    tick()
"""

_GPT2_LOOP = """
losses = []
for batch in data:
    batch = batch.cuda()
    optimizer.zero_grad()
    loss = model(batch, labels=batch).loss
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    tick()
"""

# accelerate searches a batch size: the body of a step is a function of it.
_EXECUTABLE = """
from accelerate.utils import find_executable_batch_size

@find_executable_batch_size(starting_batch_size={size})
def train(batch_size):
    losses = []
    for batch in data:
        for x in batch.split(batch_size):
            x = x.cuda()
            optimizer.zero_grad()
            loss = {loss}
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        tick()
    return losses

losses = train()
"""

TRAINED = "losses, model.state_dict()"

CELLS: tuple[Cell, ...] = (
    Cell(
        "loop",
        "training loop in plain torch, first step too large",
        _MLP,
        _LOOP,
        TRAINED,
        peak=12,
        tiny=_MLP_TINY,
        ways={
            "save_on_cpu": _offloaded(_LOOP),
            "executable_batch": _EXECUTABLE.format(size=32768, loss="(model(x) - x).square().mean()"),
        },
    ),
    Cell(
        "gpt2",
        "GPT-2 (transformers), training loop with AdamW",
        _GPT2,
        _GPT2_LOOP,
        TRAINED,
        peak=10.5,
        needs=("transformers",),
        tiny=_GPT2_TINY,
        ways={
            "save_on_cpu": _offloaded(_GPT2_LOOP),
            "checkpointing": f"model.gradient_checkpointing_enable()\n{_GPT2_LOOP}",
            "executable_batch": _EXECUTABLE.format(size=8, loss="model(x, labels=x).loss"),
        },
    ),
    Cell(
        "gpt2_long_batch",
        "the same, one long batch in the middle",
        _GPT2
        + """
lengths = [128, 128, 1024, 128, 128]
data = [torch.randint(0, 32000, (4, length)) for length in lengths]
""",
        _GPT2_LOOP,
        TRAINED,
        peak=13.5,
        needs=("transformers",),
        tiny=_GPT2_TINY | {"[128, 128, 1024, 128, 128]": "[4, 4, 16, 4, 4]"},
    ),
    Cell(
        "trainer",
        "transformers.Trainer",
        _GPT2
        + """
import tempfile
from transformers import Trainer, TrainerCallback, TrainingArguments

class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        ids = data.flatten(0, 1)[i % data.flatten(0, 1).shape[0]]
        return {"input_ids": ids, "labels": ids}

class Tick(TrainerCallback):
    def on_step_end(self, *args, **kwargs):
        tick()

arguments = TrainingArguments(
    tempfile.mkdtemp(), per_device_train_batch_size=8, num_train_epochs=1, logging_steps=1,
    save_strategy="no", report_to=[], disable_tqdm=True, seed=0,
)
trainer = Trainer(model=model, args=arguments, train_dataset=Texts(), callbacks=[Tick()])
""",
        "result = trainer.train()\n",
        'result.training_loss, [h["loss"] for h in trainer.state.log_history if "loss" in h], model.state_dict()',
        peak=10.5,
        needs=("transformers", "accelerate"),
        tiny=_GPT2_TINY | {"batch_size=8": "batch_size=4", "return 32": "return 8"},
    ),
    Cell(
        "accelerate",
        "accelerate: prepare and backward, BERT",
        """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

torch.manual_seed(0)
accelerator = Accelerator()
model = BertForSequenceClassification(BertConfig(num_hidden_layers=12, hidden_size=768, num_labels=4)).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
ids = torch.randint(0, 30000, (96, 256))
samples = [{"input_ids": row, "labels": row[0] % 4} for row in ids]
loader = DataLoader(samples, batch_size=24, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
""",
        """
losses = []
for batch in loader:
    outputs = model(**batch)
    accelerator.backward(outputs.loss)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(outputs.loss.item())
    tick()
""",
        TRAINED,
        peak=7.5,
        needs=("transformers", "accelerate"),
        tiny={
            "num_hidden_layers=12, hidden_size=768": "num_hidden_layers=2, hidden_size=24",
            "(96, 256)": "(8, 8)",
            "batch_size=24": "batch_size=4",
        },
    ),
    Cell(
        "lightning",
        "Lightning's Trainer.fit",
        """
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(L.LightningModule):
    def __init__(self, width, depth):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth)])
        self.head = nn.Linear(width, 10)
        self.losses = []

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.cross_entropy(self.head(self.layers(x).mean(1)), y)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4)

    def on_train_batch_end(self, *args):
        tick()

torch.manual_seed(0)
model = Net(1024, 16)
loader = DataLoader(TensorDataset(torch.randn(256, 1024, 1024), torch.randint(0, 10, (256,))), batch_size=64)
trainer = L.Trainer(
    accelerator="gpu", devices=1, max_epochs=1, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
""",
        "trainer.fit(model, loader)\n",
        "model.losses, model.state_dict()",
        peak=9,
        needs=("lightning",),
        tiny={
            "Net(1024, 16)": "Net(8, 2)",
            "256, 1024, 1024": "8, 4, 8",
            "(256,)": "(8,)",
            "batch_size=64": "batch_size=4",
            '"gpu"': '"cpu"',
        },
    ),
    Cell(
        "lora",
        "LoRA (peft) on a 1.1 B Llama in bf16",
        """
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=32000, num_hidden_layers=22,
    hidden_size=2048, intermediate_size=5632,
    num_attention_heads=32, num_key_value_heads=4,
)
with torch.device("cuda"):
    base = LlamaForCausalLM(config).to(torch.bfloat16)
model = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"])).train()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
data = torch.randint(0, 32000, (4, 4, 512))
""",
        """
losses = []
for batch in data:
    batch = batch.cuda()
    loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
    tick()
""",
        "losses, [p for p in model.parameters() if p.requires_grad]",
        peak=9.5,
        needs=("transformers", "peft"),
        tiny=_LLAMA_TINY | {"(4, 4, 512)": "(3, 2, 8)"},
    ),
    Cell(
        "amp",
        "AMP in fp16 with GradScaler and accumulation, GPT-2",
        _GPT2
        + """
data = torch.randint(0, 32000, (8, 12, 512))
scaler = torch.amp.GradScaler("cuda")
accumulation = 2
""",
        """
losses = []
for i, batch in enumerate(data):
    batch = batch.cuda()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(batch, labels=batch).loss / accumulation
    scaler.scale(loss).backward()
    if (i + 1) % accumulation == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    losses.append(loss.item())
    tick()
""",
        "losses, model.state_dict(), scaler.state_dict()",
        peak=10,
        needs=("transformers",),
        tiny=_GPT2_TINY | {"(8, 12, 512)": "(4, 2, 8)", "torch.float16": "torch.bfloat16"},
    ),
    Cell(
        "generate",
        "model.generate, growing cache, idle tensors beside",
        """
import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=32000, n_layer=12, n_embd=768, n_head=12)).cuda().eval()
prompt = torch.randint(0, 32000, (64, 64)).cuda()
idle = [torch.full((128, 1024, 1024), float(i), device="cuda") for i in range(8)]
""",
        """
with torch.no_grad():
    out = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=256, do_sample=False, pad_token_id=0,
        return_dict_in_generate=True, output_logits=True,
    )
""",
        "out.sequences, out.logits, [bool((t == i).all()) for i, t in enumerate(idle)]",
        peak=8,
        factor=0.6,
        needs=("transformers",),
        tiny={
            "32000": "101",
            "n_layer=12, n_embd=768, n_head=12": "n_layer=2, n_embd=16, n_head=2",
            "(64, 64)": "(2, 4)",
            "128, 1024, 1024": "4, 4, 4",
            "max_new_tokens=256": "max_new_tokens=8",
        },
    ),
    Cell(
        "unet",
        "diffusers UNet sampling, idle tensors beside",
        """
import torch
from diffusers import DDIMScheduler, UNet2DModel

torch.manual_seed(0)
unet = UNet2DModel(
    sample_size=64, attention_head_dim=64,
    block_out_channels=(128, 256, 384),
    down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
).cuda().eval()
scheduler = DDIMScheduler()
scheduler.set_timesteps(6)
image = torch.randn(64, 3, 64, 64).cuda()
idle = [torch.full((128, 1024, 1024), float(i), device="cuda") for i in range(8)]
""",
        """
with torch.no_grad():
    for t in scheduler.timesteps:
        noise = unet(image, t).sample
        image = scheduler.step(noise, t, image).prev_sample
        tick()
""",
        "image, [bool((t == i).all()) for i, t in enumerate(idle)]",
        peak=7,
        needs=("diffusers",),
        tiny={
            "sample_size=64, attention_head_dim=64": "sample_size=8, attention_head_dim=8",
            "(128, 256, 384)": "(32, 32, 32)",
            "64, 3, 64, 64": "2, 3, 8, 8",
            "128, 1024, 1024": "4, 4, 4",
        },
    ),
    Cell(
        "rebuilt",
        "a model built anew over the old one",
        """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    with torch.device("cuda"):
        return nn.Sequential(*[nn.Sequential(nn.Linear(8192, 8192), nn.GELU()) for _ in range(12)])

model = make()
x = torch.randn(256, 8192).cuda()
""",
        """
model = make()
optimizer = torch.optim.SGD(model[-1].parameters(), lr=0.1)
with torch.no_grad():
    features = model[:-1](x)
for _ in range(3):
    loss = (model[-1](features) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tick()
""",
        "loss, model.state_dict()",
        peak=6,
        factor=0.6,
        tiny={"8192": "8", "range(12)": "range(2)", "256": "4"},
    ),
    Cell(
        "kept_graphs",
        "evaluation that keeps its graphs (total += loss)",
        """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*[nn.Sequential(nn.Linear(2048, 2048), nn.GELU()) for _ in range(8)]).cuda().eval()
data = [torch.randn(8192, 2048) for _ in range(10)]
""",
        """
total = 0
for x in data:
    x = x.cuda()
    loss = (model(x) - x).square().mean()
    total += loss
    tick()
""",
        "total",
        peak=10,
        tiny={"2048": "8", "range(8)": "range(2)", "8192": "16"},
    ),
    Cell(
        "kept_list",
        "outputs gathered in a list on the card",
        """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 4096)).cuda().eval()
data = [torch.randn(32768, 1024) for _ in range(10)]
""",
        """
outputs = []
with torch.no_grad():
    for x in data:
        outputs.append(model(x.cuda()))
        tick()
""",
        "outputs",
        peak=6,
        tiny={"1024": "8", "4096": "12", "32768": "16"},
    ),
    Cell(
        "kept_dict",
        "logits and hidden states kept in a dict, GPT-2",
        _GPT2
        + """
model.eval()
data = torch.randint(0, 32000, (4, 12, 512))
""",
        """
results = {}
with torch.no_grad():
    for i, batch in enumerate(data):
        out = model(batch.cuda(), output_hidden_states=True)
        results[f"batch {i}"] = {"logits": out.logits, "hidden": out.hidden_states}
        tick()
""",
        "results",
        peak=5,
        needs=("transformers",),
        tiny=_GPT2_TINY | {"(4, 12, 512)": "(4, 2, 8)"},
    ),
    Cell(
        "train_function",
        "a function that trains, called once",
        _ENCODER
        + """
def train(model, data, lr=1e-4):
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    losses = []
    for tokens, labels in data:
        logits = model(tokens.cuda())
        loss = nn.functional.cross_entropy(logits, labels.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        tick()
    return losses

model = Classifier(20000, 1024, 6, 10).cuda().train()
data = [(torch.randint(0, 20000, (16, 512)), torch.randint(0, 10, (16,))) for _ in range(4)]
""",
        "losses = train(model, data)\n",
        TRAINED,
        peak=8.5,
        tiny={"20000, 1024, 6": "100, 16, 2", "20000": "100", "(16, 512)": "(2, 8)", "(16,)": "(2,)"},
    ),
    Cell(
        "compile_training",
        "torch.compile, training, warmed up at a small size",
        """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*[nn.Sequential(nn.Linear(2048, 2048), nn.GELU()) for _ in range(12)]).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
compiled = torch.compile(model, dynamic=True)
data = [torch.randn(65536, 2048) for _ in range(3)]
compiled(data[0][:64].cuda()).square().mean().backward()
optimizer.zero_grad()
""",
        """
losses = []
for x in data:
    x = x.cuda()
    optimizer.zero_grad()
    loss = (compiled(x) - x).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    tick()
""",
        TRAINED,
        peak=9,
        tiny={
            "2048": "8",
            "range(12)": "range(2)",
            "65536": "128",
            "torch.compile(model": 'torch.compile(model, backend="aot_eager"',
        },
    ),
    Cell(
        "compile_inference",
        "torch.compile, inference, compiled in the cell, data on the card",
        _ENCODER
        + """
model = Classifier(20000, 512, 6, 10).cuda().eval()
images = torch.randn(8, 128, 1024, 1024, device="cuda")
data = torch.randint(0, 20000, (6, 192, 512))
""",
        """
compiled = torch.compile(model)
predictions = []
with torch.no_grad():
    for tokens in data:
        predictions.append(compiled(tokens.cuda()))
        tick()
""",
        "predictions, [image.sum(dtype=torch.float64) for image in images]",
        peak=7.5,
        tiny={
            "20000, 512, 6": "100, 16, 2",
            "20000": "100",
            "8, 128, 1024, 1024": "2, 2, 4, 4",
            "(6, 192, 512)": "(2, 2, 8)",
            "torch.compile(model": 'torch.compile(model, backend="aot_eager"',
        },
    ),
    Cell(
        "checkpoint",
        "gradient checkpointing, use_reentrant=False",
        _BLOCKS,
        _IMAGE_LOOP.replace("images", "x"),
        TRAINED,
        peak=7.5,
        tiny=_BLOCKS_TINY,
    ),
    Cell(
        "checkpoint_reentrant",
        "gradient checkpointing, use_reentrant=True",
        _BLOCKS.replace("use_reentrant=False", "use_reentrant=True"),
        _IMAGE_LOOP.replace("images", "x"),
        TRAINED,
        peak=7.5,
        tiny=_BLOCKS_TINY,
    ),
    Cell(
        "gpt2_checkpointing",
        "GPT-2 with gradient_checkpointing_enable",
        _GPT2
        + """
data = torch.randint(0, 32000, (3, 16, 512))
model.gradient_checkpointing_enable()
""",
        _GPT2_LOOP,
        TRAINED,
        peak=6.5,
        factor=0.6,
        needs=("transformers",),
        tiny=_GPT2_TINY | {"(3, 16, 512)": "(3, 2, 8)"},
    ),
    Cell(
        "lstm",
        "stacked LSTMs (cuDNN)",
        """
import torch
from torch import nn

class Tagger(nn.Module):
    def __init__(self, vocabulary, width, depth, tags):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList([nn.LSTM(width, width, batch_first=True) for _ in range(depth)])
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(depth)])
        self.head = nn.Linear(width, tags)

    def forward(self, tokens):
        x = self.embed(tokens)
        for lstm, norm in zip(self.layers, self.norms):
            x = x + lstm(norm(x))[0]
        return self.head(x)

torch.manual_seed(0)
model = Tagger(20000, 1024, 4, 50).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
data = [(torch.randint(0, 20000, (128, 512)), torch.randint(0, 50, (128, 512))) for _ in range(3)]
""",
        """
losses = []
for tokens, tags in data:
    scores = model(tokens.cuda())
    loss = nn.functional.cross_entropy(scores.flatten(0, 1), tags.cuda().flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    losses.append(loss.item())
    tick()
""",
        TRAINED,
        peak=10.5,
        tiny={"20000, 1024, 4": "100, 8, 2", "20000": "100", "(128, 512)": "(2, 6)"},
    ),
    Cell(
        "convnet",
        "convnet with cudnn.benchmark",
        """
import torch
from torch import nn

torch.backends.cudnn.benchmark = True

def block(before, after, stride=1):
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True)
    )

torch.manual_seed(0)
model = nn.Sequential(
    block(3, 64), block(64, 64), block(64, 128, 2), block(128, 128), block(128, 256, 2), block(256, 256),
    nn.AvgPool2d(56), nn.Flatten(), nn.Linear(256, 1000),
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
data = [(torch.randn(64, 3, 224, 224), torch.randint(0, 1000, (64,))) for _ in range(4)]
""",
        _IMAGE_LOOP,
        TRAINED,
        peak=6,
        own=True,
        tiny={"64, 3, 224, 224": "2, 3, 16, 16", "(64,)": "(2,)", "AvgPool2d(56)": "AvgPool2d(4)"},
    ),
    Cell(
        "timm",
        "a timm ViT fine-tuned",
        """
import timm
import torch
from torch import nn

torch.manual_seed(0)
model = timm.create_model("vit_small_patch16_224", num_classes=10).cuda().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
data = [(torch.randn(96, 3, 224, 224), torch.randint(0, 10, (96,))) for _ in range(4)]
""",
        """
losses = []
for images, labels in data:
    loss = nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    losses.append(loss.item())
    tick()
""",
        TRAINED,
        peak=7,
        needs=("timm",),
        tiny={
            "num_classes=10)": "num_classes=10, img_size=32, embed_dim=24, depth=2, num_heads=2)",
            "96, 3, 224, 224": "2, 3, 32, 32",
            "(96,)": "(2,)",
        },
    ),
    Cell(
        "gan",
        "a GAN with two optimizers",
        """
import torch
from torch import nn

def up(before, after, stride, padding):
    return nn.Sequential(
        nn.ConvTranspose2d(before, after, 4, stride, padding, bias=False), nn.BatchNorm2d(after), nn.ReLU(True)
    )

def down(before, after):
    return nn.Sequential(
        nn.Conv2d(before, after, 4, 2, 1, bias=False), nn.BatchNorm2d(after), nn.LeakyReLU(0.2, True)
    )

torch.manual_seed(0)
batch_size = 2560
generator = nn.Sequential(
    up(100, 512, 1, 0), up(512, 256, 2, 1), up(256, 128, 2, 1), up(128, 64, 2, 1),
    nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh(),
).cuda()
discriminator = nn.Sequential(
    nn.Conv2d(3, 64, 4, 2, 1), nn.LeakyReLU(0.2, True), down(64, 128), down(128, 256), down(256, 512),
    nn.Conv2d(512, 1, 4), nn.Flatten(0),
).cuda()
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()
data = [torch.rand(batch_size, 3, 64, 64) * 2 - 1 for _ in range(3)]
""",
        """
losses = []
for real in data:
    real = real.cuda()
    ones, zeros = torch.ones(len(real), device="cuda"), torch.zeros(len(real), device="cuda")
    fake = generator(torch.randn(len(real), 100, 1, 1, device="cuda"))

    optimizer_d.zero_grad()
    loss_d = criterion(discriminator(real), ones) + criterion(discriminator(fake.detach()), zeros)
    loss_d.backward()
    optimizer_d.step()

    optimizer_g.zero_grad()
    loss_g = criterion(discriminator(fake), ones)
    loss_g.backward()
    optimizer_g.step()
    losses.append((loss_d.item(), loss_g.item()))
    tick()
""",
        "losses, generator.state_dict(), discriminator.state_dict()",
        peak=6.5,
        tiny={"batch_size = 2560": "batch_size = 2"},
    ),
    Cell(
        "per_sample",
        "torch.func: gradients of each sample, idle tensors beside",
        """
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()
parameters = {name: p.detach() for name, p in model.named_parameters()}

def loss_of_one(parameters, x, y):
    logits = functional_call(model, parameters, (x.unsqueeze(0),))
    return nn.functional.cross_entropy(logits, y.unsqueeze(0))

per_sample = vmap(grad(loss_of_one), in_dims=(None, 0, 0))
data = [(torch.randn(1024, 784), torch.randint(0, 10, (1024,))) for _ in range(4)]
idle = [torch.full((128, 1024, 1024), float(i), device="cuda") for i in range(6)]
""",
        """
norms = []
for x, y in data:
    gradients = per_sample(parameters, x.cuda(), y.cuda())
    squared = sum(g.flatten(1).square().sum(1) for g in gradients.values())
    norms.append(squared.sqrt().cpu())
    tick()
""",
        "norms, gradients, [bool((t == i).all()) for i, t in enumerate(idle)]",
        peak=7,
        factor=0.6,
        tiny={
            "784": "12",
            "512": "8",
            "256": "6",
            "torch.randn(1024,": "torch.randn(4,",
            "(1024,)": "(4,)",
            "128, 1024, 1024": "4, 4, 4",
        },
    ),
    Cell(
        "cuda_graph",
        "a CUDA graph captured earlier, replayed",
        """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*[nn.Sequential(nn.Linear(2048, 2048), nn.GELU()) for _ in range(4)]).cuda().eval()
data = [torch.randn(32768, 2048) for _ in range(4)]
static_x = data[0].cuda()
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side), torch.no_grad():
    for _ in range(3):
        model(static_x)
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph), torch.no_grad():
    static_y = model(static_x)
""",
        """
features = []
for i in range(16):
    static_x.copy_(data[i % 4])
    graph.replay()
    features.append(static_y.clone())
    tick()
""",
        "features",
        peak=5.5,
        card=True,
    ),
    Cell(
        "dataloader",
        "a DataLoader with workers and pinned memory",
        """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Pictures(Dataset):
    def __init__(self, count, size):
        self.count, self.size = count, size

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        one = torch.Generator().manual_seed(i)
        return torch.randint(0, 256, (3, self.size, self.size), dtype=torch.uint8, generator=one), i % 10

def block(before, after, stride):
    return nn.Sequential(nn.Conv2d(before, after, 3, stride, 1), nn.BatchNorm2d(after), nn.ReLU())

torch.manual_seed(0)
model = nn.Sequential(
    block(3, 32, 1), block(32, 64, 2), block(64, 128, 2), block(128, 256, 2),
    nn.AvgPool2d(28), nn.Flatten(), nn.Linear(256, 10),
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loader = DataLoader(Pictures(768, 224), batch_size=192, shuffle=True, num_workers=2, pin_memory=True)
""",
        """
losses = []
for images, labels in loader:
    images = images.cuda(non_blocking=True).float().div(255)
    labels = labels.cuda(non_blocking=True)
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    tick()
""",
        TRAINED,
        peak=7,
        tiny={
            "Pictures(768, 224)": "Pictures(8, 16)",
            "batch_size=192": "batch_size=4",
            "AvgPool2d(28)": "AvgPool2d(2)",
            "pin_memory=True": "pin_memory=False",
            "cuda(non_blocking=True)": "cpu()",
        },
    ),
    Cell(
        "ema",
        "an averaged copy of the weights (AveragedModel)",
        """
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.manual_seed(0)
with torch.device("cuda"):
    model = nn.Sequential(*[nn.Sequential(nn.Linear(4096, 4096), nn.GELU()) for _ in range(12)])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
data = [torch.randn(8192, 4096) for _ in range(4)]
""",
        """
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
losses = []
for x in data:
    x = x.cuda()
    optimizer.zero_grad()
    loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()
    ema.update_parameters(model)
    losses.append(loss.item())
    tick()
""",
        "losses, model.state_dict(), ema.state_dict()",
        peak=6,
        tiny={"4096": "8", "range(12)": "range(2)", "8192": "16"},
    ),
    Cell(
        "growing",
        "lengths that grow from step to step",
        _ENCODER
        + """
lengths = range(256, 1537, 256)
model = Classifier(20000, 512, 4, 10).cuda().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
data = [(torch.randint(0, 20000, (8, length)), torch.randint(0, 10, (8,))) for length in lengths]
""",
        _IMAGE_LOOP.replace("images", "tokens"),
        TRAINED,
        peak=9.5,
        tiny={"20000, 512, 4": "100, 16, 2", "20000": "100", "range(256, 1537, 256)": "range(2, 9, 2)"},
    ),
    Cell(
        "larger_than_card",
        "a model larger than what there is, moved to the card in the cell",
        """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=32000, num_hidden_layers=22,
    hidden_size=2048, intermediate_size=5632,
    num_attention_heads=32, num_key_value_heads=4,
)
with torch.device("cuda"):
    model = LlamaForCausalLM(config)
model = model.cpu().eval()
prompts = torch.randint(0, 32000, (4, 4, 128))
""",
        """
model = model.cuda()
answers = []
with torch.no_grad():
    for prompt in prompts:
        logits = model(prompt.cuda()).logits
        answers.append(logits.cpu())
        tick()
""",
        "answers, next(model.parameters())[:8]",
        peak=4.5,
        needs=("transformers",),
        tiny=_LLAMA_TINY | {"(4, 4, 128)": "(2, 2, 8)"},
    ),
    Cell(
        "own_hooks",
        "the user's own saved_tensors_hooks",
        _MLP
        + """
def pack(t):
    return t.to(torch.bfloat16) if t.dtype == torch.float32 and t.numel() > 1_000_000 else t

def unpack(t):
    return t.float() if t.dtype == torch.bfloat16 else t
""",
        """
losses = []
for x in data:
    x = x.cuda()
    optimizer.zero_grad()
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    tick()
""",
        TRAINED,
        peak=8,
        tiny=_MLP_TINY | {"1_000_000": "100"},
    ),
)
