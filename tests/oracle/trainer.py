"""`train.py` as a trainer, in several gloo processes, beside the plain loop of one process.

    python tests/oracle/trainer.py COMMAND FOLDER [CASE …]

Groups by name, learning rates, schedulers, clipping, loaders, sharded optimizer states: the loop beside them is what
a textbook has, on a model that was never cut, with torch's own `clip_grad_norm_`. Prints a line for each case and exits 1
when one fails.
"""

import fnmatch
import json
import os
import re
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
import torch.utils.flop_counter
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).resolve().parent))
import torchrun as processes
from torchrun import STEPS, Failed

warnings.filterwarnings("ignore")
# Largest error of a parameter after all steps, beside its largest value or a hundredth of the model's: biases begin at zero.
LIMIT = processes.allowed(2e-6)
TRAINS = '''
import torch


def data(step, samples, kind):
    generator = torch.Generator().manual_seed(step)
    if kind == "gpt":
        return torch.randint(0, 64, (samples, 12), generator=generator)
    return torch.randn(samples, 3, 32, 32, generator=generator)


def inputs(step, samples):
    return (data(step, samples, KIND),)


def target(step, samples):
    if KIND == "gpt":
        return {"tokens": data(step, samples, KIND)}
    generator = torch.Generator().manual_seed(1000 + step)
    return {"tokens": torch.randn(samples, 10, generator=generator)}


def loss(outputs, target):
    if KIND == "gpt":
        return torch.nn.functional.cross_entropy(outputs[0].flatten(0, 1), target["tokens"].flatten())
    return torch.nn.functional.mse_loss(outputs[0], target["tokens"])


groups = [{"match": "*bias|*ln_*|*bn*", "weight_decay": 0.0, "lr_scale": 2.0}, {"match": "*", "weight_decay": 0.1}]


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def lr(step):
    return 0.02 * min(1.0, (step + 1) / 4)


clip = CLIP
'''


def task(place, kind, clip=0.5, old="", new="", more=""):
    """Writes a task; returns its path."""
    text = TRAINS.replace("KIND", repr(kind)).replace("CLIP", repr(clip))
    assert old in text
    path = place / f"task_{len(list(place.glob('task_*.py')))}.py"
    path.write_text(text.replace(old, new) + more)
    return str(path)


def plain(model, path, micro_batches, steps=STEPS, batches=None, gathered=lambda: None):
    """The loop of one process: returns losses and norms, and leaves the parameters trained; `gathered` sees a step's gradients first."""
    trains = processes.module_of(Path(path), "task")
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    groups = [{**group, "params": []} for group in getattr(trains, "groups", [{"match": "*"}])]
    for name, parameter in named:
        fits = (g for g in groups if any(fnmatch.fnmatch(name, each) for each in g["match"].split("|")))
        next(fits)["params"].append(parameter)
    optimizer = trains.optimizer(groups)
    scheduler = trains.scheduler(optimizer) if hasattr(trains, "scheduler") else None
    losses, norms = [], []
    for step in range(steps):
        optimizer.zero_grad()
        x, y = batches[step] if batches else (trains.inputs(step, 2 * micro_batches)[0], trains.target(step, 2 * micro_batches))
        total = 0.0
        for part in range(micro_batches):
            rows = slice(2 * part, 2 * part + 2)
            out = processes.leaves(model(x[rows]))
            loss = trains.loss(out, {key: value[rows] for key, value in y.items()}) / micro_batches
            loss.backward()
            total += float(loss.detach())
        gathered()
        norms.append(float(torch.nn.utils.clip_grad_norm_([p for _, p in named], trains.clip or 1e9)))
        for group in optimizer.param_groups if hasattr(trains, "lr") else []:
            group["lr"] = trains.lr(step) * group.get("lr_scale", 1.0)
        optimizer.step()
        if scheduler:
            scheduler.step()
        losses.append(total)
    return losses, norms


class Trained:
    """One folder of stages, trained by several processes."""

    def __init__(self, cases, model, stages=2):
        self.cases, self.out = cases, cases.emit(model, "--stages", str(stages), "--targets", "python")

    def run(self, world, *arguments, fails=False, grace=processes.GRACE):
        """Returns what the log says of each step, and all that was printed."""
        log = self.out / "log.jsonl"
        log.unlink(missing_ok=True)
        codes, texts = processes.ranks(self.out, world, ["--log", "log.jsonl", *arguments], grace)
        if any(codes) != fails:
            raise Failed(f"exit codes {codes}\n" + "\n".join(texts))
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
        return lines, "\n".join(texts)

    def merged(self, folder):
        def merge():
            os.chdir(self.out)
            sys.argv = ["train.py", "--save", folder, "--merge", f"{folder}.pt"]
            runpy.run_path("train.py", run_name="__main__")

        (code,), (text,) = processes.ended([processes.forked(merge)])
        if code:
            raise Failed(text)
        return torch.load(self.out / f"{folder}.pt", map_location="cpu")


