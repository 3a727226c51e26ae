"""Optimizer state and update in host memory: gradients are copied there, and updated parameters come back. Needs
only torch."""

import time

import torch
from torch import nn


class HostOptimizer:
    """Updates parameters, or this rank's pieces of them, through copies on the host, which the optimizer gets in their
    place.

    After "ZeRO-Offload" (2021): the device keeps no state, and a step moves one gradient to the host and one value back
    for each updated parameter. On a CPU the twins are ordinary copies, and results are bitwise equal.
    """

    def __init__(self, optimizer, owns, device):
        self.optimizer, self.on_gpu = optimizer, torch.device(device).type == "cuda"
        self.twins = {own: nn.Parameter(self.room(own).copy_(own.detach())) for own in owns}
        self.gradients = {own: self.room(own) for own in owns}
        for group in optimizer.param_groups:
            for own in group["params"]:
                state = optimizer.state.pop(own, {})  # some optimizers create it before their first step
                if state:
                    optimizer.state[self.twins[own]] = {k: v.cpu() if isinstance(v, torch.Tensor) else v for k, v in state.items()}
            group["params"] = [self.twins[own] for own in group["params"]]
        self.steps, self.seconds = 0, [0.0, 0.0, 0.0]  # to the host, in the update, and back

    def room(self, own):
        return torch.empty(own.shape, dtype=own.dtype, pin_memory=self.on_gpu)

    @torch.no_grad()
    def step(self):
        """Updates parameters with gradients, as the optimizer would on the device."""
        begun = time.perf_counter()
        for own, twin in self.twins.items():
            twin.grad = None if own.grad is None else self.gradients[own].copy_(own.grad, non_blocking=True)
        if self.on_gpu:
            torch.cuda.current_stream().synchronize()
        there = time.perf_counter()
        self.optimizer.step()
        stepped = time.perf_counter()
        for own, twin in self.twins.items():
            own.detach().copy_(twin, non_blocking=True)  # later passes and copies follow it on their stream
        back = time.perf_counter()
        self.steps += 1
        self.seconds = [a + b for a, b in zip(self.seconds, (there - begun, stepped - there, back - stepped))]

    @torch.no_grad()
    def refresh(self):
        """Copies the values of the parameters again."""
        for own, twin in self.twins.items():
            twin.copy_(own)

    def figures(self):
        """Returns the bytes of state kept here, the bytes that a step moves each way, and the seconds of the copies
        there, the update, and the copies back."""
        state = [v for values in self.optimizer.state.values() for v in values.values() if isinstance(v, torch.Tensor)]
        kept, moved = sum(v.nbytes for v in state), sum(twin.nbytes for twin in self.twins.values())
        return [kept, moved, *(seconds / max(1, self.steps) for seconds in self.seconds)]
