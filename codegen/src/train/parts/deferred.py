"""Split backward passes: weight gradients are deferred to the weight half."""

from contextlib import contextmanager
from types import ModuleType

import torch
from torch import nn


class Deferral:
    """Deferred weight gradients, after "Zero Bubble Pipeline Parallelism" (2024).

    The input half of a backward pass is an ordinary backward pass in which linear layers and convolutions put the
    computation of their weight gradients into a queue; the weight half runs the queue. Operators that are not deferred
    (norms, embeddings, recurrent layers, archives) get their gradients in the first half. Unlike halves that walk the
    graph, this is correct for a parameter that is used several times.
    """

    def __init__(self):
        self.is_on = True  # off in steps that measure what halves cost
        self.queue = None  # deferred computations of the running input half, by parameter; None outside of one
        self.arrived = []  # functions called with each parameter whose gradient was added to

    @contextmanager
    def into(self, queue):
        before, self.queue = self.queue, queue
        try:
            yield
        finally:
            self.queue = before

    def holds(self, parameter):
        """Tells whether more of a parameter's gradient is deferred in the running half."""
        return self.queue is not None and parameter in self.queue

    def give(self, parameter, gradient):
        """Runs the function that computes a gradient: now, or in the weight half."""
        if self.queue is None:
            return gradient()
        self.queue.setdefault(parameter, []).append(gradient)
        return None

    @torch.no_grad()
    def work(self, queue):
        """Adds the deferred gradients to the parameters': those of several uses of one are summed first, as autograd
        does."""
        for parameter in list(queue):
            gradients = [gradient().to(parameter.dtype) for gradient in queue.pop(parameter)]
            gradient = sum(gradients[1:], gradients[0])
            if parameter.grad is not None:
                parameter.grad += gradient
            elif gradient.stride() == parameter.stride():
                parameter.grad = gradient
            else:
                parameter.grad = torch.empty_like(parameter).copy_(gradient)
            for arrived in self.arrived:
                arrived(parameter)


DEFERRAL = Deferral()
PLAIN_LINEAR, PLAIN_ADDMM = nn.functional.linear, torch.addmm


def may_wait(value, weight, bias):
    """Tells whether an operator's weights are themselves parameters, whose gradients nothing else uses or sends.

    A value from another stage arrives as a leaf, too: its gradient is sent back in the input half.
    """
    weights = [weight] if bias is None else [weight, bias]
    return (
        DEFERRAL.is_on
        and torch.is_grad_enabled()
        and type(value) in (torch.Tensor, nn.Parameter)
        and all(type(owner(tensor)) is nn.Parameter and tensor.requires_grad and not tensor.is_complex() for tensor in weights)
    )


def owner(tensor):
    """Returns the parameter that a tensor is, or replaces if parameters are gathered for a pass."""
    return getattr(tensor, "parameter", tensor)


