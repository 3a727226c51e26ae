"""P3 of `train.py`: slices of gradients that are summed and stepped by themselves, in several gloo processes, beside the plain loop.

    python tests/oracle/priority.py COMMAND FOLDER [CASE …]

Prints a line for each case and exits 1 when one fails; with `--all` longer ones run, too.
"""

import contextlib
import copy
import json
import re
import statistics
import sys
import threading
import types
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
import torchrun as processes
import trainer
from torchrun import Failed, finds_fault
from trainer import near, near_state, plain, task, whole_model

warnings.filterwarnings("ignore")
STEPS = 20
SLOW = {"old": "return 0.02 * min", "new": "return 0.001 * min", "clip": None}


SCHEDULED = trainer.SCHEDULED | {"new": trainer.SCHEDULED["new"].replace("0.1", "0.002")}


def folder(cases, model, stages):
    return trainer.Trained(cases, model, stages)


def same(one, other, what):
    differ = [name for name, value in one.items() if not torch.equal(value, other[name])]
    if differ or set(one) != set(other):
        raise Failed(f"{what}: {differ[:3]} differ")


def trains(cases, model, stages, replicas, count, *arguments, more="", run=None, steps=STEPS, **about):
    """Losses and parameters are those of the plain loop, and bit-equal to slices that are sent as they come."""
    path = task(cases.place, "gpt" if model.startswith("gpt") else "picture", **{**SLOW, **about}, more=more)
    run, expected = run or folder(cases, model, stages), whole_model(cases, model)
    losses, _ = plain(expected, path, count * replicas, steps=steps)
    how = ("--task", path, "--steps", str(steps), "--micro-batches", str(count), "--replicas", str(replicas), "--slice", "4096" if model == "gpt2_tiny" else "65536", *arguments)
    world = stages * replicas if "--pipeline-ranks" not in arguments else 2 * replicas
    lines, text = run.run(world, *how, "--sync", "p3", "--save", "p3")
    off = near(losses, [line["loss"] for line in lines], "losses", 1e-5)
    state = run.merged("p3")
    worst = near_state(expected, state)
    told = re.search(r"p3: (\d+) slices per step, (\d+) overtook others; passes waited .* per step for them, and would have waited .* without priorities", text)
    if not told or int(told[1]) < 20:
        raise Failed(text)
    if replicas == 2:
        run.run(world, *how, "--sync", "fifo", "--save", "fifo")
        same(state, run.merged("fifo"), "p3 and fifo")
        buckets, _ = run.run(world, *how, "--save", "buckets")
        same(state, run.merged("buckets"), "p3 and buckets")
    return f"losses differ by {off:.0e}, parameters by {worst:.0e}; {told[0].split('; p')[0]}"


def resumed(cases):
    """A checkpoint drains: it is that of buckets, bit by bit, and either goes on from the other's."""
    run, path = folder(cases, "resnet_plain", 1), task(cases.place, "picture", **SCHEDULED, clip=None, more=trainer.VALIDATION)
    common = ("--task", path, "--replicas", "2", "--micro-batches", "2", "--save-every", "3", "--validate-every", "4")
    for name, first, then in (("straight", "buckets", "buckets"), ("there", "p3", "buckets"), ("back", "buckets", "p3"), ("both", "p3", "p3")):
        run.run(2, *common, "--sync", first, "--save", name, "--steps", "6")
        lines, text = run.run(2, *common, "--sync", then, "--save", name, "--resume")
        if "resumed after step 6" not in text:
            raise Failed(text)
        if name == "straight":
            expected, values = run.merged(name), lines
        same(expected, run.merged(name), name)
        near([l["loss"] for l in values if "loss" in l], [l["loss"] for l in lines if "loss" in l], "losses", 0.0)
        near([l["validation"]["loss"] for l in values if "validation" in l], [l["validation"]["loss"] for l in lines if "validation" in l], "values", 0.0)
    return "bit-equal in all four ways"


