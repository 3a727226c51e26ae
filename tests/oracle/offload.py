"""`train.py --offload`: activations that wait in host memory, in several gloo processes and on a GPU of pretence.

    python tests/oracle/offload.py COMMAND FOLDER [CASE …]

What is trained is bit-equal to what is trained without. The GPU of pretence computes at once, and copies on other streams as
late as the waits between streams allow: what reads too early reads NaN, what frees too early is seen. Prints a line for
each case and exits 1 when one fails.
"""

import contextlib
import re
import sys
import types
import warnings
from pathlib import Path

import torch
from torch.multiprocessing.reductions import StorageWeakRef

sys.path.insert(0, str(Path(__file__).resolve().parent))
import shard_training
import torchrun as processes
import trainer
from torchrun import Failed

warnings.filterwarnings("ignore")
PART = processes.ROOT / "codegen/src/train/parts/offload.py"
POOLED = ("pinned", "both")
ALL = ("--offload-floor", "1")  # the models here are small


def equal(expected, found, what):
    for name, value in expected.items():
        if not processes.is_equal(value, found[name]):
            raise Failed(f"{what}: `{name}` differs by {(value - found[name]).abs().max():.1e}")


def moves(lines, mode):
    """Looks at what each step has moved; returns the bytes of one."""
    told = [line["offload"] for line in lines]
    # On a GPU what is needed at once need not come back: it has not left yet.
    least = 0.8 if processes.DEVICE == "cuda" and mode in ("non-blocking", "both") else 1.0
    comes_back = lambda each: least * each["to_host"] <= each["to_device"] <= each["to_host"]  # noqa: E731
    if any(each["to_host"] != told[0]["to_host"] or not comes_back(each) for each in told) or not told[0]["to_host"]:
        raise Failed(f"not all that leaves comes back: {told}")
    if any(each["in_use"] for each in told):
        raise Failed(f"buffers are left: {told}")
    made = [each["buffers"] for each in told]
    if (made[0] == made[-1]) != (mode in POOLED):
        raise Failed(f"buffers that were made: {made}")
    return told[0]["to_host"]


def trained(cases, model, world, mode, *arguments, stages=2, form="python", old="", new="", **about):
    """Ten steps with and without: losses and parameters are equal, bit by bit."""
    run = trainer.Trained.__new__(trainer.Trained)
    run.cases, run.out = cases, cases.emit(model, "--stages", str(stages), "--targets", form)
    part = run.out / "train_parts/offload.py"
    text = part.read_text()
    if old:
        assert old in text
        part.write_text(text.replace(old, new))
    kind = "gpt" if model.startswith("gpt") else "picture"
    path = trainer.task(cases.place, kind, **about)
    common = ("--task", path, *arguments, "--form", form, "--allow-changes")
    try:
        without, _ = run.run(world, *common, "--save", "without")
        lines, text_of = run.run(world, *common, *ALL, "--offload", mode, "--save", "offloaded")
    finally:
        part.write_text(text)
    if not processes.is_equal([line["loss"] for line in without], [line["loss"] for line in lines]):
        raise Failed(f"losses differ: {[line['loss'] for line in without]} {[line['loss'] for line in lines]}")
    equal(run.merged("without"), run.merged("offloaded"), "parameters differ")
    count = moves(lines, mode)
    if f"offload ({mode}, whole stages) moved" not in text_of:
        raise Failed(text_of)
    return f"bit-equal, {count} bytes a step"


def sharded(cases):
    """Stages that are cut inside their operators."""
    out, found = shard_training.folder(cases, shard_training.Transformer()), []
    for mode in ("none", "both"):
        how = ("--task", "sgd.py", "--shards", "2", "--save", mode, "--offload", mode, *ALL)
        found.append((shard_training.run(out, 4, *how)[0], shard_training.merged(out, mode)))
    if [line["loss"] for line in found[0][0]] != [line["loss"] for line in found[1][0]]:
        raise Failed("losses differ")
    equal(found[0][1], found[1][1], "parameters differ")
    return f"bit-equal, {moves(found[1][0], 'both')} bytes a step"


