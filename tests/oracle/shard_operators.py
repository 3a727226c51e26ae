"""The exchanges between shards (`stages/shards.py`), beside torch on whole tensors: values, gradients, random numbers.

    python tests/oracle/shard_operators.py COMMAND FOLDER

On one process, and on 2, 3 and 4 of gloo, in float64. Then faults are planted in the file, one after the other: each must be
found. Prints a line for each case and exits 1 when one fails.
"""

import itertools
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parent))
import torchrun as processes

SOURCE = processes.ROOT / "codegen/src/python/shards.py"
TIGHT = 1e-12
FAULTS = {
    "copy without its sum": ("self.exchanged(x, self.same, self.sum)", "self.exchanged(x, self.same, self.same)"),
    "reduce with a sum in its gradient": ("self.exchanged(x, self.sum, self.same)", "self.exchanged(x, self.sum, self.sum)"),
    "gather_split without its sum": ("lambda g: self.own_sum(g, dim, blocks)", "lambda g: self.own(g, dim, blocks)"),
    "once on all ranks": ("if self.rank == 0 else torch.zeros_like(x)", "if self.rank >= 0 else torch.zeros_like(x)"),
    "blocks in a wrong order": ("unflatten(dim, (blocks, -1))", "unflatten(dim, (1, -1))"),
    "exchange that stays": ("lambda g: self.turned(g, to_dim, from_dim)", "lambda g: self.turned(g, from_dim, to_dim)"),
    "a mask of the part": ("x * self.own(F.dropout(ones, p, True), dim, blocks)", "F.dropout(x, p, True)"),
    "a mask in another order": ("order = sorted(range(x.dim()), key=lambda d: (-x.stride(d), d))", "order = list(range(x.dim()))"),
    "padding that learns": ("if first <= padding_idx < first + rows else None", "if False else None"),
    "padding of another rank": ("padding_idx - first if first <= padding_idx < first + rows else None", "padding_idx % rows if padding_idx >= 0 else None"),
    "positions that look at those of later ranks": ("seen = count * (self.rank + 1)", "seen = count * self.size"),
    "positions of the first rank": (".tril(seen - count)", ".tril(0)"),
    "rows of other experts": ("narrow(0, self.rank * each, each) - first", "narrow(0, 0, each)"),
    "rows of experts without their gradients' sum": ("lambda g, bands: self.moved(g, 0, [(0, bands[-1][1])] * self.size, bands, adds=True)", "lambda g, bands: self.own_of(g, bands)"),
    "rows in the order of their ranks": ("torch.empty_like(arrived).index_copy_(0, order, arrived)", "arrived"),
    "gradients in the order of rows": ("self.dealt(g[order], got, sent)", "self.dealt(g, got, sent)"),
    "rows of the first block alone": ("block * length + place % length", "place % length"),
    "gradients of one copy of a row": ("g.new_zeros([rows, *g.size()[1:]]).index_add_(0, chosen, arrived)", "g.new_zeros([rows, *g.size()[1:]]).index_copy_(0, chosen, arrived)"),
    "rows that are routed evenly": ("ends = offsets[each - 1 :: each].tolist()", "ends = [int(offsets[-1]) * (r + 1) // self.size for r in range(self.size)]"),
    "a target of another rank": ("squeeze(dim).masked_fill(elsewhere, 0)", "squeeze(dim)"),
    "a gradient of another rank's target": ("(elsewhere.to(shares.dtype) - 1)", "(elsewhere.to(shares.dtype) * 0 - 1)"),
    "a largest score of the part": ("dist.all_reduce(largest, dist.ReduceOp.MAX, group=shard.group)", "pass"),
    "an ignored target that teaches": ("masked_fill(ignored, 0).unsqueeze(dim)", "unsqueeze(dim)"),
    "targets of one rank alone": ("total / self.all((target != ignore_index).sum())", "total / (target != ignore_index).sum()"),
    "rows of other ranks": ("found.masked_fill(is_elsewhere.unsqueeze(-1), 0)", "found"),
}


def drawn(*sizes, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sizes, generator=generator, dtype=torch.float64).to(dtype)


def same(name, found, expected, allowed=0.0):
    assert found.shape == expected.shape and found.dtype == expected.dtype, (name, found.shape, expected.shape)
    if allowed == 0.0:
        assert torch.equal(found, expected), (name, (found.double() - expected.double()).abs().max())
    else:
        assert torch.allclose(found, expected, rtol=allowed, atol=allowed), (name, (found - expected).abs().max())


