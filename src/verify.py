"""Compares the stages of a folder with the whole model, in the form that a Python process loads.

`model-analyze verify` feeds this file to an interpreter on standard input; the request is the first argument, as JSON.
Answers go to standard output, one JSON document a line: {"done": {...}} ends a success, {"error": {...}} a failure.
Whatever a stage prints goes to standard error.

Both sides run here on the same inputs: outputs once, then training steps whose gradients and losses are compared. It knows
nothing of how stages are written: it calls them in order and gives each the inputs that the manifest names.
"""

import importlib.util
import json
import math
import os
import sys
from pathlib import Path

# Learning rate of the steps; gradients of so many steps are compared.
RATE, COMPARED_STEPS = 0.01, 4
# Parameters of zeros get random numbers after the first step: behind a head of zeros every gradient is zero.
DEVIATION = 0.02
# Beside this share of the model's largest gradient a parameter's own gradient is noise around zero.
NOISE = 1e-3


class Refused(Exception):
    """Something that cannot be compared; the text is for the user."""


def as_real(tensor):
    import torch

    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def functional(outputs, seed):
    """Returns a random linear functional of the outputs that can carry gradients, or None where none can."""
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
    """Imports what defines the results that a program of torch.export returns, where transformers does: torch must know them."""
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
    """Returns a program of torch.export as a module that takes its inputs one after the other."""
    import logging
    import warnings

    import torch
    from torch.utils import _pytree

    # That weights are views of the file is of no interest.
    warnings.simplefilter("ignore")
    register_results(path)
    # torch tells the log alone what is wrong with a file.
    log, said = logging.getLogger("torch.export"), []
    log.propagate, handler = False, logging.Handler()
    handler.emit = lambda record: said.extend(record.getMessage().strip().splitlines())
    log.addHandler(handler)
    # It opens the example inputs of a file, and where they are no plain tensors, runs whatever their pickle says.
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
            self.module = program.module()
            for first, *others in tied:
                for name in others:
                    path, _, last = name.rpartition(".")
                    setattr(self.module.get_submodule(path), last, self.module.get_parameter(first))

        def named_parameters(self, *arguments, **options):
            return self.module.named_parameters(*arguments, **options)

        def forward(self, *inputs):
            left = iter(inputs)
            # Constants are inputs, too, and no value of the graph.
            values = [spec.value if hasattr(spec, "value") else next(left) for spec in specs]
            arguments, named = _pytree.tree_unflatten(values, program.call_spec.in_spec)
            return _pytree.tree_leaves(self.module(*arguments, **named))

    return Exported()


class Whole:
    def __init__(self, request):
        import torch

        about = request["whole"]
        self.inputs, self.outputs = about["inputs"], about["outputs"]
        if about["exported"]:
            self.module = exported(about["archive"], about["exported"]["tied"])
        else:
            self.module = torch.jit.load(about["archive"], map_location=request["device"])

    def __call__(self, inputs):
        results = flat(self.module(*[inputs[at] for at in self.inputs]))
        return results if self.outputs is None else [results[at] for at in self.outputs]


class Stages:
    """The stages of a folder in one form, one after the other."""

    def __init__(self, request, form):
        folder = Path(request["folder"]) / "stages"
        self.manifest = json.loads((folder / "manifest.json").read_text())
        self.modules = [load(folder, about, form, request["device"]) for about in self.manifest["stages"]]
        self.returned = leaves(self.manifest["output"])

    def __call__(self, inputs):
        known = {f"input:{about['name']}": value for about, value in zip(self.manifest["inputs"], inputs)}
        outputs = []
        for module, about in zip(self.modules, self.manifest["stages"]):
            outputs = flat(module(*[known[port["from"]] for port in about["inputs"]]))
            if len(outputs) != len(about["outputs"]):
                raise Refused(f"stage {about['stage']} gave {len(outputs)} outputs instead of {len(about['outputs'])}")
            for port, value in zip(about["outputs"], outputs):
                known[f"stage:{about['stage']}:{port['name']}"] = value
        return [outputs[at] for at in self.returned]


