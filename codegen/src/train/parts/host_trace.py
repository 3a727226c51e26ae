"""Host time of the script itself, in addition to the stages: CPU seconds of a rank's thread, without waits."""

import time
from contextlib import contextmanager

from train_parts.deferred import DEFERRAL
from train_parts.stragglers import BUSY


class HostTrace:
    """Sums CPU seconds of a rank by activity: a step, the schedule's passes in it, and the stages' own work in
    these.

    Where backward passes are split, every second step computes weight gradients in the first half, as whole backward
    passes do: the difference of the stages' own work is what halves cost.
    """

    WARM_UP = 2  # steps, which allocate memory and open connections

    def __init__(self, is_on):
        self.is_on, self.splits = is_on, False
        self.steps, self.whole_steps, self.passes = -self.WARM_UP, 0, 0
        self.seconds = {"step": 0.0, "passes": 0.0, "stages": 0.0, "whole": 0.0}

    @contextmanager
    def timed(self, what):
        begun = time.thread_time() if self.is_on else 0.0
        try:
            if what == "stages":
                with BUSY.passing():
                    yield
            else:
                yield
        finally:
            if self.is_on and self.steps >= 0:
                name = "whole" if what == "stages" and not DEFERRAL.is_on else what
                self.seconds[name] += time.thread_time() - begun

    def count_pass(self):
        self.passes += self.steps >= 0

    def end_step(self):
        self.whole_steps += not DEFERRAL.is_on
        self.steps += 1
        DEFERRAL.is_on = not (self.is_on and self.splits and self.steps >= 0 and self.steps % 2)

    def figures(self):
        """Returns the seconds of a pass outside its stage, of a pass in its stage, of a step outside its passes, passes
        per step, and what a backward pass in halves takes more than a whole one; -1 if that was not measured."""
        steps, passes = max(1, self.steps), max(1, self.passes)
        step, inside, stages, whole = (self.seconds[name] for name in ("step", "passes", "stages", "whole"))
        split = -1.0
        if self.whole_steps:
            more = stages / (self.steps - self.whole_steps) - whole / self.whole_steps
            split = max(0.0, more) / (passes / steps / 3)
        stages += whole
        return (inside - stages) / passes, stages / passes, (step - inside) / steps, self.passes / steps, split
