"""`train.py --dtype fp16` in several gloo processes, beside a loop of one process with torch's autocast and GradScaler.

    python tests/oracle/fp16.py COMMAND FOLDER [CASE …]

In the fourth step one micro-batch asks for gradients that fp16 does not hold, though its loss is finite: that step is left out
by all ranks. Prints a line for each case and exits 1 when one fails.
"""

import json
import re
import sys
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
import torchrun as processes
import trainer
import without_flush
from torchrun import STEPS, Failed

warnings.filterwarnings("ignore")
GROWS = 2  # steps after which the scale doubles; in the script that is written 2,000
TASK = """
import torch


def inputs(step, samples):
    generator = torch.Generator().manual_seed(step)
    return (torch.randint(0, 50, (samples, 12), generator=generator),)


def target(step, samples):
    generator = torch.Generator().manual_seed(1000 + step)
    loud = torch.tensor([LOUD if step == 3 and at < 2 else 1.0 for at in range(samples)])
    return {"tokens": torch.randint(0, 50, (samples, 12), generator=generator), "loud": loud}


def loss(outputs, target):
    found = torch.nn.functional.cross_entropy(outputs[0].flatten(0, 1), target["tokens"].flatten(), reduction="none")
    return (found.view(target["tokens"].shape).mean(1) * target["loud"]).mean()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def lr(step):
    return 0.05 * min(1.0, (step + 1) / 4)


clip = CLIP
"""


def task(cases, clip=None, loud="1e9", always=False):
    path = cases.place / f"half_{len(list(cases.place.glob('half_*.py')))}.py"
    text = TASK.replace("CLIP", repr(clip)).replace("LOUD", loud)
    path.write_text(text.replace("step == 3 and ", "") if always else text)
    return str(path)


def plain(path):
    """The loop of one process: returns loss, norm and scale of each step, and the trained model."""
    trains, model = processes.module_of(Path(path), "task"), without_flush.eager("text")
    optimizer, scaler = trains.optimizer(model.parameters()), torch.amp.GradScaler("cpu", growth_interval=GROWS)
    found = []
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y, total, scale = trains.inputs(step, 8)[0], trains.target(step, 8), 0.0, scaler.get_scale()
        for part in range(4):
            rows = slice(2 * part, 2 * part + 2)
            with torch.autocast("cpu", dtype=torch.float16):
                loss = trains.loss([model(x[rows])], {key: value[rows] for key, value in y.items()}) / 4
            scaler.scale(loss).backward()
            total += float(loss.detach())
        scaler.unscale_(optimizer)
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), trains.clip or 1e30))
        for group in optimizer.param_groups:
            group["lr"] = trains.lr(step)
        scaler.step(optimizer)
        scaler.update()
        found.append((total, norm, scale))
    return found, model


def halves(cases, world, *arguments, stages=2, limit=0.0, clip=None, old="", new=""):
    limit = limit if processes.DEVICE == "cpu" else 1e-4  # a last bit of fp16 is 1e-3
    run, path = without_flush.folder(cases, "text", stages), task(cases, clip)
    script = run.out / "train_parts/update.py"
    before = script.read_text()
    assert "2.0**-14, 2000" in before and old in before
    script.write_text(before.replace("2.0**-14, 2000", f"2.0**-14, {GROWS}").replace(old, new))
    try:
        lines, text = run.run(world, "--task", path, "--dtype", "fp16", *arguments, "--allow-changes", "--save", "half")
    finally:
        script.write_text(before)
    expected, model = plain(path)
    if [scale for _, _, scale in expected] != [line["scale"] for line in lines]:
        raise Failed(f"scales differ: {expected} {lines}")
    if [line["left_out"] for line in lines] != [step == 3 for step in range(STEPS)] or text.count("skipped: a gradient is not finite") != 1:
        raise Failed(f"steps that are left out differ: {lines}")
    losses = trainer.near([loss for loss, _, _ in expected], [line["loss"] for line in lines], "losses", limit)
    pairs = [(norm, line["norm"]) for (_, norm, _), line in zip(expected, lines) if not line["left_out"]]
    norms = trainer.near(*map(list, zip(*pairs)), "norms", max(limit, 1e-6))
    state, merged = 0.0, run.merged("half")
    for name, value in model.state_dict().items():
        state = max(state, float((value - merged[name]).abs().max() / value.abs().max().clamp_min(1e-2)))
    if state > processes.allowed(limit):
        raise Failed(f"parameters differ by {state:.1e}")
    scales = f"{lines[0]['scale']:.0f} … {lines[-1]['scale']:.0f}"
    return f"losses differ by {losses:.0e}, norms by {norms:.0e}, parameters by {state:.0e}; scales {scales}"


def resumed(cases):
    """A run that goes on has the scale that it had."""
    run, path = without_flush.folder(cases, "text", 2), task(cases, 0.5)
    how = ("--task", path, "--dtype", "fp16", "--micro-batches", "4", "--save-every", "5")
    whole, _ = run.run(2, *how, "--save", "straight")
    run.run(2, *how, "--save", "halves", "--steps", "5")
    rest, text = run.run(2, *how, "--save", "halves", "--resume")
    if "resumed after step 5" not in text or whole[5]["scale"] != 2**15:
        raise Failed(text)
    for name in ("scale", "loss"):
        trainer.near([line[name] for line in whole][5:], [line[name] for line in rest], name, 0.0)
    return "bit-equal"


