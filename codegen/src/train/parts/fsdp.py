"""ZeRO 3 by torch's FSDP2: the replicas of a stage share out its parameters, too, and gather them for each pass."""

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from train_parts.sync import Sync, let_take


class FullySharded:
    """A rank's stages under FSDP2: each replica keeps, steps and saves its rows of every parameter.

    Whole stages are gathered, before each forward and each backward pass; FSDP2 sums gradients after each backward pass. The
    optimizer sees plain tensors, the rows that lie here. What is tied across stages stays whole on every replica: its sum goes
    over other ranks, too.
    """

    sums_tied = True

    def __init__(self, modules, group, passes, tied, device):
        mesh = DeviceMesh.from_group(group, device.type)
        self.size, self.rank = mesh.size(), mesh.get_local_rank()
        for module in modules:
            if any(parameter not in tied for parameter in module.parameters()):
                fully_shard(module, mesh=mesh, reshard_after_forward=True, ignored_params=tied)
                module.set_gradient_divide_factor(1.0)  # the loss has been divided already
                module.set_force_sum_reduction_for_comms(True)  # gloo knows no other
        self.whole = Sync(sorted(tied, key=lambda p: p.numel()), group, passes) if tied else None
        self.pieces = {}  # of a parameter: its rows here, flat, and where they begin
        for parameter in (p for module in modules for p in module.parameters() if p.requires_grad):
            if not isinstance(parameter, DTensor):
                self.pieces[parameter] = (parameter, 0)
            elif parameter.to_local().numel():
                rows = -(-parameter.shape[0] // self.size)
                begin = self.rank * rows * (parameter.numel() // parameter.shape[0])
                self.pieces[parameter] = (nn.Parameter(parameter.to_local().detach().view(-1)), begin)

    def take(self, optimizer):
        let_take(optimizer, self.pieces)

    def finish(self):
        if self.whole:
            self.whole.finish()
        for parameter, (piece, _) in self.pieces.items():
            if piece is not parameter:
                piece.grad = None if parameter.grad is None else parameter.grad.to_local().view(-1)
        for parameter in self.pieces:
            if isinstance(parameter, DTensor):
                parameter.grad = None

    def gather(self):
        """Does nothing: parameters are gathered when they are needed."""

    def take_tied(self):
        """Does nothing: what is tied is whole."""

    def gather_gradients(self):
        """Gives all parameters their summed gradients, to look at."""
        for parameter, (piece, _) in self.pieces.items():
            if isinstance(parameter, DTensor):
                local = torch.zeros_like(piece) if piece.grad is None else piece.grad
                local = local.view(parameter.to_local().shape)
                parameter.grad = DTensor.from_local(
                    local, parameter.device_mesh, parameter.placements, shape=parameter.shape, stride=parameter.stride()
                )

    def refresh(self):
        """Does nothing: the rows are the parameters' own memory."""


def whole_state(module):
    """Returns a module's state with whole tensors, on all replicas together."""
    return {name: whole(value) for name, value in module.state_dict().items()}


def whole(value):
    return value.full_tensor() if isinstance(value, DTensor) else value


@torch.no_grad()
def load_whole(module, state):
    """Loads whole tensors: each replica takes its rows."""
    own = module.state_dict()
    if set(own) != set(state):
        raise RuntimeError(f"other names: {sorted(set(own) ^ set(state))}")
    for name, value in own.items():
        if value.shape != state[name].shape:
            raise RuntimeError(f"`{name}` is {list(state[name].shape)}, not {list(value.shape)}")
        if isinstance(value, DTensor):
            rows = -(-value.shape[0] // value.device_mesh.size())
            first = value.device_mesh.get_local_rank() * rows
            value.to_local().copy_(state[name][first : first + rows])
        else:
            value.copy_(state[name])
