"""Sums of gradients over the replicas of a stage during the backward pass; ZeRO 1 and 2."""

import torch
import torch.distributed as dist
from torch import nn

from train_parts.deferred import DEFERRAL
from train_parts.stragglers import BUSY

BUCKET, FIRST_BUCKET = 25 << 20, 1 << 20  # bytes; the first one is small, so that the network starts early


def sum_gradients(tensors, group):
    """Sums the gradients of tensors over a group, a bucket at a time."""
    for bucket in cut([tensor for tensor in tensors if tensor.grad is not None]):
        gradients = [tensor.grad for tensor in bucket]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat, group=group)
        for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients])):
            gradient.copy_(part.view_as(gradient))


class Sync:
    """Sums the gradients of a stage's replicas during the backward pass.

    A bucket is sent when the last of its gradients is final: after as many passes as this rank has micro-batches. All
    replicas cut equally, and send in one order, so a bucket waits for those before it. Buckets of unused parameters are
    sent at the end.
    """

    sums_tied = True  # whether tied parameters are summed here, too

    def __init__(self, parameters, group, passes):
        self.group, self.passes = group, passes
        self.buckets = self.cut(list(reversed(parameters)))
        self.bucket_of = {}
        for number, bucket in enumerate(self.buckets):
            for parameter in bucket:
                self.bucket_of[parameter] = number
                parameter.register_post_accumulate_grad_hook(self.accumulated)
        DEFERRAL.arrived.append(self.arrived)
        self.begin()

    def cut(self, parameters):
        """Cuts parameters, the last of the stage first, into buckets."""
        return cut(parameters)

    def begin(self):
        self.seen = dict.fromkeys(self.bucket_of, 0)
        self.missing = [len(bucket) for bucket in self.buckets]
        self.sent = []

    def accumulated(self, parameter):
        if not DEFERRAL.holds(parameter):
            self.arrived(parameter)

    def arrived(self, parameter):
        """Counts a pass whose whole contribution to a parameter's gradient has been added."""
        if parameter not in self.seen:
            return
        self.seen[parameter] += 1
        if self.seen[parameter] == self.passes:
            self.missing[self.bucket_of[parameter]] -= 1
            while len(self.sent) < len(self.buckets) and not self.missing[len(self.sent)]:
                self.send()

    def send(self):
        gradients = gradients_of(self.buckets[len(self.sent)])
        # A large gradient is summed in place.
        is_alone = len(gradients) == 1 and gradients[0].is_contiguous()
        flat = gradients[0].view(-1) if is_alone else torch.cat([gradient.reshape(-1) for gradient in gradients])
        copied = [] if is_alone else gradients
        self.sent.append((dist.all_reduce(flat, group=self.group, async_op=True), flat, copied))

    def finish(self):
        while len(self.sent) < len(self.buckets):
            self.send()
        for work, flat, copied in self.sent:
            work.wait()
            parts = flat.split([gradient.numel() for gradient in copied]) if copied else ()
            for gradient, part in zip(copied, parts):
                gradient.copy_(part.view_as(gradient))
        self.begin()


