"""The exchanges between the shards of a stage: each operator of `Shard` is a collective, with its transpose in the
backward pass.

All ranks have the same source of a stage: with `Shard()`, a single rank, it is the whole stage; with `Shard(group)` it
is the part of one rank of that group. All ranks run the same lines, so they issue the same collectives in the same
order, forward and backward. A cut dimension consists of equal `blocks`, each of which is cut: one, except for packed
weights.

Rows may be routed to experts, of which each rank has the same number: the rows are in the experts' order, and `offsets`
has the end of each expert's rows. All ranks route all rows, so all know which rank has which.

Work may be done by the first rank only: it has all rows, the others none, and all run the same lines. The others have
no rows of its weights either, and are lent empty tensors of their sizes. Numbers of rows are those of the trace.

An image may be in bands: of `size` rows (or columns: of dimension `dim`) rank r of n has those from ceil(size * r / n)
to ceil(size * (r + 1) / n). Rows of neighbouring bands that an operator reads are fetched before it, positions outside
the image are filled, and the gradients of rows that several ranks have read are added on their owner. All ranks know
all sizes, which are those of the trace.

    value on each rank        its gradient on each rank
    whole, used whole         whole                           an operator on a part takes it through `copy`
    whole, used in parts      a term of a sum
    a slice                   a slice
    a term of a sum           whole                           `reduce` makes it whole

Results must not be changed in place if they are views of the arguments (`copy`, and all of them on one rank).
"""

import functools
import weakref

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right
from torch.utils.weak import WeakIdKeyDictionary