def lowered(*tensors):
    """Returns the tensors that autocast would compute with, and their type; None as the type if autocast is off."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors, None
    dtype = torch.get_autocast_dtype(device)
    fits = [t is not None and t.is_floating_point() and t.dtype != torch.float64 for t in tensors]
    return [t.to(dtype) if fit else t for t, fit in zip(tensors, fits)], dtype


class Waiting:
    """A product of a value with parameters, in two halves for autograd.

    `Operands` keeps what the backward pass needs, before `Result` computes. Where a block is recomputed, torch stops at
    the last tensor that was kept: so the block's last product is not computed again, as it is not with torch's own
    functions.
    """

    def __init__(self, weight, bias, compute, gradients):
        self.parameters, self.compute, self.gradients = (owner(weight), owner(bias)), compute, gradients
        self.ahead = None  # the gradient of the result, from the one half to the other


class Operands(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, weight, bias, waiting):
        ctx.save_for_backward(value, weight)
        ctx.waiting = waiting
        return value.view_as(value)

    @staticmethod
    def backward(ctx, _):
        value, weight = ctx.saved_tensors
        waiting = ctx.waiting
        ahead, waiting.ahead = waiting.ahead, None
        own, bias = waiting.parameters
        found, of_weight, of_bias = waiting.gradients(ahead, value, weight, ctx.needs_input_grad[0])
        of_weight = DEFERRAL.give(own, of_weight)
        of_bias = None if bias is None else DEFERRAL.give(bias, of_bias)
        return found, of_weight, of_bias, None


class Result(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, weights, waiting):
        # Nothing but the number of its elements is said of the gradient in between.
        ctx.waiting, ctx.between = waiting, value.new_zeros(()).expand(value.shape)
        return waiting.compute(value, *weights)

    @staticmethod
    def backward(ctx, ahead):
        ctx.waiting.ahead = ahead
        return ctx.between, None, None


def computed(value, weight, bias, compute, gradients):
    waiting = Waiting(weight, bias, compute, gradients)
    # Weights in a list are no operands for autograd, which sends their gradients through the first half.
    return Result.apply(Operands.apply(value, weight, bias, waiting), [weight, bias], waiting)


def product(value, weight, bias, is_transposed, dtype):
    """`F.linear`, or with `is_transposed` the product that `torch.addmm` adds to the bias."""

    def compute(value, weight, bias):
        weight, bias = (t.to(dtype) if dtype and t is not None else t for t in (weight, bias))
        found = PLAIN_ADDMM(bias, value, weight) if is_transposed else PLAIN_LINEAR(value, weight, bias)
        # A model may write to the result, which autograd forbids where a function of Python returns a view.
        return torch.ops.aten._unsafe_view(found, found.shape) if found._is_view() else found

    def gradients(gradient, value, weight, is_wanted):
        weight = weight.to(dtype) if dtype else weight
        rows, ahead = value.reshape(-1, value.shape[-1]), gradient.reshape(-1, gradient.shape[-1])
        found = None
        if is_wanted:
            found = ahead.mm(weight.t()) if is_transposed else ahead.mm(weight)
            found = found.view(value.shape)
        of_weight = (lambda: rows.t().mm(ahead)) if is_transposed else (lambda: ahead.t().mm(rows))
        return found, of_weight, lambda: ahead.sum(0)

    return computed(value, weight, bias, compute, gradients)


def convolved(value, weight, bias, dtype, *how):
    sizes = None if bias is None else list(bias.shape)

    def compute(value, weight, bias):
        weight, bias = (t.to(dtype) if dtype and t is not None else t for t in (weight, bias))
        return torch.convolution(value, weight, bias, *how)

    def gradients(gradient, value, weight, is_wanted):
        weight = weight.to(dtype) if dtype else weight

        def part(index):
            mask = [at == index for at in range(3)]
            return torch.ops.aten.convolution_backward(gradient, value, weight, sizes, *how, mask)[index]

        return part(0) if is_wanted else None, lambda: part(1), lambda: part(2)

    return computed(value, weight, bias, compute, gradients)


def linear(value, weight, bias=None):
    if not may_wait(value, weight, bias) or value.dim() < 2:
        return PLAIN_LINEAR(value, weight, bias)
    (value,), dtype = lowered(value)
    return product(value, weight, bias, False, dtype)


def addmm(bias, value, weight, *, beta=1, alpha=1):
    if not may_wait(value, weight, bias) or (beta, alpha) != (1, 1) or bias.dim() != 1:
        return PLAIN_ADDMM(bias, value, weight, beta=beta, alpha=alpha)
    (value,), dtype = lowered(value)
    return product(value, weight, bias, True, dtype)


def convolution(plain, rank, is_transposed):
    def listed(number):
        return [number] * rank if isinstance(number, int) else list(number)

    def convolve(value, weight, bias, stride, padding, *rest):
        fits = value.dim() == rank + 2 and not isinstance(padding, str)
        if not fits or len(rest) != (3 if is_transposed else 2) or not may_wait(value, weight, bias):
            return plain(value, weight, bias, stride, padding, *rest)
        more, groups, dilation = rest if is_transposed else (0, rest[1], rest[0])
        (value,), dtype = lowered(value)
        how = (listed(stride), listed(padding), listed(dilation), is_transposed, listed(more), groups)
        return convolved(value, weight, bias, dtype, *how)

    return convolve


def let_wait(stage):
    """Replaces functions in the stage's own name for torch so that weight gradients may be deferred; torch itself is
    unchanged."""
    names = {f"conv{way}{rank}d": (rank, bool(way)) for rank in (1, 2, 3) for way in ("", "_transpose")}
    waiting = {name: convolution(getattr(torch, name), *how) for name, how in names.items()}
    for name, space in (("torch", torch), ("F", nn.functional)):
        made = ModuleType(space.__name__)
        made.__dict__.update(vars(space))
        made.__dict__.update(waiting, linear=linear)
        if space is torch:
            made.addmm = addmm
        if name in vars(stage):
            setattr(stage, name, made)
