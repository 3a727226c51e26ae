"""Builds a PyTorch model, traces it and saves the archive with its shapes inside.

`model-analyze trace` feeds this file to the user's interpreter on standard input; the request is the first argument, as
JSON. All messages go to standard output, one JSON document per line:

    {"step": "..."}                      what is being done
    {"note": "..."}                      something the user may want to know
    {"done": {...}}                      the last line of a success
    {"error": {"step", "message", ...}}  the last line of a failure

The model's own output goes to standard error. Only torch is needed.
"""

import collections.abc
import contextlib
import copy
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import json
import keyword
import os
import sys
import tempfile
import traceback
import types
import warnings

# Nodes that become operands and therefore have no line in the record.
INLINE = {
    "prim::Constant",
    "prim::GetAttr",
    "prim::ListConstruct",
    "prim::TupleConstruct",
    "prim::TupleUnpack",
    "prim::DictConstruct",
    "prim::CallMethod",
}
# Statements that are recorded as a whole; their inner nodes are not listed.
OPAQUE = {"prim::If", "prim::Loop", "prim::With"}


# Of so many parameters one may be left unread without a word: a token for masks, a head for training.
FEW_PARAMETERS = 100
# The most numbers of an input that a record holds, and the first whole number that a float does not.
MOST_NUMBERS, LARGEST_NUMBER = 1 << 16, 1 << 53


class Refused(Exception):
    """A request that cannot be fulfilled; the text is for the user, and the hint suggests what to do."""

    def __init__(self, text, hint=None):
        super().__init__(text)
        self.hint = hint


# The step in which a model shows whether it accepts its inputs.
RUNNING = "running forward"


def dtype_name(dtype):
    return str(dtype).removeprefix("torch.")


def tensor_type(type_):
    """Returns what the tracer recorded about a tensor value, or None."""
    if type_.kind() != "TensorType":
        return None
    known = {}
    if type_.dtype() is not None:
        known["dtype"] = dtype_name(type_.dtype())
    sizes, strides = type_.sizes(), type_.strides()
    if sizes is not None and None not in sizes:
        known["shape"] = list(sizes)
    if strides is not None and None not in strides:
        known["strides"] = list(strides)
    if sizes is not None:
        known["requires_grad"] = type_.requires_grad()
    if type_.device() is not None:
        known["device"] = str(type_.device())
    return known


def inlined_graph(traced):
    """Returns the graph with its calls inlined, as the archive will hold it.

    By default torch simplifies while it inlines: sizes converted to tensors and back, a `cat` of a `cat`. The archive
    keeps these. The first call decides, since torch caches the simplified graphs.
    """
    import torch

    with torch.jit.optimized_execution(False):
        graph = traced.inlined_graph
        # Without simplification a pass inlines one level of calls; a call that remains cannot be inlined.
        before = None
        while (calls := describe_calls(graph)) and calls != before:
            torch._C._jit_pass_inline(graph)
            before = calls
        return graph


def describe_calls(graph):
    return [str(node) for kind in ("prim::CallMethod", "prim::CallFunction") for node in graph.findAllNodes(kind)]


def record_nodes(traced):
    """Returns operator and output types of every node that is an operator, in execution order."""
    graph = inlined_graph(traced)
    attributes = {next(graph.inputs()).debugName(): traced}
    training = set()
    nodes = []
    for node in graph.nodes():
        kind = node.kind()
        if kind == "prim::GetAttr":
            found = getattr(attributes[node.input().debugName()], node.s("name"), None)
            attributes[node.output().debugName()] = found
            if getattr(found, "requires_grad", False):
                training.add(node.output().debugName())
        # A tuple made elsewhere, by the caller or by a loop, is unpacked by an operator.
        takes_apart = kind == "prim::TupleUnpack" and node.input().node().kind() != "prim::TupleConstruct"
        # Marks for a profiler are left out of the program.
        if kind in INLINE and not takes_apart or kind.startswith("profiler::"):
            continue
        outputs = [tensor_type(value.type()) for value in node.outputs()]
        # The tracer records a convolution's result before autograd has marked it.
        if kind == "aten::_convolution" and any(value.debugName() in training for value in node.inputs()):
            outputs[0]["requires_grad"] = True
        for value, type_ in zip(node.outputs(), outputs):
            if type_ and type_.get("requires_grad"):
                training.add(value.debugName())
        nodes.append({"op": "prim::Opaque" if kind in OPAQUE else kind, "outputs": outputs})
    return nodes


def unread(model, traced):
    """Says which parts of a model no operator of its trace reads, where they are more than a few parameters."""
    graph = inlined_graph(traced)
    if describe_calls(graph):
        return None
    paths = {next(graph.inputs()).debugName(): ""}
    for node in graph.findAllNodes("prim::GetAttr", True):
        above = paths.get(node.input().debugName())
        if above is None:
            return None
        paths[node.output().debugName()] = f"{above}.{node.s('name')}".lstrip(".")
    met = set(paths.values())
    # A parameter with several names is read by any of them.
    named = list(model.named_parameters(remove_duplicate=False))
    read = {id(parameter) for name, parameter in named if name in met}

    def parts(module, path):
        within = {id(parameter): parameter.numel() for parameter in module.parameters()}
        if within and not read & set(within):
            yield path, within
            return
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in read:
                yield f"{path}.{name}".lstrip("."), {id(parameter): parameter.numel()}
        for name, child in module.named_children():
            yield from parts(child, f"{path}.{name}".lstrip("."))

    found = list(parts(model, ""))
    absent = sum({one: count for _, within in found for one, count in within.items()}.values())
    total = sum({id(parameter): parameter.numel() for _, parameter in named}.values())
    if absent * FEW_PARAMETERS < total or not absent:
        return None
    found.sort(key=lambda one: -sum(one[1].values()))
    return f"no operator reads {absent:,} of {total:,} parameters with these inputs: {some([path for path, _ in found])}"


