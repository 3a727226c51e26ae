"""`train.py` as a trainer, in several gloo processes, beside the plain loop of one process.

    python tests/oracle/trainer.py COMMAND FOLDER [CASE …]

Groups by name, learning rates, schedulers, clipping, loaders, sharded optimizer states: the loop beside them is what
a textbook has, on a model that was never cut, with torch's own `clip_grad_norm_`. Prints a line for each case and exits 1
when one fails.
"""

import argparse
import fnmatch
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
import torch.utils.flop_counter
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).resolve().parent))
import torchrun as processes
from torchrun import STEPS, Failed

warnings.filterwarnings("ignore")
# Largest error of a parameter after all steps, beside its largest value or a hundredth of the model's: biases begin at zero.
LIMIT = 2e-6
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
        return torch.load(self.out / f"{folder}.pt")


def whole_model(cases, model):
    return processes.resnet(False) if model == "resnet_plain" else torch.jit.load(cases.models[model])


def near(expected, found, what, limit=LIMIT):
    if len(expected) != len(found):
        raise Failed(f"{what}: {len(expected)} and {len(found)}")
    worst = max(abs(a - b) / max(abs(a), 1e-30) for a, b in zip(expected, found))
    if not worst <= limit:
        raise Failed(f"{what} differ by {worst:.1e}: {expected} {found}")
    return worst


def near_state(model, state):
    worst, at = 0.0, None
    least = 1e-2 * max(float(value.detach().abs().max()) for value in model.parameters())
    for name, value in model.named_parameters():
        value = value.detach().double()
        off = float((value - state[name].double()).abs().max() / value.abs().max().clamp_min(least))
        worst, at = max((worst, at), (off, name), key=lambda pair: pair[0])
    if not worst <= LIMIT:
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


def resumed(cases, path, model, first, then, is_exact=True, stages=2, more=None):
    """Half the steps, then the rest from the checkpoint: parameters are those of a run that was not interrupted.

    With `more`, the rest is of so many stages.
    """
    run = Trained(cases, model, stages)
    counts = [int(dict(zip(a, a[1:])).get("--replicas", 1)) for a in (first, then)]
    worlds = [stages * counts[0], (more or stages) * counts[1]]
    common = ["--task", path, "--save-every", "5"]
    whole, _ = run.run(worlds[0], *common, *first, "--save", "straight")
    half, _ = run.run(worlds[0], *common, *first, "--save", "halves", "--steps", "5")
    if more:
        other = Trained(cases, model, more)
        shutil.rmtree(other.out / "halves", ignore_errors=True)
        shutil.copytree(run.out / "halves", other.out / "halves")
        straight, run = run, other
    rest, text = run.run(worlds[1], *common, *then, "--save", "halves", "--resume")
    if "resumed after step 5" not in text:
        raise Failed(text)
    limit = 0.0 if is_exact else 1e-6
    near([line["loss"] for line in whole][5:], [line["loss"] for line in rest], "losses", limit)
    near([line["lr"] for line in whole][5:], [line["lr"] for line in rest], "learning rates", 0.0)
    expected, found = (straight if more else run).merged("straight"), run.merged("halves")
    worst = max(float((expected[name] - found[name]).abs().max()) for name in expected if expected[name].is_floating_point())
    if worst > (0.0 if is_exact else LIMIT):
        raise Failed(f"parameters differ by {worst:.1e}")
    return "bit-equal" if is_exact else f"parameters differ by {worst:.0e}"


