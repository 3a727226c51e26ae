"""Images in bands, beside the whole model: outputs, every gradient, statistics, bytes of halos, and what is kept.

    python bands.py COMMAND FOLDER [--degrees 3] [--large] [MODEL …]

Each model is traced in the mode that it says, planned with `--spatial N`, and written; N processes then run it over gloo in
float64, as `sharded.py` does it with weights. What ranks keep for the backward pass is counted beside what the whole keeps, and
the rows that they send forward beside what the sizes say. `--large` takes models of torchvision and a large image.
"""

import argparse
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent))

import sharded
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

TOLERANCE = 1e-10


def block(a, b, **how):
    return nn.Sequential(nn.Conv2d(a, b, **how), nn.BatchNorm2d(b), nn.ReLU(inplace=True))


class Squeeze(nn.Module):
    """Channels are weighed by what all positions say."""

    def __init__(self, channels):
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, 2, 1), nn.Conv2d(2, channels, 1)

    def forward(self, x):
        return x * torch.sigmoid(self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1)))))


class Everything(nn.Module):
    """A U of all that has a rule: strides, dilation, groups, pools, norms that average, resampling both ways, long skips."""

    def __init__(self):
        super().__init__()
        self.stem = block(3, 8, kernel_size=7, padding=3)
        self.down = block(8, 8, kernel_size=5, stride=2, padding=2)
        self.deep = block(8, 12, kernel_size=3, padding=4, dilation=4, groups=4)
        self.grouped = nn.GroupNorm(3, 12)
        self.each = nn.InstanceNorm2d(12, affine=True)
        self.squeeze = Squeeze(12)
        self.raised = nn.ConvTranspose2d(12, 8, 3, stride=2, padding=1, output_padding=1)
        self.gaps = nn.ConvTranspose2d(8, 4, 1, stride=3)
        self.drop, self.channels = nn.Dropout(0.3), nn.Dropout2d(0.3)
        self.join = block(24, 8, kernel_size=3, padding=1)
        self.head, self.classes = nn.Conv2d(8, 5, 1), nn.Linear(8, 4)

    def forward(self, x):
        x = F.pad(x, (1, 2, 0, 3))
        a = self.stem(x)
        b = self.down(a)
        c = F.max_pool2d(b, 3, 2, 1)
        c = self.squeeze(self.each(self.grouped(self.deep(c))))
        c = self.drop(F.avg_pool2d(c, 3, 1, 1, count_include_pad=False))
        c = F.max_pool2d(c, 2, 2, ceil_mode=True)
        c = F.avg_pool2d(c, 2, 2, ceil_mode=True)
        d = self.raised(F.interpolate(c, size=b.shape[2:], mode="bilinear", align_corners=False))
        e = self.gaps(F.avg_pool2d(a, 2, 3, ceil_mode=True))[:, :, 1 : 1 + a.size(2)]
        e = F.interpolate(e, size=a.shape[2:], mode="nearest")
        f = F.interpolate(F.interpolate(b, scale_factor=2, mode="nearest"), size=a.shape[2:], mode="bilinear", align_corners=True)
        d = F.interpolate(d, size=a.shape[2:])
        g = self.join(torch.cat([a, d, f], 1)) + e.mean(1, keepdim=True)
        pooled = F.interpolate(g.mean((2, 3), keepdim=True), size=a.shape[2:], mode="bilinear", align_corners=False)
        y = self.head(self.channels(g) + pooled)
        return y, self.classes(g.mean((2, 3)))


