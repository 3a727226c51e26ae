"""Batches: from the task's own functions, or from one loader per replica; cut into micro-batches."""

import inspect
import random
import sys
from contextlib import contextmanager

import torch
import torch.distributed as dist

from train_parts.cuts import digest
from train_parts.stages import note


class Batches:
    """The training data of one replica, step by step. `replica` counts pipelines."""

    def __init__(self, task, replica, replicas, micro_batches):
        self.task, self.replica, self.replicas, self.count = task, replica, replicas, micro_batches
        self.samples = task.micro_batch * micro_batches
        make = getattr(task.file, "loader", None)
        self.loader = Loader(make, "loader()", task.seed, replica, replicas, self.samples) if make else None
        if self.loader:
            self.cut(*self.loader.batch)  # a wrong size ends the script before the first step

    def at(self, step, device, wants_inputs=True, wants_targets=True):
        """Returns the inputs and targets of a step's micro-batches; unwanted ones are not made."""
        if self.loader:
            inputs, targets = self.cut(*self.loader.take(step))
        else:
            inputs = self.made(self.task.inputs, split_inputs, step) if wants_inputs else []
            targets = self.made(self.task.target, split_targets, step) if wants_targets else []
        inputs = moved(inputs, device) if wants_inputs else [{}] * self.count
        return inputs, moved(targets, device) if wants_targets else [None] * self.count

    def made(self, make, split, step):
        """Calls a function of the task, which makes this replica's samples or, without replica arguments, those of
        all."""
        if takes_replica(make):
            return split(self.task, make(step, self.samples, self.replica, self.replicas), self.samples, self.count)
        samples, count = self.samples * self.replicas, self.count * self.replicas
        return split(self.task, make(step, samples), samples, count)[self.replica * self.count :][: self.count]

    def cut(self, inputs, targets):
        made = split_inputs(self.task, inputs, self.samples, self.count, "loader()", self.loader.taken > 1)
        return made, split_targets(self.task, targets, self.samples, self.count, "the targets of loader()")


class Loader:
    """An iterable of (inputs, targets), prefetched by one batch, restarted every epoch.

    Its random numbers depend on seed, epoch and batch, so that a run resumed from a checkpoint gets the same next
    batches. Torch's own sampler is given the epoch. A generator of the loader's own begins the first epoch as the task
    left it, and later ones by its seed and the epoch.
    """

    def __init__(self, make, name, seed, replica, replicas, samples):
        self.name, self.seed, self.replica, self.samples = name, seed, replica, samples
        with drawn(seed):  # a shuffle in its constructor is the same for all replicas
            self.iterable = make(replica, replicas, samples)
        self.check()
        self.generators = [(generator, generator.get_state()) for generator in generators_of(self.iterable)]
        self.epoch, self.taken, self.step, self.current = 0, 0, None, None
        self.begin(0)

    def check(self):
        """Checks, before the first step, for faults that would otherwise show at the end of the first epoch."""
        size, sampler = getattr(self.iterable, "batch_size", None), getattr(self.iterable, "sampler", None)
        if size is not None and size != self.samples:
            sys.exit(f"{self.name} of the task gives batches of {size} samples, {self.samples} are needed")
        if size is not None and not getattr(self.iterable, "drop_last", True) and hasattr(sampler, "__len__"):
            if rest := len(sampler) % size:
                sys.exit(f"the last batch of {self.name} has {rest} samples of {size}: give the DataLoader drop_last=True")
        if isinstance(self.iterable, torch.utils.data.DataLoader):
            if isinstance(self.iterable.dataset, torch.utils.data.IterableDataset) and size is not None and not self.iterable.drop_last:
                note(f"the dataset of {self.name} does not tell how many samples it has: without drop_last=True a last batch of fewer would end the run")
            if self.iterable.persistent_workers:
                note(f"workers of {self.name} persist, so random numbers that they draw are other ones after --resume: without persistent_workers they are the same")

    def begin(self, epoch, taken=0):
        """Starts an epoch, after `taken` of its batches."""
        self.epoch, self.taken = epoch, taken
        for sampler in (getattr(self.iterable, "sampler", None), self.iterable):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        for generator, state in self.generators:
            generator.set_state(state)
            if epoch:
                generator.manual_seed(mixed(generator.initial_seed(), epoch))
        with drawn(self.seed, epoch, self.replica):
            try:
                self.iterator = iter(self.iterable)
            except TypeError:
                sys.exit(f"{self.name} of the task returns {type(self.iterable).__name__}, which is not iterable")
        for number in range(taken + 1):
            self.batch = self.fetch(number)
        if self.batch is None and not taken:
            again = "" if epoch == 0 else f" in epoch {epoch + 1}: return an iterable that can be iterated repeatedly"
            sys.exit(f"{self.name} of the task gives no batch{again}")

    def fetch(self, number):
        with drawn(self.seed, self.epoch, self.replica, number):
            batch = next(self.iterator, None)
        if batch is not None and not (isinstance(batch, (tuple, list)) and len(batch) == 2):
            sys.exit(f"{self.name} of the task gives {type(batch).__name__}, not pairs of inputs and targets")
        return batch

    @property
    def has_ended(self):
        return self.batch is None

    def take(self, step):
        """Returns the batch of a step, and prefetches the next one."""
        if step != self.step:
            self.step, self.current = step, self.batch
            self.taken += 1
            self.batch = self.fetch(self.taken)
        return self.current


