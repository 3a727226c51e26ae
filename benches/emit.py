"""Writing stages beside copying the same bytes: seconds, and the most memory that `emit` holds.

    .venv/bin/python benches/emit.py  (after `cargo build --release`)

Each run of `emit` is followed by `cp -r` of what it wrote, so that both sides meet the same disk; the medians are
compared. The models' files are read once before: neither side waits for the disk to read.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMAND = ROOT / "target/release/model-analyze"
MODELS = ROOT / "out/bench-emit"


def trace(name, path):
    import torch
    import torchvision
    from torch import nn

    warnings.filterwarnings("ignore")
    if name == "2 GB of layers":
        layers = [nn.utils.skip_init(nn.Linear, 4096, 4096, bias=False) for _ in range(32)]
        model, example = nn.Sequential(*layers), torch.zeros(1, 4096)
    else:
        model, example = getattr(torchvision.models, name)(weights=None).eval(), torch.zeros(1, 3, 64, 64)
    with torch.no_grad():
        torch.jit.save(torch.jit.trace(model, example, check_trace=False), path)


def timed(arguments):
    """Runs a command; returns its seconds, those of the processor, and its peak memory in bytes."""
    start = time.perf_counter()
    child = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, arguments
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="runs of each model")
    parser.add_argument("--keep", action="store_true", help="leave the traced models for the next time")
    parser.add_argument("--trace", nargs=2, metavar=("NAME", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trace:
        return trace(*options.trace)
    MODELS.mkdir(parents=True, exist_ok=True)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{'model':16} {'written':>9} {'emit':>9} {'copy':>9} {'ratio':>6} {'processor':>21} {'ratio':>6} {'memory':>8}")
    for name in ["resnet50", "vgg16", "2 GB of layers"]:
        model, out, copy = MODELS / f"{name.split()[0]}.pt", MODELS / "stages", MODELS / "copy"
        if not model.exists():
            # In a process of its own: a child's peak memory begins with its parent's.
            subprocess.run([sys.executable, __file__, "--trace", name, model], check=True)
        with open(model, "rb") as file:
            while file.read(1 << 24):
                pass
        ours, theirs = [], []
        for _ in range(options.runs):
            for folder in (out, copy):
                shutil.rmtree(folder, ignore_errors=True)
            os.sync()
            ours.append(timed([COMMAND, "emit", model, "--stages", "4", "-o", out]))
            os.sync()
            theirs.append(timed(["cp", "-r", out, copy]))
        size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
        row = f"{name:16} {size / 1e6:6.0f} MB"
        for column, gap in ((0, ""), (1, " ")):
            emit, copied = (statistics.median(run[column] for run in runs) for runs in (ours, theirs))
            row += f"{gap} {emit * 1e3:6.0f} ms {copied * 1e3:6.0f} ms {emit / copied:5.2f}×"
        print(f"{row} {max(run[2] for run in ours) / 1e6:5.0f} MB", flush=True)
        for folder in (out, copy):
            shutil.rmtree(folder)
        if not options.keep:
            model.unlink()
    if not options.keep:
        MODELS.rmdir()


if __name__ == "__main__":
    main()
