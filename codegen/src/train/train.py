"""Trains the stages of this folder with torch.distributed.pipelining. Written by model-analyze; needs torch 2.11.

    torchrun --nproc-per-node RANKS train.py                     one rank a stage, 1F1B, synthetic data
    torchrun --nproc-per-node 4 train.py --replicas 2            2 stages, each on 2 ranks
    torchrun --nproc-per-node 3 train.py --replicas 2,1          stage 0 on 2 ranks, stage 1 on one
    torchrun --nproc-per-node 2 train.py --schedule schedule.csv
    torchrun --nproc-per-node 2 train.py --task task.py --save checkpoints --save-every 100
    torchrun --nproc-per-node 2 train.py --task task.py --save checkpoints --resume
    python train.py --merge model.safetensors --save checkpoints  the stages' weights as one state dict
    python train.py --single --steps 10                          the same steps in one process, to compare

A task is a Python file with any of these:

    def inputs(step, samples): ...     a tuple of the model's inputs, `samples` in the first dimension
    def target(step, samples): ...     a tensor, `samples` in the first dimension
    def loss(outputs, target): ...     the mean loss of a micro-batch; `outputs` is what the model returns, flat
    def optimizer(parameters): ...

Ranks are laid out replica by replica: of two pipelines of three ranks, the first has ranks 0, 1, 2. Where
stages have unequal replicas, the ranks of stage 0 come first, then those of stage 1; micro-batches go round.
"""

import argparse
import csv
import importlib.util
import json
import math
import os
import re
import signal
import sys
import time
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

HERE = Path(__file__).resolve().parent
STAGES = HERE / "stages"
# Of the plan, where there was one.
DEFAULTS = {}


# -- stages ---------------------------------------------------------------------------------------------------------


