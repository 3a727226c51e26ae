"""Buffers that forward passes write and that backward passes may read: each micro-batch has its own.

A pipeline runs forward passes of later micro-batches before the backward pass of one, and what that needs of a buffer must still
be there; where a pass is computed again, it begins with what it began with. Statistics of batch norms are left out: no gradient
needs them, and there are many.
"""

from contextlib import contextmanager

from torch.utils._python_dispatch import TorchDispatchMode

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class Writes(TorchDispatchMode):
    """Notes what operators say that they write. Not all of them count a version: observers of quantization-aware training do not."""

    def __init__(self):
        super().__init__()
        self.noted = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        for place, argument in enumerate(function._schema.arguments):
            if argument.is_write:
                self.noted.add(id(args[place] if place < len(args) else kwargs.get(argument.name)))
        return function(*args, **kwargs)


class Written:
    """The buffers of a module that its forward pass writes, by their places (modules and names); known after the first pass."""

    def __init__(self, module):
        self.module, self.groups = module, None
        self.writes = Writes()

    def begin(self, renews):
        """Gives a pass copies to write to, if it `renews`; returns what it begins with."""
        before = []
        for places in places_of(self.module) if self.groups is None else self.groups:
            own = getattr(*places[0])
            copy = own.clone()
            if renews:
                put(places, copy)
            before.append((places, own if renews else copy, own, copy if renews else own))
        self.versions = [buffer._version for *_, buffer in before]
        if self.groups is None and before:
            self.writes.__enter__()
        return before

    def end(self, before):
        if self.groups is None:
            if before:
                self.writes.__exit__(None, None, None)
            is_noted = lambda buffer: id(buffer) in self.writes.noted  # noqa: E731
            changed = [one[-1]._version != version or is_noted(one[-1]) for one, version in zip(before, self.versions)]
            for (places, _, own, _), is_changed in zip(before, changed):
                if not is_changed:
                    put(places, own)
            before[:] = [one for one, is_changed in zip(before, changed) if is_changed]
            self.groups = [places for places, *_ in before]


def places_of(module):
    found = {}
    for holder in module.modules():
        for name, buffer in holder.named_buffers(recurse=False, remove_duplicate=False):
            if name not in STATISTICS:
                found.setdefault(id(buffer), (buffer, []))[1].append((holder, name))
    return [places for _, places in found.values()]


def put(places, buffer):
    for holder, name in places:
        setattr(holder, name, buffer)


@contextmanager
def again(before):
    """A pass that is computed again begins with what it began with, and leaves the buffers as they are."""
    now = [(places, getattr(*places[0])) for places, *_ in before]
    for places, buffer, *_ in before:
        put(places, buffer.clone())
    try:
        yield
    finally:
        for places, buffer in now:
            put(places, buffer)
