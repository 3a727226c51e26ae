"""Plans of models that nothing here was made for, against cuts at any of their operators.

    python finer_cuts.py COMMAND FOLDER [--models 27] [--cuts 120] [--fixtures]

Each model is planned for two and for three T4 in a row (`--strategy 1f1b`, eight micro-batches). Then operators are named one by one:
`--cut-at` makes a plan that is cut before them and nowhere else, at the border that divides the work most evenly and at so many beside
it; of three stages, pairs of borders drawn from those around the two that divide it into thirds. A line for each model and number of
stages: what it was cut at, and by how much the best of these cuts is faster than the plan. More than half a per cent is a fault.

Names are those of `outside.py`, in the same order; `--fixtures` takes the committed traces as well.
"""

import argparse
import json
import random
import sys
from pathlib import Path

import outside

FASTER = 0.005
MICRO_BATCHES = 8
FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "traces"


class Model:
    def __init__(self, command, archive, folder):
        self.command, self.archive, self.known = command, archive, {}
        graph = folder / f"{archive.stem}.adjacency.json"
        done = outside.said([command, "graph", archive, "--format", "adjacency", "-o", graph])
        if done.returncode:
            raise ValueError(outside.reason(done))
        counts, self.names = {}, []
        for operator in json.loads(graph.read_text())["operators"]:
            path = f"{operator['block']}/{operator['name'].rsplit('::', 1)[-1]}"
            counts[path] = counts.get(path, 0) + 1
            self.names.append(path if counts[path] == 1 else f"{path} ({counts[path]})")

    def plan(self, stages, borders=()):
        """Returns the answer about a plan with these cuts, or with the best; None where there is none."""
        ask = ["plan", self.archive, "--devices", f"{stages}xt4", "--strategy", "1f1b", "--micro-batches", MICRO_BATCHES, "--format", "json"]
        ask += ["--cut-at", ",".join(self.names[border] for border in borders)] if borders else ["--stages", stages]
        done = outside.said([self.command, *ask])
        return json.loads(done.stdout) if done.returncode == 0 else None

    def step(self, stages, borders):
        """Returns the seconds of a step, and the share of the work before the first border."""
        key = (stages, *borders)
        if key not in self.known:
            answer = self.plan(stages, borders)
            work = [stage["compute_seconds"] for stage in answer["stages"]] if answer else []
            self.known[key] = (answer["step_seconds"], work[0] / sum(work)) if answer else None
        return self.known[key]

    def near(self, share, count):
        """Returns borders of two stages around the one with this share of the work before it, the nearest first."""
        low, high = 1, len(self.names) - 1
        while low < high:
            middle = (low + high) // 2
            # Some borders are none: the next one that is tells.
            found = next((f for at in range(middle, high) if (f := self.step(2, [at]))), None)
            low, high = (middle + 1, high) if found and found[1] < share else (low, middle)
        borders = sorted(range(1, len(self.names)), key=lambda border: abs(border - low))
        return borders[:count]

    def best(self, stages, count, dice):
        """Returns the fastest of many cuts: seconds, borders, and how many there were."""
        if stages == 2:
            cuts = [[border] for border in self.near(1 / 2, count)]
        else:
            around = [sorted(self.near(share, max(count // 5, 2))) for share in (1 / 3, 2 / 3)]
            pairs = [[one, other] for one in around[0] for other in around[1] if one < other]
            cuts = dice.sample(pairs, min(count, len(pairs)))
        found = [(step[0], cut) for cut in cuts if (step := self.step(stages, cut))]
        return (*min(found), len(found)) if found else (float("inf"), [], 0)


def archives(arguments):
    """Yields (name, archive or None, why there is none)."""
    if arguments.fixtures:
        yield from ((path.stem, path, "") for path in sorted(FIXTURES.glob("*.pt")))
    models = 0
    for name, how in outside.names():
        if models >= arguments.models:
            return
        archive, reason = outside.traced(arguments.command, name, how, arguments.folder)
        models += archive is not None
        if reason is not None:
            yield name, archive, reason


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", type=int, default=27)
    parser.add_argument("--cuts", type=int, default=120)
    parser.add_argument("--fixtures", action="store_true")
    arguments = parser.parse_args()
    counts = {"models": 0, "plans": 0, "cuts": 0, "beaten": 0, "by a per mille": 0}
    worst = 0.0
    for name, archive, reason in archives(arguments):
        if archive is None:
            print(f"{name}: {reason}", flush=True)
            continue
        try:
            model = Model(arguments.command, archive, arguments.folder)
        except ValueError as error:
            print(f"{name}: {error}", flush=True)
            continue
        counts["models"] += 1
        for stages in (2, 3):
            answer = model.plan(stages)
            if answer is None:
                print(f"{name}, {stages} stages: no plan", flush=True)
                continue
            seconds, borders, cuts = model.best(stages, arguments.cuts, random.Random(f"{name} {stages}"))
            faster = answer["step_seconds"] / seconds - 1
            worst = max(worst, faster)
            counts["plans"] += 1
            counts["cuts"] += cuts
            counts["beaten"] += faster > FASTER
            counts["by a per mille"] += faster > 0.001
            said = f"BEATEN at {', '.join(model.names[border] for border in borders)}" if faster > FASTER else "holds"
            print(f"{name}, {stages} stages of {len(model.names)} operators: {said}, {cuts} cuts, the best of them {faster:+.3%}", flush=True)
    print(", ".join(f"{count} {what}" for what, count in counts.items()) + f"; the most by {worst:.3%}")
    sys.exit(1 if counts["beaten"] or not counts["plans"] else 0)


if __name__ == "__main__":
    main()
