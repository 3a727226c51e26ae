# -- steps without a flush ------------------------------------------------------------------------------------------


# The schedules whose steps follow each other at once, by what is left of their names: PipeDream, PipeDream-2BW, 2BW.
WITHOUT_FLUSH = {"pipedream": "PipeDream", "pipedream2bw": "PipeDream-2BW", "2bw": "PipeDream-2BW"}


def updates_of(arguments):
    """Returns how weights change while micro-batches are on their way, or nothing where steps end with a flush."""
    name = WITHOUT_FLUSH.get(re.sub(r"[^a-z0-9]", "", arguments.schedule.lower()))
    if arguments.vertical_sync and name != "PipeDream":
        reason = "its micro-batches take the same weights in every stage already" if name else "its steps end with a flush"
        sys.exit(f"--vertical-sync does not go with {arguments.schedule}: {reason}")
    if name is None:
        return None
    arguments.schedule = name
    return TWO_VERSIONS if name == "PipeDream-2BW" else VERTICAL_SYNC if arguments.vertical_sync else STASHING


def refuse_without_flush(manifest, arguments):
    """Refuses what does not go with weights that change while micro-batches are on their way, before anything starts."""
    name, count = arguments.schedule, len(manifest["stages"])
    if any(form_of(about, arguments.form) == "torchscript" for about in manifest["stages"]):
        sys.exit(f"archives cannot keep versions of their weights, as {name} does: --form python, or --schedule 1F1B")
    for option, is_given in {
        "--check": arguments.check,
        "--host-trace": arguments.host_trace,
        "--single": arguments.single,
        "--dtype fp16": arguments.dtype == "fp16",
        f"--sharding {arguments.sharding}": arguments.sharding != "none",
        f"--shards {arguments.shards}": arguments.shards > 1,
        f"--clip {arguments.clip}": arguments.clip is not None,
        f"--replicas {arguments.replicas}": len(set(str(arguments.replicas).split(","))) > 1,
    }.items():
        if is_given:
            sys.exit(f"{option} does not go with {name}: --schedule 1F1B")
    for tied in manifest["tied"]:
        stages, names = {holder["stage"] for holder in tied["holders"]}, sorted({f"`{holder['name']}`" for holder in tied["holders"]})
        if len(stages) > 1 and tied["requires_grad"]:
            sys.exit(f"{' and '.join(names)} are one parameter of stages that {name} updates at different times: --schedule 1F1B")
    if name == "PipeDream-2BW" and arguments.micro_batches < count - 1:
        sys.exit(f"{name} with {count} stages takes {count - 1} micro-batches a step or more, not {arguments.micro_batches}")


def order_without_flush(ahead, count, every):
    """Returns a rank's passes, as (is forward, micro-batch, is followed by an update): 1F1B that drains after `count`."""
    order = [(True, number, False) for number in range(min(ahead, count))]
    for number in range(count):
        if number + ahead < count:
            order.append((True, number + ahead, False))
        order.append((False, number, (number + 1) % every == 0))
    return order


