"""`--check`: compares two planned steps with one process, losses and all gradients."""

import json
import math
import sys
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from train_parts.data import Batches, whole_batch
from train_parts.one_process import chained
from train_parts.stages import load_stage


# Allowed difference of a gradient, relative to its own largest value or a thousandth of the model's: sums are made in
# another order.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-5, torch.complex64: 1e-5, torch.complex128: 1e-9}

LOW_TOLERANCE = 3e-2

# A gradient whose terms cancel, as that of a bias before a batch norm, is nothing but rounding: it may be off by this
# many times what changing the weights in their last bits changes it by, and by no more than this.
TIMES_ROUNDING, MOST_ROUNDING = 10, 1e-3


def check(run):
    """Runs two planned steps in all processes, and in one; rank 0 reports whether they agree.

    Errors in the state that a step leaves show only in the next step. Weights do not change.
    """
    arguments, layout, device = run.arguments, run.layout, run.device
    stages = None
    if run.rank == 0:
        stages = [load_stage(about, arguments.form, arguments.device) for about in run.manifest["stages"]]
        replicas = layout.pipelines
        batches = [Batches(run.task, replica, replicas, arguments.micro_batches) for replica in range(replicas)]
        buffers = Buffers(stages, replicas, arguments.micro_batches)
    losses, differences, rounded = [], [], 0
    for step in range(2):
        loss = run.gradients(step)
        if run.update.is_shared:
            run.sync.gather_gradients()
        is_told = run.rank in run.reporters and run.shard == 0
        total = torch.tensor([(loss or 0.0) if is_told else 0.0], dtype=torch.float64, device=device)
        dist.all_reduce(total)
        if run.rank == 0:
            batch = whole_batch(batches, step, arguments.device)

            def one_process():
                for stage in stages:
                    stage.zero_grad(set_to_none=True)
                loss = chained(arguments, run.manifest, run.task, stages, batch, run.update.scale, buffers.turn_to)
                return loss, [gradients_of(stage) for stage in stages]

            begin = buffers.copies()
            loss, expected = one_process()
            losses.append((loss, float(total)))
            known = [g for gradients in expected for g in gradients.values() if g is not None and g.numel()]
            largest = max((float(g.abs().max()) for g in known), default=0.0)
        # Over all replicas and shards.
        own, found_here = {}, []
        for held, module in run.modules.items():
            own.setdefault(held % layout.count, []).append(gradients_of(module, run.cuts))
        for stage in range(len(run.manifest["stages"])):
            for owner in sorted(r for shard in range(layout.shards) for r in layout.ranks_of_stage(stage, shard)):
                box = [own[stage] if owner == run.rank else None]
                if owner != 0 and run.rank == owner:
                    dist.send_object_list(box, dst=0, device=run.object_device)
                if run.rank == 0:
                    if owner != 0:
                        dist.recv_object_list(box, src=owner, device=run.object_device)
                    for found in box[0]:
                        found_here += compared(step, stage, owner, expected[stage], found, largest)
        if any(is_wrong(arguments, one) and one["difference"] <= MOST_ROUNDING for one in found_here):
            end = buffers.copies()
            buffers.set(begin)
            with moved_by_a_bit(stages):
                _, moved = one_process()
            buffers.set(end)
            rounded += allow_rounding(arguments, found_here, expected, moved, largest)
        differences += found_here
    return verdict(arguments, layout, losses, differences, rounded) if run.rank == 0 else None


class Buffers:
    """What forward passes write in the one process: each pipeline has its own, as its ranks have."""

    def __init__(self, stages, pipelines, micro_batches):
        self.live = list({id(buffer): buffer for stage in stages for buffer in stage.buffers()}.values())
        self.kept = [[buffer.clone() for buffer in self.live] for _ in range(pipelines)]
        self.micro_batches, self.pipeline = micro_batches, 0

    def turn_to(self, number):
        """Makes the buffers those of the pipeline that runs this micro-batch of all."""
        pipeline = number // self.micro_batches
        if pipeline != self.pipeline:
            self.kept[self.pipeline] = [buffer.clone() for buffer in self.live]
            self.pipeline = pipeline
            for buffer, value in zip(self.live, self.kept[pipeline]):
                buffer.data.copy_(value)

    def copies(self):
        self.turn_to(0)
        self.kept[0] = [buffer.clone() for buffer in self.live]
        return list(self.kept)

    def set(self, copies):
        self.pipeline, self.kept = 0, list(copies)
        for buffer, value in zip(self.live, self.kept[0]):
            buffer.data.copy_(value)


