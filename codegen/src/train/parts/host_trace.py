"""Host time of the script itself, in addition to the stages: CPU seconds of a rank's thread, without waits."""

import time
from contextlib import contextmanager

from train_parts.stragglers import BUSY


class HostTrace:
    """Sums CPU seconds of a rank by activity: a step, the schedule's passes in it, and the stages' own work in
    these."""

    WARM_UP = 2  # steps, which allocate memory and open connections

    def __init__(self, is_on):
        self.is_on = is_on
        self.steps, self.passes = -self.WARM_UP, 0
        self.seconds = {"step": 0.0, "passes": 0.0, "stages": 0.0}

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
                self.seconds[what] += time.thread_time() - begun

    def count_pass(self):
        self.passes += self.steps >= 0

    def end_step(self):
        self.steps += 1

    def figures(self):
        """Returns the seconds of a pass outside its stage, of a pass in its stage, of a step outside its passes, and
        passes per step."""
        steps, passes = max(1, self.steps), max(1, self.passes)
        step, inside, stages = (self.seconds[name] for name in ("step", "passes", "stages"))
        return (inside - stages) / passes, stages / passes, (step - inside) / steps, self.passes / steps
