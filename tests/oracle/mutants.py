"""Faults that stages shared by two devices may have, each of which `verify` must find.

    python mutants.py COMMAND FOLDER

Most of them run, and the outputs of many are right to the last bit: what is wrong is a gradient. Faults are written into copies of
two folders, a Transformer's layer with a literal number of heads and an unrolled LSTM, and two processes compare them as `verify`
does (`src/verify.py`), in float64. Prints what tells each of them from the right stages.
"""

import json
import math
import os
import shutil
import subprocess
import sys
import traceback
from pathlib import Path

import sharded
import torch
from torch import nn
from torch.nn import functional as F

STEPS, TOLERANCE = 3, 1e-10


class Layer(nn.Module):
    """Attention whose number of heads is a literal beside a size that is left open, and an MLP."""

    def __init__(self):
        super().__init__()
        self.table, self.norm_1, self.norm_2 = nn.Embedding(24, 16), nn.LayerNorm(16), nn.LayerNorm(16)
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))
        self.up, self.down, self.head = nn.Linear(16, 64), nn.Linear(64, 16), nn.Linear(16, 24)
        for linear in (self.q, self.k, self.v, self.out, self.up, self.down, self.head):
            nn.init.zeros_(linear.bias)  # as they often are

    def forward(self, tokens):
        x = self.table(tokens)
        y = self.norm_1(x)
        q, k, v = (each(y).view(2, -1, 4, 4).transpose(1, 2) for each in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        x = x + self.out(mixed.reshape(2, 8, 16))
        return self.head(x + self.down(F.gelu(self.up(self.norm_2(x)))))


class Cells(nn.Module):
    """An LSTM as a loop: each state is returned whole, and taken by the next step's product, of which each device does a part."""

    def __init__(self):
        super().__init__()
        self.of_input, self.of_state = nn.Linear(12, 64), nn.Linear(16, 64)

    def forward(self, x, state, memory):
        states = []
        for step in range(3):
            gates = self.of_input(x[:, step]) + self.of_state(state)
            take, keep, new, show = gates.chunk(4, 1)
            memory = torch.sigmoid(keep) * memory + torch.sigmoid(take) * torch.tanh(new)
            state = torch.sigmoid(show) * torch.tanh(memory)
            states.append(state)
        return tuple(states)


MODELS = {
    "layer": (Layer, lambda: [torch.randint(0, 24, (2, 8))]),
    "cells": (Cells, lambda: [torch.randn(4, 3, 12), torch.randn(4, 16), torch.randn(4, 16)]),
}
# Model, file, what stands there, what stands there instead, and how often: none where each.
FAULTS = {
    "a literal is not divided": ("layer", "stage_0.py", "self.shard.part(4)", "4", None),
    "no gradient is summed where shared work begins": ("layer", "shards.py", "self.exchanged(x, self.same, self.sum)", "x", 1),
    "one gradient is not summed where shared work begins": ("layer", "stage_0.py", "self.shard.copy(", "(", 1),
    "nothing is summed where shared work ends": ("layer", "shards.py", "self.exchanged(x, self.sum, self.same)", "x", 1),
    "a bias is added by each": ("layer", "stage_0.py", "self.shard.once(", "(", None),
    "gradients are summed where shared work ends, too": (
        "layer", "shards.py", "self.exchanged(x, self.sum, self.same)", "self.exchanged(x, self.sum, self.sum)", 1,
    ),
    "one exchange serves whole and shared work": ("cells", "stage_0.py", "self.shard.gather(", "self.shard.gather_split(", None),
}


def trace(name, archive):
    import zoo

    build, inputs = MODELS[name]
    torch.manual_seed(11)
    model = build().eval()
    traced, names = zoo.SCRIPT.trace(model, [(None, value) for value in inputs()])
    zoo.SCRIPT.save(traced, str(archive), zoo.SCRIPT.record(traced, about={}, training=False, outputs=names))


def rank(number, size, folders, store, queue):
    verify = sharded.load_module(sharded.Path(__file__).resolve().parents[2] / "src/verify.py", "verify")
    torch._C._set_graph_executor_optimize(False)
    ranks = verify.Ranks({"ranks": {"rank": number, "size": size, "groups": 1, "store": str(store)}})
    for folder in folders:
        manifest = json.loads((folder / "stages/manifest.json").read_text())
        inputs = [about | {"range": (0, 24) if about["dtype"] == "int64" else None, "below": 24} for about in manifest["inputs"]]
        whole = {"archive": manifest["source"], "inputs": list(range(len(inputs))), "outputs": None, "exported": None}
        request = {"folder": str(folder), "whole": whole, "inputs": inputs, "device": "cpu", "seed": 0, "steps": STEPS, "float64": True}
        torch.set_default_dtype(torch.float32)
        try:
            queue.put((number, folder.name, verify.compare(request, "python", ranks)))
        except Exception:  # noqa: BLE001
            queue.put((number, folder.name, traceback.format_exc()[-1500:]))
            break
    queue.close()
    queue.join_thread()
    os._exit(0)


def seen(found):
    """Returns by how much each comparison is off."""
    largest = lambda rows, at: max((math.inf if math.isnan(r[at]) else r[at] for r in rows), default=0.0)  # noqa: E731
    exchanges = [row for row in found["shards"]["exchanges"] if row[3] != row[4]]
    return {
        "outputs": largest(found["outputs"], 2),
        "gradients": largest(found["gradients"], 3),
        "replicated": largest(found["shards"]["replicated"], 2),
        "exchanges": ", ".join(f"{way} {kind} {size} for {planned}" for way, kind, _, size, planned in exchanges),
    }


def main():
    command, place = sys.argv[1], Path(sys.argv[2])
    cluster, failed, folders = place / "cluster.yaml", 0, []
    cluster.write_text(sharded.CLUSTER.replace("COUNT", "2"))
    for name in MODELS:
        archive, plan, out = place / f"{name}.pt", place / f"{name}.yaml", place / name
        trace(name, archive)
        for step in (
            ["plan", archive, "--cluster", cluster, "--stages", "1", "--tensor-parallel", "2", "-o", plan],
            ["emit", archive, plan, "-o", out, "--targets", "python"],
        ):
            subprocess.run([command, *map(str, step)], check=True, capture_output=True)
        folders.append(out)
    for number, (model, file, before, after, count) in enumerate(FAULTS.values()):
        made = place / f"fault-{number}"
        shutil.copytree(place / model, made)
        source = (made / "stages" / file).read_text()
        assert before in source, f"{before} stands nowhere in {source[source.index('def forward'):]}"
        (made / "stages" / file).write_text(source.replace(before, after, *([count] if count else [])))
        folders.append(made)
    results = sharded.in_processes(rank, 2, folders, place, 2 * len(folders))
    for folder, fault in zip(folders, [None] * len(MODELS) + list(FAULTS)):
        found = [value for number, name, value in results if name == folder.name and (number == 0 or isinstance(value, str))]
        if not found or isinstance(found[0], str):
            failed += 1
            print(f"{fault or folder.name}: failed\n{found[0] if found else 'a rank has ended'}")
            continue
        off = seen(found[0])
        numbers = [off[kind] for kind in ("outputs", "gradients", "replicated")]
        is_right = all(number <= TOLERANCE for number in numbers) and not off["exchanges"]
        failed += is_right != (fault is None)
        word = "the same" if is_right else "differs"
        text = ", ".join(f"{kind} {number:.1e}" for kind, number in zip(off, numbers))
        print(f"{fault or folder.name}: {word}: {text}{', exchanges: ' if off['exchanges'] else ''}{off['exchanges']}")
    print(f"{failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