def load(folder, about, form, device):
    import torch

    name = about["files"].get(form)
    if name is None or name != os.path.basename(name):
        raise Refused(f"stage {about['stage']} has no file in the form {form}")
    if form == "torchscript":
        return torch.jit.load(folder / name, map_location=device)
    spec = importlib.util.spec_from_file_location(name[:-3], folder / name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # The command has compared the files; a weights file that is named is taken as it is.
    return module.load(folder / about["files"]["weights"], device=device)


def named(module):
    """Returns the parameters that train, each once, with all of its names."""
    found = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            # Two names of an archive are two objects over one memory.
            key = (parameter.data_ptr(), parameter.shape) if parameter.numel() else id(parameter)
            found.setdefault(key, (parameter, []))[1].append(name)
    return list(found.values())


def copies_of(whole, stages):
    """Returns for each parameter of the whole: itself, its name, and its copies as (stage, parameter)."""
    owners = {}
    for index, module in enumerate(stages.modules):
        for parameter, names in named(module):
            for name in names:
                owners.setdefault(name, []).append((index, parameter))
    found = []
    for parameter, names in named(whole.module):
        copies = {id(copy): (stage, copy) for name in names for stage, copy in owners.get(name, [])}
        found.append((parameter, names[0], list(copies.values())))
    return found


def draw(spec, seed):
    """Draws an input as the trace was told to."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    shape, dtype = spec["shape"], getattr(torch, spec["dtype"])
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

    if expected.shape != found.shape or expected.dtype != found.dtype:
        kinds = [f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for t in (expected, found)]
        raise Refused(f"is {kinds[0]} in the model, {kinds[1]} in the stages")
    # Mostly they are the same to the last bit, which needs no arithmetic.
    if torch.equal(expected, found):
        return 0.0, 0.0
    a, b = (as_real(t.detach()).double() for t in (expected, found))
    is_same = (a == b) | (a.isnan() & b.isnan())
    absolute = float((a - b).abs().masked_fill(is_same, 0.0).max())
    scale = max(float(a.nan_to_num(0.0, 0.0, 0.0).abs().max()), least, sys.float_info.min)
    return absolute, absolute / scale if absolute else 0.0


def largest_of(tensor):
    return float(as_real(tensor.detach()).abs().max()) if tensor is not None and tensor.numel() else 0.0


def differences_of(parameters, expected, found, worst):
    """Joins the gradients of a step into the worst of all steps so far."""
    import torch

    largest = max((largest_of(gradient) for gradient in expected), default=0.0)
    for (parameter, name, copies), a, b in zip(parameters, expected, found):
        if not copies:
            if a is not None:
                raise Refused(f"no stage holds parameter `{name}`")
            continue
        zeros = torch.zeros_like(parameter)
        a, b = (zeros if gradient is None else gradient for gradient in (a, b))
        absolute, relative = difference(a, b, NOISE * largest)
        is_zero = not a.any() and not b.any()
        before = worst.setdefault(name, [copies[0][0], absolute, relative, True])
        if math.isnan(relative) or relative > before[2]:
            before[1:3] = [absolute, relative]
        before[3] = before[3] and is_zero


def compare(request, form):
    import torch

    whole, stages = Whole(request), Stages(request, form)
    parameters = copies_of(whole, stages)
    zeros = [row for row in parameters if row[0].numel() and not row[0].detach().any()]
    outputs, losses, worst, rate = [], [], {}, RATE
    for step in range(request["steps"]):
        inputs = [
            draw(spec, request["seed"] + step * len(request["inputs"]) + at).to(request["device"])
            for at, spec in enumerate(request["inputs"])
        ]
        # Dropout in training mode draws the same numbers on both sides.
        sides = []
        for side in (whole, stages):
            torch.manual_seed(step)
            sides.append(side(inputs))
        expected, found = sides
        if step == 0:
            if len(expected) != len(found):
                raise Refused(f"the model gives {len(expected)} outputs, the stages {len(found)}")
            for at, (a, b) in enumerate(zip(expected, found)):
                try:
                    outputs.append([f"output {at}", *difference(a, b)])
                except Refused as reason:
                    raise Refused(f"output {at} {reason}") from None
        loss, own = functional(expected, step), functional(found, step)
        if loss is None or own is None:
            break
        losses.append([float(loss.detach()), float(own.detach())])
        if not loss.requires_grad:
            break
        rows = [row for row in parameters if row[0].requires_grad]
        gradients = torch.autograd.grad(loss, [row[0] for row in rows], allow_unused=True) if rows else []
        leaf = [copy for _, _, copies in rows for _, copy in copies]
        of_copies = torch.autograd.grad(own, leaf, allow_unused=True) if leaf and own.requires_grad else [None] * len(leaf)
        by_copy = {id(copy): gradient for copy, gradient in zip(leaf, of_copies)}
        sums = []
        for _, _, copies in rows:
            known = [by_copy[id(copy)] for _, copy in copies if by_copy[id(copy)] is not None]
            sums.append(sum(known[1:], known[0]) if known else None)
        if step < COMPARED_STEPS:
            differences_of(rows, gradients, sums, worst)
        with torch.no_grad():
            if step == 0:
                norm = lambda tensors: math.sqrt(sum(float(t.norm()) ** 2 for t in tensors))  # noqa: E731
                size = norm([g for g in gradients if g is not None])
                # Of numbers that grow beyond all bounds nothing could be compared.
                rate *= min(1.0, norm([row[0] for row in rows]) / size) if size else 1.0
            for (parameter, _, copies), gradient, total in zip(rows, gradients, sums):
                if gradient is not None:
                    parameter -= rate * gradient
                for _, copy in copies if total is not None else []:
                    copy -= rate * total
            for number, (parameter, _, copies) in enumerate(zeros if step == 0 else []):
                noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)) * DEVIATION
                for one in [parameter] + [copy for _, copy in copies]:
                    one += noise.to(one.device, one.dtype)
    return {"form": form, "outputs": outputs, "gradients": [[name, *row] for name, row in worst.items()], "losses": losses}


def locate(request):
    """Finds the first stage whose two forms differ, given the same inputs; each stage begins with its own weights."""
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
    """Makes a value that JSON can hold: infinities and NaN become words."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list) else value


def main():
    request = json.loads(sys.argv[1])
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    # What a stage prints must not mix with our lines.
    os.dup2(2, 1)
    sys.stdout = sys.stderr

    def say(**line):
        channel.write(json.dumps(plain(line)) + "\n")

    form = ""
    # A traced convolution carries its own permission of TF32, whose kernels differ in the fourth digit: NVIDIA's libraries
    # are told as they are loaded.
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
        # TorchScript's optimizer adds gradients up in another order, and so does cuDNN from call to call where it may.
        torch._C._set_graph_executor_optimize(False)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.deterministic = True
        if request["task"] == "locate":
            say(done={"found": locate(request)})
            return 0
        compared = []
        for form in request["forms"]:
            compared.append(compare(request, form))
        say(done={"compared": compared})
        return 0
    except Refused as error:
        say(error={"kind": "refused", "message": str(error), "form": form})
    except KeyboardInterrupt:
        say(error={"kind": "refused", "message": "interrupted", "form": form})
    except (Exception, SystemExit) as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        say(error={"kind": "python", "message": f"{type(error).__name__}: " + "\n".join(lines[:8]), "form": form})
    return 2


if __name__ == "__main__" and len(sys.argv) > 1:
    code = main()
    sys.stderr.flush()
    # Leaving at once: some libraries hang or crash while the interpreter shuts down.
    os._exit(code)
