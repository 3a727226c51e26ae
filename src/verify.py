"""Compares the stages of a folder with the whole model, in the format that a Python process loads.

`model-analyze verify` feeds this file to an interpreter on standard input; the request is the first argument, as JSON.
Answers go to standard output, one JSON document per line: {"done": {...}} ends a success, {"error": {...}} a failure.
The stages' own output goes to standard error.

Both sides run here on the same inputs: outputs once, then training steps whose gradients and losses are compared. It
does not depend on how stages are written: it calls them in order and gives each the inputs that the manifest names.

Stages that several devices share run in one process per device, of which this is one (`Ranks`). The first also has the
whole model, and compares; all hold their parts of every stage. Replicated tensors must be equal on all, and the traffic
of each kind of collective is counted and compared with the manifest.
"""

import functools
import importlib.util
import json
import math
import os
import sys
from fractions import Fraction
from pathlib import Path

# Learning rate of the steps; gradients of this many first steps are compared.
RATE, COMPARED_STEPS = 0.01, 4
# Standard deviation of the random numbers that zero parameters get after the first step: behind a head of zeros every
# gradient is zero.
DEVIATION = 0.02
# Below this share of the model's largest gradient a parameter's own gradient is noise around zero.
NOISE = 1e-3
# A gradient may be off by this many times what weights that change in their last bits change it by, and by no more than
# this share of its largest value.
TIMES_ROUNDING, MOST_ROUNDING = 10, 1e-3


class Refused(Exception):
    """A comparison that is impossible; the text is for the user."""


