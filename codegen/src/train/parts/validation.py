"""Validation: forward passes only, through the same stages, over the task's own data."""

import sys

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

from train_parts.data import Loader, compare_loaders, moved, split_inputs, split_targets


class WithoutDropout(TorchFunctionMode):
    """Attention gets its dropout as a number; all other operators check the stage's training mode."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function is torch.nn.functional.scaled_dot_product_attention:
            args = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
            kwargs |= {"dropout_p": 0.0} if len(args) <= 4 else {}
        return function(*args, **kwargs)


class Validation:
    """One rank's part of it. All replicas use as many batches as the one with the fewest."""

    def __init__(self, run):
        self.run, task = run, run.task
        self.samples = task.micro_batch * run.arguments.micro_batches
        about = (task.file.validation, "validation()", task.seed)
        self.loaders = {
            number: Loader(*about, number, run.layout.pipelines, self.samples) for number in run.batches
        }
        for loader in self.loaders.values():
            self.cut(loader.batch)
        compare_loaders(run, self.loaders)

    def cut(self, batch, is_later=False):
        task, count = self.run.task, self.run.arguments.micro_batches
        inputs, targets = batch
        made = split_inputs(task, inputs, self.samples, count, "validation()", is_later)
        return made, split_targets(task, targets, self.samples, count, "the targets of validation()")

    @torch.no_grad()
    def all(self):
        """Returns the mean of each value over the micro-batches of all replicas that have it, and the number of samples."""
        run = self.run
        for loader in self.loaders.values():
            loader.begin(0)
        modes = [(module, module.training) for module in run.modules.values()]
        for module, _ in modes:
            module.eval()
        sums, rounds = {}, 0
        with WithoutDropout():
            while not self.is_over():
                rounds += 1
                for pipeline in run.pipelines:
                    self.forward(pipeline, sums)
        for module, mode in modes:
            module.train(mode)
        if not rounds or run.rank not in run.reporters:
            return None, 0
        found = [sums] * len(run.reporters)
        if len(run.reporters) > 1:
            dist.all_gather_object(found, sums, group=run.groups[tuple(run.reporters)])
        means = {}
        for name in dict.fromkeys(name for each in found for name in each):
            total, count = map(sum, zip(*(each[name] for each in found if name in each)))
            means[name] = total / count
        return means, rounds * self.samples * run.layout.pipelines

    def is_over(self):
        flag = torch.tensor(float(any(loader.has_ended for loader in self.loaders.values())), device=self.run.device)
        dist.all_reduce(flag)
        return bool(flag.item())

    def forward(self, pipeline, sums):
        """Sends a batch through one pipeline: one micro-batch after the other through all stages."""
        run, last = self.run, len(self.run.manifest["stages"]) - 1
        owner = pipeline.owner
        parts = [{}] * run.arguments.micro_batches, [None] * run.arguments.micro_batches
        if pipeline.number in self.loaders:
            loader = self.loaders[pipeline.number]
            parts = moved(self.cut(loader.take(object()), loader.taken > 1), run.device)
        sent, outputs = [], ()
        for part, target in zip(*parts):
            for stage, wrapped in sorted(pipeline.stages.items()):
                received = outputs
                if stage and owner[stage - 1] != run.rank:
                    received = [torch.empty_like(meta, device=run.device) for meta in pipeline.metas[stage][0]]
                    for tensor in received:
                        dist.recv(tensor, src=owner[stage - 1], group=pipeline.group)
                outputs = wrapped(*received, **part) if stage else wrapped(**part)
                if stage == last:
                    for name, value in self.values(outputs, target).items():
                        total, count = sums.get(name, (0.0, 0))
                        sums[name] = total + float(value), count + 1
                elif owner[stage + 1] != run.rank:
                    for tensor in outputs:
                        sent.append((dist.isend(tensor, dst=owner[stage + 1], group=pipeline.group), tensor))
        for work, _ in sent:
            work.wait()

    def values(self, outputs, target):
        task, outputs = self.run.task, [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
        with self.run.autocast():
            found = {"loss": task.loss(outputs, target)}
            if hasattr(task.file, "validate"):
                found |= checked(task.file.validate(outputs, target))
        return found


def checked(found):
    """Exits unless these are numbers by name."""
    if not isinstance(found, dict):
        sys.exit(f"validate() of the task returns {type(found).__name__}, not a dict of numbers by their names")
    for name, value in found.items():
        is_number = value.numel() == 1 if isinstance(value, torch.Tensor) else hasattr(type(value), "__float__")
        if not isinstance(name, str) or not is_number:
            what = f"a tensor of {value.numel()} numbers" if isinstance(value, torch.Tensor) else type(value).__name__
            sys.exit(f"validate() of the task returns {what} as {name!r}, not one number by its name")
    return found
