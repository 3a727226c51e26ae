"""Batch norms of replicas: statistics over all replicas (sync), or each replica's own, averaged for checkpoints and
validations."""

import re
import sys
from types import ModuleType

import torch
import torch.distributed as dist

from train_parts.stragglers import BUSY

HOW = ("local", "average", "sync")


class Synced(torch.autograd.Function):
    """Normalises by mean and variance of a micro-batch over all replicas, as torch's SyncBatchNorm, which runs only on
    GPUs.

    Sums of squares are taken around the common mean. Gradients of weight and bias are this replica's part: the sum of
    gradients over replicas includes them.
    """

    @staticmethod
    def forward(ctx, value, weight, bias, group, eps):
        if value.numel() <= value.shape[1] and dist.get_world_size(group) < 2:  # as torch's own does
            raise ValueError(f"a batch norm of {list(value.shape)} has one value per channel, and there is no other replica")
        dims, sizes = [0, *range(2, value.dim())], [1, -1] + [1] * (value.dim() - 2)
        wide = value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
        sums = torch.cat([wide.sum(dims), wide.new_full((1,), wide.numel() // wide.shape[1])])
        summed(sums, group)
        count, mean = sums[-1], sums[:-1] / sums[-1]
        squares = (wide - mean.view(sizes)).square().sum(dims)
        summed(squares, group)
        scale = (squares / count + eps).rsqrt()
        made = (wide - mean.view(sizes)) * scale.view(sizes)
        made = made if weight is None else made * weight.view(sizes)
        made = made if bias is None else made + bias.view(sizes)
        ctx.save_for_backward(value, weight, mean, scale, count)
        ctx.group, ctx.dims, ctx.sizes, ctx.has_bias = group, dims, sizes, bias is not None
        variance = squares / (count - 1)
        ctx.mark_non_differentiable(mean, variance)
        return made.to(value.dtype), mean, variance

    @staticmethod
    def backward(ctx, gradient, *_):
        value, weight, mean, scale, count = ctx.saved_tensors
        sizes, gradient = ctx.sizes, gradient.to(mean.dtype)
        normal = (value.to(mean.dtype) - mean.view(sizes)) * scale.view(sizes)
        sums = torch.stack([gradient.sum(ctx.dims), (gradient * normal).sum(ctx.dims)])
        of_bias, of_weight = sums.clone()
        summed(sums, ctx.group)
        first, second = (each.view(sizes) for each in sums / count)
        found = (gradient - first - normal * second) * scale.view(sizes)
        found = found if weight is None else found * weight.view(sizes)
        of_weight = None if weight is None else of_weight.to(weight.dtype)
        return found.to(value.dtype), of_weight, of_bias if ctx.has_bias else None, None, None


def summed(tensor, group):
    with BUSY.waiting():
        dist.all_reduce(tensor, group=group)


def synced(group, plain):
    """Returns the function that replaces `torch.batch_norm` in a stage."""

    def batch_norm(value, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled):
        if not training:
            return plain(value, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled)
        made, mean, variance = Synced.apply(value, weight, bias, group, eps)
        with torch.no_grad():
            for running, new in ((running_mean, mean), (running_var, variance)):
                if running is not None:
                    running.lerp_(new.to(running.dtype), momentum)
        return made

    return batch_norm


def let_sync(module, path, group):
    """Replaces batch norm in the stage's own name for torch by one over the replicas in `group`; torch itself is
    unchanged."""
    others = set(re.findall(r"\.(\w*batch_norm\w*)\(", path.read_text())) - {"batch_norm"}
    if others:
        sys.exit(f"{path.name} normalises by `{min(others)}`, which --batch-norm sync does not support: use --batch-norm average")
    names = module.forward.__globals__
    made = ModuleType("torch")
    made.__dict__.update(vars(names["torch"]), batch_norm=synced(group, torch.batch_norm))
    names["torch"] = made


@torch.no_grad()
def average(copies, group, count):
    """Averages the statistics of batch norms over all `count` copies of a stage, of which `copies` are on this rank."""
    found = [[b for name, b in module.named_buffers() if name.endswith(("running_mean", "running_var"))] for module in copies]
    if not found[0]:
        return
    flat = sum(torch.cat([buffer.reshape(-1) for buffer in each]) for each in found)
    if group is not None:
        dist.all_reduce(flat, group=group)
    for each in found:
        for buffer, part in zip(each, (flat / count).split([buffer.numel() for buffer in each])):
            buffer.copy_(part.view_as(buffer))
