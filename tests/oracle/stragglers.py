"""Ranks that are slow, and ranks that hang: `train.py` names them, in several gloo processes.

    python tests/oracle/stragglers.py COMMAND FOLDER [CASE …]

Prints a line for each case and exits 1 when one fails; with `--all` longer ones run, too.
"""

import re
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import torchrun as processes
import trainer
from torchrun import Failed, finds_fault
from runs import failing
from trainer import Trained, task

warnings.filterwarnings("ignore")
INSIDE = "                    outputs = self.module(*positional)\n"
# All forward passes take 30 ms, those of one rank more from a step on.
SLEEPS = " " * 20 + "import time, torch.distributed as d; from train_parts.stragglers import BUSY; time.sleep(0.03 + {0} * (d.get_rank() == 1 and BUSY.count >= {1}))\n"


def trains(cases, world, *arguments, more=0.06, since=0, steps=13, stages=1, **about):
    """Trains with a rank that sleeps longer; returns what the log says of slow ranks, and all that was printed."""
    run = Trained(cases, "gpt2_tiny", stages)
    script = run.out / "train_parts/stages.py"
    text = script.read_text()
    assert text.count(INSIDE) == 1
    script.write_text(text.replace(INSIDE, SLEEPS.format(more, since) + INSIDE))
    path = task(cases.place, "gpt", **about)
    try:
        lines, said = run.run(world, "--task", path, "--steps", str(steps), "--allow-changes", *arguments)
    finally:
        script.write_text(text)
    return [(line["step"], each) for line in lines for each in line.get("slow", [])], said


def named(found, said, steps, of, least):
    """The second rank is named, and no other."""
    if "rank 0 is slow" in said:
        raise Failed(said)
    if [step for step, _ in found] != steps or any(each["rank"] != 1 or each["of"] != of for _, each in found):
        raise Failed(f"{found}\n{said}")
    ratios = [each["seconds"] / each["usual"] for _, each in found]
    if min(ratios) < least or "rank 1 is slow: " not in said:
        raise Failed(f"{ratios}\n{said}")
    return f"named after {steps}, {min(ratios):.2f} times"


def among(cases, *how, steps=(12,), least=1.3, **about):
    """One of two replicas is slow, and the other waits for it: it is named after ten steps, and in the end."""
    found, said = trains(cases, 2, "--replicas", "2", *how, *trainer.two(2), **about)
    if not steps:  # of all ranks nobody knows anything in a step
        if found or not re.search(r"rank 1 is slow: .* those of the others of its stage, over all steps", said):
            raise Failed(said)
        return "named in the end"
    return named(found, said, list(steps), "others", least)


def alone(cases):
    """A stage that has one rank, which becomes slow."""
    found, said = trains(cases, 2, *trainer.two(2), since=12, steps=24, stages=2)
    return named(found, said, [22], "before", 1.5)


def none(cases):
    """Where all are as fast, none is named, at a factor that no noise makes."""
    found, said = trains(cases, 2, "--replicas", "2", *trainer.two(2), "--straggler", "1.6", more=0.0)
    if found or "slow" in said:
        raise Failed(said)
    return "none is named"


def hangs(cases, world, *how, says, stages=1, **about):
    """Each rank that waits says which one does not answer, and what that is at, without a launcher."""
    run, path = Trained(cases, "resnet_plain", stages), task(cases.place, "picture", clip=None, **about)
    codes, texts = processes.ranks(run.out, world, ["--task", path, "--timeout", "4", *trainer.two(2), *how])
    if not any(re.search(says, text) for text in texts) or any("Traceback" in text for text in texts):
        raise Failed(f"not `{says}`: {codes}\n" + "\n".join(texts))
    return re.search(says, "\n".join(texts))[0][:200]


def stuck(rank, call):
    """A task of which one rank's loss, or data, never come back; the first has it at home."""
    return failing(call, f"import time, torch.distributed as d; time.sleep(9 * (d.get_rank() == {rank}))")


def cases():
    made = {
        "one of two replicas": among,
    }
    every = {
        "a replica that hangs": lambda c: hangs(
            c, 2, "--replicas", "2", **stuck(1, 7),
            says=r"rank 0: waited 4 s for another rank in gloo:all_reduce of \d+ numbers.* after .*, no answer from rank 1, which is at the loss after the forward pass of micro-batch 0 in stage 0; resume from the last checkpoint",
        ),
        "a rank alone": alone,
        "nobody": none,
        "zero3": lambda c: among(c, "--sharding", "zero3"),
        "p3": lambda c: among(c, "--sync", "p3", steps=(), clip=None),
        "found: waits count as work": lambda c: finds_fault(
            Trained(c, "gpt2_tiny", 1).out / "train_parts/stragglers.py", " - (self.waits - waited)", "", "rank 1 is slow|^\\[\\]", lambda: among(c, "--sharding", "zero3", least=1.3)
        ),
        "a stage that hangs": lambda c: hangs(
            c, 2, stages=2, **stuck(1, 7),
            says=r"rank 0: waited 4 s for another rank after .*, no answer from rank 1, which is at the loss after the forward pass of micro-batch 0 in stage 1; resume from the last checkpoint",
        ),
        "data that hang": lambda c: hangs(
            c, 2, "--replicas", "2", old="def inputs(step, samples):\n    return", new="def inputs(step, samples):\n    import time, torch.distributed as d; time.sleep(9 * (d.get_rank() == 1 and step == 3))\n    return",
            says=r"no answer from rank 1, which is at the data of step 4; resume from the last checkpoint",
        ),
    }
    if "--all" in sys.argv:
        sys.argv.remove("--all")
        return made | every
    return made | {name: test for name, test in every.items() if name in sys.argv[3:]}


if __name__ == "__main__":
    processes.main(cases())
