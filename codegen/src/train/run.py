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
        BUSY.on_gpu = self.device.type == "cuda"
        self.object_device = self.device if self.device.type == "cuda" else None
        self.task = Task(manifest, arguments)
        place, self.replica, self.shard = self.layout.place(self.rank)
        last = len(manifest["stages"]) - 1
        self.reporters = self.layout.ranks_of_stage(last, self.shard)  # know the loss, together
        self.leader = self.layout.ranks_of_stage(last, 0)[0]  # tells it
        self.make_groups()
        self.shard_group = self.groups.get(tuple(self.layout.shard_ranks(self.rank)))
        self.offload = Offload(arguments.offload, self.device, arguments.offload_floor)
        alike = tuple(self.layout.replicas_of_place(place, self.shard))
        self.norm_group = self.norm_groups.get(alike)
        self.stages = {}
        for held in self.layout.stages_of[place]:
            about = manifest["stages"][held % self.layout.count]
            waits = splits_backward(arguments)
            # What is shared out need not fit whole.
            shares = arguments.sharding == "zero3" and len(self.layout.sharers(place, self.shard)[0]) > 1
            where = "cpu" if shares else arguments.device
            module = load_stage(about, arguments.form, where, waits, self.shard_group, self.offload)
            if self.norm_group is not None:
                let_sync(module, STAGES / about["files"]["python"], self.norm_group)
            self.stages[held] = Wrapped(module, about, arguments, self.offload)
            self.stages[held].is_last = about["stage"] == last
        self.modules = {held: wrapped.module for held, wrapped in self.stages.items()}
        self.cuts = Cuts(self.modules, manifest, self.shard_group is not None)
        self.pipelines = [
            Pipeline(self, number)
            for number in range(self.layout.pipelines)
            if self.rank in self.layout.members(number, self.shard)
        ]
        has_lists = (self.layout.is_unequal and not arguments.updates) or self.layout.copies > 1
        self.executor = Executor(self) if has_lists else None
        self.without_flush = None  # until the task's optimizer is known
        self.sync = self.make_sync(place)
        self.is_fully_shared = isinstance(self.sync, FullySharded)
        for wrapped in self.stages.values() if self.is_fully_shared else ():
            wrapped.sharing = self.sync
        self.sends_slices = isinstance(self.sync, Sliced)
        self.update = Update(self.task, self.modules, self.sync, (self.replica, self.shard), (world, self.rank), self.cuts, is_scaled(arguments), self.device if arguments.offload_optimizer else None)
        # Only ranks at a model's inputs and at its end need data: those of their own pipelines.
        self.wants = any(wrapped.late for wrapped in self.stages.values()), any(wrapped.is_last for wrapped in self.stages.values())
        self.batches = {}
        for pipeline in self.pipelines if any(self.wants) else ():
            made = Batches(self.task, pipeline.number, self.layout.pipelines, arguments.micro_batches)
            self.batches[pipeline.number] = made
        self.validation = Validation(self) if hasattr(self.task.file, "validation") else None
        if self.validation and any(isinstance(module, torch.jit.ScriptModule) for module in self.modules.values()):
            sys.exit("archives cannot leave training mode: validate with --form python")
        if arguments.updates:
            self.without_flush = WithoutFlush(self)
        if arguments.sync != "buckets":
            self.epoch_steps = agreed_length(self, self.batches.values(), f"--sync {arguments.sync} needs: --sync buckets")
        self.start, self.operations = 0, None  # of a micro-batch's forward pass, once known to who has the last stage
        self.checkpoints = Checkpoints(arguments.save, arguments.keep, arguments.timeout) if arguments.save else None

    def peak(self):
        """Returns the operations a second that all ranks come to at most, where this is what the plan is for."""
        predicted = DEFAULTS.get("prediction")
        is_here = predicted and self.layout.shards == 1 and is_on(predicted, self.arguments.device)
        return peak_of(predicted, self.layout.world, self.arguments.dtype, self.modules.values()) if is_here else None

    def autocast(self):
        return autocast(self.arguments)

    def make_sync(self, place):
        """Joins the gradients of this rank's replicas, which share out what `--sharding` says, or of both copies of the model."""
        if self.layout.copies > 1:
            return self.make_mirrored()
        ranks, inside = tuple(sorted(self.layout.replicas_of_place(place, self.shard))), self.layout.sharers(place, self.shard)
        if len(ranks) == 1 or self.arguments.updates:
            return None
        arguments, parameters = self.arguments, [p for _, _, p in named_parameters_of(self.modules)]
        passes = len(self.executor.order) // 2 if self.executor else arguments.micro_batches
        if arguments.sync != "buckets":
            if self.task.clip:
                sys.exit(f"`clip` of the task does not go with --sync {arguments.sync}, which updates before all gradients are known: --sync buckets")
            about = (passes, arguments.slice, arguments.sync == "fifo", arguments.timeout, NotFinite)
            return Sliced(self.modules.values(), named_parameters_of(self.modules), self.slice_groups[ranks], *about)
        is_served = arguments.collective == "parameter-server"
        if arguments.collective == "hierarchical":
            machines = self.layout.on_machines(place, self.shard)
            own = next(machine for machine in machines if self.rank in machine)
            alike = tuple(machine[own.index(self.rank)] for machine in machines)
            if 1 < len(own) < len(ranks):
                return Hierarchical(parameters, (self.groups[own], self.groups[alike]), passes)
        if not is_served and (arguments.sharding == "none" or len(inside[0]) == 1):
            return Sync(parameters, self.groups[ranks], passes)
        holders = [holder for tied in self.manifest["tied"] for holder in tied["holders"] if holder["stage"] in self.stages]
        tied = {parameter_at(self.modules[holder["stage"]], holder["name"]) for holder in holders}
        if is_served:
            return Served(parameters, self.groups[ranks], passes, tied)
        own = next(group for group in inside if self.rank in group)
        alike = tuple(sorted(group[own.index(self.rank)] for group in inside))
        groups = self.groups[own], self.groups[alike] if len(alike) > 1 else None
        if arguments.sharding != "zero3":
            return Sharded(parameters, groups, passes, tied, arguments.sharding == "zero2")
        if any(isinstance(module, torch.jit.ScriptModule) for module in self.modules.values()):
            sys.exit("zero3 needs stages in Python: --form python, or zero2")
        if any("_scripted" in module.forward.__globals__ for module in self.modules.values()):
            sys.exit("zero3 does not go with scripted control flow, in which replicas may ask for different parameters: zero2")
        for module in self.modules.values():
            move_buffers(module, self.device)
        stages = [(module, self.manifest["stages"][stage]["blocks"]) for stage, module in self.modules.items()]
        return FullySharded(stages, groups, passes, tied, self.device, self.offload)

    def make_mirrored(self):
        tied = {(holder["stage"], holder["name"]) for tied in self.manifest["tied"] for holder in tied["holders"]}
        copies, groups = {}, {}
        for held, module in self.modules.items():
            stage = held % self.layout.count
            elsewhere = {parameter_at(module, name) for of, name in tied if of == stage}
            copies.setdefault(stage, []).append([p for _, _, p in named_parameters_of({held: module}) if p not in elsewhere])
            groups[stage] = self.groups.get(tuple(self.layout.ranks_of_stage(stage, self.shard)))
        return Mirrored(copies, groups)

    def make_groups(self):
        """All ranks make all groups, in one order."""
        layout, wanted = self.layout, set()
        pipelines = {tuple(layout.members(n, shard)) for n in range(layout.pipelines) for shard in range(layout.shards)}
        for shard in range(layout.shards):
            replicas = [tuple(layout.ranks_of_stage(stage, shard)) for stage in range(layout.count)]
            wanted |= {ranks for ranks in replicas if len(ranks) > 1}
            for place, inside in ((place, layout.sharers(place, shard)) for place in range(len(layout.stages_of))):
                if self.arguments.collective == "hierarchical":
                    wanted |= {*layout.on_machines(place, shard), *zip(*layout.on_machines(place, shard))}
                if 1 < len(inside[0]) < len(inside) * len(inside[0]):
                    wanted |= {*inside, *(tuple(sorted(alike)) for alike in zip(*inside))}
            wanted |= {self.tied_ranks(tied, shard) for tied in self.manifest["tied"]}
        if layout.shards > 1:
            wanted |= {tuple(layout.shard_ranks(rank)) for rank in range(layout.world)}
        self.groups = {ranks: self.group_of(ranks) for ranks in sorted(wanted | pipelines)}
        self.slice_groups = {}
        if self.arguments.sync != "buckets":
            for ranks in sorted(ranks for ranks in wanted if len(ranks) > 1):
                # The second one waits for as long as there is nothing to send.
                self.slice_groups[ranks] = (self.group_of(ranks), dist.new_group(list(ranks), timeout=timedelta(days=30)))
        self.norm_groups = {}
        if self.arguments.batch_norm == "sync" and layout.replicas[0] > 1:
            for place in range(len(layout.stages_of)):
                ranks = tuple(layout.replicas_of_place(place, 0))
                self.norm_groups[ranks] = self.group_of(ranks)
        self.ways = {}
        if layout.is_unequal or layout.copies > 1 or self.arguments.updates:
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
        DOING["pass"] = f"the loss after {DOING['pass']}"
        with self.arguments.trace.timed("stages"), autocast(self.arguments):
            loss = self.task.loss(outputs, target) / (count or self.arguments.micro_batches * self.layout.pipelines)
        PROFILE.extend()  # the last stage's pass ends with it
        return self.update.scale.up(loss)

    def step(self, step):
        """Trains a step; returns the loss where this rank knows it, and what the ranks know of it together."""
        if self.sends_slices:
            return self.sliced_step(step)
        loss = self.gradients(step)
        DOING["pass"] = f"the update of step {step + 1}"
        loaders = [batches.loader for batches in self.batches.values() if batches.loader]
        with PROFILE.span("optimizer"):
            known, ended = self.update.apply(step, loss, any(loader.has_ended for loader in loaders), self.device)
        if ended:  # all begin the next epoch together
            for loader in loaders:
                loader.begin(loader.epoch + 1)
        if self.offload.mode != "none":
            known["offload"] = self.offloaded()
        return loss, known

    def sliced_step(self, step):
        """Trains a step whose slices are stepped by themselves; of all ranks nobody knows anything at one moment."""
        update = self.update
        for group in update.optimizer.param_groups if self.task.lr and update.optimizer else []:
            group["lr"] = self.task.lr(step) * group.get("lr_scale", 1.0)
        known = {"lr": float(update.optimizer.param_groups[0]["lr"]) if update.optimizer else None, "norm": None}
        self.sync.begin(step)
        loss = self.gradients(step)
        BUSY.end_step()
        if loss is not None and not math.isfinite(loss):
            raise NotFinite(f"the loss is not finite in step {step + 1}: stopped")
        if update.scheduler:
            update.scheduler.step()
        for loader in (batches.loader for batches in self.batches.values() if batches.loader):
            end_epoch(loader, self.epoch_steps)
        return loss, known | {"memory": memory_of(self.device)}

    def average_norms(self):
        """Gives the batch norms of replicas and copies the mean of their statistics, where that is asked for."""
        layout = self.layout
        for stage in sorted({held % layout.count for held in self.modules} if self.arguments.batch_norm == "average" else ()):
            copies = [module for held, module in self.modules.items() if held % layout.count == stage]
            group = self.groups.get(tuple(layout.ranks_of_stage(stage, self.shard)))
            average(copies, group, layout.replicas[layout.place(self.rank)[0]] * layout.copies)

    def drain(self):
        """Waits until all parameters are of one moment."""
        if self.sends_slices:
            self.sync.drain()

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
        DOING["pass"] = f"the data of step {step + 1}"
        parts, targets = {}, {}
        for number in (pipeline.number for pipeline in self.pipelines):
            own = self.batches.get(number)
            parts[number], targets[number] = own.at(step, self.device, *self.wants) if own else nothing
        if self.shard_group is not None and step == self.start:
            compare_data(self.shard_group, parts, targets)
        with self.arguments.trace.timed("passes"):
            if self.executor:
                loss = self.executor.step(parts, targets)
            else:
                [pipeline] = self.pipelines
                loss = pipeline.step(parts[pipeline.number], targets[pipeline.number])
        DOING["pass"] = f"the sums of gradients of step {step + 1}"
        with PROFILE.span("collective"):
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
            for module in (module for held, module in self.modules.items() if held % self.layout.count == holder["stage"]):
                parameter = parameter_at(module, holder["name"])
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

    def save(self, step):
        """Begins to write what this rank has of the model and of the optimizer's state, by names in the model."""
        self.drain()
        self.average_norms()
        self.checkpoints.wait()
        about = self.update.about() | {"step": step}
        loaders = [batches.loader for batches in self.batches.values() if batches.loader]
        if loaders:
            about["data"] = {"epoch": loaders[0].epoch, "samples": loaders[0].taken * loaders[0].samples * self.layout.pipelines}
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, about, group=self.checkpoints.group)
        found = [about for about in found if about is not None]
        whole = {key: value for about in reversed(found) for key, value in about.items() if value is not None}
        whole["others"] = {key: value for about in found for key, value in about.get("others", {}).items()}
        state = {key: value for key, value in self.written()}
        self.checkpoints.save(step, {key: copied(value) for key, value in state.items()}, whole)

    def written(self):
        """Yields what this rank writes. Of equal copies on several ranks, and in several stages, one is written."""
        layout = self.layout
        copies, shards = layout.replicas[layout.place(self.rank)[0]] * layout.copies, layout.shards
        groups, group = (self.sync.copies, self.sync.copy) if self.update.is_shared else (1, 0)
        owners = {}
        for about in self.manifest["stages"]:
            for name in about["parameters"] + about["buffers"]:
                owners.setdefault(name, about["stage"])

        def is_own(held, number, tensor):
            replica = self.replica_of(held)
            if tensor in self.cuts:  # each shard has another part
                return number % copies == replica
            return number % (copies * shards) == replica * shards + self.shard

        for held, module in self.modules.items():
            stage, replica = held % layout.count, self.replica_of(held)
            for number, (name, tensor) in enumerate(module.state_dict(keep_vars=True).items()):
                is_first = owners.get(name, stage) == stage
                if not isinstance(tensor, nn.Parameter):
                    # Batch-norm statistics of other replicas are their own.
                    if (is_first or replica) and (tensor in self.cuts or self.shard == 0):
                        yield (f"replica_{replica}.{name}" if replica else f"model.{name}"), self.held(tensor)
                elif is_first and (number % groups == group if self.is_sliced(tensor) else is_own(held, number, tensor)):
                    if (part := self.held(tensor)) is not None:
                        yield f"model.{name}", part
        numbers = {}  # each stage's own, which are the same wherever it is held
        for held, name, key, parameter, value in self.update.tensors():
            stage, number = held % layout.count, numbers.get(held, 0)
            numbers[held] = number + 1
            is_piece = self.update.is_shared and parameter in self.sync.pieces
            if owners.get(name, stage) == stage and (number % groups == group if is_piece else is_own(held, number, parameter)):
                if (part := self.update.held(parameter, key, value)) is not None:
                    yield f"optimizer.{name}.{key}", part

    def replica_of(self, held):
        """Returns the number of what is held here among all copies of its stage."""
        return self.replica * self.layout.copies + held // self.layout.count

    def is_sliced(self, tensor):
        return self.is_fully_shared and tensor in self.sync.unit_of

    def held(self, tensor):
        """Returns what this rank has of a tensor of the model, in place: all of it, a part, or nothing."""
        if self.is_sliced(tensor) and tensor.numel():
            found = self.sync.slice_of(tensor)
            return None if found is None else flat_part(tensor.shape, *found)
        return self.cuts.held(tensor, tensor.detach())

    def begin_with(self, path):
        """Takes the model's weights from a file, or from a folder of checkpoints."""
        weights = Weights(path)
        for module in self.modules.values():
            for name, tensor in module.state_dict(keep_vars=True).items():
                if (target := self.held(tensor)) is not None:
                    weights.fill(name, target)
        self.update.refresh()

    def resume(self, folder):
        source = last_checkpoint(folder)
        if source is None:
            return
        known = tensors_in(source)
        wanted = []
        for held, module in self.modules.items():
            for name, tensor in module.state_dict(keep_vars=True).items():
                own = f"replica_{self.replica_of(held)}.{name}"
                if (target := self.held(tensor)) is not None:
                    wanted.append((own if own in known else f"model.{name}", target))
        for key, target in wanted:
            if key not in known or known[key].size != target.size():
                name, sizes = key.partition(".")[2], list(target.size())
                what = f"it has `{name}` as {list(known[key].size)}, not {sizes}" if key in known else f"it lacks `{name}`"
                sys.exit(f"{source} is no checkpoint of this model: {what}")
        states = self.update.begin_to_load(known)
        read(wanted + [(key, target) for _, key, _, target in states if target is not None], source)
        about = torch.load(source / ABOUT, map_location="cpu", weights_only=True)
        self.start = about["step"]
        self.update.refresh()
        self.update.load(about, states)
        if position := about.get("data"):
            for batches in self.batches.values():
                own = batches.loader.samples * self.layout.pipelines
                batches.loader.begin(position["epoch"], position["samples"] // own)
        if self.rank == 0:
            print(f"resumed after step {self.start}", file=sys.stderr, flush=True)


def read(wanted, source):
    """Fills tensors and parts of tensors from a checkpoint; a key may be wanted in several places."""
    while wanted:
        now = {}
        rest = [pair for pair in wanted if now.setdefault(pair[0], pair[1]) is not pair[1]]
        load_into(now, source)
        wanted = rest


def copied(value):
    """Returns a copy on the host, which training does not change."""
    if isinstance(value, Part):
        return Part(value.size(), [(begin, values.detach().to("cpu", copy=True)) for begin, values in value.boxes])
    return value.detach().to("cpu", copy=True)


def move_buffers(module, device):
    """Moves buffers, and no parameters; one under two names stays one."""
    moved = {}
    for holder in module.modules():
        for name, buffer in holder._buffers.items():
            holder._buffers[name] = moved.setdefault(id(buffer), buffer.to(device))


def seed_step(seed, step, rank):
    torch.manual_seed((seed * 1_000_003 + step) * 4099 + rank)


def write(path, value):
    """Writes a file whole or not at all."""
    beside = path.with_suffix(".part")
    torch.save(value, beside)
    os.replace(beside, path)


