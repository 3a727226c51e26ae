"""Our plan beside splits by hand: predicted, and executed by two processes of one thread each (gloo).

    .venv/bin/python benches/split.py  (after `cargo build --release`)

Three models whose weight lies at one end: GPT-2 with a head larger than its layers, VGG-16, a U-Net. By hand are: as many
layers to each stage, as many parameters to each stage, and the even `split_spec` of torch.distributed.pipelining, a cut
before the middle layer of the model's source. Ours is what `split` chooses, and the best of its pipelines beside it. Times
are those of the cost model that ships for `cpu`, over a link measured here. All run in the same `train.py`, by stock
torch.distributed.pipelining, and in turns, so that whatever else the machine does meets all of them; the fastest of each
one's medians counts. Ends with 1 where ours is slower than the best by hand by more than `--noise`.

Then the seconds of `split` on ResNet-50 and GPT-2 without copying weights.
"""

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMAND = Path(os.environ.get("MODEL_ANALYZE", ROOT / "target/release/model-analyze"))
HERE = Path(os.environ.get("BENCH_FOLDER", ROOT / "out/bench-split"))
# Two processes of one thread each, which also move what they send: nothing overlaps.
CLUSTER = """\
kind: cluster
version: 1
devices:
- {{name: process0, type: cpu, place: [0]}}
- {{name: process1, type: cpu, place: [0]}}
levels:
- {{name: loopback, bandwidth: {bandwidth:.3e}, latency: {latency:.1e}}}
"""
MICRO_BATCHES = 8
# Before which block somebody cuts who counts the layers of the source.
MIDDLE = {"gpt2": "transformer.h.3", "vgg16": "features.19", "unet": "raise_.0"}


def models():
    import torch
    import torchvision
    import transformers

    sys.path.insert(0, str(ROOT / "fixtures"))
    from models.unet import UNet

    config = transformers.GPT2Config(
        n_layer=6, n_head=4, n_embd=192, n_positions=128, vocab_size=30000, use_cache=False, return_dict=True
    )
    yield "gpt2", transformers.GPT2LMHeadModel(config), torch.randint(0, 30000, (2, 64))
    yield "vgg16", torchvision.models.vgg16(weights=None), torch.randn(1, 3, 128, 128)
    yield "unet", UNet(width=32), torch.randn(1, 3, 96, 96)


def trace(wanted, found=None):
    import torch

    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    for name, model, example in found or models():
        if name in wanted and not (HERE / f"{name}.pt").exists():
            target = f"{Path(__file__).stem}:{name}"
            model.train()
            # Dropout would only add noise to the times.
            for module in model.modules():
                if isinstance(module, torch.nn.Dropout):
                    module.p = 0.0
            if name == "gpt2":
                model = Logits(model)
            print(f"tracing {target}", file=sys.stderr)
            with torch.no_grad():
                torch.jit.save(torch.jit.trace(model, example, check_trace=False), HERE / f"{name}.pt")
            shape = "x".join(str(size) for size in example.shape)
            dtype = str(example.dtype).removeprefix("torch.")
            (HERE / f"{name}.input").write_text(f"{shape}:{dtype}")


def Logits(model):
    import torch

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.transformer, self.lm_head = model.transformer, model.lm_head

        def forward(self, ids):
            return self.lm_head(self.transformer(input_ids=ids, use_cache=False)[0])

    return Logits()