class Channels(nn.Module):
    """A ConvNeXt of two blocks: norms and products of what stands last."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, stride=4)
        self.deep = nn.Conv2d(8, 8, 7, padding=3, groups=8)
        self.norm, self.up, self.back = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = self.stem(x)
        y = self.norm(self.deep(x).permute(0, 2, 3, 1))
        x = x + self.back(F.gelu(self.up(y))).permute(0, 3, 1, 2)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


def of_zoo(**how):
    from models.unet import UNet

    return UNet(**how)


def of_torchvision(name, **how):
    import torchvision

    found = torchvision.models.segmentation if hasattr(torchvision.models.segmentation, name) else torchvision.models
    how |= {"weights_backbone": None} if found is torchvision.models.segmentation else {}
    return getattr(found, name)(weights=None, **how)


# Model, sizes of its input, whether it trains, bytes of its halos in two bands, and the share of FLOPs that bands have at least.
SMALL = {
    "everything": (Everything, (2, 3, 37, 41), True, None, 0.99),
    "channels": (Channels, (2, 3, 44, 32), True, None, 0.99),
    "unet": (lambda: of_zoo(width=4, levels=3), (1, 3, 264, 32), True, None, 0.99),
}
LARGE = {
    "vgg19_bn": (lambda: of_torchvision("vgg19_bn"), (1, 3, 224, 224), False, 1_352_960, 0.99),
    "resnet50": (lambda: of_torchvision("resnet50"), (1, 3, 224, 224), True, 500_864, 0.99),
    "resnext50_32x4d": (lambda: of_torchvision("resnext50_32x4d"), (1, 3, 224, 224), True, 959_616, 0.99),
    "deeplabv3_mobilenet_v3_large": (lambda: of_torchvision("deeplabv3_mobilenet_v3_large"), (2, 3, 224, 224), True, None, 0.99),
    "deeplabv3_resnet50": (lambda: of_torchvision("deeplabv3_resnet50"), (2, 3, 128, 128), True, None, 0.99),
    "inception_v3": (lambda: of_torchvision("inception_v3", init_weights=False), (2, 3, 299, 299), True, None, 0.95),
    "densenet121": (lambda: of_torchvision("densenet121"), (1, 3, 224, 224), True, None, 0.99),
    "efficientnet_b0": (lambda: of_torchvision("efficientnet_b0"), (1, 3, 224, 224), True, None, 0.95),
    "squeezenet1_1": (lambda: of_torchvision("squeezenet1_1"), (1, 3, 224, 224), False, None, 0.99),
    "convnext_tiny": (lambda: of_torchvision("convnext_tiny"), (1, 3, 224, 224), True, None, 0.95),
    "unet_2048": (lambda: of_zoo(width=2, levels=3), (1, 3, 2048, 2048), True, None, 0.99),
}
MODELS = SMALL | LARGE


def trace(name, archive):
    import zoo

    build, sizes, trains, *_ = MODELS[name]
    torch.manual_seed(11)
    model = build().train(trains)
    traced, names = zoo.SCRIPT.trace(model, [(None, torch.randn(sizes))])
    zoo.SCRIPT.save(traced, str(archive), zoo.SCRIPT.record(traced, about={}, training=trains, outputs=names))


def kept(stage, run):
    """Runs, and counts the bytes that are kept for the backward pass, weights left out."""
    weights = {p.untyped_storage().data_ptr() for p in [*stage.parameters(), *stage.buffers()]}
    found = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = max(found.get(storage.data_ptr(), 0), storage.nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()
    return result, sum(found.values())


def compared(folder, shard):
    manifest = json.loads((folder / "stages/manifest.json").read_text())
    own = sharded.load_module(folder / "stages/stage_0.py", "own").load(shard=shard).double()
    whole = folder.with_name(folder.name.rsplit("-", 1)[0] + "-whole")
    whole = sharded.load_module(whole / "stages/stage_0.py", "whole").load().double()
    generator, parts = torch.Generator().manual_seed(5), dict(own.named_parameters())
    with torch.no_grad():
        for name, parameter in whole.named_parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
            parts[name].copy_(parameter)
    inputs = [sharded.widened(value) for value in sharded.inputs_of(manifest, 3)]
    (outputs, gradients), all_kept = kept(whole, lambda: sharded.run(whole, inputs, 7))
    shard.rows_received, shard.storages = 0, {}
    found, mine = sharded.run(own, [value.clone() for value in inputs], 7)
    weights = {p.untyped_storage().data_ptr() for p in [*own.parameters(), *own.buffers()]}
    own_kept = sum(size for place, size in shard.storages.items() if place not in weights)
    off = max(sharded.difference(a, b, 0.0) for a, b in zip(outputs, found))
    statistics = dict(own.named_buffers())
    for name, buffer in whole.named_buffers():
        off = max(off, sharded.difference(buffer, statistics[name], max(float(buffer.abs().max()), 1e-3)))
    largest = max(float(g.abs().max()) for g in gradients.values() if g is not None)
    worst, where = 0.0, ""
    for name, gradient in gradients.items():
        if gradient is None and mine[name] is None:
            continue
        if gradient is None or mine[name] is None:
            worst, where = float("inf"), name
            continue
        scale = max(float(gradient.abs().max()), 1e-3 * largest)
        own_off = sharded.difference(gradient, mine[name], scale)
        if not own_off <= worst:
            worst, where = own_off, name
    return off, worst, where, own_kept / all_kept, shard.rows_received


def faulty(kind, fault):
    """A shard that does one thing wrong."""

    class Faulty(kind):
        def moved(self, x, dim, has, wants, before=0, behind=0, fill=0.0, adds=False):
            if fault == "halo is not given back" and adds:
                first = has[self.rank][0]
                has = [(max(a, c), max(min(b, d), max(a, c))) for (a, b), (c, d) in zip(has, wants)]
                x = x.narrow(dim, has[self.rank][0] - first, has[self.rank][1] - has[self.rank][0])
            found = super().moved(x, dim, has, wants, before, behind, fill, adds=adds)
            if fault == "halo is not fetched" and not adds and len(set(wants)) > 1:
                (own, end), (first, _) = has[self.rank], wants[self.rank]
                for row in range(found.size(dim)):
                    if not own <= row + first - before < end:
                        found.select(dim, row).fill_(fill)
            return found

        def all(self, x):
            return x * self.size if fault == "statistics are the own" else super().all(x)

        def copy(self, x):
            return x if fault == "gradients of weights are the own" else super().copy(x)

        def crop(self, x, dim, size, results, extent, stride, padding):
            if fault == "another row is cut off":
                x = x.roll(1, dim)
            return super().crop(x, dim, size, results, extent, stride, padding)

        def from_bands(self, x, dim, size):
            if fault == "gradients are gathered twice":
                return self.exchanged(x, lambda x: self.all_bands(x, dim, size), lambda g: self.own_rows(self.sum(g), dim))
            return super().from_bands(x, dim, size)

    return Faulty


FAULTS = [
    "halo is not given back",
    "halo is not fetched",
    "statistics are the own",
    "gradients of weights are the own",
    "another row is cut off",
    "gradients are gathered twice",
]


def counting(kind):
    """A shard that counts the bytes of other ranks' rows that windows fetch forward."""

    class Counting(kind):
        rows_received, storages, all_kept = 0, {}, []

        def moved(self, x, dim, has, wants, *more, adds=False, **how):
            if not adds and wants != [wants[0]] * self.size:
                row = x.numel() // x.size(dim) * x.element_size()
                (first, last), (begin, end) = wants[self.rank], has[self.rank]
                self.rows_received += row * (last - first - max(min(last, end) - max(first, begin), 0))
            return super().moved(x, dim, has, wants, *more, adds=adds, **how)

        def packed(self, tensor):
            found = super().packed(tensor)
            self.all_kept.append(found)
            for one in [found.own, *(found.halo or [])]:
                self.storages[one.untyped_storage().data_ptr()] = one.untyped_storage().nbytes()
            return found

    return Counting