@contextmanager
def drawn(*numbers):
    """Seeds random numbers inside, those of numpy, too, and restores the generators afterwards."""
    numpy = sys.modules.get("numpy")
    before, states, others = random.getstate(), torch.default_generator.get_state(), numpy and numpy.random.get_state()
    seed = mixed(*numbers)
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if numpy:
        numpy.random.seed(seed % (1 << 32))
    try:
        yield
    finally:
        random.setstate(before)
        torch.default_generator.set_state(states)
        if numpy:
            numpy.random.set_state(others)


def mixed(*numbers):
    seed = 0
    for number in numbers:
        seed = (seed * 1_000_003 + number + 1) % (1 << 61)
    return seed


def generators_of(iterable):
    """Returns the generators that a DataLoader and its samplers were given."""
    batches = getattr(iterable, "batch_sampler", None)
    holders = (iterable, getattr(iterable, "sampler", None), batches, getattr(batches, "sampler", None))
    found = [getattr(holder, "generator", None) for holder in holders]
    return list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())


def compare_loaders(run, loaders=None):
    """Exits if ranks of one replica have loaders with different batches; all ranks call this, when an epoch begins.

    The first stage takes the inputs and the last one the targets of loaders of their own, so these must agree. Loaders are
    by replica, those of training if not given.
    """
    name = "loader()" if loaders is None else "validation()"
    if loaders is None:
        if not hasattr(run.task.file, "loader"):
            return
        loaders = {number: batches.loader for number, batches in run.batches.items()}
    none = -(1 << 40)
    found = torch.full((run.layout.pipelines, 2, 2), none)
    for number, loader in loaders.items():
        for place, value in enumerate(loader.batch):
            found[number, place] = torch.tensor([digest(value, 0), -digest(value, 0)])  # the largest, and the least
    found = found.to(run.device)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    most, least = found[..., 0], -found[..., 1]
    differs = ((most != least) & (most != none)).tolist()
    takers = {about["stage"] for about in run.manifest["stages"] for port in about["inputs"] if port["from"].startswith("input:")}
    for number, (inputs, targets) in enumerate(differs):
        said = f"{name} of the task gives the ranks of replica {number} different {'targets' if targets else 'inputs'}"
        if targets or (inputs and len(takers) > 1):
            sys.exit(f"{said}: each makes a loader of its own, and its batches must not depend on a generator without a seed, on hashes or on the order of a folder")
        if inputs:
            note(f"{said}, with equal targets: right if they differ in random changes to a sample alone, which a resumed run does not repeat")


def whole_batch(batches, step, device):
    """Returns a step's micro-batches of all replicas, in one process."""
    pairs = [each.at(step, device) for each in batches]
    return [part for parts, _ in pairs for part in parts], [target for _, targets in pairs for target in targets]


def takes_replica(function):
    """Tells whether a function of the task makes one replica's samples: (step, samples, replica, replicas)."""
    return len(inspect.signature(function).parameters) >= 4


