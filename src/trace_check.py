"""Compares a trace with its model on inputs that it was not traced with.

`model-analyze trace` feeds this file to the interpreter before `trace.py`. Archive and model run with the same random
numbers, buffers and settings, so that both run the same kernels in the same order: results are mostly bitwise equal. If
they are not, the model is compared with itself before the archive is blamed.
"""

import contextlib
import random
import sys
import time

# Larger differences, relative to an element and to the median of its tensor, are checked for rounding.
TOLERANCE = {"float64": 1e-9, "complex128": 1e-9}
USUAL_TOLERANCE = 1e-5
# The archive may differ by this factor more than the model differs from itself.
NOISE = 4
# Sums in another order, by which a model may differ from itself, stay below this.
MOST_NOISE = 1e-2
# The least seconds for further inputs, however fast a small model is traced.
LEAST_SECONDS = 0.25
# Parameters up to this many elements are moved by a rounding error to see how a model amplifies it.
MOVED = 1 << 20


class Chance:
    """The states of the random number generators, so that two runs draw the same numbers."""

    def __init__(self):
        import torch

        self.torch = torch.get_rng_state()
        self.cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
        self.python = random.getstate()
        self.numpy = sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None

    def rewind(self):
        import torch

        torch.set_rng_state(self.torch)
        if self.cuda is not None:
            torch.cuda.set_rng_state_all(self.cuda)
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)

    def drawn_without_torch(self):
        """Returns the names of the generators outside torch that were used since."""
        now = Chance()
        found = ["Python's random"] if now.python != self.python else []
        if self.numpy is not None:
            one, other = ((name, keys.tobytes(), *rest) for name, keys, *rest in (self.numpy, now.numpy))
            found += ["numpy.random"] if one != other else []
        return found


ELSEWHERE = "on another input of the same sizes"


# Draws that a model takes before the kind of its inputs counts as found.
SEEN_TO_RUN = 3
# The most statements that an error names.
MOST_STATEMENTS = 4


class Differs(Exception):
    """The archive differs from the model; the text says where."""

    def as_refusal(self, notes):
        """Returns the message for the user: where the trace differs, and which statements may be the cause."""
        places = [f"{note['file']}:{note['line']}: " if note["line"] is not None else "" for note in notes]
        lines = [f"the trace is not the model: {self}"]
        lines += [place + note["text"] for place, note in zip(places, notes)][:MOST_STATEMENTS]
        if len(notes) > MOST_STATEMENTS:
            lines.append(f"and {len(notes) - MOST_STATEMENTS} more statements like these")
        reason = "choose with torch.where, masks or index_add instead of Python's if and numbers"
        if not notes:
            reason = "forward may keep numbers from one call to the next, or compute outside torch"
        return Refused("\n  ".join(lines), hint=f"{reason}; --no-check writes the archive as it is")


class Check:
    """Runs a model and its trace on the same inputs."""

    def __init__(self, call, traced, *, chance, buffers, settings, saved):
        # Calls the model with tensors in the order of the archive's inputs.
        self.call = call
        self.traced = traced
        self.chance = chance
        self.buffers = buffers
        # Sets up the context in which the model was traced.
        self.settings = settings
        self.saved = saved
        self.notes = []
        # Whether the model has refused an input.
        self.is_refused = False

    def live(self, values, mode=contextlib.nullcontext):
        with self.settings(), mode():
            return self.outputs(lambda: self.call(values))

    def archived(self, values, mode=contextlib.nullcontext):
        import torch

        # The graph must stay as it was traced: see `inlined_graph`.
        with torch.jit.optimized_execution(False), self.saved.hooks(), mode():
            return self.outputs(lambda: self.traced(*values))

    def outputs(self, run):
        """Returns the tensors of a run and the buffers after it, which are then restored."""
        self.chance.rewind()
        try:
            found = run()
            pairs = [(f"output {name}" if name else "the output", tensor.detach()) for name, tensor in flatten_output(found)]
            return pairs, self.buffers.changed()
        finally:
            self.buffers.restore()

    def compare(self, values):
        """Runs both on one input; returns whether the result is conclusive. Raises `Differs`, or the model's own
        exceptions."""
        expected, state = self.live(clones(values))
        try:
            found, left = self.archived(clones(values))
        except Exception as error:
            raise Differs(f"{ELSEWHERE} the archive fails but the model runs: {reason_of(error)}") from error
        for (name, there), (_, here) in zip(expected, found):
            if there.shape != here.shape:
                sizes = ["x".join(map(str, tensor.shape)) or "scalar" for tensor in (here, there)]
                raise Differs(f"{ELSEWHERE} {name} is {sizes[0]}, {sizes[1]} in the model")
            if there.dtype != here.dtype:
                raise Differs(f"{ELSEWHERE} {name} is {dtype_name(here.dtype)}, {dtype_name(there.dtype)} in the model")
        if len(expected) != len(found):
            raise Differs(f"{ELSEWHERE} the archive returns {len(found)} tensors, the model {len(expected)}")
        lost = [name for name in state if name not in left]
        if lost:
            self.notes.append(
                f"forward replaces {some(lost)}, which no trace can record: the archive keeps the old values"
            )
        pairs = [(name, there, here) for (name, there), (_, here) in zip(expected, found)]
        pairs += [(f"buffer {name}", there, left[name]) for name, there in state.items() if name in left]
        far = [pair for pair in pairs if distance(pair[1], pair[2]) > tolerance(pair[1])]
        if far and not self.is_explained(values, far):
            said = "; ".join(told(*pair) for pair in far[:3]) + (f"; {len(far) - 3} more" if len(far) > 3 else "")
            raise Differs(f"{ELSEWHERE} {said}")
        return any(is_telling(there) for _, there, _ in pairs)

    def is_explained(self, values, far):
        """Tells whether the model shows the same difference against itself."""
        largest = max(distance(there, here) for _, there, here in far)
        wanted = {name for name, _, _ in far}
        reference = {name: there for name, there, _ in far}

        def apart(runs):
            pairs, state = runs
            pairs = [*pairs, *((f"buffer {name}", tensor) for name, tensor in state.items())]
            return max((distance(reference[name], tensor) for name, tensor in pairs if name in wanted), default=0.0)

        again = apart(self.live(clones(values)))
        if again > MOST_NOISE:
            raise Differs("the model's results vary between runs, even with fixed random numbers and buffers")
        if largest <= NOISE * again:
            self.notes.append("sums of the model vary in their last digits between runs, and so do the archive's")
            return True
        # Operators that the trace dropped may have drawn numbers, too: draw the same numbers for equal shapes, in any
        # order.
        with contextlib.suppress(RuntimeError):
            expected, state = self.live(clones(values), same_draws)
            found, left = self.archived(clones(values), same_draws)
            if all(
                distance(there, here) <= tolerance(there)
                for (_, there), (_, here) in zip([*expected, *state.items()], [*found, *left.items()])
            ):
                self.notes.append("the archive draws random numbers in another order than the model")
                return True
        with moved(self.buffers.model) as moves:
            rounded = apart(self.live([moves(value) for value in values]))
        if largest <= NOISE * rounded:
            self.notes.append("archive and model differ by no more than rounding of the model's own numbers")
            return True
        return False