class Shard:
    """This rank's position among those that share a stage; without a group there is only one.

    Ranks may be groups that share a stage first: `outer` is the position among those that have the same one in their groups.
    """

    def __init__(self, group=None, outer=None, is_of_groups=False):
        self.outer_group, self.is_of_groups, self.later = outer, is_of_groups, None
        self.group, self.known_places, self.with_halo, self.keeping = group, {}, {}, []
        self.known_routes = WeakIdKeyDictionary()  # by the tensor of offsets
        self.whole_sizes, self.lent = {}, []  # of tensors on the first rank, by name; tensors lent since the last return
        self.rank, self.size = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))

    @functools.cached_property
    def outer(self):
        return Shard(self.outer_group, is_of_groups=True)

    def levels(self, dim, blocks=1, *first):
        """Returns how a tensor is cut, outermost first: a shard, the dimension and its blocks. `first` is the dimension that groups
        cut, if they do; `dim` is None if only they do."""
        found = [(self.outer, at, 1) for at in first]
        return found if dim is None else [*found, (self, dim, blocks)]

    # -- operators of a stage

    def copy(self, x):
        """Passes a whole value to an operator on parts of it: the gradients of all parts are summed."""
        return self.exchanged(x, self.same, self.sum)

    def weight(self, x):
        """The same for a weight that is used in no other way; where `later` is a dict, the gradients are left to whoever made
        it, to be summed once a step."""
        if self.later is None:
            return self.copy(x)
        self.later[x] = None
        return x

    def reduce(self, x):
        """Sums the terms of all ranks."""
        return self.exchanged(x, self.sum, self.same)

    def scatter(self, x, dim, blocks=1):
        """Takes this rank's slice of a whole value."""
        return self.exchanged(x, lambda x: self.own(x, dim, blocks), lambda g: self.joined(g, dim, blocks))

    def gather(self, x, dim, blocks=1):
        """Joins the slices of all ranks for operators that all ranks run equally."""
        return self.exchanged(x, lambda x: self.joined(x, dim, blocks), lambda g: self.own(g, dim, blocks))

    def gather_split(self, x, dim, blocks=1):
        """Joins the slices of all ranks for operators on parts: the gradients of all parts are summed."""
        return self.exchanged(x, lambda x: self.joined(x, dim, blocks), lambda g: self.own_sum(g, dim, blocks))

    def reduce_scatter(self, x, dim, blocks=1):
        """Takes this rank's slice of the sum of all ranks' terms."""
        return self.exchanged(x, lambda x: self.own_sum(x, dim, blocks), lambda g: self.joined(g, dim, blocks))

    def exchange(self, x, from_dim, to_dim):
        """Changes the dimension along which a value is cut."""
        return self.exchanged(x, lambda x: self.turned(x, from_dim, to_dim), lambda g: self.turned(g, to_dim, from_dim))

    def once(self, x):
        """Makes a whole value a term of a sum, so that it is counted once."""
        return self.exchanged(x, lambda x: self.same(x) if self.rank == 0 else torch.zeros_like(x), self.same)

    def dropout(self, x, p, train, dim, blocks=1):
        """Drops the same elements as `F.dropout` of the whole tensor; all ranks draw the whole mask, so that their
        generators stay equal."""
        if self.size == 1 or not train or p == 0:
            return F.dropout(x, p, train)
        sizes = list(x.size())
        sizes[dim] *= self.size
        # In the memory order of the whole tensor, in which numbers are drawn.
        order = sorted(range(x.dim()), key=lambda d: (-x.stride(d), d))
        ones = torch.empty_permuted(sizes, order, dtype=x.dtype, device=x.device).fill_(1)
        return x * self.own(F.dropout(ones, p, True), dim, blocks)

    def embedding(self, weight, indices, padding_idx=-1):
        """Looks up the rows of a table on this rank, as a term of a sum: other ranks' rows are zeros."""
        rows = weight.size(0)
        first = self.rank * rows
        # Indices outside of the table must not become zeros.
        torch._assert_async(((indices >= 0) & (indices < rows * self.size)).all(), "an index is out of the table")
        is_elsewhere = (indices < first) | (indices >= first + rows)
        own_padding = padding_idx - first if first <= padding_idx < first + rows else None
        found = F.embedding((indices - first).masked_fill(is_elsewhere, 0), weight, own_padding)
        return found.masked_fill(is_elsewhere.unsqueeze(-1), 0)

    def attention(self, query, key, value, scale=None, enable_gqa=False):
        """Attention of this rank's slice of the positions to all positions up to their own; keys and values are
        those of all positions."""
        if self.size == 1:
            return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=enable_gqa)
        count = query.size(-2)
        seen = count * (self.rank + 1)
        key, value = key.narrow(-2, 0, seen), value.narrow(-2, 0, seen)
        # The last of the positions attends to all of these keys, the previous one to all but one, …. GPUs have a kernel
        # for that.
        if query.is_cuda:
            mask = causal_lower_right(count, seen)
        else:
            mask = torch.ones(count, seen, dtype=torch.bool, device=query.device).tril(seen - count)
        return F.scaled_dot_product_attention(query, key, value, mask, scale=scale, enable_gqa=enable_gqa)

    def cross_entropy(self, x, target, reduction=1, ignore_index=-100):
        """Returns the loss of scores whose classes are in parts: whole on all ranks, as is each rank's part of the
        gradient."""
        if self.size == 1:
            return F.cross_entropy(x, target, ignore_index=ignore_index, reduction=("none", "mean", "sum")[reduction])
        losses = CrossEntropy.apply(x, target, self, ignore_index)
        if reduction == 0:
            return losses
        total = losses.sum()
        return total if reduction == 2 else total / (target != ignore_index).sum()

    def per_target(self, total, target, ignore_index):
        """Divides a term of the sum of losses by the number of all ranks' targets."""
        return total / self.all((target != ignore_index).sum())

    # -- operators of a stage whose experts are on different ranks

    def to_experts(self, x, offsets, experts):
        """Takes the rows that are routed to this rank's experts."""
        if self.size == 1:
            return self.same(x)
        bands = self.routed(offsets, experts)
        rows = bands[-1][1]
        if x.size(0) != rows:
            raise ValueError(f"{x.size(0)} rows for experts, but offsets for {rows}")
        return self.exchanged(x, lambda x: self.own_of(x, bands), lambda g: self.moved(g, 0, bands, [(0, rows)] * self.size))

    def from_experts(self, x, offsets, experts):
        """Joins the rows of all experts for operators that all ranks run equally."""
        return self.joined_rows(x, offsets, experts, lambda g, bands: self.own_of(g, bands))

    def from_experts_split(self, x, offsets, experts):
        """Joins the rows of all experts for operators on parts: the gradients of all parts are summed."""
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
        """Makes the rows of this rank's experts a term of all rows: those of others are zeros."""
        if self.size == 1:
            return self.same(x)
        bands = self.routed(offsets, experts)

        def forward(x):
            found = x.new_zeros([bands[-1][1], *x.size()[1:]])
            self.own_of(found, bands, copies=False).copy_(x)
            return found

        return self.exchanged(x, forward, lambda g: self.own_of(g, bands))

    def grouped_mm(self, x, matrices, offsets):
        """Multiplies the rows of each of this rank's experts with its matrix."""
        if self.size > 1:
            each = matrices.size(0)
            first = self.routed(offsets, each * self.size)[self.rank][0]
            offsets = offsets.narrow(0, self.rank * each, each) - first
        return torch._grouped_mm(x, matrices, offsets)

    def take(self, x, positions, rows, blocks):
        """Takes those of the rows at `positions` that this rank has: its slice of `rows` rows."""
        if self.size == 1:
            return x[positions]
        owners, places = self.owners(positions, rows, blocks)
        return x[places[owners == self.rank]]

    def dispatch(self, x, positions, offsets, experts, rows, blocks):
        """Sends the rows of `take` to the ranks of their experts."""
        if self.size == 1:
            return self.same(x)
        owners, bands = self.owners(positions, rows, blocks)[0], self.routed(offsets, experts)
        sent = [int((owners[first:last] == self.rank).sum()) for first, last in bands]
        return self.carried(x, None, sent, owners[slice(*bands[self.rank])])

    def combine(self, x, positions, offsets, experts, blocks):
        """Fetches the rows at this rank's slice of `positions` from the ranks of their experts."""
        if self.size == 1:
            return x[positions]
        bands = self.routed(offsets, experts)
        ends = torch.tensor([last for _, last in bands], device=positions.device)
        wanted = torch.stack(self.parts(self.from_start(positions, bands[-1][1]), 0, blocks))
        holders = torch.bucketize(wanted, ends, right=True)
        is_own = holders == self.rank
        return self.carried(x, wanted[is_own] - bands[self.rank][0], is_own.sum(1).tolist(), holders[self.rank])

    def owners(self, positions, rows, blocks):
        """Returns the rank that has each of the rows at `positions`, and the row's place on it."""
        length, positions = rows // blocks // self.size, self.from_start(positions, rows)
        block, place = positions // (length * self.size), positions % (length * self.size)
        return place // length, block * length + place % length

    def from_start(self, positions, rows):
        """Returns positions of which some may count from the end as those that count from the start."""
        torch._assert_async(((positions >= -rows) & (positions < rows)).all(), "a position is not that of a row")
        return torch.where(positions < 0, positions + rows, positions)

    def carried(self, x, chosen, sent, senders):
        """Sends rows, all or the chosen ones, so many to each rank, and puts those that arrive where their sender stands."""
        got, rows, order = senders.bincount(minlength=self.size).tolist(), x.size(0), senders.argsort(stable=True)

        def forward(x):
            arrived = self.dealt(x if chosen is None else x[chosen], sent, got)
            return torch.empty_like(arrived).index_copy_(0, order, arrived)

        def backward(g):
            arrived = self.dealt(g[order], got, sent)
            return arrived if chosen is None else g.new_zeros([rows, *g.size()[1:]]).index_add_(0, chosen, arrived)

        return self.exchanged(x, forward, backward)

    def dealt(self, x, sent, got):
        """Sends so many rows to each rank, in their order, and returns those of each rank."""
        found = x.new_empty([sum(got), *x.size()[1:]])
        width = x.size()[1:].numel() * x.element_size()
        bytes_of = lambda tensor: tensor.contiguous().view(-1).view(torch.uint8)
        counts = [[rows * width for rows in each] for each in (got, sent)]
        dist.all_to_all_single(bytes_of(found), bytes_of(x), *counts, group=self.group)
        return found

    def routed(self, offsets, experts):
        """Returns the first row of each rank's experts and the end of the last; `offsets` has the end of each
        expert's rows."""
        if offsets not in self.known_routes:
            each = experts // self.size
            ends = offsets[each - 1 :: each].tolist()
            self.known_routes[offsets] = list(zip([0, *ends], ends))
        return self.known_routes[offsets]

    def own_of(self, x, bands, copies=True):
        """Returns this rank's rows of all rows."""
        first, last = bands[self.rank]
        rows = x.narrow(0, first, last - first)
        return rows.clone(memory_format=torch.contiguous_format) if copies else rows

    # -- operators of a stage that are partly done by the first rank only

    def to_first(self, x, rows):
        """Keeps a whole value on the first rank, and nothing on the others."""
        self.expect_rows(x, rows)
        return self.exchanged(x, lambda x: self.own(x, 0, 0), lambda g: self.moved(g, 0, self.firsts(rows), self.alls(rows)))

    def collect(self, x, rows):
        """Collects the slices of all ranks on the first."""
        self.expect_rows(x, rows // self.size)
        has, wants = self.slices(rows), self.firsts(rows)
        return self.exchanged(x, lambda x: self.moved(x, 0, has, wants), lambda g: self.moved(g, 0, wants, has))

    def from_first(self, x, rows):
        """Sends the first rank's value to all, for operators that all run equally."""
        return self.left(x, lambda x: self.moved(x, 0, self.firsts(rows), self.alls(rows)), lambda g: self.own(g, 0, 0))

    def from_first_split(self, x, rows):
        """Sends the first rank's value to all, for operators on parts: the gradients of all parts are summed."""
        return self.left(x, lambda x: self.moved(x, 0, self.firsts(rows), self.alls(rows)), lambda g: self.own(self.sum(g), 0, 0))

    def deal(self, x, rows):
        """Deals out the first rank's value in equal slices."""
        has, wants = self.firsts(rows), self.slices(rows)
        return self.left(x, lambda x: self.moved(x, 0, has, wants), lambda g: self.moved(g, 0, wants, has))

    def first_term(self, x, rows):
        """Makes the first rank's value a term of a sum: those of others are zeros."""

        def forward(x):
            return x.clone() if self.rank == 0 else x.new_zeros([rows, *x.size()[1:]])

        return self.left(x, forward, lambda g: self.own(g, 0, 0))

    def lend(self, x, rows):
        """Gives ranks without rows of a weight an empty tensor of its sizes to compute with."""
        if self.rank == 0:
            return self.same(x)
        if x.requires_grad and torch.is_grad_enabled():
            self.lent.append(x)
        return x.new_zeros(()).expand(rows, *x.size()[1:])

    def dropout_first(self, x, p, train, rows):
        """Drops the same elements as `F.dropout` of the whole tensor; the other ranks draw as many numbers, so that
        their generators stay equal."""
        if self.rank and train and p:
            F.dropout(x.new_ones([rows, *x.size()[1:]]), p, True)
        return F.dropout(x, p, train)

    def on_first(self, n):
        """Returns the whole size on the first rank, and 0 on the others."""
        return 0 if self.rank else n

    def left(self, x, forward, backward):
        """Passes on the first rank's value; with its gradient, lent weights get theirs, of no rows, on the other
        ranks."""
        if self.size == 1:
            return self.same(x)
        lent, self.lent = self.lent, []
        if self.rank and x.is_floating_point() and torch.is_grad_enabled() and not x.requires_grad:
            x = x.detach().requires_grad_()  # so that the backward passes of all ranks reach this
        return Exchange.apply(x, forward, backward, *lent)

    def firsts(self, rows):
        return [(0, rows)] + [(rows, rows)] * (self.size - 1)

    def alls(self, rows):
        return [(0, rows)] * self.size

    def slices(self, rows):
        return [(rows * rank // self.size, rows * (rank + 1) // self.size) for rank in range(self.size)]

    def expect_rows(self, x, rows):
        if x.size(0) != rows:
            raise ValueError(f"a stage whose first rank takes {rows} rows per operator got {x.size(0)} rows")

    # -- operators of a stage whose images are in bands

    def to_bands(self, x, dim, size):
        """Takes this rank's rows of a whole value."""
        if x.size(dim) != size:
            raise ValueError(f"dimension {dim} is {x.size(dim)}; this stage is cut into bands for {size}")
        return self.exchanged(x, lambda x: self.own_rows(x, dim), lambda g: self.all_bands(g, dim, size))

    def from_bands(self, x, dim, size):
        """Joins the rows of all ranks for operators that all ranks run equally."""
        self.expect(x, dim, size)
        return self.exchanged(x, lambda x: self.all_bands(x, dim, size), lambda g: self.own_rows(g, dim))

    def from_bands_split(self, x, dim, size):
        """Joins the rows of all ranks for operators on parts: the gradients of all parts are summed."""
        self.expect(x, dim, size)

        def backward(g):
            return self.own_rows(self.sum(g), dim) if size % self.size else self.own_sum(g, dim)

        return self.exchanged(x, lambda x: self.all_bands(x, dim, size), backward)

    def window(self, x, dim, size, results, extent, stride, padding, fill=0.0):
        """Fetches the rows that the windows of this rank's rows of results read."""

        def taken(rank):
            first, last = self.band(results, rank)
            return first * stride - padding, (last - 1) * stride - padding + extent

        return self.fetched(x, dim, size, taken, fill)

    def spread(self, x, dim, size, results, extent, stride, padding):
        """Fetches the rows from which a transposed convolution makes this rank's rows of results; `crop` follows it."""
        return self.fetched(x, dim, size, lambda rank: self.spread_rows(results, extent, stride, padding, rank))

    def spread_rows(self, results, extent, stride, padding, rank):
        (first, last), reach = self.band(results, rank), extent - 1
        down, up = (lambda row: (row + padding) // stride), (lambda row: -((reach - row - padding) // stride))
        return min(up(first), down(first)), max(down(last - 1), up(last - 1)) + 1

    def crop(self, x, dim, size, results, extent, stride, padding):
        """Takes this rank's rows of the result of a transposed convolution on the rows of `spread`."""
        (first, last), begin = self.band(results), self.spread_rows(results, extent, stride, padding, self.rank)[0]
        return x.narrow(dim, first - (begin * stride - padding), last - first)

    def stretch(self, x, dim, size, results, mode, align_corners=False, scale=None):
        """Makes this rank's rows of a resampled image."""
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
        """Returns the source row of each row of a resampled image, by resampling a ramp with torch."""
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
        """Corrects means over windows that reach beyond the image: rows there count up to the padding, or not at
        all."""
        first, last = self.band(results)
        begin = torch.arange(first, last, dtype=torch.float64) * stride - padding
        end = (begin + extent).clamp(max=size + padding if counts_padding else size)
        count = end - (begin if counts_padding else begin.clamp(min=0))
        factor = (extent / count).to(x.device, x.dtype)
        return x * factor.view([-1 if at == dim else 1 for at in range(x.dim())])

    def weighed(self, x, size):
        """Weights this rank's means by its rows, as a term of the mean over all `size` rows."""
        return x * (self.rows(size) / size) if self.size > 1 else self.same(x)

    def batch_norm(self, x, weight, bias, running_mean, running_var, training, momentum, eps, dim, size):
        """Normalises each channel by its mean and variance over all bands."""
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
        """Normalises each group of channels of each sample by its mean and variance over all bands."""
        shape = (x.size(0), groups, x.size(1) // groups, -1)
        count = self.total(x, dim, size) // (x.size(0) * groups)
        return Norm.apply(x, weight, bias, self, shape, (2, 3), count, eps)[0]

    def total(self, x, dim, size):
        """Returns the number of elements of all bands."""
        self.expect(x, dim, size)
        return x.numel() // x.size(dim) * size

    def dropout_bands(self, x, p, train, dim, size):
        """Drops the same elements as `F.dropout` of the whole tensor, as `dropout` does."""
        if self.size == 1 or not train or p == 0:
            return F.dropout(x, p, train)
        sizes = [size if at == dim else own for at, own in enumerate(x.size())]
        order = sorted(range(x.dim()), key=lambda d: (-x.stride(d), d))
        ones = torch.empty_permuted(sizes, order, dtype=x.dtype, device=x.device).fill_(1)
        return x * self.own_rows(F.dropout(ones, p, True), dim)

    def rows(self, size):
        """Returns this rank's number of `size` rows."""
        first, last = self.band(size)
        return last - first

    def all_rows(self, rows, size):
        """Returns the number of rows of which this rank has `rows`."""
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

    def part_sizes(self, name, sizes, *cut):
        """Returns the sizes of this rank's part of a tensor that groups of ranks may cut first."""
        for shard, dim, blocks in self.levels(*cut):
            sizes = shard.sizes(sizes, dim, blocks, name)
        return sizes

    def read_part(self, stored, *cut):
        """Reads this rank's part of such a tensor."""
        *outer, (shard, *inner) = self.levels(*cut)
        for one, dim, _ in outer:
            stored = Stored(stored, dim, one)
        return shard.read(stored, *inner)

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
        """Returns the whole tensor of all ranks' parts."""
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
            # As bytes, which all backends support.
            dist.all_gather_into_tensor(found.view(torch.uint8), flat.view(torch.uint8), group=self.group)
        parts = [part.view(x.size()).unflatten(dim, (blocks, -1)) for part in found.chunk(self.size)]
        return torch.stack(parts, dim + 1).flatten(dim, dim + 2)

    def band(self, size, rank=None):
        """Returns the first row of a rank and the end of its last."""
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
        """Returns the whole tensor of all ranks' rows."""
        if size % self.size == 0:
            return self.joined(x, dim)
        bands = [self.band(size, rank) for rank in range(self.size)]
        return self.moved(x, dim, bands, [(0, size)] * self.size)

    def fetched(self, x, dim, size, taken, fill=0.0):
        """Returns this rank's rows of `taken`; positions outside the image are filled."""
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

    # -- tensors saved for the backward pass

    def attend(self, stage):
        """Makes a stage save only the neighbours' rows of fetched values: this rank's own are those of the source."""
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
        # A tensor that was changed since is not the fetched one.
        if not is_whole or (own._version, tensor._version) != versions:
            return Kept(tensor.detach(), tensor._version)
        behind = at + own.size(dim)
        halo = [tensor.narrow(dim, 0, at), tensor.narrow(dim, behind, tensor.size(dim) - behind)]
        return Kept(own, own._version, [rows.detach().clone() for rows in halo], dim)

    def moved(self, x, dim, has, wants, before=0, behind=0, fill=0.0, adds=False):
        """Returns the wanted rows of this rank, if rank r has the rows from has[r][0] to has[r][1].

        If several ranks have a row, theirs are added. `before` and `behind` are rows of `fill` around them.
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
                        # As bytes, which all backends support.
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
        """Returns the sum of all ranks' terms, in place."""
        if self.size > 1:
            dist.all_reduce(x, group=self.group)
        return x

    def own_sum(self, x, dim, blocks=1):
        """Returns this rank's part of the sum of all ranks' terms."""
        terms = torch.stack(self.parts(x, dim, blocks)).contiguous()
        found = torch.empty_like(terms[0], memory_format=torch.contiguous_format)
        if terms.numel():
            dist.reduce_scatter_tensor(plain(found).view(-1), plain(terms).view(-1), group=self.group)
        return found

    def turned(self, x, from_dim, to_dim):
        """Returns this rank's part along one dimension of a tensor whose parts are along another."""
        # Parts of a channels-last tensor make a stack that is not packed.
        sent = torch.stack(self.parts(x, to_dim)).contiguous()
        found = torch.empty_like(sent)
        if sent.numel():
            dist.all_to_all_single(found.view(-1).view(torch.uint8), sent.view(-1).view(torch.uint8), group=self.group)
        return torch.cat(list(found), from_dim)


class Stored:
    """The part of a stored tensor that a rank has along a dimension, read as a tensor of its own."""

    def __init__(self, stored, dim, shard):
        self.stored, self.dim, self.part = stored, dim, shard.sizes(stored.get_shape(), dim)
        self.first = shard.rank * self.part[dim]

    def get_shape(self):
        return self.part

    def __getitem__(self, index):
        full = [slice(0, size) for size in self.part]
        full[: len(index)] = [slice(*of.indices(size)) for of, size in zip(index, self.part)]
        full[self.dim] = slice(self.first + full[self.dim].start, self.first + full[self.dim].stop)
        return self.stored[tuple(full)]


class Exchange(torch.autograd.Function):
    """An exchange of a value, and the exchange of its gradient."""

    @staticmethod
    def forward(ctx, x, forward, backward, *lent):
        ctx.backward_of, ctx.lent = backward, [tensor.size() for tensor in lent]
        return forward(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.backward_of(gradient), None, None, *(gradient.new_empty(sizes) for sizes in ctx.lent)


class Kept:
    """A tensor saved for the backward pass, with rows before and after it."""

    def __init__(self, own, version, halo=None, dim=0):
        self.own, self.version, self.halo, self.dim = own, version, halo, dim

    def tensor(self):
        # The version check that autograd does for tensors that it saves itself.
        if self.own._version != self.version:
            raise RuntimeError("a tensor that is needed for a gradient was changed in place")
        return self.own if self.halo is None else torch.cat([self.halo[0], self.own, self.halo[1]], self.dim)


class Norm(torch.autograd.Function):
    """A norm of channels, or of groups of them, with mean and variance over all ranks' rows.

    The input is viewed as samples, groups, channels of a group and positions; `over` are the averaged ones.
    """

    @staticmethod
    def forward(ctx, x, weight, bias, shard, shape, over, count, eps):
        flat, single = x.reshape(shape), torch.promote_types(x.dtype, torch.float32)
        mean = shard.all(flat.sum(over, keepdim=True, dtype=single)) / count
        # The result must not be a view, or it could not be changed in place.
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
    """The loss of each row of scores, with a part of the classes on every rank."""

    @staticmethod
    def forward(ctx, x, target, shard, ignore_index):
        dim, classes = min(1, x.dim() - 1), x.size(min(1, x.dim() - 1))
        single = torch.promote_types(x.dtype, torch.float32)
        ignored = target == ignore_index
        in_table = (target >= 0) & (target < classes * shard.size)
        torch._assert_async((in_table | ignored).all(), "a target is not a class")
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
    """Views one number per channel in the shape of `Norm`'s channels."""
    return weight.view(1, shape[1], -1, 1)


def together(gradient):
    """Sums over samples and positions: one number per channel."""
    return gradient.sum((0, 3)).view(-1)


def plain(tensor):
    """Returns a tensor in a type that all backends can add."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