def load_module(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_stage(about, form, device):
    files = about["files"]
    form = form or ("python" if "python" in files else "torchscript")
    if form not in files:
        sys.exit(f"stage {about['stage']} was not written as {form}")
    path = STAGES / files[form]
    if form == "torchscript":
        return torch.jit.load(path, map_location=device)
    return load_module(path, f"stage_{about['stage']}").load(device=device)


def encode(tensor):
    """Makes a floating tensor of any, without loss: the runtime sends gradients back for all it receives."""
    if tensor.is_floating_point():
        return tensor
    tensor = tensor.contiguous()
    wide = {torch.int64: torch.float64, torch.int32: torch.float32, torch.int16: torch.float16}
    if tensor.dtype in wide:
        return tensor.view(wide[tensor.dtype])
    if tensor.dtype.is_complex:
        return torch.view_as_real(tensor)
    return tensor.to(torch.float16)  # bool, uint8, int8: exact


def decode(tensor, dtype):
    if tensor.dtype == dtype:
        return tensor
    if dtype in (torch.int64, torch.int32, torch.int16):
        return tensor.detach().view(dtype)
    if dtype.is_complex:
        return torch.view_as_complex(tensor)
    return tensor.detach().to(dtype)


class Wrapped(nn.Module):
    """A stage as the runtime wants it: floating, contiguous tensors in and out, no two of them the same memory."""

    def __init__(self, module, about, arguments):
        super().__init__()
        self.module = module
        self.received = [port["name"] for port in about["inputs"] if port["from"].startswith("stage:")]
        self.late = [(port["name"], port["from"].split(":", 1)[1]) for port in about["inputs"] if port["from"].startswith("input:")]
        self.order = [port["name"] for port in about["inputs"]]
        self.is_last = False
        self.is_first = about["stage"] == 0
        self.dtypes = None  # of what is received, once known
        self.sent_dtypes = None
        self.autocast = arguments.dtype
        blocks = set(about["blocks"])
        again = set(about.get("recompute", []))
        self.recompute = bool(again) and blocks <= again and not about["buffers"]
        self.device_type = torch.device(arguments.device).type

    def run(self, values):
        positional = [values[name] for name in self.order]
        context = nullcontext()
        if self.autocast == "bf16":
            context = torch.autocast(self.device_type, dtype=torch.bfloat16)
        with context:
            if self.recompute and torch.is_grad_enabled():
                from torch.utils.checkpoint import checkpoint

                outputs = checkpoint(self.module, *positional, use_reentrant=False)
            else:
                outputs = self.module(*positional)
        return [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)

    def forward(self, *tensors, **inputs):
        if self.is_first:
            inputs = dict(zip((name for _, name in self.late), tensors)) if tensors else inputs
            tensors = ()
        dtypes = self.dtypes or [tensor.dtype for tensor in tensors]
        values = {name: decode(t, dtype) for name, t, dtype in zip(self.received, tensors, dtypes)}
        for name, original in self.late:
            values[name] = inputs[original]
        outputs = self.run(values)
        if self.is_last:
            return tuple(outputs)
        self.sent_dtypes = [output.dtype for output in outputs]
        outputs = [encode(output) for output in outputs]
        seen = {t.untyped_storage().data_ptr() for t in tensors}
        plain = []
        for output in outputs:
            place = output.untyped_storage().data_ptr()
            fresh = output if output.is_contiguous() else output.contiguous()
            if fresh is output and (place in seen or output._is_view()):
                fresh = output.clone()
            seen.add(place)
            plain.append(fresh)
        if not plain:  # nothing crosses: the runtime still wants a message
            plain = [torch.zeros(1, device=self.device())]
        return tuple(plain)

    def device(self):
        for tensor in list(self.module.parameters()) + list(self.module.buffers()):
            return tensor.device
        return torch.device("cpu")


# -- data and loss --------------------------------------------------------------------------------------------------


class Task:
    """What is trained on; synthetic unless a task file says otherwise."""

    def __init__(self, manifest, arguments):
        self.file = load_module(arguments.task, "task") if arguments.task else None
        self.manifest, self.seed = manifest, arguments.seed
        self.learning_rate = arguments.learning_rate
        self.optimizer_name = arguments.optimizer
        shapes = [about["shape"] for about in manifest["inputs"] if about["shape"]]
        self.micro_batch = arguments.micro_batch_size or (shapes[0][0] if shapes and shapes[0] else 1)
        self.traced = shapes[0][0] if shapes and shapes[0] else 1

    def inputs(self, step, samples):
        if hasattr(self.file, "inputs"):
            return tuple(self.file.inputs(step, samples))
        generator = torch.Generator().manual_seed(self.seed + step)
        made = []
        for about in self.manifest["inputs"]:
            if about["shape"] is None or about["dtype"] is None:
                sys.exit(f"the size of input `{about['name']}` is not known: give --task with a function `inputs`")
            shape = list(about["shape"])
            if shape and shape[0] % self.traced == 0:
                shape[0] = shape[0] // self.traced * samples
            dtype = getattr(torch, about["dtype"])
            if dtype.is_floating_point:
                made.append(torch.randn(shape, generator=generator).to(dtype))
            elif dtype == torch.bool:
                made.append(torch.ones(shape, dtype=dtype))
            else:
                made.append(torch.randint(0, 2, shape, generator=generator, dtype=dtype))
        return tuple(made)

    def target(self, step, samples):
        if hasattr(self.file, "target"):
            return self.file.target(step, samples)
        return torch.zeros(samples)

    def loss(self, outputs, target):
        if hasattr(self.file, "loss"):
            return self.file.loss(outputs, target)
        total = 0.0
        for index, output in enumerate(outputs):
            if output.is_floating_point() and output.requires_grad:
                output = output.float()
                weights = torch.linspace(-1.0, 1.0, output.numel(), device=output.device).reshape(output.shape)
                total = total + (output * weights).mean() * (index + 1) + output.square().mean() * 0.01
        return total

    def optimizer(self, parameters):
        parameters = list(parameters)
        if not parameters:
            return None
        if hasattr(self.file, "optimizer"):
            return self.file.optimizer(parameters)
        if self.optimizer_name == "adamw":
            return torch.optim.AdamW(parameters, lr=self.learning_rate)
        return torch.optim.SGD(parameters, lr=self.learning_rate, momentum=0.9)


# -- layout ---------------------------------------------------------------------------------------------------------


def read_csv(path):
    """Returns for each rank of a compute-only schedule table the stages it runs, and the number of micro-batches."""
    ranks, micro_batches = [], 0
    with open(path, newline="") as file:
        for row in csv.reader(file):
            text = [cell.strip() for cell in row if cell.strip()]
            cells = [found for cell in text for found in re.findall(r"(\d+)(?:F|I|B|W)(\d+)", cell)]
            if len(cells) < len(text):
                sys.exit(f"{path}: not a compute-only schedule table")
            ranks.append(sorted({int(stage) for stage, _ in cells}))
            micro_batches = max([micro_batches] + [int(number) + 1 for _, number in cells])
    return ranks, micro_batches


class Layout:
    """Which rank runs which stages, in which pipelines.

    A pipeline is one rank for each group of stages. With unequal replicas there are as many pipelines as the least common
    multiple; a rank of a stage with fewer replicas is in several.
    """

    def __init__(self, manifest, arguments, schedule):
        count = len(manifest["stages"])
        if arguments.csv_ranks is not None:
            self.stages_of = arguments.csv_ranks
            if sorted(stage for stages in self.stages_of for stage in stages) != list(range(count)):
                sys.exit("the schedule table has other stages than this folder")
        else:
            ranks = arguments.pipeline_ranks or count
            if schedule in ("1f1b", "gpipe", "forward") and ranks != count:
                sys.exit(f"schedule {arguments.schedule} runs one stage a rank: --pipeline-ranks {count}, or choose Interleaved1F1B")
            if count % ranks:
                sys.exit(f"{count} stages do not spread over {ranks} ranks evenly")
            if schedule in ("zbvzerobubble", "dualpipev"):
                self.stages_of = [[rank, count - 1 - rank] for rank in range(ranks)]
            else:
                self.stages_of = [list(range(rank, count, ranks)) for rank in range(ranks)]
        width = len(self.stages_of)
        replicas = [int(part) for part in str(arguments.replicas).split(",")]
        if len(replicas) == 1:
            replicas *= width
        if len(replicas) != width or min(replicas) < 1:
            sys.exit(f"--replicas takes one number, or {width}, one for each rank of a pipeline")
        self.replicas = replicas
        self.pipelines = math.lcm(*replicas)
        self.world = sum(replicas)
        if len(set(replicas)) == 1:
            self.ranks = [[replica * width + place for replica in range(replicas[0])] for place in range(width)]
        else:
            starts = [sum(replicas[:place]) for place in range(width)]
            self.ranks = [list(range(start, start + n)) for start, n in zip(starts, replicas)]

    def members(self, pipeline):
        """Returns the ranks of a pipeline, by place."""
        return [ranks[pipeline % len(ranks)] for ranks in self.ranks]

    def place(self, rank):
        """Returns a rank's place in its pipelines, and its number among the replicas of that place."""
        for place, ranks in enumerate(self.ranks):
            if rank in ranks:
                return place, ranks.index(rank)
        raise AssertionError(rank)

    def ranks_of_stage(self, stage):
        return next(ranks for stages, ranks in zip(self.stages_of, self.ranks) if stage in stages)


# -- pipelines ------------------------------------------------------------------------------------------------------


def make_stage_class():
    from torch.distributed.pipelining import PipelineStage

    class Stage(PipelineStage):
        """torch's stage, for borders where some tensors carry no gradient, and operators that make several tensors."""

        def _get_init_p2p_neighbors_ops(self):
            # The first messages have been exchanged by then. Stages of V schedules would greet themselves, which gloo refuses.
            return []

        def backward_maybe_with_nosync(self, backward_type, bwd_kwargs, last_backward=False):
            if backward_type == "weight":
                backward_weights(self.submod.parameters(), bwd_kwargs["param_groups"])
                return (), None
            outputs, gradients = bwd_kwargs["stage_output"], bwd_kwargs["output_grads"]
            outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
            gradients = [None] * len(outputs) if gradients is None else list(gradients)
            pairs = [(o, g) for o, g in zip(outputs, gradients) if o.requires_grad]
            outputs, gradients = [o for o, _ in pairs], [g for _, g in pairs]
            inputs = bwd_kwargs["input_values"]
            groups = None
            if backward_type == "full":
                if outputs:
                    torch.autograd.backward(outputs, gradients)
                found = [value.grad if value.requires_grad else None for value in inputs]
                for value in inputs:
                    value.grad = None
            else:
                found, groups = backward_inputs(outputs, gradients, inputs, self.submod.parameters())
            # The runtime sends a gradient for each tensor that came.
            received = len(self.args_recv_info[0]) if not self.is_first else 0
            for index in range(min(received, len(found))):
                if found[index] is None:
                    found[index] = torch.zeros_like(inputs[index])
                found[index] = found[index].contiguous()
            return tuple(found), groups

    return Stage


def backward_inputs(outputs, gradients, inputs, parameters):
    """The input half of a backward pass, after "Zero Bubble Pipeline Parallelism" (2024).

    Keeps the gradients that arrive where paths to parameters leave the paths to inputs, for the other half. Unlike torch's
    own, it tells the results of one operator apart, counts a parameter that is used twice right, and forgets no
    parameter that meets no input.
    """
    from torch.distributed.pipelining import _backward as torch_backward

    node_of = torch_backward._get_grad_fn_or_grad_acc
    wanted = [value for value in inputs if value.requires_grad]
    edges = torch_backward.construct_reverse_graph([node_of(output) for output in outputs])
    closure, _ = torch_backward.reverse_closure([node_of(value) for value in wanted], set(), edges)
    kept, hooks = {}, []
    for node in closure:
        side = {edge for edge in node.next_functions if edge[0] is not None and edge[0] not in closure}
        if side and node in edges or side and any(node_of(output) is node for output in outputs):
            kept[node] = [sorted(side, key=lambda edge: (edge[0].name(), id(edge[0]), edge[1])), None]
            hooks.append(node.register_prehook(keeper(kept, node)))
    found = [None] * len(wanted)
    if wanted and outputs:
        found = torch.autograd.grad(outputs, wanted, gradients, retain_graph=True, allow_unused=True)
    for hook in hooks:
        hook.remove()
    by_value = {id(value): gradient for value, gradient in zip(wanted, found)}
    # Outputs that depend on no input.
    apart = [(o, g) for o, g in zip(outputs, gradients) if node_of(o) not in closure]
    return [by_value.get(id(value)) for value in inputs], [(kept, apart)]


def keeper(kept, node):
    def keep(gradients):
        kept[node][1] = gradients

    return keep


def backward_weights(parameters, groups):
    """The other half: from where the paths part to the parameters."""
    from torch.autograd.graph import GradientEdge

    parameters = [parameter for parameter in parameters if parameter.requires_grad]
    for kept, apart in groups or []:
        edges, arriving = [], []
        for node, (side, gradients) in kept.items():
            starts = [(GradientEdge(node, at), g) for at, g in enumerate(gradients or ()) if g is not None]
            if not starts:
                continue
            side = [GradientEdge(*edge) for edge in side]
            found = torch.autograd.grad(
                [start for start, _ in starts], side, [g for _, g in starts], retain_graph=True, allow_unused=True
            )
            for edge, gradient in zip(side, found):
                if gradient is not None:
                    edges.append(edge)
                    arriving.append(gradient)
        kept.clear()
        for output, gradient in apart:
            edges.append(output)
            arriving.append(torch.ones_like(output) if gradient is None else gradient)
        if edges:
            accumulate(parameters, torch.autograd.grad(edges, parameters, arriving, allow_unused=True))


def accumulate(parameters, gradients):
    for parameter, gradient in zip(parameters, gradients):
        if gradient is not None:
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


def split(value, count):
    """Splits along the first dimension; what has none, or another size, goes to each part whole."""
    if isinstance(value, torch.Tensor):
        return list(value.chunk(count)) if value.dim() and value.shape[0] % count == 0 else [value] * count
    if isinstance(value, (list, tuple)):
        return [type(value)(items) for items in zip(*(split(item, count) for item in value))]
    if isinstance(value, dict):
        parts = {key: split(item, count) for key, item in value.items()}
        return [{key: items[index] for key, items in parts.items()} for index in range(count)]
    return [value] * count


def moved(value, device):
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, (list, tuple)):
        return type(value)(moved(item, device) for item in value)
    if isinstance(value, dict):
        return {key: moved(item, device) for key, item in value.items()}
    return value


