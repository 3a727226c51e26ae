# -- unequal replicas -----------------------------------------------------------------------------------------------


def deal(replicas, micro_batches, forward_first):
    """Returns for each place and each of its replicas the order of its passes, as (is forward, micro-batch).

    Replica r of n takes the micro-batches r, r + n, r + 2n …, as in PipeDream. Each goes ahead of the next place by one
    forward pass of its own, as in 1F1B; with `forward_first` all forward passes come before the first backward pass.
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


class Dealt:
    """The pipelines of unequal replicas, run as one: replicas of a stage work side by side."""

    def __init__(self, run):
        self.run, self.stages = run, {}
        arguments, layout = run.arguments, run.layout
        total = arguments.micro_batches * layout.pipelines
        place, replica, _ = layout.place(run.rank)
        self.order = deal(layout.replicas, total, arguments.schedule.lower() == "gpipe")[place][replica]

    def step(self, parts, targets):
        run = self.run
        for pipeline in run.pipelines:
            number = pipeline.number
            pipeline.take(parts[number], targets[number])
            if number not in self.stages:
                [stage] = pipeline.make_stages()
                stage.has_backward = True
                stage._prepare_forward_infra(run.arguments.micro_batches, (), {})
                stage._prepare_backward_infra(run.arguments.micro_batches)
                self.stages[number] = stage
            self.stages[number].clear_runtime_states()
        awaited, sent, losses = {}, [], {}
        for at in range(len(self.order)):
            for near in (at, at + 1):  # the next message arrives while this one is worked on
                if near < len(self.order) and near not in awaited:
                    awaited[near] = self.receive(*self.order[near])
            for work in awaited[at]:
                work.wait()
            sent += self.work(*self.order[at], losses)
        for work in sent:
            work.wait()
        return sum(losses.values()) if losses else None

    def pipeline_of(self, micro_batch):
        """Returns the pipeline of a micro-batch, its stage here, and the micro-batch's number in the pipeline."""
        chunk, number = divmod(micro_batch, self.run.layout.pipelines)
        pipeline = next(pipeline for pipeline in self.run.pipelines if pipeline.number == number)
        return pipeline, self.stages[number], chunk

    def receive(self, is_forward, micro_batch):
        pipeline, stage, chunk = self.pipeline_of(micro_batch)
        operations = stage.get_fwd_recv_ops(chunk) if is_forward else stage.get_bwd_recv_ops(chunk)
        return self.start(operations, pipeline, is_forward)

    def work(self, is_forward, micro_batch, losses):
        pipeline, stage, chunk = self.pipeline_of(micro_batch)
        if is_forward:
            outputs = stage.forward_one_chunk(chunk, pipeline.arguments[chunk], pipeline.keywords[chunk], False)
            if stage.is_last:
                losses[micro_batch] = self.run.scaled_loss(outputs, pipeline.targets[chunk])
            return self.start(stage.get_fwd_send_ops(chunk), pipeline, True)
        loss = losses.get(micro_batch)
        stage.backward_one_chunk(chunk, loss=loss)
        if loss is not None:
            losses[micro_batch] = float(loss.detach())
        return self.start(stage.get_bwd_send_ops(chunk), pipeline, False)

    def start(self, operations, pipeline, is_forward):
        # A group for each direction: messages of one never wait for those of the other.
        group = self.run.ways[tuple(pipeline.ranks)][0 if is_forward else 1]
        moved = [dist.P2POp(operation.op, operation.tensor, operation.peer, group) for operation in operations]
        return dist.batch_isend_irecv(moved) if moved else []


