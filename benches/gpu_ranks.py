"""Several ranks under NCCL on one GPU: the cases of `tests/oracle` that train in several processes, some at a time.

    python benches/gpu_ranks.py COMMAND FOLDER [--device cuda] [--at-once 6] [--seconds 300] [--each 90] [SCRIPT[:CASE] …]

Each rank is a machine of its own to NCCL (`tests/oracle/one_card`), so order, streams and kinds of calls are those of several
cards; speed is not. With CUDA's Multi-Process Service (nvidia-cuda-mps-control -d) they take half the time, but what is killed
takes others with it. Prints a line for each case as it ends, writes what the failed ones said to FOLDER/failed.txt (where its
ranks were, if a case took too long), and exits with 1 if there was one. Cases that the time was too short for are named. With
`--device cpu` the same cases run under gloo.
"""

import argparse
import concurrent.futures
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = [
    "torchrun", "schedules", "trainer", "shard_training", "without_flush", "two_way", "priority", "hybrid", "offload", "host_optimizer", "runs", "fp16",
    "stragglers", "killed",
]


def oracle(script, command, place, *arguments):
    return [sys.executable, "-W", "ignore", ROOT / f"tests/oracle/{script}.py", command, place, *arguments]


def wanted(command, place, asked):
    """Yields a script and a case for each that was asked for; those of a script by turns, so that each is heard of early."""
    whole = [each for each in asked or SCRIPTS if ":" not in each]
    for each in asked:
        if ":" in each:
            yield tuple(each.split(":", 1))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        listed = lambda script: subprocess.run(  # noqa: E731
            oracle(script, command, place, "--list"), capture_output=True, text=True, check=True
        ).stdout.splitlines()
        cases = dict(zip(whole, pool.map(listed, whole)))
    for turn in range(max(map(len, cases.values()), default=0)):
        for script in whole:
            if turn < len(cases[script]):
                yield script, cases[script][turn]


def run(arguments, ends, script, case):
    """Returns how a case ended, its seconds, and what it said."""
    left = min(arguments.each, ends - time.monotonic())
    if left < 20:
        return "not begun", 0.0, ""
    path = ":".join(filter(None, (str(ROOT / "tests/oracle/one_card"), os.environ.get("PYTHONPATH"))))
    place = arguments.folder / f"{script}-{''.join(c if c.isalnum() else '_' for c in case)}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    begun = time.monotonic()
    process = subprocess.Popen(
        oracle(script, arguments.command.resolve(), place, case), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env=os.environ | {"TRAIN_DEVICE": arguments.device, "TMPDIR": str(place), "STACKS": str(place), "PYTHONPATH": path},
    )
    try:
        text, _ = process.communicate(timeout=left)
        how = "failed" if process.returncode else "ok"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGUSR1)
        time.sleep(2)
        os.killpg(process.pid, signal.SIGKILL)
        text, _ = process.communicate()
        text += "".join(f"-- {file.stem}\n{file.read_text()}" for file in sorted(place.glob("*.stack")))
        how = "timed out" if left == arguments.each else "out of time"
    shutil.rmtree(place, ignore_errors=True)
    return how, time.monotonic() - begun, text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("asked", nargs="*", metavar="SCRIPT[:CASE]", help=f"by default all cases of {', '.join(SCRIPTS)}")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--at-once", type=int, default=6, help="cases that run side by side, of two to eight ranks each")
    parser.add_argument("--seconds", type=float, default=300, help="after which nothing is begun, and what runs is ended")
    parser.add_argument("--each", type=float, default=90, help="seconds that a case may take")
    arguments = parser.parse_intermixed_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    ends, counts = time.monotonic() + arguments.seconds, {}
    with concurrent.futures.ThreadPoolExecutor(arguments.at_once) as pool, open(arguments.folder / "failed.txt", "w") as failed:
        cases = wanted(arguments.command.resolve(), arguments.folder, arguments.asked)
        runs = {pool.submit(run, arguments, ends, *each): each for each in cases}
        for ended in concurrent.futures.as_completed(runs):
            (how, seconds, text), (script, case) = ended.result(), runs[ended]
            counts[how] = counts.get(how, 0) + 1
            said = next((line.removeprefix(f"{case}: ") for line in text.splitlines() if line.startswith(f"{case}: ")), "")
            print(f"{how:9} {script}: {case}  {said if how == 'ok' else said[:160]}  [{seconds:.0f} s]", flush=True)
            if how not in ("ok", "not begun"):
                print(f"== {script}: {case}: {how}\n{text}", file=failed, flush=True)
    print(", ".join(f"{count} {how}" for how, count in sorted(counts.items())))
    sys.exit(0 if set(counts) == {"ok"} else 1)


if __name__ == "__main__":
    main()
