"""What the shards of a stage tell each other: each operator of `Shard` is a collective, and its transpose in the backward pass.

A stage's source is one for all ranks: with `Shard()`, which is alone, it is the whole stage; with `Shard(group)` it is the part
of one rank of that group. All ranks run the same lines, so they issue the same collectives in the same order, forward and
backward. A dimension that is cut is so many equal `blocks`, each of which is cut: one but for packed weights.

Rows may be routed to experts, of which each rank has as many: they lie in the experts' order, and what is told of them is where
each expert's end. All ranks route all rows, so all know who has which.

Work may be the first rank's alone: it has all rows there, the others none, and all run the same lines. The others have no rows of
its weights either, and are lent their sizes to compute nothing with. Numbers of rows are those of the trace.

An image may lie in bands: of `size` rows (or columns: of dimension `dim`) rank r of n has those from ceil(size * r / n) to
ceil(size * (r + 1) / n). What an operator takes of the bands beside its own is fetched in front of it, beyond the image's borders
it is filled, and the gradients of rows that several have taken are added where they lie. All ranks know all sizes, which are those
of the trace.

    value on each rank        its gradient on each rank
    whole, used whole         whole                           an operator that works on a part takes it through `copy`
    whole, used in parts      a term of a sum
    a slice                   a slice
    a term of a sum           whole                           `reduce` makes it whole

Results are not to be changed in place where they are views of what came (`copy`, and all of them on one rank).
"""

import weakref

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right
from torch.utils.weak import WeakIdKeyDictionary


