"""Training steps with activations on the device, and in host memory in four modes: VGG19, AlexNet, ResNet50, InceptionV3.

    python benches/offload.py --device cuda:0 --steps 10 --seconds 60 --out offload.json

Two classes, batches of 32, SGD, as in the table that this project began with. Needs torch and torchvision only: what moves
the activations is codegen/src/train/parts/offload.py, the part that `train.py --offload` imports. Each mode trains from the same
weights with the same random numbers, so its last loss should be that of the steps without; a mode that fails is told and
the others go on. `--seconds` is shared out: a mode ends early, after two steps at least, when its share is over.
"""

import argparse
import copy
import importlib.util
import json
import os
import platform
import statistics
import time
from pathlib import Path

import torch
import torchvision

PART = Path(__file__).resolve().parent.parent / "codegen/src/train/parts/offload.py"
# The builder of torchvision, the pictures' size, the parameters that the table gives.
MODELS = {
    "VGG19": (torchvision.models.vgg19, 224, 139_578_434),
    "AlexNet": (torchvision.models.alexnet, 224, 57_012_034),
    "ResNet50": (torchvision.models.resnet50, 224, 23_512_130),
    "InceptionV3": (lambda **how: torchvision.models.inception_v3(init_weights=False, **how), 299, 24_348_900),
}
WARM_UP = 2  # steps that find memory and kernels; they are not counted
LEAST = 2  # steps that are


def load_part():
    spec = importlib.util.spec_from_file_location("offload_part", PART)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def options(part):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", default=",".join(MODELS), help=f"some of {', '.join(MODELS)}")
    parser.add_argument("--modes", default=",".join(part.MODES), help=f"some of {', '.join(part.MODES)}")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, help="height and width of pictures; the model's own by default")
    parser.add_argument("--steps", type=int, default=10, help="counted steps of each mode, after two that are not")
    parser.add_argument("--seconds", type=float, default=600.0, help="for all of it")
    parser.add_argument("--floor", type=int, default=part.FLOOR, help="bytes; what is smaller stays")
    parser.add_argument("--out", default="offload.json")
    return parser


def main():
    part = load_part()
    arguments = options(part).parse_args()
    begun, device = time.perf_counter(), torch.device(arguments.device)
    Path(arguments.out).parent.mkdir(parents=True, exist_ok=True)
    names, modes = arguments.models.split(","), arguments.modes.split(",")
    for chosen, known, what in ((names, MODELS, "model"), (modes, part.MODES, "mode")):
        if wrong := [name for name in chosen if name not in known]:
            raise SystemExit(f"there is no {what} `{wrong[0]}`: {', '.join(known)}")
    torch.backends.cudnn.deterministic = True  # so that losses can be compared
    about = {"device": name_of(device), "torch": torch.__version__, "batch": arguments.batch, "steps": arguments.steps}
    found = {"kind": "offload-table", "version": 1, "about": about, "rows": []}
    print(f"{about['device']}, torch {torch.__version__}, batch {arguments.batch}; seconds are medians of a step, copies means")
    print(HEADER)
    left = len(names) * len(modes)
    for name in names:
        try:
            subject = Subject(name, arguments, device)
        except Exception as error:  # noqa: BLE001
            print(f"{name:12} cannot be made: {first_line(error)}", flush=True)
            left -= len(modes)
            continue
        for mode in modes:
            share = (arguments.seconds - (time.perf_counter() - begun)) / left
            left -= 1
            row = {"model": name, "mode": mode}
            try:
                row |= subject.measured(part, mode, arguments, share)
                print(line(row, found["rows"]), flush=True)
            except Exception as error:  # noqa: BLE001
                row["error"] = first_line(error)
                print(f"{name:12} {mode:13} failed: {row['error']}", flush=True)
            found["rows"].append(row)
            beside = Path(arguments.out).with_suffix(".part")
            beside.write_text(json.dumps(found, indent=1) + "\n")
            os.replace(beside, arguments.out)
            if device.type == "cuda":
                torch.cuda.empty_cache()
        subject = None
    print(f"{time.perf_counter() - begun:.1f} s in all; {arguments.out}")