def gradient_of(output, value, cotangent):
    return torch.autograd.grad(output, value, cotangent)[0]


def moves(shard, dtype=torch.float64):
    """Each operator's values, and its gradients as the transpose of what it does; `whole` is what all ranks know."""
    n, rank = shard.size, shard.rank
    # A stack of channels-last parts is not packed.
    whole = drawn(2 * n, 4 * n, 3, 5, seed=1, dtype=dtype).contiguous(memory_format=torch.channels_last)
    x = shard.own(whole, 0, 1).contiguous(memory_format=torch.channels_last).requires_grad_()
    same("exchange of channels-last", shard.exchange(x, 0, 1), shard.own(whole, 1, 1))
    same("reduce_scatter of channels-last", shard.reduce_scatter(whole, 1, 1), shard.own(whole * n, 1, 1), TIGHT)
    for (dim, blocks), order in itertools.product(((0, 1), (1, 1), (-1, 1), (2, 3), (1, 2)), ((0, 1, 2), (2, 0, 1))):
        sizes = [n * 2, n * 4, n * 6]
        # Also tensors that are not contiguous.
        permuted = torch.empty(3, dtype=torch.long).scatter_(0, torch.tensor(order), torch.arange(3)).tolist()
        whole = drawn(*(sizes[d] for d in order), seed=1, dtype=dtype).permute(permuted)
        assert list(whole.shape) == sizes
        own = shard.own(whole, dim, blocks)
        parts = [torch.cat([part.chunk(n, dim)[r] for part in whole.chunk(blocks, dim)], dim) for r in range(n)]
        same("own", own, parts[rank])
        terms = [drawn(*sizes, seed=10 + r, dtype=dtype) for r in range(n)]
        total = sum(terms[1:], terms[0])
        loose = TIGHT if n > 2 else 0.0  # a sum of two has one order
        named = f"{dim} {blocks} of {n}"

        x = whole.clone().requires_grad_()
        y = shard.copy(x)
        same(f"copy {named}", y, whole)
        same(f"copy's gradient {named}", gradient_of(y, x, terms[rank]), total, loose)

        x = terms[rank].clone().requires_grad_()
        y = shard.reduce(x)
        same(f"reduce {named}", y, total, loose)
        same(f"reduce's gradient {named}", gradient_of(y, x, whole), whole)

        x = whole.clone().requires_grad_()
        y = shard.scatter(x, dim, blocks)
        same(f"scatter {named}", y, own)
        same(f"scatter's gradient {named}", gradient_of(y, x, own), whole)

        x = own.clone().requires_grad_()
        y = shard.gather(x, dim, blocks)
        same(f"gather {named}", y, whole)
        same(f"gather's gradient {named}", gradient_of(y, x, whole), own)

        x = own.clone().requires_grad_()
        y = shard.gather_split(x, dim, blocks)
        same(f"gather_split {named}", y, whole)
        same(f"gather_split's gradient {named}", gradient_of(y, x, terms[rank]), shard.own(total, dim, blocks), loose)

        x = terms[rank].clone().requires_grad_()
        y = shard.reduce_scatter(x, dim, blocks)
        same(f"reduce_scatter {named}", y, shard.own(total, dim, blocks), loose)
        same(f"reduce_scatter's gradient {named}", gradient_of(y, x, own), whole)

        for to_dim in range(3):
            if blocks == 1 and to_dim != dim % 3:
                x = own.clone().requires_grad_()
                y = shard.exchange(x, dim, to_dim)
                same(f"exchange {named} {to_dim}", y, shard.own(whole, to_dim))
                same(f"exchange's gradient {named} {to_dim}", gradient_of(y, x, shard.own(whole, to_dim)), own)

        x = whole.clone().requires_grad_()
        y = shard.once(x)
        same(f"once {named}", shard.reduce(y), whole)
        same(f"once's gradient {named}", gradient_of(y, x, whole), whole)


