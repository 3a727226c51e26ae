"""Stages that are cut from programs of torch.export do what the programs do.

    python tests/oracle/exported_stages.py BINARY FOLDER [NAME...]

Each model is exported, cut into three, and held against `torch.export.load(…)` by `verify`: outputs, gradients and losses of both forms
of the stages. Stages of programs with open sizes then run at other sizes, against the program itself.
"""

import io
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import torch
import torch._dynamo  # noqa: F401  (as the next, once for all interpreters: both are imported where a program is loaded)
import torch.export

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "fixtures"), str(ROOT / "src")]
warnings.simplefilter("ignore")

import verify  # noqa: E402
import zoo  # noqa: E402

BINARY, FOLDER = sys.argv[1], Path(sys.argv[2])
PYTHON = os.environ.get("MODEL_ANALYZE_PYTHON", sys.executable)
EVALUATING = "renewed cnn_basic lstm_seq2seq_small repeats bert_tiny gpt2_tiny resnet18 llama".split()
TRAINING = "cnn_dropout gpt2_tiny".split()
# Those that take long, and run when they are named.
LONG = "unet_small swin_t t5 mobilenet_v3_small".split()
OPEN = {"gpt2_tiny": [(3, 5), (5, 16)], "bert_tiny": [(3, 5), (5, 16)]}


class Renewed(torch.nn.Module):
    """Operators that were something else in older versions of TorchScript: what an archive's version says decides."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x):
        places = torch.arange(x.shape[0]).div(4)
        x = torch.nn.functional.gelu(self.first(x), approximate="tanh") + places[:, None]
        return self.last(x), torch.full((3,), 7), torch.div(x, 2, rounding_mode="floor"), torch.linspace(0, 1, 5) * x.sum()


def built(name):
    return (Renewed(), [(None, torch.randn(6, 8))]) if name == "renewed" else zoo.build(name)


def command(*arguments):
    run = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True)
    return run.returncode, run.stdout + run.stderr


def exported(name, train=False, is_open=False):
    made, inputs = built(name)
    made.train(train)
    args = tuple(value for key, value in inputs if key is None)
    kwargs = {key: value for key, value in inputs if key is not None}
    sizes = dict.fromkeys(range(2), torch.export.Dim.AUTO)
    options = {"dynamic_shapes": {key: sizes for key, _ in inputs}} if is_open else {}
    path = FOLDER / f"{name}.pt2"
    torch.export.save(torch.export.export(made, args, kwargs, **options), path)
    return path, [key for key, _ in inputs]


def cut(path):
    out = FOLDER / "out"
    code, said = command("emit", path, "--stages", 3, "--force", "-o", out)
    return out, [] if code == 0 else [said]


def verified(name, train=False):
    path, _ = exported(name, train)
    out, found = cut(path)
    if not found:
        code, said = command("verify", out, "--python", PYTHON, "--steps", 3, "--format", "json")
        answer = json.loads(said[said.index("{") : said.rindex("}") + 1]) if "{" in said else {}
        forms = [form["form"] for form in answer.get("forms", [])]
        if code or forms != ["torchscript", "python"]:
            found.append(said)
    return found


def at_other_sizes(name, shapes):
    path, keys = exported(name, is_open=True)
    out, found = cut(path)
    if found:
        return found
    program = torch.export.load(path).module()
    stages = verify.Stages({"folder": str(out), "device": "cpu", "float64": False}, "python")
    for shape in shapes:
        inputs = [torch.randint(0, 2, shape) for _ in keys]
        expected = verify.flat(program(**dict(zip(keys, inputs))))
        if not all(torch.equal(a, b) for a, b in zip(expected, stages(inputs), strict=True)):
            found.append(f"outputs differ at {shape}")
    return found


class Owning:
    """What a file may hold for its example inputs."""

    def __reduce__(self):
        return os.system, (f"touch {FOLDER / 'OWNED'}",)


def refused_example():
    """torch.export.load alone would run the pickle of the example inputs."""
    pickled = io.BytesIO()
    torch.save(Owning(), pickled)
    records = zoo.read_records(ROOT / "fixtures/exported/decoder.pt2")
    records["data/sample_inputs/model.pt"] = pickled.getvalue()
    for added in ("byteorder", ".data/version"):
        records.pop(added, None)
    zoo.write_archive(FOLDER / "owning.pt2", records)
    out, found = cut(FOLDER / "owning.pt2")
    code, said = command("verify", out, "--python", PYTHON, "--steps", 1)
    if code != 2 or "does not load the whole model" not in said:
        found.append(said)
    return found + ["code of the file was run"] * (FOLDER / "OWNED").exists()


def main():
    cases = [(name, lambda name=name: verified(name)) for name in EVALUATING + LONG]
    cases += [(f"{name} in training mode", lambda name=name: verified(name, train=True)) for name in TRAINING]
    cases += [(f"{name} at other sizes", lambda name=name, shapes=shapes: at_other_sizes(name, shapes)) for name, shapes in OPEN.items()]
    cases.append(("an example that runs code", refused_example))
    failed = False
    for name, case in cases:
        if name in LONG and name not in sys.argv[3:] or sys.argv[3:] and name.split()[0] not in sys.argv[3:]:
            continue
        found = case()
        failed |= bool(found)
        print("\n    ".join([f"{name}: {'wrong' if found else 'right'}", *found]), flush=True)
    sys.exit(failed)


main()
