"""`train.py` on stages that are cut inside their operators, in several gloo processes, beside the plain loop of one process.

    python tests/oracle/shard_training.py COMMAND FOLDER [CASE …]

The stages are written by hand, a Transformer whose table is tied across them and an MLP with batch norms; the models beside
them know nothing of stages or shards. All is in float64, so that a fault is not taken for rounding. Then faults are planted:
each must be found. Prints a line for each case and exits 1 when one fails.
"""

import fnmatch
import json
import os
import re
import runpy
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent))
import torchrun as processes
from torchrun import Failed

PYTHON = processes.ROOT / "codegen/src/python"
LIMIT, STEPS, MICRO_BATCHES = 1e-9, 5, 4
VOCABULARY, WIDTH, HEADS, LENGTH = 24, 16, 4, 8
# A GPU draws other random numbers than the processor that it is held against.
DROPPED, MORE_DROPPED, MOST_DROPPED = (0.1, 0.2, 0.3) if processes.DEVICE == "cpu" else (0.0, 0.0, 0.0)
LAYER_CUTS = {
    "qkv.weight": (0, 3), "qkv.bias": (0, 3), "out.weight": (1, 1), "up.weight": (0, 1), "up.bias": (0, 1), "down.weight": (1, 1),
}


# -- the models as one -----------------------------------------------------------------------------------------------


