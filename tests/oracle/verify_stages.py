"""Chains the stages of an `emit` folder by its manifest and compares them with the whole model.

    python verify_stages.py MODEL.pt OUT [MODEL.pt OUT …] [--form torchscript|python] [--steps 10]

Prints a line of JSON for each: worst differences of outputs, gradients, buffers and losses. Exits 1 when out of tolerance.

Outputs and gradients are those of the trace as it is written. By itself torch's JIT merges equal operators, such as two ReLUs
of one value, and then adds up gradients in another order than the model and the Python stages do; where a gradient is
the rounding of zero, behind a normalisation of two values say, nothing of it is left. Losses are compared with all that
the JIT does.
"""

import argparse
import importlib.util
import io
import json
import pickle
import sys
import warnings
import zipfile
from pathlib import Path

import torch

warnings.filterwarnings("ignore")


def leaves(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in leaves(item)]
    return []


def load_stages(folder, manifest, form):
    stages = []
    for about in manifest["stages"]:
        path = folder / about["files"][form]
        if form == "torchscript":
            stages.append(torch.jit.load(path))
        else:
            spec = importlib.util.spec_from_file_location(f"stage_{about['stage']}_{abs(hash(str(path)))}", path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            stages.append(module.load())
    return stages


def chain(stages, manifest, inputs):
    """Calls the stages in order, as the manifest says."""
    known = {f"input:{about['name']}": value for about, value in zip(manifest["inputs"], inputs)}
    for stage, about in zip(stages, manifest["stages"]):
        returned = stage(*[known[port["from"]] for port in about["inputs"]])
        outputs = about["outputs"]
        returned = [returned] if len(outputs) == 1 else list(returned)
        assert len(returned) == len(outputs), (len(returned), len(outputs))
        for port, value in zip(outputs, returned):
            known[f"stage:{about['stage']}:{port['name']}"] = value
    last = manifest["stages"][-1]
    return [known[f"stage:{last['stage']}:{port['name']}"] for port in last["outputs"]]


def copied(value):
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(copied(item) for item in value)
    return value


def doubled(value):
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: doubled(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(doubled(item) for item in value)
    return value


def loss_of(outputs):
    total = 0.0
    for index, output in enumerate(outputs):
        if output.is_floating_point() and output.requires_grad:
            weights = torch.linspace(-1.0, 1.0, output.numel(), dtype=output.dtype).reshape(output.shape)
            total = total + (output * weights).mean() * (index + 1) + (output * output).mean() * 0.01
    return total


class Inputs(pickle.Unpickler):
    """Reads `traced_inputs.pkl`: the kinds and sizes of the example that the trace was made with."""

    def __init__(self, archive, folder):
        super().__init__(io.BytesIO(archive.read(f"{folder}/traced_inputs.pkl")))
        self.archive, self.folder = archive, folder

    def find_class(self, module, name):
        if name == "restore_type_tag":
            return lambda value, tag: value
        if name.startswith("build_"):
            return lambda value: list(value)
        return super().find_class(module, name)

    def persistent_load(self, reference):
        kind = reference[1]
        dtype = torch.float32 if kind is torch.FloatStorage else kind.dtype
        storage = torch.UntypedStorage(reference[4] * torch.empty((), dtype=dtype).element_size())
        return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


def example_inputs(path):
    archive = zipfile.ZipFile(path)
    folder = archive.namelist()[0].split("/")[0]
    torch.manual_seed(1)
    return [filled(value) for value in Inputs(archive, folder).load()["forward"]]


def filled(value):
    """torch saves the example's sizes, but not its elements."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            return torch.randn(value.shape, dtype=value.dtype)
        if value.dtype == torch.bool:
            return torch.ones(value.shape, dtype=torch.bool)
        return torch.randint(0, 2, value.shape, dtype=value.dtype)
    if isinstance(value, dict):
        return {key: filled(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(filled(item) for item in value)
    return value


def difference(a, b):
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    if a.numel() == 0 or torch.equal(a, b):
        return 0.0
    if a.isnan().all():
        return 0.0 if b.isnan().all() else float("inf")
    a, b = a.double(), b.double()
    same = (a == b) | (a.isnan() & b.isnan())
    if same.all():
        return 0.0
    scale = max(float(a[~a.isnan()].abs().max()), 1e-12)
    return float((a - b)[~same].abs().nan_to_num(float("inf")).max()) / scale


def gradients(modules):
    """Sums gradients by storage-independent name; a tied parameter's copies are added up."""
    found = {}
    for module in modules:
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                found[name] = found[name] + parameter.grad if name in found else parameter.grad.clone()
    return found


def sum_tied(stages, manifest):
    for tied in manifest["tied"]:
        copies = [dict(stages[h["stage"]].named_parameters(remove_duplicate=False))[h["name"]] for h in tied["holders"]]
        total = None
        for copy in copies:
            if copy.grad is not None:
                total = copy.grad.clone() if total is None else total + copy.grad
        for copy in copies:
            copy.grad = None if total is None else total.clone()


def losses(modules, run, steps, after):
    parameters, seen = [], set()
    for module in modules:
        for parameter in module.parameters():
            if parameter.requires_grad and id(parameter) not in seen:
                seen.add(id(parameter))
                parameters.append(parameter)
    optimizer = torch.optim.SGD(parameters, lr=1e-3)
    found = []
    for step in range(steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        loss = loss_of(run())
        if not isinstance(loss, torch.Tensor):
            return found
        loss.backward()
        after()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


class Run:
    """One pass forward and backward: what it returns, its gradients, and the state after it."""

    def __init__(self, modules, run, inputs, is_double=False):
        if is_double:
            modules = [module.double() for module in modules]
            inputs = doubled(inputs)
        torch.manual_seed(0)
        with torch.jit.optimized_execution(False):
            outputs = run(modules, copied(inputs))
            loss = loss_of(outputs)
            if isinstance(loss, torch.Tensor):
                loss.backward()
        self.outputs = [output.detach() for output in outputs]
        self.gradients = [gradients([module]) for module in modules]
        self.state = {name: value for module in modules for name, value in module.state_dict().items()}


class Whole:
    """The whole model, once."""

    def __init__(self, path):
        self.path = path
        self.inputs = example_inputs(path)
        self.run = self.pass_()
        self.precise = None

    def pass_(self, is_double=False):
        return Run([torch.jit.load(self.path)], lambda modules, inputs: leaves(modules[0](*inputs)), self.inputs, is_double)

    def in_double(self):
        """Returns the gradients in double precision; none where the trace holds on to its own types."""
        if self.precise is None:
            try:
                self.precise = self.pass_(is_double=True).gradients[0]
            except RuntimeError:
                self.precise = {}
        return self.precise


def verify(whole, out, form, steps):
    folder = Path(out) / "stages"
    manifest = json.loads((folder / "manifest.json").read_text())
    # Copies of a tied parameter are one parameter: gradients add up under the first name.
    alias = {h["name"]: tied["holders"][0]["name"] for tied in manifest["tied"] for h in tied["holders"]}

    def staged(is_double=False):
        stages = load_stages(folder, manifest, form)
        run = Run(stages, lambda stages, inputs: chain(stages, manifest, inputs), whole.inputs, is_double)
        total = {}
        for found in run.gradients:
            for name, gradient in found.items():
                name = alias.get(name, name)
                total[name] = total[name] + gradient if name in total else gradient
        return run, total

    run, found = staged()
    expected = {alias.get(name, name): gradient for name, gradient in whole.run.gradients[0].items()}
    report = {"outputs": max([difference(a, b) for a, b in zip(whole.run.outputs, run.outputs)], default=0.0)}
    if len(whole.run.outputs) != len(run.outputs):
        report["outputs"] = float("inf")
    apart = {name: difference(gradient, found[name]) if name in found else float("inf") for name, gradient in expected.items()}
    # Stages that run in another order than the trace add gradients up in another order. What that may do to a gradient
    # that is the rounding of zero shows in double precision: nothing that floats could hold.
    doubtful = [name for name, value in apart.items() if name in found and value > LIMITS["gradients"]]
    if doubtful and (precise := whole.in_double()):
        precise = {alias.get(name, name): gradient for name, gradient in precise.items()}
        largest = max(float(gradient.abs().max()) for gradient in precise.values() if gradient.numel())
        doubled_found = staged(is_double=True)[1]
        for name in doubtful:
            scale = max(float(precise[name].abs().max()), 1e-7 * largest)
            apart[name] = float((precise[name] - doubled_found[name]).abs().nan_to_num(float("inf")).max()) / scale
    extra = set(found) - set(expected)
    worst = max(apart, key=apart.get, default=None)
    report["gradients"] = float("inf") if extra else apart.get(worst, 0.0)
    report["at"] = sorted(extra)[0] if extra else worst if apart.get(worst) else None
    report["in_double"] = len(doubtful)
    report["parameters"] = len(expected)
    report["keys"] = set(whole.run.state) == set(run.state)
    report["buffers"] = max([difference(v, run.state[k]) for k, v in whole.run.state.items() if k in run.state], default=0.0)
    report["losses"] = 0.0
    if steps:
        model = torch.jit.load(whole.path)
        stages = load_stages(folder, manifest, form)
        inputs = whole.inputs
        a = losses([model], lambda: leaves(model(*copied(inputs))), steps, lambda: None)
        b = losses(stages, lambda: chain(stages, manifest, copied(inputs)), steps, lambda: sum_tied(stages, manifest))
        report["losses"] = max([abs(x - y) / max(abs(x), 1e-12) for x, y in zip(a, b)], default=0.0)
    return report


LIMITS = {"outputs": 1e-6, "gradients": 1e-5, "buffers": 1e-6, "losses": 1e-5}


def is_fine(report):
    return report["keys"] and all(report[name] <= limit for name, limit in LIMITS.items())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("pairs", nargs="+", metavar="MODEL OUT")
    parser.add_argument("--form", choices=["torchscript", "python"], action="append")
    parser.add_argument("--steps", type=int, default=0)
    arguments = parser.parse_args()
    fine = True
    pairs = zip(arguments.pairs[::2], arguments.pairs[1::2])
    forms = arguments.form or ["torchscript", "python"]
    for model, out, form in [(model, out, form) for model, out in pairs for form in forms]:
        report = verify(Whole(model), out, form, arguments.steps)
        ok = is_fine(report)
        fine &= ok
        print(json.dumps({"ok": ok, "form": form, **report}))
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
