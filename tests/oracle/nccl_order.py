"""Whether ranks that gloo served would wait for each other for ever under NCCL, told from the calls that they made.

gloo copies a message and goes on. NCCL does not: each communicator has a stream of its own on each device, on which calls run in
the order in which they were made, and a call there ends when all whom it concerns have begun theirs. It begins when what the
device computed before it has, so when the calls that were waited for have ended. A first message between two ranks of a
communicator, and its first collective, also keep the program until the others make theirs. `device_id` of train.py makes messages
outside of a batch share that one stream, too ("in eager initialization mode, unbatched P2P ops are treated as independent
collective ops", says torch).

`Calls` notes a rank's calls as they are made; `problem` puts those of all ranks together and follows who waits for whom: where
that has a circle, NCCL hangs, on any machine, whatever the sizes. Reading a number from a tensor counts as waiting for the
device, also for tensors that would be on the host, and all threads of a rank count as one stream of computation: rather one
alarm too many.
"""

import collections
import functools
import inspect
import json
import sys
import threading
from pathlib import Path

COLLECTIVES = (
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "barrier",
    "gather", "scatter", "reduce_scatter", "all_to_all",
)
READS = ("item", "tolist", "__float__", "__int__", "__bool__", "cpu", "numpy")
# Those of ProcessGroupNCCL. Complex numbers go as pairs of real ones, which torch's functions do, but for WITHOUT_PAIRS.
WITHOUT_PAIRS = ("reduce", "reduce_scatter_tensor", "reduce_scatter", "gather")
TYPES = {"int8", "uint8", "float32", "float64", "int32", "int64", "float16", "bool", "bfloat16", "float8_e4m3fn", "float8_e5m2"}


