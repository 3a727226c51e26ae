"""Two copies of the model in opposite directions (GEMS, Chimera, DualPipe) of `train.py`, in several gloo processes, beside the plain
loop of one process.

    python tests/oracle/two_way.py COMMAND FOLDER [CASE …]

The loop runs the eager, uncut model on all micro-batches; where there are batch norms, one model of two whose statistics are its
own. Prints a line for each case and exits 1 when one fails; with `--all` longer ones run, too.
"""

import json
import re
import shutil
import statistics
import subprocess
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

sys.path.insert(0, str(Path(__file__).resolve().parent))
import torchrun as processes
import trainer
from torchrun import Failed, finds_fault
from trainer import near, near_state, task, whole_model

warnings.filterwarnings("ignore")
STEPS = 12
# Steps so small that sums in another order stay near each other for 20 of them, past ReLUs that look the other way.
SLOW = {"old": "return 0.02 * min", "new": "return 0.0005 * min"}


class Trained(trainer.Trained):
    """A folder of stages with a plan of two copies."""

    def __init__(self, cases, model, schedule, stages, micro_batches, form="python"):
        self.cases, self.schedule, self.stages, self.count = cases, schedule, stages, micro_batches
        name = f"two_way_{model}_{schedule}_{stages}_{micro_batches}_{form}"
        self.plan, self.out = cases.place / f"{name}.yaml", cases.place / name
        if not self.out.is_dir():
            made = ("plan", cases.models[model], "--devices", f"{stages}xt4", "--strategy", "1f1b", "--stages", stages, "--micro-batches", max(micro_batches, stages))
            trainer.command(cases, *map(str, made), "-o", str(self.plan))
            text = self.plan.read_text().replace("\nschedule: 1f1b\n", f"\nschedule: {schedule}\n")
            text = re.sub(r"\nmicro_batches: \d+\n", f"\nmicro_batches: {micro_batches}\n", text)
            self.plan.write_text(text)
            command = [cases.command, "emit", cases.models[model], self.plan, "--targets", form, "-o", self.out]
            self.said = subprocess.run(command, capture_output=True, text=True, check=True).stderr

    def parameters(self):
        return {name for about in json.loads((self.out / "stages/manifest.json").read_text())["stages"] for name in about["parameters"]}


# Writes what a rank holds after the last step, by what it is.
DUMP = """

import gc
import os

inner, STEPS = optimizer, []


def dump(*_):
    STEPS.append(1)
    if len(STEPS) < LAST or "RANK" not in os.environ:  # of the plain loop
        return
    run = next(each for each in gc.get_objects() if type(each).__name__ == "Run")
    modules = {held: dict(module.state_dict(keep_vars=True)) for held, module in run.modules.items()}
    for held, name, key, _, value in run.update.tensors():
        modules[held][f"{name}.{key}"] = value
    torch.save((modules, run.executor.most), f"held_{os.environ['RANK']}.pt")


def optimizer(parameters):
    made = inner(parameters)
    made.register_step_post_hook(dump)
    return made
"""


def held(run, rank):
    return torch.load(run.out / f"held_{rank}.pt", map_location="cpu")


def as_simulated(cases, run, world):
    """Each rank holds the parameters, and had as many passes in flight, as the simulator says of the plan; returns the passes."""
    devices = json.loads(trainer.command(cases, "simulate", run.plan, "--format", "json"))["devices"]
    passes = []
    for rank in range(world):
        about = devices[rank % run.stages]
        modules, most = held(run, rank)
        parts = {part["name"]: part["bytes"] for part in about["parts"]}
        own = {id(value): value for state in modules.values() for name, value in state.items() if name in run.parameters()}
        found = sum(value.nbytes for value in own.values())
        if most != about["peak_activations"] or found != parts["parameters"]:
            raise Failed(f"rank {rank} had {most} passes in flight and holds {found} bytes, the simulator says {about}")
        passes.append(most)
    return passes


def bit_equal(run, world):
    """Both copies of each stage, and all replicas of it, are equal to the last bit, with the optimizer's state."""
    first, n_equal = {}, 0
    for rank in range(world):
        for held_as, state in held(run, rank)[0].items():
            for name, value in state.items():
                if "running_" in name:  # each copy's own
                    continue
                known = first.setdefault((held_as % run.stages, name), value)
                if not torch.equal(known, value):
                    raise Failed(f"the copies of `{name}` differ by {float((known - value).abs().max()):.1e}")
                n_equal += known is not value
    if not n_equal:
        raise Failed("nothing is there twice")
    return n_equal


