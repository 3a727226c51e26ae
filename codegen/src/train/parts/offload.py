"""Activations in host memory: tensors saved in a forward pass are moved there until its backward pass. Needs only
torch."""

import time
import weakref
from collections import deque
from contextlib import contextmanager

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

# naive: blocking copies through pageable memory; pinned: reused page-locked buffers; non-blocking: copies on streams of
# their own, prefetched before their use; both: page-locked buffers and streams.
MODES = ["none", "naive", "pinned", "non-blocking", "both"]
FLOOR = 64 << 10  # bytes; moving smaller tensors costs more than it frees
LEAVING = 2  # copies to the host in flight before the computing stream waits for the first
AHEAD = 2  # storages that are prefetched


class Offload:
    """Moves tensors that autograd saves to the host, as whole storages: all views of one are copied once, and restored
    as views.

    Weights, buffers and views of them stay, as do tensors on other devices, small ones, and special kinds. On a CPU the
    modes make ordinary copies, without streams and page locks.
    """

    def __init__(self, mode, device, floor=FLOOR):
        self.mode, self.device, self.floor = mode, torch.device(device), floor
        self.is_pooled, self.is_ahead = mode in ("pinned", "both"), mode in ("non-blocking", "both")
        self.on_gpu = self.device.type == "cuda"
        # To the host, and back: a link can do both at once.
        has_streams = self.on_gpu and self.is_ahead
        self.out, self.back = [torch.cuda.Stream(self.device) for _ in range(2)] if has_streams else (None, None)
        self.free = {}  # unused host buffers by size, each with the event after which it may be overwritten
        self.retired = deque()  # the same for buffers that are not reused
        self.leaving = deque()  # storages whose copies to the host may be in flight
        self.in_use, self.bytes_in_use, self.most_bytes, self.made = 0, 0, 0, 0
        self.moved, self.seconds, self.timed = [0, 0], [0.0, 0.0], [[], []]  # to the host, and back
        self.sharing = None  # the object that gathers parameters: gathered ones are not saved, but gathered again
        self.begin()

    def begin(self):
        """Starts a forward pass: its storages come back in the reverse order of their saving."""
        self.known, self.order = {}, []

    @contextmanager
    def saving(self, module):
        """Moves tensors saved inside, except the module's own."""
        if self.mode == "none":
            yield
            return
        own = set()

        def pack(tensor):
            if not own:  # looked up here: some modules gather their weights when they are called
                own.update(storages_of(module))
            if self.sharing is not None and (found := self.sharing.reference(tensor)) is not None:
                return found
            storage = tensor.untyped_storage() if is_plain(tensor) and tensor.device.type == self.device.type else None
            if storage is None or storage.nbytes() < max(self.floor, 1) or storage._cdata in own:
                return Kept(tensor)
            return Moved(self.memory_of(tensor, storage), tensor)

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed.tensor()):
            yield

    def on_host(self, stage, function, *values, **options):
        """Calls a part of a stage whose activations are to be moved."""
        with self.saving(stage):
            return function(*values, **options)

    def memory_of(self, tensor, storage):
        """Returns the host copy of a storage, made once per version of it.

        Parts of one storage may count their versions for themselves, as those that recurrent layers make by
        `unsafe_chunk` and write one after the other: a copy is only found by tensors that count with the one it was made for.
        """
        # The weak reference prevents that the address is given to another storage.
        found = self.known.setdefault((storage._cdata, tensor._version), [])
        for counter, _, made in found:
            if (memory := made()) is not None and counts_with(counter, tensor):
                return memory
        memory = Memory(self, tensor, storage, len(self.order))
        found.append((counter_of(tensor), StorageWeakRef(storage), weakref.ref(memory)))
        self.order.append(weakref.ref(memory))
        return memory

    def bring_ahead(self, order, place):
        """Prefetches the storages that were saved before the one at `place`."""
        count = 0
        for found in reversed(order[:place]):
            memory = found()
            if memory is not None:
                memory.bring()
                count += 1
            if count == AHEAD:
                break

    # -- host buffers

    def take(self, size):
        """Returns a buffer, and the event after which it may be overwritten."""
        self.in_use, self.bytes_in_use = self.in_use + 1, self.bytes_in_use + size
        self.most_bytes = max(self.most_bytes, self.bytes_in_use)
        if self.free.get(size):
            return self.free[size].pop()
        self.made += 1
        return torch.empty(size, dtype=torch.uint8, pin_memory=self.is_pooled and self.on_gpu), None

    def give(self, buffer, event):
        self.in_use, self.bytes_in_use = self.in_use - 1, self.bytes_in_use - buffer.numel()
        if self.is_pooled:
            self.free.setdefault(buffer.numel(), []).append((buffer, event))
        elif event is not None:
            self.retired.append((buffer, event))
            while self.retired and self.retired[0][1].query():
                self.retired.popleft()

    # -- copies

    def copy(self, way, target, source, stream, after):
        """Copies on a stream once `after` has happened; returns the event at its end, or blocks without a stream."""
        self.moved[way] += target.numel()
        if not self.on_gpu:
            begun = time.perf_counter()
            target.copy_(source)
            self.seconds[way] += time.perf_counter() - begun
            return None
        computing = torch.cuda.current_stream(self.device)
        if stream is not None:
            stream.wait_stream(computing)  # the source is computed, and the target is unused
            if after is not None:
                stream.wait_event(after)
        used = stream or computing
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(used):
            begun.record(used)
            target.copy_(source, non_blocking=stream is not None)
            ended.record(used)
        self.timed[way].append((begun, ended))
        return ended if stream is not None else None

    def let_go(self):
        """Frees the device memory of finished copies: later work on the computing stream waits for the oldest of them.

        The allocator then reuses the memory for that later work, in stream order. With `record_stream` it would do so
        only when the host finds the copy finished, long after it has requested the next memory.
        """
        while len(self.leaving) > LEAVING:
            memory = self.leaving.popleft()()
            if memory is not None:
                memory.leave()

    # -- figures

    def figures(self):
        """Returns the traffic since the last call, and the bytes that the host holds."""
        for way, timed in enumerate(self.timed):
            while timed and timed[0][1].query():
                begun, ended = timed.pop(0)
                self.seconds[way] += begun.elapsed_time(ended) / 1e3
        found = {"to_host": self.moved[0], "to_device": self.moved[1], "seconds_to_host": self.seconds[0]}
        found |= {"seconds_to_device": self.seconds[1], "host_bytes": self.most_bytes, "buffers": self.made, "in_use": self.in_use}
        self.moved, self.seconds = [0, 0], [0.0, 0.0]
        return found