class Pipeline:
    """One pipeline that this rank is part of."""

    def __init__(self, run, number):
        self.run, self.number = run, number
        self.ranks = run.layout.members(number)
        self.group = run.groups[tuple(self.ranks)]
        self.schedule = None

    def prime(self, micro_batch):
        """Sends one micro-batch through, so that each rank knows the sizes at its borders.

        torch's own inference calls the stages with zeros, which changes batch-norm statistics, and breaks where
        sizes travel as tensors. Floats are sent as sizes only, integers with their values.
        """
        run, count = self.run, len(self.run.manifest["stages"])
        owner = {stage: self.ranks[place] for place, stages in enumerate(run.layout.stages_of) for stage in stages}
        received, metas = None, {}
        buffers = [(b, b.clone()) for wrapped in run.stages.values() for b in wrapped.buffers()]
        states = torch.random.get_rng_state()
        for stage in range(count):
            if owner[stage] != run.rank:
                continue
            if stage and owner[stage - 1] != run.rank:
                box = [None]
                dist.recv_object_list(box, src=owner[stage - 1], group=self.group, device=run.object_device)
                received = box[0]
            wrapped = run.stages[stage]
            arguments = [made.to(run.device) for made in rebuild(received)] if stage else []
            if stage:
                wrapped.dtypes = received[1]
            with torch.no_grad():
                outputs = wrapped(*arguments, **micro_batch)
            inputs_meta = tuple(t.to("meta") for t in arguments)
            if stage == 0:
                inputs_meta = tuple(t.to("meta") for t in run.first_arguments(micro_batch))
            metas[stage] = (inputs_meta, tuple(t.to("meta") for t in outputs))
            if stage + 1 < count:
                received = describe(outputs, wrapped.sent_dtypes)
                if owner[stage + 1] != run.rank:
                    dist.send_object_list([received], dst=owner[stage + 1], group=self.group, device=run.object_device)
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        torch.random.set_rng_state(states)
        return metas

    def build(self, micro_batch):
        run = self.run
        metas = self.prime(micro_batch)
        cls, count = make_stage_class(), len(run.manifest["stages"])
        stages = [
            cls(wrapped, stage, count, run.device, input_args=metas[stage][0], output_args=metas[stage][1], group=self.group)
            for stage, wrapped in run.stages.items()
        ]
        chunks = run.arguments.micro_batches
        self.schedule = make_schedule(run.arguments, stages, chunks, run.scaled_loss)
        # Micro-batches are cut by us: not every input has a batch dimension.
        self.schedule._split_inputs = lambda args, kwargs: (self.arguments, self.keywords)

    def step(self, batch, target):
        run, chunks = self.run, self.run.arguments.micro_batches
        micro_batches = split(batch, chunks)
        if self.schedule is None:
            self.build(micro_batches[0])
        has_first, has_last = 0 in run.stages, len(run.manifest["stages"]) - 1 in run.stages
        self.arguments = [run.first_arguments(part) if has_first else () for part in micro_batches]
        self.keywords = micro_batches
        losses = []
        target = target if has_last else None
        self.schedule.step(target=target, losses=losses if has_last else None, return_outputs=False)
        return sum(float(loss.detach()) for loss in losses) if has_last else None