class WithoutFlush:
    """Runs steps one after the other without a flush: PipeDream and 2BW.

    PipeDream updates a stage after each micro-batch, 2BW after those of a step. The pipeline drains where something asks for
    weights of one moment: a checkpoint, a validation, the end. What torch's runtime keeps for each micro-batch lies in as many
    slots as can be on their way.
    """

    def __init__(self, run):
        self.run, arguments, layout = run, run.arguments, run.layout
        self.place, _, _ = layout.place(run.rank)
        self.ranks, self.per_step = len(layout.stages_of), arguments.micro_batches
        self.is_each = arguments.updates != TWO_VERSIONS  # an update after each micro-batch
        self.every = 1 if self.is_each else self.per_step
        [self.pipeline], [module] = run.pipelines, run.modules.values()
        self.versions = Versions(module, version_rule(arguments.updates, self.ranks, self.place, self.per_step))
        replicas = tuple(sorted(layout.replicas_of_place(self.place, run.shard)))
        self.group = run.groups[replicas] if len(replicas) > 1 else None
        self.batches = run.batches.get(self.pipeline.number)
        self.slots, self.stage = self.ranks + 2, None
        self.most, self.staleness = 1, 0
        if run.task.clip:
            sys.exit(f"`clip` of the task does not go with {arguments.schedule}, whose stages have no gradients of one moment: --schedule 1F1B")
        self.epoch_steps = agreed_length(run, self.batches, f"{arguments.schedule} needs: --schedule 1F1B")

    def steps(self, first, last, tell):
        """Trains the steps from `first` to before `last`, and drains; `tell` is told what is known of each."""
        run, count = self.run, (last - first) * self.per_step
        self.first, self.tell, self.losses, self.total = first, tell, {}, 0.0
        self.sent = {True: {}, False: {}}
        self.versions.begin(count)
        order = order_without_flush(self.ranks - 1 - self.place, count, self.every)
        awaited = {}
        run.update.zero_grad()
        for at, (is_forward, number, has_update) in enumerate(order):
            if self.stage is None:
                self.take(first)
                self.make_stage()
            for near in (at, at + 1):  # the next message arrives while this one is worked on
                if near < len(order) and near not in awaited:
                    awaited[near] = self.receive(*order[near][:2])
            for work in awaited.pop(at):
                work.wait()
            if is_forward:
                self.forward(number)
            else:
                self.backward(number, has_update)
        for messages in self.sent.values():
            for number in list(messages):
                self.wait_sent(messages, number)
        self.most, self.staleness = max(self.most, self.versions.most), max(self.staleness, self.versions.staleness)

    def make_stage(self):
        [self.stage] = self.pipeline.make_stages()
        self.stage.has_backward = True
        self.stage._prepare_forward_infra(self.slots, (), {})
        self.stage._prepare_backward_infra(self.slots)
        self.stage.clear_runtime_states()

    def take(self, step):
        """Has the data of a step ready: passes ask for those of one step after the other."""
        run, nothing = self.run, ([{}] * self.per_step, [None] * self.per_step)
        parts = self.batches.at(step, run.device, *run.wants) if self.batches else nothing
        self.pipeline.take(*parts)
        loader = self.batches.loader if self.batches else None
        if loader and loader.step == step:
            end_epoch(loader, self.epoch_steps)

    def receive(self, is_forward, number):
        operations = self.stage.get_fwd_recv_ops if is_forward else self.stage.get_bwd_recv_ops
        return self.pipeline.start(operations(number % self.slots), is_forward)

    def wait_sent(self, messages, number):
        for work in messages.pop(number, ()):
            work.wait()

    def forward(self, number):
        run, slot, (step, chunk) = self.run, number % self.slots, divmod(number, self.per_step)
        if chunk == 0:
            seed_step(run.arguments.seed, self.first + step, run.rank)
            self.take(self.first + step)
        self.stage.numbers[slot] = chunk
        with self.versions.forward(number):
            arguments, keywords = self.pipeline.arguments[chunk], self.pipeline.keywords[chunk]
            outputs = self.stage.forward_one_chunk(slot, arguments, keywords, False)
        if self.stage.is_last:
            count = run.layout.pipelines * (1 if self.is_each else self.per_step)
            self.losses[number] = run.scaled_loss(outputs, self.pipeline.targets[chunk], count)
        self.sent[True][number] = self.pipeline.start(self.stage.get_fwd_send_ops(slot), True)

    def backward(self, number, has_update):
        slot, loss, is_last = number % self.slots, self.losses.pop(number, None), self.stage.is_last
        # Whoever sent this gradient has had the values, and whoever sent later values the gradient of so long ago.
        self.wait_sent(self.sent[True], number)
        self.wait_sent(self.sent[False], number - self.slots)
        step, chunk = divmod(number, self.per_step)
        if loss is not None:
            value = float(loss.detach())
            if not math.isfinite(value):
                raise NotFinite(f"the loss is not finite in step {self.first + step + 1}: stopped before the update")
            self.total += value / (self.per_step if self.is_each else 1)
        with self.versions.backward(number):
            self.stage.backward_one_chunk(slot, loss=loss)
        del loss  # and with it the pass's version of the weights
        self.sent[False][number] = self.pipeline.start(self.stage.get_bwd_send_ops(slot), False)
        if has_update:
            self.update(self.first + step, chunk + 1 == self.per_step)
        if chunk + 1 == self.per_step:
            self.tell(self.first + step, self.total if is_last else None, self.known())
            self.total = 0.0

    def update(self, step, ends_step):
        """Steps this stage's optimizer by the gradients of a micro-batch, or of a step, of all its replicas."""
        run, update = self.run, self.run.update
        if self.group:
            sum_over(self.group, [parameter for _, _, parameter in update.named])
        found = [(name, parameter.grad) for _, name, parameter in update.named if parameter.grad is not None]
        norms = torch.stack(torch._foreach_norm([gradient for _, gradient in found])) if found else torch.zeros(0)
        if not bool(norms.isfinite().all()):
            name = next(name for (name, _), norm in zip(found, norms) if not math.isfinite(norm))
            raise NotFinite(f"the gradient of `{name}` is not finite in step {step + 1}: stopped before the update")
        with self.versions.update():
            if update.optimizer:
                for group in update.optimizer.param_groups if run.task.lr else []:
                    group["lr"] = run.task.lr(step) * group.get("lr_scale", 1.0)
                update.step()
        self.rate = float(update.optimizer.param_groups[0]["lr"]) if update.optimizer else None
        update.zero_grad()
        if ends_step and update.scheduler:
            update.scheduler.step()

    def known(self):
        """Returns what this rank knows of its last step; of all ranks nobody knows anything at one moment."""
        BUSY.end_step()
        return {"lr": self.rate, "norm": None, "memory": memory_of(self.run.device)}

    def told(self):
        """Says which versions the stages of the first pipeline held, and how stale their gradients were; all ranks call it."""
        run = self.run
        found = torch.zeros(2 * self.ranks, dtype=torch.float64, device=run.device)
        found[self.place], found[self.ranks + self.place] = self.most, self.staleness
        dist.all_reduce(found, dist.ReduceOp.MAX)
        versions, missed = ([int(value) for value in found.tolist()[half * self.ranks :][: self.ranks]] for half in (0, 1))
        text = f"{run.arguments.schedule} ({run.arguments.updates}): stages held {listed(versions)} versions of their weights"
        return f"{text}, gradients had missed {listed(missed)} updates"