def whole_model(cases, model):
    made = {"resnet_plain": lambda: processes.resnet(False), "idle": Idle, "apart": Apart}  # a loaded trace has gradients of zeros where nobody looks
    return made[model]() if model in made else torch.jit.load(cases.models[model])


def near(expected, found, what, limit=2e-6):
    if len(expected) != len(found):
        raise Failed(f"{what}: {len(expected)} and {len(found)}")
    worst = max(abs(a - b) / max(abs(a), 1e-30) for a, b in zip(expected, found))
    if not worst <= processes.allowed(limit):
        raise Failed(f"{what} differ by {worst:.1e}: {expected} {found}")
    return worst


def near_state(model, state):
    worst, at = 0.0, None
    least = 1e-2 * max(float(value.detach().abs().max()) for value in model.parameters())
    for name, value in model.named_parameters():
        value = value.detach().double()
        off = float((value - state[name].double()).abs().max() / value.abs().max().clamp_min(least))
        worst, at = max((worst, at), (off, name), key=lambda pair: pair[0])
    if not worst <= processes.allowed_of(dict(model.named_parameters()), 2e-6):
        raise Failed(f"parameters differ by {worst:.1e}: {at} of {dict(model.named_parameters())[at].abs().max():.1e}")
    return worst


def trains(cases, model, world, *arguments, count, stages=2, steps=STEPS, **about):
    """Trains under a task with groups, warm-up and clipping; losses, norms and parameters are those of the plain loop."""
    path = task(cases.place, "gpt" if model.startswith("gpt") else "picture", **about)
    expected, run = whole_model(cases, model), Trained(cases, model, stages)
    losses, norms = plain(expected, path, count, steps)
    lines, text = run.run(world, "--task", path, "--save", "whole", "--steps", str(steps), *arguments)
    if about.get("clip", 1) and not sum(norm > 0.5 for norm in norms) >= 3:
        raise Failed(f"too few steps are clipped: {norms}")
    off = near(losses, [line["loss"] for line in lines], "losses", 1e-5)
    of_norms = near(norms, [line["norm"] for line in lines], "norms", 1e-5)
    state = near_state(expected, run.merged("whole"))
    return f"losses differ by {off:.0e}, norms by {of_norms:.0e}, parameters by {state:.0e}"


LOADER = """

class Rows(torch.utils.data.Dataset):
    def __init__(self, replica, replicas, count):
        self.numbers = list(range(replica, count, replicas))

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, at):
        generator = torch.Generator().manual_seed(self.numbers[at])
        return torch.randn(3, 32, 32, generator=generator), {"tokens": torch.randn(10, generator=generator)}


def loader(replica, replicas, samples):
    with open("made.txt", "a") as file:
        file.write(f"{replica} of {replicas}\\n")
    rows = Rows(replica, replicas, 42)
    return torch.utils.data.DataLoader(rows, batch_size=samples, drop_last=True, shuffle=SHUFFLE)
"""


def loading(place, shuffles=False, **about):
    old = TRAINS[TRAINS.index("def inputs") : TRAINS.index("\n\ndef loss")].replace("KIND", "'picture'")
    return task(place, "picture", old=old, new=LOADER.replace("SHUFFLE", str(shuffles)), **about)


def loaded(cases):
    """Each replica loads its own rows, on the ranks that need them; an epoch ends for all when one replica has no more."""
    path, run = loading(cases.place), Trained(cases, "resnet_plain", 3)
    made = run.out / "made.txt"
    made.unlink(missing_ok=True)
    # 42 rows for two replicas: 21 each, which are three batches of 6 an epoch.
    rows, batches = processes.module_of(Path(path), "task").Rows, []
    for step in range(STEPS):
        at = step % 3 * 6
        items = [rows(replica, 2, 42)[index] for replica in range(2) for index in range(at, at + 6)]
        batches.append((torch.stack([x for x, _ in items]), {"tokens": torch.stack([y["tokens"] for _, y in items])}))
    expected = whole_model(cases, "resnet_plain")
    losses, _ = plain(expected, path, 6, batches=batches)
    lines, _ = run.run(6, "--task", path, "--replicas", "2", *two(3), "--save", "loaded")
    off = near(losses, [line["loss"] for line in lines], "losses", 1e-5)
    state = near_state(expected, run.merged("loaded"))
    calls = sorted(made.read_text().splitlines())
    if calls != ["0 of 2", "0 of 2", "1 of 2", "1 of 2"]:  # first and last stage of each replica; none in the middle
        raise Failed(f"loaders were made by others: {calls}")
    return f"losses differ by {off:.0e}, parameters by {state:.0e}"