def record_inputs(graph, ranges=(), values=()):
    """Returns name, dtype and shape of the graph's inputs, without `self`, and the range of values of each, or its values."""
    inputs = []
    for index, value in enumerate(list(graph.inputs())[1:]):
        base, _, number = value.debugName().rpartition(".")
        name = base if base and number.isdigit() else value.debugName()
        known = {"name": name, **(tensor_type(value.type()) or {"type": str(value.type())})}
        if index < len(ranges) and ranges[index] is not None:
            known["low"], known["high"] = ranges[index]
        if index < len(values) and values[index] is not None:
            known["values"] = values[index]
        inputs.append(known)
    return inputs


def fields(output):
    """Returns the named parts of a structured output, or None if it has none."""
    if isinstance(output, collections.abc.Mapping):
        return [(str(name), part) for name, part in output.items()]
    if isinstance(output, tuple) and hasattr(output, "_fields"):
        return list(zip(output._fields, output))
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return [(field.name, getattr(output, field.name)) for field in dataclasses.fields(output)]
    return None


def flatten_output(output, name=""):
    """Returns (name, tensor) pairs; other values (None, a cache) are left out."""
    import torch

    if isinstance(output, torch.Tensor):
        return [(name, output)]
    parts = fields(output)
    if parts is None and isinstance(output, (list, tuple)):
        parts = [(str(index), part) for index, part in enumerate(output)]
    prefix = f"{name}." if name else ""
    return [pair for key, part in parts or [] for pair in flatten_output(part, prefix + key)]


def is_plain(output):
    """Tells whether the tracer accepts the output as it is: a tensor, or (nested) tuples of tensors."""
    import torch

    if isinstance(output, torch.Tensor):
        return True
    return type(output) is tuple and bool(output) and all(is_plain(part) for part in output)


class Places:
    """Tracks which module is being called, so that an error can name it."""

    def __init__(self, model):
        self.stack = []
        self.handles = []
        for path, module in model.named_modules():
            if isinstance(module, _script_module()):
                continue
            self.handles.append(module.register_forward_pre_hook(self.enter(path, module)))
            self.handles.append(module.register_forward_hook(self.leave))

    def enter(self, path, module):
        def hook(*_):
            self.stack.append(f"{path or 'the model'} ({type(module).__name__})")

        return hook

    def leave(self, *_):
        self.stack.pop()

    def remove(self):
        for handle in self.handles:
            handle.remove()

    def innermost(self):
        return self.stack[-1] if self.stack else None


def _script_module():
    import torch

    return torch.jit.ScriptModule


def call_as_passed(function, names, values):
    """Calls a function with tensors as the user passes them, some by name."""
    pairs = list(zip(names, values))
    return function(
        *(value for name, value in pairs if name is None), **{name: value for name, value in pairs if name is not None}
    )


def adapt_forward(model, names, flatten, rebuilt=None):
    """Gives `model` a `forward` whose parameters are the inputs in order and which returns tensors only.

    The method is set on the instance instead of a wrapper module: the paths of parameters and modules stay the same.
    """
    before, forward = model.__dict__.get("forward"), model.forward
    parameters = [name or f"input_{index}" for index, name in enumerate(names)]
    passed = [f"{name}={name}" if name else parameters[index] for index, name in enumerate(names)]
    space = {"forward_": forward, "flatten_": (lambda output: output)}
    if rebuilt:
        space["forward_"] = lambda *values: rebuilt(forward, values)
        passed = parameters
    if flatten:
        space["flatten_"] = lambda output: tuple(tensor for _, tensor in flatten_output(output))
    source = f"def forward(self, {', '.join(parameters)}):\n    return flatten_(forward_({', '.join(passed)}))\n"
    exec(compile(source, "<model-analyze>", "exec"), space)  # noqa: S102: our own text; the names are identifiers.
    model.forward = types.MethodType(space["forward"], model)
    return lambda: put_back(model, "forward", before)


def put_back(owner, name, before):
    """Restores an instance's attribute, or deletes it if the instance had none."""
    if before is None:
        owner.__dict__.pop(name, None)
    else:
        setattr(owner, name, before)


# Functions that autocast runs in float32 on a GPU but not on a CPU, and the reverse (PyTorch's lists by function).
IN_FLOAT32 = frozenset(
    "__pow__ __rdiv__ __rpow__ __rtruediv__ acos asin binary_cross_entropy_with_logits cosh cosine_embedding_loss "
    "cosine_similarity cross_entropy cumprod cumsum dist erfinv exp expm1 group_norm hinge_embedding_loss kl_div l1_loss "
    "layer_norm log log10 log1p log2 log_softmax logsumexp margin_ranking_loss mse_loss multi_margin_loss "
    "multilabel_margin_loss nll_loss norm normalize pdist poisson_nll_loss pow prod reciprocal renorm rms_norm rsqrt sinh "
    "smooth_l1_loss soft_margin_loss softmax softmin softplus sum tan triplet_margin_loss vector_norm".split()
)
IN_LOW = frozenset("addmv addr chain_matmul gru_cell lstm_cell mv prelu rnn_relu_cell rnn_tanh_cell".split())
# Layers whose CPU kernel casts internally, invisible to a trace.
RECURRENT = frozenset("gru lstm rnn_relu rnn_tanh".split())


def casting(dtype):
    """Makes, on a CPU, the casts that autocast makes only on a GPU; the CPU's autocast must be active around it."""
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._pytree import tree_map_only

    low = (torch.float16, torch.bfloat16)

    class Casting(TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), keywords=None):
            keywords = keywords or {}
            name = getattr(function, "__name__", "")
            # A model may disable autocast for a part of itself.
            known = name in IN_FLOAT32 or name in IN_LOW or name in RECURRENT
            if known and torch.is_autocast_enabled("cpu"):
                wide = name in IN_FLOAT32

                def cast(tensor):
                    if wide:
                        return tensor.float() if tensor.dtype in low else tensor
                    return tensor.to(dtype) if tensor.dtype == torch.float32 else tensor

                arguments, keywords = tree_map_only(torch.Tensor, cast, (tuple(arguments), keywords))
                if name in RECURRENT:
                    # oneDNN has no such layer in float16. (The flags warn about Intel GPUs.)
                    with warnings.catch_warnings(), torch.autocast("cpu", enabled=False):
                        warnings.simplefilter("ignore", UserWarning)
                        with torch.backends.mkldnn.flags(enabled=False):
                            return function(*arguments, **keywords)
            return function(*arguments, **keywords)

    return Casting()