def agreed_length(run, batches, needs):
    """Returns the batches of an epoch: those of the shortest loader. No step of all ranks could agree on them later."""
    lengths = [math.inf]
    if batches and batches.loader:
        try:
            lengths.append(len(batches.loader.iterable))
        except TypeError:
            sys.exit(f"loader() of the task returns something without a length, which {needs}")
    found = torch.tensor([min(lengths)], dtype=torch.float64, device=run.device)
    dist.all_reduce(found, dist.ReduceOp.MIN)
    return float(found)


def end_epoch(loader, epoch_steps):
    """Begins the next epoch where this one has had as many batches as was agreed."""
    if loader.taken >= epoch_steps:
        loader.begin(loader.epoch + 1)
    elif loader.has_ended:
        sys.exit(f"loader() of the task gave {loader.taken} batches, its length says {epoch_steps:.0f}")


def listed(numbers):
    return ", ".join(map(str, numbers))


def sum_over(group, parameters):
    """Sums gradients over replicas, which all have the same parameters."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    gradients = [parameter.grad for parameter in parameters]
    for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
        alike = [gradient for gradient in gradients if gradient.dtype == dtype]
        flat = torch.cat([gradient.reshape(-1) for gradient in alike])
        dist.all_reduce(flat, group=group)
        for gradient, part in zip(alike, flat.split([gradient.numel() for gradient in alike])):
            gradient.copy_(part.view_as(gradient))
