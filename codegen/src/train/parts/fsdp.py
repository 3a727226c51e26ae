"""ZeRO 3 by block, as in FSDP: replicas also shard parameters, and gather those of a block when a pass reaches it.

torch's `fully_shard` gathers when a module's `forward` is called; in a stage only repeated blocks have one. So a block
is gathered when one of its parameters is read: in a forward pass by name, in a backward pass through the tensors that
autograd saved.
"""

from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from train_parts.offload import is_plain
from train_parts.stragglers import BUSY
from train_parts.sync import Sharded


class FullySharded(Sharded):
    """A rank's stages whose parameters are sharded: each replica keeps, steps and saves an equal slice of every block.

    At most two blocks are gathered: the one that a pass is at, and, from the second pass on, the one that followed it
    the last time, which is prefetched. A block's gradients are summed by reduce-scatter after every backward pass, as
    under ZeRO 2.

    A module's own parameters only have sizes and types, and hold gradients; a pass gets other tensors, views of the
    gathered memory. A reference to one keeps that memory alive, so freed memory is never read. In the place of a
    parameter, autograd saves a reference that gathers the block again.
    """

    aligned = 64  # kernels may sum unaligned data in another order

    def __init__(self, stages, groups, passes, tied, device, offload):
        self.block_of = {}  # by parameter
        for number, (module, blocks) in enumerate(stages):
            paths = paths_of(blocks) or finer({name: p.numel() for name, p in module.named_parameters()})
            for name, parameter in module.named_parameters():
                self.block_of.setdefault(parameter, (number, block_of(name, paths)))
        super().__init__([p for p in self.block_of if p.requires_grad], groups, passes, tied, True)
        frozen = self.cut([p for p in self.block_of if not p.requires_grad])
        self.unit_of, self.units, self.by_storage = {}, {}, {}
        self.now, self.last, self.pass_of, self.after = None, None, -1, {}
        self.together, self.most = [], 0  # gathered memory, and its peak in bytes
        for bucket in self.buckets + self.tied + frozen:
            unit = Unit(self, bucket, device)
            self.units.setdefault(self.block_of[bucket[0]], []).append(unit)
            self.unit_of.update(dict.fromkeys(bucket, unit))
        for module, _ in stages:
            for holder in module.modules():
                holder.__dict__["_parameters"] = Gathering(holder._parameters, self)
        offload.sharing = self

    def cut(self, parameters):
        """Cuts parameters by block and type."""
        groups = {}
        for parameter in parameters:
            groups.setdefault((self.block_of[parameter], parameter.dtype), []).append(parameter)
        return list(groups.values())

    # -- passes

    @contextmanager
    def passing(self):
        """Makes a forward pass save references instead of parameters."""
        self.last = None
        with torch.autograd.graph.saved_tensors_hooks(lambda t: self.reference(t) or t, lambda kept: kept.tensor() if type(kept) is Reference else kept):
            yield

    def asked(self, parameter):
        """Returns the tensor for a parameter in a pass."""
        unit = self.bring(self.unit_of[parameter])
        if not (torch.is_grad_enabled() and parameter.requires_grad):
            return unit.value(parameter)
        value = Use.apply(parameter, unit)
        value.parameter = parameter
        return value

    def reference(self, tensor):
        """Returns a reference to a part of the gathered memory; None for other tensors."""
        unit = self.by_storage.get(tensor.untyped_storage()._cdata) if is_plain(tensor) else None
        return Reference(unit, tensor) if unit is not None and tensor.dtype == unit.own.dtype else None

    @torch.no_grad()
    def bring(self, unit):
        """Gathers a unit's block, and starts gathering the one that follows it."""
        block = self.block_of[unit.bucket[0]]
        if block != self.now:
            pass_of = torch._C._current_graph_task_id()  # negative in a forward pass
            if pass_of != self.pass_of:
                self.pass_of, self.last = pass_of, None
            if self.last is not None:
                self.after[pass_of >= 0, self.last] = block
            ahead = self.after.get((pass_of >= 0, block))
            self.let_go(block, ahead)
            for known in self.units[block] + self.units.get(ahead, []):
                known.start()
            self.now = self.last = block
        unit.wait()
        return unit

    def let_go(self, *kept):
        self.count()
        for block, units in self.units.items():
            for unit in units if block not in kept else ():
                unit.free()
        self.now = None

    def count(self):
        """Counts the memory of gathered parameters, whoever holds it: a gloo thread may hold it a little longer than
        the message takes."""
        self.together = [(weak, size) for weak, size in self.together if not weak.expired()]
        self.most = max(self.most, sum(size for _, size in self.together))

    def figures(self):
        """Returns the peak bytes of gathered parameters, twice the largest block, and the total."""
        self.count()
        blocks = [sum(self.size * unit.own.nbytes for unit in units) for units in self.units.values()]
        return self.most, min(2 * max(blocks, default=0), sum(blocks)), sum(blocks)

    # -- between steps

    def gather(self, *how):
        """Gathers gradients for inspection; parameters are gathered on demand."""
        if how:
            super().gather(*how)
        else:
            self.let_go()

    def refresh(self):
        """Drops gathered memory that no longer has the parameters' values."""
        self.let_go()

    def slice_of(self, parameter):
        """Returns the start of this replica's slice of a parameter, and the slice; None if it has none."""
        unit = self.unit_of[parameter]
        found = [(begin, unit.own[place : place + end - begin]) for p, begin, end, place in self.places(unit.bucket) if p is parameter]
        return found[0] if found else None