def describe(outputs, dtypes):
    """Sizes and types of what is sent; values where they are whole numbers, for sizes may depend on them."""
    ports = []
    for tensor, dtype in zip(outputs, dtypes or [t.dtype for t in outputs]):
        values = None if dtype == tensor.dtype else tensor.cpu()
        ports.append((tuple(tensor.shape), tensor.dtype, values))
    return ports, dtypes or [t.dtype for t in outputs]


def rebuild(received):
    return [torch.zeros(shape, dtype=dtype) if values is None else values for shape, dtype, values in received[0]]


def make_schedule(arguments, stages, chunks, loss):
    from torch.distributed.pipelining import schedules

    if arguments.csv_ranks is not None:
        schedule = schedules._PipelineScheduleRuntime(stages, chunks, loss_fn=loss, scale_grads=False)
        schedule._load_csv(arguments.schedule)
        return schedule
    cls = schedules.get_schedule_class(arguments.schedule)
    if issubclass(cls, schedules.PipelineScheduleSingle):
        return cls(stages[0], chunks, loss_fn=loss, scale_grads=False)
    return cls(stages, chunks, loss_fn=loss, scale_grads=False)


class Run:
    """One rank's part of the training."""

    def __init__(self, arguments, manifest):
        self.arguments, self.manifest = arguments, manifest
        self.rank, world = dist.get_rank(), dist.get_world_size()
        self.layout = Layout(manifest, arguments, arguments.schedule.lower())
        if world != self.layout.world:
            sys.exit(
                f"{world} ranks were started, {self.layout.world} are needed: "
                f"torchrun --nproc-per-node {self.layout.world} {Path(__file__).name} …"
            )
        self.device = torch.device(arguments.device)
        self.object_device = self.device if self.device.type == "cuda" else None
        self.task = Task(manifest, arguments)
        place, self.replica = self.layout.place(self.rank)
        self.stages = {}
        for stage in self.layout.stages_of[place]:
            about = manifest["stages"][stage]
            module = load_stage(about, arguments.form, arguments.device)
            self.stages[stage] = Wrapped(module, about, arguments)
            self.stages[stage].is_last = stage == len(manifest["stages"]) - 1
        self.make_groups()
        self.pipelines = [
            Pipeline(self, number)
            for number in range(self.layout.pipelines)
            if self.rank in self.layout.members(number)
        ]
        self.optimizer = self.task.optimizer(parameters_of(self.stages.values()))
        self.start = 0

    def make_groups(self):
        """All ranks make all groups, in one order."""
        wanted = {tuple(self.layout.members(number)) for number in range(self.layout.pipelines)}
        wanted |= {tuple(ranks) for ranks in self.layout.ranks if len(ranks) > 1}
        wanted |= {self.tied_ranks(tied) for tied in self.manifest["tied"]}
        self.groups = {ranks: dist.new_group(list(ranks)) for ranks in sorted(wanted)}
        if self.device.type == "cuda":
            for ranks, group in self.groups.items():  # opens the connections
                if self.rank in ranks:
                    dist.all_reduce(torch.zeros(1, device=self.device), group=group)

    def tied_ranks(self, tied):
        return tuple(sorted({rank for holder in tied["holders"] for rank in self.layout.ranks_of_stage(holder["stage"])}))

    def first_arguments(self, micro_batch):
        names = [port["from"].split(":", 1)[1] for port in self.manifest["stages"][0]["inputs"]]
        return tuple(micro_batch[name] for name in names)

    def scaled_loss(self, outputs, target):
        outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
        # The mean over all micro-batches of all pipelines.
        return self.task.loss(outputs, target) / (self.arguments.micro_batches * self.layout.pipelines)

    def step(self, step):
        seed_step(self.arguments.seed, step, self.rank)
        if self.optimizer:
            self.optimizer.zero_grad(set_to_none=True)
        samples = self.task.micro_batch * self.arguments.micro_batches
        names = [about["name"] for about in self.manifest["inputs"]]
        inputs = self.task.inputs(step, samples * self.layout.pipelines)
        parts = split(dict(zip(names, inputs)), self.layout.pipelines)
        targets = split(self.task.target(step, samples * self.layout.pipelines), self.layout.pipelines)
        loss = None
        for pipeline in self.pipelines:
            number = pipeline.number
            part = pipeline.step(moved(parts[number], self.device), moved(targets[number], self.device))
            if part is not None:
                loss = part + (loss or 0.0)
        self.average_gradients()
        if self.optimizer:
            self.optimizer.step()
        return loss

    def average_gradients(self):
        """Sums gradients over the replicas of each stage, then over the copies of each tied parameter."""
        place, _ = self.layout.place(self.rank)
        ranks = tuple(self.layout.ranks[place])
        if len(ranks) > 1:
            parameters = parameters_of(self.stages.values())
            buckets = {}
            for parameter in parameters:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                buckets.setdefault(parameter.grad.dtype, []).append(parameter.grad)
            for gradients in buckets.values():
                flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
                dist.all_reduce(flat, group=self.groups[ranks])
                at = 0
                for gradient in gradients:
                    gradient.copy_(flat[at : at + gradient.numel()].view_as(gradient))
                    at += gradient.numel()
        for tied in self.manifest["tied"]:
            self.sum_tied(tied)

    def sum_tied(self, tied):
        ranks = self.tied_ranks(tied)
        if self.rank not in ranks or not tied["requires_grad"]:
            return
        copies, total = [], None
        for holder in tied["holders"]:
            if holder["stage"] not in self.stages:
                continue
            module = self.stages[holder["stage"]].module
            parameter = dict(module.named_parameters(remove_duplicate=False))[holder["name"]]
            copies.append(parameter)
            gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
            gradient = gradient / len(self.layout.ranks_of_stage(holder["stage"]))
            total = gradient if total is None else total + gradient
        if len(ranks) > 1:
            dist.all_reduce(total, group=self.groups[ranks])
        for parameter in copies:
            parameter.grad = total.clone()

    # -- checkpoints

    def save(self, folder, step):
        target = Path(folder) / f"step_{step:08d}"
        target.mkdir(parents=True, exist_ok=True)
        if self.replica == 0:
            for stage, wrapped in self.stages.items():
                write(target / f"stage_{stage}.pt", {"step": step, "stage": stage, "model": wrapped.module.state_dict()})
            write(target / f"optimizer_{min(self.stages)}.pt", self.optimizer.state_dict() if self.optimizer else {})
        if len(self.layout.ranks) and self.replica != 0 and has_buffers(self.stages.values()):
            # Batch-norm statistics of other replicas are their own.
            for stage, wrapped in self.stages.items():
                buffers = dict(wrapped.module.named_buffers())
                write(target / f"buffers_{stage}_{self.replica}.pt", buffers)
        dist.barrier()
        if self.rank == 0:
            write_text(Path(folder) / "latest", target.name)
        dist.barrier()

    def resume(self, folder):
        latest = Path(folder) / "latest"
        if not latest.is_file():
            return
        source = Path(folder) / latest.read_text().strip()
        for stage, wrapped in self.stages.items():
            saved = torch.load(source / f"stage_{stage}.pt", map_location=self.device, weights_only=True)
            wrapped.module.load_state_dict(saved["model"])
            self.start = saved["step"]
            own = source / f"buffers_{stage}_{self.replica}.pt"
            if own.is_file():
                buffers = dict(wrapped.module.named_buffers())
                for name, value in torch.load(own, map_location=self.device, weights_only=True).items():
                    buffers[name].copy_(value)
        if self.optimizer:
            state = torch.load(source / f"optimizer_{min(self.stages)}.pt", map_location=self.device, weights_only=True)
            self.optimizer.load_state_dict(state)
        if self.rank == 0:
            print(f"resumed after step {self.start}", file=sys.stderr, flush=True)