@contextlib.contextmanager
def autocasting(name, device):
    """Runs a model in automatic mixed precision, as on a GPU, so that the casts become part of its trace."""
    import torch

    if name is None:
        yield
        return
    dtype = getattr(torch, name)
    # A cast weight that is cached for its next use would be missing from the trace.
    with torch.autocast(device.type, dtype=dtype, cache_enabled=False):
        with casting(dtype) if device.type == "cpu" else contextlib.nullcontext():
            yield


class Buffers:
    """The state of a model's buffers, so that only the user's own runs change them."""

    def __init__(self, model):
        self.model = model
        self.kept = {}
        self.keep(model.named_buffers())

    def keep(self, named):
        import torch

        for name, buffer in named:
            if not torch.nn.parameter.is_lazy(buffer):
                self.kept[name] = (buffer, buffer.detach().clone(), buffer.requires_grad)

    def changed(self):
        """Returns the buffers whose values have changed."""
        found = {}
        for name, buffer in self.model.named_buffers():
            _, before, _ = self.kept.get(name, (None, None, False))
            if before is None or buffer.shape != before.shape or buffer.dtype != before.dtype or not same(buffer, before):
                found[name] = buffer.detach().clone()
        return found

    def restore(self):
        """Restores the buffers' values, also of those that were resized or replaced."""
        import torch

        with torch.no_grad():
            for name, (buffer, before, is_trained) in self.kept.items():
                path, _, last = name.rpartition(".")
                module = self.model.get_submodule(path)
                if module._buffers.get(last) is not buffer:
                    module._buffers[last] = buffer
                # A buffer that was written in place may depend on parameters.
                if buffer.requires_grad and not is_trained:
                    buffer.detach_()
                if buffer.shape != before.shape or buffer.dtype != before.dtype:
                    buffer.data = before.clone()
                elif not same(buffer, before):
                    buffer.copy_(before)

    def settle(self):
        """Restores buffers that a first run has replaced, and keeps those whose sizes that run has set.

        Returns the names of the latter. The others keep their new values until they are restored.
        """
        import torch

        sized = []
        for name, buffer in list(self.model.named_buffers()):
            original, before, _ = self.kept.get(name, (None, None, False))
            if before is None or before.shape != buffer.shape or before.dtype != buffer.dtype:
                sized.append((name, buffer))
            elif original is not buffer:
                with torch.no_grad():
                    original.copy_(buffer)
                path, _, last = name.rpartition(".")
                self.model.get_submodule(path)._buffers[last] = original
        self.keep(sized)
        return [name for name, _ in sized]


class Caches:
    """What modules keep beside parameters and buffers, such as biases that LevIT looks up once and uses again.

    What a run computed from parameters must not be there in the next: a trace would hold its numbers, not how they were made.
    A module may keep it in an object of its own, such as OmDet-Turbo's table of words that it has read.
    """

    def __init__(self, model):
        self.modules = list(model.modules())
        self.before = [{name: set_aside(value) for name, value in self.kept(module)} for module in self.modules]
        found = {id(value): value for module in self.modules for _, value in self.kept(module) if is_holder(value)}
        self.objects = [(value, {name: set_aside(part) for name, part in vars(value).items()}) for value in found.values()]

    def kept(self, module):
        return [(name, value) for name, value in vars(module).items() if name not in OWN_TABLES]

    def forget(self):
        """Puts back what holds a tensor that hangs on parameters; of an object all, since its parts belong together."""
        for module, before in zip(self.modules, self.before):
            for name, value in self.kept(module):
                if hangs_on_parameters(value):
                    put_saved(vars(module), name, before)
        for value, before in self.objects:
            if any(hangs_on_parameters(part) for part in vars(value).values()):
                for name in {**vars(value), **before}:
                    put_saved(vars(value), name, before)


def is_holder(value):
    """Tells whether a value is an object with a dict or a list of its own."""
    import torch

    if isinstance(value, (torch.nn.Module, torch.Tensor, type, types.ModuleType)) or not hasattr(value, "__dict__"):
        return False
    return any(isinstance(part, (dict, list)) for part in vars(value).values())


def set_aside(value):
    return value, copy.copy(value) if isinstance(value, (dict, list)) else None


def put_saved(owner, name, before):
    """Puts back a value as it was saved; deletes one that was not there."""
    if name not in before:
        del owner[name]
        return
    original, copied = before[name]
    if copied is not None:
        original.clear()
        original.update(copied) if isinstance(copied, dict) else original.extend(copied)
    owner[name] = original


OWN_TABLES = ("_parameters", "_buffers", "_modules")


def hangs_on_parameters(value):
    import torch

    if isinstance(value, dict):
        value = list(value.values())
    held = value if isinstance(value, list) else [value]
    parts = (part for one in held for part in (one if isinstance(one, tuple) else (one,)))
    return any(isinstance(part, torch.Tensor) and part.grad_fn is not None for part in parts)


def same(one, other):
    """Tells whether two tensors of one shape and type are bitwise equal, NaN included."""
    import torch

    if one.is_meta or other.is_meta:
        return True
    if one.layout != torch.strided:
        one, other = one.to_dense(), other.to_dense()
    if one.is_floating_point() or one.is_complex():
        return bool(((one == other) | one.isnan() & other.isnan()).all())
    return torch.equal(one, other)


def leave_uncompiled():
    """Makes `torch.compile` return its argument from now on: compiled code cannot be traced, and computes the same."""
    import torch

    def plain(model=None, **_):
        return plain if model is None else model

    torch.compile = plain
    torch.nn.Module.compile = lambda *_, **__: None


