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
        place, self.replica, self.shard = self.layout.place(self.rank)
        last = len(manifest["stages"]) - 1
        self.reporters = self.layout.ranks_of_stage(last, self.shard)  # know the loss, together
        self.leader = self.layout.ranks_of_stage(last, 0)[0]  # tells it
        self.make_groups()
        self.shard_group = self.groups.get(tuple(self.layout.shard_ranks(self.rank)))
        self.offload = Offload(arguments.offload, self.device, arguments.offload_floor)
        self.stages = {}
        for stage in self.layout.stages_of[place]:
            about = manifest["stages"][stage]
            waits = splits_backward(arguments)
            # What is shared out need not fit whole.
            shares = arguments.sharding == "zero3" and self.layout.replicas[place] > 1
            where = "cpu" if shares else arguments.device
            module = load_stage(about, arguments.form, where, waits, self.shard_group, self.offload)
            self.stages[stage] = Wrapped(module, about, arguments, self.offload)
            self.stages[stage].is_last = stage == last
        self.modules = {stage: wrapped.module for stage, wrapped in self.stages.items()}
        self.cuts = Cuts(self.modules, manifest, self.shard_group is not None)
        self.pipelines = [
            Pipeline(self, number)
            for number in range(self.layout.pipelines)
            if self.rank in self.layout.members(number, self.shard)
        ]
        self.dealt = Dealt(self) if self.layout.is_unequal else None
        self.without_flush = None  # until the task's optimizer is known
        self.sync = self.make_sync(tuple(self.layout.replicas_of_place(place, self.shard)))
        self.is_fully_shared = isinstance(self.sync, FullySharded)
        for wrapped in self.stages.values() if self.is_fully_shared else ():
            wrapped.sharing = self.sync
        self.update = Update(self.task, self.modules, self.sync, (self.replica, self.shard), (world, self.rank), self.cuts, is_scaled(arguments))
        # Only ranks at a model's inputs and at its end need data: those of their own pipelines.
        self.wants = any(wrapped.late for wrapped in self.stages.values()), last in self.stages
        self.batches = {}
        for pipeline in self.pipelines if any(self.wants) else ():
            made = Batches(self.task, pipeline.number, self.layout.pipelines, arguments.micro_batches)
            self.batches[pipeline.number] = made
        self.validation = Validation(self) if hasattr(self.task.file, "validation") else None
        if self.validation and any(isinstance(module, torch.jit.ScriptModule) for module in self.modules.values()):
            sys.exit("archives cannot leave training mode: validate with --form python")
        if arguments.updates:
            self.without_flush = WithoutFlush(self)
        self.start = 0

    def autocast(self):
        return autocast(self.arguments)

    def make_sync(self, ranks):
        """Joins the gradients of this rank's replicas, which share out what `--sharding` says."""
        if len(ranks) == 1 or self.arguments.updates:
            return None
        arguments, parameters = self.arguments, [p for _, _, p in named_parameters_of(self.modules)]
        passes = len(self.dealt.order) // 2 if self.dealt else arguments.micro_batches
        if arguments.sharding == "none":
            return Sync(parameters, self.groups[ranks], passes)
        holders = [holder for tied in self.manifest["tied"] for holder in tied["holders"] if holder["stage"] in self.stages]
        tied = {parameter_at(self.modules[holder["stage"]], holder["name"]) for holder in holders}
        if arguments.sharding != "zero3":
            return Sharded(parameters, self.groups[ranks], passes, tied, arguments.sharding == "zero2")
        if any(isinstance(module, torch.jit.ScriptModule) for module in self.modules.values()):
            sys.exit("zero3 needs stages in Python: --form python, or zero2")
        if any("_scripted" in module.forward.__globals__ for module in self.modules.values()):
            sys.exit("zero3 does not go with scripted control flow, in which replicas may ask for different parameters: zero2")
        for module in self.modules.values():
            move_buffers(module, self.device)
        stages = [(module, self.manifest["stages"][stage]["blocks"]) for stage, module in self.modules.items()]
        return FullySharded(stages, self.groups[ranks], tied, self.device, self.offload)

    def make_groups(self):
        """All ranks make all groups, in one order."""
        layout, wanted = self.layout, set()
        pipelines = {tuple(layout.members(n, shard)) for n in range(layout.pipelines) for shard in range(layout.shards)}
        for shard in range(layout.shards):
            replicas = [tuple(layout.replicas_of_place(place, shard)) for place in range(len(layout.ranks))]
            wanted |= {ranks for ranks in replicas if len(ranks) > 1}
            wanted |= {self.tied_ranks(tied, shard) for tied in self.manifest["tied"]}
        if layout.shards > 1:
            wanted |= {tuple(layout.shard_ranks(rank)) for rank in range(layout.world)}
        self.groups = {ranks: self.group_of(ranks) for ranks in sorted(wanted | pipelines)}
        self.ways = {}
        if layout.is_unequal or self.arguments.updates:
            for ranks in sorted(pipelines):
                self.ways[ranks] = (self.group_of(ranks), self.group_of(ranks))
        if self.device.type == "cuda":
            for ranks, group in self.groups.items():  # opens the connections
                if self.rank in ranks:
                    dist.all_reduce(torch.zeros(1, device=self.device), group=group)

    def group_of(self, ranks):
        return dist.new_group(list(ranks), timeout=timedelta(seconds=self.arguments.timeout))

    def tied_ranks(self, tied, shard):
        holders = tied["holders"]
        return tuple(sorted({rank for holder in holders for rank in self.layout.ranks_of_stage(holder["stage"], shard)}))

    def first_arguments(self, micro_batch):
        names = [port["from"].split(":", 1)[1] for port in self.manifest["stages"][0]["inputs"]]
        return tuple(micro_batch[name] for name in names)

    def scaled_loss(self, outputs, target, count=None):
        """Returns a micro-batch's part of the mean over `count` of them: of all pipelines in a step, where nothing is said."""
        outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
        with autocast(self.arguments):
            loss = self.task.loss(outputs, target) / (count or self.arguments.micro_batches * self.layout.pipelines)
        return self.update.scale.up(loss)

    def step(self, step):
        """Trains a step; returns the loss where this rank knows it, and what the ranks know of it together."""
        loss = self.gradients(step)
        DOING["pass"] = f"all passes of step {step + 1}"
        loaders = [batches.loader for batches in self.batches.values() if batches.loader]
        known, ended = self.update.apply(step, loss, any(loader.has_ended for loader in loaders), self.device)
        if ended:  # all begin the next epoch together
            for loader in loaders:
                loader.begin(loader.epoch + 1)
        if self.offload.mode != "none":
            known["offload"] = self.offloaded()
        return loss, known

    def offloaded(self):
        """Returns what the ranks have moved in a step, and what their hosts hold, together."""
        found = self.offload.figures()
        sums = torch.tensor([float(value) for value in found.values()], dtype=torch.float64, device=self.device)
        dist.all_reduce(sums)
        return {name: total if name.startswith("seconds") else int(total) for name, total in zip(found, sums.tolist())}

    def gradients(self, step):
        """Leaves the gradients of a step in the parameters; returns the loss where this rank knows it."""
        seed_step(self.arguments.seed, step, self.rank // self.layout.shards)  # the shards of a stage draw the same
        self.update.zero_grad()
        nothing = [{}] * self.arguments.micro_batches, [None] * self.arguments.micro_batches
        parts, targets = {}, {}
        for number in (pipeline.number for pipeline in self.pipelines):
            own = self.batches.get(number)
            parts[number], targets[number] = own.at(step, self.device, *self.wants) if own else nothing
        if self.shard_group is not None and step == self.start:
            compare_data(self.shard_group, parts, targets)
        if self.dealt:
            loss = self.dealt.step(parts, targets)
        else:
            [pipeline] = self.pipelines
            loss = pipeline.step(parts[pipeline.number], targets[pipeline.number])
        self.average_gradients()
        return None if loss is None else loss / self.update.scale.value

    def average_gradients(self):
        """Sums gradients over the replicas of each stage, then over the copies of each tied parameter."""
        if self.sync:
            self.sync.finish()
        for tied in self.manifest["tied"]:
            self.sum_tied(tied)
        if self.update.is_shared:
            self.sync.take_tied()

    def sum_tied(self, tied):
        ranks = self.tied_ranks(tied, self.shard)
        if self.rank not in ranks or not tied["requires_grad"]:
            return
        copies, total = [], None
        for holder in tied["holders"]:
            if holder["stage"] not in self.stages:
                continue
            parameter = parameter_at(self.modules[holder["stage"]], holder["name"])
            copies.append(parameter)
            gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
            if self.sync is None or self.sync.sums_tied:  # replicas have the sum already
                gradient = gradient / len(self.layout.ranks_of_stage(holder["stage"], self.shard))
            total = gradient if total is None else total + gradient
        if len(ranks) > 1:
            dist.all_reduce(total, group=self.groups[ranks])
        for parameter in copies:
            parameter.grad = total.clone()

    # -- checkpoints

    def save(self, folder, step):
        target = Path(folder) / f"step_{step:08d}"
        # Whole tensors under the model's names, whoever has which part of them.
        if self.is_fully_shared:
            states = {stage: self.sync.whole_state(module, self.replica == 0) for stage, module in self.modules.items()}
        else:
            states = {stage: self.cuts.whole_state(module, module.state_dict()) for stage, module in self.modules.items()}
        buffers = {stage: self.cuts.whole_state(module, dict(module.named_buffers())) for stage, module in self.modules.items()}
        optimizer = self.update.state() if self.replica == 0 or self.update.is_shared else None
        target.mkdir(parents=True, exist_ok=True)
        if self.shard == 0:
            self.write(target, step, states, buffers, optimizer)
        dist.barrier()
        if self.rank == 0:
            write_text(Path(folder) / "latest", target.name)
        dist.barrier()

    def write(self, target, step, states, buffers, optimizer):
        if self.replica == 0:
            for stage, state in states.items():
                write(target / f"stage_{stage}.pt", {"step": step, "stage": stage, "model": state})
        if optimizer is not None:
            own = f"_{self.replica}" if self.replica else ""
            parts = self.sync.size if self.update.is_shared else 1
            write(target / f"optimizer_{min(self.stages)}{own}.pt", optimizer | {"parts": parts})
        loaders = [batches.loader for batches in self.batches.values() if batches.loader]
        if self.rank == self.leader and loaders:
            write(target / "data.pt", {"epoch": loaders[0].epoch, "taken": loaders[0].taken})
        if self.replica != 0 and has_buffers(self.stages.values()):
            # Batch-norm statistics of other replicas are their own.
            for stage, own in buffers.items():
                write(target / f"buffers_{stage}_{self.replica}.pt", own)

    def resume(self, folder):
        latest = Path(folder) / "latest"
        if not latest.is_file():
            return
        source = Path(folder) / latest.read_text().strip()
        for stage, wrapped in self.stages.items():
            saved = torch.load(source / f"stage_{stage}.pt", map_location=self.device, weights_only=True)
            try:
                part = self.cuts.part_state(wrapped.module, saved["model"])
                load_whole(wrapped.module, part, self.sync if self.is_fully_shared else None)
            except RuntimeError as error:
                reason = " ".join(str(error).split())[:300]
                sys.exit(f"{source / f'stage_{stage}.pt'} is no checkpoint of this stage: {reason}")
            self.start = saved["step"]
            own = source / f"buffers_{stage}_{self.replica}.pt"
            if own.is_file():
                buffers = dict(wrapped.module.named_buffers())
                found = torch.load(own, map_location=self.device, weights_only=True)
                for name, value in self.cuts.part_state(wrapped.module, found).items():
                    buffers[name].copy_(value)
        if self.update.is_shared:
            self.sync.refresh()
        parts = [torch.load(source / f"optimizer_{min(self.stages)}.pt", map_location=self.device, weights_only=True)]
        for number in range(1, parts[0].get("parts", 1)):
            path = source / f"optimizer_{min(self.stages)}_{number}.pt"
            parts.append(torch.load(path, map_location=self.device, weights_only=True))
        self.update.load(parts)
        if (source / "data.pt").is_file():
            position = torch.load(source / "data.pt", weights_only=True)
            for batches in self.batches.values():
                batches.loader.begin(position["epoch"], position["taken"])
        if self.rank == 0:
            print(f"resumed after step {self.start}", file=sys.stderr, flush=True)


def move_buffers(module, device):
    """Moves buffers, and no parameters; one under two names stays one."""
    moved = {}
    for holder in module.modules():
        for name, buffer in holder._buffers.items():
            holder._buffers[name] = moved.setdefault(id(buffer), buffer.to(device))


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