def exchange(rank, port, queue):
    """One of two processes that send tensors and sum them; the first tells bytes and seconds of each way."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    rows = []
    for size in (1 << 18, 1 << 20, 1 << 22, 1 << 24):
        tensor = torch.zeros(size // 4)

        def there_and_back():
            for does in (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send):
                does(tensor, 1 - rank)

        # A ring of two sends half of it twice.
        for work, sent in ((there_and_back, 2 * size), (lambda: dist.all_reduce(tensor), size)):
            times = []
            for _ in range(12):
                dist.barrier()
                begun = time.perf_counter()
                work()
                times.append(time.perf_counter() - begun)
            rows.append((sent, min(times[2:])))
    if rank == 0:
        queue.put(rows)
    dist.barrier()
    dist.destroy_process_group()


def loopback():
    """Bandwidth and latency of gloo between two processes: what fits two messages of each measured size best."""
    import torch
    import torch.multiprocessing as processes

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    queue = processes.get_context("spawn").SimpleQueue()
    running = processes.spawn(exchange, args=(port, queue), nprocs=2, join=False)
    rows = queue.get()
    while not running.join():
        pass
    sizes = torch.tensor([[2.0, sent] for sent, _ in rows], dtype=torch.float64)
    seconds = torch.tensor([[seconds] for _, seconds in rows], dtype=torch.float64)
    latency, each = torch.linalg.lstsq(sizes / seconds, torch.ones_like(seconds)).solution.flatten().tolist()
    return {"bandwidth": 1 / each, "latency": max(latency, 0.0)}


def run(*arguments):
    arguments = [str(argument) for argument in arguments]
    done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)}\n{done.stderr}")
    return done.stdout


def plan(name, variant, arguments):
    """Plans, simulates and emits one variant; returns its predicted step."""
    model, folder = HERE / f"{name}.pt", HERE / f"{name}-{variant}"
    file = HERE / f"{name}-{variant}.yaml"
    shared = ["--cluster", HERE / "cluster.yaml", "--optimizer", "sgd", "--no-overlap"]
    shared += ["--input", (HERE / f"{name}.input").read_text()] + arguments.cost_model
    wanted = ["--micro-batches", MICRO_BATCHES]
    if variant == "split-spec":
        middle_plan(HERE / f"{name}-even-layers.yaml", MIDDLE[name], file)
    else:
        strategy = "auto" if variant.startswith("our") else variant
        if variant == "our-pipeline":
            wanted += ["--stages", 2]
        run("plan", model, *shared, *wanted, "--strategy", strategy, "-o", file)
    run("emit", model, file, "--targets", "python", "--force", "-o", folder)
    # Scored as it stands: the plan with the middle cut carries the costs of the one it was made of.
    checked = json.loads(run("plan", model, *shared, "--check", file, "--format", "json"))
    return checked["step_seconds"], file


def middle_plan(source, block, target):
    """A plan's blocks in two stages, cut before a block; `plan --check` tells what they cost."""
    import yaml

    plan = yaml.safe_load(source.read_text())
    blocks = [block for stage in plan["stages"] for block in stage["blocks"]]
    # The block itself, or its first part where the plan names parts.
    is_cut = [path == block or path.startswith((block + ".", block + "/")) for path in blocks]
    at = is_cut.index(True)
    first, second = plan["stages"]
    first["blocks"], second["blocks"] = blocks[:at], blocks[at:]
    target.write_text(yaml.safe_dump(plan, sort_keys=False))