def without_compilers(model, undo=lambda *_: None):
    """Returns the model without the wrappers of `torch.compile` around it or its parts, with the original names.

    `undo` gets a function and its arguments that restore the wrappers.
    """

    def plain(module):
        while hasattr(module, "_orig_mod") and type(module).__name__ == "OptimizedModule":
            module = module._orig_mod
        return module

    model = plain(model)
    for module in list(model.modules()):
        for name, child in module._modules.items():
            if child is not None and plain(child) is not child:
                undo(module._modules.__setitem__, name, child)
                module._modules[name] = plain(child)
    for module in model.modules():
        # The attribute that `module.compile()` sets.
        if getattr(module, "_compiled_call_impl", None) is not None:
            undo(setattr, module, "_compiled_call_impl", module._compiled_call_impl)
            module._compiled_call_impl = None
    return model


class Saved:
    """The tensors that autograd saves in a run for a backward pass: none, since there is none.

    They would be the activations of the whole model. Only a forward that computes gradients itself needs them.
    """

    def __init__(self):
        self.is_kept = False
        self.was_asked = False

    def hooks(self):
        import torch

        if self.is_kept:
            return contextlib.nullcontext()
        return torch.autograd.graph.saved_tensors_hooks(lambda _: None, self.ask)

    def ask(self, _):
        self.was_asked = True
        raise RuntimeError("the model takes gradients in its forward")

    def is_needed(self, error):
        """Tells whether a run failed because saved tensors were missing; from then on they are kept."""
        if self.is_kept or not (self.was_asked or "saved tensor hooks" in str(error)):
            return False
        self.is_kept = True
        return True


@contextlib.contextmanager
def as_traced(autocast, device, saved):
    """Sets up the context in which a model is traced: without features that no archive can hold."""
    import torch

    with contextlib.ExitStack() as stack:
        stack.enter_context(without_checkpoints())
        stack.enter_context(saved.hooks())
        # Attention takes another path without gradients, which differs from training and is not split into operators.
        mha = getattr(torch.backends, "mha", None)
        if mha is not None:
            before = mha.get_fastpath_enabled()
            mha.set_fastpath_enabled(False)
            stack.callback(mha.set_fastpath_enabled, before)
        stack.enter_context(autocasting(autocast, device))
        yield


def trace(
    model,
    inputs,
    *,
    rebuilt=None,
    strict=True,
    autocast=None,
    saved=None,
    say=lambda **_: None,
    watching=contextlib.nullcontext,
):
    """Traces `model` with `inputs`, a list of (name or None, value).

    Returns the traced module and the names of its outputs if it returned a structure. `rebuilt` calls a function with
    the values if they are passed inside other objects; each then has a name. `watching` is entered while the model is
    traced.
    """
    import torch

    saved = saved or Saved()
    device = next((value.device for _, value in inputs), torch.device("cpu"))

    config = getattr(model, "config", None)
    if getattr(config, "use_cache", None) is True:
        config.use_cache = False
        say(note="turned use_cache off: a trace cannot return a cache")

    buffers, caches = Buffers(model), Caches(model)
    names = [name for name, _ in inputs]

    def run():
        # A forward may write to its inputs.
        values = [copied(value) for _, value in inputs]
        with torch.random.fork_rng(), as_traced(autocast, device, saved):
            return rebuilt(model, values) if rebuilt else call_as_passed(model, names, values)

    say(step=RUNNING)
    places = Places(model)
    try:
        try:
            output = run()
        except Exception as error:
            if not saved.is_needed(error):
                raise
            buffers.restore()
            places.stack.clear()
            output = run()
    except Exception as error:
        error.module_path = places.innermost()
        buffers.restore()
        raise
    finally:
        places.remove()
        caches.forget()
    sized = buffers.settle()
    if sized:
        say(note=f"buffers whose size is set by forward are kept as its first call left them: {', '.join(sized[:3])}")

    plain = is_plain(output)
    found = [] if plain else flatten_output(output)
    if not plain and not found:
        raise Refused(f"forward returns {type(output).__name__}, which holds no tensor")
    del output

    say(step="tracing")
    restore = lambda: None  # noqa: E731
    if any(names) or not plain:
        restore = adapt_forward(model, names, flatten=not plain, rebuilt=rebuilt)
    try:
        with warnings.catch_warnings(), torch.jit.optimized_execution(False), without_exports():
            # The tracer reads every attribute of a module, including deprecated ones.
            for category in (DeprecationWarning, FutureWarning, torch.jit.TracerWarning):
                warnings.simplefilter("ignore", category)
            values = tuple(copied(value) for _, value in inputs)
            with as_traced(autocast, device, saved), watching():
                traced = torch.jit.trace(model, values, check_trace=False, strict=strict)
    except RuntimeError as error:
        if "unordered_map::at" in str(error) or is_mapped(error):
            raise Refused(
                "forward calls torch.vmap, which torch's tracer cannot follow, with random numbers, inside another transform of "
                "torch.func or over hundreds of rows; write it without vmap"
            ) from error
        if "Cannot insert a Tensor that requires grad" in str(error):
            if saved.is_kept:
                raise Refused("forward takes gradients itself (torch.autograd.grad), which torch's tracer cannot follow") from error
            raise unregistered(model) from error
        raise
    finally:
        restore()
        buffers.restore()
        caches.forget()
    return traced, [name for name, _ in found]


def copied(value):
    """Returns an input with copied tensors, also inside tuples."""
    import torch
    from torch.utils._pytree import tree_map_only

    return tree_map_only(torch.Tensor, torch.clone, value)