def compare(subject, draws, seconds, clock=time.monotonic):
    """Compares on one further input, and on more while that takes no longer than tracing did.

    Returns why nothing could be compared, or None. Raises `Differs`.
    """
    start = clock()
    is_checked, reason = False, None
    longest = 0.0
    for values in draws:
        if (is_checked or reason) and clock() - start + longest > max(seconds, LEAST_SECONDS):
            break
        before = clock()
        try:
            is_checked |= subject.compare(values)
        except Differs:
            raise
        except Exception as error:  # The model may refuse values that it was not written for.
            subject.is_refused = True
            reason = f"the model refuses other values ({reason_of(error)})"
        longest = max(longest, clock() - before)
    if is_checked:
        return None
    return reason or "the model returns no finite number on another input"


def held(subject, specs, ranges, inputs, device):
    """Returns the positions of whole numbers and truths that must stay as they are for the model to run at all: where bags
    begin, lengths in order, a mask whose ones are counted. The fewest of them: one, else all; none if that does not help."""
    import torch

    values = [value for _, value in inputs]
    kept = [at for at, spec in enumerate(specs) if not spec.get("is_fixed") and is_discrete(values[at])]

    def runs(positions):
        def drawn(at, spec):
            is_same = at in positions or spec.get("is_fixed")
            return values[at].clone() if is_same else another(spec, ranges[at], values[at], device)

        try:
            for seed in range(SEEN_TO_RUN):
                # A run leaves the random numbers where it began.
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(seed)
                    found = [drawn(at, spec) for at, spec in enumerate(specs)]
                subject.live(found)
        except Exception:
            return False
        return True

    # Few masks are tried above, and one of another count may not be among them.
    is_asked = subject.is_refused or any(is_truth(values[at]) for at in kept)
    if not is_asked or runs([]):
        return []
    return next((found for found in [*([at] for at in kept if len(kept) > 1), kept] if found and runs(found)), [])


def is_discrete(value):
    return not (value.dtype.is_floating_point or value.dtype.is_complex or value.is_quantized)


def draws(specs, ranges, inputs, device):
    """Yields further inputs of the same shapes, types and ranges, each kind likely to change another branch."""
    values = [value for _, value in inputs]
    for sort in (another, extreme, mirrored, positive, negative, lowest):
        yield [
            value if spec.get("is_fixed") else sort(spec, drawn, value, device)
            for spec, drawn, value in zip(specs, ranges, values)
        ]


def another(spec, drawn, value, device):
    """Draws an input again, with its mean on the other side of the middle."""
    found = sample(spec, drawn, device)
    if not value.dtype.is_floating_point or value.numel() == 0:
        return found
    middle = sum(drawn) / 2 if drawn else 0.0
    is_same_side = (value.double().mean() > middle) == (found.double().mean() > middle)
    return mirror(found, drawn) if is_same_side else found


