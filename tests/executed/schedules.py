"""Runs schedules on PyTorch's real pipelining runtime and shows predicted beside executed step times.

Every stage sleeps instead of computing, so many ranks run faithfully on few cores: what is measured is the order,
its dependencies and the runtime's own overhead. Ranks are processes that talk over gloo on this machine.

    python tests/executed/schedules.py --command target/release/model-analyze

Six schedules are PyTorch's own classes; the others are orders of ours that its CSV runtime loads. The prediction is
`model-analyze simulate --csv ORDER --as-torch` of the same order, its costs being the sleeps and, for each operation,
the host overhead that a run of two ranks showed before (`bare` is the prediction without it). Exits with 1 when an
error is above `--limit`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as torch_schedules

# name, torch class or None for our CSV, ranks, stages a rank, micro-batches, F/I/W in milliseconds
CASES = [
    ("gpipe", "GPipe", 4, 1, 8, (60, 60, 60)),
    ("1f1b", "1F1B", 4, 1, 8, (60, 60, 60)),
    ("interleaved-1f1b", "Interleaved1F1B", 4, 2, 8, (60, 90, 40)),
    ("interleaved-zero-bubble", "InterleavedZeroBubble", 4, 1, 8, (60, 60, 60)),
    ("zbv", "ZBVZeroBubble", 4, 2, 8, (60, 90, 40)),
    ("dualpipev", "DualPipeV", 4, 2, 8, (60, 90, 40)),
    ("zb2p", None, 4, 1, 8, (60, 60, 60)),
    ("v-half", None, 4, 2, 8, (60, 60, 60)),
    ("v-min", None, 4, 2, 8, (60, 60, 60)),
    ("1f1b", "1F1B", 8, 1, 16, (60, 60, 60)),
    ("zb1p", None, 8, 1, 16, (60, 90, 40)),
]


class Sleeping(PipelineStage):
    """A stage whose passes take a given time; what it computes is as small as autograd allows."""

    def set_times(self, forward, input_gradient, weight_gradient):
        self.times = (forward, input_gradient, weight_gradient)
        # The first exchange is with the neighbours in the ring, which for a V is the rank itself: gloo refuses that,
        # and nothing needs it.
        self._get_init_p2p_neighbors_ops = lambda: []

    def forward_one_chunk(self, *args, **kwargs):
        time.sleep(self.times[0])
        return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, chunk, loss=None, full_backward=True, last_backward=False):
        _, input_gradient, weight_gradient = self.times
        if full_backward:
            time.sleep(input_gradient + weight_gradient)
        elif not self.is_first:
            # PyTorch leaves the first stage's whole backward to its weight gradient.
            time.sleep(input_gradient)
        return super().backward_one_chunk(
            chunk, loss=loss, full_backward=full_backward, last_backward=last_backward
        )

    def backward_weight_one_chunk(self, chunk, last_backward=False):
        _, input_gradient, weight_gradient = self.times
        time.sleep(weight_gradient + (input_gradient if self.is_first else 0))
        return super().backward_weight_one_chunk(chunk, last_backward=last_backward)


def run_rank(rank, case, csv, folder, steps):
    """Runs one rank of one case; writes start and end of each step."""
    _, torch_class, ranks, chunks, micro_batches, times = case
    torch.set_num_threads(1)
    store = dist.FileStore(os.path.join(folder, "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    n_stages = ranks * chunks
    with open(csv) as order:
        rows = order.read().splitlines()
    own = sorted({int(cell.lstrip("(").split("F")[0].split("B")[0].split("I")[0].split("W")[0])
                  for cell in rows[rank].replace(";", ",").split(",") if cell})
    stages = []
    for stage in own:
        torch.manual_seed(stage)
        made = Sleeping(torch.nn.Linear(4, 4), stage, n_stages, torch.device("cpu"))
        made.set_times(*(value / 1000 for value in times))
        stages.append(made)
    loss = torch.nn.functional.mse_loss
    if torch_class in ("GPipe", "1F1B"):
        make = torch_schedules.get_schedule_class(torch_class)
        schedule = make(stages[0], n_microbatches=micro_batches, loss_fn=loss)
    elif torch_class:
        make = torch_schedules.get_schedule_class(torch_class)
        schedule = make(stages, n_microbatches=micro_batches, loss_fn=loss)
    else:
        schedule = torch_schedules._PipelineScheduleRuntime(stages, n_microbatches=micro_batches, loss_fn=loss)
        schedule._load_csv(csv, format="compute_only")
    inputs, target = torch.ones(micro_batches, 4), torch.zeros(micro_batches, 4)
    has_first = any(stage.is_first for stage in stages)
    has_last = any(stage.is_last for stage in stages)
    spans = []
    for _ in range(steps + 1):
        dist.barrier()
        start = time.monotonic()
        arguments = (inputs,) if has_first else ()
        if has_last:
            schedule.step(*arguments, target=target, losses=[])
        else:
            schedule.step(*arguments)
        spans.append((start, time.monotonic()))
    dist.barrier()
    with open(os.path.join(folder, f"rank_{rank}.json"), "w") as out:
        # The first step sets up connections and shapes.
        json.dump(spans[1:], out)
    dist.destroy_process_group()


def execute(case, csv, steps):
    """Returns the milliseconds of each step: from the first rank's start to the last one's end."""
    ranks = case[2]
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run_rank, args=(case, csv, folder, steps), nprocs=ranks, join=True)
        spans = [json.load(open(os.path.join(folder, f"rank_{rank}.json"))) for rank in range(ranks)]
    ends = [[span[step] for span in spans] for step in range(steps)]
    return [1000 * (max(end for _, end in step) - min(start for start, _ in step)) for step in ends]


def predict(command, case, csv, overhead):
    """Makes our order of a case and returns its predicted milliseconds; `overhead` is added to each operation."""
    name, _, ranks, chunks, micro_batches, times = case
    shape = ["--ranks", str(ranks), "--chunks", str(chunks), "--micro-batches", str(micro_batches)]
    whole = ",".join(map(str, times)) + ",0"
    made = [command, "simulate", "--schedule", name, *shape, "--cost", whole, "--write-csv", csv]
    subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
    with open(csv) as order:
        is_split = "W" in order.read()
    # A whole backward is one operation: its overhead is shared between its parts.
    extra = [overhead, overhead, overhead] if is_split else [overhead, overhead / 2, overhead / 2]
    microseconds = ",".join(str(round(1000 * (time + more))) for time, more in zip(times, extra)) + ",0"
    timed = [command, "simulate", "--csv", csv, "--cost", microseconds, "--as-torch", "--format", "json"]
    answer = json.loads(subprocess.run(timed, check=True, capture_output=True, text=True).stdout)
    return answer["makespan"] / 1000


def host_overhead(command, steps):
    """Returns the milliseconds that the runtime adds to an operation, from a run of two ranks."""
    case = ("1f1b", "1F1B", 2, 1, 8, (30, 30, 30))
    with tempfile.TemporaryDirectory() as folder:
        csv = os.path.join(folder, "order.csv")
        predicted = predict(command, case, csv, 0)
        executed = statistics.median(execute(case, csv, steps))
    # The longest chain of this schedule has a forward and a backward for each of m + p - 1 turns.
    return max(0.0, (executed - predicted) / (2 * (8 + 2 - 1)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--command", default="target/release/model-analyze", help="the command to predict with")
    parser.add_argument("--steps", type=int, default=3, help="timed steps of each case")
    parser.add_argument("--limit", type=float, default=5.0, help="largest error in per cent")
    parser.add_argument("--only", help="cases whose name contains this")
    parser.add_argument("--json", help="where to write the results")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    results = []
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, gloo, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    overhead = host_overhead(options.command, options.steps)
    print(f"host overhead {overhead:.2f} ms an operation")
    print(f"{'schedule':26} {'p,v,m':>8} {'F/I/W ms':>10} {'bare':>7} {'predicted':>10} {'executed':>9} {'error':>8}")
    for case in CASES:
        name, torch_class, ranks, chunks, micro_batches, times = case
        if options.only and options.only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            csv = os.path.join(folder, "order.csv")
            bare = predict(options.command, case, csv, 0)
            predicted = predict(options.command, case, csv, overhead)
            executed = statistics.median(execute(case, csv, options.steps))
        error = 100 * (executed / predicted - 1)
        shown = name + ("" if torch_class else " (our CSV)")
        shape, cost = f"{ranks},{chunks},{micro_batches}", "/".join(map(str, times))
        print(f"{shown:26} {shape:>8} {cost:>10} {bare:7.0f} {predicted:10.0f} {executed:9.0f} {error:+7.1f}%", flush=True)
        results.append(
            {"schedule": name, "torch_class": torch_class, "ranks": ranks, "chunks": chunks,
             "micro_batches": micro_batches, "cost_ms": times, "bare_ms": bare, "predicted_ms": predicted,
             "executed_ms": executed, "error_percent": error}
        )
    worst = max((abs(result["error_percent"]) for result in results), default=0.0)
    print(f"largest error {worst:.1f} %, limit {options.limit} %")
    if options.json:
        with open(options.json, "w") as out:
            json.dump(results, out, indent=1)
    sys.exit(0 if worst <= options.limit else 1)


if __name__ == "__main__":
    main()
