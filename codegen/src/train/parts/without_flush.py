"""Steps without a flush between them: PipeDream and 2BW."""

import math
import re
import sys

import torch
import torch.distributed as dist

from train_parts.executor import listed
from train_parts.layout import refuse
from train_parts.profile import PROFILE
from train_parts.stages import form_of, seed_step
from train_parts.stragglers import BUSY
from train_parts.update import NotFinite, memory_of
from train_parts.versions import STASHING, TWO_VERSIONS, VERTICAL_SYNC, Versions, rounds_of, version_rule


# Schedules without a flush, by their normalised names: PipeDream, PipeDream-2BW, 2BW.
WITHOUT_FLUSH = {"pipedream": "PipeDream", "pipedream2bw": "PipeDream-2BW", "2bw": "PipeDream-2BW"}


def updates_of(arguments):
    """Returns how weights change while micro-batches are in flight, or None if steps end with a flush."""
    name = WITHOUT_FLUSH.get(re.sub(r"[^a-z0-9]", "", arguments.schedule.lower()))
    if arguments.vertical_sync and name != "PipeDream":
        reason = "its micro-batches already use the same weights in every stage" if name else "its steps end with a flush"
        sys.exit(f"--vertical-sync cannot be combined with {arguments.schedule}: {reason}")
    if name is None:
        return None
    arguments.schedule = name
    return TWO_VERSIONS if name == "PipeDream-2BW" else VERTICAL_SYNC if arguments.vertical_sync else STASHING


