"""Tensors that are cut over the shards of a stage: conversion between whole tensors and parts."""

import sys
import zlib

import torch
import torch.distributed as dist

from train_parts.checkpoints import cut_part, moved_part


class Cuts:
    """The cut tensors of a rank's stages. A tensor with two names is cut once."""

    def __init__(self, modules, manifest, is_sharded):
        # For each parameter or buffer, outermost first: a shard, the cut dimension, and its blocks, 0 if the first shard
        # has all of it. Groups of shards may cut it before the shards of a group do.
        self.how, self.whole_sizes, self.group_size = {}, {}, 1
        for stage, module in modules.items():
            about = manifest["stages"][stage % len(manifest["stages"])]
            tensors = tensors_of(module)
            for name, cut in cuts_of(about).items() if is_sharded else ():
                self.how[tensors[name]] = module.shard.levels(*cut)
                self.group_size = module.shard.size
                if cut[1] == 0:
                    self.whole_sizes[tensors[name]] = module.shard.whole_sizes[name]

    def __contains__(self, tensor):
        return tensor in self.how

    def is_first(self, tensor, shard):
        """Tells whether no shard before this one has the same of a tensor: it may be cut in groups of shards, or by them."""
        return self.alike(tensor, shard, shard + 1)[0] == 0

    def alike(self, tensor, shard, shards):
        """Returns the number of a shard among those that have the same of a tensor, and how many these are."""
        levels = self.how.get(tensor, ())
        by_groups, by_shards = (any(one.is_of_groups == way for one, *_ in levels) for way in (True, False))
        group, place = divmod(shard, self.group_size)
        groups, places = 1 if by_groups else shards // self.group_size, 1 if by_shards else self.group_size
        return (0 if by_groups else group * places) + (0 if by_shards else place), groups * places

    def whole(self, tensor, value):
        """Joins the shards' parts into a whole tensor, like `tensor`; all shards call this together."""
        for shard, dim, blocks in reversed(self.how.get(tensor, ())):
            value = shard.joined(value.detach(), dim, blocks)
        return value

    def held(self, tensor, value):
        """Returns this rank's part of a value like `tensor`, to be saved or filled: all of it, a part, or nothing."""
        if tensor not in self.how:
            return value
        return cut_part(self.how[tensor], value)

    def of_whole(self, tensor, part):
        """Returns a part of this rank's part of a tensor as a part of the whole one."""
        if tensor not in self.how:
            return part
        return moved_part(self.how[tensor], part)

    def sizes(self, tensor):
        """Returns the sizes of the whole tensor."""
        sizes = list(self.whole_sizes.get(tensor, tensor.shape))
        for shard, dim, _ in self.how.get(tensor, ()) if tensor not in self.whole_sizes else ():
            sizes[dim] = shard.whole(sizes[dim])
        return sizes


def cuts_of(about):
    """Returns a stage's cuts by name, as its source has them: dimension, blocks, and the dimension that groups of shards cut."""
    own, first = about.get("cuts") or {}, about.get("group_cuts") or {}
    return {name: (*own.get(name, (None, 1)), *((first[name],) if name in first else ())) for name in own | first}


def tensors_of(module):
    """Returns parameters and buffers by all their names."""
    return dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))


def compare_data(group, *values):
    """Exits if the shards of a stage got different data, as random numbers of a task may cause."""
    found = torch.tensor([digest(values, 0)])
    all_found = [torch.zeros_like(found) for _ in range(dist.get_world_size(group))]
    if dist.get_backend(group) == "nccl":
        found, all_found = found.cuda(), [each.cuda() for each in all_found]
    dist.all_gather(all_found, found, group=group)
    if any(bool(each != found) for each in all_found):
        sys.exit("the task gives the shards of one replica different data: seed its random numbers with step and replica")


def digest(value, found):
    if isinstance(value, torch.Tensor):
        return zlib.crc32(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy(), found)
    if isinstance(value, dict):
        value = list(value.items())
    if isinstance(value, (list, tuple)):
        for item in value:
            found = digest(item, found)
        return found
    return zlib.crc32(repr(value).encode(), found) if isinstance(value, (str, int, float, bool, type(None))) else found
