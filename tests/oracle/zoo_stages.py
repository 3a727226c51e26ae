"""Cuts every traceable model of the zoo into 2, 3 and 4 stages and compares each cut with the whole model.

    python tests/oracle/zoo_stages.py COMMAND FOLDER [--mode eval|train] [MODEL …]      (`make zoo-stages`)

Both forms of the stages, in eval and in training mode: outputs, the gradients of all parameters, buffers and names of the
state dict. Prints a line for each model and mode, and exits 1 when one is out of tolerance. Writes into FOLDER.
"""

import argparse
import gc
import json
import os
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "fixtures"), str(Path(__file__).resolve().parent)]

import torch
import verify_stages
import zoo

warnings.filterwarnings("ignore")


def trace(name, training, path):
    made, inputs = zoo.build(name)
    made.train(training)
    torch.manual_seed(0)
    traced, outputs = zoo.SCRIPT.trace(made, inputs)
    about = {"target": f"fixtures/zoo.py:{name}", "seed": str(zoo.SEED)}
    zoo.SCRIPT.save(traced, str(path), zoo.SCRIPT.record(traced, about=about, training=training, outputs=outputs))


def compare(command, name, mode, place):
    """Returns the worst differences of all cuts, and what is wrong."""
    archive, out = place / f"{name}_{mode}.pt", place / f"{name}_{mode}"
    trace(name, mode == "train", archive)
    whole = verify_stages.Whole(archive)
    worst, wrong = {"outputs": 0.0, "gradients": 0.0, "buffers": 0.0}, []
    for count in (2, 3, 4):
        done = subprocess.run(
            [command, "emit", archive, "--stages", str(count), "--force", "-o", out], capture_output=True, text=True
        )
        if done.returncode:
            wrong.append(f"{count} stages: {done.stderr.strip()}")
            continue
        for form in ("torchscript", "python"):
            report = verify_stages.verify(whole, out, form, 0)
            if not verify_stages.is_fine(report):
                wrong.append(f"{count} stages as {form}: {json.dumps(report)}")
            for key in worst:
                worst[key] = max(worst[key], report[key])
            gc.collect()
    shutil.rmtree(out, ignore_errors=True)
    archive.unlink()
    return worst, len(whole.run.gradients[0]), wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mode", choices=["eval", "train"], action="append")
    parser.add_argument("models", nargs="*", default=[])
    options = parser.parse_intermixed_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    failed = 0
    for name in options.models or [*zoo.ZOO, *zoo.FIXTURES]:
        for mode in options.mode or ["eval", "train"]:
            begun = time.perf_counter()
            try:
                worst, parameters, wrong = compare(str(Path(options.command).resolve()), name, mode, options.folder)
                said = ", ".join(f"{key} {value:.0e}" for key, value in worst.items())
                said = f"{parameters} parameters, worst of 6 cuts: {said}"
            except Exception as error:
                said, wrong = "", [f"{type(error).__name__}: {error}"]
            failed += bool(wrong)
            state = "FAILED" if wrong else "ok"
            print(f"{name} {mode}: {state}: {said} ({time.perf_counter() - begun:.0f} s)", *wrong, sep="\n  ", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
