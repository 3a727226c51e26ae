"""The pipelines of a rank, under the schedules of torch.distributed.pipelining."""

import sys

import torch
import torch.distributed as dist

from train_parts.counts import Operations
from train_parts.deferred import DEFERRAL
from train_parts.hangs import DOING
from train_parts.profile import PROFILE


def make_stage_class():
    from torch.distributed.pipelining import PipelineStage

    class Stage(PipelineStage):
        """torch's stage, extended for boundaries with tensors without gradients, and for operators with several
        results."""

        def _get_init_p2p_neighbors_ops(self):
            # The first messages have been exchanged already. Stages of V schedules would connect to themselves, which
            # gloo refuses.
            return []

        def forward_one_chunk(self, chunk, *arguments, **keywords):
            number = self.numbers.get(chunk, chunk)
            self.submod.micro_batch = (self.pipeline, number)
            DOING["pass"] = f"the forward pass of micro-batch {number} in stage {self.stage_index}"
            with PROFILE.span("F", self.stage_index, number):
                return super().forward_one_chunk(chunk, *arguments, **keywords)

        def _validate_fwd_outputs(self, outputs):
            # What the last stage returns is sent to nobody: detections have other sizes in each micro-batch.
            if not self.is_last:
                super()._validate_fwd_outputs(outputs)

        def backward_one_chunk(self, chunk, loss=None, full_backward=True, last_backward=False):
            number = self.numbers.get(chunk, chunk)
            DOING["pass"] = f"the backward pass of micro-batch {number} in stage {self.stage_index}"
            if full_backward or not self.has_backward:
                with PROFILE.span("B", self.stage_index, number):
                    return super().backward_one_chunk(chunk, loss=loss, last_backward=last_backward)
            self.queues[chunk] = {}
            with DEFERRAL.into(self.queues[chunk]), PROFILE.span("I", self.stage_index, number):
                return super().backward_one_chunk(chunk, loss=loss, last_backward=last_backward)

        def backward_weight_one_chunk(self, chunk, last_backward=False):
            if self.has_backward:
                self.submod.trace.count_pass()
                with self.submod.trace.timed("stages"), PROFILE.span("W", self.stage_index, self.numbers.get(chunk, chunk)):
                    DEFERRAL.work(self.queues.pop(chunk))

        def backward_maybe_with_nosync(self, backward_type, bwd_kwargs, last_backward=False):
            outputs, gradients = bwd_kwargs["stage_output"], bwd_kwargs["output_grads"]
            outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
            gradients = [None] * len(outputs) if gradients is None else list(gradients)
            pairs = [(o, g) for o, g in zip(outputs, gradients) if o.requires_grad]
            pairs = pairs if self.is_last else self.present(pairs)
            self.submod.trace.count_pass()
            with self.submod.trace.timed("stages"):
                if pairs:
                    torch.autograd.backward([o for o, _ in pairs], [g for _, g in pairs])
            inputs = bwd_kwargs["input_values"]
            found = [value.grad if value.requires_grad else None for value in inputs]
            for value in inputs:
                value.grad = None
            # The runtime sends a gradient for each received tensor.
            received = len(self.args_recv_info[0]) if not self.is_first else 0
            for index in range(min(received, len(found))):
                found[index] = no_gradient(inputs[index]) if found[index] is None else found[index].contiguous()
            return tuple(found), None

        def present(self, pairs):
            """Returns the outputs that have a gradient, with it; the same ones in each pass if that cannot change."""
            has = self.has_gradients or have_gradients([gradient for _, gradient in pairs])
            self.has_gradients = has if self.is_alike else None
            return [pair for pair, is_there in zip(pairs, has) if is_there]

    return Stage