def kept(cases):
    """Old checkpoints go. A job that is killed while it writes goes on from one that is whole, and begins with other weights."""
    run, path = Trained(cases, "gpt2_tiny"), task(cases.place, "gpt", **ADAM)
    folder = run.out / "kept"
    for each in ("kept", "straight"):
        shutil.rmtree(run.out / each, ignore_errors=True)
    common = ("--task", path, *two(4), "--save-every", "1", "--save")
    whole, _ = run.run(2, *common, "straight", "--keep", "2")
    if sorted(os.listdir(run.out / "straight")) != ["latest", "step_00000009", "step_00000010"]:
        raise Failed(f"{sorted(os.listdir(run.out / 'straight'))}")
    last, unfinished = 0, 0
    for rank, step in ((0, 3), (1, 5), (0, 6), (1, 9)):
        # Killed in a step, while the checkpoint of the step before it is being written.
        _, text = run.run(2, *common, "kept", "--keep", "2", "--resume", "--crash", f"{rank},{step}", fails=True)
        told = re.search(r"resumed after step (\d+)", text)
        if (int(told[1]) if told else 0) != last:
            raise Failed(f"not resumed after step {last}:\n{text}")
        names = [name for name in os.listdir(folder) if name.startswith("step_")]
        unfinished += sum(name.endswith(".part") for name in names)
        last = max([int(name[5:]) for name in names if not name.endswith(".part")], default=0)
    rest, _ = run.run(2, *common, "kept", "--resume")
    near([line["loss"] for line in whole][last:], [line["loss"] for line in rest], "losses", 0.0)
    expected, found = run.merged("straight"), run.merged("kept")
    if any(not torch.equal(expected[name], found[name]) for name in expected):
        raise Failed("other parameters")
    rate = ("--task", task(cases.place, "gpt", old="0.02 * min", new="0.0 * min"), *two(4), "--steps", "1", "--save", "begun")
    run.run(2, *rate, "--from", "kept.pt")
    if any(not torch.equal(expected[name], value) for name, value in run.merged("begun").items()):
        raise Failed("--from begins with other weights")
    pretrained(run, found)
    return f"killed four times, {unfinished} checkpoints unfinished, bit-equal"


def killed_between(cases):
    """Between any two lines that give a checkpoint its name, a job can be killed: it goes on from the last one that counts."""
    run, path = Trained(cases, "gpt2_tiny"), task(cases.place, "gpt", **ADAM)
    place = run.out / "train_parts" / "checkpoints.py"
    text = place.read_text()
    common = ("--task", path, *two(4), "--allow-changes", "--save", "between", "--save-every", "1", "--keep", "2")
    counts = '(self.folder / f"{name}.part").rename(self.folder / name)'
    for line, step in ((counts, 2), ("synced(self.folder)\n                #", 3), ("for old in before", 3)):
        shutil.rmtree(run.out / "between", ignore_errors=True)
        assert text.count(line) == 1
        place.write_text(text.replace(line, f'name == "step_00000003" and os._exit(9)\n                {line}'))
        try:
            run.run(2, *common, fails=True)
        finally:
            place.write_text(text)
        _, said = run.run(2, *common, "--resume", "--steps", "4")
        if f"resumed after step {step}" not in said:
            raise Failed(f"killed before `{line}`, not resumed after step {step}:\n{said}")
    return "three places"


def pretrained(run, state):
    """`--like` gives a folder with the names, and the files beside the weights, of another one."""
    like, out = run.out / "like", run.out / "pretrained"
    shutil.rmtree(out, ignore_errors=True)
    like.mkdir(exist_ok=True)
    (like / "config.json").write_text("{}")
    names = set(state) - {"lm_head.weight"}
    save_file({name: torch.zeros(1) for name in names}, like / "model.safetensors")
    done = subprocess.run([sys.executable, "train.py", "--save", "kept", "--merge", "pretrained", "--like", "like"], cwd=run.out, capture_output=True, text=True)
    if done.returncode or sorted(os.listdir(out)) != ["config.json", "model.safetensors"]:
        raise Failed(done.stderr)
    found = load_file(out / "model.safetensors")
    if set(found) != names or any(not torch.equal(state[name], value) for name, value in found.items()):
        raise Failed("other weights in the folder")


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
    folder = run.out / "shared/step_00000010"
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
    found = re.search(r"held ([0-9.]+) (.iB) of gathered .* largest block are ([0-9.]+) (.iB), .* have ([0-9.]+) (.iB)", said)
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