def parameters_of(modules):
    seen = {}
    for module in modules:
        for parameter in module.parameters():
            if parameter.requires_grad:
                seen[id(parameter)] = parameter
    return list(seen.values())


def has_buffers(modules):
    return any(True for module in modules for _ in module.buffers())


def seed_step(seed, step, rank):
    torch.manual_seed((seed * 1_000_003 + step) * 4099 + rank)


def write(path, value):
    """Writes a file whole or not at all."""
    beside = path.with_suffix(".part")
    torch.save(value, beside)
    os.replace(beside, path)


def write_text(path, text):
    beside = path.with_suffix(".part")
    beside.write_text(text)
    os.replace(beside, path)


# -- commands -------------------------------------------------------------------------------------------------------


def train(arguments, manifest):
    backend = "nccl" if arguments.device == "cuda" else "gloo"
    if arguments.device == "cuda":
        local = int(os.environ.get("LOCAL_RANK", "0"))
        torch.cuda.set_device(local)
        arguments.device = f"cuda:{local}"
    if "RANK" not in os.environ:
        sys.exit("start with torchrun, or use --single")
    rank = int(os.environ["RANK"])
    again = f"torchrun … {Path(__file__).name} … --save {arguments.save or 'DIR'} --resume"

    def ended(number, frame):
        print(f"rank {rank}: stopped, because another rank failed; go on from the last checkpoint with: {again}", file=sys.stderr, flush=True)
        os._exit(143)

    signal.signal(signal.SIGTERM, ended)
    dist.init_process_group(backend, timeout=timedelta(seconds=arguments.timeout))
    try:
        run = Run(arguments, manifest)
        if arguments.resume:
            run.resume(arguments.save)
        steps(run, arguments)
    except (RuntimeError, dist.DistError, ConnectionError) as error:
        message = str(error).strip().splitlines()
        lost = re.search(r"[Cc]onnection (closed|reset|refused)|timed? ?out|peer|NCCL|Broken pipe", str(error))
        if lost is None:
            raise
        print(f"rank {rank}: lost a peer ({message[0][:200]}); go on from the last checkpoint with: {again}", file=sys.stderr, flush=True)
        os._exit(1)
    dist.barrier()
    dist.destroy_process_group()


