"""Tensors that are cut over the shards of a stage: conversion between whole tensors and parts."""

import sys
import zlib

import torch
import torch.distributed as dist

from train_parts.checkpoints import cut_part, moved_part


class Cuts:
    """The cut tensors of a rank's stages. A tensor with two names is cut once."""

    def __init__(self, modules, manifest, is_sharded):
        # For each parameter or buffer: the stage's shard, the cut dimension, and its blocks, 0 if the first shard has
        # all of it.
        self.how, self.whole_sizes = {}, {}
        for stage, module in modules.items():
            about = manifest["stages"][stage % len(manifest["stages"])]
            tensors, cuts = tensors_of(module), about.get("cuts") or {}
            for name, (dim, blocks) in cuts.items() if is_sharded else ():
                self.how[tensors[name]] = (module.shard, dim, blocks)
                if blocks == 0:
                    self.whole_sizes[tensors[name]] = module.shard.whole_sizes[name]

    def __contains__(self, tensor):
        return tensor in self.how

    def is_first(self, tensor, shard):
        """Tells whether no shard before this one has the same of a tensor: it may be cut in groups of shards."""
        return shard == 0 or tensor in self.how and shard < self.how[tensor][0].size

    def whole(self, tensor, value):
        """Joins the shards' parts into a whole tensor, like `tensor`; all shards call this together."""
        if tensor not in self.how:
            return value
        shard, dim, blocks = self.how[tensor]
        return shard.joined(value.detach(), dim, blocks)

    def held(self, tensor, value):
        """Returns this rank's part of a value like `tensor`, to be saved or filled: all of it, a part, or nothing."""
        if tensor not in self.how:
            return value
        shard, dim, blocks = self.how[tensor]
        return cut_part(self.sizes(tensor), shard, dim, blocks, value)

    def of_whole(self, tensor, part):
        """Returns a part of this rank's part of a tensor as a part of the whole one."""
        if tensor not in self.how:
            return part
        shard, dim, blocks = self.how[tensor]
        return moved_part(self.sizes(tensor), shard, dim, blocks, part)

    def sizes(self, tensor):
        """Returns the sizes of the whole tensor."""
        sizes = list(self.whole_sizes.get(tensor, tensor.shape))
        if tensor in self.how and tensor not in self.whole_sizes:
            shard, dim, _ = self.how[tensor]
            sizes[dim] = shard.whole(sizes[dim])
        return sizes


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