def host_trace(cases):
    """Work that is planted beside the stages is told as the script's own, and work inside of them is not."""
    run = Trained(cases, "gpt2_tiny")
    beside, inside = "            self.submod.micro_batch = (self.pipeline, number)\n", "                    outputs = self.module(*positional)\n"
    spin = "{0}import time; end = time.thread_time() + {1}\n{0}while time.thread_time() < end: pass\n"
    planted = {
        run.out / "train_parts/pipelines.py": (beside, beside + spin.format(" " * 12, 0.008)),
        run.out / "train_parts/stages.py": (inside, spin.format(" " * 20, 0.020) + inside),
    }
    texts = {file: file.read_text() for file in planted}
    for file, (old, new) in planted.items():
        assert texts[file].count(old) == 1
        file.write_text(texts[file].replace(old, new))
    try:
        lines, said = run.run(2, *two(4), "--host-trace", "--allow-changes")
    finally:
        for file, text in texts.items():
            file.write_text(text)
    host = lines[-1]["host"]
    # Half of the passes are forward passes, in which 8 and 20 ms are spent.
    if host["passes"] != 8 or not (0.004 <= host["pass"] <= 0.008 and 0.010 <= host["stage"] <= 0.016) or "train.py itself took" not in said:
        raise Failed(said)
    return f"{1e3 * host['pass']:.2f} ms of planted 4 a pass"


def profiled(cases, fault=None):
    """The timeline of a step is that of its schedule: passes in order, none before what it waits for, as long as they are.

    A `fault` is planted in the clock of a rank.
    """
    plan = processes.planned(cases, "gpt2_tiny", "torchgpipe") / "plan.yaml"
    run, path = Trained(cases, "gpt2_tiny"), task(cases.place, "gpt")
    place = run.out / "train_parts/profile.py"
    slow = (run.out / "train_parts/stages.py", "                    outputs = self.module(*positional)\n", "                    import time; time.sleep(0.02 * self.stage)\n")
    texts = {file: file.read_text() for file in (place, slow[0])}
    assert texts[slow[0]].count(slow[1]) == 1 and (not fault or texts[place].count(fault[0]) == 1)
    slow[0].write_text(texts[slow[0]].replace(slow[1], slow[2] + slow[1]))
    place.write_text(texts[place].replace(*fault) if fault else texts[place])
    try:
        _, said = run.run(2, "--task", path, *two(4), "--schedule", "1F1B", "--profile", "profile", "--allow-changes", "--steps", "6")
    finally:
        for file, text in texts.items():
            file.write_text(text)
    timeline = run.out / "profile/timeline.json"
    about = json.loads(timeline.read_text())
    found = {track["device"]: track["spans"] for track in about["tracks"] if track["stream"] == "compute"}
    passes = {rank: [span["name"] for span in spans if span["kind"] != "optimizer"] for rank, spans in found.items()}
    if passes != {0: "0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3".split(), 1: "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3".split()}:
        raise Failed(f"other passes: {passes}")
    at = {span["name"]: span for spans in found.values() for span in spans if span["kind"] != "optimizer"}
    waits = [(f"1F{k}", f"0F{k}") for k in range(4)] + [(f"0B{k}", f"1B{k}") for k in range(4)]
    waits += [(b, a) for names in passes.values() for a, b in zip(names, names[1:])]
    early = [f"{b} begins before {a} ends" for b, a in waits if at[b]["start"] < at[a]["end"]]
    if early:
        raise Failed(", ".join(early))
    if not all(2e7 <= at[f"1F{k}"]["end"] - at[f"1F{k}"]["start"] for k in range(4)):
        raise Failed("a pass of 20 ms is not as long")
    labels = {event.get("name") for event in json.loads((run.out / "profile/rank_1.json").read_text())["traceEvents"]}
    if not {"1F0", "1B3", "optimizer"} <= labels or f"--measured {Path('profile') / 'timeline.json'}" not in said:
        raise Failed(f"torch's trace lacks passes:\n{said}")
    page = cases.place / "profiled.html"
    command(cases, "report", cases.models["gpt2_tiny"], plan, "--measured", timeline, "-o", page)
    if "Predicted against measured" not in page.read_text():
        raise Failed("the report has no measured step")
    return f"{len(at)} passes in {about['end'] / 1e6:.0f} ms"


