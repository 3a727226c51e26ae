"""What the shards of a stage tell each other: each operator of `Shard` is a collective, and its transpose in the backward pass.

A stage's source is one for all ranks: with `Shard()`, which is alone, it is the whole stage; with `Shard(group)` it is the part
of one rank of that group. All ranks run the same lines, so they issue the same collectives in the same order, forward and
backward. A dimension that is cut is so many equal `blocks`, each of which is cut: one but for packed weights.

    value on each rank        its gradient on each rank
    whole, used whole         whole                           an operator that works on a part takes it through `copy`
    whole, used in parts      a term of a sum
    a slice                   a slice
    a term of a sum           whole                           `reduce` makes it whole

Results are not to be changed in place where they are views of what came (`copy`, and all of them on one rank).
"""

import torch
import torch.distributed as dist
from torch.nn import functional as F


class Shard:
    """This rank's place among those that hold a stage together; without a group there is no other."""

    def __init__(self, group=None):
        self.group = group
        self.rank, self.size = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))

    # -- operators of a stage

    def copy(self, x):
        """Hands what is whole to an operator that works on a part of it: the gradients of all parts are summed."""
        return self.exchanged(x, self.same, self.sum)

    def reduce(self, x):
        """Sums the terms of all ranks."""
        return self.exchanged(x, self.sum, self.same)

    def scatter(self, x, dim, blocks=1):
        """Takes the own slice of what is whole."""
        return self.exchanged(x, lambda x: self.own(x, dim, blocks), lambda g: self.joined(g, dim, blocks))

    def gather(self, x, dim, blocks=1):
        """Joins the slices of all ranks for operators that all ranks run alike."""
        return self.exchanged(x, lambda x: self.joined(x, dim, blocks), lambda g: self.own(g, dim, blocks))

    def gather_split(self, x, dim, blocks=1):
        """Joins the slices of all ranks for operators that work on a part: the gradients of all parts are summed."""
        return self.exchanged(x, lambda x: self.joined(x, dim, blocks), lambda g: self.own_sum(g, dim, blocks))

    def reduce_scatter(self, x, dim, blocks=1):
        """Takes the own slice of the sum of all ranks' terms."""
        return self.exchanged(x, lambda x: self.own_sum(x, dim, blocks), lambda g: self.joined(g, dim, blocks))

    def exchange(self, x, from_dim, to_dim):
        """Makes what is cut along one dimension cut along another."""
        return self.exchanged(x, lambda x: self.turned(x, from_dim, to_dim), lambda g: self.turned(g, to_dim, from_dim))

    def once(self, x):
        """Makes what is whole a term of a sum: it is counted once."""
        return self.exchanged(x, lambda x: self.same(x) if self.rank == 0 else torch.zeros_like(x), self.same)

    def dropout(self, x, p, train, dim, blocks=1):
        """Drops what `F.dropout` would drop of the whole tensor; all ranks draw the whole mask, so that they stay in step."""
        if self.size == 1 or not train or p == 0:
            return F.dropout(x, p, train)
        sizes = list(x.size())
        sizes[dim] *= self.size
        # In the whole tensor's order in memory, which is the order that numbers are drawn in.
        order = sorted(range(x.dim()), key=lambda d: (-x.stride(d), d))
        ones = torch.empty_permuted(sizes, order, dtype=x.dtype, device=x.device).fill_(1)
        return x * self.own(F.dropout(ones, p, True), dim, blocks)

    def embedding(self, weight, indices, padding_idx=-1):
        """Looks up the rows of a table that lie here, as a term of a sum: other ranks' rows are zeros."""
        rows = weight.size(0)
        first = self.rank * rows
        # What no rank has must not become zeros.
        torch._assert_async(((indices >= 0) & (indices < rows * self.size)).all(), "an index is out of the table")
        is_elsewhere = (indices < first) | (indices >= first + rows)
        own_padding = padding_idx - first if first <= padding_idx < first + rows else None
        found = F.embedding((indices - first).masked_fill(is_elsewhere, 0), weight, own_padding)
        return found.masked_fill(is_elsewhere.unsqueeze(-1), 0)

    def part(self, n):
        """Returns this rank's part of a whole size."""
        if n % self.size:
            raise ValueError(f"{n} does not divide into {self.size} shards")
        return n // self.size

    def whole(self, n):
        """Returns the whole size of which a rank has this part."""
        return n * self.size

    def exchanged(self, x, forward, backward):
        return Exchange.apply(x, forward, backward) if self.size > 1 else self.same(x)

    # -- tensors, without gradients

    def sizes(self, sizes, dim, blocks=1, name="the tensor"):
        """Returns the sizes of this rank's part of a tensor."""
        if sizes[dim] % (blocks * self.size):
            parts = f"{blocks} blocks of {self.size} shards" if blocks > 1 else f"{self.size} shards"
            raise ValueError(f"dimension {dim} of `{name}` is {sizes[dim]}, which does not divide into {parts}")
        return [size // self.size if at == dim % len(sizes) else size for at, size in enumerate(sizes)]

    def read(self, stored, dim, blocks=1):
        """Reads this rank's part of a tensor of a safetensors file."""
        sizes = stored.get_shape()
        length = self.sizes(sizes, dim, blocks)[dim] // blocks
        starts = [block * length * self.size + self.rank * length for block in range(blocks)]
        parts = [stored[(slice(None),) * dim + (slice(start, start + length),)] for start in starts]
        return parts[0] if blocks == 1 else torch.cat(parts, dim)

    def own(self, x, dim, blocks=1):
        """Returns this rank's part of a whole tensor."""
        if self.size == 1:
            return self.same(x)
        return self.parts(x, dim, blocks)[self.rank].clone(memory_format=torch.contiguous_format)

    def parts(self, x, dim, blocks=1):
        """Returns the parts of all ranks of a whole tensor."""
        dim %= x.dim()
        length = self.sizes(x.size(), dim, blocks)[dim]
        blocked = x.unflatten(dim, (blocks, self.size, length // blocks))
        return [blocked.select(dim + 1, rank).flatten(dim, dim + 1) for rank in range(self.size)]

    def joined(self, x, dim, blocks=1):
        """Returns the whole tensor that all ranks have parts of."""
        if self.size == 1:
            return self.same(x)
        dim %= x.dim()
        flat = x.contiguous().view(-1)
        found = flat.new_empty(self.size * len(flat))
        if len(flat):
            # As bytes, which all backends know.
            dist.all_gather_into_tensor(found.view(torch.uint8), flat.view(torch.uint8), group=self.group)
        parts = [part.view(x.size()).unflatten(dim, (blocks, -1)) for part in found.chunk(self.size)]
        return torch.stack(parts, dim + 1).flatten(dim, dim + 2)

    def same(self, x):
        return x.view_as(x)

    def sum(self, x):
        """Returns the sum of all ranks' terms."""
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(plain(total), group=self.group)
        return total

    def own_sum(self, x, dim, blocks=1):
        """Returns this rank's part of the sum of all ranks' terms."""
        terms = torch.stack(self.parts(x, dim, blocks))
        found = torch.empty_like(terms[0], memory_format=torch.contiguous_format)
        if terms.numel():
            dist.reduce_scatter_tensor(plain(found).view(-1), plain(terms).view(-1), group=self.group)
        return found

    def turned(self, x, from_dim, to_dim):
        """Returns this rank's part along one dimension of a tensor that all ranks have parts of along another."""
        sent = torch.stack(self.parts(x, to_dim))
        found = torch.empty_like(sent)
        if sent.numel():
            dist.all_to_all_single(found.view(-1).view(torch.uint8), sent.view(-1).view(torch.uint8), group=self.group)
        return torch.cat(list(found), from_dim)


class Exchange(torch.autograd.Function):
    """What ranks do to a value, and to its gradient."""

    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.backward_of = backward
        return forward(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.backward_of(gradient), None, None


def plain(tensor):
    """Returns a tensor as numbers that all backends add."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