def of_blocks(cases):
    """A plan's blocks are offloaded without a word, in the plan's mode; another mode, and none, can be asked for."""
    plain = processes.planned(cases, "gpt2_tiny", "torchgpipe", ("recompute", "transformer.h.0"))
    out = processes.planned(cases, "gpt2_tiny", "torchgpipe", ("recompute", "transformer.h.0"), ("offload", "transformer.h.1"), ("offload", "transformer.h.0"))
    run = trainer.Trained.__new__(trainer.Trained)
    run.cases, found = cases, {}
    for name, folder, arguments in (
        ("without", plain, ()),
        ("whole", plain, ("--offload", "both")),
        ("planned", out, ()),
        ("pinned", out, ("--offload", "pinned")),
        ("none", out, ("--offload", "none")),
    ):
        run.out = folder
        found[name] = run.run(2, "--task", trainer.task(cases.place, "gpt"), *ALL, *arguments)
    lines = {name: [line["loss"] for line in lines] for name, (lines, _) in found.items()}
    if any(each != lines["without"] for each in lines.values()):
        raise Failed(f"losses differ: {lines}")
    if "offload (both, the plan's blocks) moved" not in found["planned"][1] or "offload" in found["none"][1]:
        raise Failed(f"{found['planned'][1]}\n{found['none'][1]}")
    planned, pinned, whole = (moves(found[name][0], "both") for name in ("planned", "pinned", "whole"))
    if not planned == pinned < whole:
        raise Failed(f"bytes of blocks {planned}, {pinned}, of all {whole}")
    return f"{planned} bytes a step, {whole} of whole stages"


CLUSTER = """kind: cluster
version: 1
types:
  small: {memory: 160000, memory_bandwidth: 3.2e+11, host_bandwidth: 1.6e+10, peak: {float32: 8.1e+12}}
devices: [{type: small, count: 2}]
levels: [{name: pcie, bandwidth: 1.2e+10, latency: 8.0e-6}]
"""


def by_split(cases):
    """What `split --offload` plans for devices with too little memory is what its folder does."""
    cluster, out = cases.place / "small.yaml", cases.place / "split"
    cluster.write_text(CLUSTER)
    how = ("--micro-batches", "8", "--stages", "2", "--offload", "--no-recompute", "--tensor-parallel", "none")
    trainer.command(cases, "split", cases.models["gpt2_tiny"], "--cluster", cluster, *how, "-o", out)
    if "  offload:\n  - transformer.h.0" not in (out / "plan.yaml").read_text():
        raise Failed("the plan offloads nothing")
    run = trainer.Trained.__new__(trainer.Trained)
    run.cases, run.out = cases, out
    lines, text = run.run(2, *ALL)
    if not re.search(r"offload \((naive|pinned|non-blocking|both), the plan's blocks\) moved", text):
        raise Failed(text)
    return f"{moves(lines, 'both')} bytes a step"


def archive_blocks(cases):
    """Of an archive some blocks cannot be offloaded, which is said, unless nothing is to be."""
    plan = processes.planned(cases, "gpt2_tiny", "torchgpipe", ("offload", "transformer.h.1"))
    plan = plan / "plan.yaml"
    run = trainer.Trained.__new__(trainer.Trained)
    run.cases, run.out = cases, cases.emit("gpt2_tiny", str(plan), "--targets", "torchscript")
    _, text = run.run(2, fails=True)
    if "an archive cannot offload only some of its blocks; use --form python" not in text:
        raise Failed(text)
    run.run(2, "--offload", "none")
    return "refused, unless nothing is offloaded"


# -- one process -----------------------------------------------------------------------------------------------------


class Heads(torch.nn.Module):
    """Three views of one storage, a view of a weight, an operator in place, a result that two operators save."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.first, self.second = torch.nn.Linear(8, 24), torch.nn.Linear(8, 8)
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, x):
        q, k, v = self.first(x).split(8, dim=-1)
        x = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        x = torch.relu_(self.norm((x @ self.second.weight.t()[:, 2:]).repeat(1, 2)[:, :8]))
        return self.second(x.sigmoid().t().contiguous().t())


def steps(part, offload, model, count=3):
    """Trains with several passes under way; returns the gradients of all steps."""
    found = []
    for step in range(count):
        model.zero_grad()
        losses = []
        for number in range(3):
            generator = torch.Generator().manual_seed(10 * step + number)
            x = torch.randn(6, 8, generator=generator)
            offload.begin()
            with offload.saving(model):
                losses.append(model(x).square().mean())
        for loss in (losses[1], losses[0], losses[2]):
            loss.backward()
        del loss, losses
        found += [parameter.grad.clone() for parameter in model.parameters()]
    return found


def counted(cases):
    """Each storage travels once for each version of it, weights stay, and the pool ends to grow after the first step."""
    part = processes.module_of(PART, "offload_part")
    expected = steps(part, part.Offload("none", "cpu"), Heads())
    for mode in part.MODES[1:]:
        one, three = part.Offload(mode, "cpu", 1), part.Offload(mode, "cpu", 1)
        steps(part, one, Heads(), 1)
        first, found = one.figures(), steps(part, three, Heads())
        made = first["buffers"]
        if not all(torch.equal(a, b) for a, b in zip(expected, found)):
            raise Failed(f"{mode}: gradients differ")
        figures = three.figures()
        if figures["in_use"] or three.bytes_in_use:
            raise Failed(f"{mode}: {figures['in_use']} buffers are left")
        if figures["buffers"] != (made if mode in POOLED else 3 * made) or figures["to_host"] != 3 * first["to_host"]:
            raise Failed(f"{mode}: {figures} after three steps, {first} after one")
    seen, model = {}, Heads()
    own = {tensor.untyped_storage().data_ptr() for tensor in model.state_dict().values()}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr(), tensor._version] = (storage.nbytes(), tensor.detach())
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept = model(torch.randn(6, 8)).square().mean()
    size = 9 * sum(size for size, _ in seen.values())
    if figures["to_host"] != size or not kept.requires_grad:
        raise Failed(f"{figures['to_host']} bytes have left, {size} are saved")
    return f"{first['to_host']} bytes a step in {made} buffers"


class Recurrent(torch.nn.Module):
    """Gates of a cell are parts of one storage that count their versions apart, and are written one after the other."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.gated, self.long = torch.nn.GRU(8, 8, 2, bidirectional=True), torch.nn.LSTM(16, 8)

    def forward(self, x):
        return self.long(self.gated(x)[0])[0]


