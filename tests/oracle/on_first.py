"""A model whose dense part the first of two processes does alone, trained beside one process: five losses, to the last bit.

    python on_first.py FOLDER

Takes what `split … --context-parallel 2 --on-first …` has written of a model with one stage, images and ten classes. Exits 1 where
a loss differs, where the dense part's first gradients do, or where the second process holds any of it. (Gradients of the shared part
are sums in another order, so weights are the same to some 1e-6.)
"""

import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torchrun import ended, forked

STEPS = 5


def trained(module, weights, sizes, shard=None):
    """Returns the losses of five steps of SGD with momentum, the gradients of the first, and the stage."""
    stage = module.load(weights, shard=shard)
    stage.train()
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD(stage.parameters(), 0.05, momentum=0.9)
    losses, gradients = [], {}
    for step in range(STEPS):
        images = torch.randn(sizes, generator=generator)
        labels = torch.randint(10, sizes[:1], generator=generator)
        torch.manual_seed(step)  # of dropout
        loss = F.cross_entropy(stage(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        gradients = gradients or {name: parameter.grad.clone() for name, parameter in stage.named_parameters()}
        losses.append(loss.item())
    return losses, gradients, stage


def main(folder):
    torch.set_num_threads(1)
    about = json.loads((folder / "stages/manifest.json").read_text())["stages"][0]
    spec = importlib.util.spec_from_file_location("stage_0", folder / "stages/stage_0.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    weights, sizes = folder / "stages" / about["files"]["weights"], about["inputs"][0]["shape"]
    store = tempfile.mktemp(dir=folder)

    def rank(number):
        def run():
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=2)
            shard = module.Shard(dist.group.WORLD)
            losses, gradients, stage = trained(module, weights, sizes, shard)
            expected, all_of_them, whole = trained(module, weights, sizes)
            print(f"rank {number}: {losses}, one process: {expected}")
            on_first = [name for name, (_, blocks) in module.CUTS.items() if blocks == 0]
            assert on_first, "nothing lies on the first rank alone"
            assert losses == expected, "losses differ"
            for name in on_first:
                own, all_of_it = stage.get_parameter(name), whole.get_parameter(name)
                assert gradients[name].shape == own.shape, f"{name} has another gradient"
                if number == 0:
                    assert torch.equal(gradients[name], all_of_them[name]), f"the gradient of {name} differs"
                    torch.testing.assert_close(own, all_of_it, rtol=1e-5, atol=1e-6)
                assert number == 0 or own.numel() == 0, f"{name} lies on the second rank, too"
            dist.barrier()

        return run

    codes, texts = ended([forked(rank(number)) for number in range(2)])
    print("".join(texts))
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