def unregistered(model):
    """Returns the refusal of a model whose forward reads parameters that its modules do not list."""
    import torch

    known = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    found = []

    def look(value, path, depth):
        if isinstance(value, torch.nn.Module):
            found.extend(f"{path}.{name}" for name, tensor in value.named_parameters() if id(tensor) not in known)
        elif isinstance(value, torch.Tensor):
            found.extend([path] if value.requires_grad and id(value) not in known else [])
        elif depth and isinstance(value, (dict, list, tuple, set)):
            for key, part in value.items() if isinstance(value, dict) else enumerate(value):
                look(part, f"{path}.{key}", depth - 1)

    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name not in OWN_TABLES:
                look(value, f"{path}.{name}".lstrip("."), 2)
    if found:
        return Refused(
            f"forward reads parameters that no module lists, so that no optimizer would train them: {some(found)}",
            hint="keep modules in nn.ModuleList or nn.ModuleDict, and tensors in nn.Parameter, instead of plain lists and attributes",
        )
    return Refused(
        "forward uses a tensor that was computed from parameters before this call, and is neither a parameter nor a buffer",
        hint="compute it in forward; outside of it, make it a buffer or detach it",
    )


def is_mapped(error):
    """Tells whether an exception was raised inside `torch.vmap` or a similar function."""
    below = error.__traceback__
    while below is not None:
        if os.sep + "_functorch" + os.sep in below.tb_frame.f_code.co_filename:
            return True
        below = below.tb_next
    return False


@contextlib.contextmanager
def replacing(owner, **values):
    """Temporarily replaces attributes, if this version of torch has them."""
    before = {name: getattr(owner, name) for name in values if hasattr(owner, name)}
    try:
        for name in before:
            setattr(owner, name, values[name])
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


def without_checkpoints():
    """Calls functions wrapped by `torch.utils.checkpoint` without the wrapper.

    The wrappers are Python functions, which no archive can hold; they change memory, not results, and the plan decides
    what a stage recomputes.
    """
    from torch.utils import checkpoint

    class Plain:
        @staticmethod
        def apply(function, _, *arguments):
            return function(*arguments)

    def plain(*_, **__):
        yield

    return replacing(checkpoint, CheckpointFunction=Plain, _checkpoint_without_reentrant_generator=plain)


def without_exports():
    """Skips methods that a module marks with `torch.jit.export`.

    They are not part of `forward`, and torch would compile them as script, which fails if they call a traced module.
    """
    import torch

    return replacing(torch._jit_internal, module_has_exports=lambda _: False)


class Inlined:
    """Replaces `torch.autograd.Function`s by their forward functions while a model is traced.

    This loses their own gradients: the archive is only for drawing and planning. It must be set up before a model is
    imported, which may store `apply` under another name.
    """

    def __init__(self):
        import torch

        self.names = {}
        self.is_on = False
        function = torch.autograd.Function
        original = vars(function)["apply"].__func__

        def apply(cls, *arguments, **keywords):
            if not (self.is_on and torch._C._is_tracing()):
                return original(cls, *arguments, **keywords)
            self.names.setdefault(cls.__name__, None)
            if cls.setup_context is not function.setup_context:
                return cls.forward(*arguments, **keywords)
            return cls.forward(Context(arguments), *arguments, **keywords)

        function.apply = classmethod(apply)

    @contextlib.contextmanager
    def tracing(self):
        self.is_on = True
        try:
            yield
        finally:
            self.is_on = False


class Context:
    """The context argument of a `torch.autograd.Function` whose backward pass never runs."""

    def __init__(self, arguments):
        import torch

        self.needs_input_grad = tuple(isinstance(value, torch.Tensor) and value.requires_grad for value in arguments)
        self.saved_tensors = ()

    def save_for_backward(self, *tensors):
        self.saved_tensors = tensors

    def ignored(self, *_):
        pass

    save_for_forward = mark_dirty = mark_non_differentiable = set_materialize_grads = ignored


def refuse_names_that_torch_cannot_read(model):
    """Refuses names that torch writes into an archive as code and cannot read again: `torch.jit.load` takes all others."""
    python_alone = {"async", "await", "except", "finally", "from", "lambda", "nonlocal", "try", "yield"}
    words = {*keyword.kwlist, "NoneType", "torch"} - python_alone
    paths = [path for path, _ in model.named_modules()]
    paths += [path for path, _ in model.named_parameters(remove_duplicate=False)]
    paths += [path for path, _ in model.named_buffers(remove_duplicate=False)]
    for path in paths:
        name = path.rpartition(".")[2]
        is_plain = name.isascii() and name.isprintable() and not set(name) & {'"', "\\"}
        if name in words or not is_plain:
            raise Refused(
                f"torch could not load the archive: it writes the name of {path!r} as code, in which {name!r} is no name; "
                "give it another, before the model is traced"
            )


def refuse_functions_of_python(traced):
    """Names the `torch.autograd.Function` that cannot be traced; torch's own advice, to script it, does not help."""
    graph = inlined_graph(traced)  # its nodes live as long as it does
    names = sorted({node.pyname() for node in graph.findAllNodes("prim::PythonOp", True)})
    if names:
        raise Refused(
            f"forward calls {', '.join(names)}, and no archive can hold a torch.autograd.Function: its gradient is Python; "
            "use torch's own operators instead, or trace with --inline-functions to draw and plan the model"
        )


def refuse_numbers_of_absent_weights(traced):
    """Refuses a tensor, not a parameter, that was computed from parameters before they had values."""
    graph = inlined_graph(traced)
    for node in graph.findAllNodes("prim::Constant", True):
        if node.hasAttribute("value") and node.kindOf("value") == "t" and node.t("value").is_meta:
            place = node.sourceRange().strip().splitlines()
            raise Refused(
                "forward uses a tensor that was computed from weights when the model was built, and is neither a parameter nor a "
                f"buffer ({place[0].strip() if place else 'place unknown'}); trace the model with its weights"
            )