def step_seconds(folder, processes, steps):
    """Seconds of each step of one run under torchrun."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    command = [ROOT / ".venv/bin/torchrun", "--standalone", "--nproc-per-node", processes, folder / "train.py", "--allow-eval", "--steps", steps]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=environment)
    rates = [float(rate) for rate in re.findall(r"([\d.]+) samples/s", done.stdout)]
    if done.returncode or len(rates) < steps:
        sys.exit(f"{folder}\n{done.stdout}\n{done.stderr[-3000:]}")
    return rates


def samples(name):
    return int((HERE / f"{name}.input").read_text().split("x")[0]) * MICRO_BATCHES


def compare(name, arguments):
    variants = ["even-layers", "even-parameters", "split-spec", "our-pipeline", "ours"]
    predicted, shown = {}, {}
    for variant in variants:
        predicted[variant], file = plan(name, variant, arguments)
        shown[variant] = describe(file)
    if arguments.predict_only:
        executed = dict.fromkeys(variants, [float("nan")])
    else:
        executed = {variant: [] for variant in variants}
        for _ in range(arguments.rounds):
            for variant in variants:
                rates = step_seconds(HERE / f"{name}-{variant}", 2, arguments.steps)
                # The first steps find their memory.
                executed[variant].append(samples(name) / statistics.median(rates[2:]))
    ours = min(executed["ours"])
    print(f"\n{name}: a step of {MICRO_BATCHES} micro-batches, {samples(name)} samples")
    print(f"  {'':16} {'predicted':>10} {'executed':>10} {'to ours':>8}  cut")
    for variant in variants:
        best = min(executed[variant])
        print(
            f"  {variant:16} {predicted[variant] * 1e3:7.0f} ms {best * 1e3:7.0f} ms {best / ours:7.2f}×  {shown[variant]}"
        )
    by_hand = min(min(executed[variant]) for variant in variants[:3])
    print(f"  ours to the best by hand: {ours / by_hand:.2f}")
    return ours / by_hand


def describe(file):
    import yaml

    plan = yaml.safe_load(file.read_text())
    cuts = [stage["blocks"][0] for stage in plan["stages"][1:]]
    where = "replicas of the whole model" if not cuts else "before " + ", ".join(cuts)
    return f"{where} ({plan['schedule']})"


def command_seconds(arguments):
    """Seconds of `split` without copying weights: start, reading, planning, simulating, printing."""
    import torch
    import torchvision
    import transformers

    warnings.filterwarnings("ignore")
    example = {"resnet50": torch.zeros(8, 3, 224, 224), "gpt2-124m": torch.zeros(1, 128, dtype=torch.int64)}
    print("\nsplit without copying weights, 4 H100s")
    for name, value in example.items():
        path = HERE / f"{name}.pt"
        if not path.exists():
            with torch.no_grad():
                if name == "resnet50":
                    model = torchvision.models.resnet50(weights=None)
                else:
                    model = Logits(transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False)))
                torch.jit.save(torch.jit.trace(model, value, check_trace=False), path)
        shape = "x".join(str(size) for size in value.shape) + ":" + str(value.dtype).removeprefix("torch.")
        walls, processors = [], []
        for _ in range(arguments.runs):
            begun = time.perf_counter()
            child = subprocess.Popen(
                [COMMAND, "split", path, "--devices", "4xh100", "--dry-run", "--input", shape], stdout=subprocess.DEVNULL
            )
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            assert child.returncode == 0
            walls.append(time.perf_counter() - begun)
            processors.append(usage.ru_utime + usage.ru_stime)
        wall, processor = statistics.median(walls) * 1e3, statistics.median(processors) * 1e3
        print(f"  {name:10} {wall:5.0f} ms, of them {processor:.0f} ms on the processor (median of {arguments.runs})")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="gpt2,vgg16,unet")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each plan")
    parser.add_argument("--steps", type=int, default=8, help="steps of a run; the first two are not counted")
    parser.add_argument("--noise", type=float, default=0.1, help="what may be noise, as a share")
    parser.add_argument("--runs", type=int, default=21, help="runs of the command by itself; 0 leaves them out")
    parser.add_argument("--cost-model", dest="cost_model", help="cost model of a core, instead of the one that ships")
    parser.add_argument("--predict-only", action="store_true", help="plan and predict, execute nothing")
    arguments = parser.parse_args()
    arguments.cost_model = ["--cost-model", arguments.cost_model] if arguments.cost_model else []
    HERE.mkdir(parents=True, exist_ok=True)
    wanted = arguments.models.split(",")
    trace(wanted)
    figures = loopback()
    (HERE / "cluster.yaml").write_text(CLUSTER.format(**figures))
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; gloo between two processes: "
        f"{figures['bandwidth'] / 1e9:.2f} GB/s, {figures['latency'] * 1e6:.0f} µs"
    )
    ratios = {name: compare(name, arguments) for name in wanted}
    if arguments.runs:
        command_seconds(arguments)
    slower = [name for name, ratio in ratios.items() if ratio > 1 + arguments.noise]
    if slower:
        sys.exit(f"slower than by hand: {', '.join(slower)}")


if __name__ == "__main__":
    main()
