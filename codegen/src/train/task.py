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
        self.ramps = {}
        self.whole = getattr(self.file, "whole", [])

    def inputs(self, step, samples):
        if hasattr(self.file, "inputs"):
            made = self.file.inputs(step, samples)
            return (made,) if isinstance(made, torch.Tensor) else tuple(made)
        generator = torch.Generator().manual_seed(self.seed + step)
        made = []
        for about in self.manifest["inputs"]:
            if about["shape"] is None or about["dtype"] is None:
                sys.exit(f"the size of input `{about['name']}` is not known: give --task with a function `inputs`")
            shape = list(about["shape"])
            if shape and shape[0] % self.traced == 0 and about["name"] not in self.whole:
                shape[0] = shape[0] // self.traced * samples
            dtype = getattr(torch, about["dtype"])
            low, high = about.get("range") or (None, None)
            if (dtype.is_floating_point or dtype.is_complex) and low is not None:
                made.append((torch.rand(shape, generator=generator) * (high - low) + low).to(dtype))
            elif dtype.is_complex:
                made.append(torch.randn(shape, generator=generator, dtype=dtype))
            elif dtype.is_floating_point:
                made.append(torch.randn(shape, generator=generator).to(dtype))
            elif dtype == torch.bool:
                made.append(torch.ones(shape, dtype=dtype))
            else:
                low, high = (0, 2) if low is None else (int(low), max(int(high), int(low) + 1))
                made.append(torch.randint(low, high, shape, generator=generator, dtype=dtype))
        return tuple(made)

    def target(self, step, samples):
        if hasattr(self.file, "target"):
            return self.file.target(step, samples)
        return torch.zeros(samples)

    def batch(self, step, count, device):
        """Returns the inputs and targets of a step's micro-batches."""
        samples = self.micro_batch * count
        inputs = split_inputs(self.manifest, self, self.inputs(step, samples), samples, count)
        return moved(inputs, device), moved(split_targets(self.target(step, samples), samples, count), device)

    def loss(self, outputs, target):
        if hasattr(self.file, "loss"):
            return self.file.loss(outputs, target)
        total = 0.0
        for index, output in enumerate(outputs):
            if output.is_floating_point() and output.requires_grad:
                output = output.float()
                total = total + torch.nn.functional.mse_loss(output, self.ramp(output)) * (0.5 * (index + 1))
        return total

    def ramp(self, output):
        """What the outputs are drawn to; made once, for a loss should cost no more than losses do."""
        about = (output.shape, output.device)
        if about not in self.ramps:
            self.ramps[about] = torch.linspace(-1.0, 1.0, output.numel(), device=output.device).reshape(output.shape)
        return self.ramps[about]

    def optimizer(self, parameters):
        parameters = list(parameters)
        if not parameters:
            return None
        if hasattr(self.file, "optimizer"):
            return self.file.optimizer(parameters)
        if self.optimizer_name == "adamw":
            return torch.optim.AdamW(parameters, lr=self.learning_rate)
        return torch.optim.SGD(parameters, lr=self.learning_rate, momentum=0.9)