@contextmanager
def moved_by_a_bit(stages):
    """Moves each weight up or down by its last bit, at random."""
    drawn = torch.Generator().manual_seed(0)
    parameters = list({id(p): p for stage in stages for p in stage.parameters() if p.is_floating_point()}.values())
    before = [parameter.detach().clone() for parameter in parameters]
    for parameter in parameters:
        signs = torch.randint(0, 2, parameter.shape, generator=drawn).to(parameter.device) * 2 - 1
        parameter.data.mul_(1 + signs * torch.finfo(parameter.dtype).eps)
    try:
        yield
    finally:
        for parameter, value in zip(parameters, before):
            parameter.data.copy_(value)


def allow_rounding(arguments, differences, expected, moved, largest):
    """Allows differences that rounding makes; returns for how many gradients."""
    wrong = [one for one in differences if is_wrong(arguments, one)]
    for one in wrong:
        stage, name = one["stage"], one["name"]
        by_a_bit = next(compared(0, stage, 0, {name: expected[stage][name]}, {name: moved[stage][name]}, largest))
        one["allowed"] = max(one["allowed"], min(TIMES_ROUNDING * by_a_bit["difference"], MOST_ROUNDING))
    return sum(not is_wrong(arguments, one) for one in wrong)


def is_wrong(arguments, one):
    """Tells whether a gradient differs by more than is allowed; NaN does."""
    allowed = LOW_TOLERANCE if arguments.dtype != "fp32" else one["allowed"]
    return not one["difference"] <= allowed


def gradients_of(module, cuts=None):
    found = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            gradient = None if parameter.grad is None else parameter.grad.detach()
            if gradient is not None and cuts:
                gradient = cuts.whole(parameter, gradient)
            found[name] = None if gradient is None else gradient.cpu()
    return found


def compared(step, stage, rank, expected, found, largest):
    """Yields the difference of each gradient of a stage, relative to its allowed size."""
    for name, whole in expected.items():
        own, place = found.get(name), {"step": step + 1, "stage": stage, "rank": rank, "name": name}
        known = whole if whole is not None else own
        if known is None or not known.numel():
            yield place | {"difference": 0.0, "is_zero": True, "allowed": 1.0}
            continue
        zeros = torch.zeros_like(known)
        wide = torch.complex128 if known.is_complex() else torch.float64
        a, b = ((g if g is not None else zeros).to(wide) for g in (whole, own))
        scale = max(float(a.abs().max()), 1e-3 * largest, sys.float_info.min)
        difference = float((a - b).abs().max()) / scale
        is_zero = not a.any() and not b.any()
        allowed = TOLERANCES.get(known.dtype, LOW_TOLERANCE)
        yield place | {"difference": difference, "is_zero": bool(is_zero), "allowed": allowed}


def verdict(arguments, layout, losses, differences, rounded):
    low = arguments.dtype != "fp32"
    # No number on both sides is the same, as where no target counts.
    is_equal = lambda a, b: a == b or math.isnan(a) and math.isnan(b)  # noqa: E731
    of_losses = [0.0 if is_equal(a, b) else abs(a - b) / max(abs(a), sys.float_info.min) for a, b in losses]
    of_loss = max(of_losses, key=lambda d: (math.isnan(d), d))
    wrong = [d for d in differences if is_wrong(arguments, d)]
    lowest = any(d["allowed"] == LOW_TOLERANCE for d in differences)
    is_same = of_loss <= (LOW_TOLERANCE if low or lowest else 1e-5)
    worst = max((d["difference"] for d in differences), key=lambda d: (math.isnan(d), d), default=0.0)
    zeros = sum(d["is_zero"] for d in differences)
    name = Path(arguments.schedule).name
    text = f"two steps under {name} on {layout.world} ranks compared with one process: losses differ by {of_loss:.1e}, "
    text += f"{len(differences)} gradients by at most {worst:.1e}"
    text += f" ({zeros} are exactly zero in both)" if zeros else ""
    text += f" ({rounded} of them rounding: weights that change in their last bits change these as much)" if rounded else ""
    print(text, file=sys.stderr)
    for one in wrong[:5]:
        print(f"  step {one['step']}, stage {one['stage']}, rank {one['rank']}: gradient of {one['name']} differs by {one['difference']:.1e}", file=sys.stderr)
    ok = is_same and not wrong
    print("the same" if ok else "different", file=sys.stderr, flush=True)
    shown = sorted(differences, key=lambda d: -d["difference"] if d["difference"] == d["difference"] else -math.inf)[:5]
    about = {"ok": ok, "schedule": name, "ranks": layout.world, "loss": of_loss, "gradients": worst}
    about |= {"compared": len(differences), "zero": zeros, "rounded": rounded, "wrong": wrong[:5], "worst": shown}
    print(json.dumps({"check": with_numbers(about)}), flush=True)
    return ok


def with_numbers(value):
    """Returns a value as JSON can have it: what is no number, or infinite, is null."""
    if isinstance(value, dict):
        return {key: with_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [with_numbers(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