class Pipeline:
    """One pipeline of this rank."""

    def __init__(self, run, number):
        self.run, self.number = run, number
        self.ranks = run.layout.members(number, run.shard)
        self.owner = run.layout.owners(number, run.shard)
        self.group = run.groups[tuple(self.ranks)]
        count, copy = run.layout.count, number % run.layout.copies
        self.stages = {held % count: wrapped for held, wrapped in run.stages.items() if held // count == copy}
        self.schedule = None

    def prime(self, micro_batch):
        """Sends one micro-batch through, so that each rank learns the sizes at its boundaries.

        torch's own inference calls the stages with zeros, which changes batch-norm statistics, and fails if sizes are
        sent as tensors, or if zeros have no result, such as a Cholesky factor. So stages get what others computed.
        """
        run, count, owner = self.run, len(self.run.manifest["stages"]), self.owner
        outputs, metas = [], {}
        buffers = [(name, b, b.clone()) for wrapped in run.stages.values() for name, b in wrapped.module.named_buffers()]
        states = torch.random.get_rng_state()
        for stage in range(count):
            if owner[stage] != run.rank:
                continue
            if stage and owner[stage - 1] != run.rank:
                box = [None]
                dist.recv_object_list(box, src=owner[stage - 1], group=self.group, device=run.object_device)
                sizes, dtypes, before = box[0]
                outputs = [torch.empty(shape, dtype=dtype, device=run.device) for shape, dtype in sizes]
                for tensor in outputs:
                    dist.recv(tensor, src=owner[stage - 1], group=self.group)
            wrapped = self.stages[stage]
            arguments = outputs
            if stage:
                wrapped.dtypes = dtypes
            with torch.no_grad(), Operations() as operations:
                outputs = wrapped(*arguments, **micro_batch)
            run.operations = operations.count + (before if stage else 0)  # of a forward pass up to this stage
            arguments = run.first_arguments(micro_batch) if stage == 0 else arguments
            metas[stage] = (tuple(map(form_of_tensor, arguments)), tuple(map(form_of_tensor, outputs)))
            if stage + 1 < count:
                dtypes, before = wrapped.sent_dtypes or [tensor.dtype for tensor in outputs], run.operations
                if owner[stage + 1] != run.rank:
                    about = ([(tuple(tensor.shape), tensor.dtype) for tensor in outputs], dtypes, before)
                    dist.send_object_list([about], dst=owner[stage + 1], group=self.group, device=run.object_device)
                    for tensor in outputs:
                        dist.send(tensor, dst=owner[stage + 1], group=self.group)
        refuse_lost(buffers)
        with torch.no_grad():
            for _, buffer, before in buffers:
                buffer.copy_(before)
        torch.random.set_rng_state(states)
        return metas

    def make_stages(self):
        run = self.run
        self.metas = metas = self.prime(self.keywords[0])
        cls, count = make_stage_class(), len(run.manifest["stages"])
        made = []
        for stage, wrapped in self.stages.items():
            args = {"input_args": metas[stage][0], "output_args": metas[stage][1], "group": self.group}
            made.append(cls(wrapped, stage, count, run.device, **args))
            made[-1].pipeline, made[-1].queues, made[-1].numbers = self.number, {}, {}
            made[-1].is_alike, made[-1].has_gradients = run.looks_alike, None
            if run.layout.copies > 1:
                in_group = sorted(self.ranks)
                made[-1].stage_index_to_group_rank = {stage: in_group.index(rank) for stage, rank in self.owner.items()}
        return made

    def take(self, micro_batches, targets):
        self.keywords, self.targets = micro_batches, targets
        self.arguments = [self.run.first_arguments(part) if 0 in self.stages else () for part in self.keywords]

    def start(self, operations, is_forward):
        """Starts sends and receives, in one group per direction: messages of one never wait for those of the other."""
        group = self.run.ways[tuple(self.ranks)][0 if is_forward else 1]
        moved = [dist.P2POp(operation.op, operation.tensor, operation.peer, group) for operation in operations]
        return dist.batch_isend_irecv(moved) if moved else []

    def loss(self, outputs, number):
        return self.run.scaled_loss(outputs, self.targets[int(number)])

    def step(self, micro_batches, targets):
        run = self.run
        self.take(micro_batches, targets)
        if self.schedule is None:
            self.schedule = make_schedule(run.arguments, self.make_stages(), run.arguments.micro_batches, self.loss)
            self.schedule._split_inputs = lambda args, kwargs: (self.arguments, self.keywords)
        has_last, losses = len(run.manifest["stages"]) - 1 in self.stages, []
        # The runtime only cuts tensors; a target may be of any nesting, and is looked up by its number.
        target = torch.arange(run.arguments.micro_batches) if has_last else None
        self.schedule.step(target=target, losses=losses if has_last else None, return_outputs=False)
        return sum(float(loss.detach()) for loss in losses) if has_last else None


# What takes the place of a gradient that a received value does not have: NaN with a number of its own in its bits, by the
# bytes of an element. Zeros would do for sums, but not for the optimizer, which moves a parameter that has a gradient of
# zeros (weight decay, momentum) and leaves alone one that has none.
NONE = {2: (torch.int16, 0x7FDE), 4: (torch.int32, 0x7FC0DE1F), 8: (torch.int64, 0x7FF8C0DE1F2E3D4C)}


def no_gradient(tensor):
    """Returns what is sent for a value that has no gradient; whoever computes with it by mistake gets NaN."""
    kind, bits = NONE[tensor.element_size()]
    return torch.full(tensor.shape, bits, dtype=kind, device=tensor.device).view(tensor.dtype)


def have_gradients(gradients):
    """Tells which of the received gradients are some; on a GPU the host waits for them, once."""
    firsts = [(gradient.reshape(-1)[:1].view(NONE[gradient.element_size()][0]) != NONE[gradient.element_size()][1]).any() for gradient in gradients if gradient.numel()]
    found = iter(torch.stack(firsts).tolist() if firsts else ())
    return [next(found) if gradient.numel() else True for gradient in gradients]


def form_of_tensor(tensor):
    """Returns type, sizes and strides without numbers: `to("meta")` would pack what has gaps, as `x[:, 0]`."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")


def refuse_lost(buffers):
    """Exits if a batch norm has seen one value per channel: its variance is NaN, although all trained values are
    finite."""
    known = {name: buffer for name, buffer, _ in buffers}
    for name, buffer, before in buffers:
        mean = known.get(name.replace("running_var", "running_mean"))
        if mean is not None and name.endswith("running_var") and before.isfinite().all() and mean.isfinite().all() and not buffer.isfinite().all():
            sys.exit(f"a batch norm sees one value per channel, so `{name}` is NaN: use more samples per micro-batch, or --batch-norm sync with replicas")


def make_schedule(arguments, stages, chunks, loss):
    from torch.distributed.pipelining import schedules

    if arguments.csv_ranks is not None:
        schedule = schedules._PipelineScheduleRuntime(stages, chunks, loss_fn=loss, scale_grads=False)
        schedule._load_csv(arguments.schedule)
        return schedule
    cls = schedules.get_schedule_class(arguments.schedule)
    stages = stages[0] if issubclass(cls, schedules.PipelineScheduleSingle) else stages
    try:
        return cls(stages, chunks, loss_fn=loss, scale_grads=False)
    except ValueError as error:  # mostly an unsupported number of micro-batches
        return sys.exit(f"schedule {arguments.schedule}: {error}")