def trains(cases, model, schedule, stages, count, replicas=1, steps=STEPS, run=None, more=(), **about):
    """Losses, norms and parameters are those of the plain loop; copies are bit-equal; passes in flight are the simulator's.

    Without clipping and ties sums keep their order, and parameters are equal bit by bit.
    """
    kind = "gpt" if model.startswith("gpt") else "picture"
    path = task(cases.place, kind, **{**SLOW, "more": DUMP.replace("LAST", str(steps)), **about})
    run = run or Trained(cases, model, schedule, stages, count)
    expected, losses, norms = looped(cases, model, path, count * replicas, 2 * replicas, steps)
    world = stages * replicas
    how = ("--task", path, "--steps", str(steps), "--replicas", str(replicas), "--save", "whole", *more)
    lines, text = run.run(world, *how)
    if len(set(losses)) < steps:
        raise Failed(f"the losses stand still: {losses}")
    off = near(losses, [line["loss"] for line in lines], "losses")
    near(norms, [line["norm"] for line in lines], "norms", 1e-4)
    is_exact = about.get("clip", True) is None and kind == "picture" and replicas == 1
    state = (same if is_exact else near_state)(expected, run.merged("whole"))
    n_equal = bit_equal(run, world)
    in_flight = as_simulated(cases, run, world)
    if f"ranks had {', '.join(map(str, in_flight[:stages]))} passes in flight" not in text:
        raise Failed(text)
    return f"losses differ by {off:.0e}, parameters by {state:.0e}; {n_equal} tensors bit-equal; in flight {in_flight}"


