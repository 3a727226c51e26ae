"""Processor time of a step that two processes share: stages as `split` writes them, beside `parallelize_module`.

    python dtensor.py COMMAND FOLDER [--steps 20]

Small models of transformers, whose layers DTensor can share: columns and rows as in their own `base_model_tp_plan`, the exchanges of
Megatron. The same model is traced and split with `--tensor-parallel 2 --sequence-parallel off`, and its weights are cut alike. Each runs
forward and backward over gloo on two processes of one thread; what counts is a process's own processor time, the least of the steps,
which other processes on the machine disturb least. Losses of both are compared first: a fast step that computes something else is none.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
warnings.filterwarnings("ignore")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/oracle"))

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from sharded import CLUSTER, load_module
from torchrun import ended, forked

SOURCE = '''
import torch
import transformers

transformers.logging.set_verbosity_error()
SIZES = dict(hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4, vocab_size=256)


class Traced(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.m = model

    def forward(self, ids):
        return self.m(input_ids=ids, use_cache=False)[0] if self.m.config.model_type != "bert" else self.m(input_ids=ids)[0]


def llama():
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, attn_implementation="eager")
    return Traced(transformers.LlamaModel(config))


def neox():
    return Traced(transformers.GPTNeoXModel(transformers.GPTNeoXConfig(**SIZES, hidden_dropout=0.0, attn_implementation="eager")))


def bert():
    off = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config = transformers.BertConfig(**SIZES, **off, attn_implementation="eager")
    return Traced(transformers.BertModel(config, add_pooling_layer=False))
'''
# As DTensor shares their linear layers.
PLANS = {
    "llama": (["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"], ["o_proj", "down_proj"]),
    "neox": (["query_key_value", "dense_h_to_4h"], ["attention.dense", "dense_4h_to_h"]),
    "bert": (["query", "key", "value", "intermediate.dense"], ["output.dense"]),
}


def measured(model, ids, weight, steps):
    """Returns the first step's loss, and the least processor seconds of a step."""
    losses, seconds = [], []
    for _ in range(steps):
        begin = time.process_time()
        loss = (model(ids) * weight).sum()
        loss.backward()
        seconds.append(time.process_time() - begin)
        losses.append(loss.item())
        for parameter in model.parameters():
            parameter.grad = None
    return losses[0], min(seconds[2:])


def compare(name, command, folder, steps):
    source, archive, out = folder / "models.py", folder / f"{name}.pt", folder / name
    (folder / "cluster.yaml").write_text(CLUSTER.replace("COUNT", "2"))
    source.write_text(SOURCE)
    ours = [command, "trace", f"{source}:{name}", "--input", "2x64:int64", "--seed", "0", "--python", sys.executable, "-o", str(archive)]
    asked = ["--cluster", str(folder / "cluster.yaml"), "--tensor-parallel", "2", "--sequence-parallel", "off", "--stages", "1"]
    split = [command, "split", str(archive), *asked, "--targets", "python", "--force", "-o", str(out)]
    for step in (ours, split):
        done = subprocess.run(step, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{name}: {done.stdout}{done.stderr}")
    models = load_module(source, "models")
    about = json.loads((out / "stages/manifest.json").read_text())["stages"][0]
    stage = load_module(out / "stages/stage_0.py", "stage_0")
    weights = out / "stages" / about["files"]["weights"]
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(256, (2, 64), generator=generator)
    weight = torch.randn(2, 64, 128, generator=generator)
    store = tempfile.mktemp(dir=folder)

    def rank(number):
        def run():
            torch.set_num_threads(1)
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=2)
            mesh = init_device_mesh("cpu", (2,))
            torch.manual_seed(0)
            model = getattr(models, name)().eval()
            whole = stage.load(weights).eval()
            for parameter, value in dict(whole.named_parameters()).items():
                model.get_parameter(parameter).data.copy_(value)
            alone = measured(whole, ids, weight, steps)
            columns, rows = PLANS[name]
            plan = {path: ColwiseParallel() if any(path.endswith(f".{end}") for end in columns) else RowwiseParallel() for path, module in model.named_modules()
                    if isinstance(module, torch.nn.Linear) and any(path.endswith(f".{end}") for end in columns + rows)}  # fmt: skip
            parallelize_module(model, mesh, plan)
            theirs = measured(model, ids, weight, steps)
            shared = stage.load(weights, shard=stage.Shard(mesh.get_group())).eval()
            ours = measured(shared, ids, weight, steps)
            if number == 0:
                print(json.dumps({"alone": alone, "dtensor": theirs, "ours": ours}))
            dist.barrier()

        return run

    codes, texts = ended([forked(rank(number)) for number in range(2)])
    if any(codes):
        sys.exit(f"{name}: {''.join(texts)}")
    found = json.loads(texts[0].splitlines()[-1])
    (expected, alone), (theirs, dtensor), (own, ours) = found["alone"], found["dtensor"], found["ours"]
    off = max(abs(theirs - expected), abs(own - expected)) / abs(expected)
    if off > 1e-4:
        sys.exit(f"{name}: losses differ: {expected} alone, {theirs} by DTensor, {own} by the stage")
    print(f"{name:6} one process {1e3 * alone:6.1f} ms, two: the stage {1e3 * ours:6.1f} ms, DTensor {1e3 * dtensor:6.1f} ms of processor time; {ours / dtensor:.2f}", flush=True)
    return ours / dtensor


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    found = [compare(name, os.path.abspath(arguments.command), arguments.folder.resolve(), arguments.steps) for name in PLANS]
    print(f"at most {max(found):.2f} of DTensor's processor time (at most 0.60 is asked)")


if __name__ == "__main__":
    main()
