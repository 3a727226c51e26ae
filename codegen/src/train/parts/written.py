"""Buffers that forward passes write and that backward passes may read: each micro-batch has its own.

A pipeline runs forward passes of later micro-batches before the backward pass of one, and what that needs of a buffer must still
be there; where a pass is computed again, it begins with what it began with. Statistics of batch norms are left out: no gradient
needs them, and there are many.
"""

from contextlib import contextmanager

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class Written:
    """The buffers of a module that its forward pass writes, by their places (modules and names); known after the first pass."""

    def __init__(self, module):
        self.module, self.groups = module, None

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
        return before

    def end(self, before):
        if self.groups is None:
            changed = [one[-1]._version != version for one, version in zip(before, self.versions)]
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
