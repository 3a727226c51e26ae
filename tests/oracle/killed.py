"""A rank of `python train.py --max-restarts` is killed at a random moment, again and again: the job ends as if nobody had.

    python tests/oracle/killed.py COMMAND FOLDER [--all]

Moments are drawn from a seed over the whole job: while ranks start, in passes, while a checkpoint is written. Prints a line for each
and exits 1 when parameters differ by a bit.
"""

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import os

import torch
import torchrun as processes
from torchrun import Failed
from trainer import ADAM, Trained, task, two

JOB = ("--device", processes.DEVICE, "--steps", "40", "--allow-eval", *two(4), "--save-every", "2", "--keep", "3", "--max-restarts", "3", "--timeout", "60", "--resume")


def ranks_of(launcher):
    """Returns the processes that a launcher has started."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text().rpartition(")")[2].split()
            command = (place.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == launcher and b"train.py" in command:
            found.append(int(place.parent.name))
    return sorted(found)


def job(run, path, folder, moment=None, chosen=0):
    """Runs the job, in which a rank is killed so many seconds after the ranks began; returns their seconds, and whether one was."""
    shutil.rmtree(run.out / folder, ignore_errors=True)
    was_killed = False
    started = subprocess.Popen(
        [sys.executable, "train.py", "--task", path, "--save", folder, *JOB], cwd=run.out, env=processes.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    while len(ranks_of(started.pid)) < 2 and started.poll() is None:
        time.sleep(0.05)
    begun = time.monotonic()
    if moment is not None:
        time.sleep(moment)
        if ranks := ranks_of(started.pid):
            os.kill(ranks[chosen % len(ranks)], signal.SIGKILL)
            was_killed = True
    text, _ = started.communicate(timeout=300)
    if started.returncode:
        raise Failed(text)
    return time.monotonic() - begun, was_killed


def killed(cases, count):
    path, run, chance = task(cases.place, "gpt", **ADAM), Trained(cases, "gpt2_tiny"), random.Random(37)
    seconds, _ = job(run, path, "straight")
    expected, hit, number = run.merged("straight"), 0, 0
    while hit < count:  # a machine that has got faster meanwhile ends jobs before their moment
        number += 1
        moment, chosen = chance.uniform(0.0, seconds), chance.randrange(2)
        _, was_killed = job(run, path, "killed", moment, chosen)
        found, hit = run.merged("killed"), hit + was_killed
        differ = [name for name, value in expected.items() if not torch.equal(value, found[name])]
        print(f"  {number}: after {moment:.1f} of {seconds:.1f} s, {'a rank was killed' if was_killed else 'no rank was there'}", flush=True)
        if differ:
            raise Failed(f"killed after {moment:.1f} s: other parameters: {differ[:3]}")
        if number > 3 * count:
            raise Failed(f"only {hit} of {number} jobs had a rank to kill")
    return f"{hit} of {number} jobs lost a rank, all ended bit-equal"


if __name__ == "__main__":
    count = 20 if "--all" in sys.argv else 1
    processes.main({"killed at random moments": lambda c: killed(c, count)})
