"""Every schedule that `train.py` runs gives the gradients of one process.

    python tests/oracle/schedules.py COMMAND FOLDER [CASE …]

First the halves of a backward pass alone: layers that are used once, several times, tied, frozen, computed again. Then
`train.py --check` of emitted stages, whose verdict is held against gradients of the eager model, which was never traced.
"""

import functools
import itertools
import json
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent))
import torchrun as processes

warnings.filterwarnings("ignore")


# -- halves ---------------------------------------------------------------------------------------------------------


class Repeated(nn.Module):
    """A layer that is used so many times, one after the other."""

    def __init__(self, layer, times):
        super().__init__()
        self.layer, self.times = layer, times

    def forward(self, x):
        for _ in range(self.times):
            x = self.layer(x)
            x = torch.tanh(x[0] if isinstance(x, tuple) else x)
        return x * 1.0


class Block(nn.Module):
    def __init__(self, size, again=False):
        super().__init__()
        self.norm, self.up, self.down, self.again = nn.LayerNorm(size), nn.Linear(size, 2 * size), nn.Linear(2 * size, size), again

    def inner(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))

    def forward(self, x):
        from torch.utils.checkpoint import checkpoint

        return checkpoint(self.inner, x, use_reentrant=False) if self.again else self.inner(x)


class Tied(nn.Module):
    """An embedding that is the head, too."""

    def __init__(self):
        super().__init__()
        self.words, self.body = nn.Embedding(11, 8), nn.Linear(8, 8)

    def forward(self, x):
        ids = (x.detach() * 3).long() % 11
        return F.linear(self.body(self.words(ids[:, 0]) + x[:, :1]), self.words.weight)


class Both(nn.Module):
    """Returns an activation that it also feeds onward."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        y = self.a(x)
        return torch.cat([y, self.b(torch.relu(y))], 1)


class Product(nn.Module):
    """What GPT-2 calls a convolution."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(8, 8) / 3), nn.Parameter(torch.randn(8))

    def forward(self, x):
        return torch.addmm(self.bias, x, self.weight)


class Written(nn.Module):
    """Writes to what its layer returns."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return F.relu(self.layer(x), inplace=True)


def frozen(module, *names):
    for name in names:
        module.get_parameter(name).requires_grad_(False)
    return module


def layers():
    """Yields a name, a module, what it is given, and how far gradients may be off."""
    vector, rows, lines, picture = torch.randn(4, 8), torch.randn(3, 4, 8), torch.randn(2, 4, 9), torch.randn(2, 4, 6, 6)
    for times in (1, 2, 3):
        yield f"linear x{times}", Repeated(nn.Linear(8, 8), times), vector, 0
        yield f"norm x{times}", Repeated(nn.LayerNorm(8), times), vector, 0
        yield f"block x{times}", Repeated(Block(8), times), rows, 0
        yield f"block again x{times}", Repeated(Block(8, again=True), times), rows, 0
    yield "linear of three dimensions x3", Repeated(nn.Linear(8, 8), 3), rows, 0
    yield "linear that is written to x2", Repeated(Written(nn.Linear(8, 8)), 2), rows, 0
    yield "conv1d that is written to x2", Repeated(Written(nn.Conv1d(4, 4, 3, padding=1)), 2), lines, 0
    yield "linear without bias x2", Repeated(nn.Linear(8, 8, bias=False), 2), rows, 0
    yield "addmm x2", Repeated(Product(), 2), vector, 0
    yield "batch norm x2", Repeated(nn.BatchNorm1d(8), 2), vector, 0
    yield "prelu x2", Repeated(nn.PReLU(), 2), vector, 0
    yield "conv1d x2", Repeated(nn.Conv1d(4, 4, 3, padding=1), 2), lines, 0
    yield "conv2d x3", Repeated(nn.Conv2d(4, 4, 3, padding=1, groups=2), 3), picture, 0
    yield "conv3d x2", Repeated(nn.Conv3d(4, 4, 3, padding=1), 2), torch.randn(1, 4, 4, 4, 4), 0
    yield "transposed x2", Repeated(nn.ConvTranspose2d(4, 4, 3, padding=1), 2), picture, 0
    yield "lstm x2", Repeated(nn.LSTM(8, 8), 2), rows, 0
    yield "tied with an embedding", Tied(), vector, 1e-6
    yield "frozen weight", Repeated(frozen(nn.Linear(8, 8), "weight"), 2), vector, 0
    yield "frozen bias", Repeated(frozen(nn.Linear(8, 8), "bias"), 2), vector, 0
    yield "outputs are activations", Both(), vector, 0
    yield "weight norm x2", Repeated(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), 2), vector, 0


def waiting(train):
    """Lets torch's own layers call what stages call."""
    stage = type(sys)("stage")
    stage.torch, stage.F = torch, F
    train.let_wait(stage)
    names = [f"conv{way}{rank}d" for rank in (1, 2, 3) for way in ("", "_transpose")]
    replaced = [(F, "linear", stage.F.linear), (torch, "addmm", stage.torch.addmm)]
    return replaced + [(F, name, getattr(stage.F, name)) for name in names]


