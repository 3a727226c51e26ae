# -- one rank ---------------------------------------------------------------------------------------------------------


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
            module = load_stage(about, arguments.form, arguments.device, waits=splits_backward(arguments))
            self.stages[stage] = Wrapped(module, about, arguments)
            self.stages[stage].is_last = stage == len(manifest["stages"]) - 1
        self.make_groups()
        self.pipelines = [
            Pipeline(self, number)
            for number in range(self.layout.pipelines)
            if self.rank in self.layout.members(number)
        ]
        self.dealt = Dealt(self) if self.layout.is_unequal else None
        parameters, ranks = parameters_of(self.stages.values()), tuple(self.layout.ranks[place])
        self.parameters = parameters
        passes = len(self.dealt.order) // 2 if self.dealt else arguments.micro_batches
        self.sync = Sync(parameters, self.groups[ranks], passes) if len(ranks) > 1 else None
        self.optimizer = self.task.optimizer(parameters)
        self.start = 0

    def make_groups(self):
        """All ranks make all groups, in one order."""
        wanted = {tuple(self.layout.members(number)) for number in range(self.layout.pipelines)}
        wanted |= {tuple(ranks) for ranks in self.layout.ranks if len(ranks) > 1}
        wanted |= {self.tied_ranks(tied) for tied in self.manifest["tied"]}
        self.groups = {ranks: dist.new_group(list(ranks)) for ranks in sorted(wanted)}
        self.ways = {}
        if self.layout.is_unequal:
            for ranks in sorted({tuple(self.layout.members(number)) for number in range(self.layout.pipelines)}):
                self.ways[ranks] = (dist.new_group(list(ranks)), dist.new_group(list(ranks)))
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
        with autocast(self.arguments):
            return self.task.loss(outputs, target) / (self.arguments.micro_batches * self.layout.pipelines)

    def step(self, step):
        """Trains a step; returns the loss where this rank knows it."""
        loss = self.gradients(step)
        self.stop_if_lost(step, loss)
        if self.optimizer:
            self.optimizer.step()
        return loss

    def gradients(self, step):
        """Leaves the gradients of a step in the parameters; returns the loss where this rank knows it."""
        seed_step(self.arguments.seed, step, self.rank)
        if self.optimizer:
            self.optimizer.zero_grad(set_to_none=True)
        parts, targets = self.task.batch(step, self.layout.pipelines * self.arguments.micro_batches, self.device)
        each = self.arguments.micro_batches
        parts = [parts[at * each : (at + 1) * each] for at in range(self.layout.pipelines)]
        targets = [targets[at * each : (at + 1) * each] for at in range(self.layout.pipelines)]
        if self.dealt:
            loss = self.dealt.step(parts, targets)
        else:
            [pipeline] = self.pipelines
            loss = pipeline.step(parts[pipeline.number], targets[pipeline.number])
        self.average_gradients()
        return loss

    def stop_if_lost(self, step, loss):
        """Ends all ranks before the update when the loss or a gradient is no number: what is saved stays good."""
        is_lost = is_no_number(loss, self.parameters)
        flag = torch.tensor([float(is_lost)], device=self.device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        if not flag.item():
            return
        if is_lost:
            what = "the loss" if loss is not None and not math.isfinite(loss) else "a gradient"
            print(f"rank {self.rank}: {what} is not finite in step {step + 1}", file=sys.stderr, flush=True)
        dist.barrier()
        if self.rank == 0:
            kept = f"the last checkpoint in {self.arguments.save} is from before" if self.arguments.save else "nothing was saved"
            print(f"stopped before the update of step {step + 1}: {kept}", file=sys.stderr, flush=True)
        os._exit(1)

    def average_gradients(self):
        """Sums gradients over the replicas of each stage, then over the copies of each tied parameter."""
        if self.sync:
            self.sync.finish()
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
        if self.replica != 0 and has_buffers(self.stages.values()):
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
            try:
                wrapped.module.load_state_dict(saved["model"])
            except RuntimeError as error:
                reason = " ".join(str(error).split())[:300]
                sys.exit(f"{source / f'stage_{stage}.pt'} is no checkpoint of this stage: {reason}")
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


def is_no_number(loss, parameters):
    """Tells whether a loss, or the gradient of one of these parameters, is infinite or NaN."""
    if loss is not None and not math.isfinite(loss):
        return True
    norms = [parameter.grad.detach().norm() for parameter in parameters if parameter.grad is not None]
    return bool(norms) and not bool(torch.stack([norm.double() for norm in norms]).isfinite().all())


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