def extreme(spec, drawn, value, device):
    found = sample(spec, drawn, device)
    if value.dtype.is_floating_point or value.dtype.is_complex:
        return found if drawn else times(found, 3)
    # All equal: every token goes to one expert.
    return found.flatten()[:1].expand(found.numel()).reshape(found.shape).clone() if value.numel() else found


def mirrored(spec, drawn, value, device):
    return mirror(value, drawn)


def positive(spec, drawn, value, device):
    if value.dtype.is_floating_point and not drawn:
        return sample(spec, drawn, device).double().abs().to(value.dtype)
    return sample(spec, drawn, device) if not is_truth(value) else value.new_ones(value.shape)


def negative(spec, drawn, value, device):
    if value.dtype.is_floating_point and not drawn:
        return times(positive(spec, drawn, value, device), -1 / 3)
    return sample(spec, drawn, device) if not is_truth(value) else value.new_zeros(value.shape)


def lowest(spec, drawn, value, device):
    if value.dtype.is_floating_point or value.dtype.is_complex or is_truth(value):
        return sample(spec, drawn, device)
    return value.new_full(value.shape, int(drawn[0]))


def mirror(value, drawn):
    if is_truth(value):
        return ~value
    if value.dtype.is_floating_point and drawn:
        return (sum(drawn) - value.double()).to(value.dtype)
    if value.dtype.is_floating_point or value.dtype.is_complex:
        return times(value, -1)
    low, high = (int(bound) for bound in drawn)
    return low + max(high, low + 1) - 1 - value


def times(value, factor):
    # 8-bit types have no arithmetic.
    return value * factor if value.dtype.is_complex else (value.double() * factor).to(value.dtype)


def is_truth(value):
    return str(value.dtype) == "torch.bool"


def clones(values):
    return [value.clone() for value in values]


def wide(tensor):
    """Returns numbers that can be subtracted, the parts of a complex tensor concatenated."""
    import torch

    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.cpu().double()


def distance(there, here):
    """Returns the largest difference of two tensors, relative to its element and the median of them all."""
    if there.shape != here.shape:
        return float("inf")
    there, here = wide(there), wide(here)
    if there.equal(here):
        return 0.0
    usual = typical(there)
    differ = ~((there == here) | there.isnan() & here.isnan())
    there, here = there[differ], here[differ]
    if there.numel() == 0:
        return 0.0
    if not (there.isfinite() & here.isfinite()).all():
        return float("inf")
    return float(((there - here).abs() / (there.abs() + here.abs() + usual)).max())


def typical(tensor):
    """Returns the median magnitude of the non-zero numbers."""
    sizes = wide(tensor).abs()
    sizes = sizes[sizes.isfinite() & (sizes > 0)]
    return float(sizes.median()) if sizes.numel() else 1.0


def tolerance(tensor):
    return TOLERANCE.get(dtype_name(tensor.dtype), USUAL_TOLERANCE)


def is_telling(tensor):
    return tensor.numel() == 0 or bool(wide(tensor).isfinite().any())


def told(name, there, here):
    one, other = wide(there), wide(here)
    differ = ~((one == other) | one.isnan() & other.isnan())
    gap = (one - other).abs()[differ]
    gap = gap[gap.isfinite()]
    size = f"by up to {float(gap.max()):.2g}" if gap.numel() else "in NaN or infinity"
    return f"{name} differs in {int(differ.sum())} of {differ.numel()} numbers, {size}; a typical number is {typical(there):.2g}"


def reason_of(error):
    """Returns the line of an exception with the reason; exceptions of an archive begin with the place."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if line.startswith(("RuntimeError: ", "Error: "))]
    chosen = (said or lines or [""])[-1 if said else 0].removeprefix("RuntimeError: ")
    return f"{type(error).__name__}: {chosen[:200]}"


def some(names):
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def same_draws():
    """Restarts every random operator at the same seed, in the model and in the archive."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class SameDraws(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            if torch.Tag.nondeterministic_seeded in function.tags:
                torch.manual_seed(0)
            return function(*arguments, **(keywords or {}))

    return SameDraws()


@contextlib.contextmanager
def moved(model):
    """Moves parameters by about a rounding error of the narrowest type; yields a function that does the same to an
    input."""
    import torch

    floating = [tensor for tensor in (*model.parameters(), *model.buffers()) if tensor.is_floating_point()]
    coarsest = max((torch.finfo(tensor.dtype).eps for tensor in floating), default=torch.finfo(torch.float32).eps)
    kept = [(tensor, tensor.detach().clone()) for tensor in floating if tensor.numel() <= MOVED]

    def moves(tensor):
        if not tensor.is_floating_point():
            return tensor.clone()
        signs = torch.randint(0, 2, tensor.shape, device=tensor.device).double() * 2 - 1
        return (tensor.double() * (1 + coarsest * signs)).to(tensor.dtype)

    try:
        with torch.no_grad():
            for tensor, before in kept:
                tensor.copy_(moves(before))
        yield moves
    finally:
        with torch.no_grad():
            for tensor, before in kept:
                tensor.copy_(before)