def steps(run, arguments):
    last_stage = len(run.manifest["stages"]) - 1
    leader = run.layout.ranks_of_stage(last_stage)[0]
    reporters = run.layout.ranks_of_stage(last_stage)
    begun = time.perf_counter()
    for step in range(run.start, arguments.steps):
        before = time.perf_counter()
        loss = run.step(step)
        if len(reporters) > 1 and run.rank in reporters:
            total = torch.tensor([loss or 0.0], dtype=torch.float64, device=run.device)
            dist.all_reduce(total, group=run.groups[tuple(reporters)])
            loss = float(total)
        if run.rank == leader:
            samples = run.task.micro_batch * arguments.micro_batches * run.layout.pipelines
            seconds = time.perf_counter() - before
            print(f"step {step + 1} loss {loss:.9g} {samples / seconds:.1f} samples/s", flush=True)
        if arguments.crash and (run.rank, step + 1) == arguments.crash:
            os.kill(os.getpid(), signal.SIGKILL)  # for tests
        if arguments.save and ((step + 1) % arguments.save_every == 0 or step + 1 == arguments.steps):
            run.save(arguments.save, step + 1)
    if run.rank == leader:
        done = arguments.steps - run.start
        print(f"{done} steps in {time.perf_counter() - begun:.1f} s", file=sys.stderr, flush=True)