def checked(cases):
    """`--check` compares gradients as they are."""
    _, text = without_flush.folder(cases, "text", 2).run(2, "--task", task(cases), "--dtype", "fp16", "--micro-batches", "4", "--check")
    if '"ok": true' not in text:
        raise Failed(text)
    return "the same"


def single(cases):
    """`--single` scales and leaves out alike."""
    run, path = without_flush.folder(cases, "text", 2), task(cases)
    lines, _ = run.run(1, "--single", "--task", path, "--dtype", "fp16", "--micro-batches", "4")
    if [line["left_out"] for line in lines] != [step == 3 for step in range(STEPS)]:
        raise Failed(f"{lines}")
    return "a step is left out"


def stops(cases):
    """Gradients that no scale makes finite end the run, and so does a loss that is not."""
    run, how = without_flush.folder(cases, "text", 2), ("--dtype", "fp16", "--micro-batches", "2", "--steps", "40")
    lines, text = run.run(2, "--task", task(cases, loud="1e30", always=True), *how, fails=True)
    if len(lines) != 30 or "gradients are not finite in step 31 with losses scaled by 3.1e-05: stopped before the update" not in text:
        raise Failed(text)
    lines, text = run.run(2, "--task", task(cases, loud="float('inf')"), *how, fails=True)
    if len(lines) != 3 or not re.search(r"rank 1: the loss is not finite in step 4: stopped before the update", text):
        raise Failed(text)
    return "in step 31, in step 4"


def agreed(cases, old="", new=""):
    """Where one stage alone has a gradient that is not finite, all leave the step out."""
    run, path = without_flush.folder(cases, "text", 2), task(cases, loud="1.0")
    script = run.out / "train_parts/update.py"
    before = script.read_text()
    planted = "        is_lost = is_loss_lost or not"
    assert before.count(planted) == 1 and old in before
    infinite = "        norms = norms / (0.0 if (self.rank, step) == (1, 4) else 1.0)\n"
    script.write_text(before.replace(planted, infinite + planted).replace(old, new))
    try:
        lines, _ = run.run(2, "--task", path, "--dtype", "fp16", "--micro-batches", "4", "--allow-changes", "--save", "agreed", "--save-every", "1")
    finally:
        script.write_text(before)
    if [line["left_out"] for line in lines] != [step == 4 for step in range(STEPS)]:
        raise Failed(f"steps that are left out differ: {lines}")
    manifest = json.loads((run.out / "stages/manifest.json").read_text())
    for stage in range(2):
        states = [trainer.model_of(run.out / f"agreed/step_{step:08d}") for step in (4, 5, 6)]
        is_same = [all(torch.equal(a[f"model.{name}"], b[f"model.{name}"]) for name in manifest["stages"][stage]["parameters"]) for a, b in zip(states, states[1:])]
        if is_same != [True, False]:
            raise Failed(f"weights of stage {stage} differ after the step that is left out")
    return "both stages leave step 5 out"


def agreed_finds(cases, old, new):
    try:
        said = agreed(cases, old, new)
    except Failed as error:
        if "weights of stage 0 differ" not in str(error):
            raise
        return str(error)
    raise Failed(f"nobody saw it: {said}")


def finds(cases, old, new, *arguments, world=2):
    try:
        said = halves(cases, world, *(arguments or ("--micro-batches", "4")), limit=0.0, old=old, new=new)
    except Failed as error:
        if "differ" not in str(error):
            raise
        return str(error).splitlines()[0][:40]
    raise Failed(f"nobody saw it: {said}")


def cases():
    two, four = ("--micro-batches", "2"), ("--micro-batches", "4")
    return {
        "two stages": lambda c: halves(c, 2, *four),
        "split backward": lambda c: halves(c, 2, "--pipeline-ranks", "2", "--schedule", "InterleavedZeroBubble", *four, stages=4),
        # Sums in another order.
        "two replicas, one has an infinity": lambda c: halves(c, 4, "--replicas", "2", "--sharding", "zero1", *two, limit=2e-6),
        "zero3": lambda c: halves(c, 2, "--replicas", "2", "--sharding", "zero3", *two, stages=1, limit=2e-6),
        "offload, 1-2": lambda c: halves(c, 3, "--replicas", "1,2", "--offload", "both", "--offload-floor", "1", *two, limit=2e-6),
        "clipped": lambda c: halves(c, 3, *four, stages=3, clip=0.5, limit=2e-6),
        "resume": resumed,
        "check": checked,
        "single": single,
        "never finite": stops,
        "one rank's infinity": agreed,
        "found: a rank steps what another leaves out": lambda c: agreed_finds(c, "        if not is_left_out:\n            self.step()", "        if not (is_left_out and is_lost):\n            self.step()"),
        "found: gradients that keep a part of the scale": lambda c: finds(c, "1.0 / self.scale.value)", "2.0 / self.scale.value)"),
        "found: the scale of a lost step": lambda c: finds(c, "self.value /= 2", "pass"),
    }


if __name__ == "__main__":
    processes.main(cases())