def recurrent(cases):
    """A part that is written after another one has left is not taken for gone."""
    part = processes.module_of(PART, "offload_part")
    expected = steps(part, part.Offload("none", "cpu"), Recurrent())
    for mode in part.MODES[1:]:
        found = steps(part, part.Offload(mode, "cpu", 1), Recurrent())
        if not all(torch.equal(a, b) for a, b in zip(expected, found)):
            raise Failed(f"{mode}: gradients differ")
    return f"{len(expected)} gradients"


def dropped(cases):
    """A graph that is never gone through backward gives its buffers back; what changes in place is refused as ever."""
    part = processes.module_of(PART, "offload_part")
    offload, model = part.Offload("both", "cpu", 1), Heads()
    with offload.saving(model):
        loss = model(torch.randn(6, 8)).sum()
    if not offload.in_use:
        raise Failed("nothing was saved")
    del loss
    if offload.in_use:
        raise Failed(f"{offload.in_use} buffers are left")
    with offload.saving(model):
        loss = model(torch.randn(6, 8)).sum()
    with torch.no_grad():
        model.second.weight += 1.0
    try:
        loss.backward()
    except RuntimeError as error:
        if "was changed in place after it was saved" not in str(error):
            raise
    else:
        raise Failed("a weight was changed in place, and nobody saw it")
    return "given back"


# -- a GPU of pretence ------------------------------------------------------------------------------------------------


class Pretence:
    """A GPU whose computing stream is this process; its other streams run when somebody waits for them, and no earlier."""

    def __init__(self):
        self.computing, self.faults, self.current = Stream(self), [], None
        self.current = self.computing
        self.plain_copy, self.plain_empty = torch.Tensor.copy_, torch.empty
        self.cuda = types.SimpleNamespace(
            Stream=lambda device: Stream(self), Event=lambda enable_timing: Event(),
            current_stream=lambda device: self.current, stream=self.within,
        )

    def __getattr__(self, name):  # stands for torch in the part
        return getattr(torch, name)

    def empty(self, *sizes, pin_memory=False, **how):
        made = self.plain_empty(*sizes, **how)
        return made.fill_(255) if made.dtype == torch.uint8 else made  # four of them are NaN

    @contextlib.contextmanager
    def within(self, stream):
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def copy(self, target, source, non_blocking=False):
        stream = self.current
        if stream is self.computing:
            return self.plain_copy(target, source)
        if not stream.is_behind_computing:
            self.faults.append("a copy does not wait for what computes")
        stream.is_behind_computing = False
        ends = [(StorageWeakRef(tensor.untyped_storage()), tensor.numel()) for tensor in (target, source)]
        stream.work.append(lambda: self.late(*ends))
        return target

    def late(self, *ends):
        if any(weak.expired() for weak, _ in ends):
            self.faults.append("memory was freed under a copy")
            return
        tensors = []
        for weak, count in ends:
            storage = torch.UntypedStorage._new_with_weak_ptr(weak.cdata)
            tensors.append(self.plain_empty(0, dtype=torch.uint8).set_(storage, 0, (count,), (1,)))
        self.plain_copy(*tensors)


class Stream:
    def __init__(self, gpu):
        self.gpu, self.work, self.done, self.is_behind_computing = gpu, [], 0, False

    def run(self, end):
        while self.done < end:
            self.done += 1
            self.work[self.done - 1]()

    def wait_stream(self, other):
        self.is_behind_computing = self.is_behind_computing or other is self.gpu.computing

    def wait_event(self, event):
        if self is self.gpu.computing:
            event.stream.run(event.end)
        else:
            self.work.append(lambda: event.stream.run(event.end))