class Memory:
    """A saved storage, in a host buffer until its last tensor has been used."""

    def __init__(self, offload, tensor, storage, place):
        self.offload, self.size, self.order, self.place = offload, storage.nbytes(), offload.order, place
        self.brought, self.came, self.has_waited = None, None, False
        self.source, self.version = None, tensor._version
        self.buffer, after = offload.take(self.size)
        flat = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
        self.sent = offload.copy(0, self.buffer, flat, offload.out, after)
        if self.sent is not None:  # the storage lives until the copy is finished; until then it need not come back
            self.source = tensor.detach()
            offload.leaving.append(weakref.ref(self))
            offload.let_go()

    def leave(self):
        """Frees the storage, which later work of the computing stream may then overwrite."""
        if self.source is not None:
            torch.cuda.current_stream(self.offload.device).wait_event(self.sent)
            compare_versions(self.source, self.version)
            self.source = None

    def bring(self):
        """Starts to bring the storage back, unless that has started."""
        if self.source is None and self.brought is None:
            self.brought = torch.empty(self.size, dtype=torch.uint8, device=self.offload.device)
            self.came = self.offload.copy(1, self.brought, self.buffer, self.offload.back, self.sent)

    def storage(self):
        """Returns the storage, for use on the computing stream."""
        if self.source is not None:
            compare_versions(self.source, self.version)
            return self.source.untyped_storage()
        self.bring()
        if self.offload.is_ahead:
            self.offload.bring_ahead(self.order, self.place)
        self.wait()
        return self.brought.untyped_storage()

    def wait(self):
        if self.came is not None and not self.has_waited:
            torch.cuda.current_stream(self.offload.device).wait_event(self.came)
            self.has_waited = True

    def __del__(self):
        if hasattr(self, "sent"):  # the copy of an unused storage may still be in flight
            if self.source is not None:
                torch.cuda.current_stream(self.offload.device).wait_event(self.sent)
            self.wait()
            self.offload.give(self.buffer, self.came or self.sent)


class Moved:
    """A saved tensor in a moved storage."""

    def __init__(self, memory, tensor):
        self.memory, self.dtype = memory, tensor.dtype
        self.how = tensor.storage_offset(), tensor.size(), tensor.stride()

    def tensor(self):
        storage = self.memory.storage()
        return torch.empty(0, dtype=self.dtype, device=storage.device).set_(storage, *self.how)


class Kept:
    """A saved tensor that stays. Hooks disable autograd's version check, so it is done here."""

    def __init__(self, tensor):
        self.alias, self.version = tensor.detach(), tensor._version  # the tensor itself would keep its own graph alive

    def tensor(self):
        compare_versions(self.alias, self.version)
        return self.alias


def compare_versions(tensor, version):
    if tensor._version != version:
        sizes = list(tensor.shape)
        raise RuntimeError(f"a tensor of sizes {sizes} was changed in place after it was saved for the backward pass")


def counter_of(tensor):
    """Returns a tensor without memory that has the version counter of another one."""
    empty = tensor.detach()
    empty.data = tensor.new_empty(0)
    return empty


def counts_with(counter, tensor):
    """Tells whether two tensors have one version counter: whether a number that is set at one is seen at the other."""
    version = tensor._version
    try:
        torch._C._autograd._unsafe_set_version_counter((tensor,), (version + 1,))
        return counter._version == version + 1
    finally:
        torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


def is_plain(tensor):
    """Tells whether a tensor consists only of its storage, sizes and strides."""
    is_known = type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout == torch.strided and not tensor.is_nested
    return is_known and not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)


def storages_of(module):
    """Returns the addresses of a module's own storages."""
    own = [*module.parameters(), *module.buffers()]
    return {tensor.untyped_storage()._cdata for tensor in own if is_plain(tensor)}