def counted(cases):
    """Tokens are those of the rows, and MFU is thrice torch's own count of the whole model's forward pass beside the plan's peak."""
    model = torch.nn.Sequential(torch.nn.Embedding(64, 16), torch.nn.Linear(16, 48), torch.nn.GELU(), torch.nn.Linear(48, 64))
    script, path = processes.module_of(processes.ROOT / "src/trace.py", "trace_script"), cases.place / "words.pt"
    traced, outputs = script.trace(model, [(None, torch.randint(0, 64, (2, 12)))])
    script.save(traced, str(path), script.record(traced, about={"target": "words"}, training=True, outputs=outputs))
    cases.models["words"] = path
    with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
        model(torch.randint(0, 64, (2, 12)))
    plan = processes.planned(cases, "words", "torchgpipe")
    peak, run = 2 * 8.141e12, Trained.__new__(Trained)
    run.cases, run.out = cases, plan
    (text,) = re.findall(r'"devices": "2 × T4".*"peak": \{.*"float32": ([0-9.e+]+)', (plan / "train.py").read_text())
    if abs(float(text) / peak - 1) > 0.01:
        raise Failed(f"a peak of {text}")
    script = (plan / "train.py").read_text()
    (plan / "train.py").write_text(script.replace('"devices": "2 × T4"', '"devices": "2 × CPU"'))
    try:
        lines, said = run.run(2, *two(4), "--allow-changes")
    finally:
        (plan / "train.py").write_text(script)
    for line in lines:
        near([24 * 4], [line["tokens_per_second"] * line["seconds"]], "tokens", 1e-9)
        near([3 * counter.get_total_flops() * 4 / float(text)], [line["mfu"] * line["seconds"]], "MFU", 1e-9)
    if " tokens/s, MFU " not in said:
        raise Failed(said)
    return f"{counter.get_total_flops()} operations a forward pass"


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
            raise Failed(f"{name} is no mean")
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


def host_predicted(cases):
    """What the script costs the host is put into the prediction as `simulate --host-overhead` has it."""
    plan = processes.planned(cases, "gpt2_tiny", "torchgpipe")
    script = (plan / "train.py").read_text()
    known = eval(re.search(r'"host": (\[.*?\])', script)[1])
    step = lambda us: json.loads(command(cases, "simulate", plan / "plan.yaml", "--host-overhead", us, "--format", "json"))["step_seconds"]  # noqa: E731
    near([step(us) for us in (0, 300, 1000)], [dict(known)[us / 1e6] for us in (0, 300, 1000)], "steps", 1e-9)
    train = processes.part_of(plan, "progress")
    near([step(250) - step(0)], [train.under(known, 250e-6)], "a step between two that are known", 1e-2)
    (plan / "train.py").write_text(script.replace('"devices": "2 × T4"', '"devices": "2 × CPU"'))
    try:
        lines, said = Trained.run(argparse.Namespace(out=plan), 2, "--host-trace", "--allow-changes")
    finally:
        (plan / "train.py").write_text(script)
    host = lines[-1]["host"]
    expected = train.told(known[0][1] + train.under(known, host["pass"]) + host["step"])
    if f", and {expected} with what the script costs the host" not in said:
        raise Failed(f"not {expected}: {said}")
    return f"{train.told(known[0][1])}, and {expected} with the host"


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


def planned_sharding(cases):
    """A plan's sharding is what the script does unless told otherwise."""
    plan = processes.planned(cases, "gpt2_tiny", "torchgpipe") / "plan.yaml"
    path = cases.place / "sharded.yaml"
    path.write_text(plan.read_text().replace("predicted:", "execution:\n  sharding: zero1\npredicted:", 1))
    text = (cases.emit("gpt2_tiny", str(path), "--targets", "python") / "train.py").read_text()
    if '"sharding": "zero1"' not in text:
        raise Failed("the script does not know the plan's sharding")
    return "known"