class Unit:
    """The parameters of a block that have one type, as one tensor: this replica's slice of it, and all of it while
    gathered."""

    def __init__(self, sharing, bucket, device):
        self.sharing, self.bucket, self.flat, self.work = sharing, bucket, None, None
        self.own = torch.zeros(sharing.share(bucket), dtype=bucket[0].dtype, device=device)
        for parameter, begin, end, place in sharing.places(bucket):
            part = self.own[place : place + end - begin]
            part.copy_(parameter.detach().reshape(-1)[begin:end])
            if parameter in sharing.pieces:
                sharing.pieces[parameter] = (nn.Parameter(part), begin, place)
        self.starts, at = {}, 0
        for parameter in bucket:
            self.starts[parameter], at = at, at + sharing.room(parameter)
        for parameter in bucket:  # a computation with it by mistake gives NaN
            empty = self.own.new_full((), float("nan")) if self.own.is_floating_point() else self.own.new_zeros(())
            parameter.data = empty.expand(parameter.shape)

    def start(self):
        if self.flat is None:
            self.flat = self.own.new_empty(self.sharing.size * len(self.own))
            self.sharing.by_storage[self.flat.untyped_storage()._cdata] = self
            self.sharing.together.append((StorageWeakRef(self.flat.untyped_storage()), self.flat.nbytes))
            if len(self.own):  # as bytes, which all backends support
                flat, own = self.flat.view(torch.uint8), self.own.view(torch.uint8)
                self.work = dist.all_gather_into_tensor(flat, own, group=self.sharing.group, async_op=True)

    def wait(self):
        if self.work is not None:
            with BUSY.waiting():
                self.work.wait()
            self.work = None

    def value(self, parameter):
        start = self.starts[parameter]
        return self.flat[start : start + parameter.numel()].view(parameter.shape).detach()

    def free(self):
        if self.flat is not None:
            self.wait()
            del self.sharing.by_storage[self.flat.untyped_storage()._cdata]
            self.flat = None


class Use(torch.autograd.Function):
    """A gathered parameter in a pass: its gradient is the parameter's."""

    @staticmethod
    def forward(ctx, parameter, unit):
        return unit.value(parameter)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Reference:
    """A saved gathered parameter: its position."""

    def __init__(self, unit, tensor):
        self.unit, self.how = unit, (tensor.size(), tensor.stride(), tensor.storage_offset())

    def tensor(self):
        unit = self.unit.sharing.bring(self.unit)
        return unit.flat.as_strided(*self.how)


class Gathering(dict):
    """The parameters of a module: reading one in a pass returns the gathered tensor."""

    def __init__(self, own, sharing):
        super().__init__(own)
        self.sharing = sharing

    def __getitem__(self, name):
        return self.sharing.asked(super().__getitem__(name))


def paths_of(blocks):
    """Returns the paths of modules that are blocks, or that contain operators of blocks."""
    return {block.split(" (call ")[0].partition("/")[0] for block in blocks}


def block_of(name, paths):
    """Returns the innermost of the paths that contain a parameter; the model itself if none does."""
    path = name.rpartition(".")[0]
    while path and path not in paths:
        path = path.rpartition(".")[0]
    return path


def finer(sizes):
    """Returns paths by which to cut a stage without a plan: modules are opened while they have more than a quarter
    of it."""

    def opened(path):
        inside = {name: size for name, size in sizes.items() if name.startswith(path)}
        children = {path + name[len(path) :].partition(".")[0] + "." for name in inside if "." in name[len(path) :]}
        if not children or (path and 4 * sum(inside.values()) <= sum(sizes.values())):
            return {path[:-1]}
        return {path[:-1]}.union(*map(opened, children))

    return opened("")
