"""`train.py --offload-optimizer`: state and update on the host change nothing, in several gloo processes.

    python tests/oracle/host_optimizer.py COMMAND FOLDER [CASE …]

Prints a line for each case and exits 1 when one fails; with `--all` longer ones run, too.
"""

import re
import sys
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
import torchrun as processes
import trainer
from torchrun import Failed, finds_fault
from trainer import ADAM, Trained, near, task

warnings.filterwarnings("ignore")
ON_HOST = "--offload-optimizer"
SIZES = {"KiB": 2**10, "MiB": 2**20}


def differing(expected, found):
    """Names of the parameters that are not the same."""
    off = lambda value, other: float((value - other).abs().max() / value.abs().max().clamp_min(1e-2))  # noqa: E731
    limit = processes.allowed_of(expected, 0.0)
    return [name for name, value in expected.items() if off(value.double(), found[name].double()) > limit]


def same(cases, model, stages, world, *arguments, steps=20, kept=2, **about):
    """Losses, norms and parameters after 20 steps are those of a run without, bit by bit; the state is as large as it has to be.
    (A GPU's own update rounds otherwise than the processor's.)"""
    path, run = task(cases.place, "gpt" if model.startswith("gpt") else "picture", **{**ADAM, **about}), Trained(cases, model, stages)
    how = ("--task", path, "--steps", str(steps), *arguments)
    plain, _ = run.run(world, *how, "--save", "plain")
    lines, text = run.run(world, *how, "--save", "on_host", ON_HOST)
    for name in ("loss", "norm", "scale"):
        if name in plain[0] and plain[0][name] is not None:
            near([line[name] for line in plain], [line[name] for line in lines], name, 0.0)
    expected, found = run.merged("plain"), run.merged("on_host")
    differ = differing(expected, found)
    if differ or len(set(line["loss"] for line in lines)) < steps:
        raise Failed(f"parameters differ: {differ[:3]}")
    told = re.search(r"the optimizer's state, ([\d.]+) (.iB) on all ranks, is in host memory; a step moved ([\d.]+) (.iB) of gradients", text)
    if not told:
        raise Failed(text)
    state, moved = (float(told[at]) * SIZES[told[at + 1]] for at in (1, 3))
    if abs(state / (kept * moved) - 1) > 0.05:
        raise Failed(f"{told[0]}: that is not {kept} numbers for each parameter")
    return f"bit-equal; {told[0]}"


def resumed(cases, first, then, world=2, *how, **about):
    """A checkpoint of either goes on with either, bit by bit."""
    path, run = task(cases.place, "gpt", **{**ADAM, **about}), Trained(cases, "gpt2_tiny", 1)
    common = ("--task", path, "--save-every", "5", *trainer.two(2), *how)
    whole, _ = run.run(world, *common, "--save", "straight")
    run.run(world, *common, "--save", "halves", "--steps", "5", *first)
    rest, text = run.run(world, *common, "--save", "halves", "--resume", *then)
    if "resumed after step 5" not in text:
        raise Failed(text)
    near([line["loss"] for line in whole[5:]], [line["loss"] for line in rest], "losses", 0.0)
    differ = differing(run.merged("straight"), run.merged("halves"))
    if differ:
        raise Failed(f"parameters differ: {differ[:3]}")
    return "bit-equal"


def refused(cases):
    """What does not go with it is one line, before the first step."""
    run = Trained(cases, "resnet_plain", 1)
    lines, text = run.run(2, "--replicas", "2", "--sync", "p3", ON_HOST, fails=True)
    if "--offload-optimizer cannot be combined with --sync p3: use --sync buckets" not in text or "Traceback" in text or lines:
        raise Failed(text)
    return "1 fault"


def finds(cases, old, new, message, case=None):
    run = Trained(cases, "gpt2_tiny", 1)
    case = case or (lambda: same(cases, "gpt2_tiny", 1, 1, *trainer.two(2), "--allow-changes", steps=6))
    return finds_fault(run.out / "train_parts/host_optimizer.py", old, new, message, case)


def cases():
    two, replicas = trainer.two(2), ("--replicas", "2")
    own = {"old": "torch.optim.SGD(parameters, lr=0.1, momentum=0.9)"}
    made = {
        "zero1": lambda c: same(c, "gpt2_tiny", 1, 2, *replicas, "--sharding", "zero1", *two),
        "found: nothing comes back": lambda c: finds(c, "            own.detach().copy_(twin", "            own.detach().clone().copy_(twin", "differ"),
    }
    every = {
        "gpt2 2": lambda c: same(c, "gpt2_tiny", 2, 2, *two),
        "zero3 2x2": lambda c: same(c, "gpt2_tiny", 2, 4, *replicas, "--sharding", "zero3", *two),
        "replicas": lambda c: same(c, "resnet_plain", 1, 2, *replicas, *two),
        "zero bubble": lambda c: same(c, "resnet_plain", 4, 2, "--pipeline-ranks", "2", "--schedule", "InterleavedZeroBubble", *trainer.two(4)),
        "unequal": lambda c: same(c, "gpt2_tiny", 2, 3, "--replicas", "2,1", *two),
        "PipeDream": lambda c: same(c, "resnet_plain", 2, 2, "--schedule", "PipeDream", *trainer.two(4), clip=None, **{**ADAM, "new": ADAM["new"].replace("0.1", "0.001")}),
        "fp16": lambda c: same(c, "gpt2_tiny", 2, 2, "--dtype", "fp16", *two),
        "momentum": lambda c: same(c, "gpt2_tiny", 2, 2, *two, kept=1, **own, new=own["old"]),
        "Adagrad, whose state is there before": lambda c: same(c, "gpt2_tiny", 1, 2, *replicas, "--sharding", "zero1", *two, kept=1, **own, new="torch.optim.Adagrad(parameters, lr=0.1)"),
        "resume with": lambda c: resumed(c, (), (ON_HOST,), 2, *replicas),
        "resume without": lambda c: resumed(c, (ON_HOST,), (), 2, *replicas),
        "resume with, zero1": lambda c: resumed(c, (ON_HOST,), (ON_HOST,), 2, *replicas, "--sharding", "zero1"),
        "resume without, zero3": lambda c: resumed(c, (ON_HOST,), (), 2, *replicas, "--sharding", "zero3"),
        "refused": refused,
        "found: a resumed run steps what there was before": lambda c: finds(
            c, "        for own, twin in self.twins.items():\n            twin.copy_(own)\n", "        pass\n", "differ",
            lambda: resumed(c, (), (ON_HOST,), 2, *replicas, "--allow-changes"),
        ),
    }
    if "--all" in sys.argv:
        sys.argv.remove("--all")
        return made | every
    return made | {name: test for name, test in every.items() if name in sys.argv[3:]}


if __name__ == "__main__":
    processes.main(cases())
