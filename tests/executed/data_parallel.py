"""Runs data parallel steps on PyTorch's DistributedDataParallel and shows predicted beside executed step times.

Layers sleep instead of computing, and so do all-reduces instead of moving bytes, one after the other as on a stream:
many ranks run faithfully on few cores. What is measured is DDP's own work: which gradients share a bucket, when a
bucket leaves, what of it hides behind the backward pass. The prediction is `model-analyze simulate` of a plan whose
layers take what one rank alone takes.

    python tests/executed/data_parallel.py --command target/release/model-analyze

Exits with 1 when an error is above `--limit`.
"""

import argparse
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

MIB = 1 << 20
# ranks, layers, MiB of gradients a layer, milliseconds of a layer's forward and backward, bucket's MiB, GB/s of the link
CASES = [
    (2, 12, 4, (20, 40), 25, 1.0),
    (4, 12, 4, (20, 40), 25, 1.0),
    (8, 12, 4, (20, 40), 25, 1.0),
    (4, 12, 4, (20, 40), 4, 0.25),
    (4, 16, 8, (20, 40), 25, 0.2),
    (4, 16, 8, (20, 40), 1024, 0.5),
]
LATENCY = 2e-4


def ring(bytes_, ranks, bandwidth):
    return 2 * (ranks - 1) * LATENCY + 2 * (ranks - 1) / ranks * bytes_ / (bandwidth * 1e9)


class Sleep(torch.autograd.Function):
    """Takes its time both ways, and gives its weight a gradient as large as itself."""

    @staticmethod
    def forward(context, value, weight, times):
        time.sleep(times[0])
        context.times, context.weight = times, weight
        return value + 0.0

    @staticmethod
    def backward(context, gradient):
        time.sleep(context.times[1])
        return gradient, torch.ones_like(context.weight), None


class Layers(torch.nn.Module):
    def __init__(self, n, mib, times):
        super().__init__()
        self.weights = torch.nn.ParameterList([torch.zeros(mib * MIB // 4) for _ in range(n)])
        self.times = [value / 1000 for value in times]

    def forward(self, value):
        for weight in self.weights:
            value = Sleep.apply(value, weight, self.times)
        return value.sum()


class Link:
    """All-reduces, one after the other: each begins when all ranks have come and takes what a ring would."""

    def __init__(self, ranks, bandwidth):
        self.ranks, self.bandwidth = ranks, bandwidth
        self.group = dist.new_group()
        self.waiting = queue.Queue()
        threading.Thread(target=self.work, daemon=True).start()

    def work(self):
        while True:
            gradients, done = self.waiting.get()
            dist.barrier(self.group)
            time.sleep(ring(gradients.nbytes, self.ranks, self.bandwidth))
            done.set_result(gradients)

    def reduce(self, _, bucket):
        done = torch.futures.Future()
        self.waiting.put((bucket.buffer(), done))
        return done


def steps(rank, folder, case, ranks, count):
    """Writes start and end of each step of one rank; the first finds its memory and its buckets and is not told."""
    _, layers, mib, times, bucket, bandwidth = case
    torch.set_num_threads(1)
    store = dist.FileStore(os.path.join(folder, "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    model = Layers(layers, mib, times)
    if ranks > 1:
        model = DistributedDataParallel(model, bucket_cap_mb=bucket, gradient_as_bucket_view=True)
        model.register_comm_hook(None, Link(ranks, bandwidth).reduce)
    value = torch.zeros(4, requires_grad=True)
    spans = []
    for _ in range(count + 2):
        dist.barrier()
        start = time.monotonic()
        model(value).backward()
        spans.append((start, time.monotonic()))
    with open(os.path.join(folder, f"{rank}.json"), "w") as out:
        json.dump(spans[2:], out)
    dist.barrier()
    dist.destroy_process_group()


def seconds(case, ranks, count):
    """The median step, from the first rank's start to the last one's end."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(steps, args=(folder, case, ranks, count), nprocs=ranks, join=True)
        spans = [json.load(open(os.path.join(folder, f"{rank}.json"))) for rank in range(ranks)]
    both = zip(*spans)
    return statistics.median(max(end for _, end in each) - min(start for start, _ in each) for each in both)


def predict(command, case, alone):
    """Milliseconds that `simulate` gives a step; `alone` is what one rank took."""
    ranks, layers, mib, times, bucket, bandwidth = case
    forward, backward = (value / 1000 for value in times)
    # What the host adds is shared by all passes.
    extra = max(0.0, alone / layers - forward - backward) / 2
    bytes_ = mib * MIB
    layer = {"forward": forward + extra, "backward": backward + extra, "gradients": bytes_}
    names = [f"rank{rank}" for rank in range(ranks)]
    card = {"memory": 1 << 40, "memory_bandwidth": 1e12, "peak": {"float32": 1e13}}
    plan = {
        "kind": "plan", "version": 1, "written_by": "tests/executed/data_parallel.py",
        "model": {"name": "layers", "digest": "0" * 64},
        "cluster": {
            "types": {"card": card},
            "devices": [{"name": name, "type": "card", "place": [0]} for name in names],
            "levels": [{"name": "link", "bandwidth": bandwidth * 1e9, "latency": LATENCY}],
        },
        "strategy": "data-parallel", "schedule": "gpipe", "micro_batches": ranks, "predicted": {},
        "stages": [{
            "blocks": ["layers"], "devices": names, "layers": [layer] * layers,
            "cost": {
                "forward": layers * layer["forward"], "input_gradient": 0.0,
                "weight_gradient": layers * layer["backward"], "parameters": layers * bytes_,
                "optimizer": 0, "activations": 0, "workspace": 0,
            },
        }],
    }
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        # What is JSON is YAML.
        json.dump(plan, file)
        file.flush()
        how = ["--sync", "bucketed", "--collective", "ring", "--bucket", str(bucket * MIB)]
        asked = [command, "simulate", file.name, *how, "--format", "json"]
        done = subprocess.run(asked, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)["step_seconds"] * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--command", default="target/release/model-analyze", help="the command to predict with")
    parser.add_argument("--steps", type=int, default=5, help="timed steps of each case")
    parser.add_argument("--limit", type=float, default=5.0, help="largest error in per cent")
    options = parser.parse_args()
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    print(f"torch {torch.__version__}, DDP over gloo, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{'ranks':>5} {'layers':>12} {'F/B ms':>7} {'bucket':>9} {'link':>10} {'alone':>6} {'predicted':>10} {'executed':>9} {'error':>7}")
    worst = 0.0
    for case in CASES:
        ranks, layers, mib, times, bucket, bandwidth = case
        alone = seconds(case, 1, options.steps)
        predicted = predict(options.command, case, alone)
        executed = 1e3 * seconds(case, ranks, options.steps)
        error = 100 * (executed / predicted - 1)
        worst = max(worst, abs(error))
        size, cost = f"{layers} × {mib} MiB", "/".join(map(str, times))
        shown = f"{ranks:5} {size:>12} {cost:>7} {bucket:5} MiB {bandwidth:5} GB/s"
        print(f"{shown} {alone * 1e3:6.0f} {predicted:10.0f} {executed:9.0f} {error:+6.1f}%", flush=True)
    print(f"largest error {worst:.1f} %, limit {options.limit} %")
    sys.exit(0 if worst <= options.limit else 1)


if __name__ == "__main__":
    main()