def single(arguments, manifest):
    """The same steps in one process: the stages one after the other, each micro-batch by itself."""
    task = Task(manifest, arguments)
    stages = [load_stage(about, arguments.form, arguments.device) for about in manifest["stages"]]
    optimizer = task.optimizer(parameters_of(stages))
    replicas = [int(part) for part in str(arguments.replicas).split(",")]
    pipelines = math.lcm(*replicas)
    names = [about["name"] for about in manifest["inputs"]]
    count = arguments.micro_batches * pipelines
    for step in range(arguments.steps):
        seed_step(arguments.seed, step, 0)
        optimizer.zero_grad(set_to_none=True)
        samples = task.micro_batch * count
        inputs = moved(dict(zip(names, task.inputs(step, samples))), arguments.device)
        target = moved(task.target(step, samples), arguments.device)
        total = 0.0
        for micro_batch, part in zip(split(inputs, count), split(target, count)):
            known = {f"input:{name}": value for name, value in micro_batch.items()}
            for module, about in zip(stages, manifest["stages"]):
                outputs = module(*[known[port["from"]] for port in about["inputs"]])
                outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
                for port, value in zip(about["outputs"], outputs):
                    known[f"stage:{about['stage']}:{port['name']}"] = value
            loss = task.loss(outputs, part) / count
            loss.backward()
            total += float(loss.detach())
        for tied in manifest["tied"]:
            copies = [dict(stages[h["stage"]].named_parameters(remove_duplicate=False))[h["name"]] for h in tied["holders"]]
            gradients = [copy.grad for copy in copies if copy.grad is not None]
            for copy in copies if gradients else []:
                copy.grad = sum(gradients[1:], gradients[0].clone())
        optimizer.step()
        print(f"step {step + 1} loss {total:.9g}", flush=True)
    return stages