class Calls:
    """A rank's calls in their order: `call` with communicator, kind, and peers; `wait` for one of them; `read` of a number."""

    def __init__(self):
        import torch
        import torch.distributed as dist
        from torch.distributed import distributed_c10d as c10d

        self.events, self.inside, self.on_host, self.c10d = [], threading.local(), set(), c10d
        self.lock = threading.Lock()
        new_group = c10d.new_group

        def noted_group(*given, **named):
            group = new_group(*given, **named)
            if named.get("backend") and group is not c10d.GroupMember.NON_GROUP_MEMBER:
                self.on_host.add(group.group_name)
            return group

        made = {"new_group": noted_group, "batch_isend_irecv": self.batch(c10d.batch_isend_irecv)}
        made |= {name: self.collective(name, getattr(c10d, name)) for name in COLLECTIVES}
        made |= {name: self.message(name, getattr(c10d, name)) for name in ("isend", "irecv", "send", "recv")}
        for name, function in made.items():
            setattr(c10d, name, function)
            setattr(dist, name, function)
        for name in READS:
            setattr(torch.Tensor, name, self.read(getattr(torch.Tensor, name)))

    def note(self, *event):
        with self.lock:
            self.events.append((event[0], threading.get_ident(), *event[1:]))
            return len(self.events) - 1

    def call(self, group, kind, parts):
        """Notes a call with its messages or tensors; returns its number."""
        group = group if group is not None else self.c10d._get_default_group()
        at, frame = "", sys._getframe(2)
        while frame:
            if "train_parts" in frame.f_code.co_filename or "/stages/" in frame.f_code.co_filename or frame.f_code.co_filename.endswith("train.py"):
                at = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                break
            frame = frame.f_back
        ranks = self.c10d.get_process_group_ranks(group)
        return self.note("host" if group.group_name in self.on_host else "call", group.group_name, ranks, kind, parts, at)

    def of(self, tensor):
        """Elements, type, and whether no memory lies between the elements."""
        import torch

        dense = tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))
        return [tensor.numel(), str(tensor.dtype).removeprefix("torch."), dense]

    def within(self, function, *given, **named):
        """Calls what makes calls of its own, which are not noted."""
        self.inside.depth = self.depth() + 1
        try:
            return function(*given, **named)
        finally:
            self.inside.depth -= 1

    def depth(self):
        return getattr(self.inside, "depth", 0)

    def collective(self, name, function):
        signature = inspect.signature(function)

        @functools.wraps(function)
        def noted(*given, **named):
            if self.depth():
                return function(*given, **named)
            about = signature.bind(*given, **named).arguments
            group = about.get("group")
            if group is self.c10d.GroupMember.NON_GROUP_MEMBER:
                return function(*given, **named)
            tensors = [value for value in about.values() if hasattr(value, "numel")]
            number = self.call(group, name, [self.of(tensor) for tensor in tensors])
            work = self.within(function, *given, **named)
            if work is None:
                self.note("wait", number)
                if name == "barrier":
                    self.note("read")
            return self.work(work, number)

        return noted

    def message(self, name, function):
        signature = inspect.signature(function)

        @functools.wraps(function)
        def noted(tensor, *given, **named):
            if self.depth():
                return function(tensor, *given, **named)
            about = signature.bind(tensor, *given, **named).arguments
            group = about.get("group")
            peer = self.peer(group, about.get("dst", about.get("src")), about.get("group_dst", about.get("group_src")))
            number = self.call(group, "messages", [["send" if "send" in name else "recv", peer, *self.of(tensor)]])
            work = self.within(function, tensor, *given, **named)
            if name in ("send", "recv"):
                self.note("wait", number)
                return work
            return self.work(work, number)

        return noted

    def peer(self, group, rank, in_group):
        """Returns the rank that a message goes to or comes from; torch's functions take it, or its number in the group."""
        if rank is not None:
            return rank
        return self.c10d.get_process_group_ranks(group if group is not None else self.c10d._get_default_group())[in_group]

    def batch(self, function):
        @functools.wraps(function)
        def noted(operations):
            if self.depth() or not operations:
                return function(operations)
            parts = [["send" if "send" in each.op.__name__ else "recv", self.peer(each.group, each.peer, None), *self.of(each.tensor)] for each in operations]
            number = self.call(operations[0].group, "messages", parts)
            return [self.work(work, number) for work in self.within(function, operations)]

        return noted

    def work(self, work, number):
        return work and Work(self, work, number)

    def read(self, function):
        @functools.wraps(function)
        def noted(tensor, *given, **named):
            if not self.depth() and (not self.events or self.events[-1][:2] != ("read", threading.get_ident())):
                self.note("read")
            return function(tensor, *given, **named)

        return noted

    def write(self, path):
        Path(path).write_text(json.dumps(self.events))


class Work:
    def __init__(self, calls, work, number):
        self.calls, self.inner, self.number = calls, work, number

    def wait(self, *given):
        self.calls.note("wait", self.number)
        return self.inner.wait(*given)

    def __getattr__(self, name):
        return getattr(self.inner, name)


def problem(ranks):
    """Returns what NCCL would not do, in words, or nothing; `ranks` are the events of each."""
    calls = {(rank, at): event for rank, events in enumerate(ranks) for at, event in enumerate(events) if event[0] in ("call", "host")}
    for (rank, _), (kind, _, _, _, name, parts, at) in calls.items():
        for *_, numel, dtype, dense in parts if kind == "call" else ():
            if dtype and dtype not in TYPES and not (dtype.startswith("complex") and name not in WITHOUT_PAIRS):
                return f"rank {rank}, {at}: NCCL sends no {dtype}"
            if numel and not dense:
                return f"rank {rank}, {at}: {name} of a tensor with gaps"
    partners, wrong = matched(calls)
    return wrong or circle(waits(ranks, calls, partners), calls)