def looped(cases, model, path, count, copies, steps):
    """The plain loop; returns the model, losses and norms.

    The copies are one model in other modules: each has batch-norm statistics of its own, of its own share of the micro-batches,
    and gradients that are summed before those of the others are added, as they are between ranks.
    """
    eager = lambda: processes.resnet(True) if model == "resnet" else whole_model(cases, model)  # noqa: E731
    first = eager()
    models = [first] + [eager() for _ in range(copies - 1)]
    for other in models[1:]:
        for own, parameter in zip(first.parameters(), other.parameters()):
            parameter.data = own.data

    def gathered():
        for other in models[1:]:
            for own, parameter in zip(first.parameters(), other.parameters()):
                own.grad += parameter.grad
                parameter.grad = None

    class Dealt:
        calls = 0

        def named_parameters(self):
            return first.named_parameters()

        def __call__(self, x):
            self.calls += 1
            return models[(self.calls - 1) % count * copies // count](x)

    return first, *trainer.plain(Dealt(), path, count, steps=steps, gathered=gathered)


def same(model, state):
    """Parameters are those of the loop, bit by bit, and batch norms have the statistics of the first copy."""
    for name, value in model.state_dict().items():
        if not torch.equal(value, state[name]):
            raise Failed(f"`{name}` differs by {float((value - state[name]).abs().max()):.1e}")
    return 0.0


def checked(cases, schedule, stages, count, model="gpt2_tiny"):
    """`--check` holds the gradients of both copies against one process, and `--single` trains the same."""
    run = Trained(cases, model, schedule, stages, count)
    _, text = run.run(stages, "--check")
    verdict = json.loads(next(line for line in text.splitlines() if line.startswith('{"check"')))["check"]
    if not verdict["ok"] or verdict["compared"] < 20:
        raise Failed(text)
    path = task(cases.place, "gpt", **SLOW)
    ranks, _ = run.run(stages, "--task", path)
    single, _ = run.run(1, "--task", path, "--single")
    near([line["loss"] for line in single], [line["loss"] for line in ranks], "losses", 1e-5)
    return f"{verdict['compared']} gradients differ by {verdict['gradients']:.0e}"


def resumed(cases):
    """Going on from a checkpoint is bit-equal, statistics of both copies' batch norms among it; another plan takes it, too."""
    run, path = Trained(cases, "resnet", "chimera", 2, 4), task(cases.place, "picture", **SLOW)
    common = ("--task", path, "--save-every", "5")
    straight, _ = run.run(2, *common, "--save", "straight", "--steps", "10")
    run.run(2, *common, "--save", "halves", "--steps", "5")
    rest, text = run.run(2, *common, "--save", "halves", "--resume", "--steps", "10")
    if "resumed after step 5" not in text:
        raise Failed(text)
    near([line["loss"] for line in straight][5:], [line["loss"] for line in rest], "losses", 0.0)
    whole, halves = (states(run.out / folder) for folder in ("straight", "halves"))
    differ = [key for key in whole if not torch.equal(whole[key], halves[key])]
    own = [key for key in whole if key.startswith("replica_1.")]
    if set(whole) != set(halves) or differ or not any(key.endswith("bn1.running_mean") for key in own):
        raise Failed(f"{differ}; statistics of the second copy: {own}")
    # As two replicas of one stage, and as a plain pipeline.
    other = trainer.Trained(cases, "resnet", 1)
    shutil.copytree(run.out / "halves", other.out / "two_way", dirs_exist_ok=True)
    _, text = other.run(2, "--task", path, "--replicas", "2", "--micro-batches", "2", "--save", "two_way", "--resume", "--steps", "12")
    if "resumed after step 10" not in text:
        raise Failed(text)
    return f"{len(whole)} tensors bit-equal, {len(own)} of them the second copy's statistics"


def states(folder):
    """Returns all tensors of the last checkpoint."""
    source = folder / (folder / "latest").read_text().strip()
    about = dcp.FileSystemReader(source).read_metadata().state_dict_metadata
    found = {key: torch.empty(each.size, dtype=each.properties.dtype) for key, each in about.items() if hasattr(each, "size")}
    dcp.load(found, checkpoint_id=source, no_dist=True)
    return found


def validated(cases):
    """Validation goes through both copies, each with its own statistics and share of the data; training is what it is without."""
    run, path = Trained(cases, "resnet_plain", "chimera", 2, 6), task(cases.place, "picture", more=trainer.VALIDATION)
    lines, _ = run.run(2, "--task", path, "--validate-every", "4", "--save", "valid")
    without, _ = run.run(2, "--task", task(cases.place, "picture"))
    near([l["loss"] for l in without], [l["loss"] for l in lines if "loss" in l], "losses", 0.0)
    found = [line for line in lines if "validation" in line]
    eager, trained = processes.resnet(False).eval(), processes.module_of(Path(path), "task")
    eager.load_state_dict(run.merged("valid"))
    with torch.no_grad():
        pairs = [pair for copy in (0, 1) for pair in trained.validation(copy, 2, 6)[:3]]
        loss = sum(float(trained.loss([eager(x)], y)) for x, y in pairs) / len(pairs)
    near([loss], [found[-1]["validation"]["loss"]], "values", 1e-5)
    if [line["step"] for line in found] != [4, processes.STEPS] or found[-1]["samples"] != 36:
        raise Failed(f"{found}")
    return f"loss {loss:.4g}"


def loaded(cases):
    """A copy's loader is that of a replica: losses are those of two replicas of one stage, over several epochs."""
    run, path = Trained(cases, "resnet_plain", "chimera", 2, 6), trainer.loading(cases.place, True, clip=0.5)
    two_way, _ = run.run(2, "--task", path)
    replicas, _ = trainer.Trained(cases, "resnet_plain", 1).run(2, "--task", path, "--replicas", "2", "--micro-batches", "3")
    return f"losses differ by {near([l['loss'] for l in replicas], [l['loss'] for l in two_way], 'losses', 1e-5):.0e}"


def otherwise(cases, *arguments, form="python", has=(), limit=0.0):
    """What goes with other schedules goes with two copies: losses are those of a run without."""
    run = Trained(cases, "gpt2_tiny", "dualpipe", 2, 4, form=form)
    path = task(cases.place, "gpt", **SLOW)
    plain, _ = run.run(2, "--task", path)
    lines, text = run.run(2, "--task", path, *arguments)
    near([line["loss"] for line in plain], [line["loss"] for line in lines if "loss" in line], "losses", limit)
    if any(each not in text for each in has):
        raise Failed(text)
    return "the same"


def refused(cases):
    """What does not go with two copies is one line, before the first step."""
    run, plain = Trained(cases, "gpt2_tiny", "chimera", 2, 4), trainer.Trained(cases, "gpt2_tiny", 2)
    table = (run.out / "schedule.csv").read_text()
    tables = {
        "swapped": table.replace("0F0", "x").replace("0F1", "0F0").replace("x", "0F1"),
        "uneven": "\n".join(",".join(cell for cell in row.split(",") if not re.fullmatch("[23][FB]1", cell)) for row in table.splitlines()) + "\n",
        "one way": "0F0,2F0,0B0,2B0\n1F0,3F0,1B0,3B0\n",
    }
    for name, text in tables.items():
        (plain.out / f"{name}.csv").write_text(text)
    faults = [
        ("--sharding zero1 cannot be combined with two copies of the model", run, ("--replicas", "2", "--sharding", "zero1")),
        ("--shards 2 cannot be combined with two copies of the model", run, ("--shards", "2")),
        ("the schedule table is for 2 micro-batches of each copy", run, ("--micro-batches", "4")),
        ("unequal replicas run one stage per rank under 1F1B, GPipe or PipeDream", run, ("--replicas", "2,1")),
        ("chimera runs two copies of the model, which needs a table: write one with `model-analyze simulate --schedule chimera --ranks 2", plain, ("--schedule", "chimera")),
        ("stage 1 runs other micro-batches than stage 0 of its copy, or in another order", plain, ("--schedule", "swapped.csv")),
        ("one copy of the model runs 2 micro-batches, the other 1", plain, ("--schedule", "uneven.csv")),
        ("the schedule table has other stages than this folder", plain, ("--schedule", "one way.csv")),
    ]
    for message, out, arguments in faults:
        lines, text = out.run(2, *arguments, fails=True)
        if message not in text or "Traceback" in text or lines:
            raise Failed(f"not `{message}`:\n{text}")
    odd = Trained(cases, "gpt2_tiny", "gems-master", 2, 3)
    if (odd.out / "schedule.csv").exists() or "no schedule.csv: `gems-master` needs equal numbers of micro-batches for its copies of the model" not in odd.said:
        raise Failed(odd.said)
    return f"{len(faults) + 1} faults"


def by_table(cases):
    """A folder that was planned for another schedule runs a table that `simulate` has written."""
    run = trainer.Trained(cases, "gpt2_tiny", 2)
    made = ("simulate", "--schedule", "chimera", "--ranks", "2", "--micro-batches", "4", "--write-csv", str(run.out / "chimera.csv"))
    trainer.command(cases, *made)
    path = task(cases.place, "gpt", **SLOW)
    straight, _ = run.run(2, "--task", path, "--micro-batches", "4")
    lines, text = run.run(2, "--task", path, "--schedule", "chimera.csv")
    near([line["loss"] for line in straight], [line["loss"] for line in lines], "losses", 1e-5)
    if "two copies of the model in opposite directions, 2 micro-batches each; ranks had 2, 2 passes in flight" not in text:
        raise Failed(text)
    return "losses of 1F1B"


SLEEPS = (("            return super().forward_one_chunk", "            __import__('time').sleep(FORWARD)\n                return super().forward_one_chunk"),
          ("            if full_backward or not self.has_backward:\n", "            __import__('time').sleep(INPUT + WEIGHT * full_backward)\n            if full_backward or not self.has_backward:\n"),
          ("            if self.has_backward:\n                self.submod.trace", "            __import__('time').sleep(WEIGHT)\n            if self.has_backward:\n                self.submod.trace"))


def asleep(run, world, times, *arguments):
    """Trains with passes that sleep for so many milliseconds."""
    script = run.out / "train_parts/pipelines.py"
    before = text = script.read_text()
    for old, new in SLEEPS:
        if text.count(old) != 1:
            raise Failed(f"{script.name} has no `{old}`")
        for name, value in zip(("FORWARD", "INPUT", "WEIGHT"), times):
            new = new.replace(name, str(value / 1000))
        text = text.replace(old, new)
    script.write_text(text)
    try:
        return run.run(world, "--allow-changes", *arguments)[0]
    finally:
        script.write_text(before)


def timed(cases, schedule, stages, count, times=(150, 150, 150)):
    """A step of sleeping stages takes what `simulate` says of the same table, within 5 %."""
    run = Trained(cases, "gpt2_tiny", schedule, stages, count)
    lines = asleep(run, stages, times, "--steps", "3")
    table = ("simulate", "--csv", str(run.out / "schedule.csv"), "--chain", str(stages), "--cost", ",".join(map(str, times)) + ",0", "--format", "json")
    expected = json.loads(trainer.command(cases, *table))["makespan"]
    found = 1000 * statistics.median(line["seconds"] for line in lines[1:])
    if not abs(found / expected - 1) < 0.05:
        raise Failed(f"{found:.0f} ms a step, {expected} predicted")
    return f"{found:.0f} ms a step, {expected} predicted"


def finds(cases, file, old, new, message):
    """A planted fault is found."""
    run = Trained(cases, "gpt2_tiny", "chimera", 2, 4)
    case = lambda: trains(cases, "gpt2_tiny", "chimera", 2, 4, steps=8, run=run, more=("--allow-changes",))
    return finds_fault(run.out / file, old, new, message, case)


def cases():
    made = {
        "gpt2 tied, gems 3": lambda c: trains(c, "gpt2_tiny", "gems-master", 3, 4, steps=8),
        "gpt2 tied, dualpipe 2": lambda c: trains(c, "gpt2_tiny", "dualpipe", 2, 4, steps=8),
        "resnet chimera 2": lambda c: trains(c, "resnet", "chimera", 2, 2, steps=6, clip=None),
        "found: no sum between copies": lambda c: finds(
            c, "train_parts/sync.py", "work = dist.all_reduce(flat, group=group, async_op=True) if group is not None else None", "work = None", "losses differ|norms differ"
        ),
        "found: ranks are connected between passes": lambda c: finds(c, "train_parts/groups.py", "        self.open_all(pipelines)\n", "        pass\n", "NCCL would wait for ever"),
    }
    every = {
        "refused": refused,
        "found: the wrong ranks": lambda c: finds(
            c, "train_parts/sync.py", "self.order = sorted(self.copies, reverse=True)", "self.order = sorted(self.copies, key=lambda s: s if dist.get_rank() else -s)",
            "losses differ|norms differ|exit codes",
        ),
    }
    every |= {
        f"{model} {schedule} {stages}": lambda c, m=model, s=schedule, p=stages: trains(c, m, s, p, 2 * p + 2 * (p == 3), clip=None if m == "resnet" else 0.5)
        for model in ("gpt2_tiny", "resnet")
        for schedule, of in (("gems-master", (1, 2, 3, 4)), ("chimera", (2, 4)), ("dualpipe", (2, 4)))
        for stages in of
    }
    every |= {
        "resnet_plain gems 2, two pairs": lambda c: trains(c, "resnet_plain", "gems-master", 2, 2, replicas=2),
        "gpt2 tied, chimera 2, two pairs": lambda c: trains(c, "gpt2_tiny", "chimera", 2, 2, replicas=2),
        "check gems 3": lambda c: checked(c, "gems-master", 3, 6),
        "check dualpipe 2": lambda c: checked(c, "dualpipe", 2, 4),
        "resume": resumed,
        "validation": validated,
        "loader": loaded,
        "by a table": by_table,
        "fp16": lambda c: otherwise(c, "--dtype", "fp16", limit=1e-2),
        "offload": lambda c: otherwise(c, "--offload", "both", "--offload-floor", "1", has=("moved", "0 are in use")),
        "archives": lambda c: otherwise(c, "--form", "torchscript", form="python,torchscript", limit=1e-5),
        "host trace": lambda c: otherwise(c, "--host-trace", has=("of host time per pass",)),
    }
    for schedule, stages, count in (("gems-master", 2, 4), ("gems-master", 4, 4), ("chimera", 4, 8), ("dualpipe", 4, 8), ("chimera", 2, 4), ("dualpipe", 2, 4)):
        every[f"time of {schedule} {stages}"] = lambda c, a=(schedule, stages, count): timed(c, *a)
    if "--all" in sys.argv:
        sys.argv.remove("--all")
        return made | every
    wanted = sys.argv[3:]
    return made | {name: test for name, test in every.items() if name in wanted}


if __name__ == "__main__":
    processes.main(cases())
