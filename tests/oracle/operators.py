"""Sizes and types of every operator's results, on the samples that PyTorch tests its own operators with.

    python operators.py COMMAND FOLDER [--samples 7] [OPERATOR …]

Samples are traced, and what `inspect` infers of them compared with what the trace records: once beside the recording, once
from the code and the inputs' sizes alone. Results whose sizes data decide need not be known. Some thirty samples are one model;
where that cannot be traced, or something is wrong with it, its halves are. Exits 1 when something is refused that torch
computes, or when what is inferred is not what torch gave.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "fixtures"))

import torch
import zoo
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_unflatten

# `chalf` gives half-precision complex numbers, for which archives have a type and we have none.
LEFT_OUT = {"chalf"}


class Called(torch.nn.Module):
    """One call of an operator, whose tensors are the inputs."""

    def __init__(self, operator, sample):
        super().__init__()
        self.name, self.operator, self.sample = operator.name, operator.op, sample
        self.flat, self.spec = tree_flatten((sample.input, sample.args, sample.kwargs))
        self.places = [place for place, value in enumerate(self.flat) if isinstance(value, torch.Tensor)]
        self.tensors = [self.flat[place].detach() for place in self.places]

    def forward(self, *tensors):
        flat = list(self.flat)
        for place, tensor in zip(self.places, tensors):
            # Inputs stay as they are, for operators that write.
            flat[place] = tensor * 1 if tensor.is_floating_point() else tensor.clone()
        first, rest, named = tree_unflatten(flat, self.spec)
        results = [one for one in tree_flatten(self.operator(first, *rest, **named))[0] if isinstance(one, torch.Tensor)]
        results = [one.clone() if one.is_floating_point() else one for one in results]
        return results[0] if len(results) == 1 else tuple(results)


class All(torch.nn.Module):
    """Several calls, one after the other."""

    def __init__(self, calls):
        super().__init__()
        self.calls = torch.nn.ModuleList(calls)
        self.tensors = [tensor for call in calls for tensor in call.tensors]

    def forward(self, *tensors):
        rest = iter(tensors)
        results = [call(*itertools.islice(rest, len(call.tensors))) for call in self.calls]
        return tuple(tree_flatten(results)[0])


def samples(operator, count):
    for dtype in (torch.float32, torch.int64, torch.complex64):
        if dtype in operator.supported_dtypes("cpu"):
            # Some operators have thousands, of which the first are alike.
            found = list(itertools.islice(operator.sample_inputs("cpu", dtype, requires_grad=False), 200))
            return found[:: max(1, len(found) // count)][:count]
    return []


def inspect(command, archive, flags=()):
    done = subprocess.run([command, "inspect", archive, "--format", "json", *flags], capture_output=True, text=True)
    if done.returncode:
        return None, " / ".join(line.strip() for line in done.stderr.splitlines()[:2]).replace(str(archive), "model")
    return json.loads(done.stdout), ""


def is_plain(call):
    return call.tensors and all(one.layout == torch.strided and not one.is_quantized for one in call.tensors)


def check(command, archive, module):
    """Returns what is wrong with a model, and the unknown operators; None where torch cannot trace it."""
    try:
        traced, names = zoo.SCRIPT.trace(module, [(None, one) for one in module.tensors])
        text = zoo.SCRIPT.record(traced, about={}, training=False, outputs=names)
        zoo.SCRIPT.save(traced, str(archive), text)
    except Exception:
        return None
    recorded, refused = inspect(command, archive)
    if recorded is None:
        return [refused], []
    wrong = [f"beside the recording: {text}" for text in recorded.get("disagreements", [])]
    if any(one.numel() == 0 for one in module.tensors):
        # `--input` refuses sizes of 0: nobody asks for them on purpose.
        return wrong, [one["name"] for one in recorded["unknown"]]
    torch.jit.save(traced, archive)
    flags = []
    for tensor, known in zip(module.tensors, recorded["inputs"]):
        sizes = "x".join(map(str, tensor.shape)) or "scalar"
        flags += ["--input", f"{known['name']}={sizes}:{str(tensor.dtype).removeprefix('torch.')}"]
    plain, refused = inspect(command, archive, flags)
    if plain is None:
        return [*wrong, f"from the code: {refused}"], []
    if len(recorded["outputs"]) != len(plain["outputs"]):
        wrong.append(f"from the code: {len(plain['outputs'])} results, not {len(recorded['outputs'])}")
    for truth, found in zip(recorded["outputs"], plain["outputs"]):
        truth, found = truth["shape"], found["shape"]
        if truth is not None and found is not None:
            is_same = len(truth) == len(found) and all(b is None or a == b for a, b in zip(truth, found))
            wrong += [] if is_same else [f"from the code: {found}, not {truth}"]
    return wrong, [one["name"] for one in recorded["unknown"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=7, help="of each operator")
    parser.add_argument("operators", nargs="*")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    archive = options.folder / "operator.pt"
    tried, failed, unknown = 0, set(), set()
    calls = []
    for operator in op_db:
        if operator.name in LEFT_OUT or options.operators and operator.name not in options.operators:
            continue
        try:
            found = [Called(operator, sample) for sample in samples(operator, options.samples)]
        except Exception:  # Some need libraries that are not here.
            continue
        calls += [call for call in found if is_plain(call)]
    # Samples without elements are compared in one way only, and must not keep others from the second.
    is_empty = [any(one.numel() == 0 for one in call.tensors) for call in calls]
    waiting = []
    for kind in (False, True):
        alike = [call for call, found in zip(calls, is_empty) if found == kind]
        waiting += [alike[start : start + 28] for start in range(0, len(alike), 28)]
    while waiting:
        some = waiting.pop()
        answer = check(options.command, archive, All(some) if len(some) > 1 else some[0])
        if len(some) > 1 and (answer is None or answer[0]):
            waiting += [some[len(some) // 2 :], some[: len(some) // 2]]
            continue
        if answer is None:
            continue
        tried += len(some)
        unknown.update(answer[1])
        if answer[0] and some[0].name not in failed:
            failed.add(some[0].name)
            shapes = [tuple(one.shape) for one in some[0].tensors]
            print(f"{some[0].name} of {shapes}, {some[0].sample.kwargs}: {'; '.join(answer[0])}"[:600], flush=True)
    print(f"{tried} samples, {len(failed)} operators wrong, {len(unknown)} not known: {', '.join(sorted(unknown))}")
    sys.exit(1 if failed or not tried else 0)


if __name__ == "__main__":
    main()