def kinds(shard):
    """Whole numbers, truth values, short floats and complex ones move, too; nothing is lost on the way."""
    n = shard.size
    base = torch.arange(n * 4 * n * 3).view(n * 4, n * 3)
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64):
        whole = (base % 2 == 1) if dtype == torch.bool else (base % 5).to(dtype)
        same(f"gather {dtype}", shard.gather(shard.scatter(whole, 1), 1), whole)
        same(f"exchange {dtype}", shard.exchange(shard.scatter(whole, 1), 1, 0), shard.own(whole, 0))
        same(f"once {dtype}", shard.reduce(shard.once(whole)), whole)
        same(f"reduce_scatter {dtype}", shard.reduce_scatter(shard.once(whole), 0, 2), shard.own(whole, 0, 2))
    nothing = torch.empty(0, n * 2)
    same("an empty tensor", shard.gather(shard.scatter(nothing, 1), 1), nothing)
    scalar = torch.tensor(1.5)
    same("a number", shard.reduce(shard.once(scalar)), scalar)


def dropout(shard):
    """The mask is the whole tensor's, bit by bit, and so are the numbers that are drawn after it."""
    n = shard.size
    for dtype, order in itertools.product((torch.float32, torch.bfloat16, torch.float64), ((0, 1, 2), (1, 0, 2), (2, 0, 1))):
        whole = drawn(n * 4, 6 * n, n * 5, seed=3, dtype=dtype)
        whole = whole.permute(order).contiguous().permute([order.index(d) for d in range(3)])
        for (dim, blocks), p in itertools.product(((0, 1), (1, 2), (2, 1)), (0.1, 0.5, 1.0)):
            x, y = whole.clone().requires_grad_(), shard.own(whole, dim, blocks)
            if not whole.is_contiguous():  # the part lies in memory as the whole does
                y = y.permute(order).contiguous().permute([order.index(d) for d in range(3)])
            y.requires_grad_()
            torch.manual_seed(7)
            expected = F.dropout(x, p, True)
            state = torch.random.get_rng_state()
            torch.manual_seed(7)
            found = shard.dropout(y, p, True, dim, blocks)
            named = f"dropout {dtype} {order} {dim} {blocks} {p}"
            same(named, found, shard.own(expected.detach(), dim, blocks))
            assert torch.equal(torch.random.get_rng_state(), state), f"{named}: other numbers were drawn"
            cotangent = drawn(*whole.shape, seed=5, dtype=dtype)
            expected = gradient_of(expected, x, cotangent)
            same(f"{named}: gradient", gradient_of(found, y, shard.own(cotangent, dim, blocks)), shard.own(expected, dim, blocks))
    state = torch.random.get_rng_state()
    same("dropout in eval mode", shard.dropout(y, 0.5, False, 0), y)
    same("dropout of nothing", shard.dropout(y, 0.0, True, 0), y)
    assert torch.equal(torch.random.get_rng_state(), state), "numbers were drawn for nothing"


def embedding(shard):
    n = shard.size
    table = drawn(n * 3, 5, seed=4)
    indices = torch.randint(0, n * 3, (4, 7), generator=torch.Generator().manual_seed(2))
    for padding in [-1] + list(range(n * 3)):
        x, y = table.clone().requires_grad_(), shard.own(table, 0).requires_grad_()
        expected = F.embedding(indices, x, None if padding < 0 else padding)
        found = shard.reduce(shard.embedding(y, indices, padding))
        same("embedding", found, expected)
        cotangent = drawn(4, 7, 5, seed=6)
        expected = gradient_of(expected, x, cotangent)
        same(f"embedding's gradient, padding {padding}", gradient_of(found, y, cotangent), shard.own(expected, 0))
    for wrong in (-1, n * 3):
        try:
            shard.embedding(y, torch.tensor([wrong]))
        except RuntimeError as error:
            assert "out of the table" in str(error)
        else:
            raise AssertionError(f"index {wrong} was looked up")


def attention(shard):
    n = shard.size
    for length, heads, keys, scale, width in ((3, 2, 2, None, 4), (1, 4, 2, 0.3, 8), (5, 3, 1, None, 5)):
        sizes = lambda count: (2, count, n * length, width)  # noqa: E731
        whole = [drawn(*sizes(count), seed=20 + at).requires_grad_() for at, count in enumerate((heads, keys, keys))]
        query, key, value = (x.detach().clone().requires_grad_() for x in whole)
        is_grouped = heads != keys
        expected = F.scaled_dot_product_attention(*whole, is_causal=True, scale=scale, enable_gqa=is_grouped)
        # As stages have it: slices of all three, keys and values joined in front of it.
        key_whole, value_whole = (shard.gather_split(shard.own(x, 2), 2) for x in (key, value))
        found = shard.attention(shard.own(query, 2), key_whole, value_whole, scale, is_grouped)
        same(f"attention of {length} positions, {heads} heads over {keys}", found, shard.own(expected, 2), TIGHT)
        cotangent = drawn(*expected.shape, seed=23)
        expected = torch.autograd.grad(expected, whole, cotangent)
        found = torch.autograd.grad(found, (query, key, value), shard.own(cotangent, 2))
        for name, one, other in zip(("query", "key", "value"), found, expected):
            same(f"gradient of the {name} of attention, {heads} heads over {keys}", shard.own(one, 2), shard.own(other, 2), TIGHT)