class Transformer:
    """Two layers; the second one's stage also has the head, which is the table of the first."""

    name, inputs = "transformer", [("tokens", [2, LENGTH], "int64")]
    between = [("x", [2, LENGTH, WIDTH], "float64"), ("mask", [LENGTH, LENGTH], "bool")]

    @staticmethod
    def tensors():
        d = WIDTH
        layer = {"norm_1.weight": [d], "norm_1.bias": [d], "qkv.weight": [3 * d, d], "qkv.bias": [3 * d]}
        layer |= {"out.weight": [d, d], "out.bias": [d], "norm_2.weight": [d], "norm_2.bias": [d]}
        layer |= {"up.weight": [4 * d, d], "up.bias": [4 * d], "down.weight": [d, 4 * d], "down.bias": [d]}
        first, last = ({f"layers.{number}.{name}": sizes for name, sizes in layer.items()} for number in (0, 1))
        first |= {"table.weight": [VOCABULARY, d], "places": [LENGTH, d]}
        last |= {"norm.weight": [d], "head.weight": [VOCABULARY, d]}
        return [(first, {}), (last, {})]

    tied = [("table.weight", "head.weight")]
    cuts = [
        {"table.weight": (0, 1)} | {f"layers.0.{name}": cut for name, cut in LAYER_CUTS.items()},
        {"head.weight": (0, 1)} | {f"layers.1.{name}": cut for name, cut in LAYER_CUTS.items()},
    ]

    @staticmethod
    def layer(w, number, x, mask):
        at = lambda name: w[f"layers.{number}.{name}"]  # noqa: E731
        normed = F.layer_norm(x, [WIDTH], at("norm_1.weight"), at("norm_1.bias"))
        q, k, v = F.linear(normed, at("qkv.weight"), at("qkv.bias")).chunk(3, -1)
        heads = [each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (q, k, v)]
        mixed = F.scaled_dot_product_attention(*heads, mask).transpose(1, 2).flatten(2)
        x = x + F.dropout(F.linear(mixed, at("out.weight"), at("out.bias")), DROPPED, True)
        normed = F.layer_norm(x, [WIDTH], at("norm_2.weight"), at("norm_2.bias"))
        hidden = F.gelu(F.linear(normed, at("up.weight"), at("up.bias")))
        return x + F.linear(F.dropout(hidden, MORE_DROPPED, True), at("down.weight"), at("down.bias"))

    def first(self, w, tokens):
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        return self.layer(w, 0, F.embedding(tokens, w["table.weight"]) + w["places"], mask), mask

    def last(self, w, x, mask):
        x = F.layer_norm(self.layer(w, 1, x, mask), [WIDTH], w["norm.weight"])
        return F.linear(x, w["table.weight"])

    # Shards of the second layer's positions: norms and sums work on a slice of them.
    sources = [
        """
    def forward(self, tokens):
        mask = torch.ones(8, 8, dtype=torch.bool, device=tokens.device).tril()
        found = self.shard.reduce(self.shard.embedding(self["table"].weight, tokens))
        x = found + self.places
        x_1 = F.layer_norm(x, [16], self["layers"]["0"].norm_1.weight, self["layers"]["0"].norm_1.bias)
        x_split = self.shard.copy(x_1)
        q, k, v = F.linear(x_split, self["layers"]["0"].qkv.weight, self["layers"]["0"].qkv.bias).chunk(3, -1)
        heads = self.shard.part(4)
        q, k, v = (each.view(each.size(0), 8, heads, 4).transpose(1, 2) for each in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)
        out = self.shard.reduce(F.linear(mixed, self["layers"]["0"].out.weight)) + self["layers"]["0"].out.bias
        x = x + F.dropout(out, 0.1, self.training)
        x_2 = F.layer_norm(x, [16], self["layers"]["0"].norm_2.weight, self["layers"]["0"].norm_2.bias)
        x_2_split = self.shard.copy(x_2)
        hidden = F.gelu(F.linear(x_2_split, self["layers"]["0"].up.weight, self["layers"]["0"].up.bias))
        hidden = self.shard.dropout(hidden, 0.2, self.training, -1)
        down = F.linear(hidden, self["layers"]["0"].down.weight)
        term = down + self.shard.once(self["layers"]["0"].down.bias)
        return (x + self.shard.reduce(term), mask)
""",
        """
    def forward(self, x, mask):
        x = self.shard.scatter(x, 1)
        weight, bias = self.shard.copy(self["layers"]["1"].norm_1.weight), self.shard.copy(self["layers"]["1"].norm_1.bias)
        x_1 = F.layer_norm(x, [16], weight, bias)
        x_split = self.shard.gather_split(x_1, 1)
        q, k, v = F.linear(x_split, self["layers"]["1"].qkv.weight, self["layers"]["1"].qkv.bias).chunk(3, -1)
        heads = self.shard.part(4)
        q, k, v = (each.view(each.size(0), 8, heads, 4).transpose(1, 2) for each in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)
        out = self.shard.reduce_scatter(F.linear(mixed, self["layers"]["1"].out.weight), 1) + self.shard.copy(self["layers"]["1"].out.bias)
        x = x + self.shard.dropout(out, 0.1, self.training, 1)
        weight, bias = self.shard.copy(self["layers"]["1"].norm_2.weight), self.shard.copy(self["layers"]["1"].norm_2.bias)
        x_2 = self.shard.gather_split(F.layer_norm(x, [16], weight, bias), 1)
        hidden = F.gelu(F.linear(x_2, self["layers"]["1"].up.weight, self["layers"]["1"].up.bias))
        hidden = self.shard.dropout(hidden, 0.2, self.training, -1)
        down = self.shard.reduce_scatter(F.linear(hidden, self["layers"]["1"].down.weight), 1)
        x = self.shard.gather(x + (down + self.shard.copy(self["layers"]["1"].down.bias)), 1)
        x = F.layer_norm(x, [16], self.norm.weight)
        x_split = self.shard.copy(x)
        return self.shard.gather(F.linear(x_split, self["head"].weight), -1)
""",
    ]
    task = """
def inputs(step, samples):
    return (torch.randint(0, 24, (samples, 8), generator=torch.Generator().manual_seed(step)),)


def target(step, samples):
    return inputs(step, samples)[0]


def loss(outputs, target):
    return torch.nn.functional.cross_entropy(outputs[0].flatten(0, 1), target.flatten())
"""


