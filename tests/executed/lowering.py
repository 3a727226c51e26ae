"""Times making and dry-running schedules: PyTorch's own classes beside `model-analyze simulate`.

PyTorch makes the order and lowers it to sends and receives, which is how it finds out whether the order runs.
The command makes the same order, checks it, times it and prints the answer; starting the process is included.

    python tests/executed/lowering.py --command target/release/model-analyze
"""

import argparse
import os
import subprocess
import time

import torch
from torch.distributed.pipelining import schedules as torch_schedules
from torch.distributed.pipelining.stage import _PipelineStageBase

# PyTorch's class, ranks, stages a rank, micro-batches
CASES = [
    ("Interleaved1F1B", 8, 4, 64),
    ("InterleavedZeroBubble", 8, 4, 64),
    ("LoopedBFS", 8, 4, 64),
    ("ZBVZeroBubble", 16, 2, 64),
    ("DualPipeV", 16, 2, 64),
]


class Stage(_PipelineStageBase):
    """What the schedule classes ask of a stage; no process group, no module."""

    def __init__(self, index, ranks, stages):
        self.stage_index, self.num_stages = index, stages
        self.group_size, self.group_rank = ranks, 0
        self.submod, self.group, self.has_backward = None, None, True

    def _create_grad_recv_info(self, *arguments):
        raise NotImplementedError

    def _prepare_forward_infra(self, *arguments):
        raise NotImplementedError


def in_torch(name, ranks, chunks, micro_batches):
    is_v = name in ("ZBVZeroBubble", "DualPipeV")
    own = [0, 2 * ranks - 1] if is_v else [chunk * ranks for chunk in range(chunks)]
    stages = [Stage(index, ranks, ranks * chunks) for index in own]
    start = time.perf_counter()
    torch_schedules.get_schedule_class(name)(stages, micro_batches, loss_fn=lambda *_: None)
    return time.perf_counter() - start


def in_command(command, name, ranks, chunks, micro_batches):
    arguments = ["--ranks", ranks, "--chunks", chunks, "--micro-batches", micro_batches]
    start = time.perf_counter()
    subprocess.run(
        [command, "simulate", "--schedule", name, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--command", default="target/release/model-analyze", help="the command to time")
    parser.add_argument("--runs", type=int, default=3, help="runs of each case; the fastest counts")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{'schedule':24} {'p,v,m':>8} {'torch':>10} {'ours':>10} {'ratio':>8}")
    for case in CASES:
        theirs = min(in_torch(*case) for _ in range(options.runs))
        ours = min(in_command(options.command, *case) for _ in range(options.runs))
        shape = ",".join(map(str, case[1:]))
        print(f"{case[0]:24} {shape:>8} {1000 * theirs:7.1f} ms {1000 * ours:7.1f} ms {theirs / ours:7.0f}×")


if __name__ == "__main__":
    main()