def merge(arguments, manifest):
    """Writes the stages' weights as one state dict, from the last checkpoint or from the stages as emitted."""
    state = {}
    source = None
    if arguments.save:
        latest = Path(arguments.save) / "latest"
        if not latest.is_file():
            sys.exit(f"{arguments.save} has no checkpoint")
        source = Path(arguments.save) / latest.read_text().strip()
    for about in manifest["stages"]:
        if source:
            part = torch.load(source / f"stage_{about['stage']}.pt", map_location="cpu", weights_only=True)["model"]
        else:
            part = load_stage(about, arguments.form, "cpu").state_dict()
        for name, value in part.items():
            if name in state and not torch.equal(state[name], value):
                sys.exit(f"the stages disagree on `{name}`")
            state[name] = value.detach().clone()
    path = Path(arguments.merge)
    if path.suffix == ".safetensors":
        from safetensors.torch import save_file

        beside = path.with_suffix(".part")
        save_file({name: value.contiguous() for name, value in state.items()}, beside, metadata={"format": "pt"})
        os.replace(beside, path)
    else:
        write(path, state)
    print(f"wrote {path}: {len(state)} tensors")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedule", default=None, help="1F1B, GPipe, Interleaved1F1B, LoopedBFS, InterleavedZeroBubble, ZBVZeroBubble, DualPipeV, or a compute-only .csv table")
    parser.add_argument("--pipeline-ranks", type=int, help="ranks of a pipeline; fewer than stages for interleaved schedules")
    parser.add_argument("--replicas", default=DEFAULTS.get("replicas", "1"), help="pipelines side by side; or a number for each rank of a pipeline: 2,1")
    parser.add_argument("--micro-batches", type=int, default=None, help="micro-batches of a pipeline in a step")
    parser.add_argument("--micro-batch-size", type=int, help="samples in a micro-batch; as traced by default")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--task", help="Python file with inputs, target, loss, optimizer")
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], default="sgd")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32", help="bf16: autocast, master weights stay as they are")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--form", choices=["python", "torchscript"], help="which form of the stages")
    parser.add_argument("--save", help="folder for checkpoints")
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --save, if there is one")
    parser.add_argument("--merge", help="write one state dict (.safetensors or .pt) and end")
    parser.add_argument("--single", action="store_true", help="the same steps in one process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=600, help="seconds after which a silent peer is given up")
    parser.add_argument("--crash", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    manifest = json.loads((STAGES / "manifest.json").read_text())
    arguments.crash = tuple(int(part) for part in arguments.crash.split(",")) if arguments.crash else None
    if arguments.resume and not arguments.save:
        sys.exit("--resume needs --save")
    if manifest["skips"] != "relay" and not (arguments.single or arguments.merge):
        sys.exit("torch.distributed.pipelining needs stages that relay skips: emit with --skips relay")
    default = "schedule.csv" if (HERE / "schedule.csv").is_file() else DEFAULTS.get("schedule") or "1F1B"
    arguments.schedule = arguments.schedule or (str(HERE / default) if default.endswith(".csv") else default)
    arguments.csv_ranks = None
    if arguments.schedule.endswith(".csv"):
        arguments.csv_ranks, in_table = read_csv(arguments.schedule)
        if arguments.micro_batches not in (None, in_table):
            sys.exit(f"the schedule table is for {in_table} micro-batches")
        arguments.micro_batches = in_table
    arguments.micro_batches = arguments.micro_batches or DEFAULTS.get("micro_batches") or 2 * len(manifest["stages"])
    if arguments.merge:
        merge(arguments, manifest)
    elif arguments.single:
        single(arguments, manifest)
    else:
        train(arguments, manifest)


if __name__ == "__main__":
    main()