def matched(calls):
    """Returns the calls of others that end each call, those that a first call between them also begins with, and what has no partner."""
    collectives, messages, partners = collections.defaultdict(list), collections.defaultdict(lambda: ([], [])), collections.defaultdict(list)
    counts = collections.Counter()
    for (rank, at), (_, _, name, members, kind, parts, place) in sorted(calls.items()):
        if kind == "messages":
            for way, peer, numel, dtype, _ in parts:
                pair = (rank, peer) if way == "send" else (peer, rank)
                messages[name, pair][way == "recv"].append(((rank, at), numel, dtype))
        else:
            number = counts[name, rank] = counts[name, rank] + 1
            collectives[name, number].append(((rank, at), len(members), kind, [part[:2] for part in parts], place))
    for (name, number), made in collectives.items():
        (_, size, kind, _, place), is_first = made[0], number == 1
        if len(made) != size or any(each[2] != kind for each in made) or (kind in ("all_reduce", "broadcast") and any(each[3] != made[0][3] for each in made)):
            return partners, f"group {name}: call {number} is {', '.join(f'rank {one[0]}: {what} {parts} ({place})' for one, _, what, parts, place in made)} of {size} ranks"
        for one, *_ in made:
            partners[one] += [(other, is_first) for other, *_ in made if other != one]
    for (name, (source, target)), (sent, received) in messages.items():
        if len(sent) != len(received):
            return partners, f"group {name}: rank {source} sends {len(sent)} messages, rank {target} takes {len(received)}"
        for number, ((one, *about), (other, *also)) in enumerate(zip(sent, received)):
            if about != also:
                return partners, f"group {name}: message {number} of {about} from rank {source} is taken as {also} by rank {target}"
            partners[one].append((other, number == 0))
            partners[other].append((one, number == 0))
    return partners, None


def waits(ranks, calls, partners):
    """Returns for each moment those that come before it. Moments of a call are that the program makes it, that it goes on, that
    the call begins on its stream, and that it ends; `computed` is what the device has to do before what comes next."""
    before = collections.defaultdict(list)
    for rank, events in enumerate(ranks):
        last, streams = {}, {}
        for at, (kind, thread, *about) in enumerate(events):
            made, gone_on, computed = ("made", rank, at), ("gone on", rank, at), ("computed", rank, at)
            before[made] += [last[thread]] if thread in last else []
            before[gone_on].append(made)
            before[computed] += [("computed", rank, at - 1)] if at else []
            last[thread] = gone_on
            if kind == "read":
                before[gone_on].append(computed)
            elif kind == "wait":
                before[gone_on if events[about[0]][0] == "host" else computed].append(("ended", rank, about[0]))
            else:
                begun, ended = ("begun", rank, at), ("ended", rank, at)
                before[begun].append(made)
                before[ended] += [begun, *(("begun", *other) for other, _ in partners[rank, at])]
                if kind == "call":
                    before[begun] += [computed, *([streams[about[0]]] if about[0] in streams else [])]
                    before[gone_on] += [("made", *other) for other, is_first in partners[rank, at] if is_first]
                    streams[about[0]] = ended
    return before


def circle(before, calls):
    """Returns a circle of moments, in words."""
    state = {}
    for first in list(before):
        if first in state:
            continue
        stack = [(first, iter(before[first]))]
        state[first] = "open"
        while stack:
            moment, others = stack[-1]
            found = next(others, None)
            if found is None:
                state[moment] = "done"
                stack.pop()
            elif state.get(found) == "open":
                open_ones = [each for each, _ in stack]
                return told(open_ones[open_ones.index(found) :], calls)
            elif found not in state:
                state[found] = "open"
                stack.append((found, iter(before.get(found, ()))))
    return None


def told(moments, calls):
    lines = []
    for what, rank, at in moments:
        if (rank, at) in calls and what in ("begun", "made"):
            _, _, name, members, kind, parts, place = calls[rank, at]
            how = ", ".join(f"{way} {'to' if way == 'send' else 'from'} {peer}" for way, peer, *_ in parts) if kind == "messages" else kind
            lines.append(f"  rank {rank}, call {at} ({how} in group {name} of {members}, {place}) is {what} after")
    return "NCCL would wait for ever:\n" + "\n".join(lines)
