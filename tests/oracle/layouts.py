"""Every way to share out an operator's work, beside the operator done whole: results and gradients of each device's part.

    python layouts.py COMMAND FOLDER [--degrees 2,3]

Small functions of all families are traced in one model; `graph/examples/layouts.rs` lists what the rules say of each operator. Each
strategy is then followed by hand in float64: operands are cut as it needs them, numbers changed as it says, the operator runs once
for each device, and what the devices have together must be what one has. No exchange takes part. Exits 1 with every difference.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")
ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "fixtures"))

import torch
import torchvision  # noqa: F401  registers torchvision::*
import zoo
from torch import nn
from torch.nn import functional as F

TOLERANCE = 1e-11
CASES = []


def case(*sizes, ints=()):
    """Registers a function of tensors of these sizes; those in `ints` hold whole numbers."""

    def register(function):
        CASES.append((function, sizes, ints))
        return function

    return register


x = (12, 24, 12)
image = (12, 24, 12, 12)
for one in [
    lambda a: F.relu(a), lambda a: a * 2.0, lambda a: a / 3.0, lambda a: -a, lambda a: a.clone(), lambda a: a.softmax(-1),
    lambda a: a.softmax(1), lambda a: a.cumsum(0), lambda a: a.transpose(0, 2), lambda a: a.permute(2, 0, 1), lambda a: a.unsqueeze(1),
    lambda a: a.view(12, 4, 6, 12), lambda a: a.reshape(12, 288), lambda a: a.view(12, 2, 12, 12).permute(1, 0, 2, 3).unbind(0)[1],
    lambda a: a.flatten(0, 1), lambda a: a.unflatten(1, (4, 6)), lambda a: a[:, 2:5], lambda a: a[:, :, 3], lambda a: a.chunk(2, 1)[0],
    lambda a: a.split(6, 2)[1], lambda a: a.sum(1), lambda a: a.mean((0, 2), keepdim=True), lambda a: a.var(1), lambda a: a.amax(2),
    lambda a: F.pad(a, (1, 2)), lambda a: a.repeat(1, 1, 3), lambda a: a.repeat_interleave(2, 1), lambda a: a.tril(),
    lambda a: a.expand(2, 12, 24, 12), lambda a: a.size(1) * a, lambda a: F.layer_norm(a, (12,)), lambda a: a.clamp(-1.0, 1.0),
    lambda a: a.view(12, 6, 4, 12).sum(2), lambda a: torch.stack([a, a * 3], 1), lambda a: F.rms_norm(a, (24, 12)),
    lambda a: F.avg_pool1d(a, 3), lambda a: a.view(12, 288)[:, None].squeeze(1), lambda a: a.to(torch.float64), lambda a: a.contiguous(),
]:
    case(x)(one)
case((12, 24, 12), (24, 12))(lambda a, b: a + b)
case((12, 24, 12), (12, 1, 12))(lambda a, b: a * b)
case((12, 24, 12), (12, 24, 12))(lambda a, b: a - b)
case((12, 24, 12), (12, 24, 12))(lambda a, b: torch.where(a > b, a, b))
case((12, 24, 12), (12, 24, 12))(lambda a, b: torch.cat([a, b], 1))
case((12, 24, 12), (1, 24, 1))(lambda a, b: a.masked_fill(b > 0, 0.5))
case((12, 24, 12), (36, 12), (36,))(lambda a, w, b: F.linear(a, w, b))
case((12, 24, 12), (36, 12))(lambda a, w: F.linear(a, w))
case((12, 24, 12), (12, 36))(lambda a, b: a @ b)
case((12, 1, 24, 12), (6, 12, 36))(lambda a, b: torch.matmul(a, b))
case((12, 24, 12), (12, 12, 36))(lambda a, b: torch.bmm(a, b))
case((36,), (24, 12), (12, 36))(lambda c, a, b: torch.addmm(c, a, b))
case((12, 24, 36), (12, 24, 12), (12, 12, 36))(lambda c, a, b: torch.baddbmm(c, a, b))
case((12, 6, 24, 12), (12, 6, 12, 12), (12, 6, 12, 12))(lambda q, k, v: F.scaled_dot_product_attention(q, k, v))
case((12, 6, 12, 12), (12, 6, 12, 12), (12, 6, 12, 12))(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))
case((12, 6, 24, 12), (12, 6, 12, 12), (12, 6, 12, 12), (12, 1, 24, 12))(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m))
case((12, 12, 24, 12), (12, 6, 12, 12), (12, 6, 12, 12))(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True))
case((24, 12), (6, 12), ints=(1,))(lambda w, i: F.embedding(i, w))
case((24, 12), (6, 12), ints=(1,))(lambda w, i: F.embedding(i, w, padding_idx=1))
case((12, 24, 12), (12, 24, 12), ints=(1,))(lambda a, i: a.gather(1, i))
case((12, 24, 12), (6,), ints=(1,))(lambda a, i: a.index_select(1, i))
case((12, 24, 12), (6, 12), ints=(1,))(lambda a, i: a[i])
case((12, 24, 12), (6,), ints=(1,))(lambda a, i: a[:, i])
case((12, 24, 12))(lambda a: F.dropout(a, 0.5, False))
NUMBER = nn.Parameter(torch.tensor(1.5))
case((12, 24, 12))(lambda a: (a * NUMBER + NUMBER) / NUMBER)


# As transformers routes: products of experts, what is computed row by row between them, and the rows back in their order.
@case((24, 12), (6, 12, 24), (6, 12, 12), (24, 1), (24,), (6, 24), ints=(4,))
def experts(a, up, down, shares, chosen, bias):
    ids, order = torch.sort(chosen)
    offs = torch.cumsum(torch.histc(ids.float(), 6, 0, 5), 0, dtype=torch.int32)
    gate, up = (torch._grouped_mm(a, up, offs) + bias[ids]).chunk(2, -1)
    found = torch._grouped_mm(F.rms_norm(F.silu(gate) * up, (12,)), down, offs) * shares
    return found[torch.argsort(order)].view(12, 2, 12).sum(1)


case(image, (36, 24, 3, 3), (36,))(lambda a, w, b: F.conv2d(a, w, b, padding=1))
case(image, (24, 2, 3, 3))(lambda a, w: F.conv2d(a, w, groups=12, stride=2))
case(image, (24, 1, 3, 3), (24,))(lambda a, w, b: F.conv2d(a, w, b, groups=24))
case((12, 24, 12), (36, 24, 3))(lambda a, w: F.conv1d(a, w))
case(image, (24, 36, 2, 2), (36,))(lambda a, w, b: F.conv_transpose2d(a, w, b, stride=2))
case(image, (24, 2, 2, 2))(lambda a, w: F.conv_transpose2d(a, w, stride=2, groups=12))
case(image, (24,), (24,), (24,), (24,))(lambda a, m, v, w, b: F.batch_norm(a, m, v * v, w, b, training=False))
case(image, (24,), (24,))(lambda a, w, b: F.batch_norm(a, None, None, w, b, training=True))
case(image, (24,), (24,))(lambda a, w, b: F.group_norm(a, 12, w, b))
case(image)(lambda a: F.instance_norm(a))
case(image)(lambda a: F.max_pool2d(a, 2))
case(image)(lambda a: F.adaptive_avg_pool2d(a, 3))
case(image)(lambda a: F.interpolate(a, scale_factor=2, mode="bilinear"))
case(image)(lambda a: F.pixel_shuffle(a, 2))
case((12, 24, 12), (12,), (12,))(lambda a, w, b: F.layer_norm(a, (12,), w, b))
case((12, 24, 72))(lambda a: a.view(12, 24, 3, 6, 4).permute(2, 0, 3, 1, 4))
case((12, 24, 72))(lambda a: a.chunk(3, 2)[1])
case((12, 24, 72))(lambda a: a.split([24, 24, 24], 2)[2])


class All(nn.Module):
    def __init__(self):
        super().__init__()
        self.number = NUMBER

    def forward(self, *tensors):
        results, at = [], 0
        for function, sizes, _ in CASES:
            # A result of its own for each, or what is alike would be traced once.
            results.append(function(*tensors[at : at + len(sizes)]))
            at += len(sizes)
        return tuple(results)


def traced(archive):
    torch.manual_seed(1)
    tensors = [
        torch.randint(0, 6, size) if at in ints else torch.randn(size)
        for _, sizes, ints in CASES
        for at, size in enumerate(sizes)
    ]
    model, names = zoo.SCRIPT.trace(All(), [(None, one) for one in tensors])
    zoo.SCRIPT.save(model, str(archive), zoo.SCRIPT.record(model, about={}, training=False, outputs=names))


# Where rows of experts end, which are routed unevenly.
ROUTED = [0.25, 0.25, 0.25, 0.75, 1.0, 1.0]


def own(tensor, cut, rank, degree):
    if isinstance(cut, dict) and "first" in cut:
        return tensor if rank == 0 else tensor[:0]
    if isinstance(cut, dict):
        ends, each = [0, *(int(share * tensor.size(0)) for share in ROUTED)], cut["experts"] // degree
        return tensor[ends[rank * each] : ends[rank * each + each]]
    dim, blocks = cut
    parts = [block.chunk(degree, dim)[rank] for block in tensor.chunk(blocks, dim)]
    return torch.cat(parts, dim)


def is_cut(layout):
    return isinstance(layout, (list, dict))


def grouped(rows, matrices, ends):
    """Torch has these products of float32 and narrower alone."""
    runs = zip([0, *ends.tolist()], ends.tolist())
    return torch.cat([rows[first:last] @ matrix for (first, last), matrix in zip(runs, matrices)])


def flat(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [one for item in value for one in flat(item)] if isinstance(value, (list, tuple)) else []


def called(about, values, tensors, special=None, shard=None):
    """Runs an operator on tensors of its leaves, other arguments being `values`."""
    given = [list(value) if isinstance(value, list) else value for value in values]
    for leaf, tensor in zip(about["leaves"], tensors):
        if leaf["item"] is None:
            given[leaf["argument"]] = tensor
        else:
            given[leaf["argument"]][leaf["item"]] = tensor
    named = {a["name"]: value for a, value in zip(about["arguments"], given) if a["given"]}
    if special == "rows":
        return shard.embedding(named["weight"], named["indices"], named.get("padding_idx", -1))
    if about["operator"] == "aten::_grouped_mm":
        given = named["self"], named["mat2"], named["offs"]
        return shard.grouped_mm(*given) if special == "experts" else grouped(*given)
    space, name = about["operator"].split("::")
    return getattr(getattr(torch.ops, space), name)(**named)


def edited(values, strategy, rank, degree):
    """Returns the arguments of one device: sizes of its part."""
    values = [list(value) if isinstance(value, list) else value for value in values]
    is_on_first = isinstance(strategy["gives"], dict) and "first" in strategy["gives"]
    for edit in strategy["edits"]:
        if edit == "multiply":
            continue
        place, item = (values, edit["argument"]) if edit["item"] is None else (values[edit["argument"]], edit["item"])
        if "to" in edit:
            place[item] = int(edit["to"].removeprefix("Int(").removesuffix(")"))
        else:
            place[item] = place[item] * (rank == 0) if is_on_first else place[item] // degree
    return values


def differences(about, strategy, degree, Shard):
    """Yields what devices have otherwise than one device, when they follow a strategy."""
    values = [argument["value"] for argument in about["arguments"]]
    tensors = [
        torch.randn(leaf["sizes"], dtype=torch.float64)
        if leaf["dtype"].startswith("float")
        else torch.randint(0, 2 if leaf["dtype"] == "bool" else 6, leaf["sizes"]).to(getattr(torch, leaf["dtype"]))
        for leaf in about["leaves"]
    ]
    names = [about["arguments"][leaf["argument"]]["name"] for leaf in about["leaves"]]
    # Statistics are given, and one of them is not square here.
    tensors = [tensor.abs() if name.startswith("running_") else tensor for name, tensor in zip(names, tensors)]
    ends = [int(share * tensors[0].size(0)) for share in ROUTED]
    tensors = [torch.tensor(ends, dtype=torch.int32) if name == "offs" else tensor for name, tensor in zip(names, tensors)]
    floats = [tensor.is_floating_point() and not name.startswith("running_") for name, tensor in zip(names, tensors)]
    whole = [t.clone().requires_grad_(f) for t, f in zip(tensors, floats)]
    results = flat(expected := called(about, values, whole))
    weights = [torch.randn_like(r) if r.is_floating_point() else None for r in results]
    backward(results, weights)
    terms = [[(torch.randn_like if f else torch.zeros_like)(t) for _ in range(degree - 1)] for t, f in zip(tensors, floats)]
    parts, found = [], []
    for rank in range(degree):
        local = []
        for tensor, need, made, is_float in zip(tensors, strategy["needs"], terms, floats):
            if is_cut(need):
                tensor = own(tensor, need, rank, degree)
            elif need == "sum":
                tensor = made[rank] if rank + 1 < degree else tensor - sum(made)
            local.append(tensor.clone().requires_grad_(is_float))
        shard = Shard()
        shard.rank, shard.size = rank, degree
        gives = strategy["gives"]
        got = called(about, edited(values, strategy, rank, degree), local, strategy["special"], shard)
        cut = [own(w, gives, rank, degree) if is_cut(gives) and w is not None else w for w in weights]
        backward(flat(got), cut)
        parts.append(local)
        found.append(got)
    if not results:
        times = degree if "multiply" in strategy["edits"] else 1
        yield from ("a number" for got in found if got * times != expected)
    gives = strategy["gives"]
    for number, result in enumerate(results):
        each = [flat(got)[number] for got in found]
        if gives == "sum":
            yield from off(result, sum(each), "result")
        for rank, part in enumerate(each if gives != "sum" else []):
            yield from off(own(result, gives, rank, degree) if is_cut(gives) else result, part, "result")
    for leaf, (tensor, need) in enumerate(zip(whole, strategy["needs"])):
        if tensor.grad is None or need == "any":
            continue
        each = [local[leaf].grad for local in parts]
        each = [torch.zeros_like(local[leaf]) if grad is None else grad for local, grad in zip(parts, each)]
        if need == "partial":
            yield from off(tensor.grad, sum(each), f"gradient {leaf}")
            continue
        for rank, part in enumerate(each):
            expected = own(tensor.grad, need, rank, degree) if is_cut(need) else tensor.grad
            yield from off(expected, part, f"gradient {leaf}")


def told(*arguments):
    """The same, and what cannot be run: not every operator takes tensors without rows."""
    try:
        yield from differences(*arguments)
    except RuntimeError as error:
        yield f"fails: {str(error).splitlines()[0]}"


def backward(results, weights):
    terms = [(r * w).sum() for r, w in zip(results, weights) if w is not None and r.requires_grad]
    if terms:
        sum(terms).backward()


def off(expected, found, what):
    if expected.shape != found.shape:
        yield f"{what}: {list(found.shape)} for {list(expected.shape)}"
    elif not torch.allclose(expected.double(), found.double(), TOLERANCE, TOLERANCE):
        yield f"{what}: {float((expected.double() - found.double()).abs().max()):.1e} off"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--degrees", default="2,3")
    arguments = parser.parse_args()
    archive = arguments.folder / "layouts.pt"
    traced(archive)
    # Of the whole workspace, as tests are built: a crate by itself would be built again, with other features of what it depends on.
    build = [os.environ.get("CARGO", "cargo"), "build", "--quiet", "--workspace", "--features", "torch", "--example", "layouts"]
    subprocess.run(build, check=True, cwd=ROOT)
    rules = Path(arguments.command).parent / "examples/layouts"
    spec = importlib.util.spec_from_file_location("shards", ROOT / "codegen/src/python/shards.py")
    shards = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(shards)
    torch._grouped_mm = grouped
    tried, wrong, kinds = Counter(), 0, set()
    for degree in map(int, arguments.degrees.split(",")):
        said = subprocess.run([rules, archive, str(degree)], check=True, capture_output=True, text=True).stdout
        for line in said.splitlines():
            about = json.loads(line)
            if not about["operator"].startswith("aten::") or any(leaf["list"] for leaf in about["leaves"]):
                continue
            for strategy in about["strategies"][1:]:
                if isinstance(strategy["special"], dict):
                    continue  # a mask is drawn whole, scores are summed: `shard_operators.py`
                key = (about["operator"], json.dumps(about["arguments"]), json.dumps(about["leaves"]), json.dumps(strategy), degree)
                if tried[key]:
                    continue
                tried[key] += 1
                kinds.add(about["operator"])
                for text in told(about, strategy, degree, shards.Shard):
                    wrong += 1
                    needs, gives = strategy["needs"], strategy["gives"]
                    print(f"{about['operator']} on {degree}: {needs} -> {gives}: {text}", flush=True)
    print(f"{len(tried)} strategies of {len(kinds)} operators, {wrong} differences")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
