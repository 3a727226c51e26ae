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
    """The other half: from where the paths part to the parameters, whose gradients autograd adds up in place."""
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
        if edges and parameters:
            torch.autograd.backward(edges, arriving, inputs=parameters)


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

    def make_stages(self):
        run = self.run
        metas = self.prime(self.keywords[0])
        cls, count = make_stage_class(), len(run.manifest["stages"])
        return [
            cls(wrapped, stage, count, run.device, input_args=metas[stage][0], output_args=metas[stage][1], group=self.group)
            for stage, wrapped in run.stages.items()
        ]

    def take(self, batch, target):
        """Cuts a batch into micro-batches: not every input has a batch dimension, so torch's own cutting would not do."""
        run, chunks = self.run, self.run.arguments.micro_batches
        self.keywords = split(batch, chunks)
        self.arguments = [run.first_arguments(part) if 0 in run.stages else () for part in self.keywords]
        self.targets = split(target, chunks)

    def step(self, batch, target):
        run = self.run
        self.take(batch, target)
        if self.schedule is None:
            self.schedule = make_schedule(run.arguments, self.make_stages(), run.arguments.micro_batches, run.scaled_loss)
            self.schedule._split_inputs = lambda args, kwargs: (self.arguments, self.keywords)
        has_last, losses = len(run.manifest["stages"]) - 1 in run.stages, []
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