class Mlp:
    """Batch norms whose features are cut, so buffers are; the second stage is not cut at all, and its bias is the first one's."""

    name, inputs = "mlp", [("pixels", [4, 6], "float64")]
    between = [("x", [4, 6], "float64"), ("bias", [5], "float64")]
    tied = []

    @staticmethod
    def tensors():
        wide = {"up.weight": [24, 6], "up.bias": [24], "bn.weight": [24], "bn.bias": [24], "down.weight": [6, 24], "down.bias": [6]}
        wide["end.bias"] = [5]
        return [(wide, {"bn.running_mean": [24], "bn.running_var": [24]}), ({"end.weight": [5, 6]}, {})]

    norm = dict.fromkeys(("bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"), (0, 1))
    cuts = [{"up.weight": (0, 1), "up.bias": (0, 1), "down.weight": (1, 1)} | norm, None]

    def first(self, w, x):
        hidden = F.linear(x, w["up.weight"], w["up.bias"])
        hidden = F.batch_norm(hidden, w["bn.running_mean"], w["bn.running_var"], w["bn.weight"], w["bn.bias"], True)
        return F.linear(F.relu(hidden), w["down.weight"], w["down.bias"]), w["end.bias"] * 0.5

    def last(self, w, x, bias):
        return F.linear(F.dropout(x, MOST_DROPPED, True), w["end.weight"], bias)

    sources = [
        """
    def forward(self, pixels):
        split = self.shard.copy(pixels)
        hidden = F.linear(split, self.up.weight, self.up.bias)
        hidden = F.batch_norm(hidden, self.bn.running_mean, self.bn.running_var, self.bn.weight, self.bn.bias, self.training)
        return (self.shard.reduce(F.linear(F.relu(hidden), self.down.weight)).add_(self.down.bias), self["end"].bias * 0.5)
""",
        """
    def forward(self, x, bias):
        return F.linear(F.dropout(x, 0.3, self.training), self.end.weight, bias)
""",
    ]
    task = """
def inputs(step, samples):
    return (torch.randn(samples, 6, generator=torch.Generator().manual_seed(step), dtype=torch.float64),)


def target(step, samples):
    return torch.randn(samples, 5, generator=torch.Generator().manual_seed(1000 + step), dtype=torch.float64)


def loss(outputs, target):
    return torch.nn.functional.mse_loss(outputs[0], target)
"""


TASK = """
import torch
{data}

groups = [{{"match": "*bias|*norm*", "weight_decay": 0.0, "lr_scale": 2.0}}, {{"match": "*", "weight_decay": 0.1}}]
clip = 0.4


def lr(step):
    return 0.02 * min(1.0, (step + 1) / 3)


def optimizer(parameters):
    return torch.optim.{optimizer}
"""
OPTIMIZERS = {"sgd": "SGD(parameters, lr=0.1, momentum=0.9)", "adam": "AdamW(parameters, lr=0.1, eps=1e-6)"}


def values(model):
    """Draws what the model has, by name; a tied tensor is one. Biases are not zero, for zeros hide faults."""
    generator, made = torch.Generator().manual_seed(5), {}
    for parameters, buffers in model.tensors():
        for name, sizes in parameters.items():
            base = 1.0 if len(sizes) == 1 and name.endswith("weight") else 0.0
            made[name] = base + torch.randn(sizes, generator=generator, dtype=torch.float64) * (sizes[-1] ** -0.5 if len(sizes) > 1 else 0.1)
        for name, sizes in buffers.items():
            made[name] = torch.ones(sizes, dtype=torch.float64) if name.endswith("var") else torch.zeros(sizes, dtype=torch.float64)
    for first, second in model.tied:
        made[second] = made[first]
    return made


# -- folders of stages -----------------------------------------------------------------------------------------------


