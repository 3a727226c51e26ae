"""Writing stages beside copying the same bytes: seconds, and the most memory that `emit` holds.

    .venv/bin/python benches/emit.py  (after `cargo build --release`)

Each run of `emit` is followed by `cp -r` of what it wrote, so that both sides meet the same disk; the medians are
compared. The models' files are read once before: neither side waits for the disk to read.

`--large` writes instead, once, the stages of a model of 4.4 GB in one record, which takes zip64 and 13 GB of room (9 GB where files may have holes), and loads them in torch.
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
    if name == "large":
        table = nn.Embedding(34_000_000, 64, _weight=torch.zeros(34_000_000, 64, dtype=torch.float16))
        model, example = nn.Sequential(table, nn.Linear(64, 64, dtype=torch.float16)), torch.zeros(1, 4, dtype=torch.int64)
    elif name == "2 GB of layers":
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


def large(model, out):
    subprocess.run([sys.executable, __file__, "--trace", "large", model], check=True)
    if shutil.which("fallocate"):
        subprocess.run(["fallocate", "--dig-holes", model], check=False)
    seconds, processor, memory = timed([COMMAND, "emit", model, "--stages", "2", "-o", out])
    source, size = model.stat().st_size, sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    model.unlink()
    print(f"{source / 1e9:.1f} GB read, {size / 1e9:.1f} GB written in {seconds:.0f} s ({processor:.1f} s of the processor), {memory / 1e6:.0f} MB of memory")
    script = (
        "import sys, torch; sys.path.insert(0, sys.argv[1]); import stage_0; tokens = torch.zeros(1, 4, dtype=torch.int64);"
        "archive = torch.jit.load(sys.argv[1] + '/stage_0.pt')(tokens); python = stage_0.load()(tokens);"
        "print('torch loads both forms:', tuple(archive.shape), torch.equal(archive, python))"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", script, out / "stages"], check=True)
    shutil.rmtree(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="runs of each model")
    parser.add_argument("--keep", action="store_true", help="leave the traced models for the next time")
    parser.add_argument("--trace", nargs=2, metavar=("NAME", "FILE"), help=argparse.SUPPRESS)
    parser.add_argument("--large", action="store_true", help="a record beyond 4 GB instead")
    options = parser.parse_args()
    if options.trace:
        return trace(*options.trace)
    MODELS.mkdir(parents=True, exist_ok=True)
    if options.large:
        return large(MODELS / "large.pt", MODELS / "stages")
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
