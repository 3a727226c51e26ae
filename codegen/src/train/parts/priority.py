"""Gradients in slices, summed and updated in a separate thread while passes continue: P3, or first come, first
served."""

import contextlib
import copy
import heapq
import math
import statistics
import threading
import time

import torch
import torch.distributed as dist
from torch import nn

from train_parts.deferred import DEFERRAL
from train_parts.stragglers import BUSY
from train_parts.sync import is_by_element

SLICE = 160_000  # bytes: 40,000 parameters, as in the released P3
STOP = -1
KEPT = 50  # steps in the final statistics


class Sliced:
    """Sums the gradients of a stage's replicas slice by slice, and updates each slice at once.

    After "Priority-based Parameter Propagation" (2019). All replicas must send the same slice: the thread of the first
    one chooses, among the available slices, the one that the next forward pass needs first, or with `is_first_come` the
    earliest, and tells the others. A pass that reads a parameter waits until its slices have been updated; so the next
    forward pass starts while most of the model is still being sent. Slices are equivalent to whole parameters for
    optimizers that update each element independently. The hyperparameters of a step are those at its start.
    """

    sums_tied = True

    def __init__(self, modules, named, groups, passes, size, is_first_come, timeout, not_finite):
        self.data, self.control, self.passes, self.is_first_come = *groups, passes, is_first_come
        self.timeout, self.not_finite = timeout, not_finite
        self.is_first = dist.get_rank(self.data) == 0
        self.slices, self.numbers = [], {}  # (parameter, name, the piece, its begin and end); numbers of the pieces by parameter
        for _, name, parameter in named:
            flat = parameter.detach().view(-1) if parameter.is_contiguous() else None
            count = max(1, size // parameter.element_size()) if flat is not None else max(1, parameter.numel())
            self.numbers[parameter] = []
            for begin in range(0, max(1, parameter.numel()), count):
                end = min(begin + count, parameter.numel())
                piece = nn.Parameter(parameter.detach() if flat is None else flat[begin:end])
                self.numbers[parameter].append(len(self.slices))
                self.slices.append((parameter, name, piece, begin, end))
            parameter.register_post_accumulate_grad_hook(lambda p: None if DEFERRAL.holds(p) else self.arrived(p))
        DEFERRAL.arrived.append(self.arrived)
        for module in modules:
            for holder in module.modules():
                holder.__dict__["_parameters"] = Waiting(holder._parameters, self)
        self.asked_at = {}  # by parameter: its position in the order of the forward pass
        self.changed, self.error, self.is_over = threading.Condition(), None, False
        self.left = dict.fromkeys(self.numbers, 0)  # slices of a parameter without an update so far
        self.ready, self.heap, self.came = {}, [], 0
        self.absent = set()  # parameters without a gradient here in their last step
        self.seen, self.settings, self.step = dict.fromkeys(self.numbers, 0), [], 0
        self.optimizer, self.thread, self.history = None, None, []
        self.beside = Beside(self.slices[0][2].device if self.slices else torch.device("cpu"))
        self.stepped = {}  # by parameter: the moment of its last update

    def take(self, optimizer):
        """Takes the optimizer, and starts to send."""
        self.optimizer, self.stepper = optimizer, copy.copy(optimizer)  # the copy shares the state, and has groups of its own
        self.group_of = {p: number for number, group in enumerate(optimizer.param_groups) for p in group["params"]}
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    # -- the interface to passes

    def begin(self, step):
        """Starts a step, with the optimizer's present hyperparameters."""
        with self.changed:
            self.step, self.history = step, [*self.history[-KEPT:], History(step)]
            if self.optimizer is None:  # nothing is trained here
                return
            self.settings = [{key: value for key, value in group.items() if key != "params"} for group in self.optimizer.param_groups]
            if self.stepper.state is not self.optimizer.state:  # a checkpoint was loaded
                self.stepper.state = self.optimizer.state
                self.beside.catch_up()
            self.optimizer._opt_called = True  # schedulers check it

    def asked(self, parameter):
        """Waits until a pass may read a parameter."""
        if parameter not in self.left or threading.current_thread() is self.thread:
            return
        self.asked_at.setdefault(parameter, len(self.asked_at))
        begun = time.perf_counter()
        if self.left[parameter] or self.error:
            with BUSY.waiting():
                self.wait(lambda: not self.left[parameter])
        self.beside.follow(self.stepped.get(parameter))
        if self.history:
            self.history[-1].ask(parameter, begun, time.perf_counter() - begun)

    def wait(self, is_there):
        with self.changed:
            if not self.changed.wait_for(lambda: self.error or is_there(), self.timeout):
                raise RuntimeError(f"timed out after waiting {self.timeout:.0f} s for slices of gradients")
        if self.error:
            raise self.error

    def arrived(self, parameter):
        """Counts a pass whose whole contribution to a parameter's gradient has been added."""
        if parameter in self.seen:
            self.seen[parameter] += 1
            if self.seen[parameter] == self.passes:
                self.put(parameter)

    def put(self, parameter):
        if self.left[parameter]:  # no pass has read it, and waited for the slices of the last step
            self.wait(lambda: not self.left[parameter])
        gradient, parameter.grad = parameter.grad, None
        if gradient is None:
            self.absent.add(parameter)
        else:
            self.absent.discard(parameter)
        flat = (torch.zeros_like(parameter) if gradient is None else gradient).reshape(-1)
        self.beside.keep(flat)
        here = self.beside.mark()
        with self.changed:
            about = (here, self.step, self.settings[self.group_of[parameter]], self.history[-1])
            self.left[parameter] = len(self.numbers[parameter])
            for number in self.numbers[parameter]:
                _, _, _, begin, end = self.slices[number]
                self.ready[number] = (flat[begin:end], *about)
                urgency = self.came if self.is_first_come else self.asked_at.get(parameter, len(self.asked_at))
                heapq.heappush(self.heap, (urgency, number))
                self.came += 1
                self.history[-1].came.append((time.perf_counter(), number))
            self.changed.notify_all()

    def finish(self):
        """Ends the passes of a step: slices of unused parameters are sent now. Does not wait."""
        for parameter, count in self.seen.items():
            if count < self.passes:
                self.put(parameter)
        self.seen = dict.fromkeys(self.seen, 0)
        if self.error:
            raise self.error

    def drain(self):
        """Waits until all slices have been updated, and joins the optimizer's state of whole parameters."""
        self.wait(lambda: not any(self.left.values()))
        self.beside.join()
        state = self.optimizer.state if self.optimizer else {}
        for parameter, numbers in self.numbers.items():
            of = [self.slices[number][2] for number in numbers]
            if any(piece not in state for piece in of):
                continue
            parts = [state.pop(piece) for piece in of]
            whole = lambda key: torch.cat([part[key].reshape(-1) for part in parts]).view_as(parameter)  # noqa: B023, E731
            state[parameter] = {key: whole(key) if is_by_element(key, value, of[0]) else value for key, value in parts[0].items()}
        self.beside.catch_up()

    def close(self):
        self.drain()
        with self.changed:
            self.is_over = True
            self.changed.notify_all()
        if self.thread:
            self.thread.join()

    # -- the thread

    def run(self):
        try:
            device = self.slices[0][2].device if self.slices else torch.device("cpu")
            if device.type == "cuda":
                torch.cuda.set_device(device)
            with self.beside.within():
                while (chosen := self.chosen())[0] != STOP:
                    self.send(*chosen)
        except BaseException as error:
            with self.changed:
                self.error = error
                self.changed.notify_all()

    def chosen(self):
        """Returns the next slice, which the first replica chooses, and whether some replica has a gradient of it."""
        if self.is_first:
            with self.changed:
                self.changed.wait_for(lambda: self.heap or self.is_over)
                number = heapq.heappop(self.heap)[1] if self.heap else STOP
        is_absent = lambda: number != STOP and self.slices[number][0] in self.absent  # noqa: E731
        begun = time.perf_counter()
        told = torch.tensor([number, is_absent()] if self.is_first else [STOP, False])
        dist.broadcast(told, group=self.control, group_src=0)
        (number, asks), self.telling = told.tolist(), time.perf_counter() - begun
        if not self.is_first and number != STOP:
            with self.changed:
                self.changed.wait_for(lambda: number in self.ready)
        present = torch.tensor([not is_absent()], dtype=torch.int32)
        if asks:  # the first replica has no gradient: one process has none, and updates nothing, if nobody has
            dist.all_reduce(present, dist.ReduceOp.MAX, group=self.control)
        return number, not asks or bool(present)

    @torch.no_grad()
    def send(self, number, is_present):
        parameter, name, piece, begin, end = self.slices[number]
        begun = time.perf_counter()
        gradient, here, step, settings, history = self.ready.pop(number)
        self.beside.follow(here)
        if is_present:
            if gradient.numel():
                dist.all_reduce(gradient, group=self.data)
            if not bool(gradient.isfinite().all()):
                raise self.not_finite(f"the gradient of `{name}` is not finite in step {step + 1}: stopped before its update")
            if parameter in self.optimizer.state:
                self.part(parameter)
            piece.grad = gradient.view(piece.shape)
            self.stepper.param_groups = [settings | {"params": [piece]}]
            self.stepper.step()
            piece.grad = None
        self.stepped[parameter] = self.beside.mark()
        history.sent.append((number, parameter, time.perf_counter() - begun, self.telling))
        with self.changed:
            self.left[parameter] -= 1
            self.changed.notify_all()

    def part(self, parameter):
        """Splits the state of whole parameters, as in a checkpoint, into that of slices."""
        whole = self.optimizer.state.pop(parameter)
        self.beside.keep(*whole.values())
        for _, _, piece, begin, end in (self.slices[number] for number in self.numbers[parameter]):
            self.optimizer.state[piece] = {
                key: value.reshape(-1)[begin:end].reshape(piece.shape).clone() if is_by_element(key, value, parameter)
                else value.clone() if isinstance(value, torch.Tensor) else value
                for key, value in whole.items()
            }

    def figures(self):
        """Returns slices per step, the slices that overtook others, the seconds that passes waited for them, and the
        seconds that they would have waited without priorities; over the recorded steps, without the first two and
        the last."""
        found = [now.figures(after) for now, after in zip(self.history, self.history[1:]) if now.step > 1]
        return [statistics.median(each) for each in zip(*found)] if found else None


class Beside:
    """The stream on which a GPU does what the thread asks for; without a GPU nothing.

    On the stream of the passes, sums would wait for all passes that were asked for before them, and passes for what the
    first replica chooses.
    """

    def __init__(self, device):
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def within(self):
        return torch.cuda.stream(self.stream) if self.stream else contextlib.nullcontext()

    def mark(self):
        """Returns the present moment of the stream that is used here; nothing without a GPU."""
        if self.stream is None:
            return None
        moment = torch.cuda.Event()
        moment.record(torch.cuda.current_stream())
        return moment

    def follow(self, moment):
        """What is computed here from now on comes after a moment of the other stream."""
        if moment is not None:
            torch.cuda.current_stream().wait_event(moment)

    def keep(self, *values):
        """The thread reads tensors of the passes: their memory is not used again before it has."""
        for value in values:
            if self.stream and isinstance(value, torch.Tensor) and value.is_cuda:
                value.record_stream(self.stream)

    def join(self):
        """What passes compute from now on comes after all that the thread has asked for."""
        if self.stream:
            torch.cuda.current_stream().wait_stream(self.stream)

    def catch_up(self):
        """What the thread asks for from now on comes after all that passes have."""
        if self.stream:
            self.stream.wait_stream(torch.cuda.current_stream())


class Waiting(dict):
    """The parameters of a module: reading one waits until it has been updated."""

    def __init__(self, own, sync):
        super().__init__(own)
        self.sync = sync

    def __getitem__(self, name):
        parameter = super().__getitem__(name)
        self.sync.asked(parameter)
        return parameter


class History:
    """The times at which slices of a step became available and were sent, and at which its passes first read each
    parameter."""

    def __init__(self, step):
        self.step, self.came, self.sent, self.asks, self.waited = step, [], [], {}, 0.0

    def ask(self, parameter, begun, waited):
        self.asks.setdefault(parameter, begun - self.waited)  # without earlier waits
        self.waited += waited

    def figures(self, after):
        order = {number: place for place, (_, number) in enumerate(self.came)}
        takes = {number: seconds for number, _, seconds, _ in self.sent}
        parameter_of = {number: parameter for number, parameter, _, _ in self.sent}
        end, least, overtook, earliest = -math.inf, 0.0, 0, math.inf
        for number, _, _, _ in reversed(self.sent):
            overtook += earliest < order[number]
            earliest = min(earliest, order[number])
        for came, number in self.came:
            if number in takes:
                end = max(end, came) + takes[number]
                least = max(least, end - after.asks.get(parameter_of[number], math.inf))
        return len(self.sent), overtook, after.waited, least
