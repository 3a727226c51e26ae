"""Reading an archive: ours beside `torch.jit.load`, in one run on one machine.

Usage: .venv/bin/python benches/read.py  (after `cargo build --release -p model-analyze-tracer --example read`)

Each side is timed inside its own process, warm, best of several: neither start-up counts. Peak memory is that of
our process; mapped file pages that were touched count in it.
"""

import os
import re
import subprocess
import tempfile
import time
import warnings
from pathlib import Path

import torch
import torchvision
from torch import nn

warnings.filterwarnings("ignore")
READ = Path(__file__).resolve().parent.parent / "target/release/examples/read"


def ours(path):
    """Returns best seconds of 20 and peak memory in bytes."""
    output = subprocess.run([str(READ), str(path), "--repeat"], capture_output=True, text=True, check=True)
    times = [float(found) for found in re.findall(r"^([\d.]+) ms$", output.stdout, re.M)]
    peak = int(re.search(r"peak (\d+) kB", output.stdout)[1]) * 1024
    return min(times) / 1e3, peak


def theirs(path, times=5):
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        torch.jit.load(path)
        best = min(best, time.perf_counter() - start)
    return best


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    class Logits(nn.Module):
        def __init__(self):
            super().__init__()
            config = GPT2Config()
            config.use_cache = False
            self.model = GPT2LMHeadModel(config)

        def forward(self, tokens):
            return self.model(tokens)[0]

    return Logits().eval(), torch.randint(0, 500, (1, 16))


def wide(width):
    """The same code around weights of any size."""
    layers = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(8)])
    for layer in layers:
        layer.weight.data.zero_()
    return layers, torch.zeros(1, width)


def main():
    print(f"peer: torch.jit.load of torch {torch.__version__}, {os.cpu_count()} cores")
    models = {
        "resnet50": lambda: (torchvision.models.resnet50().eval(), torch.zeros(1, 3, 64, 64)),
        "gpt2": gpt2,
        "densenet121": lambda: (torchvision.models.densenet121().eval(), torch.zeros(1, 3, 64, 64)),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.pt")
        for name, make in models.items():
            torch.jit.trace(*make(), check_trace=False, strict=False).save(path)
            (seconds, peak), peer = ours(path), theirs(path)
            size = os.path.getsize(path) / 1e6
            print(f"{name:12} {size:7.0f} MB   ours {seconds * 1e3:8.3f} ms   torch {peer * 1e3:8.1f} ms   "
                  f"ratio {peer / seconds:6.1f}   peak {peak / 1e6:.1f} MB")
        baseline = None
        for width in (256, 8192):
            torch.jit.trace(*wide(width), check_trace=False).save(path)
            seconds, peak = ours(path)
            baseline = baseline or seconds
            size = os.path.getsize(path) / 1e6
            print(f"same code    {size:7.0f} MB   ours {seconds * 1e3:8.3f} ms   "
                  f"against the smallest {seconds / baseline:.2f}   peak {peak / 1e6:.1f} MB")


main()
