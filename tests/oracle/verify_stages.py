"""Chains the stages of an `emit` folder by its manifest and compares them with the whole model.

    python verify_stages.py MODEL.pt OUT [MODEL.pt OUT …] [--form torchscript|python] [--steps 10]

Prints a line of JSON for each: worst differences of outputs, gradients, buffers and losses. Exits 1 when out of tolerance.
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


class Whole:
    """The whole model, once: what it returns, its gradients, and its state after one pass."""

    def __init__(self, path):
        self.path = path
        model = torch.jit.load(path)
        self.inputs = example_inputs(path)
        torch.manual_seed(0)
        outputs = leaves(model(*copied(self.inputs)))
        loss = loss_of(outputs)
        if isinstance(loss, torch.Tensor):
            loss.backward()
        self.outputs = [output.detach() for output in outputs]
        self.gradients = gradients([model])
        self.state = model.state_dict()


def verify(whole, out, form, steps):
    folder = Path(out) / "stages"
    manifest = json.loads((folder / "manifest.json").read_text())
    stages = load_stages(folder, manifest, form)
    torch.manual_seed(0)
    got = chain(stages, manifest, copied(whole.inputs))
    report = {"outputs": max([difference(a, b.detach()) for a, b in zip(whole.outputs, got)], default=0.0)}
    if len(whole.outputs) != len(got):
        report["outputs"] = float("inf")
    loss = loss_of(got)
    if isinstance(loss, torch.Tensor):
        loss.backward()
    # Copies of a tied parameter are one parameter: gradients add up under the first name.
    alias = {h["name"]: tied["holders"][0]["name"] for tied in manifest["tied"] for h in tied["holders"]}
    stage_gradients = {}
    for stage in stages:
        for name, gradient in gradients([stage]).items():
            name = alias.get(name, name)
            stage_gradients[name] = stage_gradients[name] + gradient if name in stage_gradients else gradient
    worst, at = 0.0, None
    largest = max([float(gradient.abs().max()) for gradient in whole.gradients.values() if gradient.numel()], default=0.0)
    for name, gradient in whole.gradients.items():
        name = alias.get(name, name)
        value = difference(gradient, stage_gradients[name]) if name in stage_gradients else float("inf")
        # Below a millionth of the model's largest a gradient is the rounding of zero: behind a normalisation of two
        # values, say. It must be zero here, too.
        if value and gradient.numel() and float(gradient.abs().max()) <= 1e-6 * largest:
            value = float((gradient - stage_gradients[name]).abs().max()) / largest
        if value > worst:
            worst, at = value, name
    extra = set(stage_gradients) - {alias.get(name, name) for name in whole.gradients}
    report["gradients"] = float("inf") if extra else worst
    report["at"] = at or (sorted(extra)[0] if extra else None)
    report["parameters"] = len(whole.gradients)
    state = {name: value for stage in stages for name, value in stage.state_dict().items()}
    report["keys"] = set(whole.state) <= set(state) and set(state) <= set(whole.state)
    report["buffers"] = max([difference(v, state[k]) for k, v in whole.state.items() if k in state], default=0.0)
    report["losses"] = 0.0
    if steps:
        model = torch.jit.load(whole.path)
        stages = load_stages(folder, manifest, form)
        inputs = whole.inputs
        a = losses([model], lambda: leaves(model(*copied(inputs))), steps, lambda: None)
        b = losses(stages, lambda: chain(stages, manifest, copied(inputs)), steps, lambda: sum_tied(stages, manifest))
        report["losses"] = max([abs(x - y) / max(abs(x), 1e-12) for x, y in zip(a, b)], default=0.0)
    return report


def is_fine(report):
    limits = {"outputs": 1e-6, "gradients": 1e-5, "buffers": 1e-6, "losses": 1e-5}
    return report["keys"] and all(report[name] <= limit for name, limit in limits.items())


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