def rank(number, size, folders, store, queue):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=size)
    failed = 0
    for folder in folders:
        try:
            kind = counting(sharded.load_module(folder / "stages/shards.py", "shards").Shard)
            queue.put((number, folder.name, compared(folder, kind(dist.group.WORLD))))
            for fault in FAULTS if folder.name.startswith("unet-") else ():
                outputs, gradients, *_ = compared(folder, faulty(kind, fault)(dist.group.WORLD))
                queue.put((number, fault, max(outputs, gradients)))
        except Exception:  # noqa: BLE001
            queue.put((number, folder.name, traceback.format_exc()[-2500:]))
            failed = 1
            break
    queue.close()
    queue.join_thread()
    os._exit(failed)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--degrees", default="3")
    parser.add_argument("--large", action="store_true")
    arguments = parser.parse_intermixed_args()
    names = arguments.models or list(LARGE if arguments.large else SMALL)
    failed = 0
    for degree in map(int, arguments.degrees.split(",")):
        cluster = arguments.folder / f"cluster-{degree}.yaml"
        cluster.write_text(sharded.CLUSTER.replace("COUNT", str(degree)))
        folders, shares = [], {}
        for name in names:
            archive, made = arguments.folder / f"{name}.pt", arguments.folder / f"{name}-{degree}"
            if not archive.exists():
                trace(name, archive)
            plan, whole = made.with_suffix(".yaml"), arguments.folder / f"{name}-whole"
            steps = [
                ["plan", archive, "--cluster", cluster, "--stages", "1", "--spatial", degree, "-o", plan, "--format", "json"],
                ["emit", archive, plan, "-o", made, "--targets", "python", "--force"],
            ]
            if not whole.exists():
                steps.append(["emit", archive, "--stages", "1", "-o", whole, "--targets", "python"])
            said = []
            for step in steps:
                done = subprocess.run([arguments.command, *map(str, step)], capture_output=True, text=True)
                said.append(done.stdout)
                if done.returncode:
                    break
            if done.returncode:
                failed += 1
                print(f"{name} on {degree}: {done.stderr.strip()}", flush=True)
            else:
                folders.append(made)
                shares[made.name] = json.loads(said[0])["shared"]
        n_faults = sum(len(FAULTS) for folder in folders if folder.name.startswith("unet-"))
        all_results = sharded.in_processes(rank, degree, folders, arguments.folder, degree * (len(folders) + n_faults))
        for fault in FAULTS:
            found = [value for _, name, value in all_results if name == fault]
            if found:
                # Somebody must see it.
                failed += not max(found) > 1e-6
                print(f"{fault}: {'is found' if max(found) > 1e-6 else 'NOBODY SEES IT'}, {max(found):.1e}", flush=True)
        for made in folders:
            results, shared = [value for _, name, value in all_results if name == made.name], shares[made.name]
            faults = [value for value in results if isinstance(value, str)]
            if faults or len(results) < degree:
                failed += 1
                print(f"{made.name}: failed\n{faults[0] if faults else 'a rank has ended'}", flush=True)
                continue
            outputs, (gradients, where) = max(v[0] for v in results), max((v[1], v[2]) for v in results)
            # In float32: the traced type.
            kept, halo = max(v[3] for v in results), sum(v[4] for v in results) // 2
            *_, expected, least = MODELS[made.name.rsplit("-", 1)[0]]
            is_same = outputs <= TOLERANCE and gradients <= TOLERANCE and shared["split_flops"] >= least
            is_same = is_same and (expected is None or degree > 2 or halo == expected)
            # Rows of others are few where bands are tall.
            is_same = is_same and (not made.name.startswith("unet") or kept <= 1 / degree + 0.05)
            failed += not is_same
            word = "the same" if is_same else "DIFFERENT"
            print(
                f"{made.name}: {word}: outputs {outputs:.1e}, gradients {gradients:.1e} {where}; {shared['split_flops']:.1%} of FLOPs shared, "
                f"{shared['exchanges']} exchanges, halo {halo} bytes, {kept:.3f} of what the whole keeps",
                flush=True,
            )
    print(f"{failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
