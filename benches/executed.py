"""Plans as they are predicted beside plans as they are executed: are they in the right order, and how far off?

    make bench-executed  (or .venv/bin/python benches/executed.py --cost-model FILE after `cargo build --release`)

Four models, each under five plans for two processes of one thread (gloo): replicas, 1F1B over as many layers and over as many
parameters, our 1F1B, our zero bubble. Times are those of a cost model of this machine, profiled while a second process does the
same: cores of one machine share caches and memory, often more. Links are measured here, and what `train.py` takes for each pass
is measured by its `--host-trace` in first runs under 1F1B and under zero bubble, and charged by `--host-overhead` and `--split-overhead`.
All plans run in turns, so that whatever else the machine does meets all of them; the fastest step of each counts.

Tells Kendall's τ of the plans of each model, the mean error of the step, and zero bubble beside 1F1B as predicted and executed.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import split

HERE = split.HERE
VARIANTS = {
    "replicas": ["--strategy", "data-parallel", "--sharding", "none"],
    "even layers": ["--strategy", "even-layers"],
    "even parameters": ["--strategy", "even-parameters"],
    "1f1b": ["--strategy", "1f1b", "--stages", "2"],
    "zero bubble": ["--strategy", "zero-bubble", "--stages", "2"],
}


def models():
    import torch
    import torchvision

    yield from split.models()
    yield "resnet", torchvision.models.resnet18(weights=None), torch.randn(2, 3, 64, 64)


def planned(name, variant, shared, charged=()):
    """Plans and emits one variant; returns its predicted step and its folder."""
    model, folder = HERE / f"{name}.pt", HERE / f"{name}-{variant.replace(' ', '-')}"
    file = folder.with_suffix(".yaml")
    split.run("plan", model, *shared, *VARIANTS[variant], *charged, "--micro-batches", split.MICRO_BATCHES, "-o", file)
    split.run("emit", model, file, "--targets", "python", "--force", "-o", folder)
    checked = json.loads(split.run("plan", model, *shared, "--check", file, "--format", "json"))
    return checked["step_seconds"], folder


def trained(folder, steps, *more):
    """Seconds of each step of a run, and what it says at its end."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    log = folder / "log.jsonl"
    command = [sys.executable, folder / "train.py", "--allow-eval", "--device", "cpu", "--steps", steps, "--log", log, *more]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"{folder}\n{done.stdout}\n{done.stderr[-3000:]}")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [line["seconds"] for line in lines if "seconds" in line], next((line["host"] for line in lines if "host" in line), None)


def tau(one, other):
    """Kendall's τ: of all pairs those in the same order, less those in the other."""
    pairs = [(a, b) for a in one for b in one if a < b]
    signs = [(one[a] - one[b]) * (other[a] - other[b]) for a, b in pairs]
    return sum((sign > 0) - (sign < 0) for sign in signs) / len(pairs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="gpt2,vgg16,unet,resnet")
    parser.add_argument("--plans", default=",".join(VARIANTS), help="which plans of each model")
    parser.add_argument("--rounds", type=int, default=4, help="runs of each plan, in turns")
    parser.add_argument("--steps", type=int, default=8, help="steps of a run; the first two are not counted")
    parser.add_argument("--cost-model", required=True, help="times of a core of this machine, as `fit` writes them")
    parser.add_argument("--json", help="where the figures go, too")
    arguments = parser.parse_args()
    HERE.mkdir(parents=True, exist_ok=True)
    wanted, variants = arguments.models.split(","), arguments.plans.split(",")
    split.trace(wanted, models())
    (device,) = re.findall(r"^device: (.+)$", Path(arguments.cost_model).read_text(), re.MULTILINE)
    cluster = split.CLUSTER.format(**split.loopback()).replace("type: cpu", f'type: "{device}"')
    (HERE / "cluster.yaml").write_text(cluster)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    figures = {}
    for name in wanted:
        shared = ["--cluster", HERE / "cluster.yaml", "--optimizer", "sgd", "--no-overlap", "--cost-model", arguments.cost_model]
        shared += ["--input", (HERE / f"{name}.input").read_text()]
        overheads = {"1f1b": "pass", "zero bubble": "split"}
        for variant, figure in overheads.items():
            _, folder = planned(name, variant, shared)
            overheads[variant] = min(1e6 * trained(folder, 2 * arguments.steps, "--host-trace")[1][figure] for _ in range(2))
        overhead, split_overhead = overheads.values()
        charged = ["--host-overhead", f"{overhead:.0f}", "--split-overhead", f"{split_overhead:.0f}"]
        # Two names of one plan are one plan.
        plans = {step: (variant, folder) for variant in reversed(variants) for step, folder in [planned(name, variant, shared, charged)]}
        plans = {variant: (step, folder) for step, (variant, folder) in reversed(plans.items())}
        executed = {variant: [] for variant in plans}
        for _ in range(arguments.rounds):
            for variant, (_, folder) in plans.items():
                seconds, _ = trained(folder, arguments.steps)
                executed[variant] += seconds[2:]
        predicted = {variant: step for variant, (step, _) in plans.items()}
        least = {variant: min(found) for variant, found in executed.items()}
        off = {variant: predicted[variant] / least[variant] - 1 for variant in plans}
        figures[name] = {"overhead_us": overhead, "split_us": split_overhead, "tau": tau(predicted, least), "predicted": predicted, "executed": executed}
        print(f"\n{name}: {overhead:.0f} µs a pass and {split_overhead:.0f} µs for halves charged, load {os.getloadavg()[0]:.1f}")
        for variant in plans:
            print(f"  {variant:16} {1e3 * predicted[variant]:7.0f} ms predicted {1e3 * least[variant]:7.0f} ms executed {100 * off[variant]:+6.1f} %")
        print(f"  Kendall τ {figures[name]['tau']:.2f}, mean error {100 * statistics.mean(map(abs, off.values())):.1f} %", flush=True)
    errors = [abs(each["predicted"][v] / min(each["executed"][v]) - 1) for each in figures.values() for v in each["predicted"]]
    print(f"\n{len(errors)} plans of {len(figures)} models: mean τ {statistics.mean(each['tau'] for each in figures.values()):.2f}, mean error {100 * statistics.mean(errors):.1f} %")
    for name, each in figures.items():
        if not {"zero bubble", "1f1b"} <= set(each["predicted"]):
            continue
        halves, whole = ([each["predicted"][v], min(each["executed"][v])] for v in ("zero bubble", "1f1b"))
        print(f"zero bubble to 1F1B of {name}: {halves[0] / whole[0]:.2f} predicted, {halves[1] / whole[1]:.2f} executed")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