def experts(shard):
    """Rows of experts, routed evenly, unevenly, and to some alone: what ranks have of them, and products with the experts' matrices."""
    n, rank = shard.size, shard.rank
    count, rows, width, columns = 2 * n, 6 * n, 4, 8
    for counts in ([3] * count, [rows - count + 1] + [1] * (count - 1), [0] * (count - 1) + [rows], [0] * (n - 1) + [rows] + [0] * n):
        offsets = torch.tensor(counts).cumsum(0, dtype=torch.int32)
        ends = [0, *offsets.tolist()]
        first, last = ends[2 * rank], ends[2 * rank + 2]
        whole = drawn(rows, width, seed=40)
        terms = [drawn(rows, width, seed=50 + r) for r in range(n)]
        total = sum(terms[1:], terms[0])
        loose = TIGHT if n > 2 else 0.0
        named = f"of {counts}"

        x = whole.clone().requires_grad_()
        y = shard.to_experts(x, offsets, count)
        same(f"rows to experts {named}", y, whole[first:last])
        same(f"gradient of rows to experts {named}", gradient_of(y, x, terms[0][first:last]), terms[0])

        for name, given, expected in (("from_experts", whole, whole[first:last]), ("from_experts_split", terms[rank], total[first:last])):
            x = whole[first:last].clone().requires_grad_()
            y = getattr(shard, name)(x, offsets, count)
            same(f"{name} {named}", y, whole)
            same(f"gradient of {name} {named}", gradient_of(y, x, given), expected, loose)

        x = whole[first:last].clone().requires_grad_()
        y = shard.experts_term(x, offsets, count)
        same(f"a term {named}", shard.reduce(y), whole)
        same(f"gradient of a term {named}", gradient_of(y, x, whole), whole[first:last])

        # Torch has products of float32 and narrower alone; `verify` has those of float64.
        matrices = drawn(count, width, columns, seed=41, dtype=torch.float32)
        a, b = whole.float().requires_grad_(), matrices.clone().requires_grad_()
        expected = torch._grouped_mm(a, b, offsets)
        x, y = whole.float().requires_grad_(), shard.own(matrices, 0).requires_grad_()
        found = shard.from_experts(shard.grouped_mm(shard.to_experts(x, offsets, count), y, offsets), offsets, count)
        same(f"products {named}", found, expected, 1e-5)
        cotangent = drawn(rows, columns, seed=42, dtype=torch.float32)
        expected, found = (torch.autograd.grad(out, of, cotangent) for out, of in ((expected, (a, b)), (found, (x, y))))
        same(f"gradient of rows {named}", found[0], expected[0], 1e-5)
        same(f"gradient of matrices {named}", found[1], shard.own(expected[1], 0), 1e-5)
    if n > 1:
        try:
            shard.to_experts(whole[1:], offsets, count)
        except ValueError as error:
            assert f"{rows - 1} rows for experts, but offsets for {rows}" in str(error), error
        else:
            raise AssertionError("rows that nobody is told of were taken")


