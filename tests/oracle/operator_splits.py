"""Operators in splits that nobody would choose, beside the whole model: every word that plans know, mixed at random.

    python operator_splits.py MODEL-ANALYZE FOLDER [CASE…]

Of each trace a plan of `--strategy optcnn` gets another split for each operator, drawn from those that the command names; `emit`
writes it (or refuses what works in place), `verify --float64` runs it. Exits 1 where a stage differs from the whole model, or where
fewer than half of the plans could be written.
"""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CASES = {"cnn": ("cnn_basic", 2), "cnn on 4": ("cnn_basic", 4), "unet": ("unet_small", 2), "bert": ("bert_tiny", 2)}
PLANS = 4


def run(*arguments):
    """Runs a command; returns whether it succeeded, and what it said."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "100000"}
    found = subprocess.run([str(one) for one in arguments], capture_output=True, text=True, env=environment)
    return found.returncode == 0, found.stdout + found.stderr


def with_splits(plan, splits):
    """Returns a plan's text with these splits, and with weights that are whole."""
    text = re.sub(r"^(cuts|operators):\n(?:[ -].*\n)+", "", plan, flags=re.MULTILINE)
    lines = "".join(f"  {json.dumps(name)}: {json.dumps(split)}\n" for name, split in splits.items())
    return text.replace("predicted:\n", f"operators:\n{lines}predicted:\n", 1)


def case(command, folder, name):
    """Verifies random splits of a model; returns how many were written, and whether all are right."""
    trace, degree = CASES[name]
    model, first = ROOT / f"fixtures/traces/{trace}.pt", folder / "first"
    asked = [model, "--devices", f"{degree}xt4", "--strategy", "optcnn"]
    is_split, said = run(command, "split", *asked, "-o", first)
    assert is_split, said
    answer = subprocess.run([command, "plan", *asked, "--format", "json"], capture_output=True, text=True, check=True)
    operators = json.loads(answer.stdout)
    keys = [f"{one['block']} {one['operator']}".strip() for one in operators["shared"]["operators"]]
    plan = (first / "plan.yaml").read_text()

    def emitted(splits, at):
        path = folder / f"{at}.yaml"
        path.write_text(with_splits(plan, splits))
        return run(command, "emit", model, path, "-o", folder / str(at))

    words = {}
    for key in keys:
        said = emitted({key: "corners"}, "words")[1]
        found = re.search(r"it can be split by (.*)", said)
        assert found, said
        words[key] = found.group(1).strip().split("; ")
    is_right, said = run(sys.executable, first / "train.py", "--check", "--allow-eval")
    print(f"{name}, as planned: {'trains as one process does' if is_right else said}", flush=True)
    n_written = 0
    for at in range(PLANS):
        dice, splits, last = random.Random(at), {}, "whole"
        for key in keys:
            # What works in place stays in the parts that its operand was made in.
            is_in_place = re.search(r"_( \d+)?$", key) and not key.split()[-1].startswith("_")
            last = last if is_in_place and last in words[key] else dice.choice(words[key])
            splits[key] = last
        is_written, said = emitted(splits, at)
        if not is_written:
            print(f"{name}, {at}: not written: {said.strip().splitlines()[0]}")
            continue
        n_written += 1
        is_same, said = run(command, "verify", folder / str(at), "--float64", "--steps", "2")
        kinds = sorted(set(splits.values()))
        print(f"{name}, {at}: {'the same' if is_same else 'DIFFERENT'}: {', '.join(kinds)}", flush=True)
        if not is_same or "\nproved" not in f"\n{said}":
            print(said)
        is_right &= is_same
    return n_written, is_right


def main():
    command, folder, *chosen = sys.argv[1:]
    n_written, is_right, names = 0, True, chosen or list(CASES)
    for name in names:
        own = Path(folder).resolve() / name.replace(" ", "_")
        own.mkdir(parents=True)
        written, right = case(command, own, name)
        n_written, is_right = n_written + written, is_right and right
    print(f"{n_written} of {PLANS * len(names)} plans were written")
    sys.exit(0 if is_right and 2 * n_written >= PLANS * len(names) else 1)


main()