def halves(train, module, given, is_split):
    """Returns the gradients of two micro-batches, and of what was given."""
    module.zero_grad(set_to_none=True)
    queues, found = [], []
    for micro_batch in range(2):
        value = (given + micro_batch).clone().requires_grad_()
        torch.manual_seed(micro_batch)
        output = module(value)
        queue = {}
        with train.DEFERRAL.into(queue if is_split else None):
            torch.autograd.backward([output], [torch.full_like(output, 1.0 + micro_batch)])
        queues.append(queue)
        found.append(value.grad)
    waited = sum(len(queue) for queue in queues)
    for queue in queues:
        train.DEFERRAL.work(queue)
    return [p.grad for p in module.parameters() if p.requires_grad] + found, waited


def table(train):
    replaced = waiting(train)
    originals = [(space, name, getattr(space, name)) for space, name, _ in replaced]
    n_cases = n_waited = 0
    for name, module, given, allowed in layers():
        module.train()
        buffers = {key: value.clone() for key, value in module.named_buffers()}
        expected, _ = halves(train, module, given, False)
        for key, value in module.named_buffers():
            value.copy_(buffers[key])
        for space, function, ours in replaced:
            setattr(space, function, ours)
        try:
            found, waited = halves(train, module, given, True)
        finally:
            for space, function, original in originals:
                setattr(space, function, original)
        for one, other in zip(expected, found, strict=True):
            worst = float((one - other).abs().max() / one.abs().max().clamp_min(1e-30))
            assert worst <= allowed and one.stride() == other.stride(), f"{name}: a gradient is off by {worst:.1e}"
        n_cases, n_waited = n_cases + 1, n_waited + bool(waited)
    assert n_waited >= 19, f"weights waited in {n_waited} cases only"
    return f"{n_cases} cases, in {n_waited} of them weights waited"


# -- stages ---------------------------------------------------------------------------------------------------------