def tokens(shard):
    """Rows that go to the ranks of their experts and come back, while each rank has its own of them, in blocks too."""
    n, rank = shard.size, shard.rank
    count, copies, width = 2 * n, 3, 4
    for blocks in (1, 2):
        rows = 2 * n * blocks
        whole, generator = drawn(rows, width, seed=60), torch.Generator().manual_seed(61)
        even = torch.arange(rows * copies) % count
        for named, chosen in (
            ("evenly", even),
            ("unevenly", torch.randint(0, count, [rows * copies], generator=generator)),
            ("to the last", torch.full_like(even, count - 1)),
        ):
            order = torch.argsort(chosen, stable=True)
            # Positions from the end are those from the start.
            positions, back = order // copies, torch.argsort(order)
            positions = torch.where(positions % 2 == 0, positions, positions - rows)
            back = torch.cat([back, back[:n * blocks]]) - (0 if named == "evenly" else rows * copies)
            offsets = chosen.bincount(minlength=count).cumsum(0, dtype=torch.int32)
            ends = [0, *offsets.tolist()]
            first, last = ends[2 * rank], ends[2 * rank + 2]
            named = f"{named} in {blocks} blocks"

            x = shard.own(whole, 0, blocks).requires_grad_()
            y = shard.dispatch(shard.take(x, positions, rows, blocks), positions, offsets, count, rows, blocks)
            same(f"rows dispatched {named}", y, whole[positions][first:last])
            terms = drawn(rows * copies, width, seed=62)
            expected = torch.zeros_like(whole).index_add(0, positions % rows, terms)
            same(f"gradient of rows dispatched {named}", gradient_of(y, x, terms[first:last]), shard.own(expected, 0, blocks), TIGHT)

            # Some rows are fetched twice.
            back = back[: len(back) - len(back) % (n * blocks)]
            x = terms[first:last].clone().requires_grad_()
            y = shard.combine(x, back, offsets, count, blocks)
            same(f"rows combined {named}", y, shard.own(terms[back], 0, blocks))
            cotangent = drawn(len(back), width, seed=63)
            expected = torch.zeros_like(terms).index_add(0, back % len(terms), cotangent)
            same(f"gradient of rows combined {named}", gradient_of(y, x, shard.own(cotangent, 0, blocks)), expected[first:last], TIGHT)


