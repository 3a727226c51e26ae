"""PipeDream and 2BW of `train.py`, in several gloo processes, beside a loop of one process with the same stale gradients.

    python tests/oracle/without_flush.py COMMAND FOLDER [CASE …]

The loop knows nothing of stages but which parameters each has: it runs the eager, uncut model on weights of the versions
that the papers' tables give, differentiates, and updates each stage's parameters. Prints a line for each case and exits 1
when one fails.
"""

import fnmatch
import json
import math
import re
import sys
import warnings
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent))
import torchrun as processes
import trainer
import two_way
from torchrun import Failed

warnings.filterwarnings("ignore")
STEPS = 12
LIMIT = 2e-6
TASK = """
import torch


def inputs(step, samples):
    generator = torch.Generator().manual_seed(step)
    if KIND == "text":
        return (torch.randint(0, 50, (samples, 12), generator=generator),)
    return (torch.randn(samples, 3, 32, 32, generator=generator),)


def target(step, samples):
    generator = torch.Generator().manual_seed(1000 + step)
    if KIND == "text":
        return torch.randint(0, 50, (samples, 12), generator=generator)
    return torch.randint(0, 10, (samples,), generator=generator)


def loss(outputs, target):
    return torch.nn.functional.cross_entropy(outputs[0].flatten(0, -2), target.flatten())


groups = [{"match": "*bias|*norm*|*bn*", "weight_decay": 0.0, "lr_scale": 2.0}, {"match": "*", "weight_decay": 0.1}]


def optimizer(parameters):
    return torch.optim.OPTIMIZER


def lr(step):
    return RATE * min(1.0, (step + 1) / 4)
"""
OPTIMIZERS = {"sgd": ("SGD(parameters, lr=0.1, momentum=0.9)", "0.01"), "adamw": ("AdamW(parameters, lr=0.1)", "0.002")}


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.attention, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.attention(self.norm_1(x)).chunk(3, dim=-1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))


class Text(nn.Module):
    """A language model whose head is not tied to its embedding."""

    def __init__(self):
        super().__init__()
        self.embedding, self.places = nn.Embedding(50, 16), nn.Embedding(12, 16)
        self.blocks = nn.ModuleList(Block(16) for _ in range(5))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 50)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def eager(kind):
    torch.manual_seed(3)
    return Text().train() if kind == "text" else processes.resnet(True)


def prepared(cases):
    if "text" in cases.models:
        return
    script = processes.module_of(processes.ROOT / "src/trace.py", "trace_script")
    traced, outputs = script.trace(eager("text"), [(None, torch.zeros(2, 12, dtype=torch.int64))])
    text = script.record(traced, about={"target": "text", "seed": "3"}, training=True, outputs=outputs)
    cases.models["text"] = cases.place / "text.pt"
    script.save(traced, str(cases.models["text"]), text)


def task(cases, kind, optimizer):
    text, rate = OPTIMIZERS[optimizer]
    path = cases.place / f"stale_{kind}_{optimizer}.py"
    path.write_text(TASK.replace("KIND", repr(kind)).replace("OPTIMIZER", text).replace("RATE", rate))
    return str(path)


