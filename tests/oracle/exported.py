"""What is read of a program of torch.export is what is read of a trace of the same model.

    python tests/oracle/exported.py BINARY FOLDER [--all | NAME...]

Each model of the zoo is traced and exported; `inspect` of both must agree in parameters, FLOPs, saved activations, and block by block.
Operators are not counted: an export has no arithmetic on sizes. A module that runs no operator is a block of a trace alone. What
else differs, and why, stands in `DIFFERENT`; nothing else may. Sizes that an export leaves open are tried at others than the
example's, against an export of those.
"""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "fixtures"))
warnings.simplefilter("ignore")

import zoo  # noqa: E402

BINARY, FOLDER = sys.argv[1], Path(sys.argv[2])
OURS = "cnn_basic cnn_dropout unet_small amoebanet_6_small gpt2_tiny bert_tiny lstm_seq2seq_small repeats".split()
TORCHVISION = "resnet18 vit_b_16 swin_t".split()
TRANSFORMERS = "t5 llama".split()
# Whose operators others have, too: `make oracle` takes them.
SELDOM = "densenet121 mobilenet_v3_small efficientnet_b0 convnext_tiny googlenet gpt2 bert".split()
COMPARED = "kind output_shape output_dtype parameters flops fused_flops backward_flops activation_bytes".split()

# Fields that differ, and by how much of the traced one at the most.
DIFFERENT = {
    # A trace holds the numbers that queries are scaled by as tensors, which autograd keeps; an export has them as numbers.
    "swin_t": {"activation_bytes": 1e-5},
    # transformers gives attention a mask of floats where it is exported, and one of truth values where it is traced.
    "t5": {"activation_bytes": 0.1},
}
# Models with a module under two names: a trace has the first, an export the one by which it was called. Totals are compared.
ALIASED = {"repeats"}


def inspect(path, *arguments):
    command = [BINARY, "inspect", str(path), "--format", "json", *arguments]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"{path.name}: {run.stderr}")
    return json.loads(run.stdout)


def exported(name, made, inputs, dynamic_shapes=None):
    args = tuple(value for key, value in inputs if key is None)
    kwargs = {key: value for key, value in inputs if key is not None}
    path = FOLDER / f"{name}.pt2"
    torch.export.save(torch.export.export(made, args, kwargs, dynamic_shapes=dynamic_shapes), path)
    return path


def differences(theirs, ours, allowed, is_aliased=False):
    found = []

    def check(place, key, a, b):
        if a != b and (key not in allowed or abs(a - b) > allowed[key] * a):
            found.append(f"{place} {key}: {a} traced, {b} exported")

    for key in theirs["totals"].keys() - {"operators"}:
        check("in all,", key, theirs["totals"][key], ours["totals"][key])

    if is_aliased:
        return found
    a = {block["path"]: block for block in theirs["blocks"] if block["operators"]}
    b = {block["path"]: block for block in ours["blocks"]}
    found += [f"`{path}` is traced alone" for path in a.keys() - b.keys()]
    found += [f"`{path}` is exported alone" for path in b.keys() - a.keys()]
    for path in a.keys() & b.keys():
        for key in COMPARED:
            check(f"`{path}`", key, a[path][key], b[path][key])
    return found + [f"{key}: {entry}" for key in ("unknown", "disagreements", "notes") for entry in ours[key]]


def compare(name):
    made, inputs = zoo.build(name)
    path = exported(name, made, inputs)
    traced, text = zoo.trace(name)
    zoo.SCRIPT.save(traced, str(FOLDER / f"{name}.pt"), text)
    theirs, ours = inspect(FOLDER / f"{name}.pt"), inspect(path)
    for leftover in FOLDER.iterdir():
        os.remove(leftover)
    # Parameters and FLOPs are those of torch itself, too.
    parameters = sum(parameter.numel() for parameter in made.parameters())
    found = [] if ours["totals"]["parameters"] == parameters else [f"{parameters} parameters"]
    return found + differences(theirs, ours, DIFFERENT.get(name, {}), name in ALIASED)


def open_sizes(name, sizes, shapes):
    """One export with open sizes, inspected at other sizes, is what an export at those sizes is."""
    made, inputs = zoo.build(name)
    keys = [key for key, _ in inputs]
    options = {key: dict.fromkeys(range(len(sizes)), torch.export.Dim.AUTO) for key in keys}
    dynamic = options if None not in keys else tuple(options[key] for key in keys)
    loose = exported(name, made, inputs, dynamic)
    found = []
    for shape in shapes:
        given = "x".join(map(str, shape))
        ours = inspect(loose, "--input", f"{keys[0]}={given}" if keys[0] else given)
        again = [(key, torch.ones(shape, dtype=value.dtype)) for key, value in inputs]
        theirs = inspect(exported(f"{name}_fixed", made, again))
        found += [f"{given}: {line}" for line in differences(theirs, ours, {})]
    return found


def main():
    failed, wanted = False, sys.argv[3:]
    cases = [(name, lambda name=name: compare(name)) for name in OURS + TORCHVISION + TRANSFORMERS + SELDOM]
    cases += [
        (f"{name} at other sizes", lambda name=name: open_sizes(name, ["batch", "length"], [(3, 5), (5, 16)]))
        for name in ("gpt2_tiny", "bert_tiny", "llama")
    ]
    for name, case in cases:
        is_seldom = name in SELDOM or name == "llama at other sizes"
        if wanted != ["--all"] and (name not in wanted if wanted else is_seldom):
            continue
        found = case()
        failed |= bool(found)
        print("\n    ".join([f"{name}: {len(found)} differences", *found[:12]]), flush=True)
    sys.exit(failed)


main()