def split_inputs(task, inputs, samples, count, place="inputs()", is_later=False):
    """Cuts inputs along their first dimension; an input without samples is passed whole to each micro-batch.

    An input has samples if its first size in the trace was that of the first input, or a multiple of it. A size that is
    neither the requested nor the traced one is refused: a guess would train on wrong data. Inputs may also be a dict by
    their names, and the only one may be a tensor.
    """
    expected = task.manifest["inputs"]
    if isinstance(inputs, dict):
        names = [about["name"] for about in expected]
        if set(names) != set(inputs):
            sys.exit(f"{place} of the task gives the inputs {sorted(inputs)}, the model takes {sorted(names)}")
        inputs = [inputs[name] for name in names]
    inputs = (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)
    if len(inputs) != len(expected):
        sys.exit(f"{place} of the task returned {len(inputs)} values, the model takes {len(expected)}")
    parts = [{} for _ in range(count)]
    for about, value in zip(expected, inputs):
        refuse_array(value, f"{place} of the task returned `{about['name']}`")
        pieces = [value] * count
        if isinstance(value, torch.Tensor) and value.dim() and about["name"] not in task.whole:
            traced = about["shape"][0] if about["shape"] else None
            has_samples = traced is None or traced % task.traced == 0
            wanted = traced // task.traced * samples if traced and has_samples else samples
            if has_samples and value.shape[0] == wanted:
                pieces = value.chunk(count)
            elif value.shape[0] != traced or traced == task.traced:
                hint = "name it in a list `whole` if each micro-batch takes all of it"
                if is_later and value.shape[0] < wanted:  # earlier batches of the loader had all
                    hint = "leave a last batch of fewer samples out, as a DataLoader does with drop_last=True"
                sys.exit(f"{place} of the task returned {value.shape[0]} rows of `{about['name']}`, {wanted} are needed ({samples} samples per step); {hint}")
        for part, piece in zip(parts, pieces):
            part[about["name"]] = piece
    return parts


def split_targets(task, value, samples, count, place="target()"):
    """Cuts a target of any nesting into parts: tensors along their first dimension, or a list with one item per
    sample."""
    refuse_array(value, f"{place} of the task returned targets")
    if isinstance(value, torch.Tensor) and value.dim():
        if value.shape[0] != samples:
            sys.exit(f"{place} of the task returned {value.shape[0]} rows, {samples} are needed")
        return list(value.chunk(count))
    if isinstance(value, dict):
        parts = {key: split_targets(task, item, samples, count, f"{place}[{key!r}]") for key, item in value.items()}
        return [{key: items[index] for key, items in parts.items()} for index in range(count)]
    if isinstance(value, (list, tuple)):
        is_cut = value and all(isinstance(item, torch.Tensor) and item.dim() and len(item) == samples for item in value)
        if is_cut and len(value) == samples and count > 1:
            sys.exit(
                f"{place} of the task returned a list of {samples} tensors of {samples} rows each, for {samples} samples: one for each sample, or with "
                "a row for each? Stack those of samples to one tensor, or give a dict for each; name those with rows in a dict"
            )
        if not is_cut and len(value) == samples:
            size = samples // count
            return [value[at * size : (at + 1) * size] for at in range(count)]
        parts = [split_targets(task, item, samples, count, f"{place}[{index}]") for index, item in enumerate(value)]
        remade = type(value)._make if hasattr(value, "_make") else type(value)
        return [remade(items) for items in zip(*parts)] if parts else [value] * count
    return [value] * count


def refuse_array(value, said):
    """Exits for an array of another library, which every micro-batch would get whole."""
    if not isinstance(value, torch.Tensor) and len(getattr(value, "shape", ())):
        sys.exit(f"{said} as {type(value).__module__}.{type(value).__qualname__}, which is not cut into micro-batches: make it a tensor")


def moved(value, device):
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, (list, tuple)):
        items = [moved(item, device) for item in value]
        return value._make(items) if hasattr(value, "_make") else type(value)(items)
    if isinstance(value, dict):
        return {key: moved(item, device) for key, item in value.items()}
    return value