def refused(cases):
    """What does not go with slices is one line, before the first step."""
    run, tied = folder(cases, "resnet_plain", 1), folder(cases, "gpt2_tiny", 2)
    whole = task(cases.place, "picture", clip=None, old="torch.optim.SGD(parameters, lr=0.1, momentum=0.9)", new="torch.optim.Adafactor(list(parameters[0]['params']))")
    faults = [
        ("--check cannot be combined with --sync p3: use --sync buckets", run, ("--check",)),
        ("--clip 1.0 cannot be combined with --sync p3", run, ("--clip", "1.0")),
        ("`clip` of the task cannot be combined with --sync p3", run, ("--task", task(cases.place, "picture"))),
        ("--sharding zero1 cannot be combined with --sync p3", run, ("--sharding", "zero1")),
        ("--dtype fp16 cannot be combined with --sync p3", run, ("--dtype", "fp16")),
        ("--sync with slices cannot be combined with Adafactor", run, ("--task", whole)),
        ("are one parameter of several stages", tied, ()),
    ]
    for message, out, arguments in faults:
        lines, text = out.run(2 if out is run else 4, "--replicas", "2", "--sync", "p3", *arguments, fails=True)
        if message not in text or "Traceback" in text or lines:
            raise Failed(f"not `{message}`:\n{text}")
    nan = task(cases.place, "picture", clip=None, old="return torch.nn.functional.mse", new="COUNT.append(1)\n    return (float('inf') if len(COUNT) > 6 else 1) * torch.nn.functional.mse", more="\n\nCOUNT = []\n")
    lines, text = run.run(2, "--replicas", "2", "--sync", "p3", "--task", nan, "--micro-batches", "2", fails=True)
    if len(lines) != 3 or not re.search(r"rank 0: (the loss|the gradient of `\S+`) is not finite in step 4: stopped", text):
        raise Failed(text)
    return f"{len(faults) + 1} faults"


# Sleeps in place of layers of 30 and 60 ms, and of a link of 8 MB/s, on which an all-reduce of two takes its bytes' time.
SLEEPS = (
    ("        self.asked_at.setdefault(parameter, len(self.asked_at))\n", "        time.sleep(0.03 * (parameter.dim() == 2))\n        self.asked_at.setdefault(parameter, len(self.asked_at))\n"),
    ("            self.seen[parameter] += 1\n", "            time.sleep(0.06 * (parameter.dim() == 2))\n            self.seen[parameter] += 1\n"),
    ("            dist.all_reduce(gradient, group=self.data)\n", "            dist.all_reduce(gradient, group=self.data)\n            time.sleep(gradient.nbytes / 8e6)\n"),
)


def timed(cases):
    """With a slow link and one large layer, p3's step is to that of fifo as `simulate` says, and says so itself; a plan's is the default."""
    layers = [(160, 160), (160, 160), (160, 160), (160, 3280), (3280, 10)]
    model = torch.nn.Sequential(*[torch.nn.Linear(*sizes) for sizes in layers]).train()
    script = processes.module_of(processes.ROOT / "src/trace.py", "trace_script")
    traced, outputs = script.trace(model, [(None, torch.zeros(2, 160))])
    archive, plan, out = (cases.place / f"layers{end}" for end in (".pt", ".yaml", ""))
    script.save(traced, str(archive), script.record(traced, about={"target": "layers"}, training=True, outputs=outputs))
    trainer.command(cases, "plan", archive, "--devices", "2xt4", "--strategy", "data-parallel", "--sharding", "none", "--micro-batches", "2", "-o", plan)
    text = plan.read_text()
    for old, new in (
        (r"- forward: [-\d.e]+", "- forward: 0.03"), (r"    backward: [-\d.e]+", "    backward: 0.06"), (r"    forward: [-\d.e]+", "    forward: 0.15"),
        (r"_gradient: [-\d.e]+", "_gradient: 0.15"), (r"bandwidth: 16000000000.0\n    latency: [-\d.e]+", "bandwidth: 8000000.0\n    latency: 0.0"),
        (r"\npredicted:", "\nexecution: {sync: p3, collective: ring}\npredicted:"),
    ):
        text, count = re.subn(old, new, text)
        assert count, old
    plan.write_text(text)
    trainer.command(cases, "emit", archive, plan, "--targets", "python", "-o", out)
    part = out / "train_parts/priority.py"
    before = text = part.read_text()
    for old, new in SLEEPS:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    part.write_text(text)
    run = trainer.Trained.__new__(trainer.Trained)
    run.cases, run.out = cases, out
    predicted, found, said = [], [], []
    for sync, more in (("p3", ()), ("fifo", ("--sync", "fifo", "--slice", "160000"))):
        simulate = ("simulate", plan, "--sync", sync, "--slice", "160000", "--format", "json")
        predicted.append(json.loads(trainer.command(cases, *simulate))["period_seconds"])
        lines, text = run.run(2, "--allow-changes", "--steps", "10", *more)
        found.append(statistics.median(line["seconds"] for line in lines[2:]))
        said.append(next(line for line in text.splitlines() if line.startswith(f"{sync}: ")))
    part.write_text(before)
    said.append(f"steps of {1e3 * found[0]:.0f} and {1e3 * found[1]:.0f} ms, {1e3 * predicted[0]:.0f} and {1e3 * predicted[1]:.0f} predicted")
    if not abs(found[0] / found[1] / (predicted[0] / predicted[1]) - 1) < 0.1 or "do not help" in said[0]:
        raise Failed("\n".join(said))
    # Where nothing is slow, nobody gains.
    _, text = run.run(2, "--allow-changes", "--steps", "10")
    if "priorities do not help here: use --sync buckets" not in text:
        raise Failed(text)
    return "; ".join(said)