def record(traced, *, about, training, outputs=(), absent=(), ranges=(), values=(), **more):
    """Returns the text of the extra file `model_analyze.json`.

    `absent` names the tensors with stand-in values; `ranges` holds the range of each input, `values` its numbers where no
    others are drawn. `more` is recorded if not empty.
    """
    import torch

    refuse_functions_of_python(traced)
    if absent:
        refuse_numbers_of_absent_weights(traced)
    document = {
        "version": 1,
        "about": {
            **about,
            "torch": torch.__version__,
            "python": ".".join(map(str, sys.version_info[:3])),
            "written_by": "model-analyze",
        },
        "training": training,
        "inputs": record_inputs(inlined_graph(traced), ranges, values),
        "outputs": list(outputs),
        "nodes": record_nodes(traced),
    }
    if absent:
        document["absent"] = list(absent)
    document |= {key: value for key, value in more.items() if value not in (None, [], "")}
    return json.dumps(document, separators=(",", ":"))


def save(traced, path, text):
    """Saves the archive whole or not at all.

    Its top folder is named after the file, so it is written under its own name into a temporary folder.
    """
    import torch

    folder, name = os.path.split(os.path.abspath(path))
    with tempfile.TemporaryDirectory(prefix=".model-analyze-", dir=folder) as beside:
        unfinished = os.path.join(beside, name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            torch.jit.save(traced, unfinished, _extra_files={"model_analyze.json": text})
        os.replace(unfinished, path)


# Parameters up to this many elements have values of their own when a model is traced without its weights; larger ones
# share them.
DENSE = 1 << 18
# A large matrix with a side shorter than this may be a router's: it needs values that distinguish its columns.
ROUTED = 1024


@contextlib.contextmanager
def without_memory():
    """Builds a model whose parameters take neither memory nor time: they move to the meta device as they are
    registered.

    Buffers stay real, since checkpoints seldom contain them.
    """
    import weakref

    import torch

    register = torch.nn.Module.register_parameter
    moved = {}

    def registering(module, name, parameter):
        register(module, name, parameter)
        if parameter is None or parameter.is_meta or torch.nn.parameter.is_lazy(parameter):
            return
        # A parameter that two modules register stays one object.
        before, there = moved.get(id(parameter), (lambda: None, None))
        if before() is not parameter:
            there = torch.nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
            there.__dict__.update(parameter.__dict__)
            moved[id(parameter)] = (weakref.ref(parameter), there)
        module._parameters[name] = there

    with replacing(torch.nn.Module, register_parameter=registering), unallocated():
        yield


@contextlib.contextmanager
def within_memory():
    """Refuses a model whose parameters take more memory than is free, before the machine runs out of it."""
    import weakref

    import torch

    register = torch.nn.Module.register_parameter
    free, taken, seen = free_memory(), 0, {}

    def registering(module, name, parameter):
        nonlocal taken
        register(module, name, parameter)
        if parameter is None or parameter.device.type != "cpu" or torch.nn.parameter.is_lazy(parameter):
            return
        before = seen.get(id(parameter))
        if before is not None and before() is parameter:
            return
        seen[id(parameter)] = weakref.ref(parameter)
        taken += parameter.nbytes
        if taken > free:
            # What a model made and threw away again does not count.
            taken = sum(one.nbytes for place in seen.values() if (one := place()) is not None)
        if taken > free:
            raise Refused(
                f"the model's parameters take more than the {free / 1e9:.3g} GB that are free on this machine",
                hint="--no-weights traces it without them, and `split --weights` takes them from a checkpoint",
            )

    with replacing(torch.nn.Module, register_parameter=registering):
        yield


def free_memory():
    """Returns how many bytes this process may still take, as far as the machine says."""
    found = [float("inf")]
    with contextlib.suppress(OSError, ValueError, StopIteration):
        with open("/proc/meminfo", encoding="ascii") as file:
            found.append(next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:")))
    # A container may have less than its machine; how much of that is taken no file tells, since caches count.
    with contextlib.suppress(OSError, ValueError):
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            found.append(int(file.read()))
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        if most != resource.RLIM_INFINITY:
            with open("/proc/self/statm", encoding="ascii") as file:
                found.append(most - int(file.read().split()[0]) * resource.getpagesize())
    return min(found)


# Tensors of at least this many bytes whose values do not matter are not allocated.
HUGE = 1 << 30


def unallocated():
    """Makes tensors without memory if they may exceed the machine's, such as those of all experts of a layer.

    Only empty and random tensors: they become parameters, since buffers have values.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    made = {torch.empty, torch.rand, torch.randn}

    class Unallocated(TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), keywords=None):
            keywords = keywords or {}
            if function in made and keywords.get("out") is None:
                sized = {name: value for name, value in keywords.items() if name not in ("generator", "pin_memory")}
                there = function(*arguments, **(sized | {"device": "meta"}))
                if there.numel() * there.element_size() >= HUGE:
                    return there
            return function(*arguments, **keywords)

    return Unallocated()


class StandIns:
    """Values for a model whose parameters have none, in very little memory.

    All values of a type are in one short vector. A small parameter is a slice of it; a large one is a view with strides
    of one, w[i, j] = v[i + j], so that rows and columns all differ and a router sends tokens to several experts. Most
    large ones are zeros while the model runs: pages that are never written take no memory, and kernels need not copy
    them.
    """

    def __init__(self, model):
        self.paths = []
        self.zeros = []
        self.places = {}
        lengths = {}
        held = list(self.tensors(model))
        for _, _, tensor in held:
            # Tensors differ in their first element.
            start = self.places.setdefault(id(tensor), len(self.places))
            span = tensor.numel() if tensor.numel() <= DENSE else sum(size - 1 for size in tensor.shape) + 1
            lengths[tensor.dtype] = max(lengths.get(tensor.dtype, 0), start + span)
        self.vectors = {dtype: stand_in_vector(length, dtype) for dtype, length in lengths.items()}
        made = {}
        for module, name, tensor in held:
            if id(tensor) not in made:
                made[id(tensor)] = self.replace(module, tensor)
            # Set by attribute, not in the dict: some modules keep another list of their parameters.
            setattr(module, name, made[id(tensor)])

    def tensors(self, model):
        """Yields the parameters of all modules, and the buffers computed from them, which have no values either."""
        import torch

        for path, module in model.named_modules(remove_duplicate=False):
            found = list(module._parameters.items())
            found += [(name, buffer) for name, buffer in module._buffers.items() if buffer is not None and buffer.is_meta]
            for name, tensor in found:
                if tensor is None:
                    continue
                full = f"{path}.{name}" if path else name
                if torch.nn.parameter.is_lazy(tensor):
                    raise Refused(f"{full} has no size before the model runs; trace it with its weights")
                self.paths.append(full)
                yield module, name, tensor

    def view(self, tensor):
        import torch

        dense = torch.empty(tensor.shape, device="meta").stride()
        strides = dense if tensor.numel() <= DENSE else [1] * tensor.dim()
        return self.vectors[tensor.dtype].as_strided(tensor.shape, strides, self.places[id(tensor)])

    def replace(self, module, tensor):
        import torch

        view = self.view(tensor)
        # Embeddings and routers need distinct values.
        is_told_apart = isinstance(module, torch.nn.Embedding) or tensor.dim() < 3 and min(tensor.shape, default=0) < ROUTED
        is_zeros = tensor.numel() > DENSE and not is_told_apart
        found = zeros(tensor) if is_zeros else view
        if isinstance(tensor, torch.nn.Parameter):
            found = torch.nn.Parameter(found, requires_grad=tensor.requires_grad)
            found.__dict__.update(tensor.__dict__)
        if is_zeros:
            self.zeros.append((found, view))
        return found

    def shrink(self):
        """Replaces the zeros by views of the vectors, too, so that they can be saved."""
        for tensor, view in self.zeros:
            tensor.data = view


def stand_in_vector(length, dtype):
    import torch

    if dtype.is_floating_point or dtype.is_complex:
        return (torch.randn(length, dtype=torch.complex64 if dtype.is_complex else torch.float32) * 0.02).to(dtype)
    return torch.zeros(length, dtype=dtype)


def zeros(like):
    """Returns zeros that take no memory until they are written."""
    import mmap

    import torch

    # torch's own zeros are written. Linux reserves the memory unless told not to.
    unreserved = 0x4000 if sys.platform == "linux" else 0
    flags = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | unreserved} if hasattr(mmap, "MAP_ANONYMOUS") else {}
    pages = mmap.mmap(-1, like.numel() * like.element_size(), **flags)
    return torch.frombuffer(pages, dtype=like.dtype).view(like.shape)


# The rest is only for the command.


def load_target(target):
    """Returns the callable or module that `package.module:name` or `path/to/file.py:Name` names."""
    where, _, name = target.rpartition(":")
    if where.endswith(".py"):
        folder, file = os.path.split(os.path.abspath(where))
        sys.path.insert(0, folder)
        module_name = file[:-3]
        spec = importlib.util.spec_from_file_location(module_name, where)
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        spec.loader.exec_module(module)
    else:
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        module = importlib.import_module(where)
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            import difflib

            close = difflib.get_close_matches(part, dir(found), n=3)
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            raise Refused(f"{where} has no {name!r}{hint}")
        found = getattr(found, part)
    return found


def build(found, arguments):
    """Returns the model: `found` itself, or what it returns when called."""
    import torch

    if isinstance(found, torch.nn.Module):
        if arguments:
            raise Refused("the target is a model already; --arg needs a class or a function to pass it to")
        return found
    if not callable(found):
        raise Refused(f"the target is a {type(found).__name__}, neither a model nor callable")
    model = found(**arguments)
    if not isinstance(model, torch.nn.Module):
        raise Refused(f"the target returns {type(model).__name__}, not a torch.nn.Module")
    return model


@contextlib.contextmanager
def default_dtype(name):
    """Builds weights in another type, as Hugging Face does: tensors created as float32 explicitly stay so."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, name) if name else before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def read_state_dict(path):
    import torch

    if path.endswith(".safetensors"):
        from safetensors.torch import load_file

        state = load_file(path)
    else:
        state = torch.load(path, map_location="cpu", weights_only=True)
    # Checkpoints often store the weights under a key.
    for key in ("state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
            break
    # A compiled model saves its weights under the compiler's names.
    return {name.replace("_orig_mod.", ""): value for name, value in state.items()} if isinstance(state, dict) else state


def numbers(value):
    """Returns the numbers of an input row by row, as a record holds them; None if it cannot: too many, too large, infinite."""
    if value.numel() > MOST_NUMBERS or value.is_complex() or value.is_quantized:
        return None
    found = value.detach().cpu().double().flatten().tolist()
    if not all(abs(number) < LARGEST_NUMBER for number in found):
        return None
    return found if value.is_floating_point() else [int(number) for number in found]


def drawn_range(spec, model):
    """Returns the range of one `--input`, the end excluded for integers; None for a normal distribution."""
    import torch

    dtype = getattr(torch, spec["dtype"])
    if dtype == torch.bool:
        return 0, 2
    if spec.get("low") is not None:
        return spec["low"], spec["high"]
    if dtype.is_floating_point or dtype.is_complex:
        return None
    # Small enough to index every embedding of the model.
    rows = [module.num_embeddings for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    return 0, min(rows, default=2)


def sample(spec, drawn, device):
    """Returns an example tensor for one `--input`, within the range `drawn`."""
    import torch

    shape, dtype = spec["shape"], getattr(torch, spec["dtype"])
    if "values" in spec:
        return torch.tensor(spec["values"], dtype=torch.float64).reshape(shape).to(dtype).to(device)
    if dtype.is_floating_point or dtype.is_complex:
        if drawn is not None:
            low, high = drawn
            return (torch.rand(shape) * (high - low) + low).to(dtype).to(device)
        return torch.randn(shape, dtype=dtype if dtype.is_complex else None).to(dtype).to(device)
    low, high = (int(bound) for bound in drawn)
    return torch.randint(low, max(high, low + 1), shape).to(dtype).to(device)


def user_frame(error):
    """Returns the innermost frame of the user's own files and the innermost frame overall."""
    import sysconfig

    library = tuple(
        os.path.realpath(path) + os.sep for key, path in sysconfig.get_paths().items() if "lib" in key
    )
    frames = []
    trace_back = error.__traceback__
    while trace_back is not None:
        file = trace_back.tb_frame.f_code.co_filename
        frames.append((file, trace_back.tb_lineno, trace_back.tb_frame.f_code.co_name))
        trace_back = trace_back.tb_next
    files = [frame for frame in frames if not frame[0].startswith("<")]
    files = [frame for frame in files if os.sep + "importlib" + os.sep not in frame[0]]
    own = [frame for frame in files if not os.path.realpath(frame[0]).startswith(library)]
    chosen = (own or files or [None])[-1]
    if isinstance(error, SyntaxError) and error.filename:
        chosen = (error.filename, error.lineno or 1, "")
    if chosen is None:
        return None
    import linecache

    file, line, function = chosen
    shown = os.path.relpath(file) if file.startswith(os.getcwd() + os.sep) else file
    return {"file": shown, "line": line, "function": function, "text": linecache.getline(file, line).strip()}


def built(request, say):
    """Returns the model of a request."""
    if request.get("config"):
        say(step=f"building {request['config']}")
        return build_from_config(request["config"], say)
    say(step=f"importing {request['target'].rpartition(':')[0]}")
    found = load_target(request["target"])
    say(step=f"building {request['target'].rpartition(':')[2]}")
    return build(found, request["arguments"])


def calls_of(request, model, device, say):
    """Yields the candidate calls of a request, each with the ranges of its tensors.

    There is one, or without inputs one per guess.
    """
    import torch
    from torch.utils._pytree import tree_map_only

    def laid_out(tensor):
        is_image = request.get("channels_last") and tensor.dim() == 4 and tensor.is_floating_point()
        return tensor.contiguous(memory_format=torch.channels_last) if is_image else tensor

    constants = request.get("constants") or {}
    if request.get("input_file"):
        say(step=f"reading {request['input_file']}")
        positional, named = read_inputs(request["input_file"], model.forward)
        there = tree_map_only(torch.Tensor, lambda tensor: laid_out(tensor.to(device)), (positional, named | constants))
        call = Call(model.forward, *there)
        yield call, [as_drawn(value) for value in call.values]
        return
    for specs in [request["inputs"]] if request["inputs"] else inputs_of_config(model):
        drawn = [(spec.get("name"), laid_out(sample(spec, drawn_range(spec, model), device))) for spec in specs]
        positional = [value for name, value in drawn if name is None]
        named = {name: value for name, value in drawn if name is not None}
        yield Call(model.forward, positional, named | constants), specs


def first_that_runs(calls, write, place, say):
    """Writes the archive of the first guessed call that the model's forward accepts, and reports it."""
    failure = None
    for call, specs in calls:
        note = f"example inputs: {' '.join('--input ' + spelling(spec) for spec in specs)}"
        try:
            done = write(call, specs)
        except Exception as error:
            if isinstance(error, Refused) or place() != RUNNING:
                say(note=note)
                raise
            # Its results may fill the memory.
            traceback.clear_frames(error.__traceback__)
            failure = failure or (error, note)
            continue
        say(note=note)
        return done
    error, note = failure
    say(note=note)
    raise error


def main():
    request = json.loads(sys.argv[1])
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    # The model's output must not mix with the messages here, C code included.
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    step = "importing torch"

    def say(**line):
        nonlocal step
        step = line.get("step", step)
        channel.write(json.dumps(line) + "\n")

    try:
        say(step=step)
        try:
            import torch
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] != "torch":
                raise
            say(error={"step": step, "kind": "no-torch", "message": str(error), "python": sys.executable})
            return 2
        leave_uncompiled()
        inlined = Inlined() if request.get("inline_functions") else None
        torch.manual_seed(request["seed"])
        is_weightless = request.get("weightless", False)
        with without_memory() if is_weightless else within_memory(), default_dtype(request.get("dtype")):
            model = without_compilers(built(request, say))
        if isinstance(model, torch.jit.ScriptModule):
            raise Refused("the model is a ScriptModule already; give its archive to the other commands")
        if request.get("state_dict"):
            say(step=f"loading {request['state_dict']}")
            model.load_state_dict(read_state_dict(request["state_dict"]), strict=request["strict_state_dict"])
        stand_ins = StandIns(model) if is_weightless else None
        say(step=f"moving to {request['device']}")
        device = torch.device(request["device"])
        model = model.to(device).train(request["training"])
        if request.get("channels_last"):
            model = model.to(memory_format=torch.channels_last)
        about = {"target": request.get("config") or request["target"], "seed": str(request["seed"])}
        if is_weightless:
            about["weights"] = "none"
        if request["arguments"]:
            about["arguments"] = json.dumps(request["arguments"])
        if request.get("method"):
            about["method"] = request["method"]
        with called_by(model, request.get("method")):
            say(step="making inputs")
            write = functools.partial(
                write_archive,
                model,
                output=request["output"],
                about=about,
                check=request["check"],
                strict=request["strict"],
                autocast=request.get("autocast"),
                stand_ins=stand_ins,
                inlined=inlined,
                say=say,
            )
            calls = calls_of(request, model, device, say)
            if request["inputs"] or request.get("input_file"):
                done = write(*next(calls))
            else:
                done = first_that_runs(calls, write, lambda: step, say)
        say(done=done)
        return 0
    except Refused as error:
        say(error={"step": step, "kind": "refused", "message": str(error), "hint": error.hint})
    except KeyboardInterrupt:
        say(error={"step": step, "kind": "interrupted", "message": "interrupted"})
    except (Exception, SystemExit) as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        say(
            error={
                "step": step,
                "kind": "python",
                "type": type(error).__name__,
                "message": "\n".join(lines[:12]),
                "module": getattr(error, "module_path", None),
                "frame": user_frame(error),
            }
        )
    return 2


if __name__ == "__main__" and len(sys.argv) > 1 and sys.argv[1].startswith("{"):
    code = main()
    sys.stderr.flush()
    # Exits immediately: some libraries hang or crash while the interpreter shuts down.
    os._exit(code)