class Deep(nn.Module):
    """Two blocks that are used six times each, several times within a stage."""

    def __init__(self):
        super().__init__()
        self.first, self.a, self.b, self.last = nn.Linear(6, 8), Block(8), Block(8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.first(x)
        for _ in range(6):
            x = self.b(self.a(x))
        return self.last(x)


class Outputs(nn.Module):
    """Several outputs, among them activations that go on, one that skips to the end, and one with gaps in memory."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(6))

    def forward(self, x):
        kept, first = [], self.layers[0](x)
        y = first
        for layer in self.layers[1:]:
            y = torch.tanh(layer(y))
            kept.append(y)
        return kept[-1] + first, kept[-2], kept[-1], kept[-1][:, :3]


class Words(nn.Module):
    """Whole numbers that cross borders, and a head that is the embedding."""

    def __init__(self):
        super().__init__()
        self.words, self.place = nn.Embedding(13, 8), nn.Embedding(13, 8)
        self.blocks = nn.ModuleList(Block(8) for _ in range(4))

    def forward(self, ids):
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return F.linear(x + self.place((ids + 1) % 13), self.words.weight)


class Waves(nn.Module):
    """Complex values between its layers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.weight = nn.Parameter(torch.randn(5, dtype=torch.cfloat))

    def forward(self, x):
        z = torch.fft.rfft(self.layers[1](torch.tanh(self.layers[0](x)))) * self.weight
        return self.layers[3](torch.tanh(self.layers[2](torch.fft.irfft(z * self.weight, n=8))))


class Pictures(nn.Module):
    """Batch norm and dropout in training mode, skips over several stages."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.1)) for _ in range(5)
        )

    def forward(self, x):
        first = y = self.layers[0](x)
        for layer in self.layers[1:]:
            y = y + layer(y)
        return (y + first).mean((2, 3))


class Scaled(nn.Module):
    """A buffer that a pass writes and its gradients need."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.register_buffer("scale", torch.ones(6))

    def forward(self, x):
        with torch.no_grad():
            self.scale.mul_(0.5).add_(x.detach().abs().mean(0))
        return torch.tanh(self.layer(x)) * self.scale


class Running(nn.Module):
    """Layers that scale by what they have seen."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Scaled() for _ in range(12))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


MODELS = {
    "deep": (Deep, lambda: torch.randn(2, 5, 6)),
    "outputs": (Outputs, lambda: torch.randn(2, 6)),
    "words": (Words, lambda: torch.randint(0, 13, (2, 5))),
    "waves": (Waves, lambda: torch.randn(2, 8)),
    "pictures": (Pictures, lambda: torch.randn(2, 4, 6, 6)),
    "running": (Running, lambda: torch.randn(2, 6)),
}
SCHEDULES = {
    "GPipe": (2, 2),
    "1F1B": (3, 3),
    "Interleaved1F1B": (4, 2),
    "LoopedBFS": (4, 2),
    "InterleavedZeroBubble": (4, 2),
    "ZBVZeroBubble": (4, 2),
    "DualPipeV": (4, 2),
}
TASK = '''
import torch


def inputs(step, samples):
    generator = torch.Generator().manual_seed(step)
    if {is_words}:
        return (torch.randint(0, 13, ({sizes}), generator=generator),)
    return (torch.randn({sizes}, generator=generator),)


def target(step, samples):
    # Of some nesting, for the runtime cuts tensors alone.
    return {{"scale": (torch.arange(samples) % 3 + 1.0, [torch.ones(samples)])}}


def loss(outputs, target):
    scale, (ones,) = target["scale"]
    total = 0.0
    for index, output in enumerate(outputs):
        ramp = torch.linspace(-1.0, 2.0, output[0].numel(), device=output.device).view_as(output[0])
        weights = (scale * ones).view(-1, *[1] * (output.dim() - 1))
        total = total + (output * ramp * weights).mean() * (index + 1) + 0.1 * (output * weights).pow(2).mean()
    return total
'''


def made(cases, name):
    """Traces a model in training mode; returns what knows the gradients of the eager one."""
    if name not in cases.models:
        cls, sample = MODELS[name]
        torch.manual_seed(7)
        model, value = cls().train(), sample()
        script = processes.module_of(processes.ROOT / "src/trace.py", "trace_script")
        traced, outputs = script.trace(model, [(None, value)])
        cases.models[name] = cases.place / f"{name}.pt"
        script.save(traced, str(cases.models[name]), script.record(traced, about={"target": name}, training=True, outputs=outputs))
        sizes = ", ".join(["samples", *map(str, value.shape[1:])])
        (cases.place / f"{name}.py").write_text(TASK.format(sizes=sizes, is_words=name == "words"))
    return str(cases.place / f"{name}.py")


def checked(name, schedule, form, cases, *more, stages=None, world=None):
    """Holds the schedule against one process by `--check`, and its losses against the eager model's."""
    task = made(cases, name)
    n_stages, n_ranks = SCHEDULES[schedule]
    out = cases.emit(name, "--stages", str(stages or n_stages), "--targets", form)
    n_stages, n_ranks = stages or n_stages, world or n_ranks
    how = ["--schedule", schedule, "--task", task, "--micro-batches", "8", "--form", form, *more]
    if schedule not in ("GPipe", "1F1B"):
        how += ["--pipeline-ranks", "2"]
    codes, texts = processes.ranks(out, n_ranks, [*how, "--check"])
    lines = [line for text in texts for line in text.splitlines() if line.startswith('{"check"')]
    if any(codes) or len(lines) != 1:
        raise processes.Failed(f"exit codes {codes}\n" + "\n".join(texts))
    verdict = json.loads(lines[0])["check"]
    if not verdict["ok"] or verdict["compared"] < 4:
        raise processes.Failed(lines[0])
    return f"{verdict['compared']} gradients differ by {verdict['gradients']:.0e}"


def eager(cases):
    """Losses under zero bubble are those of the eager model, step by step: shared layers are counted right."""
    said = []
    for name in ("deep", "outputs", "words", "waves", "running"):
        task = made(cases, name)
        out = cases.emit(name, "--stages", "4", "--targets", "python")
        how = ["--pipeline-ranks", "2", "--schedule", "InterleavedZeroBubble", "--task", task, "--micro-batches", "4"]
        found = cases.train(out, 2, *how, "--learning-rate", "0.05")
        cls, _ = MODELS[name]
        torch.manual_seed(7)
        model, data = cls().train(), processes.module_of(Path(task), "task")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        expected = []
        for step in range(processes.STEPS):
            optimizer.zero_grad()
            target, total = data.target(step, 8)["scale"], 0.0
            for at, part in enumerate(data.inputs(step, 8)[0].chunk(4)):
                outputs = model(part)
                outputs = outputs if isinstance(outputs, tuple) else (outputs,)
                piece = slice(2 * at, 2 * at + 2)
                loss = data.loss(outputs, {"scale": (target[0][piece], [target[1][0][piece]])}) / 4
                loss.backward()
                total += float(loss.detach())
            optimizer.step()
            expected.append(total)
        said.append(f"{name}: {processes.close(expected, found)}")
    return "; ".join(said)


def whole(cases):
    """Stages that are computed again begin with the buffers that they began with, also in one process."""
    task = made(cases, "running")
    out = cases.emit("running", "--stages", "4", "--targets", "python")
    manifest = json.loads((out / "stages/manifest.json").read_text())
    manifest.pop("files", None)
    how = ["--task", task, "--micro-batches", "4", "--learning-rate", "0.05"]
    parallel = ["--pipeline-ranks", "2", "--schedule", "InterleavedZeroBubble"]
    expected = cases.train(out, 2, *how, *parallel)
    for stage in manifest["stages"]:
        stage["recompute_unit"] = "stage"
    (out / "stages/manifest.json").write_text(json.dumps(manifest))
    said = [processes.close(expected, cases.train(out, *way, *how)) for way in ((2, *parallel), (1, "--single"))]
    part = out / "train_parts/stages.py"
    text = part.read_text()
    part.write_text(text.replace("with again(before):", "with nullcontext():"))
    try:
        processes.close(expected, cases.train(out, 2, *how, *parallel))
    except processes.Failed:
        pass
    else:
        raise processes.Failed("a pass that begins with later buffers is not found")
    # A block of its own would begin with later ones: it keeps its activations.
    blocks = [("recompute", f"layers.{layer}") for layer in (1, 9)]
    emitted = processes.planned(cases, "running", "even-layers", *blocks)
    if "again(" in (emitted / "stages/stage_0.py").read_text():
        raise processes.Failed("a block that changes a buffer is computed again")
    return "; ".join(said)


def damaged(cases):
    """The check finds gradients that are lost: of a second use, of a relayed value in the second step, in a stage."""
    faults = {
        "deep": ("train_parts/deferred.py", "gradient = sum(gradients[1:], gradients[0])", "gradient = gradients[0]"),
        "outputs": ("train_parts/stages.py", "torch.ops.aten.alias(o) if o.is_leaf", "o if o.is_leaf"),
        "waves": ("train_parts/stages.py", "        return torch.view_as_complex(tensor)", "        return torch.view_as_complex(tensor.detach())"),
    }
    found = 0
    for name, (file, right, wrong) in faults.items():
        task = made(cases, name)
        out = cases.emit(name, "--stages", "4", "--targets", "python")
        text, manifest = (out / file).read_text(), (out / "stages/manifest.json").read_text()
        if right not in text:
            raise processes.Failed(f"{file} has no `{right}` to damage")
        (out / file).write_text(text.replace(right, wrong))
        known = json.loads(manifest)
        known.pop("files", None)
        (out / "stages/manifest.json").write_text(json.dumps(known))
        how = ["--pipeline-ranks", "2", "--schedule", "InterleavedZeroBubble", "--task", task, "--micro-batches", "8", "--check"]
        codes, texts = processes.ranks(out, 2, how)
        (out / file).write_text(text)
        (out / "stages/manifest.json").write_text(manifest)
        if not any(codes) or '"ok": false' not in "".join(texts):
            raise processes.Failed(f"{name}: not found: {codes}\n" + "\n".join(texts))
        found += 1
    assert found >= 3, found
    return f"{found} found"


def refusals(cases):
    """What is a mistake is told in one line, before anything is trained."""
    task = Path(made(cases, "deep"))
    out = cases.emit("deep", "--stages", "2", "--targets", "python")
    short, nan = cases.place / "short.py", cases.place / "nan.py"
    short.write_text(task.read_text().replace("return (torch.randn(samples,", "return (torch.randn(samples - 1,"))
    nan.write_text(task.read_text() + "\n\ninner = loss\n\n\ndef loss(outputs, target):\n    loss.n = getattr(loss, 'n', 0) + 1\n    return inner(outputs, target) * (float('nan') if loss.n > 20 else 1.0)\n")
    said = []

    def refuses(text, *arguments, code=1, world=2):
        codes, texts = processes.ranks(out, world, arguments)
        last = [line for line in "\n".join(texts).splitlines() if line.strip()]
        if set(codes) != {code} or not any(text in line for line in last) or "Traceback" in "\n".join(texts):
            raise processes.Failed(f"{codes}, wanted `{text}`:\n" + "\n".join(texts))
        said.append(text)

    refuses("returned 15 rows of `x`, 16 are needed", "--task", str(short), "--micro-batches", "8")
    refuses("argument --micro-batches: 0 is less than 1", "--micro-batches", "0", code=2)
    refuses("1 ranks were started, 2 are needed", world=1)
    common = ["--micro-batches", "8", "--save", "kept_nan", "--save-every", "1"]
    refuses("rank 1: the loss is not finite in step 3: stopped before the update", "--task", str(nan), *common)
    if (out / "kept_nan/latest").read_text() != "step_00000002":
        raise processes.Failed("a checkpoint after the NaN")
    refuses("nothing to do: the checkpoint is of step 2, --steps is 1", *common, "--resume", "--steps", "1", code=0)
    sys_argv = ["--single", "--steps", "2", "--micro-batches", "2"]
    refuses("step 2 loss", *sys_argv, code=0, world=1)
    return f"{len(said)} cases"


def cases():
    made_cases = {"halves": lambda c: table(processes.part_of(c.emit("unet_small", "--stages", "2"), "deferred"))}
    for (name, schedule) in itertools.product(MODELS, SCHEDULES):
        made_cases[f"{name} {schedule}"] = functools.partial(checked, name, schedule, "python")
    for name, schedule in (("deep", "InterleavedZeroBubble"), ("words", "ZBVZeroBubble"), ("outputs", "1F1B"), ("running", "1F1B")):
        made_cases[f"{name} {schedule} torchscript"] = functools.partial(checked, name, schedule, "torchscript")
    twice = functools.partial(checked, "deep", "InterleavedZeroBubble", "python")
    made_cases["deep InterleavedZeroBubble 2x2"] = lambda c: twice(c, "--replicas", "2", world=4)
    made_cases["words 1F1B 2-1"] = lambda c: checked("words", "1F1B", "python", c, "--replicas", "2,1", stages=2, world=3)
    made_cases["deep bf16"] = lambda c: twice(c, "--dtype", "bf16")
    made_cases |= {"eager": eager, "whole": whole, "damaged": damaged, "refusals": refusals}
    return made_cases


# Each schedule is tried on other models; `make zoo-training` takes all of both.
SELDOM = [f"{name} {schedule}" for index, name in enumerate(list(MODELS)[1:]) for schedule in list(SCHEDULES)[index % 2 :: 2]]

if __name__ == "__main__":
    processes.main(cases(), SELDOM)