# -- a GPU of pretence -------------------------------------------------------------------------------------------------


class Stream:
    """What is known to have happened before what this stream computes next."""

    def __init__(self):
        self.past = set()

    def wait_stream(self, other):
        self.past |= other.past

    def wait_event(self, event):
        self.past |= event.past


class Event:
    def record(self, stream):
        self.past = set(stream.past)


class Pretence:
    """Stands for torch in the part: two threads, each with a present stream."""

    def __init__(self):
        self.computing, self.present = Stream(), threading.local()
        self.cuda = types.SimpleNamespace(
            Stream=lambda device: Stream(), Event=Event, stream=self.within, current_stream=lambda: getattr(self.present, "stream", self.computing)
        )

    def __getattr__(self, name):
        return getattr(torch, name)

    @contextlib.contextmanager
    def within(self, stream):
        before, self.present.stream = self.cuda.current_stream(), stream
        try:
            yield
        finally:
            self.present.stream = before


def on_streams(place, *planted):
    """Trains on a GPU of pretence; returns what was computed too early, and how far parameters are from those of a plain loop."""
    text = (processes.ROOT / "codegen/src/train/parts/priority.py").read_text()
    for old, new in planted:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (place / "priority_part.py").write_text(text)

    def run():
        import torch.distributed as dist

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        sys.modules |= {"train_parts": types.ModuleType("train_parts")}
        sys.modules["train_parts"].__path__ = [str(processes.ROOT / "codegen/src/train/parts")]
        part = processes.module_of(place / "priority_part.py", "priority_part")
        gpu = part.torch = Pretence()
        early, counts = [], {}
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 9), torch.nn.Tanh(), torch.nn.Linear(9, 2))
        other = copy.deepcopy(model)
        part.Beside.__init__ = lambda own, device: setattr(own, "stream", Stream())
        named, groups = [(0, name, p) for name, p in model.named_parameters()], (dist.new_group([0]), dist.new_group([0]))
        sync = part.Sliced([model], named, groups, 1, 64, False, 30, ValueError)
        optimizer, beside = (torch.optim.Adam(m.parameters(), lr=0.05) for m in (model, other))
        put, ask = sync.put, sync.asked

        def noted_put(parameter):
            gpu.cuda.current_stream().past.add(("gradient", id(parameter), sync.step))
            put(parameter)

        def noted_ask(parameter):
            ask(parameter)
            if threading.current_thread() is not sync.thread and counts.get(id(parameter), 0):
                if ("step", id(parameter), counts[id(parameter)]) not in gpu.cuda.current_stream().past:
                    early.append("a pass reads a parameter before its update")

        def noted_step():
            stream, (piece,) = gpu.cuda.current_stream(), sync.stepper.param_groups[0]["params"]
            [parameter] = [own[0] for own in sync.slices if own[2] is piece]
            if stream is gpu.computing:
                early.append("slices are stepped on the stream of the passes")
            if ("gradient", id(parameter), sync.step) not in stream.past:
                early.append("a slice is summed before its gradient")
            type(sync.stepper).step(sync.stepper)
            counts[id(parameter)] = counts.get(id(parameter), 0) + 1
            stream.past.add(("step", id(parameter), counts[id(parameter)]))

        sync.put, sync.asked = noted_put, noted_ask
        sync.take(optimizer)
        sync.stepper.step = noted_step
        for step in range(6):
            sync.begin(step)
            for own, stepper in ((model, None), (other, beside)):
                loss = own(torch.arange(24.0).view(4, 6) / 24).square().mean()
                own.zero_grad() if stepper else None
                loss.backward()
                stepper.step() if stepper else sync.finish()
            sync.wait(lambda: not any(sync.left.values()))
            if step == 3:
                sync.drain()
                if not {("step", id(p), counts[id(p)]) for p in model.parameters()} <= gpu.computing.past:
                    early.append("a checkpoint is copied before updates")
        sync.close()
        off = max(float((a - b).abs().max()) for a, b in zip(model.parameters(), other.parameters()))
        print(json.dumps([sorted(set(early)), off]))

    (code,), (text,) = processes.ended([processes.forked(run)])
    if code:
        raise Failed(text)
    return json.loads(text.strip().splitlines()[-1])


