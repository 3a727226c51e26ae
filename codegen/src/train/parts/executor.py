"""Runs lists of passes that torch's schedules do not have: unequal replicas, two copies of the model."""

import torch
import torch.distributed as dist


def deal(replicas, micro_batches, forward_first):
    """Returns the order of passes for each position and each of its replicas, as (is forward, micro-batch).

    Replica r of n takes the micro-batches r, r + n, r + 2n …, as in PipeDream. Each is ahead of the next position by
    one of its own forward passes, as in 1F1B; with `forward_first` all forward passes come before the first backward
    pass.
    """
    ahead = [1]
    for place in range(len(replicas) - 2, -1, -1):
        ahead.insert(0, -(-ahead[0] * replicas[place + 1] // replicas[place]) + 1)
    orders = []
    for count, lead in zip(replicas, ahead):
        orders.append([])
        for replica in range(count):
            own = range(replica, micro_batches, count)
            lead_here = len(own) if forward_first else min(lead, len(own))
            order = [(True, number) for number in own[:lead_here]]
            for index, number in enumerate(own):
                order.append((False, number))
                order.extend((True, later) for later in own[index + lead_here : index + lead_here + 1])
            orders[-1].append(order)
    return orders


class Executor:
    """Runs this rank's list of passes, as (letter, pipeline, micro-batch), in all its pipelines.

    For stages with unequal replicas, which run in parallel, and for two copies of the model in opposite directions; an
    order without a cycle needs nothing else, since sends never block. State that torch's runtime keeps per micro-batch
    is in slots: one per pass in flight, and one for a message received ahead.
    """

    def __init__(self, run):
        self.run, self.stages = run, {}
        arguments, layout = run.arguments, run.layout
        place, replica, _ = layout.place(run.rank)
        if layout.copies > 1:
            first = replica * layout.copies
            self.order = [(letter, first + held // layout.count, number) for letter, held, number in arguments.passes[place]]
        else:
            total = arguments.micro_batches * layout.pipelines
            dealt = deal(layout.replicas, total, arguments.schedule.lower() == "gpipe")[place][replica]
            passes = [("F" if is_forward else "B", *divmod(number, layout.pipelines)) for is_forward, number in dealt]
            self.order = [(letter, pipeline, chunk) for letter, chunk, pipeline in passes]
        self.slots, self.counts = slots_of(self.order)
        self.ends = {pipeline: at for at, (_, pipeline, _) in enumerate(self.order)}  # the last pass of each pipeline on this rank
        self.in_flight, self.most = 0, 0

    def step(self, parts, targets):
        run = self.run
        for pipeline in run.pipelines:
            number = pipeline.number
            pipeline.take(parts[number], targets[number])
            if number not in self.stages:
                [stage] = pipeline.make_stages()
                stage.has_backward = True
                stage._prepare_forward_infra(self.counts[number], (), {})
                stage._prepare_backward_infra(self.counts[number])
                self.stages[number] = (pipeline, stage)
            self.stages[number][1].clear_runtime_states()
        awaited, self.sent, self.losses = {}, {}, {}
        for at in range(len(self.order)):
            for near in (at, at + 1):  # the next message arrives during this pass
                if near < len(self.order) and near not in awaited:
                    awaited[near] = self.receive(*self.order[near])
            for work in awaited.pop(at):
                work.wait()
            self.work(*self.order[at])
            if run.layout.copies > 1 and at == self.ends[self.order[at][1]]:
                run.sync.passed(self.stages[self.order[at][1]][1].stage_index)
        for works in self.sent.values():
            for work in works:
                work.wait()
        return sum(self.losses.values()) if self.losses else None

    def receive(self, letter, number, chunk):
        pipeline, stage = self.stages[number]
        slot, is_forward = self.slots[number, chunk], letter == "F"
        operations = [] if letter == "W" else stage.get_fwd_recv_ops(slot) if is_forward else stage.get_bwd_recv_ops(slot)
        return pipeline.start(operations, is_forward)

    def work(self, letter, number, chunk):
        pipeline, stage = self.stages[number]
        slot, place = self.slots[number, chunk], (number, chunk)
        stage.numbers[slot] = chunk
        if letter == "F":
            outputs = stage.forward_one_chunk(slot, pipeline.arguments[chunk], pipeline.keywords[chunk], False)
            if stage.is_last:
                self.losses[place] = self.run.scaled_loss(outputs, pipeline.targets[chunk])
            self.in_flight += 1
            self.most = max(self.most, self.in_flight)
            self.sent["F", *place] = pipeline.start(stage.get_fwd_send_ops(slot), True)
            return
        if letter != "W":
            for work in self.sent.pop(("F", *place)):  # the sender of this gradient has received the values
                work.wait()
            loss = self.losses.get(place)
            stage.backward_one_chunk(slot, loss=loss, full_backward=letter == "B")
            if loss is not None:
                self.losses[place] = float(loss.detach())
            self.sent["B", *place] = pipeline.start(stage.get_bwd_send_ops(slot), False)
        else:
            stage.backward_weight_one_chunk(slot)
        self.in_flight -= letter != "I"

    def told(self):
        """Reports the most passes in flight on the ranks of the first pipeline; all ranks call this."""
        run = self.run
        found = torch.zeros(run.layout.world, dtype=torch.float64, device=run.device)
        found[run.rank] = self.most
        dist.all_reduce(found)
        most = listed(int(found[rank]) for rank in run.layout.members(0, run.shard))
        return f"two copies of the model in opposite directions, {run.arguments.micro_batches} micro-batches each; ranks had {most} passes in flight"


def slots_of(order):
    """Returns the slot of each micro-batch of a pipeline, and the number of slots.

    A message is received one pass ahead, so a slot can be reused at the earliest by the second pass after the one that
    frees it.
    """
    slots, counts, free, freed = {}, {}, {}, []
    for at, (letter, pipeline, number) in enumerate(order):
        while freed and freed[0][0] < at - 1:
            _, of, slot = freed.pop(0)
            free.setdefault(of, []).append(slot)
        if letter == "F":
            if not free.get(pipeline):
                free.setdefault(pipeline, []).append(counts.get(pipeline, 0))
                counts[pipeline] = counts.get(pipeline, 0) + 1
            slots[pipeline, number] = free[pipeline].pop()
        elif letter != "I":
            freed.append((at, pipeline, slots[pipeline, number]))
    return slots, counts


def listed(numbers):
    return ", ".join(map(str, numbers))