SMALL = """kind: cluster
version: 1
types:
  small: {{memory: {memory}, memory_bandwidth: 3.2e+11, peak: {{float32: 8.1e+12}}}}
devices: [{{type: small, count: 2}}]
levels: [{{name: pcie, bandwidth: 1.2e+10, latency: 8.0e-6}}]
"""


def chosen_sharding(cases):
    """What `split` chooses of itself, where two replicas fit only if they share out, is what its folder trains with."""
    model, cluster, out = cases.models["gpt2_tiny"], cases.place / "small.yaml", cases.place / "chosen"
    told = ("plan", model, "--devices", "2xt4", "--strategy", "ddp", "--sharding", "none", "--no-recompute")
    whole = command(cases, *told, "--micro-batches", "8", "--format", "json")
    cluster.write_text(SMALL.format(memory=json.loads(whole)["memory_bytes"] * 51 // 50))
    command(cases, "split", model, "--cluster", cluster, "--micro-batches", "8", "-o", out)
    if "sharding: zero1" not in (out / "plan.yaml").read_text():
        raise Failed("split did not choose to share out")
    codes, texts = processes.ranks(out, 2, ["--check"])
    if any(codes) or "the same" not in texts[0]:
        raise Failed(f"exit codes {codes}\n" + "\n".join(texts))
    cases.train(out, 2, "--steps", "3", "--save", "shared", "--task", task(cases.place, "gpt"))
    held, _ = elements(out / "shared/step_00000003", (0, 1), "momentum_buffer")
    if held[0] != held[1] or not held[0]:
        raise Failed(f"elements of the replicas: {held}")
    return f"elements of the replicas: {held}"


def command(cases, *arguments):
    """Runs the command itself; returns what it prints."""
    done = subprocess.run([cases.command, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise Failed(done.stderr)
    return done.stdout


def refused(cases):
    """What a task lacks is one line, before the first step."""
    picture = lambda **about: task(cases.place, "picture", **about)  # noqa: E731
    rows = "batch_size=samples, drop_last=True"
    faults = {
        "the task has `target` and lacks `loss`": (picture(old="def loss(", new="def loss_of("),),
        "both `lr` and `scheduler`": (picture(more="\n\ndef scheduler(optimizer):\n    pass\n"),),
        "no group of the task takes": (picture(old=', {"match": "*", "weight_decay": 0.1}', new=""),),
        "give the group an `lr_scale`": (picture(old='"lr_scale": 2.0', new='"lr": 2.0'),),
        "`clip` is the largest norm": (picture(clip=-1.0),),
        "optimizer() of the task returns NoneType": (picture(old="return torch.optim", new="torch.optim"),),
        "there is no such file": ("nowhere.py",),
        "returned 7 rows": (picture(old="torch.randn(samples, 3", new="torch.randn(samples - 1, 3"),),
        "target()['tokens'] of the task returned 7 rows": (picture(old="torch.randn(samples, 10", new="torch.randn(samples - 1, 10"),),
        "loader() of the task gives batches of 3": (loading(cases.place, more=LOADER.replace("SHUFFLE", "False").replace("=samples,", "=3,")),),
        "the last batch of loader() has 2 samples of 8": (loading(cases.place, more=LOADER.replace("SHUFFLE", "False").replace("drop_last=True", "drop_last=False")),),
        "loader() of the task gives no batch": (loading(cases.place, more="\n\ndef loader(*_):\n    return []\n"),),
        "gives Tensor, not pairs": (loading(cases.place, more="\n\ndef loader(*_):\n    return [torch.zeros(3)]\n"),),
        "returns no iterable, but int": (loading(cases.place, more="\n\ndef loader(*_):\n    return 3\n"),),
        "cannot share out the update of Muon": (
            picture(old="SGD(parameters, lr=0.1, momentum=0.9)", new="Muon([p for p in parameters if p.dim() == 2])", clip=1.0),
            "--replicas", "2", "--sharding", "zero1",
        ),
    }
    if not torch.cuda.is_available():
        faults["this machine has 0 GPUs for"] = (picture(), "--device", "cuda")
    assert rows in LOADER
    run = Trained(cases, "resnet_plain", 1)
    for message, (path, *arguments) in faults.items():
        if "Muon" in message:
            text = Path(path).read_text()
            Path(path).write_text(text[: text.index("groups =")] + text[text.index("def optimizer") :])
        world = 2 if arguments else 1
        lines, text = run.run(world, "--task", path, *two(4), *arguments, fails=True)
        if message not in text or "Traceback" in text or lines:
            raise Failed(f"not `{message}`:\n{text}")
    return f"{len(faults)} faults"


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


def validated(cases, model, world, replicas, *arguments, stages=2):
    """Values are those of the eager model in eval mode with the trained weights; training is what it is without."""
    path, pipelines = task(cases.place, "picture", more=VALIDATION), max(map(int, str(replicas).split(",")))
    run = Trained(cases, model, stages)
    arguments = ("--task", path, *arguments, *two(3), "--replicas", str(replicas))
    lines, _ = run.run(world, *arguments, "--validate-every", "4", "--save", "valid")
    without, _ = run.run(world, *arguments[:1], task(cases.place, "picture"), *arguments[2:])
    near([l["loss"] for l in without], [l["loss"] for l in lines if "loss" in l], "losses", 0.0)
    found = [line for line in lines if "validation" in line]
    if [line["step"] for line in found] != [4, 8, 10]:
        raise Failed(f"validated after {[line['step'] for line in found]}")
    eager, trained = processes.resnet(model == "resnet").eval(), processes.module_of(Path(path), "task")
    eager.load_state_dict(run.merged("valid"))
    values = []
    with torch.no_grad():
        for replica in range(pipelines):
            for x, y in trained.validation(replica, pipelines, 6)[:3]:
                out = [eager(x)]
                values.append((float(trained.loss(out, y)), float(trained.validate(out, y)["hits"])))
    loss, hits = (sum(each) / len(values) for each in zip(*values))
    near([loss, hits], [found[-1]["validation"][name] for name in ("loss", "hits")], "values", 1e-5)
    if found[-1]["samples"] != 18 * pipelines:
        raise Failed(f"{found[-1]['samples']} samples")
    return f"loss {loss:.4g}, hits {hits:.3g}"


def failing(at, what):
    """A task whose loss does something from its `at`-th call on: three steps of four micro-batches go well before 13."""
    return {
        "old": "return torch.nn.functional.mse",
        "new": "torn()\n    return torch.nn.functional.mse",
        "more": f"\n\nCALLS = []\n\n\ndef torn():\n    CALLS.append(1)\n    if len(CALLS) >= {at}:\n        {what}\n",
    }


def failures(cases):
    """`python train.py` starts its ranks; what happened is the last line, within five seconds."""
    picture = lambda **about: task(cases.place, "picture", **about)  # noqa: E731
    out = cases.emit("resnet_plain", "--stages", "2", "--targets", "python")
    short = '(samples - (step == 3), 3'
    again = "go on from the last checkpoint with: python train.py"
    faults = [
        # what the last line says, the task, arguments, seconds that a rank is waited for
        ("rank 0 was ended by SIGKILL, after", picture(), ["--crash", "0,3"], 0),
        ("rank 1 was ended by SIGKILL, after", picture(), ["--crash", "1,3"], 0),
        ("rank 1 failed: ValueError: no such label in the loss after the forward pass", picture(**failing(14, "raise ValueError('no such label')")), [], 0),
        ("rank 1 was ended by SIGSEGV, after", picture(**failing(14, "import os; os.kill(os.getpid(), 11)")), [], 0),
        ("rank 1 failed with exit code 3, after", picture(**failing(14, "import os; os._exit(3)")), [], 0),
        ("no answer from rank 1, which is at the loss after the forward pass of micro-batch 1 in stage 1 (its stack: ", picture(**failing(14, "import time; time.sleep(100)")), ["--timeout", "4"], 4),
        ("rank 1 failed: the loss is not finite in step 4", picture(**failing(13, "return float('nan')"), clip=None), [], 0),
        ("rank 0 failed: inputs() of the task returned 7 rows", picture(old="(samples, 3", new=short), [], 0),
    ]
    slowest = 0.0
    for message, path, arguments, waits in faults:
        if "not finite" in message:
            Path(path).write_text(Path(path).read_text().replace("torn()\n    return", "return (torn() or 1.0) *"))
        log = out / "log.jsonl"
        log.unlink(missing_ok=True)
        command = [sys.executable, "train.py", "--device", "cpu", "--steps", "8", "--task", path, "--log", log, *two(4)]
        done = subprocess.run([*command, *arguments], cwd=out, capture_output=True, text=True, timeout=120)
        seconds = time.time() - log.stat().st_mtime - waits
        lines = done.stderr.strip().splitlines()
        if done.returncode != 1 or message not in lines[-1] or again not in lines[-1] or "Traceback" in done.stderr:
            raise Failed(f"not `{message}`: {done.returncode}\n{done.stderr}")
        if len(lines) > 1 or len(log.read_text().splitlines()) != 3:
            raise Failed(f"more is said:\n{done.stderr}\n{log.read_text()}")
        slowest = max(slowest, seconds)
    if slowest > 5:
        raise Failed(f"a job ended only after {slowest:.1f} s")
    return f"{len(faults)} faults, each told last and alone; the slowest end took {slowest:.1f} s"


def not_finite(cases):
    """A gradient that is NaN ends all ranks before the update, with the step, the rank and the parameter's name."""
    path = task(cases.place, "picture", old="return torch.nn.functional.mse", new="return (1e30 if COUNT(outputs) > 12 else 1) ** 2 * torch.nn.functional.mse", more="\n\nSEEN = []\n\n\ndef COUNT(outputs):\n    SEEN.append(1)\n    return len(SEEN)\n")
    run = Trained(cases, "resnet_plain")
    lines, text = run.run(2, "--task", path, *two(4), fails=True)
    if len(lines) != 3 or not re.search(r"rank [01]: (the loss|the gradient of `\S+`) is not finite in step 4", text):
        raise Failed(text)
    return "step 4"


def large(cases):
    """The rule of large batches: eight samples at twice the rate for four, warmed up over three steps, a tenth from the eighth on."""
    lr = "def lr(step):\n    return 0.02 * min(1.0, (step + 1) / 4)"
    rule = 'large_batch = {"base": 0.01, "reference": 4, "warm_up": 3, "milestones": [8]}'
    path = task(cases.place, "picture", old=lr, new=rule)
    by_hand = task(cases.place, "picture", old=lr, new="def lr(step):\n    return [0.01, 0.04 / 3, 0.05 / 3, *[0.02] * 5, 0.002, 0.002][step]")
    expected, run = whole_model(cases, "resnet_plain"), Trained(cases, "resnet_plain", 1)
    losses, _ = plain(expected, by_hand, 4)
    lines, text = run.run(2, "--task", path, "--replicas", "2", *two(2), "--save", "large")
    if "8 samples a step, 4 at a rate of 0.01: 0.02 after 3 steps" not in text:
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
        "resume, scheduler": lambda c: resumed(c, task(c.place, "picture", **SCHEDULED), "resnet_plain", two(4), two(4)),
        "resume, shuffled loader": lambda c: resumed(
            c, loading(c.place, True), "resnet_plain", ("--replicas", "2", *two(2)), ("--replicas", "2", *two(2))
        ),
        "resume, other stages and replicas": lambda c: resumed(
            c, task(c.place, "gpt", **ADAM), "gpt2_tiny", ("--replicas", "2", "--sharding", "zero1", *two(2)),
            ("--replicas", "2", "--sharding", "zero3", *two(2)), False, more=1
        ),
        "resume, more stages": lambda c: resumed(
            c, task(c.place, "gpt", **ADAM), "gpt2_tiny", ("--replicas", "2", *two(2)), two(4), False, more=3
        ),
        "resume, from shares to one rank": lambda c: resumed(
            c, task(c.place, "gpt", **ADAM), "gpt2_tiny", ("--replicas", "2", "--sharding", "zero3", *two(2)), two(4), False, more=1
        ),
        "resume, kept checkpoints": kept,
        "resume, killed between two names": killed_between,
        "a task's faults": refused,
        "not finite": not_finite,
        "validation, batch norm": lambda c: validated(c, "resnet", 2, 1),
        "validation, replicas": lambda c: validated(c, "resnet_plain", 4, 2, "--sharding", "zero3"),
        "validation, unequal": lambda c: validated(c, "resnet_plain", 3, "2,1"),
        "validation, two stages a rank": lambda c: validated(
            c, "resnet_plain", 2, 1, "--pipeline-ranks", "2", "--schedule", "ZBVZeroBubble", stages=4
        ),
        "failures": failures,
        "a plan's sharding": planned_sharding,
        "a chosen sharding": chosen_sharding,
        "the documented task": documented,
        "the documented examples": examples,
        "large batch": large,
        "host trace": host_trace,
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
        "servers, alone": lambda c: serves(c, "resnet_plain", 2, "--replicas", "2", stages=1),
        "servers, tied 2x2": lambda c: serves(c, "gpt2_tiny", 4, "--replicas", "2"),
        "servers, resume as replicas": lambda c: resumed(
            c, task(c.place, "gpt", **ADAM), "gpt2_tiny", ("--replicas", "2", "--collective", "parameter-server", *two(2)), ("--replicas", "2", *two(2)), False
        ),
        "two levels": two_levels,
        "two levels: slices of one machine are found": is_found(
            lambda c: two_levels(c, ("message[0] = dist.all_reduce(real(message[1]), group=self.across, async_op=True)", "pass")), "differ"
        ),
        "profile": profiled,
        "profile: a clock that is ahead is found": is_found(lambda c: profiled(c, ("return time.time_ns()", "return time.time_ns() + 10**9 * self.rank")), "before"),
        "tokens and MFU": counted,
        "host in the prediction": host_predicted,
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
            f"{level} resume": lambda c, s=shard: resumed(
                c, task(c.place, "gpt", **ADAM), "gpt2_tiny", ("--replicas", "2", *s, *two(2)), ("--replicas", "2", *s, *two(2))
            ),
            f"{level} resume as one replica": lambda c, s=shard: resumed(
                c, task(c.place, "gpt", **ADAM), "gpt2_tiny", ("--replicas", "2", *s, *two(2)), two(4), False
            ),
            f"{level} resume from one replica": lambda c, s=shard: resumed(
                c, task(c.place, "gpt", **ADAM), "gpt2_tiny", two(4), ("--replicas", "2", *s, *two(2)), False
            ),
        }
    return made


# What others say, too, but for sizes: `make zoo-training` takes them.
SELDOM = (
    "gpt2 2-1",
    "gpt2 interleaved, tied on one rank",
    "resume, more stages",
    "resume, from shares to one rank",
    "validation, unequal",
    "validation, two stages a rank",
    "zero3 by block, recomputed",
    "zero3 by block, offloaded",
    "the documented examples",
    "batch norms over replicas",
    "batch norms: a local mean is found",
    "batch norms: a local gradient is found",
    "batch norms averaged",
    "servers, alone",
    "servers, resume as replicas",
    "two levels: slices of one machine are found",
    "profile: a clock that is ahead is found",
)

if __name__ == "__main__":
    processes.main(cases(), SELDOM)