def streams(cases):
    """On a GPU slices are summed and stepped beside the passes, each after what it needs; what is planted is found."""
    early, off = on_streams(cases.place)
    if early or off > 1e-6:
        raise Failed(f"{early}, parameters differ by {off:.1e}")
    faults = {
        "a slice is summed before its gradient": ("        self.beside.follow(here)\n", ""),
        "a pass reads a parameter before its update": ("        self.beside.follow(self.stepped.get(parameter))\n", ""),
        "a checkpoint is copied before updates": ("        self.beside.join()\n", ""),
        "slices are stepped on the stream of the passes": ("return torch.cuda.stream(self.stream) if self.stream else", "return"),
    }
    for message, planted in faults.items():
        early, _ = on_streams(cases.place, planted)
        if message not in early:
            raise Failed(f"nobody saw it: {message}, but {early}")
    return f"each after what it needs; {len(faults)} faults are found"


def finds(cases, old, new, message, file="train_parts/priority.py"):
    run = folder(cases, "resnet_plain", 1)
    case = lambda: trains(cases, "resnet_plain", 1, 2, 2, "--allow-changes", run=run, steps=6)
    return finds_fault(run.out / file, old, new, message, case)


def cases():
    made = {
        "gpt2 alone": lambda c: trains(c, "gpt2_tiny", 1, 2, 2, steps=6),
        "parameters without gradients": lambda c: trains(c, trainer.idle(c), 1, 2, 1, "--slice", "64", steps=8),
        "streams": streams,
    }
    every = {
        "refused": refused,
        "found: nobody waits": lambda c: finds(
            c, "        if self.left[parameter] or self.error:\n", "        time.sleep(0.001 * bool(self.left[parameter]))\n        if self.error:\n", "differ|modified by an inplace operation"
        ),
        "gpt2, 20 steps": lambda c: trains(c, "gpt2_tiny", 1, 2, 2),
        "resnet alone": lambda c: trains(c, "resnet_plain", 1, 2, 2),
        "resnet 3 replicas": lambda c: trains(c, "resnet_plain", 1, 3, 2, steps=10),
        "resnet 2x2": lambda c: trains(c, "resnet_plain", 2, 2, 2),
        "resnet zero bubble 2x2": lambda c: trains(c, "resnet_plain", 4, 2, 2, "--pipeline-ranks", "2", "--schedule", "InterleavedZeroBubble"),
        "gpt2 AdamW": lambda c: trains(c, "gpt2_tiny", 1, 2, 2, old=trainer.ADAM["old"], new=trainer.ADAM["new"]),
        "gpt2 recompute and offload": lambda c: trains(c, "gpt2_tiny", 1, 2, 2, "--offload", "both", "--offload-floor", "1"),
        "resume": resumed,
        "time": timed,
    }
    if "--all" in sys.argv:
        sys.argv.remove("--all")
        return made | every
    return made | {name: test for name, test in every.items() if name in sys.argv[3:]}


if __name__ == "__main__":
    processes.main(cases())
