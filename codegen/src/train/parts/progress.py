"""Progress messages: one line per step, and at the end the step time next to the predicted one."""

import json
import math
import re
import statistics
import time

import torch
import torch.distributed as dist

from train_parts.counts import tokens_of
from train_parts.stragglers import BUSY, WINDOW, about_slow


class Progress:
    """Reports each step: a line for people, one of JSON in `--log`, the task's own `log`."""

    def __init__(self, task, arguments, samples, start, slow=None):
        self.task, self.arguments, self.samples, self.slow = task, arguments, samples, slow
        self.begun, self.seconds = time.perf_counter(), []
        self.before, self.tokens, self.share = self.begun, tokens_of(task.manifest), None  # seconds of a step at the devices' peak
        self.file = open(arguments.log, "a" if start else "w") if arguments.log else None

    def tell(self, step, known):
        now = time.perf_counter()
        self.seconds.append(now - self.before)
        self.before = now
        rate = self.samples / self.seconds[-1]
        busy = known.pop("busy", None)
        slow = self.slow.take(busy) if self.slow and busy else {}
        left = (self.arguments.steps - step) * statistics.median(self.seconds[-20:])
        rates = {"samples_per_second": rate} | ({"tokens_per_second": self.tokens * rate} if self.tokens else {})
        rates |= {"mfu": self.share / self.seconds[-1]} if self.share else {}
        text = f"step {step} loss {known['loss']:.9g} {rated(rate)} samples/s"
        text += f", {rated(rates['tokens_per_second'])} tokens/s" if self.tokens else ""
        text += f", MFU {100 * rates['mfu']:.3g} %" if self.share else ""
        text += f", norm {known['norm']:.4g}" if known["norm"] is not None else ""
        text += f", lr {known['lr']:.4g}" if known["lr"] is not None else ""
        text += f", scale {known['scale']:.4g}" if "scale" in known else ""
        text += ", skipped: a gradient is not finite" if known.get("left_out") else ""
        text += f", {known['memory'] / 2**20:.0f} MiB, {lasting(left)} left"
        print(", ".join(filter(None, (text, about_slow(slow)))), flush=True)
        known |= {"slow": in_json(slow)} if slow else {}
        self.write({"step": step} | known | {"seconds": self.seconds[-1]} | rates)

    def tell_validation(self, step, values, samples):
        text = ", ".join(f"{name} {value:.6g}" for name, value in values.items()) if values else "no batch"
        print(f"validation after step {step}: {text} ({samples} samples)", flush=True)
        self.write({"step": step, "validation": values, "samples": samples})
        self.go_on()

    def go_on(self):
        """Begins the next step's time, after other work."""
        self.before = time.perf_counter()

    def write(self, values):
        if self.file:
            self.file.write(json.dumps(values) + "\n")
            self.file.flush()
        if hasattr(self.task.file, "log"):
            self.task.file.log(values["step"], values)