class Subject:
    """A model, and what it is trained on."""

    def __init__(self, name, arguments, device):
        build, size, parameters = MODELS[name]
        self.device, size = device, arguments.size or size
        torch.manual_seed(0)
        with device:
            self.model = build(num_classes=2).train()
        count = sum(parameter.numel() for parameter in self.model.parameters())
        if count != parameters:
            raise ValueError(f"{count} parameters, the table's model has {parameters}")
        self.pictures = torch.randn(arguments.batch, 3, size, size, device=device)
        self.labels = torch.arange(arguments.batch, device=device) % 2
        self.state = copy.deepcopy(self.model.state_dict())

    def measured(self, part, mode, arguments, share):
        """Trains in one mode from the first weights on; returns what a step takes, holds and moves."""
        begun = time.perf_counter()
        self.model.load_state_dict(self.state)
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        offload = part.Offload(mode, self.device, arguments.floor)
        seconds, losses, figures = [], [], None
        for step in range(WARM_UP + arguments.steps):
            if step == WARM_UP:
                figures = self.settled(offload)
            before = time.perf_counter()
            losses.append(self.step(offload, optimizer))
            self.synchronize()
            if step >= WARM_UP:
                seconds.append(time.perf_counter() - before)
            if len(seconds) >= LEAST and time.perf_counter() - begun > share:
                break
        made_before, figures = figures["buffers"], offload.figures()
        count, median = len(seconds), statistics.median(seconds)
        row = {"seconds": median, "pictures_per_second": arguments.batch / median, "steps": count}
        row["peak_bytes"] = torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None
        row |= {name: figures[name] / count for name in ("to_host", "to_device", "seconds_to_host", "seconds_to_device")}
        row |= {"host_bytes": figures["host_bytes"], "buffers": figures["buffers"]}
        row |= {"new_buffers": figures["buffers"] - made_before, "in_use": figures["in_use"]}
        row["losses"] = [float(loss) for loss in losses]
        for parameter in self.model.parameters():
            parameter.grad = None
        return row

    def step(self, offload, optimizer):
        optimizer.zero_grad(set_to_none=True)
        offload.begin()
        with offload.saving(self.model):
            outputs = self.model(self.pictures)
            if isinstance(outputs, tuple):  # InceptionV3 has a second head while it trains
                loss = sum(torch.nn.functional.cross_entropy(o, self.labels) * w for o, w in zip(outputs, (1.0, 0.4)))
            else:
                loss = torch.nn.functional.cross_entropy(outputs, self.labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def settled(self, offload):
        self.synchronize()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        return offload.figures()

    def synchronize(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


HEADER = (
    f"{'model':12} {'mode':13} {'s a step':>9} {'pictures/s':>10} {'peak GiB':>8} {'GiB out':>8} {'s out':>8} {'GiB back':>8}"
    f" {'s back':>8} {'host GiB':>8}  losses"
)


def line(row, before):
    peak = f"{row['peak_bytes'] / 2**30:8.2f}" if row["peak_bytes"] is not None else f"{'-':>8}"
    text = f"{row['model']:12} {row['mode']:13} {row['seconds']:9.4f} {row['pictures_per_second']:10.1f} {peak}"
    for way in ("host", "device"):
        text += f" {row[f'to_{way}'] / 2**30:8.3f} {row[f'seconds_to_{way}']:8.4f}"
    text += f" {row['host_bytes'] / 2**30:8.3f}  "
    plain = next((other for other in before if other["model"] == row["model"] and other["mode"] == "none" and "error" not in other), None)
    if plain is None:
        return text + ("-" if row["mode"] != "none" else f"{row['losses'][0]:.6g} … {row['losses'][-1]:.6g}")
    count = min(len(row["losses"]), len(plain["losses"]))
    pairs = list(zip(row["losses"][:count], plain["losses"][:count]))
    if all(a == b for a, b in pairs):
        return text + f"{count} equal"
    return text + f"differ by {max(abs(a - b) / max(abs(b), 1e-30) for a, b in pairs):.0e} in {count} steps"


def name_of(device):
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"


def first_line(error):
    return f"{type(error).__name__}: {(str(error).strip() or '-').splitlines()[0][:200]}"


if __name__ == "__main__":
    main()