def refuse_without_flush(manifest, arguments):
    """Refuses options that schedules without a flush do not support, before anything starts."""
    name, count = arguments.schedule, len(manifest["stages"])
    if any(form_of(about, arguments.form) == "torchscript" for about in manifest["stages"]):
        sys.exit(f"archives cannot keep the weight versions that {name} needs: use --form python, or --schedule 1F1B")
    given = {
        "--check": arguments.check,
        "--host-trace": arguments.host_trace,
        "--single": arguments.single,
        "--dtype fp16": arguments.dtype == "fp16",
        f"--sharding {arguments.sharding}": arguments.sharding != "none",
        f"--shards {arguments.shards}": arguments.shards > 1,
        f"--clip {arguments.clip}": arguments.clip is not None,
    }
    refuse(given, name, "--schedule 1F1B")
    replicas = [int(part) for part in str(arguments.replicas).split(",")]
    replicas = replicas * count if len(replicas) == 1 else replicas
    if len(set(replicas)) > 1 and arguments.updates == VERTICAL_SYNC:
        sys.exit(f"--vertical-sync cannot be combined with --replicas {arguments.replicas}, under which stages have different updates: use one number, or omit it")
    for tied in manifest["tied"]:
        stages, names = {holder["stage"] for holder in tied["holders"]}, sorted({f"`{holder['name']}`" for holder in tied["holders"]})
        if len(stages) > 1 and tied["requires_grad"]:
            sys.exit(f"{' and '.join(names)} are one parameter of stages that {name} updates at different times: use --schedule 1F1B")
    # All micro-batches in flight use weights of this step or of the previous one.
    pipelines = math.lcm(*replicas) if min(replicas) > 0 else 1
    most = max(own * (rounds - 1) for own, rounds in zip(replicas, rounds_of(replicas))) if len(replicas) == count else 0
    least = -(-most // pipelines)
    if name == "PipeDream-2BW" and arguments.micro_batches < least:
        sys.exit(f"{name} with {count} stages needs at least {least} micro-batches per step, not {arguments.micro_batches}")


def order_without_flush(ahead, count, every):
    """Returns a rank's passes, as (is forward, micro-batch, is followed by an update): 1F1B that drains after
    `count`."""
    order = [(True, number, False) for number in range(min(ahead, count))]
    for number in range(count):
        if number + ahead < count:
            order.append((True, number + ahead, False))
        order.append((False, number, (number + 1) % every == 0))
    return order


class WithoutFlush:
    """Runs steps without a flush between them: PipeDream and 2BW.

    PipeDream updates a stage after one micro-batch of each of its replicas, 2BW after those of a step. The pipeline
    drains when consistent weights are needed: for a checkpoint, a validation, the end. State that torch's runtime keeps
    per micro-batch is in slots, one per micro-batch that can be in flight.

    Micro-batches are dealt to the replicas of each stage in turn, so a replica of a stage with few is in several
    pipelines. Its passes are counted in its own order. If stages have unequal replicas, an update is the mean over the
    stage's own micro-batches.
    """

    def __init__(self, run):
        self.run, arguments, layout = run, run.arguments, run.layout
        self.place, self.replica, _ = layout.place(run.rank)
        self.ranks, self.count = len(layout.stages_of), layout.replicas[self.place]
        self.total = arguments.micro_batches * layout.pipelines  # micro-batches per step, over all replicas
        self.per_step = self.total // self.count
        self.is_each = arguments.updates != TWO_VERSIONS  # an update after each micro-batch
        self.every = 1 if self.is_each else self.per_step
        self.pipelines, [module] = {pipeline.number: pipeline for pipeline in run.pipelines}, run.modules.values()
        rule = version_rule(arguments.updates, layout.replicas, self.place, self.replica, self.total)
        self.versions, self.ahead = Versions(module, rule), rounds_of(layout.replicas)[self.place] - 1
        replicas = tuple(sorted(layout.replicas_of_place(self.place, run.shard)))
        self.group = run.groups[replicas] if len(replicas) > 1 else None
        self.slots, self.stages = self.ahead + 3, {}
        self.most, self.staleness = 1, 0
        if run.task.clip:
            sys.exit(f"`clip` of the task cannot be combined with {arguments.schedule}, whose stages never have all gradients at one time: use --schedule 1F1B")
        self.epoch_steps = agreed_length(run, run.batches.values(), f"{arguments.schedule} needs: --schedule 1F1B")

    def steps(self, first, last, tell):
        """Trains the steps from `first` to before `last`, and drains; `tell` is called with the statistics of each."""
        run, count = self.run, (last - first) * self.per_step
        self.first, self.tell, self.losses, self.loss = first, tell, {}, 0.0
        self.sent = {True: {}, False: {}}
        self.versions.begin(count)
        order = order_without_flush(self.ahead, count, self.every)
        awaited = {}
        run.update.zero_grad()
        for at, (is_forward, number, has_update) in enumerate(order):
            if not self.stages:
                self.take(first)
                self.stages = {number: self.made(pipeline) for number, pipeline in self.pipelines.items()}
            for near in (at, at + 1):  # the next message arrives during this pass
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

    def made(self, pipeline):
        [stage] = pipeline.make_stages()
        stage.has_backward = True
        stage._prepare_forward_infra(self.slots, (), {})
        stage._prepare_backward_infra(self.slots)
        stage.clear_runtime_states()
        return stage

    def at(self, number):
        """Returns the pipeline of a micro-batch of this rank, its stage there, and the micro-batch's number in it."""
        count, pipeline = divmod(number * self.count + self.replica, self.run.layout.pipelines)
        return self.pipelines[pipeline], self.stages[pipeline], count

    def take(self, step):
        """Loads the data of a step: passes need those of one step after the other."""
        run, each = self.run, self.run.arguments.micro_batches
        for number, pipeline in self.pipelines.items():
            batches = run.batches.get(number)
            pipeline.take(*(batches.at(step, run.device, *run.wants) if batches else ([{}] * each, [None] * each)))
            if batches and batches.loader and batches.loader.step == step:
                end_epoch(batches.loader, self.epoch_steps)

    def receive(self, is_forward, number):
        pipeline, stage, count = self.at(number)
        operations = stage.get_fwd_recv_ops if is_forward else stage.get_bwd_recv_ops
        return pipeline.start(operations(count % self.slots), is_forward)

    def wait_sent(self, messages, number):
        for work in messages.pop(number, ()):
            work.wait()

    def forward(self, number):
        run, (step, own) = self.run, divmod(number, self.per_step)
        if own == 0:
            seed_step(run.arguments.seed, self.first + step, run.rank)
            self.take(self.first + step)
        pipeline, stage, count = self.at(number)
        slot, chunk = count % self.slots, count % run.arguments.micro_batches
        stage.numbers[slot] = chunk
        with self.versions.forward(number):
            outputs = stage.forward_one_chunk(slot, pipeline.arguments[chunk], pipeline.keywords[chunk], False)
        if stage.is_last:
            self.losses[number] = run.scaled_loss(outputs, pipeline.targets[chunk], self.parts())
        self.sent[True][number] = pipeline.start(stage.get_fwd_send_ops(slot), True)

    def parts(self):
        """Returns the number of micro-batches that an update averages over, if it is the same in all stages."""
        return self.total if not self.is_each else 1 if self.run.layout.is_unequal else self.run.layout.pipelines

    def backward(self, number, has_update):
        pipeline, stage, count = self.at(number)
        slot, loss, is_last = count % self.slots, self.losses.pop(number, None), stage.is_last
        # The sender of this gradient has received the values, and the sender of later values the earlier gradient.
        self.wait_sent(self.sent[True], number)
        self.wait_sent(self.sent[False], number - self.slots * self.run.layout.pipelines // self.count)
        step, own = divmod(number, self.per_step)
        if loss is not None:
            value = float(loss.detach())
            if not math.isfinite(value):
                raise NotFinite(f"the loss is not finite in step {self.first + step + 1}: stopped before the update")
            self.loss += value * self.parts() / self.total
        with self.versions.backward(number):
            stage.backward_one_chunk(slot, loss=loss)
        del loss  # and with it the pass's version of the weights
        self.sent[False][number] = pipeline.start(stage.get_bwd_send_ops(slot), False)
        if has_update:
            self.update(self.first + step, own + 1 == self.per_step)
        if own + 1 == self.per_step:
            self.tell(self.first + step, self.loss if is_last else None, self.known())
            self.loss = 0.0

    def update(self, step, ends_step):
        """Runs this stage's optimizer on the gradients of a micro-batch, or of a step, of all its replicas."""
        run, update = self.run, self.run.update
        if self.group:
            sum_over(self.group, [parameter for _, _, parameter in update.named])
        gradients = [parameter.grad for _, _, parameter in update.named if parameter.grad is not None]
        if self.is_each and run.layout.is_unequal and self.count > 1 and gradients:
            torch._foreach_div_(gradients, self.count)
        found = [(name, parameter.grad) for _, name, parameter in update.named if parameter.grad is not None]
        norms = torch.stack(torch._foreach_norm([gradient for _, gradient in found])) if found else torch.zeros(0)
        if not bool(norms.isfinite().all()):
            name = next(name for (name, _), norm in zip(found, norms) if not math.isfinite(norm))
            raise NotFinite(f"the gradient of `{name}` is not finite in step {step + 1}: stopped before the update")
        with self.versions.update(), PROFILE.span("optimizer"):
            if update.optimizer:
                for group in update.optimizer.param_groups if run.task.lr else []:
                    group["lr"] = run.task.rate(step) * group.get("lr_scale", 1.0)
                update.step()
        self.rate = float(update.optimizer.param_groups[0]["lr"]) if update.optimizer else None
        update.zero_grad()
        if ends_step and update.scheduler:
            update.scheduler.step()

    def known(self):
        """Returns this rank's statistics of its last step; there are no statistics of all ranks at one time."""
        BUSY.end_step()
        return {"lr": self.rate, "norm": None, "memory": memory_of(self.run.device)}

    def told(self):
        """Reports the versions that the stages of the first pipeline held, and the staleness of their gradients; all
        ranks call it."""
        run = self.run
        found = torch.zeros(2 * self.ranks, dtype=torch.float64, device=run.device)
        found[self.place], found[self.ranks + self.place] = self.most, self.staleness
        dist.all_reduce(found, dist.ReduceOp.MAX)
        versions, missed = ([int(value) for value in found.tolist()[half * self.ranks :][: self.ranks]] for half in (0, 1))
        text = f"{run.arguments.schedule} ({run.arguments.updates}): stages held {listed(versions)} versions of their weights"
        return f"{text}, gradients were stale by {listed(missed)} updates"


def agreed_length(run, batches, needs):
    """Returns the batches of an epoch: those of the shortest loader. The ranks could not agree on them later."""
    lengths = [math.inf]
    for loader in (each.loader for each in batches if each.loader):
        try:
            lengths.append(len(loader.iterable))
        except TypeError:
            sys.exit(f"loader() of the task returns something without a length, which {needs}")
    found = torch.tensor([min(lengths)], dtype=torch.float64, device=run.device)
    dist.all_reduce(found, dist.ReduceOp.MIN)
    return float(found)


def end_epoch(loader, epoch_steps):
    """Starts the next epoch when this one has had the agreed number of batches."""
    if loader.taken >= epoch_steps:
        loader.begin(loader.epoch + 1)
    elif loader.has_ended:
        sys.exit(f"loader() of the task gave {loader.taken} batches, but its length is {epoch_steps:.0f}")


def sum_over(group, parameters):
    """Sums gradients over replicas, which all have the same parameters; one that no replica has stays away."""
    for dtype in dict.fromkeys(parameter.dtype for parameter in parameters):
        alike = [parameter for parameter in parameters if parameter.dtype == dtype]
        gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in alike]
        present = gradients[0].new_tensor([each.grad is not None for each in alike])
        flat = torch.cat([*(gradient.reshape(-1) for gradient in gradients), present])
        dist.all_reduce(flat, group=group)
        *parts, present = flat.split([gradient.numel() for gradient in gradients] + [len(alike)])
        for parameter, gradient, part, is_there in zip(alike, gradients, parts, present.tolist()):
            parameter.grad = gradient.copy_(part.view_as(gradient)) if is_there else None