def lasting(seconds):
    hours, minutes = int(seconds // 3600), int(seconds % 3600 // 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min" if minutes else f"{seconds:.0f} s"


def rated(rate):
    return f"{rate:.3g}" if rate < 100 else f"{rate:.0f}"


def told(seconds):
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def beside_prediction(arguments, all_seconds, host=None):
    """Reports the median step, and the plan's prediction, unless that is for other devices or other work.

    `host` is the host time of the script, if measured; the simulator has recorded its effect on the step.
    """
    settled = all_seconds[2:]  # the first ones allocate memory
    predicted = arguments.plan.get("prediction")
    if not settled or not predicted:
        return ""
    text = f"a step took {told(statistics.median(settled))} (median)"
    if not is_on(predicted, arguments.device):
        return f"{text}; the plan's prediction is for {predicted['devices']}, not for this machine\n"
    if arguments.plan.get("planned"):
        return f"{text}; the plan's prediction is for {arguments.plan['planned']}, not for this run\n"
    text += f"; predicted for {predicted['devices']} were"
    text += f" {told(predicted['seconds'])}"
    if predicted["band"]:
        text += " (p10–p90 {}–{})".format(*map(told, predicted["band"]))
    if host and (more := under(predicted.get("host"), host["pass"], predicted.get("charged", 0.0))) is not None:
        text += f", and {told(predicted['seconds'] + more + host['step'])} with the script's host time"
    if arguments.is_changed:
        text += ", run as planned: this run has other options"
    return text + "\n"


def under(known, seconds, charged=0.0):
    """Returns how much longer a step is with the given host time per pass than with the plan's: interpolated between
    the nearest known values."""

    def step(seconds):
        for (low, short), (high, long) in zip(known or (), (known or ())[1:]):
            if low <= seconds <= high:
                return short + (long - short) * (seconds - low) / (high - low)
        return math.nan

    more = step(seconds) - step(charged)
    return None if math.isnan(more) else more


def about_offload(arguments, known, count):
    """Reports the offload traffic of a step, over all ranks; `known` is of the last step, or a sum over `count`
    steps."""
    what = "the plan's blocks" if arguments.offloads_blocks else "whole stages"
    text = f"offload ({arguments.offload}, {what}) moved {sized(known['to_host'] / count)} to the host per step"
    text += f" and {sized(known['to_device'] / count)} back, copies took {told(known['seconds_to_host'] / count)} and"
    text += f" {told(known['seconds_to_device'] / count)}; the host held {sized(known['host_bytes'])}"
    return text + f", {known['buffers']} buffers were allocated in total, {known['in_use']} are in use"


def found_slow(run, slow):
    """Finds ranks that were slow in most of the last steps, compared with those that hold the same stages; all ranks
    call this."""
    own = torch.tensor(BUSY.steps, dtype=torch.float64, device=run.device)
    if len(own) < WINDOW:
        return {}
    found = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(found, own)
    return {rank: about for rank, about in slow.found(list(zip(*(each.tolist() for each in found)))).items() if about[2]}


def in_json(slow):
    return [{"rank": rank, "seconds": own, "usual": usual, "of": "others" if others else "before"} for rank, (own, usual, others) in slow.items()]


def about_kept(run):
    """Reports the optimizer state on the host, over all ranks, and its time on the slowest one; all ranks call this."""
    found = torch.tensor(run.update.host.figures() if run.update.host else [0.0] * 5, dtype=torch.float64, device=run.device)
    most = found.clone()
    dist.all_reduce(found)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    kept, moved = map(sized, found[:2].tolist())
    there, update, back = map(told, most[2:].tolist())
    text = f"the optimizer's state, {kept} on all ranks, is in host memory; a step moved {moved} of gradients there and as much of parameters back,"
    return text + f" copies took {there} and {back}, the update {update}, on the ranks where they took longest"


def about_host(run):
    """Reports the host time of this script, on the rank with the most per pass; all ranks call this."""
    own = torch.tensor(run.arguments.trace.figures(), dtype=torch.float64, device=run.device)
    found = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(found, own)
    figures = [each.tolist() for each in found]
    a_pass, stage, step, passes, _ = max(figures)
    split = max(each[-1] for each in figures)
    text = f"train.py itself took {told(a_pass)} of host time per pass, in addition to {told(stage)} in the stage ({passes:g} passes per step),"
    text += f" and {told(step)} per step for data, sums and the update; "
    charged = (run.arguments.plan.get("prediction") or {}).get("charged", 0.0)
    text += f"the plan counts {told(charged)} per pass" if charged else "the plan counts none of it"
    options = f"--host-overhead {1e6 * a_pass:.0f}"
    if split >= 0:
        text += f"; a backward pass in halves took {told(split)} more than a whole one, which every second step had"
        options += f" --split-overhead {1e6 * split:.0f}"
    text += f"; `split`, `plan` and `simulate` count it with {options}"
    return text, {"pass": a_pass, "stage": stage, "step": step, "passes": passes, **({"split": split} if split >= 0 else {})}


def about_slices(run):
    """Stops sending slices; reports statistics of a step on this rank, and whether priorities helped."""
    run.sync.close()
    figures, name = run.sync.figures(), run.arguments.sync
    if not figures:
        return f"{name}: too few steps for statistics of slices"
    count, overtook, waited, least = figures
    text = f"{name}: {count:g} slices per step, {overtook:g} overtook others; passes waited {told(waited)} per step for them,"
    text += f" and would have waited {told(least)} without priorities"
    return text + ("" if name != "p3" or waited < 0.98 * least else "; priorities do not help here: use --sync buckets")


def about_gathered(run):
    """Reports the peak of gathered parameters, on the rank with the highest; all ranks call this."""
    found = torch.tensor(run.sync.figures() if run.is_fully_shared else (0, 0, 0), dtype=torch.float64, device=run.device)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    most, two, whole = map(sized, found.tolist())
    return f"zero3 held at most {most} of gathered parameters at a time; two of the largest block are {two}, a rank's stages have {whole}"


def sized(count):
    return f"{count / 2**10:.1f} KiB" if count < 2**20 else f"{count / 2**20:.1f} MiB" if count < 2**30 else f"{count / 2**30:.2f} GiB"


VENDORS = ("nvidia", "tesla", "geforce", "amd", "instinct", "intel")


def is_on(predicted, device):
    """Tells whether a plan's devices may be those of this run, by their names."""
    if torch.device(device).type == "cpu":
        return all(kind.split(" × ")[-1].upper().startswith("CPU") for kind in predicted["devices"].split(" + "))
    words = re.split(r"[^a-z0-9]+", torch.cuda.get_device_name(device).lower())
    return "".join(word for word in words if word not in VENDORS) in predicted["names"]
