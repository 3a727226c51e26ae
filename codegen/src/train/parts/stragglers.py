"""Slow ranks: the seconds of each rank in its own passes, without waits, compared with ranks of the same stages."""

import statistics
import time
from contextlib import contextmanager

import torch

WARM_UP = 2  # steps, which allocate memory and open connections
WINDOW = 10  # steps that are judged together
MOST = 0.8  # share of them in which a slow rank must be slow
KEPT = 50  # steps in the final statistics


class Busy:
    """Seconds of this rank in its passes: of the computing stream on a GPU, of the clock on a CPU."""

    def __init__(self):
        self.on_gpu, self.seconds, self.waits, self.events = False, 0.0, 0.0, []
        self.count, self.steps = 0, []  # steps, and the seconds of the last ones

    @contextmanager
    def passing(self):
        if self.on_gpu:
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begun.record()
            yield
            ended.record()
            self.events.append((begun, ended))
            return
        begun, waited = time.perf_counter(), self.waits
        yield
        self.seconds += time.perf_counter() - begun - (self.waits - waited)

    @contextmanager
    def waiting(self):
        """Marks the time in which a pass waits for other ranks."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.waits += time.perf_counter() - begun

    def end_step(self):
        """Returns the seconds of the step that ends here; on a GPU those of its finished passes."""
        while self.events and self.events[0][1].query():
            begun, ended = self.events.pop(0)
            self.seconds += begun.elapsed_time(ended) / 1e3
        seconds, self.seconds, self.count = self.seconds, 0.0, self.count + 1
        if self.count > WARM_UP:
            self.steps = [*self.steps[1 - KEPT :], seconds]
        return seconds

    def begin_step(self):
        """Drops passes that were not part of a step."""
        self.seconds, self.events = 0.0, []


BUSY = Busy()


class Stragglers:
    """Finds slow ranks, from the seconds of all ranks in each step.

    A rank is compared with the others that hold the same stages, or, without others, with its own fastest steps. It is
    slow if it takes `factor` times as long in most of the steps that are judged together, and in its fastest one: other
    load on the machine makes any rank slow occasionally.
    """

    def __init__(self, peers, factor):
        self.peers, self.factor, self.count, self.steps, self.best = peers, factor, 0, [], {}

    def take(self, seconds):
        """Takes a step; returns slow ranks, once per window: (seconds, expected seconds, whether these are of
        others)."""
        self.steps, self.count = [*self.steps[1 - WINDOW :], seconds], self.count + 1
        is_window = self.count > WARM_UP and (self.count - WARM_UP) % WINDOW == 0
        return self.found(self.steps) if is_window else {}

    def found(self, steps):
        slow = {}
        for rank, peers in enumerate(self.peers):
            own = [step[rank] for step in steps]
            others = [other for other in peers if other != rank]
            usual = [statistics.median(step[other] for other in others) if others else self.best.get(rank, 0.0) for step in steps]
            is_slow = min(own) > self.factor * min(usual) and sum(a > self.factor * b > 0 for a, b in zip(own, usual)) >= MOST * len(steps)
            if is_slow:
                slow[rank] = (statistics.median(own), statistics.median(usual), bool(others))
            elif not others:
                self.best[rank] = min(statistics.median(own), self.best.get(rank, float("inf")))
        return slow


def about_slow(slow):
    """Describes the slow ranks."""
    text = []
    for rank, (own, usual, has_others) in slow.items():
        whom = "the others of its stage" if has_others else "it took before"
        text.append(f"rank {rank} is slow: {1e3 * own:.3g} ms per step in its passes, {own / usual:.2g} times {'those of ' if has_others else 'what '}{whom}")
    return "; ".join(text)
