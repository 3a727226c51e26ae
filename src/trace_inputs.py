"""The arguments of a model: tensors in dicts, tuples, lists and dataclasses, constants among them, and the files that
hold them.

`model-analyze trace` feeds this file to the interpreter before `trace.py`. An archive takes only a sequence of tensors:
a call is taken apart into them, and the containers are rebuilt inside the traced `forward`.
"""

import collections.abc
import copy
import dataclasses
import enum
import inspect
import json
import keyword
import os
import re

CONSTANTS = (type(None), bool, int, float, complex, str, bytes, enum.Enum)


class Call:
    """The arguments of one call.

    `values` are its tensors and `names` their names in the archive; `inputs` pairs each with its keyword, or None.
    `rebuilt` calls a function with the containers rebuilt; it is None if the tensors were passed directly.
    """

    def __init__(self, forward, positional, named):
        import torch

        self.values, self.paths, self.constants = [], [], []
        arguments = list(zip(argument_names(forward, len(positional)), positional))
        parts = [self.take(value, name) for name, value in arguments]
        by_name = {name: self.take(value, name) for name, value in named.items()}
        if not self.values:
            raise Refused("forward is called without a tensor: there is nothing to trace")
        self.is_flat = all(isinstance(value, torch.Tensor) for value in (*positional, *named.values()))
        self.names = [None] * len(positional) + list(named) if self.is_flat else identifiers(self.paths)
        self.inputs = list(zip(self.names, self.values))

        def rebuilt(function, values):
            return function(*(part(values) for part in parts), **{name: part(values) for name, part in by_name.items()})

        self.rebuilt = None if self.is_flat else rebuilt

    def take(self, value, path):
        """Collects the tensors of an argument; returns a function that rebuilds the argument from other tensors."""
        import torch

        if isinstance(value, torch.Tensor):
            index = len(self.values)
            self.values.append(value.detach())
            self.paths.append(path)
            return lambda values: values[index]
        parts = parts_of(value)
        if parts is None:
            if not isinstance(value, (*CONSTANTS, torch.dtype, torch.device)):
                kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
                raise Refused(
                    f"{path} is of type {kind}: not a tensor, a constant, or a dict, list, tuple or dataclass of these"
                )
            if value is not None:
                self.constants.append(f"{path}={value!r}")
            return lambda values: value
        taken = [(key, self.take(part, f"{path}.{key}")) for key, part in parts]
        return lambda values: made_of(value, [(key, part(values)) for key, part in taken])


def parts_of(value):
    """Returns the named parts of a container of tensors, or None if it is not one."""
    if isinstance(value, collections.abc.MutableMapping):
        return list(value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value))
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return None


def made_of(value, parts):
    """Returns a copy of `value` with other parts."""
    if isinstance(value, collections.abc.MutableMapping):
        made = copy.copy(value)
        for key, part in parts:
            made[key] = part
        return made
    if isinstance(value, (list, tuple)):
        found = [part for _, part in parts]
        return type(value)(*found) if hasattr(value, "_fields") else type(value)(found)
    made = copy.copy(value)
    for key, part in parts:
        object.__setattr__(made, key, part)
    return made


def argument_names(forward, count):
    """Returns the names of the first arguments of `forward`."""
    try:
        parameters = list(inspect.signature(forward).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    known = [parameter.name for parameter in parameters if parameter.kind in by_position]
    return [known[index] if index < len(known) else f"input_{index}" for index in range(count)]


def identifiers(paths):
    """Returns unique Python names for the paths of tensors."""
    found = []
    for path in paths:
        name = re.sub(r"\W", "_", path)
        if name[:1].isdigit() or keyword.iskeyword(name) or name == "self" or name.endswith("_"):
            name = f"_{name}" if name[:1].isdigit() else f"{name}0"
        base, number = name, 2
        while name in found:
            name, number = f"{base}_{number}", number + 1
        found.append(name)
    return found


def as_drawn(value):
    """Returns the description of a given input in the form of a drawn one, to draw further inputs like it.

    The range is from the smallest to the largest given value, or symmetric about zero if some are negative. Inputs that
    cannot be drawn so, a mask of infinities or a constant, stay the same.
    """
    import torch

    spec = {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
    if value.dtype == torch.bool:
        return spec if bool(value.any() and not value.all()) else spec | {"is_fixed": True}
    if value.numel() == 0 or value.is_complex() or value.is_quantized or value.layout != torch.strided:
        return spec | {"is_fixed": True}
    low, high = value.double().min().item(), value.double().max().item()
    if not value.is_floating_point():
        high += 1
    elif low < 0 < high:
        # Symmetric, so that a mean or a sum may become negative or positive.
        low, high = -max(-low, high), max(-low, high)
    # As an archive's record must be.
    if not (low < high and abs(low) < 1e300 and abs(high) < 1e300):
        return spec | {"is_fixed": True}
    return spec | {"low": low, "high": high}


def read_inputs(path, forward):
    """Returns the positional and the named arguments that a file holds. Nothing in it is executed."""
    import torch

    kind = path.rpartition(".")[2].lower()
    if kind == "safetensors":
        from safetensors.torch import load_file

        found = load_file(path)
    elif kind == "json":
        with open(path, encoding="utf-8") as file:
            found = tensors_of(json.load(file))
    else:
        found = torch.load(path, map_location="cpu", weights_only=True)
    return arguments_of(found, forward, os.path.basename(path))


def tensors_of(value):
    """Converts a JSON value: lists of numbers become tensors, and a single number a constant."""
    import torch

    if isinstance(value, dict):
        return {key: tensors_of(part) for key, part in value.items()}
    if not isinstance(value, list):
        return value
    if is_numbers(value):
        return torch.tensor(value)
    return [tensors_of(part) for part in value]


def is_numbers(value):
    """Tells whether nested lists hold only numbers, and equal lengths at each level."""
    if not isinstance(value, list):
        return isinstance(value, (bool, int, float))
    if not value or not all(is_numbers(part) for part in value):
        return False

    def shape(part):
        return (len(part), *shape(part[0])) if isinstance(part, list) and part else ()

    return len({shape(part) for part in value}) == 1


def arguments_of(found, forward, name):
    """Returns the positional and the named arguments that a value stands for.

    A tuple or a list holds the positional ones, `{"args": …, "kwargs": …}` both; any other dict holds them by name, or
    is one argument if `forward` takes no such names.
    """
    if isinstance(found, dict) and found and set(found) <= {"args", "kwargs"}:
        return list(found.get("args", ())), dict(found.get("kwargs", {}))
    if isinstance(found, dict):
        known, takes_any = keywords_of(forward)
        unknown = [str(key) for key in found if key not in known]
        if not unknown or takes_any and all(isinstance(key, str) and key.isidentifier() for key in found):
            return [], found
        if len(unknown) == len(found):
            return [found], {}
        taken = ", ".join(sorted(known)) or "no named arguments"
        raise Refused(f"{name} has {', '.join(unknown)}, which forward does not take: it takes {taken}")
    return (list(found), {}) if isinstance(found, (list, tuple)) else ([found], {})


def keywords_of(forward):
    """Returns the names of the arguments of `forward`, and whether it accepts others as well."""
    parameters = inspect.signature(forward).parameters.values()
    by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    known = {parameter.name for parameter in parameters if parameter.kind in by_name}
    return known, any(parameter.kind == inspect.Parameter.VAR_KEYWORD for parameter in parameters)