class Shard:
    """This rank's place among those that hold a stage together; without a group there is no other."""

    def __init__(self, group=None):
        self.group, self.known_places, self.with_halo, self.keeping = group, {}, {}, []
        self.known_routes = WeakIdKeyDictionary()  # by the tensor that says them
        self.whole_sizes, self.lent = {}, []  # of tensors that the first rank has, by name; those that it has lent since they came back
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

    def attention(self, query, key, value, scale=None, enable_gqa=False):
        """Lets this rank's slice of the positions look at all that are not behind them; keys and values are those of all positions."""
        if self.size == 1:
            return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=enable_gqa)
        count = query.size(-2)
        seen = count * (self.rank + 1)
        key, value = key.narrow(-2, 0, seen), value.narrow(-2, 0, seen)
        # The last of the positions sees all of these keys, the one before it all but one, …. GPUs have a kernel for that.
        if query.is_cuda:
            mask = causal_lower_right(count, seen)
        else:
            mask = torch.ones(count, seen, dtype=torch.bool, device=query.device).tril(seen - count)
        return F.scaled_dot_product_attention(query, key, value, mask, scale=scale, enable_gqa=enable_gqa)

    def cross_entropy(self, x, target, reduction=1, ignore_index=-100):
        """Returns the loss of scores whose classes lie in parts: whole on all ranks, as each rank's part of the gradient is."""
        if self.size == 1:
            return F.cross_entropy(x, target, ignore_index=ignore_index, reduction=("none", "mean", "sum")[reduction])
        losses = CrossEntropy.apply(x, target, self, ignore_index)
        if reduction == 0:
            return losses
        total = losses.sum()
        return total if reduction == 2 else total / (target != ignore_index).sum()

    # -- operators of a stage whose experts lie on different ranks

    def to_experts(self, x, offsets, experts):
        """Takes the rows that are routed to the own experts."""
        if self.size == 1:
            return self.same(x)
        bands = self.routed(offsets, experts)
        rows = bands[-1][1]
        if x.size(0) != rows:
            raise ValueError(f"{x.size(0)} rows are to go to experts, who are told of {rows}")
        return self.exchanged(x, lambda x: self.own_of(x, bands), lambda g: self.moved(g, 0, bands, [(0, rows)] * self.size))

    def from_experts(self, x, offsets, experts):
        """Joins the rows of all experts for operators that all ranks run alike."""
        return self.joined_rows(x, offsets, experts, lambda g, bands: self.own_of(g, bands))

    def from_experts_split(self, x, offsets, experts):
        """Joins the rows of all experts for operators that work on a part: the gradients of all parts are summed."""
        return self.joined_rows(
            x, offsets, experts, lambda g, bands: self.moved(g, 0, [(0, bands[-1][1])] * self.size, bands, adds=True)
        )

    def joined_rows(self, x, offsets, experts, backward):
        if self.size == 1:
            return self.same(x)
        bands = self.routed(offsets, experts)
        return self.exchanged(
            x, lambda x: self.moved(x, 0, bands, [(0, bands[-1][1])] * self.size), lambda g: backward(g, bands)
        )

    def experts_term(self, x, offsets, experts):
        """Makes the rows of the own experts a term of all rows: those of others are zeros."""
        if self.size == 1:
            return self.same(x)
        bands = self.routed(offsets, experts)

        def forward(x):
            found = x.new_zeros([bands[-1][1], *x.size()[1:]])
            self.own_of(found, bands, copies=False).copy_(x)
            return found

        return self.exchanged(x, forward, lambda g: self.own_of(g, bands))

    def grouped_mm(self, x, matrices, offsets):
        """Multiplies the rows of each of the own experts with its matrix."""
        if self.size > 1:
            each = matrices.size(0)
            first = self.routed(offsets, each * self.size)[self.rank][0]
            offsets = offsets.narrow(0, self.rank * each, each) - first
        return torch._grouped_mm(x, matrices, offsets)

    def routed(self, offsets, experts):
        """Returns for each rank the first row of its experts and that behind the last; `offsets` say where each expert's end."""
        if offsets not in self.known_routes:
            each = experts // self.size
            ends = offsets[each - 1 :: each].tolist()
            self.known_routes[offsets] = list(zip([0, *ends], ends))
        return self.known_routes[offsets]

    def own_of(self, x, bands, copies=True):
        """Returns this rank's rows of all."""
        first, last = bands[self.rank]
        rows = x.narrow(0, first, last - first)
        return rows.clone(memory_format=torch.contiguous_format) if copies else rows

    # -- operators of a stage of which the first rank does some alone

    def to_first(self, x, rows):
        """Leaves the first rank what is whole, and the others nothing."""
        self.expect_rows(x, rows)
        return self.exchanged(x, lambda x: self.own(x, 0, 0), lambda g: self.moved(g, 0, self.firsts(rows), self.alls(rows)))

    def collect(self, x, rows):
        """Brings the slices of all ranks to the first."""
        self.expect_rows(x, rows // self.size)
        has, wants = self.slices(rows), self.firsts(rows)
        return self.exchanged(x, lambda x: self.moved(x, 0, has, wants), lambda g: self.moved(g, 0, wants, has))

    def from_first(self, x, rows):
        """Sends all ranks what the first has, for operators that all run alike."""
        return self.left(x, lambda x: self.moved(x, 0, self.firsts(rows), self.alls(rows)), lambda g: self.own(g, 0, 0))

    def from_first_split(self, x, rows):
        """Sends all ranks what the first has, for operators that work on a part: the gradients of all parts are summed."""
        return self.left(x, lambda x: self.moved(x, 0, self.firsts(rows), self.alls(rows)), lambda g: self.own(self.sum(g), 0, 0))

    def deal(self, x, rows):
        """Deals out what the first rank has in equal slices."""
        has, wants = self.firsts(rows), self.slices(rows)
        return self.left(x, lambda x: self.moved(x, 0, has, wants), lambda g: self.moved(g, 0, wants, has))

    def first_term(self, x, rows):
        """Makes what the first rank has a term of a sum: those of others are zeros."""

        def forward(x):
            return x.clone() if self.rank == 0 else x.new_zeros([rows, *x.size()[1:]])

        return self.left(x, forward, lambda g: self.own(g, 0, 0))

    def lend(self, x, rows):
        """Lets the ranks that have none of a weight's rows compute with its sizes."""
        if self.rank == 0:
            return self.same(x)
        if x.requires_grad and torch.is_grad_enabled():
            self.lent.append(x)
        return x.new_zeros(()).expand(rows, *x.size()[1:])

    def dropout_first(self, x, p, train, rows):
        """Drops what `F.dropout` would drop of the whole tensor; the other ranks draw as many numbers, so that they stay in step."""
        if self.rank and train and p:
            F.dropout(x.new_ones([rows, *x.size()[1:]]), p, True)
        return F.dropout(x, p, train)

    def on_first(self, n):
        """Returns the whole size on the first rank, and none on the others."""
        return 0 if self.rank else n

    def left(self, x, forward, backward):
        """Hands on what the first rank has; with the gradient weights that it has lent get theirs, of no rows, on the others."""
        if self.size == 1:
            return self.same(x)
        lent, self.lent = self.lent, []
        if self.rank and x.is_floating_point() and torch.is_grad_enabled() and not x.requires_grad:
            x = x.detach().requires_grad_()  # so that all ranks' backward passes come here
        return Exchange.apply(x, forward, backward, *lent)

    def firsts(self, rows):
        return [(0, rows)] + [(rows, rows)] * (self.size - 1)

    def alls(self, rows):
        return [(0, rows)] * self.size

    def slices(self, rows):
        return [(rows * rank // self.size, rows * (rank + 1) // self.size) for rank in range(self.size)]

    def expect_rows(self, x, rows):
        if x.size(0) != rows:
            raise ValueError(f"{x.size(0)} rows come to a stage whose first rank takes {rows} of each")

    # -- operators of a stage whose images lie in bands

    def to_bands(self, x, dim, size):
        """Takes the own rows of what is whole."""
        if x.size(dim) != size:
            raise ValueError(f"dimension {dim} is {x.size(dim)}; this stage is cut into bands for {size}")
        return self.exchanged(x, lambda x: self.own_rows(x, dim), lambda g: self.all_bands(g, dim, size))

    def from_bands(self, x, dim, size):
        """Joins the rows of all ranks for operators that all ranks run alike."""
        self.expect(x, dim, size)
        return self.exchanged(x, lambda x: self.all_bands(x, dim, size), lambda g: self.own_rows(g, dim))

    def from_bands_split(self, x, dim, size):
        """Joins the rows of all ranks for operators that work on a part: the gradients of all parts are summed."""
        self.expect(x, dim, size)

        def backward(g):
            return self.own_rows(self.sum(g), dim) if size % self.size else self.own_sum(g, dim)

        return self.exchanged(x, lambda x: self.all_bands(x, dim, size), backward)

    def window(self, x, dim, size, results, extent, stride, padding, fill=0.0):
        """Fetches the rows that the windows of the own rows of results take."""

        def taken(rank):
            first, last = self.band(results, rank)
            return first * stride - padding, (last - 1) * stride - padding + extent

        return self.fetched(x, dim, size, taken, fill)

    def spread(self, x, dim, size, results, extent, stride, padding):
        """Fetches the rows that a transposed convolution makes the own rows of results of; `crop` follows behind it."""
        return self.fetched(x, dim, size, lambda rank: self.spread_rows(results, extent, stride, padding, rank))

    def spread_rows(self, results, extent, stride, padding, rank):
        (first, last), reach = self.band(results, rank), extent - 1
        down, up = (lambda row: (row + padding) // stride), (lambda row: -((reach - row - padding) // stride))
        return min(up(first), down(first)), max(down(last - 1), up(last - 1)) + 1

    def crop(self, x, dim, size, results, extent, stride, padding):
        """Takes the own rows of what a transposed convolution has made of the rows of `spread`."""
        (first, last), begin = self.band(results), self.spread_rows(results, extent, stride, padding, self.rank)[0]
        return x.narrow(dim, first - (begin * stride - padding), last - first)

    def stretch(self, x, dim, size, results, mode, align_corners=False, scale=None):
        """Makes the own rows of a resampled image."""
        places = self.places(size, results, mode, align_corners, scale)
        beside = mode == "linear"

        def taken(rank):
            first, last = self.band(results, rank)
            return int(places[first]), min(int(places[last - 1]) + 1 + beside, size)

        rows, (first, last), begin = self.fetched(x, dim, size, taken), self.band(results), taken(self.rank)[0]
        lower = places[first:last].floor()
        upper, share = (lower + 1).clamp(max=size - 1) - begin, places[first:last] - lower
        lower, upper = (lower - begin).long().to(x.device), upper.long().to(x.device)
        if not beside:
            return rows.index_select(dim, lower)
        share = share.to(x.device, x.dtype).view([-1 if at == dim else 1 for at in range(x.dim())])
        return torch.lerp(rows.index_select(dim, lower), rows.index_select(dim, upper), share)

    def places(self, size, results, mode, align_corners, scale):
        """Returns the row that each row of a resampled image comes from, which torch says: that of a ramp is its number."""
        key = (size, results, mode, align_corners, scale)
        if key in self.known_places:
            return self.known_places[key]
        ramp = torch.arange(size, dtype=torch.float64).view(1, 1, size)
        how = {"scale_factor": scale} if scale else {"size": results}
        if mode == "linear":
            how["align_corners"] = align_corners
        found = F.interpolate(ramp, mode=mode, **how).view(-1).clamp(0, size - 1)
        self.known_places[key] = found if mode == "linear" else found.round()
        return self.known_places[key]

    def counted(self, x, dim, size, results, extent, stride, padding, counts_padding):
        """Corrects means over windows that reach beyond the image: rows there count up to the padding, or not at all."""
        first, last = self.band(results)
        begin = torch.arange(first, last, dtype=torch.float64) * stride - padding
        end = (begin + extent).clamp(max=size + padding if counts_padding else size)
        count = end - (begin if counts_padding else begin.clamp(min=0))
        factor = (extent / count).to(x.device, x.dtype)
        return x * factor.view([-1 if at == dim else 1 for at in range(x.dim())])

    def weighed(self, x, size):
        """Makes means of the own of so many rows terms of the mean of all."""
        return x * (self.rows(size) / size) if self.size > 1 else self.same(x)

    def batch_norm(self, x, weight, bias, running_mean, running_var, training, momentum, eps, dim, size):
        """Norms each channel by its mean and variance over all bands."""
        if not (training or running_mean is None):
            return F.batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
        shape = (x.size(0), x.size(1), 1, -1)
        y, mean, variance = Norm.apply(x, weight, bias, self, shape, (0, 2, 3), self.total(x, dim, size) // x.size(1), eps)
        if training and running_mean is not None:
            count = self.total(x, dim, size) // x.size(1)
            with torch.no_grad():
                for running, own in ((running_mean, mean), (running_var, variance * (count / max(count - 1, 1)))):
                    running.mul_(1 - momentum).add_(own.view(-1).to(running.dtype), alpha=momentum)
        return y

    def group_norm(self, x, groups, weight, bias, eps, dim, size):
        """Norms each group of channels of each sample by its mean and variance over all bands."""
        shape = (x.size(0), groups, x.size(1) // groups, -1)
        count = self.total(x, dim, size) // (x.size(0) * groups)
        return Norm.apply(x, weight, bias, self, shape, (2, 3), count, eps)[0]

    def total(self, x, dim, size):
        """Returns the number of elements of all bands."""
        self.expect(x, dim, size)
        return x.numel() // x.size(dim) * size

    def dropout_bands(self, x, p, train, dim, size):
        """Drops what `F.dropout` would drop of the whole tensor, as `dropout` does."""
        if self.size == 1 or not train or p == 0:
            return F.dropout(x, p, train)
        sizes = [size if at == dim else own for at, own in enumerate(x.size())]
        order = sorted(range(x.dim()), key=lambda d: (-x.stride(d), d))
        ones = torch.empty_permuted(sizes, order, dtype=x.dtype, device=x.device).fill_(1)
        return x * self.own_rows(F.dropout(ones, p, True), dim)

    def rows(self, size):
        """Returns how many of so many rows this rank has."""
        first, last = self.band(size)
        return last - first

    def all_rows(self, rows, size):
        """Returns the number of rows of which this rank has so many."""
        if rows != self.rows(size):
            raise ValueError(f"{rows} rows are not this rank's {self.rows(size)} of {size}")
        return size

    # -- numbers

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
        """Returns the sizes of this rank's part of a tensor: without blocks the first rank has all of it."""
        if blocks == 0:
            self.whole_sizes[name] = list(sizes)
            return list(sizes) if self.rank == 0 else [0, *sizes[1:]]
        if sizes[dim] % (blocks * self.size):
            parts = f"{blocks} blocks of {self.size} shards" if blocks > 1 else f"{self.size} shards"
            raise ValueError(f"dimension {dim} of `{name}` is {sizes[dim]}, which does not divide into {parts}")
        return [size // self.size if at == dim % len(sizes) else size for at, size in enumerate(sizes)]

    def read(self, stored, dim, blocks=1):
        """Reads this rank's part of a tensor of a safetensors file."""
        sizes = stored.get_shape()
        if blocks == 0:
            return stored[: self.sizes(sizes, dim, blocks)[0]]
        length = self.sizes(sizes, dim, blocks)[dim] // blocks
        starts = [block * length * self.size + self.rank * length for block in range(blocks)]
        parts = [stored[(slice(None),) * dim + (slice(start, start + length),)] for start in starts]
        return parts[0] if blocks == 1 else torch.cat(parts, dim)

    def own(self, x, dim, blocks=1):
        """Returns this rank's part of a whole tensor."""
        if self.size == 1:
            return self.same(x)
        if blocks == 0:
            return x.clone(memory_format=torch.contiguous_format) if self.rank == 0 else x.new_empty([0, *x.size()[1:]])
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
        if blocks == 0:
            rows = torch.tensor(x.size(0), device=x.device)
            dist.all_reduce(rows, group=self.group)
            return self.moved(x, 0, self.firsts(int(rows)), self.alls(int(rows)))
        dim %= x.dim()
        flat = x.contiguous().view(-1)
        found = flat.new_empty(self.size * len(flat))
        if len(flat):
            # As bytes, which all backends know.
            dist.all_gather_into_tensor(found.view(torch.uint8), flat.view(torch.uint8), group=self.group)
        parts = [part.view(x.size()).unflatten(dim, (blocks, -1)) for part in found.chunk(self.size)]
        return torch.stack(parts, dim + 1).flatten(dim, dim + 2)

    def band(self, size, rank=None):
        """Returns the first row of a rank and that behind its last."""
        rank = self.rank if rank is None else rank
        return -(-size * rank // self.size), -(-size * (rank + 1) // self.size)

    def expect(self, x, dim, size):
        if x.size(dim) != self.rows(size):
            raise ValueError(f"dimension {dim} is {x.size(dim)}, not this rank's {self.rows(size)} of {size}")

    def own_rows(self, x, dim):
        """Returns this rank's rows of a whole tensor."""
        first, last = self.band(x.size(dim))
        return x.narrow(dim, first, last - first).clone(memory_format=torch.contiguous_format)

    def all_bands(self, x, dim, size):
        """Returns the whole tensor that all ranks have rows of."""
        if size % self.size == 0:
            return self.joined(x, dim)
        bands = [self.band(size, rank) for rank in range(self.size)]
        return self.moved(x, dim, bands, [(0, size)] * self.size)

    def fetched(self, x, dim, size, taken, fill=0.0):
        """Returns the rows that `taken` says of this rank; those beyond the image are filled."""
        self.expect(x, dim, size)
        bands, inside = [self.band(size, rank) for rank in range(self.size)], []
        for rank in range(self.size):
            first, last = taken(rank)
            first = min(max(first, 0), size)
            inside.append((first, max(min(last, size), first)))
        (wanted, end), (first, last) = taken(self.rank), inside[self.rank]
        before = min(max(-wanted, 0), end - wanted)
        behind = end - wanted - before - (last - first)
        if inside == bands and not before and not behind:
            return self.same(x)

        def forward(x):
            return self.moved(x, dim, bands, inside, before, behind, fill)

        def backward(gradient):
            return self.moved(gradient.narrow(dim, before, last - first), dim, inside, bands, adds=True)

        found, (own, own_end) = Exchange.apply(x, forward, backward), bands[self.rank]
        if self.keeping and first <= own and own_end <= last:
            at = own - first + before
            known = weakref.ref(found, lambda _, key=found.data_ptr(): self.with_halo.pop(key, None))
            self.with_halo[found.data_ptr()] = known, x.detach(), (x._version, found._version), dim, at
        return found

    # -- what is kept for the backward pass

    def attend(self, stage):
        """Lets a stage keep of fetched rows those of others alone: the own lie where they were fetched for."""
        if self.size > 1:
            stage.register_forward_pre_hook(lambda *_: self.keep())
            stage.register_forward_hook(lambda *_: self.keeping.pop().__exit__(), always_call=True)

    def keep(self):
        self.keeping.append(torch.autograd.graph.saved_tensors_hooks(self.packed, Kept.tensor))
        self.keeping[-1].__enter__()

    def packed(self, tensor):
        known, own, versions, dim, at = self.with_halo.get(tensor.data_ptr(), (None,) * 5)
        whole = known() if known else None
        is_whole = whole is not None and whole.size() == tensor.size() and whole.stride() == tensor.stride()
        # What has been changed since is not what was fetched.
        if not is_whole or (own._version, tensor._version) != versions:
            return Kept(tensor.detach(), tensor._version)
        behind = at + own.size(dim)
        halo = [tensor.narrow(dim, 0, at), tensor.narrow(dim, behind, tensor.size(dim) - behind)]
        return Kept(own, own._version, [rows.detach().clone() for rows in halo], dim)

    def moved(self, x, dim, has, wants, before=0, behind=0, fill=0.0, adds=False):
        """Returns the rows that this rank wants, of which rank r has those from has[r][0] to has[r][1].

        Where several have a row, theirs are added. `before` and `behind` are rows of `fill` around them.
        """
        (own, _), (first, last) = has[self.rank], wants[self.rank]
        sizes = list(x.size())
        sizes[dim] = before + last - first + behind
        found = x.new_zeros(sizes) if adds else x.new_empty(sizes)
        if before:
            found.narrow(dim, 0, before).fill_(fill)
        if behind:
            found.narrow(dim, sizes[dim] - behind, behind).fill_(fill)
        messages, pieces = [], []
        for rank in range(self.size):
            begin, end = max(own, wants[rank][0]), min(has[self.rank][1], wants[rank][1])
            given = x.narrow(dim, begin - own, end - begin) if begin < end else None
            begin, end = max(has[rank][0], first), min(has[rank][1], last)
            sizes[dim] = max(end - begin, 0)
            if rank == self.rank:
                got = given
            else:
                peer = dist.get_global_rank(self.group, rank)
                given = None if given is None else given.contiguous()
                got = x.new_empty(sizes) if begin < end else None
                for piece, send in ((given, dist.isend), (got, dist.irecv)):
                    if piece is not None and piece.numel():
                        # As bytes, which all backends know.
                        messages.append(dist.P2POp(send, piece.view(-1).view(torch.uint8), peer, self.group))
            if got is not None:
                pieces.append((before + begin - first, got))
        for work in dist.batch_isend_irecv(messages) if messages else ():
            work.wait()
        for at, got in pieces:
            place = found.narrow(dim, at, got.size(dim))
            place.add_(got) if adds else place.copy_(got)
        return found

    def same(self, x):
        return x.view_as(x)

    def sum(self, x):
        """Returns the sum of all ranks' terms."""
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(plain(total), group=self.group)
        return total

    def all(self, x):
        """Returns the sum of all ranks' terms, in their place."""
        if self.size > 1:
            dist.all_reduce(x, group=self.group)
        return x

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
    def forward(ctx, x, forward, backward, *lent):
        ctx.backward_of, ctx.lent = backward, [tensor.size() for tensor in lent]
        return forward(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.backward_of(gradient), None, None, *(gradient.new_empty(sizes) for sizes in ctx.lent)


class Kept:
    """A tensor that is kept for the backward pass, with rows before and behind it."""

    def __init__(self, own, version, halo=None, dim=0):
        self.own, self.version, self.halo, self.dim = own, version, halo, dim

    def tensor(self):
        # As autograd looks after what it keeps itself.
        if self.own._version != self.version:
            raise RuntimeError("a tensor that is needed for a gradient has been changed in place")
        return self.own if self.halo is None else torch.cat([self.halo[0], self.own, self.halo[1]], self.dim)


class Norm(torch.autograd.Function):
    """A norm of channels, or of groups of them, whose mean and variance are those of all ranks' rows together.

    The input is looked at as samples, groups, channels of a group and positions; `over` says which of them are averaged.
    """

    @staticmethod
    def forward(ctx, x, weight, bias, shard, shape, over, count, eps):
        flat, single = x.reshape(shape), torch.promote_types(x.dtype, torch.float32)
        mean = shard.all(flat.sum(over, keepdim=True, dtype=single)) / count
        # What is returned must be no view, or nothing could be done to it in place.
        y = torch.empty(x.size(), dtype=single, device=x.device)
        off = torch.sub(flat, mean, out=y.view(shape))
        variance = shard.all((off * off).sum(over, keepdim=True)) / count
        scale = torch.rsqrt(variance + eps)
        off.mul_(scale)
        if weight is not None:
            off.mul_(by_channel(weight, shape))
        if bias is not None:
            off.add_(by_channel(bias, shape))
        ctx.save_for_backward(x, weight, mean, scale)
        ctx.about = shard, shape, over, count, None if bias is None else bias.dtype
        ctx.mark_non_differentiable(mean, variance)
        return y.to(x.dtype), mean, variance

    @staticmethod
    def backward(ctx, gradient, *_):
        (x, weight, mean, scale), (shard, shape, over, count, of_bias) = ctx.saved_tensors, ctx.about
        normed = (x.reshape(shape) - mean) * scale
        own = gradient.reshape(shape).to(normed.dtype)
        of_weight = together(own * normed).to(weight.dtype) if weight is not None else None
        of_bias = together(own).to(of_bias) if of_bias else None
        if weight is not None:
            own = own * by_channel(weight, shape)
        both = torch.stack([own.sum(over, keepdim=True), (own * normed).sum(over, keepdim=True)])
        first, second = shard.all(both) / count
        back = normed.mul_(second).add_(first).sub_(own).neg_().mul_(scale)
        return back.to(x.dtype).view(x.size()), of_weight, of_bias, None, None, None, None, None


class CrossEntropy(torch.autograd.Function):
    """What each row of scores loses by its target, where every rank has a part of the classes."""

    @staticmethod
    def forward(ctx, x, target, shard, ignore_index):
        dim, classes = min(1, x.dim() - 1), x.size(min(1, x.dim() - 1))
        single = torch.promote_types(x.dtype, torch.float32)
        ignored = target == ignore_index
        in_table = (target >= 0) & (target < classes * shard.size)
        torch._assert_async((in_table | ignored).all(), "a target is no class")
        largest = x.amax(dim).to(single)
        if largest.numel():
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=shard.group)
        place = target - shard.rank * classes
        elsewhere = (place < 0) | (place >= classes) | ignored
        place = place.masked_fill(elsewhere, 0).unsqueeze(dim)
        scores = x - largest.unsqueeze(dim)
        own = scores.gather(dim, place).squeeze(dim).masked_fill(elsewhere, 0)
        total, of_target = shard.all(torch.stack([scores.exp_().sum(dim), own]))
        ctx.save_for_backward(x, largest, total.log_(), place, elsewhere, ignored)
        ctx.dim = dim
        return (total - of_target).masked_fill(ignored, 0).to(x.dtype)

    @staticmethod
    def backward(ctx, gradient):
        (x, largest, total, place, elsewhere, ignored), dim = ctx.saved_tensors, ctx.dim
        shares = (x - largest.unsqueeze(dim)).sub_(total.unsqueeze(dim)).exp_()
        shares.scatter_add_(dim, place, (elsewhere.to(shares.dtype) - 1).unsqueeze(dim))
        shares *= gradient.to(shares.dtype).masked_fill(ignored, 0).unsqueeze(dim)
        return shares.to(x.dtype), None, None, None


def by_channel(weight, shape):
    """Looks at a number for each channel as `Norm` looks at channels."""
    return weight.view(1, shape[1], -1, 1)


def together(gradient):
    """Sums over samples and positions: a number for each channel."""
    return gradient.sum((0, 3)).view(-1)


def plain(tensor):
    """Returns a tensor as numbers that all backends add."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