def folder(cases, model, old="", new=""):
    """Writes stages as they are emitted, beside an emitted `train.py`; one text of them may be replaced."""
    emitted = cases.emit("gpt2_tiny", "--stages", "2", "--targets", "python")
    out = cases.place / f"sharded{len(list(cases.place.glob('sharded*')))}"
    (out / "stages").mkdir(parents=True)
    shutil.copy(emitted / "train.py", out)
    shutil.copytree(emitted / "train_parts", out / "train_parts")
    shutil.copy(PYTHON / "shards.py", out / "stages")
    drawn, about = values(model), []
    texts = {name: (PYTHON / f"{name}.py").read_text() for name in ("holder", "place", "place_shard", "weights", "load", "load_shard")}
    for stage, (parameters, buffers) in enumerate(model.tensors()):
        cuts = model.cuts[stage]
        order = ("holder", "place", "weights", "load") if cuts is None else ("holder", "place_shard", "weights", "load_shard")
        imports = "import importlib.util\nimport zlib\nfrom pathlib import Path\n\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n"
        tables = {"PARAMETERS": parameters, "FROZEN": {}, "BUFFERS": buffers, "CONSTANTS": {}}
        head = "".join(f"{name} = {{{''.join(f'{key!r}: ({sizes}, torch.float64), ' for key, sizes in table.items())}}}\n" for name, table in tables.items())
        head += f"TIED = {{}}\n{'' if cuts is None else f'CUTS = {cuts!r}'}\n\n\n"
        helpers = "BLOCKS = {}\n\n\n" + "\n\n".join(texts[name] for name in order).replace("stage_K", f"stage_{stage}").replace("_CONSTANTS_", "constants")
        init = "(self)" if cuts is None else "(self, shard=None)"
        made = f"\n\nclass Stage(Holder):\n    def __init__{init}:\n        super().__init__()\n"
        made += ("" if cuts is None else "        self.shard = shard or Shard()\n") + "        place_tensors(self)\n        self.train(True)\n"
        source = model.sources[stage].replace("0.1, self", f"{DROPPED}, self").replace("0.2, self", f"{MORE_DROPPED}, self").replace("0.3, self", f"{MOST_DROPPED}, self")
        (out / f"stages/stage_{stage}.py").write_text(imports + head + helpers + made + source)
        save_file({name: drawn[name].clone() for name in (*parameters, *buffers)}, out / f"stages/stage_{stage}.safetensors")
        inputs = [(f"input:{name}", name, s, t) for name, s, t in model.inputs] if stage == 0 else [(f"stage:0:{name}", name, s, t) for name, s, t in model.between]
        outputs = model.between if stage == 0 else [("out", None, "float64")]
        about.append({
            "stage": stage, "blocks": [f"stage {stage}"], "files": {"python": f"stage_{stage}.py", "weights": f"stage_{stage}.safetensors"},
            "inputs": [{"name": name, "from": source, "shape": s, "dtype": t} for source, name, s, t in inputs],
            "outputs": [{"name": name, "shape": s, "dtype": t} for name, s, t in outputs],
            "parameters": list(parameters), "buffers": list(buffers), "repeated_operators": 0,
        } | ({} if cuts is None else {"cuts": cuts}))
    manifest = {
        "kind": "stages", "schema_version": 1, "training": True, "skips": "relay", "stages": about, "output": {"value": 0}, "shards": 2,
        "inputs": [{"name": name, "shape": s, "dtype": t} for name, s, t in model.inputs],
        "tied": [{"holders": [{"stage": 0, "name": a}, {"stage": 1, "name": b}], "requires_grad": True} for a, b in model.tied],
    }
    (out / "stages/manifest.json").write_text(json.dumps(manifest))
    for kind, optimizer in OPTIMIZERS.items():
        (out / f"{kind}.py").write_text(TASK.format(data=model.task, optimizer=optimizer))
    if old:
        changed = [path for path in out.rglob("*.py") if old in path.read_text()]
        if len(changed) != 1:
            raise Failed(f"the fault belongs into one file, not {changed}: {old}")
        changed[0].write_text(changed[0].read_text().replace(old, new))
    return out


