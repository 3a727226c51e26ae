"""Process groups, and the sums of gradients over them."""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from train_parts.fsdp import FullySharded
from train_parts.looks import Looks
from train_parts.priority import Sliced
from train_parts.sync import Hierarchical, Mirrored, Served, Sharded, Sync
from train_parts.update import NotFinite, named_parameters_of, parameter_at


class Groups:
    """The groups of ranks that communicate, and the sums of gradients over the ranks that hold the same parameters."""

    def make_groups(self):
        """All ranks make all groups, in the same order."""
        layout, wanted = self.layout, set()
        pipelines = {tuple(layout.members(n, shard)) for n in range(layout.pipelines) for shard in range(layout.shards)}
        for shard in range(layout.shards):
            replicas = [tuple(layout.ranks_of_stage(stage, shard)) for stage in range(layout.count)]
            wanted |= {ranks for ranks in replicas if len(ranks) > 1}
            for place, inside in ((place, layout.sharers(place, shard)) for place in range(len(layout.stages_of))):
                if self.arguments.collective == "hierarchical":
                    wanted |= {*layout.on_machines(place, shard), *zip(*layout.on_machines(place, shard))}
                if 1 < len(inside[0]) < len(inside) * len(inside[0]):
                    wanted |= {*inside, *(tuple(sorted(alike)) for alike in zip(*inside))}
            wanted |= {self.tied_ranks(tied, shard) for tied in self.manifest["tied"]}
        if layout.shards > 1:
            kinds = [layout.shard_ranks] + [layout.inner_ranks, layout.outer_ranks] * (layout.group_size < layout.shards)
            wanted |= {tuple(kind(rank)) for kind in kinds for rank in range(layout.world)}
        self.groups = {ranks: self.group_of(ranks) for ranks in sorted(wanted | pipelines)}
        self.slice_groups = {}
        if self.arguments.sync != "buckets":
            for ranks in sorted(ranks for ranks in wanted if len(ranks) > 1):
                # The second one blocks as long as there is nothing to send: not on a GPU, which loads no further program meanwhile.
                self.slice_groups[ranks] = (self.group_of(ranks), dist.new_group(list(ranks), timeout=timedelta(days=30), backend="gloo"))
        self.norm_groups = {}
        if self.arguments.batch_norm == "sync" and layout.replicas[0] > 1:
            for place in range(len(layout.stages_of)):
                ranks = tuple(layout.replicas_of_place(place, 0))
                self.norm_groups[ranks] = self.group_of(ranks)
        self.ways = {}
        if layout.is_unequal or layout.copies > 1 or self.arguments.updates:
            for ranks in sorted(pipelines):
                self.ways[ranks] = (self.group_of(ranks), self.group_of(ranks))
        self.open_all(pipelines)

    def open_all(self, pipelines):
        """Makes a first call in each group, and a first message between neighbours in a pipeline, all ranks in one order.

        NCCL connects ranks at their first call, which keeps both programs until the other makes it, too. Passes are in another
        order on each rank, so ranks with first calls between passes would wait for each other for ever. Small and large sums
        are connected in different ways.
        """
        for ranks, group in self.groups.items():
            for count in (1, 1 << 22) if self.device.type == "cuda" else (1,):
                if self.rank in ranks:
                    dist.all_reduce(torch.zeros(count, device=self.device), group=group)
        layout = self.layout
        neighbours = {}
        for number in range(layout.pipelines):
            for shard in range(layout.shards):
                owner = layout.owners(number, shard)
                pairs = {(owner[stage], owner[stage + 1]) for stage in range(len(owner) - 1)}
                neighbours.setdefault(tuple(layout.members(number, shard)), set()).update(pairs)
        for ranks in sorted(pipelines):
            pairs = sorted({pair for one, other in neighbours[ranks] if one != other for pair in ((one, other), (other, one))})
            for group in (self.groups[ranks], *self.ways.get(ranks, ())):
                number = lambda: torch.zeros(1, device=self.device)  # noqa: E731
                moved = [dist.P2POp(dist.isend, number(), other, group) for one, other in pairs if one == self.rank]
                moved += [dist.P2POp(dist.irecv, number(), one, group) for one, other in pairs if other == self.rank]
                for work in dist.batch_isend_irecv(moved) if moved else ():
                    work.wait()

    def group_of(self, ranks):
        return dist.new_group(list(ranks), timeout=timedelta(seconds=self.arguments.timeout))

    def tied_ranks(self, tied, shard):
        holders = tied["holders"]
        return tuple(sorted({rank for holder in holders for rank in self.layout.ranks_of_stage(holder["stage"], shard)}))

    def make_sync(self, place):
        """Returns the object that joins the gradients of this rank's replicas, which shard the state of
        `--sharding`, or of both copies of the model."""
        if self.layout.copies > 1:
            return self.make_mirrored()
        ranks, inside = tuple(sorted(self.layout.replicas_of_place(place, self.shard))), self.layout.sharers(place, self.shard)
        if len(ranks) == 1 or self.arguments.updates:
            return None
        arguments, parameters = self.arguments, [p for _, _, p in named_parameters_of(self.modules)]
        passes = len(self.executor.order) // 2 if self.executor else arguments.micro_batches
        if arguments.sync != "buckets":
            if self.task.clip:
                sys.exit(f"`clip` of the task cannot be combined with --sync {arguments.sync}, which updates before all gradients are known: use --sync buckets")
            about = (passes, arguments.slice, arguments.sync == "fifo", arguments.timeout, NotFinite)
            return Sliced(self.modules.values(), named_parameters_of(self.modules), self.slice_groups[ranks], *about)
        is_served = arguments.collective == "parameter-server"
        if arguments.collective == "hierarchical":
            machines = self.layout.on_machines(place, self.shard)
            own = next(machine for machine in machines if self.rank in machine)
            alike = tuple(machine[own.index(self.rank)] for machine in machines)
            if 1 < len(own) < len(ranks):
                return Hierarchical(parameters, (self.groups[own], self.groups[alike]), passes)
        if not is_served and (arguments.sharding == "none" or len(inside[0]) == 1):
            return Sync(parameters, self.groups[ranks], passes)
        holders = [holder for tied in self.manifest["tied"] for holder in tied["holders"] if holder["stage"] in self.stages]
        tied = {parameter_at(self.modules[holder["stage"]], holder["name"]) for holder in holders}
        if is_served:
            return Served(parameters, self.groups[ranks], passes, tied)
        own = next(group for group in inside if self.rank in group)
        alike = tuple(sorted(group[own.index(self.rank)] for group in inside))
        groups = self.groups[own], self.groups[alike] if len(alike) > 1 else None
        if arguments.sharding != "zero3":
            return Sharded(parameters, groups, passes, tied, arguments.sharding == "zero2")
        if any(isinstance(module, torch.jit.ScriptModule) for module in self.modules.values()):
            sys.exit("zero3 needs stages in Python: use --form python, or zero2")
        if any("_scripted" in module.forward.__globals__ for module in self.modules.values()):
            sys.exit("zero3 cannot be combined with scripted control flow, in which replicas may read different parameters: use zero2")
        for module in self.modules.values():
            move_buffers(module, self.device)
        stages = [(module, self.manifest["stages"][stage]["blocks"]) for stage, module in self.modules.items()]
        return FullySharded(stages, groups, passes, tied, self.device, self.offload)

    def make_looks(self):
        """Returns the object that compares what losses look at, where replicas send messages in backward passes."""
        arguments = self.arguments
        how = f"--sharding {arguments.sharding}" if arguments.sharding in ("zero2", "zero3") else "--batch-norm sync" if arguments.batch_norm == "sync" else None
        if how is None or max(self.layout.replicas) == 1:
            return None
        return Looks(self.groups.get(tuple(self.reporters)), self.device, how)

    def make_mirrored(self):
        tied = {(holder["stage"], holder["name"]) for tied in self.manifest["tied"] for holder in tied["holders"]}
        copies, groups = {}, {}
        for held, module in self.modules.items():
            stage = held % self.layout.count
            elsewhere = {parameter_at(module, name) for of, name in tied if of == stage}
            copies.setdefault(stage, []).append([p for _, _, p in named_parameters_of({held: module}) if p not in elsewhere])
            groups[stage] = self.groups.get(tuple(self.layout.ranks_of_stage(stage, self.shard)))
        return Mirrored(copies, groups)


def move_buffers(module, device):
    """Moves buffers, not parameters; one with two names stays one."""
    moved = {}
    for holder in module.modules():
        for name, buffer in holder._buffers.items():
            holder._buffers[name] = moved.setdefault(id(buffer), buffer.to(device))
