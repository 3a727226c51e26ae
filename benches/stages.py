"""Forward and backward of our stages beside the same model cut by hand in eager PyTorch.

    .venv/bin/python benches/stages.py  (after `cargo build --release && cargo build --release -p model-analyze-libtorch
                                         --features torch --example stage`)

Four models, two stages each, one thread. By hand: the model's own modules in two `nn.Module`s. Ours: the Python stages,
and the TorchScript stages under tch, in a process of their own. The three take turns pass by pass, so that whatever else
the machine does meets all of them; medians of processor seconds are compared, of both stages together.
"""

import argparse
import importlib.util
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
if not ENVIRONMENT.items() <= os.environ.items():  # The C library has read its own by now.
    os.execve(sys.executable, sys.orig_argv, {**os.environ, **ENVIRONMENT})

import torch
from safetensors.torch import save_file
from torch import nn

warnings.filterwarnings("ignore")
ROOT = Path(__file__).resolve().parent.parent
COMMAND = ROOT / "target/release/model-analyze"
RUN_STAGE = ROOT / "target/release/examples/stage"
PLACE = ROOT / "out/bench-stages"
# A model is measured for so long at least.
SECONDS = 30
sys.path.insert(0, str(ROOT / "fixtures"))


class Part(nn.Module):
    """A function over some modules: what a person writes who cuts by hand."""

    def __init__(self, function, *modules):
        super().__init__()
        self.modules_, self.function = nn.ModuleList(modules), function

    def forward(self, *inputs):
        return self.function(*inputs)


def resnet18(m):
    front = nn.Sequential(m.conv1, m.bn1, m.relu, m.maxpool, m.layer1, m.layer2)
    return "layer3", front, nn.Sequential(m.layer3, m.layer4, m.avgpool, nn.Flatten(1), m.fc)


def unet(m):
    def down(x):
        values = [m.stem(x)]
        for block in m.down:
            values.append(block(m.pool(values[-1])))
        return tuple(values)

    def up(*values):
        values = list(values)
        x = values.pop()
        for raise_, block in zip(m.raise_, m.up):
            x = block(torch.cat([values.pop(), raise_(x)], dim=1))
        return m.head(x)

    return "raise_.0", Part(down, m.stem, m.down), Part(up, m.raise_, m.up, m.head)


def gpt2(m):
    t = m.transformer
    half = len(t.h) // 2

    def front(tokens):
        positions = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        x = t.drop(t.wte(tokens) + t.wpe(positions))
        for block in t.h[:half]:
            x = block(x)
        return x

    def back(x):
        for block in t.h[half:]:
            x = block(x)
        return m.lm_head(t.ln_f(x))

    return f"transformer.h.{half}", Part(front, t.wte, t.wpe, t.h[:half]), Part(back, t.h[half:], t.ln_f, m.lm_head)


def bert(m):
    b = m.bert
    half = len(b.encoder.layer) // 2

    def masked(mask, like):
        return ((1 - mask[:, None, None, :].to(like.dtype)) * torch.finfo(like.dtype).min).expand(-1, -1, mask.shape[1], -1)

    def front(tokens, mask):
        x = b.embeddings(tokens)
        mask = masked(mask, x)
        for layer in b.encoder.layer[:half]:
            x = layer(x, mask)
        return x

    def back(x, mask):
        mask = masked(mask, x)
        for layer in b.encoder.layer[half:]:
            x = layer(x, mask)
        return m.classifier(m.dropout(b.pooler(x)))

    first = Part(front, b.embeddings, b.encoder.layer[:half])
    return f"bert.encoder.layer.{half}", first, Part(back, b.encoder.layer[half:], b.pooler, m.classifier)


def leaves(value):
    return [value] if isinstance(value, torch.Tensor) else [leaf for item in value for leaf in leaves(item)]


class Eager:
    """A module in this process."""

    def __init__(self, module, inputs):
        self.module = module
        self.inputs = [value.detach().requires_grad_(value.is_floating_point()) for value in inputs]
        self.parameters = [p for p in module.parameters() if p.requires_grad] + self.inputs
        outputs = [output for output in leaves(module(*self.inputs)) if output.requires_grad]
        self.gradients = [torch.ones_like(output) for output in outputs]

    def seconds(self):
        for parameter in self.parameters:
            parameter.grad = None
        start = time.process_time()
        outputs = [output for output in leaves(self.module(*self.inputs)) if output.requires_grad]
        torch.autograd.backward(outputs, self.gradients)
        return time.process_time() - start


