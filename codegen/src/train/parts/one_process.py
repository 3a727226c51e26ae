"""`--single` and `--merge`: the work of a single process."""

import os
import sys
from pathlib import Path

import torch

from train_parts.checkpoints import last_checkpoint, model_in, save_pretrained
from train_parts.data import Batches, whole_batch
from train_parts.layout import replicas_of
from train_parts.progress import Progress
from train_parts.saved import names_of, tell_lacking
from train_parts.stages import autocast, load_stage, seed_pass, seed_step
from train_parts.task import Task
from train_parts.update import NotFinite, Update, is_scaled
from train_parts.weights import Weights


def single(arguments, manifest):
    """The same steps in one process: the stages in order, one micro-batch at a time."""
    task = Task(manifest, arguments)
    stages = [load_stage(about, arguments.form, arguments.device) for about in manifest["stages"]]
    if arguments.weights:
        weights = Weights(arguments.weights, manifest)
        for number, stage in enumerate(stages):
            for name, tensor in stage.state_dict(keep_vars=True).items():
                weights.fill(names_of(manifest, number, stage, name), tensor.detach(), name in manifest["stages"][number]["buffers"])
        tell_lacking(arguments.weights, weights.lacking)
    update, replicas = Update(task, dict(enumerate(stages)), is_scaled=is_scaled(arguments)), replicas_of(arguments)
    batches = [Batches(task, replica, replicas, arguments.micro_batches) for replica in range(replicas)]
    progress = Progress(task, arguments, task.micro_batch * arguments.micro_batches * replicas, 0)
    for step in range(arguments.steps):
        seed_step(arguments.seed, step, 0)
        update.zero_grad()
        loss = chained(arguments, manifest, task, stages, whole_batch(batches, step, arguments.device), update.scale)
        loaders = [each.loader for each in batches if each.loader]
        try:
            known, ended = update.apply(step, loss, any(each.has_ended for each in loaders), torch.device(arguments.device))
        except NotFinite as error:
            sys.exit(str(error))
        for loader in loaders if ended else ():
            loader.begin(loader.epoch + 1)
        progress.tell(step + 1, {"loss": loss} | known)
    return stages


def chained(arguments, manifest, task, stages, batch, scale, turn_to=None):
    """Leaves the gradients of a step in the stages, by one backward pass through all of them; returns the loss.

    `turn_to` is called with the number of each micro-batch before its passes.
    """
    total, count = 0.0, len(batch[0])
    for number, (micro_batch, part) in enumerate(zip(*batch)):
        if turn_to:
            turn_to(number)
        known = {f"input:{name}": value for name, value in micro_batch.items()}
        with autocast(arguments):
            for module, about in zip(stages, manifest["stages"]):
                if arguments.check:
                    seed_pass(arguments, about["stage"], number)
                outputs = module(*[known[port["from"]] for port in about["inputs"]])
                outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
                for port, value in zip(about["outputs"], outputs):
                    # Packed, as what ranks send: dropout draws its mask in the order of memory.
                    known[f"stage:{about['stage']}:{port['name']}"] = value.contiguous()
            loss = task.loss(outputs, part) / count
        if isinstance(loss, torch.Tensor):
            total += float(loss.detach())
            if loss.requires_grad:
                scale.up(loss).backward()
    for tied in manifest["tied"]:
        copies = [dict(stages[h["stage"]].named_parameters(remove_duplicate=False))[h["name"]] for h in tied["holders"]]
        gradients = [copy.grad for copy in copies if copy.grad is not None]
        for copy in copies if gradients else []:
            copy.grad = sum(gradients[1:], gradients[0].clone())
    return total


def merge(arguments, manifest):
    """Writes the stages' weights as one state dict, from the last checkpoint or from the emitted stages."""
    if arguments.save:
        source = last_checkpoint(arguments.save)
        if source is None:
            sys.exit(f"{arguments.save} has no checkpoint")
        state = model_in(source)
    else:
        state = {}
        for about in manifest["stages"]:
            for name, value in load_stage(about, arguments.form, "cpu").state_dict().items():
                if name in state and not torch.equal(state[name], value):
                    sys.exit(f"the stages disagree on `{name}`")
                state[name] = value.detach().clone()
    path = Path(arguments.merge)
    if arguments.like:
        state = save_pretrained(state, path, Path(arguments.like))
    elif path.suffix == ".safetensors":
        from safetensors.torch import save_file

        beside = path.with_suffix(".part")
        save_file({name: value.contiguous() for name, value in state.items()}, beside, metadata={"format": "pt"})
        os.replace(beside, path)
    else:
        write(path, state)
    print(f"wrote {path}: {len(state)} tensors")


def write(path, value):
    """Writes a file whole or not at all."""
    beside = path.with_suffix(".part")
    torch.save(value, beside)
    os.replace(beside, path)