# The tables: which version of its weights a stage takes for micro-batch j of p stages, m of them a step.
VERSION = {
    "stashing": lambda j, s, p, m: max(0, j - (p - 1 - s)),
    "vertical": lambda j, s, p, m: max(0, j - p + 1),
    "2bw": lambda j, s, p, m: max(0, j // m - 1),
}
ARGUMENTS = {
    "stashing": ("--schedule", "PipeDream"), "vertical": ("--schedule", "PipeDream", "--vertical-sync"), "2bw": ("--schedule", "PipeDream-2BW"),
}


def reference(kind, path, manifest, mode, count, replicas=1, drains=(STEPS,)):
    """The loop of one process: returns the losses of steps, and the state of the model."""
    trains, model = processes.module_of(Path(path), "task"), eager(kind)
    copies = [model] + [eager(kind) for _ in range(replicas - 1)]  # each replica has batch-norm statistics of its own
    named, stages = dict(model.named_parameters()), [about["parameters"] for about in manifest["stages"]]
    optimizers = []
    for names in stages:
        groups = [{**group, "params": []} for group in trains.groups]
        for name in names:
            fits = next(g for g in groups if any(fnmatch.fnmatch(name, each) for each in g["match"].split("|")))
            fits["params"].append(named[name])
        optimizers.append(trains.optimizer([{k: v for k, v in g.items() if k != "match"} for g in groups]))
    losses, first = [], 0
    for last in drains:
        # Since the pipeline was empty: the weights of each stage after each of its updates.
        history = [[{n: named[n].detach().clone() for n in names}] for names in stages]
        total = 0.0
        for j in range((last - first) * count):
            step, part = first + j // count, j % count
            x, y = trains.inputs(step, 2 * count * replicas)[0], trains.target(step, 2 * count * replicas)
            for replica in range(replicas):
                weights = {}
                for s, names in enumerate(stages):
                    version = history[s][VERSION[mode](j, s, len(stages), count)]
                    weights |= {n: version[n].requires_grad_() for n in names}
                rows = slice(2 * (replica * count + part), 2 * (replica * count + part) + 2)
                out = torch.func.functional_call(copies[replica], weights, (x[rows],))
                loss = trains.loss([out], y[rows]) / (replicas * (count if mode == "2bw" else 1))
                for name, gradient in zip(weights, torch.autograd.grad(loss, list(weights.values()))):
                    named[name].grad = gradient if named[name].grad is None else named[name].grad + gradient
                total += float(loss.detach()) / (1 if mode == "2bw" else count)
            if mode != "2bw" or part + 1 == count:
                for s, optimizer in enumerate(optimizers):
                    for group in optimizer.param_groups:
                        group["lr"] = trains.lr(step) * group.get("lr_scale", 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                    history[s].append({n: named[n].detach().clone() for n in stages[s]})
            if part + 1 == count:
                losses.append(total)
                total = 0.0
        first = last
    return losses, model.state_dict()


def uneven(kind, path, manifest, mode, count, replicas):
    """The loop of one process where stages have so many replicas: a stage's update is the mean of a micro-batch of each, or of a step's.

    PipeDream's `runtime.py` lets a replica begin with as many forward passes as there are replicas from its stage on, for each of its own.
    """
    trains, model = processes.module_of(Path(path), "task"), eager(kind)
    named, stages = dict(model.named_parameters()), [about["parameters"] for about in manifest["stages"]]
    ahead = [-(-sum(replicas[s:]) // n) - 1 for s, n in enumerate(replicas)]
    total = count * math.lcm(*replicas)
    optimizers = []
    for names in stages:
        fits = lambda n, g: any(fnmatch.fnmatch(n, each) for each in g["match"].split("|"))  # noqa: E731
        rest = [{k: v for k, v in g.items() if k != "match"} | {"params": []} for g in trains.groups]
        for name in names:
            rest[next(i for i, g in enumerate(trains.groups) if fits(name, g))]["params"].append(named[name])
        optimizers.append(trains.optimizer(rest))
    history = [[{n: named[n].detach().clone() for n in names}] for names in stages]
    gathered, losses = [{} for _ in stages], [0.0] * STEPS
    for j in range(STEPS * total):
        step, part = divmod(j, total)
        weights = {}
        for s, names in enumerate(stages):
            version = j // total - 1 if mode == "2bw" else j // replicas[s] - ahead[s]
            weights |= {n: value.requires_grad_() for n, value in history[s][max(0, version)].items()}
        # The task's samples are those of one pipeline after the other, which take micro-batches in turn.
        at = part % (total // count) * count + part // (total // count)
        rows = slice(2 * at, 2 * at + 2)
        x, y = trains.inputs(step, 2 * total)[0], trains.target(step, 2 * total)
        loss = trains.loss([torch.func.functional_call(model, weights, (x[rows],))], y[rows])
        losses[step] += float(loss.detach()) / total
        for name, gradient in zip(weights, torch.autograd.grad(loss, list(weights.values()))):
            of = next(s for s, names in enumerate(stages) if name in names)
            gathered[of].setdefault(name, []).append(gradient)
        for s, optimizer in enumerate(optimizers):
            if (j + 1) % (total if mode == "2bw" else replicas[s]) == 0:
                for name, gradients in gathered[s].items():
                    named[name].grad = sum(gradients[1:], gradients[0]) / len(gradients)
                for group in optimizer.param_groups:
                    group["lr"] = trains.lr(step) * group.get("lr_scale", 1.0)
                optimizer.step()
                gathered[s] = {}
                history[s].append({n: named[n].detach().clone() for n in stages[s]})
    return losses, model.state_dict(), [2] * len(stages) if mode == "2bw" else [1 + each for each in ahead]


def unequal(cases, mode, replicas, *arguments, count=2, optimizer="sgd", kind="text", out=None):
    """Losses and parameters are those of the loop, versions those of the formula."""
    run = out or folder(cases, kind, len(replicas))
    path = task(cases, kind, optimizer)
    losses, state, kept = uneven(kind, path, run.manifest(), mode, count, replicas)
    how = ("--task", path, "--steps", str(STEPS), "--micro-batches", str(count), "--replicas", ",".join(map(str, replicas)), "--save", "uneven")
    lines, text = run.run(sum(replicas), *how, *ARGUMENTS[mode], *arguments)
    off = trainer.near(losses, [line["loss"] for line in lines], "losses", 1e-6)
    worst = same(state, run.merged("uneven"), "parameters", False)
    told = f"stages held {', '.join(map(str, kept))} versions of their weights"
    if told not in text:
        raise Failed(f"not `{told}`:\n{text}")
    return f"losses differ by {off:.0e}, parameters by {worst:.0e}; versions {kept}"


class Trained(trainer.Trained):
    def __init__(self, cases, out):
        self.cases, self.out = cases, out

    def manifest(self):
        return json.loads((self.out / "stages/manifest.json").read_text())


def folder(cases, kind, stages):
    prepared(cases)
    return Trained(cases, cases.emit(kind, "--stages", str(stages), "--targets", "python"))


def versions_of(cases, mode, stages, count):
    """What the simulator says each stage keeps, and how many updates its gradients miss."""
    schedule = "2bw" if mode == "2bw" else "pipedream"
    more = ["--vertical-sync"] if mode == "vertical" else []
    text = trainer.command(cases, "simulate", "--schedule", schedule, "--ranks", str(stages), "--micro-batches", str(max(count, stages)), "--format", "json", *more)
    found = json.loads(text)["versions"]
    return [each["kept"] for each in found], [each["staleness"] for each in found]


def same(expected, found, what, is_exact):
    worst = 0.0
    least = 1e-2 * max(float(value.abs().max()) for value in expected.values() if value.is_floating_point())
    for name, value in expected.items():
        if value.is_floating_point():
            worst = max(worst, float((value - found[name]).abs().max() / value.abs().max().clamp_min(least)))
        elif not torch.equal(value, found[name]):
            raise Failed(f"{what}: `{name}` differs")
    if worst > processes.allowed_of(expected, 0.0 if is_exact else LIMIT):
        raise Failed(f"{what} differ by {worst:.1e}")
    return worst


def trains(cases, kind, mode, stages, *arguments, optimizer="sgd", count=4, replicas=1, out=None, drains=(STEPS,), is_exact=True):
    """Losses and parameters are those of the loop, versions those that the simulator counts."""
    run = out or folder(cases, kind, stages)
    path = task(cases, kind, optimizer)
    losses, state = reference(kind, path, run.manifest(), mode, count, replicas, drains)
    how = ("--task", path, "--steps", str(STEPS), "--micro-batches", str(count), "--replicas", str(replicas), "--save", "stale")
    lines, text = run.run(stages * replicas, *how, *ARGUMENTS[mode], *arguments)
    if len(set(losses)) < STEPS:
        raise Failed(f"the losses stand still: {losses}")
    off = trainer.near(losses, [line["loss"] for line in lines], "losses", 1e-6)
    state = same(state, run.merged("stale"), "parameters", is_exact)
    kept, missed = versions_of(cases, mode, stages, count)
    told = f"stages held {', '.join(map(str, kept))} versions of their weights, gradients were stale by {', '.join(map(str, missed))} updates"
    if told not in text:
        raise Failed(f"not `{told}`:\n{text}")
    return f"losses differ by {off:.0e}, parameters by {state:.0e}; versions {kept}"


def resumed(cases):
    """The pipeline drains for a checkpoint; going on from it gives what an uninterrupted run with checkpoints gives."""
    run = folder(cases, "resnet", 3)
    said = trains(cases, "resnet", "stashing", 3, "--save-every", "5", out=run, drains=(5, 10, STEPS))
    whole = run.merged("stale")
    how = ("--task", task(cases, "resnet", "sgd"), "--micro-batches", "4", "--save-every", "5", *ARGUMENTS["stashing"])
    run.run(3, *how, "--save", "halves", "--steps", "10")
    _, text = run.run(3, *how, "--save", "halves", "--steps", str(STEPS), "--resume")
    if "resumed after step 10" not in text:
        raise Failed(text)
    same(whole, run.merged("halves"), "parameters", True)
    return f"bit-equal; {said}"


LOADER = """

def share(replica, replicas, samples, count):
    generator = torch.Generator().manual_seed(replica)
    x, y = torch.randn(count, 3, 32, 32, generator=generator), torch.randint(0, 10, (count,), generator=generator)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), samples, drop_last=True, shuffle=True)


def loader(replica, replicas, samples):
    return share(replica, replicas, samples, 60 if replica else 44)


def validation(replica, replicas, samples):
    return share(replica, replicas, samples, 24)
"""


def loaded(cases):
    """Epochs end for all with the shortest loader, whose length is known; validations drain."""
    text = TASK.replace("KIND", "'resnet'").replace("OPTIMIZER", OPTIMIZERS["sgd"][0]).replace("RATE", "0.01")
    path = cases.place / "stale_loader.py"
    path.write_text(text[: text.index("def inputs")] + text[text.index("def loss") :] + LOADER)
    run = folder(cases, "resnet", 2)
    how = ("--task", str(path), "--micro-batches", "4", "--replicas", "2", *ARGUMENTS["stashing"], "--validate-every", "6", "--steps", "12")
    lines, text = run.run(4, *how)
    found = [line["step"] for line in lines if "validation" in line]
    if found != [6, 12] or len(lines) != 14:
        raise Failed(text)
    straight, _ = run.run(4, *how, "--save", "loaded", "--save-every", "6")
    run.run(4, *how, "--save", "loader_halves", "--save-every", "6", "--steps", "6")
    rest, _ = run.run(4, *how, "--save", "loader_halves", "--save-every", "6", "--resume")
    trainer.near([l["loss"] for l in straight if "loss" in l][6:], [l["loss"] for l in rest if "loss" in l], "losses", 0.0)
    same(run.merged("loaded"), run.merged("loader_halves"), "parameters", True)
    path.write_text(path.read_text() + "\n\ndef loader(replica, replicas, samples):\n    return (batch for batch in share(replica, replicas, samples, 44))\n")
    _, text = run.run(4, *how, fails=True)
    if "returns something without a length, which PipeDream needs" not in text:
        raise Failed(text)
    return "an epoch of 5 batches, resumed bit-equal"


def planned(cases):
    """A plan's pipedream is what the script runs, its vertical sync with it; where it cannot, that is said and 1F1B runs."""
    prepared(cases)
    plan, said = cases.place / "endless.yaml", []
    for model, schedule, sync, expected in (
        ("text", "pipedream", False, "PipeDream (stashing): stages held 2, 1 versions"),
        ("text", "pipedream", True, "PipeDream (vertical sync): stages held 2, 2 versions"),
        ("text", "pipedream-2bw", False, "PipeDream-2BW (2BW): stages held 2, 2 versions"),
        ("gpt2_tiny", "pipedream", False, "the plan is for pipedream, which keeps several weight versions and has no flush; this script runs schedule.csv"),
    ):
        made = ("plan", cases.models[model], "--devices", "2xt4", "--strategy", "1f1b", "--stages", "2", "--micro-batches", "4", "-o", plan)
        plan.unlink(missing_ok=True)
        trainer.command(cases, *made)
        text = plan.read_text().replace("\nschedule: 1f1b\n", f"\nschedule: {schedule}\n")
        if sync:
            text = text.replace("\npredicted:", "\nexecution:\n  vertical_sync: true\npredicted:", 1)
        plan.write_text(text)
        out = cases.place / f"endless_{len(said)}"
        trainer.command(cases, "emit", cases.models[model], plan, "--targets", "python", "-o", out)
        _, text = Trained(cases, out).run(2, "--steps", "8")
        if expected not in text or (out / "schedule.csv").exists() != (model == "gpt2_tiny"):  # a table ends with a flush
            raise Failed(f"not `{expected}`:\n{text}")
        _, text = Trained(cases, out).run(2, "--check")
        if '"ok": true' not in text:
            raise Failed(text)
        said.append(schedule)
    return ", ".join(said)


def planned_unequal(cases):
    """A plan whose stages have unequal replicas keeps as many versions, and gradients miss as many updates, as `simulate` says."""
    prepared(cases)
    plan, out = cases.place / "unequal.yaml", cases.place / "unequal"
    trainer.command(cases, "plan", cases.models["text"], "--devices", "3xt4", "--strategy", "pipedream", "--micro-batches", "12", "-o", plan)
    trainer.command(cases, "emit", cases.models["text"], plan, "--targets", "python", "-o", out)
    found = json.loads(trainer.command(cases, "simulate", plan, "--format", "json"))["versions"]
    script = (out / "train.py").read_text()
    if '"replicas": "2,1"' not in script or '"schedule": "PipeDream"' not in script:
        raise Failed("the plan is another one")
    _, text = Trained(cases, out).run(3, "--steps", "4")
    kept, missed = (", ".join(str(each[name]) for each in found) for name in ("kept", "staleness"))
    told = f"PipeDream (stashing): stages held {kept} versions of their weights, gradients were stale by {missed} updates"
    if told not in text:
        raise Failed(f"not `{told}`:\n{text}")
    return told


def recomputed(cases):
    """Blocks that are computed again in the backward pass are so with the version of the forward pass; offload changes nothing."""
    plan = processes.planned(cases, "resnet", "torchgpipe", ("recompute", "layer1"), ("recompute", "layer4"))
    run = Trained(cases, plan)
    said = trains(cases, "resnet", "stashing", 2, "--offload", "both", "--offload-floor", "1", out=run)
    _, text = run.run(2, *ARGUMENTS["vertical"], "--offload", "both", "--offload-floor", "1")
    if not re.search(r"offload \(both, whole stages\) moved [0-9.]+ [KM]iB to the host per step.*, 0 are in use", text):
        raise Failed(text)
    return said


def refused(cases):
    """What does not go with versions is one line, before the first step."""
    prepared(cases)
    run, tied = folder(cases, "resnet", 3), Trained(cases, cases.emit("gpt2_tiny", "--stages", "2", "--targets", "python"))
    archives = Trained(cases, cases.emit("resnet", "--stages", "2"))
    endless = ("--schedule", "PipeDream")
    clipped = Path(task(cases, "resnet", "sgd").replace(".py", "_clip.py"))
    clipped.write_text(Path(task(cases, "resnet", "sgd")).read_text() + "\nclip = 1.0\n")
    faults = [
        ("--check cannot be combined with PipeDream: use --schedule 1F1B", run, 3, (*endless, "--check")),
        ("--single cannot be combined with PipeDream", run, 1, (*endless, "--single")),
        ("--dtype fp16 cannot be combined with PipeDream", run, 3, (*endless, "--dtype", "fp16")),
        ("--sharding zero1 cannot be combined with PipeDream", run, 6, (*endless, "--replicas", "2", "--sharding", "zero1")),
        ("--clip 1.0 cannot be combined with PipeDream", run, 3, (*endless, "--clip", "1.0")),
        ("`clip` of the task cannot be combined with PipeDream", run, 3, (*endless, "--task", str(clipped))),
        ("--vertical-sync cannot be combined with --replicas 2,1,1, under which", run, 4, (*endless, "--vertical-sync", "--replicas", "2,1,1")),
        ("runs one stage per rank: use --pipeline-ranks 3", run, 1, (*endless, "--pipeline-ranks", "1")),
        ("runs two stages per rank, 6 on 3, and this folder has 3", run, 3, ("--schedule", "ZBVZeroBubble")),
        ("needs at least 2 micro-batches per step, not 1", run, 3, ("--schedule", "2bw", "--micro-batches", "1")),
        ("--vertical-sync cannot be combined with 1F1B: its steps end with a flush", run, 3, ("--vertical-sync",)),
        ("--vertical-sync cannot be combined with 2bw", run, 3, ("--schedule", "2bw", "--vertical-sync")),
        ("are one parameter of stages that PipeDream updates at different times", tied, 2, endless),
        ("archives cannot keep the weight versions", archives, 2, (*endless, "--form", "torchscript")),
    ]
    for message, out, world, arguments in faults:
        lines, text = out.run(world, *arguments, fails=True, grace=processes.AFTER_A_REFUSAL)
        if message not in text or "Traceback" in text or lines:
            raise Failed(f"not `{message}`:\n{text}")
    return f"{len(faults)} faults"


def finds(cases, old, new, message):
    """A planted fault is found, by what was trained or by the count of versions."""
    run = folder(cases, "text", 3)
    for path in (run.out / "train_parts/versions.py", run.out / "train_parts/without_flush.py"):
        before = path.read_text()
        if old in before:
            break
    path.write_text(before.replace(old, new))
    try:
        said = trains(cases, "text", "stashing", 3, "--allow-changes", out=run)
    except Failed as error:
        if message not in str(error):
            raise
        return message
    finally:
        path.write_text(before)
    raise Failed(f"nobody saw it: {said}")


def uneven_finds(cases, old, new):
    run = folder(cases, "text", 2)
    case = lambda: unequal(cases, "stashing", (2, 1), "--allow-changes", out=run)  # noqa: E731
    return processes.finds_fault(run.out / "train_parts/without_flush.py", old, new, "differ", case)


def one_stream(cases, old, new):
    """Messages of both directions in one group: gloo delivers them, NCCL would not."""
    run = folder(cases, "text", 3)
    case = lambda: trains(cases, "text", "stashing", 3, "--allow-changes", out=run)  # noqa: E731
    return processes.finds_fault(run.out / "train_parts/groups.py", old, new, "NCCL would wait for ever", case)


def timed(cases, mode, stages, count, times=(150, 150, 150)):
    """Steps of sleeping stages follow each other as `simulate` says, within 5 %: the whole run but for the first step."""
    run = folder(cases, "text", stages)
    name = {"2bw": "PipeDream-2BW"}.get(mode, "PipeDream")
    more = ["--vertical-sync"] if mode == "vertical" else []
    lines = two_way.asleep(run, stages, times, "--schedule", name, *more, "--micro-batches", str(count), "--steps", "4", "--task", task(cases, "text", "sgd"))
    ends = []
    for steps in (1, 4):
        order = ("simulate", "--schedule", name.lower(), "--ranks", str(stages), "--micro-batches", str(steps * count), "--cost", ",".join(map(str, times)) + ",0")
        ends.append(json.loads(trainer.command(cases, *order, "--format", "json"))["makespan"])
    found, expected = 1000 * sum(line["seconds"] for line in lines[1:]), ends[1] - ends[0]
    if not abs(found / expected - 1) < 0.05:
        raise Failed(f"three steps took {found:.0f} ms, {expected} predicted")
    return f"three steps took {found:.0f} ms, {expected} predicted"


def cases():
    made = {
        "resnet 3, 2BW": lambda c: trains(c, "resnet", "2bw", 3),
        "text 3, stashing, AdamW": lambda c: trains(c, "text", "stashing", 3, optimizer="adamw"),
        "text 3, vertical sync": lambda c: trains(c, "text", "vertical", 3, count=3),
        "text 3, 2BW": lambda c: trains(c, "text", "2bw", 3, count=2, optimizer="adamw"),
        "text 1, stashing": lambda c: trains(c, "text", "stashing", 1),
        "text 2, two replicas, stashing": lambda c: trains(c, "text", "stashing", 2, replicas=2, count=2),
        "text 2, two replicas, 2BW": lambda c: trains(c, "text", "2bw", 2, replicas=2, count=2, is_exact=False),
        "text 2-1, stashing": lambda c: unequal(c, "stashing", (2, 1)),
        "resume": resumed,
        "loader": loaded,
        "a plan's": planned,
        "refused": refused,
        "found: passes on their way are forgotten": lambda c: finds(
            c, "found = {version for version, _ in self.on_their_way.values()}", "found = set()", "versions of the weights are in memory"
        ),
        "found: an update in place": lambda c: finds(c, "if self.present in needed:", "if False:", "versions of the weights are in memory"),
        "found: gradients of the newest weights": lambda c: finds(
            c, "return lambda number: max(0, number - behind)", "return lambda number: max(0, number - (behind > 1))", "KeyError"
        ),
        "found: a pass that is kept": lambda c: finds(
            c, "        del loss  # and", "        self.kept = getattr(self, 'kept', []) + [self.versions.on_their_way.get(number + 1)]  # and", "versions of the weights are in memory"
        ),
        "found: one stream for both ways": lambda c: one_stream(c, "(self.group_of(ranks), self.group_of(ranks))", "(self.group_of(ranks),) * 2"),
    }
    every = {
        "recompute and offload": recomputed,
        "text 4, stashing": lambda c: trains(c, "text", "stashing", 4),
        "resnet 2, vertical sync": lambda c: trains(c, "resnet", "vertical", 2, optimizer="adamw"),
        "resnet 2, stashing": lambda c: trains(c, "resnet", "stashing", 2),
        "text 1-2, stashing": lambda c: unequal(c, "stashing", (1, 2), optimizer="adamw"),
        "text 2-1-1, stashing": lambda c: unequal(c, "stashing", (2, 1, 1)),
        "text 2-3, stashing": lambda c: unequal(c, "stashing", (2, 3), count=1),
        "text 1-3-1, stashing": lambda c: unequal(c, "stashing", (1, 3, 1), count=1),
        "text 2-1, 2BW": lambda c: unequal(c, "2bw", (2, 1)),
        "text 1-2-1, 2BW": lambda c: unequal(c, "2bw", (1, 2, 1)),
        "text 2-1, optimizer on the host": lambda c: unequal(c, "stashing", (2, 1), "--offload-optimizer"),
        "a plan's, unequal": planned_unequal,
        "asleep, stashing": lambda c: timed(c, "stashing", 2, 8),
        "asleep, vertical sync": lambda c: timed(c, "vertical", 3, 6),
        "asleep, 2BW": lambda c: timed(c, "2bw", 2, 8),
        "found: an update is a sum": lambda c: uneven_finds(c, "torch._foreach_div_(gradients, self.count)", "pass"),
    }
    if "--all" in sys.argv:
        sys.argv.remove("--all")
        return made | every
    return made | {name: test for name, test in every.items() if name in sys.argv[3:]}


if __name__ == "__main__":
    processes.main(cases())