class Ranks:
    """The processes that share stages, of which this is one; most stages are not shared."""

    def __init__(self, request):
        about = request["ranks"]
        self.number, self.size, self.group, self.counted, self.pass_ = 0, 1, None, {}, None
        if about is None:
            return
        from datetime import timedelta

        import torch.distributed as dist

        if sys.platform == "linux":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self.number, self.size = about["rank"], about["size"]
        dist.init_process_group(
            "gloo", init_method=f"file://{about['store']}", rank=self.number, world_size=self.size, timeout=timedelta(minutes=10)
        )
        self.group = dist.group.WORLD
        self.shards = [self.group]
        if about["groups"] > 1:
            each = self.size // about["groups"]
            inner = [range(first, first + each) for first in range(0, self.size, each)]
            outer = [range(place, self.size, each) for place in range(each)]
            made = {ranks: dist.new_group(list(ranks)) for ranks in (*inner, *outer)}
            self.shards = [made[ranks] for ranks in (inner[self.number // each], outer[self.number % each])]

    @property
    def is_first(self):
        return self.number == 0

    def told(self, make):
        """Returns the result of the first rank."""
        if self.size == 1:
            return make()
        import torch.distributed as dist

        made = [make() if self.is_first else None]
        dist.broadcast_object_list(made, src=0)
        return made[0]

    def all(self, value):
        """Returns the value of each rank."""
        if self.size == 1:
            return [value]
        import torch.distributed as dist

        found = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def shard_of(self, module):
        """Returns this rank's shard of a stage, whose exchanges are counted."""
        shard = module.Shard(*self.shards)
        names = type(shard).__init__.__globals__
        if not isinstance(names["dist"], Counting):
            names["dist"] = Counting(names["dist"], self)
        return shard

    def count(self, collective, sizes, group=None):
        """Counts what this rank sends, or of the whole value of a `group` its share."""
        if self.pass_ is not None:
            share = Fraction(sizes, group.size() if group else 1)
            calls, bytes_ = self.counted.get((self.pass_, collective), (0, 0))
            self.counted[self.pass_, collective] = calls + 1, bytes_ + share

    def exchanges(self, manifest, is_double):
        """Returns the traffic of a step next to the manifest's, which is None if the manifest has none."""
        import torch

        planned = None
        for about in manifest["stages"]:
            for row in about.get("exchanges", []):
                planned, size = planned or {}, row["bytes"]
                dtype = getattr(torch, row.get("dtype") or "float32")
                if is_double and (dtype.is_floating_point or dtype.is_complex):
                    size = size * (16 if dtype.is_complex else 8) // dtype.itemsize
                key = row["phase"], row["collective"]
                planned[key] = planned.get(key, 0) + size
        found = self.all(self.counted)
        rows = []
        for key in sorted({key for one in [*found, planned or {}] for key in one}, reverse=True):
            counts = [one.get(key, (0, 0)) for one in found]
            expected = planned.get(key, 0) if planned is not None else None
            total = sum(size for _, size in counts)
            rows.append([*key, max(calls for calls, _ in counts), int(total) if total == int(total) else float(total), expected])
        return rows

    def replicated(self, tensors, worst):
        """Joins the differences of replicated tensors between ranks into the worst so far."""
        import hashlib

        import torch
        import torch.distributed as dist

        def digest(tensor):
            # By its bytes, so that no value can be mistaken for another.
            return hashlib.sha256(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()).hexdigest()

        known = self.all({name: digest(tensor) if tensor.numel() else "" for name, tensor in tensors.items()})
        for name in sorted({name for one in known for name in one}):
            apart = 0.0, 0.0
            if any(name not in one for one in known):
                apart = math.inf, math.inf
            elif any(one[name] != known[0][name] for one in known):
                first = tensors[name].detach().clone(memory_format=torch.contiguous_format)
                dist.broadcast(as_real(first), 0)
                # Different bits of zeros of either sign, or of kinds of NaN, do not differ.
                apart = max(self.all(difference(first, tensors[name])), key=lambda one: (math.isnan(one[1]), one[1]))
            before = worst.setdefault(name, apart)
            if math.isnan(apart[1]) or apart[1] > before[1]:
                worst[name] = apart


class Counting:
    """torch.distributed for stages, with all traffic counted: messages where they are sent, else whole values, once for all
    ranks of a group."""

    def __init__(self, dist, ranks):
        self.dist, self.ranks = dist, ranks

    def __getattr__(self, name):
        return getattr(self.dist, name)

    def all_reduce(self, tensor, *more, group, **options):
        self.ranks.count("all-reduce", tensor.nbytes, group)
        return self.dist.all_reduce(tensor, *more, group=group, **options)

    def all_gather_into_tensor(self, found, *more, group, **options):
        self.ranks.count("all-gather", found.nbytes, group)
        return self.dist.all_gather_into_tensor(found, *more, group=group, **options)

    def reduce_scatter_tensor(self, found, terms, *more, group, **options):
        self.ranks.count("reduce-scatter", terms.nbytes, group)
        return self.dist.reduce_scatter_tensor(found, terms, *more, group=group, **options)

    def all_to_all_single(self, found, sent, *more, **options):
        self.ranks.count("all-to-all", sent.nbytes)
        return self.dist.all_to_all_single(found, sent, *more, **options)

    def batch_isend_irecv(self, messages):
        self.ranks.count("point-to-point", sum(one.tensor.nbytes for one in messages if one.op is self.dist.isend))
        return self.dist.batch_isend_irecv(messages)


def as_real(tensor):
    import torch

    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def functional(outputs, seed):
    """Returns a random linear functional of the outputs that can carry gradients, or None if none can."""
    import torch

    total = None
    for position, output in enumerate(outputs):
        if not (output.is_floating_point() or output.is_complex()) or not output.numel():
            continue
        real = as_real(output)
        dtype = torch.float64 if real.dtype == torch.float64 else torch.float32
        generator = torch.Generator().manual_seed(1_000_003 * (seed + 1) + position)
        weights = torch.randn(real.shape, generator=generator, dtype=dtype).to(real.device)
        term = (real.to(dtype) * weights).sum().double() / math.sqrt(real.numel())
        total = term if total is None else total + term
    return total


def flat(value):
    """Lists the tensors of a result in order."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    if value is None or isinstance(value, (int, float, str, bool)):
        return []
    return [tensor for part in value for tensor in flat(part)]


def leaves(tree):
    """Lists the positions of the last stage's outputs that the model returns, in order."""
    [(kind, value)] = tree.items()
    if kind == "value":
        return [value]
    if kind in ("list", "tuple"):
        return [leaf for part in value for leaf in leaves(part)]
    return [leaf for _, part in value for leaf in leaves(part)] if kind == "dict" else []


def register_results(path):
    """Imports the definitions of the results of a torch.export program, if transformers defines them: torch must
    know them."""
    import importlib
    import re
    import zipfile

    with zipfile.ZipFile(path) as archive:
        documents = [archive.read(name).decode() for name in archive.namelist() if name.endswith(".json")]
    for module in sorted(set(re.findall(r'"(transformers(?:\.\w+)+)\.\w+\\*"', " ".join(documents)))):
        try:
            importlib.import_module(module)
        except ImportError:
            pass


def exported(path, tied):
    """Returns a program of torch.export as a module that takes its inputs one by one."""
    import logging
    import warnings

    import torch
    from torch.utils import _pytree

    # A warning that weights are views of the file is irrelevant.
    warnings.simplefilter("ignore")
    register_results(path)
    # torch reports faults of a file only in the log.
    log, said = logging.getLogger("torch.export"), []
    log.propagate, handler = False, logging.Handler()
    handler.emit = lambda record: said.extend(record.getMessage().strip().splitlines())
    log.addHandler(handler)
    # It opens the example inputs of a file, and if they are not plain tensors, runs the code in their pickle.
    load = torch.load
    torch.load = lambda *arguments, **options: load(*arguments, **(options | {"weights_only": True}))
    try:
        program = torch.export.load(path)
    except Exception as reason:
        reason = said[-1] if said else reason
        raise Refused(f"torch {torch.__version__} does not load the whole model: {reason}") from None
    finally:
        torch.load = load
    specs = [spec.arg for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]

    class Exported(torch.nn.Module):
        def __init__(self):
            super().__init__()
            try:
                self.module = program.module()
            except SyntaxError:
                self.module = interpreted(program)
            for first, *others in tied:
                for name in others:
                    path, _, last = name.rpartition(".")
                    setattr(self.module.get_submodule(path), last, self.module.get_parameter(first))

        def named_parameters(self, *arguments, **options):
            return self.module.named_parameters(*arguments, **options)

        def buffers(self, *arguments, **options):
            return self.module.buffers(*arguments, **options)

        def forward(self, *inputs):
            left = iter(inputs)
            # Constants are inputs, too, but not values of the graph.
            values = [spec.value if hasattr(spec, "value") else next(left) for spec in specs]
            arguments, named = _pytree.tree_unflatten(values, program.call_spec.in_spec)
            return _pytree.tree_leaves(self.module(*arguments, **named))

    return Exported()


def interpreted(program):
    """Returns a program of torch.export as a module, node by node: torch writes Python of its modules' names, some of
    which are words of Python (`class`)."""
    import torch
    from torch.utils import _pytree

    class Interpreted(torch.nn.Module):
        def forward(self, *arguments, **named):
            given = iter(_pytree.tree_flatten((arguments, named))[0])
            values = [next(given) if spec.target is None else at(self, spec.target) for spec in program.graph_signature.input_specs]
            return torch.fx.Interpreter(program.graph_module).run(*values)

    def at(module, name):
        path, _, last = name.rpartition(".")
        return getattr(module.get_submodule(path), last)

    found = Interpreted()
    for name, value in {**program.constants, **program.state_dict}.items():
        module, (*path, last) = found, name.split(".")
        for part in path:
            if part not in module._modules:
                module.add_module(part, torch.nn.Module())
            module = module._modules[part]
        if isinstance(value, torch.nn.Parameter):
            module.register_parameter(last, value)
        else:
            module.register_buffer(last, value)
    return found


class Whole:
    def __init__(self, request):
        import torch

        about = request["whole"]
        self.inputs, self.outputs = about["inputs"], about["outputs"]
        if about["exported"]:
            self.module = exported(about["archive"], about["exported"]["tied"])
        else:
            self.module = torch.jit.load(about["archive"], map_location=request["device"])
        if request["float64"]:
            self.module._apply(wide)

    def __call__(self, inputs):
        # The model may write to its inputs, which stages get as well.
        results = flat(self.module(*[inputs[at].clone() for at in self.inputs]))
        return results if self.outputs is None else [results[at] for at in self.outputs]


def wide(tensor):
    """Returns a tensor with numbers in double precision, complex ones too, which `Module.double` leaves as they are."""
    import torch

    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor


def in_float64():
    """Returns a mode in which all narrower floating types become float64, including the model's casts."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    def floats(tree):
        return [one for one in tree_leaves(tree) if isinstance(one, torch.Tensor) and one.is_floating_point()]

    def grouped(rows, matrices, ends):
        """Multiplies runs of rows with one matrix each; of two matrices, runs of the summed dimension."""
        runs = list(zip([0, *ends.tolist()], ends.tolist()))
        if matrices.dim() == 3:
            return torch.cat([rows[first:last] @ matrix for (first, last), matrix in zip(runs, matrices)])
        return torch.stack([rows[:, first:last] @ matrices[first:last] for first, last in runs])

    class Wide(TorchDispatchMode):
        narrowed = None

        def __torch_dispatch__(self, operator, types, arguments=(), named=None):
            named = dict(named or {})
            if isinstance(named.get("dtype"), torch.dtype):
                is_complex, is_real = named["dtype"].is_complex, named["dtype"].is_floating_point
                named["dtype"] = torch.complex128 if is_complex else torch.float64 if is_real else named["dtype"]
            # Torch has only kernels of float32 and narrower.
            is_grouped = operator is torch.ops.aten._grouped_mm.default and arguments[0].dtype == torch.float64
            made = (grouped if is_grouped else operator)(*arguments, **named)
            if self.narrowed is None and any(one.dtype == torch.float64 and one.dim() for one in floats(arguments)):
                if any(one.dtype != torch.float64 for one in floats(made)):
                    self.narrowed = str(operator)
            return made

        def check(self):
            if self.narrowed:
                raise Refused(f"{self.narrowed} has no float64 form: this model cannot be compared in float64; leave out --float64")

    torch.set_default_dtype(torch.float64)
    return Wide()


def levels(shard, dim, blocks, *first):
    """Returns how a tensor is cut, outermost first: by groups of ranks, if they cut it, and by the ranks of a group, if they do.

    As `Shard.levels` of the stages, which folders that were written before lack.
    """
    found = [(shard.outer, at, 1) for at in first]
    return found if dim is None else [*found, (shard, dim, blocks)]


class Stages:
    """The stages of a folder in one format, in order."""

    def __init__(self, request, form, ranks=None):
        folder = Path(request["folder"]) / "stages"
        self.manifest = json.loads((folder / "manifest.json").read_text())
        self.cuts, self.shards = {}, []
        self.modules = [self.load(folder, about, form, request, ranks) for about in self.manifest["stages"]]
        self.returned = leaves(self.manifest["output"])

    def load(self, folder, about, form, request, ranks):
        import torch

        name, device = about["files"].get(form), request["device"]
        if name is None or name != os.path.basename(name):
            raise Refused(f"stage {about['stage']} has no file in the format {form}")
        if form == "torchscript":
            stage = torch.jit.load(folder / name, map_location=device)
        else:
            spec = importlib.util.spec_from_file_location(name[:-3], folder / name)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            options = {}
            if ranks is not None and ranks.size > 1 and hasattr(module, "CUTS"):
                options["shard"] = ranks.shard_of(module)
                self.cuts |= {name: levels(options["shard"], *cut) for name, cut in module.CUTS.items()}
            # The command has checked the files; a named weights file is used as it is.
            stage = module.load(folder / about["files"]["weights"], device=device, **options)
        return stage._apply(wide) if request["float64"] else stage

    def buffers(self):
        """Lists changing buffers by name."""
        return [(name, buffer) for module in self.modules for name, buffer in module.named_buffers()]

    def __call__(self, inputs):
        known = {f"input:{about['name']}": value for about, value in zip(self.manifest["inputs"], inputs)}
        outputs = []
        for module, about in zip(self.modules, self.manifest["stages"]):
            taken = [(port["from"], known[port["from"]]) for port in about["inputs"]]
            # Each process that runs a stage has inputs of the model for itself, and may write to them.
            outputs = flat(module(*[value.clone() if place.startswith("input:") else value for place, value in taken]))
            if len(outputs) != len(about["outputs"]):
                raise Refused(f"stage {about['stage']} gave {len(outputs)} outputs instead of {len(about['outputs'])}")
            for port, value in zip(about["outputs"], outputs):
                known[f"stage:{about['stage']}:{port['name']}"] = value
        return [outputs[at] for at in self.returned]


def named(module):
    """Returns the trained parameters, each once, with all of its names."""
    found = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            # Two names in an archive are two objects with the same memory.
            key = (parameter.data_ptr(), parameter.shape) if parameter.numel() else id(parameter)
            found.setdefault(key, (parameter, []))[1].append(name)
    return list(found.values())


class Row:
    """A parameter of the whole model, and its copies in stages, each of which may be this rank's part."""

    def __init__(self, parameter, names, owners, stages):
        self.parameter, self.name = parameter, names[0]
        found = {id(copy): (stage, copy) for name in names for stage, copy in owners.get(name, [])}
        self.copies = list(found.values())
        self.cut_name = next((name for name in names if name in stages.cuts), None)
        self.cut = stages.cuts.get(self.cut_name, ())

    def joined(self, part):
        """Returns the whole tensor of the ranks' parts."""
        for shard, dim, blocks in reversed(self.cut):
            part = shard.joined(part, dim, blocks)
        return part

    def own(self, whole):
        """Returns this rank's part of a whole tensor."""
        for shard, dim, blocks in self.cut:
            whole = shard.own(whole, dim, blocks)
        return whole

    def sizes(self):
        """Returns the sizes of the whole tensor."""
        if self.parameter is not None:
            return list(self.parameter.shape)
        sizes = list(self.copies[0][1].shape)
        for shard, dim, blocks in self.cut:
            if blocks == 0:  # all of it is on the first rank
                return shard.whole_sizes[self.cut_name]
            sizes[dim] *= shard.size
        return sizes


def rows_of(whole, stages, ranks):
    """Returns a row per trained parameter of the whole model, in the same order on all ranks."""
    owners = {}
    for index, module in enumerate(stages.modules):
        for parameter, names in named(module):
            for name in names:
                owners.setdefault(name, []).append((index, parameter))
    parameters = named(whole.module) if whole else []
    all_names = ranks.told(lambda: [names for _, names in parameters])
    return [
        Row(parameters[at][0] if whole else None, names, owners, stages) for at, names in enumerate(all_names)
    ]


def draw(spec, seed):
    """Draws an input from its recorded range."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    shape, dtype = spec["shape"], getattr(torch, spec["dtype"])
    if spec.get("known") is not None:
        return torch.tensor(spec["known"], dtype=torch.float64).reshape(shape).to(dtype)
    low, high = spec["range"] or (None, None)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    if dtype.is_floating_point or dtype.is_complex:
        if low is not None:
            return (torch.rand(shape, generator=generator) * (high - low) + low).to(dtype)
        return torch.randn(shape, generator=generator, dtype=dtype if dtype.is_complex else None).to(dtype)
    low, high = (int(low), max(int(high), int(low) + 1)) if low is not None else (0, max(spec["below"], 1))
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def difference(expected, found, least=0.0):
    """Returns the largest difference of two tensors, absolute and relative to the largest value."""
    import torch

    expected, found = dense(expected), dense(found)
    if expected.shape != found.shape or expected.dtype != found.dtype:
        kinds = [f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for t in (expected, found)]
        raise Refused(f"is {kinds[0]} in the model, {kinds[1]} in the stages")
    # Mostly they are bitwise equal, which needs no arithmetic.
    if torch.equal(expected, found):
        return 0.0, 0.0
    a, b = (as_real(t.detach()).double() for t in (expected, found))
    is_same = (a == b) | (a.isnan() & b.isnan())
    absolute = float((a - b).abs().masked_fill(is_same, 0.0).max())
    scale = max(float(a.nan_to_num(0.0, 0.0, 0.0).abs().max()), least, sys.float_info.min)
    return absolute, absolute / scale if absolute else 0.0


def dense(tensor):
    """Returns the gradient of an embedding with sparse=True as any other."""
    import torch

    return tensor if tensor.layout == torch.strided else tensor.detach().to_dense()


def largest_of(tensor):
    return float(as_real(dense(tensor).detach()).abs().max()) if tensor is not None and tensor.numel() else 0.0


def differences_of(rows, expected, found, worst, tolerance, moved):
    """Joins the gradients of a step into the worst of all steps so far.

    `moved` makes the gradients of weights that are changed in their last bits.
    """
    import torch

    largest = max((largest_of(gradient) for gradient in expected), default=0.0)
    for row, a, b in zip(rows, expected, found):
        if not row.copies:
            if a is not None:
                raise Refused(f"no stage holds parameter `{row.name}`")
            continue
        zeros = torch.zeros_like(row.parameter)
        a, b = (zeros if gradient is None else dense(gradient) for gradient in (a, b))
        absolute, relative = difference(a, b, NOISE * largest)
        if tolerance < relative <= MOST_ROUNDING:
            # Where terms cancel, as in the gradient of a bias before a batch norm, rounding is all that is left.
            by_a_bit = next((m for other, m in zip(rows, moved()) if other is row), None)
            rounding = TIMES_ROUNDING * difference(a, zeros if by_a_bit is None else by_a_bit)[0]
            relative = difference(a, b, max(NOISE * largest, rounding / tolerance))[1]
        is_zero = not a.any() and not b.any()
        before = worst.setdefault(row.name, [row.copies[0][0], absolute, relative, True])
        if math.isnan(relative) or relative > before[2]:
            before[1:3] = [absolute, relative]
        before[3] = before[3] and is_zero


def moved_by_a_bit(whole, rows, inputs, step):
    """Returns the whole model's gradients with each weight moved up or down by its last bit, at random."""
    import torch

    drawn = torch.Generator().manual_seed(0)
    parameters = [row.parameter for row in rows]
    kept = [(tensor, tensor.detach().clone()) for tensor in [*parameters, *whole.module.buffers()]]
    for parameter in parameters:
        signs = torch.randint(0, 2, parameter.shape, generator=drawn).to(parameter.device) * 2 - 1
        parameter.data.mul_(1 + signs * torch.finfo(parameter.dtype).eps)
    try:
        torch.manual_seed(step)
        loss = functional(whole(inputs), step)
        return torch.autograd.grad(loss, parameters, allow_unused=True)
    finally:
        for tensor, value in kept:
            tensor.data.copy_(value)


def compare(request, form, ranks):
    stages = Stages(request, form, ranks)
    whole = Whole(request) if ranks.is_first else None
    if not request["float64"]:
        return compared(request, form, ranks, whole, stages)
    with in_float64() as wide:
        found = compared(request, form, ranks, whole, stages)
    wide.check()
    return found


def compared(request, form, ranks, whole, stages):
    import torch

    rows = rows_of(whole, stages, ranks)
    # Parameters of shared stages are changed after each compared step, and trained from then on: ones and zeros hide
    # values that are added or summed at the wrong place, and after a wrong gradient everything would be wrong.
    is_moved = [ranks.size > 1 or bool(r.parameter.numel()) and not r.parameter.detach().any() for r in rows]
    moves, untrained = (COMPARED_STEPS, COMPARED_STEPS) if ranks.size > 1 else (1, 0)
    outputs, losses, worst, rate, replicated, exchanges = {}, [], {}, None, {}, []
    for step in range(max(request["steps"], 1)):
        inputs = [
            draw(spec, request["seed"] + step * len(request["inputs"]) + at).to(request["device"])
            for at, spec in enumerate(request["inputs"])
        ]
        if request["float64"]:
            inputs = [wide(value) for value in inputs]
        # Dropout in training mode draws the same numbers on both sides.
        expected = None
        if whole:
            torch.manual_seed(step)
            expected = whole(inputs)
        torch.manual_seed(step)
        ranks.counted, ranks.pass_ = {}, "forward"
        found = stages(inputs)
        ranks.pass_ = None
        is_compared = step < COMPARED_STEPS
        if whole and (step == 0 or is_compared and ranks.size > 1):
            if len(expected) != len(found):
                raise Refused(f"the model gives {len(expected)} outputs, the stages {len(found)}")
            for at, (a, b) in enumerate(zip(expected, found)):
                try:
                    apart = difference(a, b)
                except Refused as reason:
                    raise Refused(f"output {at} {reason}") from None
                before = outputs.setdefault(f"output {at}", apart)
                if math.isnan(apart[1]) or apart[1] > before[1]:
                    outputs[f"output {at}"] = apart
        if not request["steps"]:
            break
        own = functional(found, step)
        loss = functional(expected, step) if whole else own
        if loss is None or own is None:
            break
        losses.append([float(loss.detach()), float(own.detach())])
        if not ranks.told(lambda: loss.requires_grad):
            break
        trained = [row for row in rows if row.parameter is None or row.parameter.requires_grad]
        gradients = [None] * len(trained)
        if whole and trained:
            gradients = torch.autograd.grad(loss, [row.parameter for row in trained], allow_unused=True)
        leaf = [copy for row in trained for _, copy in row.copies]
        ranks.pass_ = "backward"
        of_copies = torch.autograd.grad(own, leaf, allow_unused=True) if leaf and own.requires_grad else [None] * len(leaf)
        ranks.pass_ = None
        by_copy = {id(copy): gradient for copy, gradient in zip(leaf, of_copies)}
        sums = []
        for row in trained:
            known = [by_copy[id(copy)] for _, copy in row.copies if by_copy[id(copy)] is not None]
            total = sum(known[1:], known[0]) if known else None
            # Shards compare and join gradients in their memory's order.
            sums.append(dense(total) if known and ranks.size > 1 else total)
        if is_compared:
            joined = []
            for row, total in zip(trained, sums):
                if total is None and row.cut:
                    total = torch.zeros_like(row.copies[0][1])
                joined.append(total if total is None else row.joined(total))
            if whole:
                moved = functools.cache(lambda: moved_by_a_bit(whole, trained, inputs, step))  # noqa: B023
                tolerance = 0.0 if request["float64"] else request["tolerance"]
                differences_of(trained, gradients, joined, worst, tolerance or math.inf, moved)
        if is_compared and ranks.size > 1:
            held = {f"output {at}": value for at, value in enumerate(found)}
            wholes = [(row, total) for row, total in zip(trained, sums) if not row.cut and total is not None]
            held |= {f"gradient of {row.name}": total for row, total in wholes}
            held |= {name: value for name, value in stages.buffers() if name not in stages.cuts}
            ranks.replicated(held, replicated)
            step_exchanges = ranks.exchanges(stages.manifest, request["float64"])
            # All steps exchange the same, or the first that differs is shown.
            exchanges = exchanges if any(r[4] is not None and r[3] != r[4] for r in exchanges) else step_exchanges
        with torch.no_grad():
            if step == untrained:
                norm = lambda tensors: math.sqrt(sum(float(t.norm()) ** 2 for t in tensors))  # noqa: E731

                def slowed():
                    # Diverging numbers could not be compared.
                    size = norm([g for g in gradients if g is not None])
                    return RATE * min(1.0, norm([row.parameter for row in trained]) / size) if size else RATE

                rate = ranks.told(slowed)
            for row, gradient, total in zip(trained, gradients, sums) if step >= untrained else []:
                if gradient is not None:
                    row.parameter -= rate * gradient
                for _, copy in row.copies if total is not None else []:
                    copy -= rate * total
            moved = [row for row, is_one in zip(rows, is_moved) if is_one and row.copies] if step < moves else []
            for number, row in enumerate(moved):
                generator = torch.Generator().manual_seed(step * len(moved) + number)
                noise = torch.randn(row.sizes(), generator=generator) * DEVIATION
                if row.parameter is not None:
                    row.parameter += noise.to(row.parameter.device, row.parameter.dtype)
                for _, copy in row.copies:
                    copy += row.own(noise.to(copy.device, copy.dtype))
    found = {"form": form, "outputs": [[name, *row] for name, row in outputs.items()]}
    found |= {"gradients": [[name, *row] for name, row in worst.items()], "losses": losses}
    if ranks.size > 1:
        found["shards"] = {"ranks": ranks.size, "replicated": [[name, *apart] for name, apart in replicated.items()], "exchanges": exchanges}
    return found


def locate(request):
    """Finds the first stage whose two formats differ, given the same inputs; each stage starts with its own weights."""
    import torch

    scripted, written = Stages(request, "torchscript"), Stages(request, "python")
    inputs = [draw(spec, request["seed"] + at).to(request["device"]) for at, spec in enumerate(request["inputs"])]
    known = {f"input:{about['name']}": value for about, value in zip(scripted.manifest["inputs"], inputs)}
    for about, one, other in zip(scripted.manifest["stages"], scripted.modules, written.modules):
        made = []
        for module in (one, other):
            arguments = [known[port["from"]].detach().clone() for port in about["inputs"]]
            arguments = [a.requires_grad_() if a.is_floating_point() or a.is_complex() else a for a in arguments]
            torch.manual_seed(about["stage"])
            made.append((arguments, flat(module(*arguments))))
        (own, expected), (others, found) = made
        for port, a, b in zip(about["outputs"], expected, found):
            try:
                relative = difference(a, b)[1]
            except Refused as reason:
                return {"stage": about["stage"], "tensor": f"output {port['name']} {reason}", "difference": math.inf}
            if not relative <= request["tolerance"]:
                return {"stage": about["stage"], "tensor": f"output {port['name']}", "difference": relative}
            known[f"stage:{about['stage']}:{port['name']}"] = a.detach()
        leaves_of = [dict((name, p) for p, [name, *_] in named(module)) for module in (one, other)]
        names = [f"input {port['name']}" for port in about["inputs"]]
        sides = []
        for arguments, outputs, parameters in zip((own, others), (expected, found), leaves_of):
            loss = functional(outputs, about["stage"])
            leaf = {n: a for n, a in zip(names, arguments) if a.requires_grad} | parameters
            is_live = loss is not None and loss.requires_grad and leaf
            gradients = torch.autograd.grad(loss, list(leaf.values()), allow_unused=True) if is_live else [None] * len(leaf)
            sides.append(dict(zip(leaf, gradients)))
        largest = max((largest_of(g) for g in sides[0].values()), default=0.0)
        for name, a in sides[0].items():
            b = sides[1].get(name)
            like = a if a is not None else b
            if like is None:
                continue
            a, b = (torch.zeros_like(like) if g is None else g for g in (a, b))
            relative = difference(a, b, NOISE * largest)[1]
            if not relative <= request["tolerance"]:
                return {"stage": about["stage"], "tensor": f"gradient of {name}", "difference": relative}
    return None


def plain(value):
    """Converts a value for JSON: infinities and NaN become words."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list) else value


def main():
    request = json.loads(sys.argv[1])
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    # The stages' output must not mix with the messages here.
    os.dup2(2, 1)
    sys.stdout = sys.stderr

    def say(**line):
        channel.write(json.dumps(plain(line)) + "\n")

    form = ""
    # A traced convolution has its own TF32 flag, and TF32 kernels differ in the fourth digit: NVIDIA's libraries read
    # this setting when they are loaded.
    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
    try:
        try:
            import torch
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] != "torch":
                raise
            say(error={"kind": "no-torch", "message": str(error), "python": sys.executable})
            return 2
        if not torch.__version__.startswith("2.11."):
            raise Refused(f"stages are for torch 2.11, {sys.executable} has {torch.__version__}")
        if request["threads"]:
            torch.set_num_threads(request["threads"])
        for library in request["libraries"]:
            importlib.import_module(library)
        # TorchScript's optimizer sums gradients in another order, and so may cuDNN from call to call.
        torch._C._set_graph_executor_optimize(False)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.deterministic = True
        if request["task"] == "locate":
            say(done={"found": locate(request)})
            return 0
        alone, shared = Ranks(request | {"ranks": None}), Ranks(request)
        found = []
        for form in request["forms"]:
            ranks = shared if form == "python" else alone
            if form == "python" or shared.is_first:
                found.append(compare(request, form, ranks))
        say(done={"compared": found})
        return 0
    except Refused as error:
        say(error={"kind": "refused", "message": str(error), "form": form})
    except KeyboardInterrupt:
        say(error={"kind": "refused", "message": "interrupted", "form": form})
    except (Exception, SystemExit) as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        # Another rank has ended, and reports the cause.
        kind = "peer" if request["ranks"] and ("Connection" in str(error) or "gloo" in str(error)) else "python"
        # The fault inside a trace is in the last lines.
        lines = lines if len(lines) <= 8 else lines[:5] + lines[-3:]
        say(error={"kind": kind, "message": f"{type(error).__name__}: " + "\n".join(lines), "form": form})
    return 2


if __name__ == "__main__" and len(sys.argv) > 1:
    code = main()
    sys.stderr.flush()
    # Exits immediately: some libraries hang or crash while the interpreter shuts down.
    os._exit(code)
