"""Checkpoints by torch.distributed.checkpoint: by names in the model, written in parallel with training, whole or
not at all."""

import json
import math
import os
import shutil
import sys
import warnings
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties, TensorStorageMetadata
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from train_parts.launch import first_line

ABOUT = "trainer.pt"  # everything but tensors: the step, groups of the optimizer, the position in the data


class Checkpoints:
    """A folder of checkpoints. At most one is being written; it gets its name when all ranks have written their parts.

    The name of an incomplete checkpoint ends with `.part`, and nothing reads it.
    """

    def __init__(self, folder, keep, timeout):
        self.folder, self.keep, self.rank = Path(folder), keep, dist.get_rank()
        # A group of its own: it sends while training does.
        self.group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
        self.under_way = None
        if self.rank == 0:
            try:  # not only when the first checkpoint is due
                self.folder.mkdir(parents=True, exist_ok=True)
                (self.folder / "latest.part").touch()
            except OSError as error:
                sys.exit(f"--save {folder}: {error.strerror}")
            for left in self.folder.glob("step_*.part"):
                shutil.rmtree(left, ignore_errors=True)

    def save(self, step, state, about):
        """Starts writing the ranks' parts of a state, copies that training does not change; `about` is rank 0's."""
        self.wait()
        name = f"step_{step:08d}"
        part = self.folder / f"{name}.part"
        if self.rank == 0:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            torch.save(about, part / ABOUT)
        dist.barrier(group=self.group)
        self.under_way = done = Future()
        written = dcp.async_save(state, checkpoint_id=part, process_group=self.group, async_stager=Copied())
        written.add_done_callback(lambda written: self.settle(written, name, done))

    def wait(self):
        """Waits for the checkpoint in progress; its errors are raised here."""
        if self.under_way is not None:
            done, self.under_way = self.under_way, None
            try:
                done.result()
            except CheckpointException as error:
                rank, first = first_of(error)
                free = shutil.disk_usage(self.folder).free >> 20  # torch's own text hides a full disk
                raise OSError(f"rank {rank} could not write its part of a checkpoint: {first} ({free} MiB are free in {self.folder})") from None

    def settle(self, written, name, done):
        """Gives a checkpoint its name, and removes old ones."""
        try:
            written.result()
            if self.rank == 0:  # it has the results of all ranks
                latest = self.folder / "latest.part"
                latest.write_text(name)
                os.replace(latest, self.folder / "latest")
                if (self.folder / name).exists():
                    self.remove(name)
                # The checkpoint is valid from here on: a run killed earlier resumes from the previous one.
                (self.folder / f"{name}.part").rename(self.folder / name)
                synced(self.folder)
                # Checkpoints of later steps belong to an earlier run.
                before = [old for old in whole_ones(self.folder) if old <= name]
                for old in before[: -self.keep] if self.keep else []:
                    self.remove(old)
            done.set_result(None)
        except BaseException as error:
            done.set_exception(error)

    def remove(self, name):
        gone = self.folder / f"{name}.gone.part"
        shutil.rmtree(gone, ignore_errors=True)
        (self.folder / name).rename(gone)
        shutil.rmtree(gone)


def first_of(error):
    """Returns which rank failed, and how. torch's exception is no `Exception`, so a script would end without a word."""
    rank, (first, _) = min(error.failures.items(), key=lambda pair: pair[0])
    return rank, first_line(first)


class Copied:
    """The state has been copied already."""

    should_synchronize_after_execute = False

    def stage(self, state):
        return state

    def close(self):
        """Nothing to close."""


def synced(folder):
    """Makes a folder's names survive a crash of the machine."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def whole_ones(folder):
    """Returns the names of checkpoints, oldest first; torch writes `.metadata` after all other files."""
    return sorted(path.parent.name for path in Path(folder).glob("step_*/.metadata") if path.parent.suffix != ".part")


def last_checkpoint(folder):
    """Returns the folder of the last checkpoint; None if there is none.

    `latest` names the one that was written last, or that a stopped run was about to write: those of later steps belong
    to an earlier run.
    """
    latest, found = Path(folder) / "latest", whole_ones(folder)
    if latest.is_file():
        last = latest.read_text().strip()
        found = [name for name in found if name <= last]
    return Path(folder) / found[-1] if found else None


def tensors_in(source):
    """Returns size and type of each tensor of a checkpoint, by key."""
    known = dcp.FileSystemReader(source).read_metadata().state_dict_metadata
    return {key: about for key, about in known.items() if isinstance(about, TensorStorageMetadata)}


def load_into(state, source):
    """Fills tensors, and parts of tensors, from a checkpoint: each process reads its own parts."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as intended
        try:
            dcp.load(state, checkpoint_id=source, no_dist=True)
        except CheckpointException as error:
            sys.exit(f"{source} cannot be read: {first_of(error)[1]}")


def model_in(source):
    """Returns the model's whole state."""
    state = {key: torch.empty(about.size, dtype=about.properties.dtype) for key, about in tensors_in(source).items() if key.startswith("model.")}
    load_into(state, source)
    return {key.removeprefix("model."): value for key, value in state.items()}


