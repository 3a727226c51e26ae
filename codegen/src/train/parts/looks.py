"""Which outputs a loss looks at, where replicas send each other messages in backward passes: all must send as many."""

import sys

import torch
import torch.distributed as dist


class Looks:
    """Compares micro-batches, and replicas, by the outputs from which the loss was computed.

    A backward pass comes to no block from which only other outputs follow. Under ZeRO 2 and 3, and with batch norms over all
    replicas, a replica would then wait for messages that another one does not send, or take one for another.
    """

    def __init__(self, group, device, how):
        self.group, self.device, self.how, self.known = group, device, how, None

    def compare(self, loss, outputs):
        """Exits if a loss looks at other outputs than the first one; `outputs` are their places in the graph, from before."""
        found = torch.tensor([float(place in reached(loss, outputs)) for place in outputs])
        if self.known is None:
            self.known = most = found.to(self.device)
            if self.group is not None:
                most, least = found.to(self.device), -found.to(self.device)
                dist.all_reduce(most, dist.ReduceOp.MAX, group=self.group)
                dist.all_reduce(least, dist.ReduceOp.MAX, group=self.group)
                self.refuse(most, -least, "a replica")
            self.known = found
        self.refuse(self.known, found, "a micro-batch")

    def refuse(self, one, other, where):
        if differs := (one != other).nonzero().flatten().tolist():
            sys.exit(
                f"loss() of the task uses outputs[{differs[0]}] in one micro-batch and not in another, which {self.how} does not support, as {where} then has "
                f"other gradients to send: add 0 * outputs[{differs[0]}].sum() where it is not used, or leave {self.how} out"
            )


def places_of(outputs):
    """Returns where outputs stand in the graph."""
    return [(output.grad_fn, output.output_nr) for output in outputs]


def reached(loss, places):
    """Returns those of some places in the graph to which the backward pass of a loss comes directly."""
    ends, found, seen = set(places), set(), set()
    left = [(loss.grad_fn, loss.output_nr)]
    while left:
        place = left.pop()
        if place in ends:
            found.add(place)
        elif place[0] is not None and place[0] not in seen:
            seen.add(place[0])
            left += place[0].next_functions
    return found