def run(out, world, *arguments, fails=False):
    """Trains; returns the lines of the log, and all that was printed."""
    log = out / "log.jsonl"
    log.unlink(missing_ok=True)
    common = ["--log", "log.jsonl", "--steps", str(STEPS), "--micro-batches", str(MICRO_BATCHES), "--timeout", "60"]
    grace = processes.AFTER_A_REFUSAL if fails else processes.GRACE
    codes, texts = processes.ranks(out, world, [*common, *arguments], grace)
    if any(codes) != fails:
        raise Failed(f"exit codes {codes}\n" + "\n".join(texts))
    return [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else [], "\n".join(texts)


def merged(out, saved):
    def merge():
        os.chdir(out)
        sys.argv = ["train.py", "--save", saved, "--merge", f"{saved}.pt"]
        runpy.run_path("train.py", run_name="__main__")

    (code,), (text,) = processes.ended([processes.forked(merge)])
    if code:
        raise Failed(text)
    return torch.load(out / f"{saved}.pt", map_location="cpu")


# -- the plain loop --------------------------------------------------------------------------------------------------


class Plain:
    """Parameters, buffers, losses and norms of the loop of one process. Each stage draws its own random numbers."""

    def __init__(self, model, out, kind, replicas=1, steps=STEPS):
        task, count = processes.module_of(out / f"{kind}.py", "task"), MICRO_BATCHES
        self.values = values(model)
        buffers = [name for _, held in model.tensors() for name in held]
        seconds = {second for _, second in model.tied}
        trained = [name for parameters, _ in model.tensors() for name in parameters if name not in seconds]
        for name in trained:
            self.values[name].requires_grad_()
        groups = [{**group, "params": []} for group in task.groups]
        for name in trained:
            fits = (group for group in groups if any(fnmatch.fnmatch(name, each) for each in group["match"].split("|")))
            next(fits)["params"].append(self.values[name])
        optimizer, size = task.optimizer(groups), model.inputs[0][1][0]
        self.losses, self.norms = [], []
        statistics = [{name: self.values[name].clone() for name in buffers} for _ in range(replicas)]  # are each replica's own
        for step in range(steps):
            optimizer.zero_grad()
            samples, total = size * count * replicas, 0.0
            [x], y = task.inputs(step, samples), task.target(step, samples)
            for replica in range(replicas):
                held, states = self.values | statistics[replica], []
                for stage in range(2):
                    torch.manual_seed(step * 4099 + replica * 2 + stage)
                    states.append(torch.random.get_rng_state())
                for part in range(count):
                    rows = slice((replica * count + part) * size, (replica * count + part + 1) * size)
                    passed = (x[rows],)
                    for stage, forward in enumerate((model.first, model.last)):
                        torch.random.set_rng_state(states[stage])
                        passed = forward(held, *passed)
                        states[stage] = torch.random.get_rng_state()
                    loss = task.loss([passed], y[rows]) / (count * replicas)
                    loss.backward()
                    total += float(loss.detach())
            self.losses.append(total)
            self.norms.append(float(torch.nn.utils.clip_grad_norm_([self.values[name] for name in trained], task.clip)))
            for group in optimizer.param_groups:
                group["lr"] = task.lr(step) * group.get("lr_scale", 1.0)
            optimizer.step()
        self.values |= statistics[0]
        if not sum(norm > task.clip for norm in self.norms) >= 2:
            raise Failed(f"too few steps are clipped: {self.norms}")


def near(expected, found, what):
    if len(expected) != len(found):
        raise Failed(f"{what}: {len(expected)} and {len(found)}")
    worst = max(abs(a - b) / max(abs(a), 1e-30) for a, b in zip(expected, found))
    if not worst <= LIMIT:
        raise Failed(f"{what} differ by {worst:.1e}: {expected} {found}")
    return worst


def near_state(expected, found):
    if set(expected) != set(found):
        raise Failed(f"other names: {sorted(set(expected) ^ set(found))}")
    worst = 0.0
    for name, value in expected.items():
        if value.shape != found[name].shape:
            raise Failed(f"`{name}` is {found[name].shape}, not {value.shape}")
        off = float((value.detach() - found[name]).abs().max() / value.detach().abs().max())
        if not off <= LIMIT:
            raise Failed(f"`{name}` differs by {off:.1e}")
        worst = max(worst, off)
    return worst


def trains(cases, model, kind, shards, replicas, *arguments, planted=("", "")):
    """Five steps with groups, warm-up and clipping: losses, norms and parameters are those of the plain loop."""
    out = folder(cases, model, *planted)
    expected = Plain(model, out, kind, replicas)
    more = ("--task", f"{kind}.py", "--shards", str(shards), "--replicas", str(replicas), "--save", "saved", *arguments)
    lines, text = run(out, 2 * shards * replicas, *more)
    if len(re.findall(r"^step 1 ", text, re.MULTILINE)) != 1:
        raise Failed(f"a step is told once:\n{text}")
    off = near(expected.losses, [line["loss"] for line in lines], "losses")
    norms = near(expected.norms, [line["norm"] for line in lines], "norms")
    state = near_state(expected.values, merged(out, "saved"))
    return f"losses differ by {off:.0e}, norms by {norms:.0e}, parameters by {state:.0e}"


def resumed(cases, model, kind, shards, then, replicas=(1, 1), sharding=("none", "none"), planted=("", "")):
    """Three steps, then two in another number of shards, or with another sharding: as the plain loop has it in five."""
    out = folder(cases, model, *planted)
    expected = Plain(model, out, kind, replicas[0])
    for count, copies, level, more in ((shards, replicas[0], sharding[0], ("--steps", "3")), (then, replicas[1], sharding[1], ("--resume",))):
        how = ("--task", f"{kind}.py", "--shards", str(count), "--replicas", str(copies), "--sharding", level, "--save", "saved")
        lines, text = run(out, 2 * count * copies, *how, *more)
    if "resumed after step 3" not in text:
        raise Failed(text)
    off = near(expected.losses[3:], [line["loss"] for line in lines], "losses")
    return f"losses differ by {off:.0e}, parameters by {near_state(expected.values, merged(out, 'saved')):.0e}"


def checked(cases, model, shards, replicas, *arguments, places=2, planted=("", "")):
    out = folder(cases, model, *planted)
    how = ("--task", "sgd.py", "--shards", str(shards), "--replicas", str(replicas), "--check", *arguments)
    _, text = run(out, places * shards * replicas, *how, fails=bool(planted[0]))
    about = json.loads(next(line for line in text.splitlines() if line.startswith('{"check"')))["check"]
    if about["ok"] == bool(planted[0]):
        raise Failed(text)
    gradients = sum(len(parameters) for parameters, _ in model.tensors()) * 2 * shards * replicas
    if about["compared"] != gradients:
        raise Failed(f"{about['compared']} gradients were compared, {gradients} there are")
    return f"{gradients} gradients differ by {about['gradients']:.0e}"


def finds(cases, model, shards, replicas, old, new, test=None):
    """A planted fault is found, by what was trained and not by a crash."""
    test = test or (lambda c, m, planted: trains(c, m, "sgd", shards, replicas, planted=planted))
    try:
        said = test(cases, model, planted=(old, new))
    except Failed as error:
        if "differ" not in str(error).splitlines()[0]:
            raise
        return str(error).splitlines()[0][:80]
    raise Failed(f"nobody saw it: {said}")


def single(cases, model):
    """`--single` runs the whole stages of the same source; it draws other random numbers, so the MLP drops nothing here."""
    out = folder(cases, model, "F.dropout(x, 0.3, self.training)", "x")

    def alone():
        os.chdir(out)
        sys.argv = ["train.py", "--device", "cpu", "--single", "--steps", "3", "--micro-batches", "4", "--task", "sgd.py", "--log", "single.jsonl"]
        for name in [name for name in sys.modules if name.startswith("train_parts")]:
            del sys.modules[name]
        runpy.run_path("train.py", run_name="__main__")

    (code,), (text,) = processes.ended([processes.forked(alone)])
    if code:
        raise Failed(text)
    expected = [json.loads(line)["loss"] for line in (out / "single.jsonl").read_text().splitlines()]
    lines, _ = run(out, 4, "--task", "sgd.py", "--shards", "2", "--steps", "3")
    return f"losses differ by {near(expected, [line['loss'] for line in lines], 'losses'):.0e}"


def refused(cases):
    out = folder(cases, Transformer())
    plain = cases.emit("gpt2_tiny", "--stages", "2", "--targets", "python")
    own, seeded = (out / "sgd.py").read_text(), "generator=torch.Generator().manual_seed(step)"
    (out / "adafactor.py").write_text(own.replace(OPTIMIZERS["sgd"], "Adafactor(parameters, lr=0.1)"))
    drawn = "import os\n\nGENERATOR = torch.Generator().manual_seed(os.getpid())\n\n\ndef inputs"
    (out / "drawn.py").write_text(own.replace(seeded, "generator=GENERATOR").replace("def inputs", drawn, 1))
    manifest = json.loads((out / "stages/manifest.json").read_text())
    manifest["stages"][1]["cuts"].pop("head.weight")
    faults = [
        (plain, 4, ("--shards", "2"), "not cut inside their operators"),
        (out, 6, ("--shards", "3"), "does not divide into"),
        (out, 8, ("--sharding", "zero3", "--shards", "2", "--replicas", "2"), "--sharding zero3 cannot be combined with --shards 2"),
        (out, 6, ("--replicas", "2,1"), "cannot be combined with unequal replicas"),
        (out, 2, (), "2 ranks were started, 4 are needed"),
        (out, 4, ("--task", "adafactor.py"), "--shards cannot be combined with Adafactor"),
        (out, 4, ("--task", "drawn.py"), "different data"),
    ]
    for place, world, arguments, expected in faults:
        _, text = run(place, world, *arguments, fails=True)
        if expected not in text:
            raise Failed(f"{arguments}: not `{expected}`, but\n{text}")
    (out / "stages/manifest.json").write_text(json.dumps(manifest))
    _, text = run(out, 4, fails=True)
    if "one parameter, cut in different ways" not in text:
        raise Failed(text)
    return f"{len(faults) + 1} faults"


def validated(cases):
    """Validation through the shards tells what the stages in one process do."""
    out = folder(cases, Mlp())
    more = "\n\ndef validation(replica, replicas, samples):\n    return [(inputs(50 + replica + replicas * n, samples)[0], target(50 + replica + replicas * n, samples)) for n in range(3)]\n"
    with open(out / "sgd.py", "a") as file:
        file.write(more)
    found = []
    for shards in (1, 2):
        lines, text = run(out, 4 * shards, "--task", "sgd.py", "--shards", str(shards), "--replicas", "2", "--validate-every", "5")
        values = [line for line in lines if "validation" in line]
        if len(values) != 1 or values[0]["samples"] != 3 * 2 * 4 * MICRO_BATCHES or text.count("validation after") != 1:
            raise Failed(text)
        found.append(values[0]["validation"]["loss"])
    return f"differs by {near(found[:1], found[1:], 'validation'):.0e}"


def cases():
    transformer, mlp = Transformer(), Mlp()
    made = {
        "transformer, whole": lambda c: trains(c, transformer, "sgd", 1, 1),
        "transformer 2x2": lambda c: trains(c, transformer, "sgd", 2, 1),
        "transformer 2x2x2, GPipe": lambda c: trains(c, transformer, "adam", 2, 2, "--schedule", "GPipe"),
        "transformer 2x4": lambda c: trains(c, transformer, "adam", 4, 1),
        "mlp 2x2": lambda c: trains(c, mlp, "adam", 2, 1, "--schedule", "GPipe"),
        "mlp 2x3": lambda c: trains(c, mlp, "sgd", 3, 1),
        "mlp 2x2x2": lambda c: trains(c, mlp, "adam", 2, 2),
        "transformer 2x2x2, zero1": lambda c: trains(c, transformer, "adam", 2, 2, "--sharding", "zero1"),
        "transformer 2x2x2, zero2": lambda c: trains(c, transformer, "adam", 2, 2, "--sharding", "zero2"),
        "mlp 2x2x2, zero1": lambda c: trains(c, mlp, "adam", 2, 2, "--sharding", "zero1"),
        "resume 2x2 in zero1 as whole": lambda c: resumed(c, transformer, "adam", 2, 1, (2, 2), ("zero1", "none")),
        "resume 2x2 as 2x2 in zero2": lambda c: resumed(c, transformer, "adam", 2, 2, (2, 2), ("none", "zero2")),
        "check 2x2x2, zero2": lambda c: checked(c, transformer, 2, 2, "--sharding", "zero2"),
        "resume 2 as 4": lambda c: resumed(c, transformer, "adam", 2, 4),
        "resume 2 as whole": lambda c: resumed(c, mlp, "adam", 2, 1),
        "resume whole as 2": lambda c: resumed(c, transformer, "adam", 1, 2),
        "resume 2x2 replicas as 2x2": lambda c: resumed(c, mlp, "adam", 2, 2, (2, 2)),
        "check 2x2x2": lambda c: checked(c, transformer, 2, 2),
        "check interleaved": lambda c: checked(c, transformer, 2, 2, "--pipeline-ranks", "1", "--schedule", "Interleaved1F1B", places=1),
        "check split": lambda c: checked(c, transformer, 2, 2, "--pipeline-ranks", "1", "--schedule", "InterleavedZeroBubble", places=1),
        "check mlp split": lambda c: checked(c, mlp, 2, 1, "--pipeline-ranks", "1", "--schedule", "InterleavedZeroBubble", places=1),
        "check mlp 2x2": lambda c: checked(c, mlp, 2, 1),
        "single": lambda c: single(c, mlp),
        "validation": validated,
        "refused": refused,
    }
    faults = {
        "an entry without its sum": ("x_split = self.shard.copy(x_1)", "x_split = x_1"),
        "a norm's weight without its sum": ("weight, bias = self.shard.copy(self[\"layers\"][\"1\"].norm_2.weight)", "weight, bias = (self[\"layers\"][\"1\"].norm_2.weight)"),
        "a bias in each term": ("self.shard.once(self[\"layers\"][\"0\"].down.bias)", "self[\"layers\"][\"0\"].down.bias"),
        "a mask of its own": ("hidden = self.shard.dropout(hidden, 0.2, self.training, -1)\n        down = F", "hidden = F.dropout(hidden, 0.2, self.training)\n        down = F"),
        "whole parameters in the norm twice": ("self.cuts.is_first(p, shard) and p not in later", "p not in later"),
        "cut parameters in the norm once": ("self.cuts.is_first(p, shard) and p not in later", "shard == 0 and p not in later"),
        "random numbers by rank": ("step, self.rank // self.layout.shards)", "step, self.rank)"),
    }
    for name, (old, new) in faults.items():
        replicas = 2 if "replicas" in name else 1
        made[f"found: {name}"] = lambda c, o=old, n=new, r=replicas: finds(c, transformer, 2, r, o, n)
    made["found: a state that is cut as one block"] = lambda c: finds(
        c, transformer, 2, 1, "return cut_part(self.how[tensor], value)", "return cut_part([(*level[:2], min(level[2], 1)) for level in self.how[tensor]], value)",
        lambda c, m, planted: resumed(c, m, "adam", 2, 4, planted=planted),
    )
    made["found: a slice of blocks that are cut as one"] = lambda c: finds(
        c, transformer, 2, 2, "length = sizes[dim] // blocks", "length = sizes[dim]",
        lambda c, m, planted: resumed(c, m, "adam", 2, 1, (2, 2), ("zero1", "none"), planted=planted),
    )
    made["found by check: blocks that are joined as one"] = lambda c: checked(
        c, transformer, 2, 1, planted=("value = shard.joined(value.detach(), dim, blocks)", "value = shard.joined(value.detach(), dim)")
    )
    made["found by check: an entry without its sum"] = lambda c: checked(
        c, transformer, 2, 1, planted=("x_2_split = self.shard.copy(x_2)", "x_2_split = x_2")
    )
    if sys.argv[3:] == ["--all"]:
        del sys.argv[3:]
        return made
    return made if len(sys.argv) > 3 else {name: made[name] for name in USUAL}


# What the suite takes; `make zoo-shards` takes all.
USUAL = [
    "transformer 2x2x2, GPipe",
    "mlp 2x3",
    "transformer 2x2x2, zero2",
    "resume 2x2 in zero1 as whole",
    "found: a slice of blocks that are cut as one",
    "resume 2 as 4",
    "check split",
    "validation",
    "refused",
    "found: cut parameters in the norm once",
]


if __name__ == "__main__":
    processes.main(cases())