class Event:
    def record(self, stream):
        self.stream, self.end = stream, len(stream.work)

    def query(self):
        return self.stream.done >= self.end

    def elapsed_time(self, other):
        return 1.0


def pretended(mode, change=None):
    """Trains on the GPU of pretence, with a change of the part; returns gradients and faults."""
    gpu, part = Pretence(), processes.module_of(PART, "offload_part")
    part.torch = gpu
    if change:
        change(part)
    offload = part.Offload(mode, "cpu", 1)
    offload.on_gpu = True
    offload.out, offload.back = (Stream(gpu), Stream(gpu)) if offload.is_ahead else (None, None)
    torch.Tensor.copy_ = lambda target, source, non_blocking=False: gpu.copy(target, source, non_blocking)
    try:
        gradients = steps(part, offload, Heads())
        with offload.saving(model := Heads()):  # one graph that is dropped
            loss = model(torch.randn(6, 8)).sum()
        del loss
    finally:
        torch.Tensor.copy_ = gpu.plain_copy
    for stream in (offload.out, offload.back) if offload.is_ahead else ():
        stream.run(len(stream.work))
    return gradients, gpu.faults, offload


def streams(cases):
    """Copies that run as late as they may give the same gradients; each wait that is left out is found."""
    part = processes.module_of(PART, "offload_part")
    expected, said = steps(part, part.Offload("none", "cpu"), Heads()), []
    for mode in part.MODES[1:]:
        gradients, faults, offload = pretended(mode)
        if faults or not all(torch.equal(a, b) for a, b in zip(expected, gradients)) or offload.in_use:
            raise Failed(f"{mode}: {faults[:3]}, {offload.in_use} buffers are left")
        said.append(offload.moved)
    if not said[1][0] == said[3][0] > said[3][1]:  # what has not yet left need not come back
        raise Failed(f"bytes out and back: {said}")

    def waits_nowhere(part):
        part.Memory.wait = lambda memory: None

    def frees_early(part):
        part.Memory.leave = lambda memory: setattr(memory, "source", None)

    def drops_early(part):
        part.Memory.__del__ = lambda memory: memory.offload.give(memory.buffer, None)

    def runs_ahead(part):
        plain = part.Offload.copy

        def copy(offload, way, target, source, stream, after):
            stream.wait_stream, waits = lambda _: None, stream.wait_stream
            try:
                return plain(offload, way, target, source, stream, after)
            finally:
                stream.wait_stream = waits

        part.Offload.copy = copy

    changes = (waits_nowhere, frees_early, drops_early, runs_ahead)
    for change in changes:
        gradients, faults, _ = pretended("both", change)
        if not faults and all(torch.equal(a, b) for a, b in zip(expected, gradients)):
            raise Failed(f"`{change.__name__}` was not found")
    return f"equal; {len(changes)} faults are found"


def cases():
    zero_bubble = ("--pipeline-ranks", "2", "--schedule", "InterleavedZeroBubble", "--micro-batches", "4")
    four, two = ("--micro-batches", "4"), ("--micro-batches", "2")
    offset = ("self.how = tensor.storage_offset()", "self.how = 0")
    return {
        "counted": counted,
        "recurrent": recurrent,
        "dropped": dropped,
        "streams": streams,
        "batch norm, naive": lambda c: trained(c, "resnet", 2, "naive", *four),
        "tied, pinned": lambda c: trained(c, "gpt2_tiny", 2, "pinned", *four),
        "archives, non-blocking": lambda c: trained(c, "resnet", 2, "non-blocking", *four, form="torchscript"),
        "split backward, both": lambda c: trained(c, "gpt2_tiny", 2, "both", *zero_bubble, stages=4),
        "replicas, zero1, both": lambda c: trained(c, "gpt2_tiny", 4, "both", "--replicas", "2", "--sharding", "zero1", *two),
        "zero3, both": lambda c: trained(c, "resnet_plain", 2, "both", "--replicas", "2", "--sharding", "zero3", *two, stages=1),
        "unequal replicas, both": lambda c: trained(c, "resnet_plain", 3, "both", "--replicas", "2,1", *two),
        "shards, both": sharded,
        "blocks of a plan": of_blocks,
        "a plan of split": by_split,
        "archives, some blocks": archive_blocks,
        "found: views without their offset": lambda c: trainer_finds(c, offset),
    }


def trainer_finds(cases, planted):
    try:
        said = trained(cases, "gpt2_tiny", 2, "both", "--micro-batches", "4", old=planted[0], new=planted[1])
    except Failed as error:
        if "differ" not in str(error).splitlines()[0]:
            raise
        return str(error).splitlines()[0][:80]
    raise Failed(f"nobody saw it: {said}")


if __name__ == "__main__":
    processes.main(cases(), ("archives, non-blocking", "unequal replicas, both", "replicas, zero1, both"))
