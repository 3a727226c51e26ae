"""Stages that devices share within layers, beside the whole model: outputs, and every gradient on perturbed weights.

    python sharded.py COMMAND FOLDER [--degrees 2,4] [MODEL …]

Each model of the zoo is traced, planned with `--tensor-parallel N`, and written; N processes then run it over gloo in float64.
What each rank has of a gradient is compared with its part of the whole model's, relative to the gradient's own largest value or
a thousandth of the model's. Sums are made in another order, and nothing else may differ.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import traceback
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "fixtures"))

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

# One of each family; `make zoo-shards` takes all.
USUAL = ["cnn_dropout", "unet", "resnet18", "gpt2", "bert", "llama", "llama_loss"]
TOLERANCE = 1e-9
# Devices on which arithmetic is all that counts, so that what can be shared is.
CLUSTER = """kind: cluster
version: 1
types:
  slow: {memory: 60000000000, memory_bandwidth: 1.0e+12, peak: {float32: 1.0e+9}}
devices:
- {type: slow, count: COUNT}
levels:
- {name: link, bandwidth: 1.0e+12, latency: 1.0e-6}
"""


def load_module(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# A model's casts and constants are those of its trace: in float64 they are float64, as `verify --float64` has them.
verify = load_module(Path(__file__).resolve().parent.parent.parent / "src/verify.py", "model_analyze_verify")


def widened(value):
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def inputs_of(manifest, seed):
    generator = torch.Generator().manual_seed(seed)
    made = []
    for about in manifest["inputs"]:
        dtype = getattr(torch, about["dtype"] or "float32")
        if dtype.is_floating_point:
            made.append(torch.randn(about["shape"], generator=generator, dtype=torch.float64))
        else:
            low, high = about.get("range") or (0, 2)
            made.append(torch.randint(int(low), int(high), about["shape"], generator=generator).to(dtype))
    return made


def run(stage, inputs, seed):
    """Returns outputs and gradients of a loss that every element counts in."""
    torch.manual_seed(seed)
    outputs = stage(*inputs)
    outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    floats = [o for o in outputs if o.is_floating_point() and o.requires_grad]
    generator = torch.Generator().manual_seed(seed + 1)
    loss = sum((o.double() * torch.randn(o.shape, generator=generator, dtype=torch.float64)).sum() for o in floats)
    if floats:
        loss.backward()
    return [o.detach() for o in outputs], {n: p.grad for n, p in stage.named_parameters() if p.requires_grad}


def compared(folder, shard):
    """Returns the largest difference of outputs and of gradients on this rank, and where the latter is."""
    manifest = json.loads((folder / "stages/manifest.json").read_text())
    assert len(manifest["stages"]) == 1, "one stage"
    module = load_module(folder / "stages/stage_0.py", f"stage_{folder.name}".replace("-", "_"))
    whole = module.load().double()
    own = module.load(shard=shard).double() if hasattr(module, "CUTS") else module.load().double()
    generator = torch.Generator().manual_seed(5)
    cuts, parts = getattr(module, "CUTS", {}), dict(own.named_parameters())
    for name, parameter in whole.named_parameters():
        noise = 0.05 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter.dtype)
        with torch.no_grad():
            parameter.add_(noise)
            parts[name].copy_(shard.own(parameter.detach(), *cuts[name]) if name in cuts else parameter)
    inputs = [widened(value) for value in inputs_of(manifest, 3)]
    with verify.in_float64() as wide:
        outputs, gradients = run(whole, inputs, 7)
        found, own_gradients = run(own, [value.clone() for value in inputs], 7)
    wide.check()
    of_outputs = max((difference(a, b, 0.0) for a, b in zip(outputs, found)), default=0.0)
    largest = max((float(g.abs().max()) for g in gradients.values() if g is not None and g.numel()), default=0.0)
    worst, where = 0.0, ""
    for name, gradient in gradients.items():
        expected = gradient
        if gradient is not None and name in cuts:
            expected = shard.own(gradient, *cuts[name])
        mine = own_gradients[name]
        if expected is None or mine is None:
            if (expected is None) != (mine is None) and float((mine if expected is None else expected).abs().max()):
                worst, where = float("inf"), name
            continue
        # A part may be all zeros where the whole is not.
        off = difference(expected, mine, max(float(gradient.abs().max()), 1e-3 * largest))
        if not off <= worst:
            worst, where = off, name
    if hasattr(module, "CUTS") and not manifest["training"]:
        # Parts that were cut for evaluation are not trained by mistake: dropout would draw another mask on each rank.
        try:
            own.train()
        except RuntimeError:
            pass
        else:
            raise AssertionError("a sharded stage of a model in evaluation mode went into training mode")
    return of_outputs, worst, where


def difference(a, b, scale):
    if a.shape != b.shape:
        return float("inf")
    if not a.numel():
        return 0.0
    if not a.is_floating_point():
        return 0.0 if torch.equal(a, b) else float("inf")
    return float((a.double() - b.double()).abs().max()) / max(scale or float(a.abs().max()), sys.float_info.min)


def rank(number, size, folders, store, queue):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=size)
    for folder in folders:
        # All ranks end alike, or the others would wait: what one cannot do, none can.
        shards = folder / "stages/shards.py"
        try:
            if not shards.exists():
                queue.put((number, folder.name, (0.0, 0.0, "not shared")))
                continue
            shard = load_module(shards, "shards").Shard(dist.group.WORLD)
            queue.put((number, folder.name, compared(folder, shard)))
        except Exception:  # noqa: BLE001
            queue.put((number, folder.name, traceback.format_exc()[-1500:]))
        dist.barrier()
    queue.close()
    queue.join_thread()  # what was put is written by a thread
    os._exit(0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--degrees", default="2")
    parser.add_argument("--all", action="store_true")
    arguments = parser.parse_args()
    import zoo

    names = arguments.models or (list(zoo.ZOO) if arguments.all else [n for n in USUAL if n in zoo.ZOO])
    failed = 0
    for degree in map(int, arguments.degrees.split(",")):
        folders, shares = [], {}
        cluster = arguments.folder / f"cluster-{degree}.yaml"
        cluster.write_text(CLUSTER.replace("COUNT", str(degree)))
        for name in names:
            traced, made = arguments.folder / f"{name}.pt", arguments.folder / f"{name}-{degree}"
            if not traced.exists():
                subprocess.run([sys.executable, "-W", "ignore", str(Path(zoo.__file__)), "trace", str(arguments.folder), name], check=True, capture_output=True)
            plan = made.with_suffix(".yaml")
            steps = [
                ["plan", traced, "--cluster", cluster, "--stages", "1", "--tensor-parallel", degree, "-o", plan, "--format", "json"],
                ["emit", traced, plan, "-o", made, "--targets", "python", "--force"],
            ]
            for step in steps:
                said = done.stdout if step is steps[1] else None
                done = subprocess.run([arguments.command, *map(str, step)], capture_output=True, text=True)
                if done.returncode:
                    break
            if done.returncode:
                failed += 1
                print(f"{name} on {degree}: {done.stderr.strip()}", flush=True)
            else:
                folders.append(made)
                shares[made.name] = json.loads(said)["shared"]
        results = in_processes(rank, degree, folders, arguments.folder, degree * len(folders))
        for folder in folders:
            found = [value for _, name, value in results if name == folder.name]
            faults = [value for value in found if isinstance(value, str)]
            if faults or len(found) < degree:
                failed += 1
                print(f"{folder.name}: failed\n{faults[0] if faults else 'a rank has ended'}", flush=True)
                continue
            outputs, gradients = max(v[0] for v in found), max(v[1] for v in found)
            where = max(found, key=lambda v: v[1])[2]
            is_same = outputs <= TOLERANCE and gradients <= TOLERANCE
            failed += not is_same
            word = "the same" if is_same else "DIFFERENT"
            print(f"{folder.name}: {word}: outputs {outputs:.1e}, gradients {gradients:.1e} {where}; {shares[folder.name]['split_flops']:.1%} of FLOPs shared, {shares[folder.name]['exchanges']} exchanges", flush=True)
    print(f"{failed} failed")
    sys.exit(failed > 0)


def in_processes(target, degree, folders, place, wanted):
    """Runs `target` on so many ranks, and returns what they put: as much as is wanted, or less where one has failed."""
    context = multiprocessing.get_context("fork")  # importing torch is most of what a rank would do
    queue, store = context.Queue(), place / f"store-{degree}-{os.getpid()}"
    store.unlink(missing_ok=True)  # of ranks before these
    ranks = [context.Process(target=target, args=(n, degree, folders, store, queue)) for n in range(degree)]
    for one in ranks:
        one.start()
    results = []
    while len(results) < wanted:
        try:
            results.append(queue.get(timeout=5))
        except Exception:  # noqa: BLE001
            # Where one has failed the others wait for it; one that is through has put all it has.
            if any(one.exitcode for one in ranks) or not any(one.is_alive() for one in ranks):
                break
    for one in ranks:
        if len(results) == wanted:
            one.join(20)
        one.kill()
    return results


if __name__ == "__main__":
    main()