SHARD = 5 << 30  # bytes; the largest file of a model, as in transformers


def save_pretrained(state, folder, like):
    """Writes a model in the format of transformers' `save_pretrained`, with the other files of such a folder."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    if not (like / "config.json").is_file():
        sys.exit(f"--like {like}: no config.json")
    if folder.exists():
        sys.exit(f"--merge {folder}: it exists already")
    names = {name for file in like.glob("*.safetensors") for name in safe_open(file, framework="pt").keys()}
    if lacking := sorted(names - set(state)):
        sys.exit(f"--like {like}: it has `{lacking[0]}`, which the stages lack" + (f", and {len(lacking) - 1} more" if len(lacking) > 1 else ""))
    state = {name: value.contiguous() for name, value in state.items() if not names or name in names}
    shards, size = [{}], 0
    for name, value in state.items():
        if shards[-1] and size + value.nbytes > SHARD:
            shards, size = [*shards, {}], 0
        shards[-1][name] = value
        size += value.nbytes
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for file in like.iterdir():
        if file.suffix in (".json", ".jinja", ".model", ".txt") and not file.name.endswith(".index.json"):
            shutil.copy(file, part)
    files = {}
    for number, shard in enumerate(shards, 1):
        name = "model.safetensors" if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(shard, part / name, metadata={"format": "pt"})
        files |= dict.fromkeys(shard, name)
    if len(shards) > 1:
        total = sum(value.nbytes for value in state.values())
        (part / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": files}, indent=2))
    part.rename(folder)
    return state


# -- parts of tensors


class Part(torch.Tensor):
    """A rank's part of a tensor: boxes of it, as (position of the box, its values)."""

    @staticmethod
    def __new__(cls, sizes, boxes):
        like = boxes[0][1]
        part = torch.Tensor._make_wrapper_subclass(cls, torch.Size(sizes), dtype=like.dtype, device=like.device)
        part.boxes = [(torch.Size(begin), values) for begin, values in boxes]
        return part

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise TypeError(f"a part of a tensor does not support {function}")

    def __create_write_items__(self, key, part):
        items = []
        for chunk, (begin, values) in zip(self.__create_chunk_list__(), self.boxes):
            data = TensorWriteData(chunk=chunk, properties=TensorProperties.create_from_tensor(values), size=self.size())
            items.append(WriteItem(index=MetadataIndex(key, begin), type=WriteItemType.SHARD, tensor_data=data))
        return items

    def __create_chunk_list__(self):
        return [ChunkStorageMetadata(offsets=begin, sizes=values.size()) for begin, values in self.boxes]

    def __get_tensor_shard__(self, index):
        return next(values for begin, values in self.boxes if begin == index.offset)


def flat_part(sizes, begin, values):
    """Returns the part of a tensor that has these consecutive elements, starting at `begin`."""
    boxes, at = [], 0
    for place, box in boxes_of(tuple(sizes), begin, begin + values.numel()):
        count = math.prod(box)
        boxes.append((place, values.view(-1)[at : at + count].view(box)))
        at += count
    return Part(sizes, boxes)


def boxes_of(sizes, begin, end):
    """Yields boxes that make up consecutive elements of a tensor, as (position of the box, its sizes), in order."""
    if not sizes:
        yield (), ()
        return
    row = math.prod(sizes[1:])
    while begin < end:
        first, inside = divmod(begin, row)
        rows = (end - begin) // row if inside == 0 else 0
        if rows:
            yield (first, *[0] * (len(sizes) - 1)), (rows, *sizes[1:])
            begin += rows * row
        else:
            until = min(end, (first + 1) * row)
            for place, box in boxes_of(sizes[1:], inside, inside + until - begin):
                yield (first, *place), (1, *box)
            begin = until


def moved_part(cut, part):
    """Returns a part of a rank's part, cut as in `cut_part`, as a part of the whole tensor."""
    for shard, dim, blocks in reversed(cut):
        sizes, boxes = list(part.shape), []
        length = sizes[dim] // blocks
        sizes[dim] *= shard.size
        for begin, values in part.boxes:
            at, end = begin[dim], begin[dim] + values.size(dim)
            while at < end:
                block, inside = divmod(at, length)
                until, place = min(end, (block + 1) * length), list(begin)
                place[dim] = (block * shard.size + shard.rank) * length + inside
                boxes.append((place, values.narrow(dim, at - begin[dim], until - at)))
                at = until
        part = Part(sizes, boxes)
    return part


def cut_part(cut, values):
    """Returns a rank's part of a tensor: `cut` has, outermost first, shards, the dimension that they cut, and its equal blocks,
    each of which is cut.

    Without blocks the first shard has all of it, and the others none.
    """
    if cut[0][2] == 0:
        return values if cut[0][0].rank == 0 else None
    return moved_part(cut, Part(values.shape, [([0] * values.dim(), values)]))