def sixty_four(cases):
    """Of 64 replicas of three stages, a rank makes the samples of its own replica alone, and those between first and last stage none.

    Ranks are started one by one, over torch's backend of pretence.
    """
    new = '\n\nMADE = []\n\n\ndef made(what, samples, replica):\n    MADE.append((what, samples, replica))\n\n\n'
    new += 'def inputs(step, samples, replica, replicas):\n    made("inputs", samples, replica)\n    return (torch.randn(samples, 3, 32, 32),)\n\n\n'
    new += 'def target(step, samples, replica, replicas):\n    made("targets", samples, replica)\n    return {"tokens": torch.randn(samples, 10)}\n'
    path, run = task(cases.place, "picture", more=new), Trained(cases, "resnet_plain", 3)

    def rank(number):
        def built():
            from torch.testing._internal.distributed.fake_pg import FakeStore

            start = torch.distributed.init_process_group
            torch.distributed.init_process_group = lambda *_, **__: start("fake", rank=number, world_size=192, store=FakeStore())
            os.environ |= {"RANK": str(number), "WORLD_SIZE": "192", "LOCAL_RANK": "0"}
            os.chdir(run.out)
            script = processes.module_of(run.out / "train.py", "train_script")
            script.Watch = lambda *_: None
            script.steps = lambda run, _: (
                [batches.at(0, run.device, *run.wants) for batches in run.batches.values()], print(json.dumps(run.task.file.MADE))
            )
            sys.argv = ["train.py", "--device", "cpu", "--task", path, "--replicas", "64", *two(4)]
            script.main()

        return built

    numbers = (0, 1, 2, 95, 96, 97, 98, 191)  # ranks are laid out replica by replica
    codes, texts = processes.ended([processes.forked(rank(number)) for number in numbers])
    for number, code, text in zip(numbers, codes, texts):
        wanted = [[["inputs", 8, number // 3]], [], [["targets", 8, number // 3]]][number % 3]
        if code or json.loads(text.strip().splitlines()[-1]) != wanted:
            raise Failed(f"rank {number} made other samples than {wanted}: {text}")
    return f"{len(numbers)} of 192 ranks"


ADAM = {"old": "SGD(parameters, lr=0.1, momentum=0.9)", "new": "AdamW(parameters, lr=0.1, eps=1e-4)"}
SCHEDULED = {
    "old": "def lr(step):\n    return 0.02 * min(1.0, (step + 1) / 4)",
    "new": "def scheduler(optimizer):\n    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=12)",
}


def model_of(folder):
    """Returns the model's state in a checkpoint."""
    about = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    state = {key: torch.empty(each.size) for key, each in about.items() if key.startswith("model.")}
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    return state


def elements(folder, ranks, key="exp_avg"):
    """Elements of a stage that the optimizers of its replicas have written each, and all of the parameters that they are of."""
    about, held, names = dcp.FileSystemReader(folder).read_metadata(), dict.fromkeys(ranks, 0), set()
    for index, place in about.storage_data.items():
        rank = int(place.relative_path.split("_")[2])
        if index.fqn.startswith("optimizer.") and index.fqn.endswith(f".{key}") and rank in held:
            [chunk] = [c for c in about.state_dict_metadata[index.fqn].chunks if c.offsets == index.offset]
            held[rank] += chunk.sizes.numel()
            names.add(index.fqn)
    return list(held.values()), sum(about.state_dict_metadata[name].size.numel() for name in names)


def shared(cases, level):
    """Each replica's optimizer has half the elements of its stage, to one an element of each bucket."""
    path, run = task(cases.place, "gpt", **ADAM), Trained(cases, "gpt2_tiny")
    run.run(4, "--task", path, "--replicas", "2", "--sharding", level, *two(2), "--save", "shared")
    folder = run.out / f"shared/step_{STEPS:08}"
    said = []
    for stage in range(2):
        held, whole = elements(folder, (stage, 2 + stage))
        if sum(held) != whole or abs(held[0] - held[1]) > 0.01 * whole:
            raise Failed(f"stage {stage} of {whole} elements: {held}")
        said.append(held)
    return f"elements of the stages' replicas: {said}"


class Blocks(torch.nn.Module):
    """Many equal blocks, in each of which linear layers, a convolution and a norm have parameters."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.into = torch.nn.Conv2d(3, 8, 3, stride=4)
        one = lambda: torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.GroupNorm(2, 8), torch.nn.ReLU(inplace=True))  # noqa: E731
        self.blocks = torch.nn.Sequential(*(one() for _ in range(8)))
        self.head = torch.nn.Linear(8, 10)

    def forward(self, x):
        return self.head(self.blocks(self.into(x)).mean((2, 3)))


class Idle(torch.nn.Module):
    """What the loss does not look at, and what nothing reads, has no gradient: no weight decays there."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(6)
        self.into, self.head = torch.nn.Conv2d(3, 8, 3, stride=4), torch.nn.Linear(8, 10)
        self.pooler, self.spare = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x):
        x = self.into(x).mean((2, 3))
        return self.head(x), self.pooler(x)


def idle(cases):
    """Traces it, once."""
    if "idle" not in cases.models:
        cases.models["idle"] = cases.place / "idle.pt"
        script = processes.module_of(processes.ROOT / "src/trace.py", "trace_script")
        traced, outputs = script.trace(Idle(), [(None, torch.randn(2, 3, 32, 32))])
        script.save(traced, str(cases.models["idle"]), script.record(traced, about={"target": "idle"}, training=True, outputs=outputs))
    return "idle"


def without_gradients(cases):
    """Parameters that have no gradient stay what they are, as in one process; one of two servers has nothing to update."""
    said = []
    for how in (SERVED, ("--sharding", "zero2")):
        said.append(trains(cases, idle(cases), 2, "--replicas", "2", *how, *two(2), count=4, stages=1, steps=4, old="return torch.nn.functional.mse", new="return 4 * torch.nn.functional.mse"))
        left = Idle().state_dict()
        run = Trained(cases, "idle", 1)
        changed = [name for name, value in run.merged("whole").items() if name.split(".")[0] in ("pooler", "spare") and not torch.equal(value, left[name])]
        if changed:
            raise Failed(f"{changed} have no gradient, and changed")
    return "; ".join(said)


class Apart(torch.nn.Module):
    """Two towers side by side, with an output each."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        make = lambda: torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 10))  # noqa: E731
        self.into, self.left, self.right = torch.nn.Conv2d(3, 8, 3, stride=4), make(), make()

    def forward(self, x):
        first = second = self.into(x).mean((2, 3))
        for one, other in zip(self.left, self.right):
            first, second = one(first), other(second)
        return first, second


LOSS = 'return torch.nn.functional.mse_loss(outputs[0], target["tokens"])'
PARTS = """found = 4 * torch.nn.functional.mse_loss(outputs[0], target["tokens"])
    return found + torch.nn.functional.mse_loss(outputs[1], target["tokens"]) if WHERE else found"""
SOMETIMES = 'float(target["tokens"][0, 0]) > 0.8'


def looks(cases, world, *arguments, where=SOMETIMES, new=PARTS, **about):
    """What a micro-batch's loss does not look at has no gradient, in earlier stages, too: no weight decays there."""
    if "apart" not in cases.models:
        script = processes.module_of(processes.ROOT / "src/trace.py", "trace_script")
        cases.models["apart"] = cases.place / "apart.pt"
        traced, outputs = script.trace(Apart(), [(None, torch.randn(2, 3, 32, 32))])
        script.save(traced, str(cases.models["apart"]), script.record(traced, about={"target": "apart"}, training=True, outputs=outputs))
    return trains(cases, "apart", world, *arguments, count=4, old=LOSS, new=new.replace("WHERE", where), **about)


def looks_refused(cases):
    """Replicas that send messages in backward passes need losses that look at the same outputs; zeros of the rest are enough."""
    sharding = ("--replicas", "2", "--sharding", "zero2", "--timeout", "60", *two(2))
    try:
        looks(cases, 2, *sharding, stages=1)
    except Failed as error:
        if "loss() of the task uses outputs[1] in one micro-batch and not in another, which --sharding zero2 does not support" not in str(error):
            raise
    else:
        raise Failed("trained with messages that some replicas do not send")
    return looks(cases, 2, *sharding, stages=1, new=PARTS.replace("if WHERE else found", f"* float({SOMETIMES})"))


# A message of its own: a thread of gloo holds what it sends a little longer than it takes, as the machine's load has it.


ALONE = (
    "self.work = dist.all_gather_into_tensor(flat, own, group=self.sharing.group, async_op=True)",
    "message = torch.empty_like(flat); dist.all_gather_into_tensor(message, own, group=self.sharing.group); flat.copy_(message)",
)


def by_block(cases, *arguments, again=(), fault=None):
    """Under a plan of two replicas no more parameters are together than two blocks', and training is that of the plain loop.

    With a `fault`, (old, new) in `fsdp.py`, more is together, or something else is trained.
    """
    model, name = cases.place / "blocks.pt", "_".join(again)
    if not model.is_file():
        script = processes.module_of(processes.ROOT / "src/trace.py", "trace_script")
        traced, outputs = script.trace(Blocks(), [(None, torch.randn(2, 3, 32, 32))])
        script.save(traced, str(model), script.record(traced, about={"target": "blocks"}, training=True, outputs=outputs))
    plan, cases.models["blocks"] = cases.place / f"blocks{name}.yaml", model
    asked = ("--devices", "2xt4", "--strategy", "ddp", "--sharding", "zero3", "--micro-batches", "4")
    command(cases, "plan", model, *asked, "-o", plan)
    listed = re.findall("^  - (blocks.[0-9])$", plan.read_text(), re.MULTILINE)
    if len(listed) != 8:
        raise Failed(f"the plan has other blocks: {listed}")
    for how in again:
        lines = "".join(f"  - {block}\n" for block in listed[1:6])
        plan.write_text(plan.read_text().replace("  devices:\n  - node", f"  {how}:\n{lines}  devices:\n  - node", 1))
    run = Trained.__new__(Trained)
    run.cases, run.out = cases, cases.emit("blocks", str(plan), "--targets", "python")
    place = run.out / "train_parts/fsdp.py"
    text = place.read_text()
    edits = [ALONE, *([fault] if fault else [])]
    assert all(old in text for old, _ in edits)
    changed = text
    for old, new in edits:
        changed = changed.replace(old, new)
    place.write_text(changed)
    arguments += ("--allow-changes",)
    path, expected = task(cases.place, "picture"), Blocks()
    try:
        lines, said = run.run(2, "--task", path, "--save", "blocks", *arguments)
    finally:
        place.write_text(text)
    losses, _ = plain(expected, path, 4)
    off = near(losses, [line["loss"] for line in lines], "losses", 1e-5)
    state = near_state(expected, run.merged("blocks"))
    units = {"KiB": 1, "MiB": 1024}
    found = re.search(r"held at most ([0-9.]+) (.iB) of gathered .* largest block are ([0-9.]+) (.iB), .* have ([0-9.]+) (.iB)", said)
    most, two, whole = (float(found[at]) * units[found[at + 1]] for at in (1, 3, 5))
    if not two / 2 < most <= two < whole / 3:
        raise Failed(f"too much is together: {found[0]}")
    return f"{most} KiB together at most, two blocks are {two}, all {whole}; losses differ by {off:.0e}, parameters by {state:.0e}"


def is_found(case, message):
    """Turns a case with a planted fault round."""

    def run(cases):
        try:
            said = case(cases)
        except Failed as error:
            if message not in str(error):
                raise
            return f"found: {str(error).splitlines()[0][:150]}"
        raise Failed(f"the fault was not found: {said}")

    return run


def checked(cases, level):
    """`--check` looks at the gradients of all replicas, which keep pieces of them only."""
    run = Trained(cases, "gpt2_tiny")
    _, text = run.run(4, "--check", "--replicas", "2", "--sharding", level, *two(2))
    [line] = [line for line in text.splitlines() if line.startswith('{"check"')]
    about = json.loads(line)["check"]
    if not about["ok"] or about["compared"] != 116 or not about["gradients"] < 1e-5:
        raise Failed(line)
    return f"{about['compared']} gradients differ by {about['gradients']:.0e}"


def normalised(cases, *arguments, world=2, stages=1, fault=None):
    """Batch norms over two replicas are those of one process whose micro-batches are both replicas'; running statistics, too.

    With a `fault`, (old, new) in `batch_norm.py`, they are others.
    """
    path, run = task(cases.place, "picture"), Trained(cases, "resnet", stages)
    place = run.out / "train_parts/batch_norm.py"
    text = place.read_text()
    assert not fault or text.count(fault[0]) == 1
    place.write_text(text.replace(*fault) if fault else text)
    try:
        lines, _ = run.run(world, "--task", path, "--replicas", "2", *two(2), "--batch-norm", "sync", "--save", "normal", "--steps", "4", *arguments, *(["--allow-changes"] if fault else []))
    finally:
        place.write_text(text)
    trained, expected = processes.module_of(Path(path), "task"), processes.resnet(True)
    batches = []
    for step in range(4):
        x, y = trained.inputs(step, 8)[0], trained.target(step, 8)["tokens"]
        # Replica r has rows 4r to 4r + 4, in two micro-batches; the loop takes both replicas' together.
        rows = [0, 1, 4, 5, 2, 3, 6, 7]
        batches.append((x[rows], {"tokens": y[rows]}))
    optimizer, losses = trained.optimizer(grouped(trained, expected)), []
    for step, (x, y) in enumerate(batches):
        optimizer.zero_grad()
        total = 0.0
        for part in (slice(0, 4), slice(4, 8)):
            loss = trained.loss([expected(x[part])], {"tokens": y["tokens"][part]}) / 2
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(expected.parameters(), trained.clip)
        for group in optimizer.param_groups:
            group["lr"] = trained.lr(step) * group.get("lr_scale", 1.0)
        optimizer.step()
        losses.append(total)
    off, state = near(losses, [line["loss"] for line in lines], "losses", 1e-5), run.merged("normal")
    worst = 0.0
    for name, value in expected.state_dict().items():
        least = 1e-2 * max(float(p.detach().abs().max()) for p in expected.parameters())
        worst = max(worst, float((value - state[name]).abs().max() / value.abs().max().clamp_min(least)))
    if not worst <= 1e-4:  # batch norms on pictures of 2×2 make rounding grow
        raise Failed(f"parameters or statistics differ by {worst:.1e}")
    return f"losses differ by {off:.0e}, parameters and statistics by {worst:.0e}"


def grouped(trains, model):
    groups = [{**group, "params": []} for group in trains.groups]
    for name, parameter in model.named_parameters():
        fits = (g for g in groups if any(fnmatch.fnmatch(name, each) for each in g["match"].split("|")))
        next(fits)["params"].append(parameter)
    return groups


def averaged(cases):
    """A checkpoint has the mean of the replicas' running statistics; what is trained is what each replica's own give."""
    path, run = task(cases.place, "picture"), Trained(cases, "resnet", 1)
    common = ("--task", path, "--replicas", "2", *two(2), "--steps", "3")
    local, _ = run.run(2, *common, "--save", "local")
    mean, _ = run.run(2, *common, "--save", "mean", "--batch-norm", "average")
    near([l["loss"] for l in local], [l["loss"] for l in mean], "losses", 0.0)
    own, both = (every_key(run.out / f"{name}/step_00000003") for name in ("local", "mean"))
    names = [key.removeprefix("replica_1.") for key in own if key.startswith("replica_1.") and key.endswith(("_mean", "_var"))]
    for name in names:
        one, other = own[f"model.{name}"], own[f"replica_1.{name}"]
        if torch.equal(one, other) or any(not torch.equal((one + other) / 2, both[f"{where}.{name}"]) for where in ("model", "replica_1")):
            raise Failed(f"{name} is not a mean")
    for name in (name for name in own if name.startswith("model.") and name[6:] not in names):
        if not torch.equal(own[name], both[name]):
            raise Failed(f"{name} is trained otherwise")
    return f"{len(names)} statistics"


def every_key(folder):
    about = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    state = {key: torch.empty(each.size, dtype=each.properties.dtype) for key, each in about.items() if hasattr(each, "size")}
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    return state


SERVED = "--collective", "parameter-server"


def serves(cases, model, world, *arguments, stages=2):
    """Buckets have servers: training is that of the plain loop, and each element's state is kept by one replica."""
    said = trains(cases, model, world, *arguments, *SERVED, *two(2), count=4, stages=stages)
    path, run = task(cases.place, "gpt" if model.startswith("gpt") else "picture", **ADAM), Trained(cases, model, stages)
    # Buckets of a few numbers, of which each replica gets some.
    place = run.out / "train_parts/sync.py"
    text = place.read_text()
    place.write_text(text.replace("25 << 20, 1 << 20", "1 << 12, 1 << 11"))
    try:
        run.run(world, "--task", path, *arguments, *SERVED, *two(2), "--steps", "2", "--save", "served", "--allow-changes")
    finally:
        place.write_text(text)
    held, whole = elements(run.out / "served/step_00000002", [0, world // 2])
    if sum(held) != whole or min(held) < 0.2 * whole:
        raise Failed(f"servers keep {held} of {whole} elements")
    return f"{said}; servers keep {held}"


def two_levels(cases, fault=None):
    """Four replicas on two machines, so it is said, sum inside and across: training is that of the plain loop."""
    out = Trained(cases, "gpt2_tiny", 1).out
    place = out / "train_parts/sync.py"
    text = place.read_text()
    assert not fault or text.count(fault[0]) == 1
    place.write_text(text.replace(*fault) if fault else text)
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    try:
        return trains(cases, "gpt2_tiny", 4, "--replicas", "4", "--collective", "hierarchical", *two(1), "--allow-changes", count=4, stages=1)
    finally:
        del os.environ["LOCAL_WORLD_SIZE"]
        place.write_text(text)


def documented(cases):
    """The task of docs/train.md trains."""
    page = (processes.ROOT / "docs/train.md").read_text()
    path = cases.place / "documented.py"
    path.write_text(page.split("```python\n")[1].split("```")[0])
    lines, text = Trained(cases, "resnet").run(2, "--task", str(path), *two(4), "--steps", "12")
    found = lines[-1].get("validation") or {}
    if set(found) != {"loss", "accuracy"} or len(lines) != 13 or abs(lines[0]["lr"] - 0.02) > 1e-9:
        raise Failed(text)
    return f"accuracy {found['accuracy']:.2f}"


def examples(cases):
    """Both examples of docs/train.md, command by command, on pictures and a text made here: losses fall, and the weights load."""
    from PIL import Image
    from torchvision.models import resnet18

    place = cases.place / "examples"
    place.mkdir()
    page = (processes.ROOT / "docs/train.md").read_text()
    page = page[page.index("## A ResNet on a folder") : page.index("## Replicas that share out")]
    for name, text in zip(("pictures.py", "text.py"), page.split("```python\n")[1:]):
        (place / name).write_text(text.split("```")[0])
    (place / "gpt.json").write_text(re.search(r"`gpt.json` is `(.*)`", page)[1])
    (place / "text.txt").write_text((processes.ROOT / "docs/train.md").read_text())
    for folder, count in (("pictures", 64), ("held_out", 32)):
        for index, kind in enumerate(("red", "green", "blue")):
            (place / folder / kind).mkdir(parents=True)
            for number in range(count):
                colour = tuple(160 * (at == index) + (37 * number + 11 * at) % 80 for at in range(3))
                Image.new("RGB", (80, 60), colour).save(place / folder / kind / f"{number}.png")
    said = []
    for block in page.split("```console\n")[1:]:
        for line in block.split("```")[0].splitlines():
            program, *words = line.split()
            program = [cases.command] if program == "model-analyze" else [sys.executable]
            words += ["--python", sys.executable] if words[0] == "trace" else []
            done = subprocess.run([*program, *words], cwd=place, capture_output=True, text=True)
            if done.returncode:
                raise Failed(f"{line}\n{done.stdout}\n{done.stderr}")
            if "--steps" in words:
                losses = processes.losses_in(done.stdout)
                said.append(f"{losses[0]:.3g} to {losses[-1]:.3g}")
                if len(losses) != 12 or not losses[-1] < losses[0] or "validation after step 12" not in done.stdout:
                    raise Failed(done.stdout)
    resnet18(num_classes=3).load_state_dict(load_file(place / "resnet18.safetensors"))
    return ", ".join(said)


def command(cases, *arguments):
    """Runs the command itself; returns what it prints."""
    done = subprocess.run([cases.command, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise Failed(done.stderr)
    return done.stdout


VALIDATION = """

def validation(replica, replicas, samples):
    found = []
    for number in range(3):  # each replica has others
        generator = torch.Generator().manual_seed(5000 + 10 * number + replica)
        x = torch.randn(samples, 3, 32, 32, generator=generator)
        found.append((x, {"tokens": torch.randn(samples, 10, generator=generator)}))
    return found + [found[0]] * replica  # and one has more


def validate(outputs, target):
    return {"hits": (outputs[0].argmax(1) == target["tokens"].argmax(1)).double().mean()}
"""


def large(cases):
    """The rule of large batches: eight samples at twice the rate for four, warmed up over three steps, a tenth from the eighth on."""
    lr = "def lr(step):\n    return 0.02 * min(1.0, (step + 1) / 4)"
    rule = 'large_batch = {"base": 0.01, "reference": 4, "warm_up": 3, "milestones": [8]}'
    path = task(cases.place, "picture", old=lr, new=rule)
    by_hand = task(cases.place, "picture", old=lr, new="def lr(step):\n    return [0.01, 0.04 / 3, 0.05 / 3, *[0.02] * 5, 0.002, 0.002][step]")
    expected, run = whole_model(cases, "resnet_plain"), Trained(cases, "resnet_plain", 1)
    losses, _ = plain(expected, by_hand, 4)
    lines, text = run.run(2, "--task", path, "--replicas", "2", *two(2), "--save", "large")
    if "8 samples per step, 4 at a rate of 0.01: 0.02 after 3 steps" not in text:
        raise Failed(text)
    near(losses, [line["loss"] for line in lines], "losses", 1e-5)
    return f"parameters differ by {near_state(expected, run.merged('large')):.0e}"


def two(count):
    return ("--micro-batches", str(count))


def cases():
    zero_bubble = ("--pipeline-ranks", "2", "--schedule", "InterleavedZeroBubble")
    made = {
        "resnet 2": lambda c: trains(c, "resnet_plain", 2, *two(4), count=4),
        "gpt2 tied 2": lambda c: trains(c, "gpt2_tiny", 2, *two(4), count=4, clip=0.7),
        "gpt2 tied 2x2": lambda c: trains(c, "gpt2_tiny", 4, "--replicas", "2", *two(2), count=4),
        "gpt2 2-1": lambda c: trains(c, "gpt2_tiny", 3, "--replicas", "2,1", *two(2), count=4),
        "gpt2 interleaved, tied on one rank": lambda c: trains(
            c, "gpt2_tiny", 2, *zero_bubble, *two(4), count=4, stages=4
        ),
        "scheduler": lambda c: trains(
            c, "resnet_plain", 2, *two(4), count=4, old="def lr(step):\n    return 0.02 * min(1.0, (step + 1) / 4)",
            new="def scheduler(optimizer):\n    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)",
        ),
    }
    made |= {
        "loader": loaded,
        "loader, 64 replicas": sixty_four,
        "the documented task": documented,
        "the documented examples": examples,
        "large batch": large,
        "batch norms over replicas": normalised,
        "batch norms over replicas, split, zero3": lambda c: normalised(
            c, *zero_bubble, "--sharding", "zero3", world=4, stages=4
        ),
        "batch norms: a local mean is found": is_found(
            lambda c: normalised(c, fault=("        summed(squares, group)\n", "        squares *= dist.get_world_size(group)\n")), "differ"
        ),
        "batch norms: a local gradient is found": is_found(
            lambda c: normalised(c, fault=("        summed(sums, ctx.group)\n", "        sums *= dist.get_world_size(ctx.group)\n")), "differ"
        ),
        "batch norms averaged": averaged,
        "parameters without gradients": without_gradients,
        "outputs that no loss looks at": lambda c: looks(c, 2, *two(4), where="False"),
        "outputs that some losses look at": lambda c: looks(c, 2, *zero_bubble, *two(4), stages=4),
        "outputs that some losses look at, unequal": lambda c: looks(c, 3, "--replicas", "2,1", *two(2)),
        "outputs that no loss looks at, zero3": lambda c: looks(c, 4, "--replicas", "2", "--sharding", "zero3", *two(2), where="False"),
        "outputs that some losses look at, refused": looks_refused,
        "servers, alone": lambda c: serves(c, "resnet_plain", 2, "--replicas", "2", stages=1),
        "servers, tied 2x2": lambda c: serves(c, "gpt2_tiny", 4, "--replicas", "2"),
        "two levels": two_levels,
        "two levels: slices of one machine are found": is_found(
            lambda c: two_levels(c, ("message[0] = dist.all_reduce(real(message[1]), group=self.across, async_op=True)", "pass")), "differ"
        ),
    }
    # What autograd saves keeps the memory; what is gathered ahead stays; a pass computes with what was there before the update.
    faults = {
        "references": ("too much is together", ("lambda t: self.reference(t) or t", "lambda t: t")),
        "letting go": ("too much is together", ("self.let_go(block, ahead)", "self.count()")),
        "stale parameters": ("losses differ", ("            self.let_go()\n\n    def refresh", "            pass\n\n    def refresh")),
    }
    made |= {
        "zero3 by block": by_block,
        "zero3 by block, recomputed": lambda c: by_block(c, again=("recompute",)),
        "zero3 by block, offloaded": lambda c: by_block(c, "--offload-floor", "1", again=("offload",)),
    }
    made |= {f"zero3 by block: {name} is found": is_found(lambda c, f=fault: by_block(c, fault=f), message) for name, (message, fault) in faults.items()}
    for level in ("zero1", "zero2", "zero3"):
        shard = ("--sharding", level)
        made |= {
            f"{level} alone": lambda c, s=shard: trains(c, "resnet_plain", 2, "--replicas", "2", *s, *two(2), count=4, stages=1),
            f"{level} tied 2x2": lambda c, s=shard: trains(c, "gpt2_tiny", 4, "--replicas", "2", *s, *two(2), count=4),
            f"{level} tied 1-2": lambda c, s=shard: trains(c, "gpt2_tiny", 3, "--replicas", "1,2", *s, *two(2), count=4),
            f"{level} split 2x2": lambda c, s=shard: trains(
                c, "gpt2_tiny", 4, *zero_bubble, "--replicas", "2", *s, *two(2), count=4, stages=4
            ),
            f"{level} check": lambda c, level=level: checked(c, level),
            f"{level} elements": lambda c, level=level: shared(c, level),
        }
    return made


# What others say, too, but for sizes: `make zoo-training` takes them.
SELDOM = (
    "gpt2 2-1",
    "gpt2 interleaved, tied on one rank",
    "zero3 by block, recomputed",
    "zero3 by block, offloaded",
    "the documented examples",
    "batch norms over replicas",
    "batch norms: a local mean is found",
    "batch norms: a local gradient is found",
    "outputs that some losses look at, unequal",
    "outputs that no loss looks at, zero3",
    "batch norms averaged",
    "servers, alone",
    "two levels: slices of one machine are found",
    "zero1 alone",
    "zero1 tied 2x2",
    "zero1 split 2x2",
    "zero1 check",
    "zero2 alone",
    "zero2 tied 2x2",
    "zero2 tied 1-2",
    "zero2 split 2x2",
    "zero3 alone",
)

if __name__ == "__main__":
    processes.main(cases(), SELDOM)