class Hierarchical(Sync):
    """Sums over machines in two levels: reduce-scatter of a bucket inside each machine, all-reduce of slices across,
    and all-gather inside.

    Each rank sends only its slice of a bucket to other machines. `groups` are the replicas on this machine, and those
    on other machines with the same slice.
    """

    def __init__(self, parameters, groups, passes):
        self.inside, self.across = groups
        self.size, self.joined = dist.get_world_size(self.inside), 0
        super().__init__(parameters, None, passes)

    def send(self):
        gradients = gradients_of(self.buckets[len(self.sent)])
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        flat = torch.nn.functional.pad(flat, (0, -len(flat) % self.size))
        own = flat.new_empty(len(flat) // self.size)
        work = dist.reduce_scatter_tensor(real(own), real(flat), group=self.inside, async_op=True)
        while self.joined < len(self.sent):  # the previous bucket had the time of this one's gradients
            self.join()
        self.sent.append([work, own, flat, gradients])

    def join(self):
        message = self.sent[self.joined]
        with BUSY.waiting():
            message[0].wait()
        message[0] = dist.all_reduce(real(message[1]), group=self.across, async_op=True)
        self.joined += 1

    def finish(self):
        while len(self.sent) < len(self.buckets):
            self.send()
        while self.joined < len(self.sent):
            self.join()
        gathers = []
        for work, own, flat, _ in self.sent:
            work.wait()
            gathers.append(dist.all_gather_into_tensor(real(flat), real(own), group=self.inside, async_op=True))
        for work, (_, _, flat, gradients) in zip(gathers, self.sent):
            work.wait()
            sizes = [gradient.numel() for gradient in gradients]
            for gradient, part in zip(gradients, flat[: sum(sizes)].split(sizes)):
                gradient.copy_(part.view_as(gradient))
        self.joined = 0
        self.begin()


class Mirrored:
    """Sums the gradients of two copies of the model that run in opposite directions, over all ranks that hold a stage.

    A stage's gradients are one message, sent when the last pass of its copies here has ended, those of the last stage
    first: all ranks that hold a stage hold the same copies, and send in one order. Tied parameters of several stages
    are summed elsewhere (`Run.sum_tied`).
    """

    sums_tied = False

    def __init__(self, copies, groups):
        # By stage: the parameters of each copy here, in one order, and the ranks that hold it.
        self.copies, self.groups = copies, groups
        self.begin()

    def begin(self):
        self.order = sorted(self.copies, reverse=True)
        self.missing = {stage: len(copies) for stage, copies in self.copies.items()}
        self.sent = []

    def passed(self, stage):
        """Called when all passes of a copy here have ended."""
        self.missing[stage] -= 1
        while self.order and not self.missing[self.order[0]]:
            self.send(self.order.pop(0))

    def send(self, stage):
        copies = self.copies[stage]
        gradients = [gradients_of(copy) for copy in copies]
        sums = gradients[0] if len(copies) == 1 else [sum(each[1:], each[0]) for each in zip(*gradients)]
        for dtype in dict.fromkeys(gradient.dtype for gradient in sums):
            alike = [index for index, gradient in enumerate(sums) if gradient.dtype == dtype]
            flat = torch.cat([sums[index].reshape(-1) for index in alike])
            group = self.groups[stage]
            work = dist.all_reduce(flat, group=group, async_op=True) if group is not None else None
            self.sent.append((work, flat, [[each[index] for index in alike] for each in gradients]))

    def finish(self):
        while self.order:
            self.send(self.order.pop(0))
        for work, flat, gradients in self.sent:
            if work is not None:
                work.wait()
            for copied in gradients:
                for gradient, part in zip(copied, flat.split([gradient.numel() for gradient in copied])):
                    gradient.copy_(part.view_as(gradient))
        self.begin()


def cut(parameters):
    """Cuts parameters into buckets of one type each, each closed by the parameter that fills it."""
    buckets, limit = [], FIRST_BUCKET
    size = 0
    for parameter in parameters:
        if not buckets or size >= limit or buckets[-1][0].dtype != parameter.dtype:
            limit = BUCKET if buckets else FIRST_BUCKET
            buckets.append([])
            size = 0
        buckets[-1].append(parameter)
        size += parameter.numel() * parameter.element_size()
    return buckets


class Sharded(Sync):
    """ZeRO 1 and 2 ("ZeRO: Memory Optimizations", 2020): each replica keeps the optimizer state of an equal slice of
    every bucket.

    A bucket's gradients are summed by reduce-scatter, so that a replica has the sum of its slice; after the optimizer's
    step the slices are gathered. With `each_pass` (ZeRO 2) a bucket is sent after every pass, and gradients are kept as
    slices only. Slices are equivalent to whole parameters for optimizers that update each element independently. Tied
    parameters of several stages are summed elsewhere (`Run.sum_tied`) and sharded in buckets of their own.

    If replicas shard in groups (hybrid sharding), a group has all slices, and `across` are the ranks that have the same
    slice as this one: they sum it once per step, after it is summed inside their groups.
    """

    sums_tied = False
    aligned = 1  # bytes; alignment of each parameter in a bucket's message

    def __init__(self, parameters, groups, passes, tied, each_pass):
        group, self.across = groups
        self.size, self.rank = dist.get_world_size(group), dist.get_rank(group)
        # The number of groups, and this rank's group.
        self.copies, self.copy = (dist.get_world_size(self.across), dist.get_rank(self.across)) if self.across else (1, 0)
        self.each_pass, self.parameters = each_pass, parameters
        self.rounds, self.last_round, self.joined, self.joining = 0, passes - 1 if each_pass else 0, 0, []
        super().__init__([p for p in parameters if p not in tied], group, 1 if each_pass else passes)
        self.tied = self.cut([p for p in parameters if p in tied])
        self.pieces = {}  # by parameter: its piece that is updated here, with the piece's position in it and in the slice
        for bucket in self.buckets + self.tied:
            for parameter, begin, end, place in self.places(bucket):
                piece = nn.Parameter(self.values(parameter, begin, end))
                self.pieces[parameter] = (piece, begin, place)

    def values(self, parameter, begin, end):
        """Returns the memory in which a piece of a parameter is updated: its own."""
        return parameter.detach().reshape(-1)[begin:end]

    def room(self, parameter):
        """Returns the number of elements that a parameter takes in a message."""
        grain = max(1, self.aligned // parameter.element_size())
        return -(-parameter.numel() // grain) * grain

    def share(self, bucket):
        """Returns the number of elements that each replica updates; the last one may have fewer."""
        grain = max(1, self.aligned // bucket[0].element_size())
        return -(-sum(map(self.room, bucket)) // (self.size * grain)) * grain

    def places(self, bucket):
        """Yields the parameters of which this replica updates a piece: its begin and end in it, and its position in
        the slice."""
        share, at = self.share(bucket), 0
        first = self.rank * share
        for parameter in bucket:
            begin, end = max(at, first), min(at + parameter.numel(), first + share)
            if begin < end:
                yield parameter, begin - at, end - at, begin - first
            at += self.room(parameter)

    def take(self, optimizer):
        """Makes an optimizer of whole parameters update this rank's pieces."""
        let_take(optimizer, self.pieces)

    def begin(self):
        super().begin()
        self.own = getattr(self, "own", [])  # the slice of each message, and its bucket

    def arrived(self, parameter):
        super().arrived(parameter)
        if self.each_pass and len(self.sent) == len(self.buckets):
            self.rounds += 1
            self.begin()

    def send(self):
        bucket = self.buckets[len(self.sent)]
        # The message had the time of this bucket's gradients: at most two buckets are whole, and a slice is summed
        # across the groups in parallel.
        while self.own and (self.each_pass or self.across):
            self.keep(*self.own.pop(0))
        flat = self.packed(gradients_of(bucket), bucket)
        for parameter in bucket:
            parameter.grad = None
        own = flat.new_empty(len(flat) // self.size)
        work = dist.reduce_scatter_tensor(real(own), real(flat), group=self.group, async_op=True)
        self.sent.append(work)
        self.own.append((work, own, flat, bucket, self.rounds == self.last_round))

    @torch.no_grad()
    def packed(self, tensors, bucket):
        """Returns tensors shaped like those of a bucket as one message to all replicas."""
        flat, at = tensors[0].new_zeros(self.size * self.share(bucket)), 0
        for tensor in tensors:
            flat[at : at + tensor.numel()].view(tensor.shape).copy_(tensor)
            at += self.room(tensor)
        return flat

    def unpacked(self, flat, bucket):
        """Yields the parameters of a bucket, and their part of a message."""
        at = 0
        for parameter in bucket:
            yield parameter, flat[at : at + parameter.numel()].view(parameter.shape)
            at += self.room(parameter)

    def keep(self, work, own, flat, bucket, is_last):
        """Adds a slice of sums to the gradients of its pieces; after the last pass they are summed across the
        groups."""
        with BUSY.waiting():
            work.wait()
        for piece, _, at in (self.pieces[parameter] for parameter in bucket if parameter in self.pieces):
            part = own[at : at + piece.numel()]
            piece.grad = part if piece.grad is None else piece.grad + part
        if is_last:
            self.join(bucket)

    def join(self, bucket):
        """Starts to sum a bucket's slice with those of the other groups."""
        self.joined += 1
        pieces = [self.pieces[parameter][0] for parameter in bucket if parameter in self.pieces] if self.across else []
        if pieces:
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients_of(pieces)])
            self.joining.append((dist.all_reduce(real(flat), group=self.across, async_op=True), flat, pieces))

    def finish(self):
        if not self.each_pass or self.sent or any(parameter.grad is not None for parameter in self.seen):
            while len(self.sent) < len(self.buckets):
                self.send()
        for message in self.own:
            self.keep(*message)
        for bucket in self.buckets[self.joined :]:
            self.join(bucket)
        for work, flat, pieces in self.joining:
            work.wait()
            for piece, part in zip(pieces, flat.split([piece.numel() for piece in pieces])):
                piece.grad = part
        self.rounds, self.joined, self.joining, self.own = 0, 0, [], []
        self.begin()

    def take_tied(self):
        """Takes the sums of tied parameters, when they are known."""
        for parameter in (p for bucket in self.tied for p in bucket):
            if parameter in self.pieces and parameter.grad is not None:
                piece, at, _ = self.pieces[parameter]
                piece.grad = parameter.grad.reshape(-1)[at : at + piece.numel()].clone()
            parameter.grad = None

    @torch.no_grad()
    def gather(self, read=lambda piece: piece.detach(), write=lambda parameter, value: parameter.copy_(value)):
        """Gathers the pieces of all replicas: the updated parameters, unless other functions to read and write are
        given."""
        messages = []
        for bucket in self.buckets + self.tied:
            own = bucket[0].new_zeros(self.share(bucket))
            for piece, _, place in (self.pieces[parameter] for parameter in bucket if parameter in self.pieces):
                own[place : place + piece.numel()] = read(piece)
            flat = own.new_empty(len(own) * self.size)
            work = dist.all_gather_into_tensor(real(flat), real(own), group=self.group, async_op=True)
            messages.append((work, own, flat, bucket))
        for work, _, flat, bucket in messages:
            work.wait()
            for parameter, value in self.unpacked(flat, bucket):
                write(parameter, value)

    def gather_gradients(self):
        """Gathers the summed gradients of all parameters, for inspection."""
        zeros = torch.zeros_like
        self.gather(
            lambda piece: zeros(piece) if piece.grad is None else piece.grad,
            lambda parameter, value: setattr(parameter, "grad", value.clone()),
        )

    @torch.no_grad()
    def refresh(self):
        """Copies the values of the parameters again: a piece may be a copy."""
        for parameter, (piece, at, _) in self.pieces.items():
            piece.copy_(parameter.reshape(-1)[at : at + piece.numel()])


class Served(Sharded):
    """Parameter servers: each bucket has one of the replicas, which sums its gradients, updates its parameters, and
    sends them to all.

    A bucket is assigned to the server that has the fewest bytes so far. Only servers keep optimizer state, for their
    own buckets.
    """

    def __init__(self, parameters, group, passes, tied):
        self.servers, self.bytes = {}, [0] * dist.get_world_size(group)
        super().__init__(parameters, (group, None), passes, tied, False)

    def cut(self, parameters):
        buckets = super().cut(parameters)
        for bucket in buckets:
            self.servers[bucket[0]] = server = self.bytes.index(min(self.bytes))
            self.bytes[server] += sum(parameter.numel() * parameter.element_size() for parameter in bucket)
        return buckets

    def places(self, bucket):
        at = 0
        for parameter in bucket if self.servers[bucket[0]] == self.rank else ():
            if parameter.numel():
                yield parameter, 0, parameter.numel(), at
            at += self.room(parameter)

    def send(self):
        bucket = self.buckets[len(self.sent)]
        flat = self.packed(gradients_of(bucket), bucket)
        for parameter in bucket:
            parameter.grad = None
        work = dist.reduce(real(flat), group_dst=self.servers[bucket[0]], group=self.group, async_op=True)
        self.sent.append(work)
        self.own.append((work, flat, flat, bucket, False))

    @torch.no_grad()
    def gather(self, read=lambda piece: piece.detach(), write=lambda parameter, value: parameter.copy_(value)):
        messages = []
        for bucket in self.buckets + self.tied:
            flat = bucket[0].new_zeros(self.size * self.share(bucket))
            for piece, _, place in (self.pieces[parameter] for parameter in bucket if parameter in self.pieces):
                flat[place : place + piece.numel()] = read(piece)
            messages.append((dist.broadcast(real(flat), group_src=self.servers[bucket[0]], group=self.group, async_op=True), flat, bucket))
        for work, flat, bucket in messages:
            work.wait()
            for parameter, value in self.unpacked(flat, bucket):
                write(parameter, value)


def let_take(optimizer, pieces):
    """Makes an optimizer of whole parameters update pieces of them: (piece, its begin, …) by parameter."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            piece, at = pieces.get(parameter, (None, 0))[:2]
            state = optimizer.state.pop(parameter, None) if piece is not parameter else None
            if state and piece is not None:
                optimizer.state[piece] = {
                    key: value.reshape(-1)[at : at + piece.numel()].clone() if is_by_element(key, value, parameter) else value
                    for key, value in state.items()
                }
        group["params"] = [pieces[parameter][0] for parameter in group["params"] if parameter in pieces]


def gradients_of(parameters):
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return [parameter.grad for parameter in parameters]


def real(tensor):
    return torch.view_as_real(tensor).view(-1) if tensor.is_complex() else tensor


def is_by_element(key, value, parameter):
    """Tells whether a part of an optimizer's state has one element per element of the parameter."""
    return isinstance(value, torch.Tensor) and key != "step" and value.shape == parameter.shape