def cross_entropy(shard):
    n = shard.size
    classes = n * 5
    for sizes, (reduction, name) in itertools.product(((7, classes), (classes,), (3, classes, 4)), enumerate(("none", "mean", "sum"))):
        dim, of_target = min(1, len(sizes) - 1), [size for at, size in enumerate(sizes) if at != min(1, len(sizes) - 1)]
        # Scores of which only differences count.
        scores = drawn(*sizes, seed=8) * 3 + 1000
        for dtype, allowed in ((torch.float64, TIGHT), (torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
            x, y = scores.to(dtype).requires_grad_(), shard.own(scores.to(dtype), dim).clone().requires_grad_()
            target = torch.randint(0, classes, of_target, generator=torch.Generator().manual_seed(9))
            if target.dim() and n > 1:
                target[0] = -100
            expected = F.cross_entropy(x.float() if dtype == torch.bfloat16 else x, target, reduction=name).to(dtype)
            found = shard.cross_entropy(y, target, reduction)
            same(f"cross entropy {sizes} {name} {dtype}", found, expected, allowed)
            cotangent = drawn(*expected.shape, seed=10, dtype=dtype)
            expected, found = gradient_of(expected, x, cotangent), gradient_of(found, y, cotangent)
            same(f"gradient of cross entropy {sizes} {name} {dtype}", found, shard.own(expected, dim), allowed)
    nothing = shard.cross_entropy(y.detach()[:0], target[:0], 2)
    same("cross entropy of nothing", nothing, torch.zeros_like(nothing))
    # Rows in parts, of which unequal numbers count.
    scores, labels = drawn(n * 3, 5, seed=8), torch.arange(n * 3) % 5
    x, z, own = scores.clone().requires_grad_(), shard.own(scores, 0).clone().requires_grad_(), shard.own(labels, 0)
    expected = F.cross_entropy(x, labels, ignore_index=1)
    term = shard.per_target(F.cross_entropy(z, own, ignore_index=1, reduction="sum"), own, 1)
    same("cross entropy of rows", shard.sum(term.detach()) if n > 1 else term, expected, TIGHT)
    cotangent = torch.ones((), dtype=expected.dtype)
    expected, found = gradient_of(expected, x, cotangent), gradient_of(term, z, cotangent)
    same("gradient of cross entropy of rows", found, shard.own(expected, 0), TIGHT)
    try:
        shard.cross_entropy(y, torch.full_like(target, classes))
    except (RuntimeError, IndexError) as error:
        assert "is not a class" in str(error) or "out of bounds" in str(error), error
    else:
        raise AssertionError("a target that is not a class was taken")


def sizes(shard):
    n = shard.size
    assert shard.part(12 * n) == 12 and shard.whole(5) == 5 * n and shard.sizes([2 * n, 3], 0) == [2, 3]
    for refused in (lambda: shard.part(n + 1), lambda: shard.sizes([n], 0, 2, "w"), lambda: shard.scatter(torch.zeros(n + 1), 0)):
        try:
            refused()
        except ValueError as error:
            assert "does not divide into" in str(error), error
        else:
            raise AssertionError("a size that does not divide was cut")


def layers(shard):
    """A block cut as Megatron cuts it, twice, with two branches that have an exchange each: as one process computes it.

    Ranks that issued the exchanges of a backward pass in different orders would mix up values of one size.
    """
    n, d = shard.size, 4 * shard.size
    weights = [drawn(d, d, seed=20 + i) / d**0.5 for i in range(8)]
    x = drawn(3, d, seed=30)

    def run(shard, weights, x):
        for first, second, third, fourth in (weights[:4], weights[4:]):
            entry = x * 1.0
            kept = lambda x, first=first: shard.dropout(torch.tanh(F.linear(shard.copy(x), first)), 0.3, True, -1)  # noqa: E731
            # What is computed again exchanges again, and drops the same.
            one = shard.reduce(F.linear(checkpoint(kept, entry, use_reentrant=False), second))
            other = shard.reduce(F.linear(torch.sin(F.linear(shard.copy(x * 0.5), third)), fourth))
            x = torch.tanh(x + one) * torch.cos(other)
        return x.square().sum()

    whole = [w.clone().requires_grad_() for w in weights]
    own = [shard.own(w, index % 2).requires_grad_() for index, w in enumerate(weights)]
    alone, together = type(shard)(), x.clone().requires_grad_()
    torch.manual_seed(11)
    expected = run(alone, whole, x)
    torch.manual_seed(11)
    found = run(shard, own, together)
    same("the loss of two layers", found, expected, TIGHT)
    expected, found = torch.autograd.grad(expected, whole), torch.autograd.grad(found, own + [together])
    for index, (a, b) in enumerate(zip(expected, found)):
        same(f"gradient {index} of two layers", b, shard.own(a, index % 2), TIGHT)


def alone(shard):
    """On one rank all is as torch does it, and what is returned may be changed in place."""
    x = drawn(4, 6).requires_grad_()
    for name in ("copy", "reduce", "once"):
        y = getattr(shard, name)(x * 1.0)
        same(name, y.relu_(), x.detach().relu())
    for name in ("scatter", "gather", "gather_split", "reduce_scatter"):
        same(name, getattr(shard, name)(x * 1.0, 1, 2).relu_(), x.detach().relu())
    same("exchange", shard.exchange(x, 0, 1), x)
    same("joined", shard.joined(x.detach(), 0), x.detach())


CASES = (moves, kinds, dropout, embedding, attention, experts, tokens, cross_entropy, sizes, layers)


def together(count, source, place):
    """Runs all cases in so many processes; returns their exit codes and what they said."""
    store = place / f"store_{len(list(place.iterdir()))}"
    store.touch()

    def rank(number):
        def run():
            torch.set_num_threads(1)
            meeting = dist.FileStore(str(store), count)
            dist.init_process_group("gloo", rank=number, world_size=count, store=meeting, timeout=timedelta(seconds=60))
            shard = processes.module_of(source, "shards").Shard(dist.group.WORLD)
            assert (shard.rank, shard.size) == (number, count)
            for case in CASES:
                case(shard)
            dist.barrier()

        return run

    return processes.ended([processes.forked(rank(number)) for number in range(count)])


def by_itself():
    one = processes.module_of(SOURCE, "shards").Shard()
    for case in (alone, dropout, embedding, experts, tokens, layers):
        case(one)


if __name__ == "__main__":
    place = Path(sys.argv[2])
    is_right = True

    def tell(name, ok, text=""):
        global is_right
        is_right = is_right and ok
        print(f"{'ok' if ok else 'WRONG'}: {name}{'' if ok else chr(10) + text}", flush=True)

    codes, texts = processes.ended([processes.forked(by_itself)])
    tell("one process", not any(codes), texts[0])
    for count in (2, 3, 4):
        codes, texts = together(count, SOURCE, place)
        tell(f"{count} processes", not any(codes), chr(10).join(texts))
    for name, (old, new) in FAULTS.items():
        text = SOURCE.read_text()
        assert text.count(old) >= 1, old
        mutant = place / "mutant.py"
        mutant.write_text(text.replace(old, new))
        codes, texts = together(2, mutant, place)
        found = any("AssertionError" in text or "invalid gradient" in text for text in texts)
        tell(f"found: {name}", any(codes) and found, chr(10).join(texts))
    sys.exit(not is_right)
