"""Makes an archive of a model that is ready to be called: traces it, compares the trace with it, and saves it.

`model-analyze trace` feeds this file to the interpreter before `trace.py`, and so does the Python package, which traces
live models: they are left unchanged.
"""

import contextlib
import sys
import time


@contextlib.contextmanager
def called_by(model, method):
    """Traces another method of a model instead of `forward`."""
    if method is None:
        yield
        return
    found = getattr(model, method, None)
    if not callable(found):
        raise Refused(f"{type(model).__name__} has no method {method!r}")
    before = model.__dict__.get("forward")
    model.forward = found
    try:
        yield
    finally:
        put_back(model, "forward", before)


@contextlib.contextmanager
def one_sequence(watch):
    """Makes transformers treat positions while it is traced as when it is called: counted positions belong to one
    sequence.

    Called without a mask, transformers checks whether positions restart, as in sequences packed into one; if they do
    not, attention gets no mask and runs the fused causal kernel. While traced it skips the check and gives attention a
    mask of all pairs of tokens: several times slower, with memory quadratic in the length. Positions that depend only
    on sizes are the same for all inputs, so the check is safe for them; others are left to transformers.
    """
    module = sys.modules.get("transformers.masking_utils")
    name = "find_packed_sequence_indices"
    original = getattr(module, name, None)
    if original is None:
        yield
        return

    def found(position_ids):
        if is_counted(position_ids, watch):
            return None
        return original(position_ids)

    setattr(module, name, found)
    try:
        yield
    finally:
        setattr(module, name, original)


def is_counted(positions, watch):
    """Tells whether a trace's positions are those of one sequence, whatever the values of its inputs."""
    import torch

    state = torch._C._get_tracing_state()
    if state is None or watch.is_of_data(positions, False):
        return False
    # This check is not part of the trace.
    torch._C._set_tracing_state(None)
    try:
        return bool((positions[..., 1:] - positions[..., :-1] == 1).all())
    finally:
        torch._C._set_tracing_state(state)


def write_archive(
    model, call, specs, *, output, about, check=True, strict=False, autocast=None, stand_ins=None, inlined=None, say
):
    """Traces a model that is ready to be called, compares the trace with it, and saves the archive.

    `specs` has the ranges of further inputs for each tensor. Returns the notes for the user. Raises `Refused`, or the
    model's own exceptions.
    """
    import torch

    refuse_names_that_torch_cannot_read(model)
    device = next((value.device for value in call.values), torch.device("cpu"))
    ranges = [None if spec.get("is_fixed") else drawn_range(spec, model) for spec in specs]
    if call.constants:
        say(note=f"constants of the call are part of the trace: {', '.join(call.constants[:8])}")
    watch, saved, start = Watch(), Saved(), time.monotonic()

    @contextlib.contextmanager
    def watching():
        with watch.watching(), one_sequence(watch), mapped_row_by_row(), detaching(), over_all_hits(watch):
            with inlined.tracing() if inlined else contextlib.nullcontext():
                yield

    traced, outputs = trace(
        model, call.inputs, rebuilt=call.rebuilt, strict=strict, autocast=autocast, saved=saved, say=say, watching=watching
    )
    refuse_functions_of_python(traced)
    if stand_ins:
        refuse_numbers_of_absent_weights(traced)
    seconds = time.monotonic() - start
    # Inputs that are the same in every run of the archive.
    kept = {at for at, spec in enumerate(specs) if "values" in spec}
    unchecked = "--no-check"
    if check and all(spec.get("is_fixed") for spec in specs):
        unchecked = "each input is a constant"
    elif check:
        say(step="comparing")
        names = [name for name, _ in call.inputs]
        subject = Check(
            lambda values: call.rebuilt(model, values) if call.rebuilt else call_as_passed(model, names, values),
            traced,
            chance=watch.chance,
            buffers=Buffers(model),
            settings=lambda: as_traced(autocast, device, saved),
            saved=saved,
        )
        try:
            unchecked = compare(subject, draws(specs, ranges, call.inputs, device), seconds)
        except Differs as error:
            raise error.as_refusal(watch.suspected()) from error
        for text in dict.fromkeys(subject.notes):
            watch.add(None, None, text)
        kept |= set(held(subject, specs, ranges, call.inputs, device))
    text = unread(model, traced)
    if text:
        watch.add(None, None, text)
    if stand_ins and stand_ins.zeros and not unchecked:
        unchecked = "large weights are zeros while a model is traced without them"
    say(step="saving")
    absent = []
    if stand_ins:
        stand_ins.shrink()
        absent = stand_ins.paths
    if autocast:
        about["autocast"] = autocast
    if call.constants:
        about["constants"] = ", ".join(call.constants)
    if call.rebuilt:
        about["inputs"] = ", ".join(call.paths)
    text = record(
        traced,
        about=about,
        training=model.training,
        outputs=outputs,
        absent=absent,
        ranges=ranges,
        values=[numbers(value) if at in kept else None for at, value in enumerate(call.values)],
        notes=watch.found(),
        checked=not unchecked,
        unchecked=unchecked,
        inlined_functions=list(inlined.names) if inlined else None,
    )
    save(traced, output, text)
    parameters = {id(p): p.numel() for p in model.parameters()}
    return {
        "parameters": sum(parameters.values()),
        "torch": torch.__version__,
        "notes": watch.found(),
        "unchecked": unchecked,
        "inlined_functions": list(inlined.names) if inlined else [],
    }


def trace_live(model, positional, named, *, output, method=None, training=None, inline_functions=False, seed=0, say, **settings):
    """Writes the archive of a live model, and leaves the model and torch unchanged."""
    import torch

    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng())
        stack.enter_context(torch.enable_grad())
        torch.manual_seed(seed)
        inlined = None
        if inline_functions:
            function = torch.autograd.Function
            stack.callback(setattr, function, "apply", vars(function)["apply"])
            inlined = Inlined()
        model = without_compilers(model, stack.callback)
        if isinstance(model, torch.jit.ScriptModule):
            raise Refused("the model is a ScriptModule already: save it, and load the archive")
        config = getattr(model, "config", None)
        if getattr(config, "use_cache", None) is True:
            stack.callback(setattr, config, "use_cache", True)
        if training is not None:
            for module in model.modules():
                stack.callback(setattr, module, "training", module.training)
            model.train(training)
        stack.enter_context(called_by(model, method))
        call = Call(model.forward, positional, named)
        about = {"target": f"{type(model).__module__}:{type(model).__qualname__}", "seed": str(seed)}
        specs = [as_drawn(value) for value in call.values]
        return write_archive(model, call, specs, output=output, about=about, inlined=inlined, say=say, **settings)
