"""Traces a model that lives, by the script that `model-analyze trace` runs as well."""

from __future__ import annotations

import functools
import pathlib
import tempfile
import types
from typing import Any, Optional, TypedDict

from ._command import Error, Path, run, warn
from ._model import Model


class TraceOptions(TypedDict, total=False):
    """How `trace` traces: the options of the command by their names."""

    # Where the archive goes; without it, it goes with the model's object.
    output: Path
    # In training mode or not, instead of as the model is.
    train: Optional[bool]
    # The method to trace instead of `forward`.
    method: str
    # "bfloat16" or "float16": in automatic mixed precision.
    autocast: str
    # False leaves the comparison with the model on further inputs out.
    check: bool
    # Refuse outputs and inner values that torch calls unsafe to trace.
    strict: bool
    # Trace a torch.autograd.Function as its forward pass: for drawing and planning.
    inline_functions: bool
    # Seed of the further inputs.
    seed: int


def trace(model: Any, /, *args: Any, trace_options: Optional[TraceOptions] = None, **kwargs: Any) -> Model:
    """Traces a `torch.nn.Module` as it is called with `args` and `kwargs`, and returns what to ask about it.

    Tensors may lie in dicts, lists, tuples and dataclasses; constants become part of the trace. The model, its mode and
    torch's random numbers stay as they were. What the model raises is raised; what cannot be traced is an `Error`.
    """
    settings: dict[str, Any] = dict(trace_options or {})
    unknown = settings.keys() - TraceOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"trace_options has no {', '.join(sorted(unknown))}: it takes {', '.join(TraceOptions.__annotations__)}")
    output = settings.pop("output", None)
    folder = None
    if output is None:
        folder = tempfile.TemporaryDirectory(prefix="model-analyze-")
        output = pathlib.Path(folder.name) / f"{type(model).__name__}.pt"
    script = _script()
    notes: list[str] = []

    def say(note: Optional[str] = None, **_: Any) -> None:
        if note is not None:
            notes.append(note)

    try:
        script.trace_live(
            model,
            args,
            kwargs,
            output=str(output),
            training=settings.pop("train", None),
            say=say,
            **settings,
        )
    except script.Refused as error:
        text = f"{error}\n  hint: {error.hint}" if error.hint else str(error)
        raise Error(text) from error.__cause__
    for note in notes:
        warn(note)
    return Model(output, _folder=folder)


@functools.lru_cache(maxsize=None)
def _script() -> Any:
    module = types.ModuleType("model_analyze.trace_script")
    exec(compile(run("trace-script"), "<model-analyze>", "exec"), module.__dict__)  # noqa: S102: the command's own text
    return module