class UnderTch:
    """An archive in a process with tch."""

    def __init__(self, archive, inputs):
        values = archive.with_suffix(".inputs")
        save_file({f"{index:03}": value.detach().clone().contiguous() for index, value in enumerate(inputs)}, values)
        library = next((ROOT / ".venv/lib").glob("python3*/site-packages/torch/lib"))
        environment = {**os.environ, "LD_LIBRARY_PATH": str(library)}
        self.process = subprocess.Popen(
            [RUN_STAGE, archive, values], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def used(self):
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def seconds(self):
        start = self.used()
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline(), "the stage failed"
        return self.used() - start

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def python_stage(path, index):
    spec = importlib.util.spec_from_file_location(f"stage_{index}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load()


def measure(name, cut_by_hand, rounds):
    import zoo

    model, inputs = zoo.build(name)
    inputs = [value for _, value in inputs]
    cut, *parts = cut_by_hand(model)
    archive, out = PLACE / f"{name}.pt", PLACE / name
    traced, text = zoo.trace(name)
    zoo.SCRIPT.save(traced, str(archive), text)
    subprocess.run([COMMAND, "emit", archive, "--cut", cut, "--force", "-o", out], check=True, stdout=subprocess.DEVNULL)
    manifest = json.loads((out / "stages/manifest.json").read_text())
    whole = leaves(model(*inputs).logits if name in ("gpt2", "bert") else model(*inputs))[0]
    # Both ways are fed with what their own first stage gives.
    known = {f"input:{about['name']}": value for about, value in zip(manifest["inputs"], inputs)}
    rows, hand_inputs, tch = [], inputs, []
    for about, part in zip(manifest["stages"], parts):
        values = [known[port["from"]] for port in about["inputs"]]
        stage = python_stage(out / "stages" / about["files"]["python"], about["stage"])
        made = leaves(stage(*values))
        known.update({f"stage:{about['stage']}:{p['name']}": v.detach() for p, v in zip(about["outputs"], made)})
        by_hand = leaves(part(*hand_inputs))
        tch.append(UnderTch(out / "stages" / about["files"]["torchscript"], values))
        rows.append((Eager(part, hand_inputs), Eager(stage, values), tch[-1]))
        hand_inputs = [value.detach() for value in by_hand] + ([inputs[1]] if name == "bert" else [])
    # By hand and by us it is the same model.
    for found in (by_hand[0], made[0]):
        torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-5)
    times = [[[] for _ in row] for row in rows]
    begun = time.perf_counter()
    for round_ in itertools.count():
        # Short passes are noisy: as many as fill the time.
        if round_ >= rounds + 3 and time.perf_counter() - begun > SECONDS:
            break
        for row, lists in zip(rows, times):
            for way in range(3):
                at = (way + round_) % 3
                seconds = row[at].seconds()
                if round_ >= 3:  # The first passes warm up.
                    lists[at].append(seconds)
    for process in tch:
        process.end()
    hand, python, under_tch = (sum(statistics.median(lists[way]) for lists in times) for way in range(3))
    print(
        f"{name:10} {hand * 1e3:7.1f} ms {python * 1e3:7.1f} ms {python / hand:6.3f} {under_tch * 1e3:7.1f} ms {under_tch / hand:6.3f}",
        flush=True,
    )
    return python / hand, under_tch / hand


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40, help="passes of each, at least")
    parser.add_argument("models", nargs="*", default=["resnet18", "unet", "gpt2", "bert"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    PLACE.mkdir(parents=True, exist_ok=True)
    print(f"torch {torch.__version__}, one thread of {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{'model':10} {'by hand':>10} {'Python':>10} {'ratio':>6} {'tch':>10} {'ratio':>6}")
    for name in options.models:
        measure(name, globals()[name], options.rounds)
    shutil.rmtree(PLACE)


if __name__ == "__main__":
    main()
