"""Checkpoints of a run: which rank writes what, under which name, and which ranks read it."""

import sys

import torch
import torch.distributed as dist
from torch import nn

from train_parts.checkpoints import ABOUT, Part, flat_part, last_checkpoint, load_into, tensors_in
from train_parts.data import compare_loaders
from train_parts.stages import note
from train_parts.weights import Weights


class Saved:
    """A rank's parts of the model and of the optimizer's state, written and read by names in the model."""

    def save(self, step):
        """Starts to write this rank's parts of the model and of the optimizer's state, by names in the model."""
        self.drain()
        self.average_norms()
        self.checkpoints.wait()
        about = self.update.about() | {"step": step}
        loaders = [batches.loader for batches in self.batches.values() if batches.loader]
        if loaders:
            about["data"] = {"epoch": loaders[0].epoch, "samples": loaders[0].taken * loaders[0].samples * self.layout.pipelines}
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, about, group=self.checkpoints.group)
        found = [about for about in found if about is not None]
        whole = {key: value for about in reversed(found) for key, value in about.items() if value is not None}
        whole["others"] = {key: value for about in found for key, value in about.get("others", {}).items()}
        state = {key: value for key, value in self.written()}
        self.checkpoints.save(step, {key: copied(value) for key, value in state.items()}, whole)

    def written(self):
        """Yields the parts that this rank writes. Of equal copies on several ranks, or in several stages, one is
        written."""
        layout = self.layout
        copies, shards = layout.replicas[layout.place(self.rank)[0]] * layout.copies, layout.shards
        groups, group = (self.sync.copies, self.sync.copy) if self.update.is_shared else (1, 0)
        owners = {}
        for about in self.manifest["stages"]:
            for name in about["parameters"] + about["buffers"]:
                owners.setdefault(name, about["stage"])

        def is_own(held, number, tensor):
            own, alike = self.cuts.alike(tensor, self.shard, shards)
            return number % (copies * alike) == self.replica_of(held) * alike + own

        for held, module in self.modules.items():
            stage, replica = held % layout.count, self.replica_of(held)
            for number, (name, tensor) in enumerate(module.state_dict(keep_vars=True).items()):
                is_first = owners.get(name, stage) == stage
                if not isinstance(tensor, nn.Parameter):
                    # Every replica has its own batch-norm statistics.
                    if (is_first or replica) and self.cuts.is_first(tensor, self.shard):
                        yield (f"replica_{replica}.{name}" if replica else f"model.{name}"), self.held(tensor)
                elif is_first and (number % groups == group if self.is_sliced(tensor) else is_own(held, number, tensor)):
                    if (part := self.held(tensor)) is not None:
                        yield f"model.{name}", part
        numbers = {}  # per stage, equal on all ranks that hold it
        for held, name, key, parameter, value in self.update.tensors():
            stage, number = held % layout.count, numbers.get(held, 0)
            numbers[held] = number + 1
            is_piece = self.update.is_shared and parameter in self.sync.pieces
            is_written = number % groups == group and self.cuts.is_first(parameter, self.shard)
            if owners.get(name, stage) == stage and (is_written if is_piece else is_own(held, number, parameter)):
                if (part := self.update.held(parameter, key, value)) is not None:
                    yield f"optimizer.{name}.{key}", part

    def replica_of(self, held):
        """Returns the number of a held stage among all copies of it."""
        return self.replica * self.layout.copies + held // self.layout.count

    def is_sliced(self, tensor):
        return self.is_fully_shared and tensor in self.sync.unit_of

    def held(self, tensor):
        """Returns this rank's part of a tensor of the model, in place: all of it, a part, or nothing."""
        if self.is_sliced(tensor) and tensor.numel():
            found = self.sync.slice_of(tensor)
            return None if found is None else flat_part(tensor.shape, *found)
        return self.cuts.held(tensor, tensor.detach())

    def begin_with(self, path):
        """Loads the model's weights from a file, or from a folder of checkpoints."""
        weights = Weights(path, self.manifest)
        for held, module in self.modules.items():
            stage = held % self.layout.count
            for name, tensor in module.state_dict(keep_vars=True).items():
                if (target := self.held(tensor)) is not None:
                    weights.fill(names_of(self.manifest, stage, module, name), target, name in self.manifest["stages"][stage]["buffers"])
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, weights.lacking)
        tell_lacking(path, [name for each in found for name in each])
        self.update.refresh()

    def resume(self, folder):
        source = last_checkpoint(folder)
        if source is None:
            return
        known = tensors_in(source)
        wanted = []
        for held, module in self.modules.items():
            for name, tensor in module.state_dict(keep_vars=True).items():
                own = f"replica_{self.replica_of(held)}.{name}"
                if (target := self.held(tensor)) is not None:
                    wanted.append((own if own in known else f"model.{name}", target))
        for key, target in wanted:
            if key not in known or known[key].size != target.size():
                name, sizes = key.partition(".")[2], list(target.size())
                what = f"it has `{name}` as {list(known[key].size)}, not {sizes}" if key in known else f"it lacks `{name}`"
                sys.exit(f"{source} is not a checkpoint of this model: {what}")
        states = self.update.begin_to_load(known)
        read(wanted + [(key, target) for _, key, _, target in states if target is not None], source)
        about = torch.load(source / ABOUT, map_location="cpu", weights_only=True)
        self.start = about["step"]
        self.update.refresh()
        self.update.load(about, states)
        if position := about.get("data"):
            for batches in self.batches.values():
                own = batches.loader.samples * self.layout.pipelines
                batches.loader.begin(position["epoch"], position["samples"] // own)
            # With larger batches what is left of an epoch may be too little for one.
            ended = torch.tensor(float(any(batches.loader.has_ended for batches in self.batches.values())), device=self.device)
            dist.all_reduce(ended)
            for batches in self.batches.values() if ended else ():
                batches.loader.begin(position["epoch"] + 1)
            compare_loaders(self)
        if self.rank == 0:
            print(f"resumed after step {self.start}", file=sys.stderr, flush=True)


def names_of(manifest, stage, module, name):
    """Returns all names of a tensor of a stage, of which files that transformers writes have one; its own first."""
    state = module.state_dict(keep_vars=True)
    names = [name] + [other for other, tensor in state.items() if tensor is state[name]]
    for tied in manifest["tied"]:
        if any(holder["stage"] == stage and holder["name"] in names for holder in tied["holders"]):
            names += [holder["name"] for holder in tied["holders"]]
    return list(dict.fromkeys(names))


def tell_lacking(path, names):
    if names := sorted(set(names)):
        note(f"--from {path} lacks the buffer `{names[0]}`" + (f" and {len(names) - 1} more" if len(names) > 1 else "") + ": they stay as they were traced")


def read(wanted, source):
    """Fills tensors and parts of tensors from a checkpoint; a key may be wanted in several places."""
    while wanted:
        now = {}
        rest = [pair for pair in wanted if now.setdefault(pair[0], pair[1]) is not pair[1]]
        load_into(now, source)
        wanted = rest


def copied(value):
    """Returns a copy on the host, which training does not change."""
    if isinstance(value, Part):
        return Part(value.size(), [(begin, values.detach().to("cpu", copy=True)) for begin, values in value.boxes])
    return value.detach().to("cpu", copy=True)
