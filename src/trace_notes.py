"""Records, while a model is traced, which of its statements the trace fixes: those that convert values of a tensor into
Python numbers.

`model-analyze trace` feeds this file to the interpreter before `trace.py`. Torch warns about every such conversion,
including those of sizes, which are the same for all inputs of a shape. The trace so far separates them: a number is
fixed only if it depends on an input's values, or on random numbers.
"""

import contextlib
import os
import sys
import warnings

# The effect of a statement, by the tensor method that it calls.
CONVERSIONS = {
    "__bool__": "a tensor is converted to a bool; the trace keeps its value, and so the branch",
    "equal": "tensors are compared as a whole; the trace keeps the result, and so the branch",
    "allclose": "tensors are compared as a whole; the trace keeps the result, and so the branch",
    "is_nonzero": "a tensor is converted to a bool; the trace keeps its value, and so the branch",
    "__int__": "a tensor is converted to a number; the trace keeps its value",
    "__index__": "a tensor is converted to a number; the trace keeps its value",
    "__float__": "a tensor is converted to a number; the trace keeps its value",
    "__complex__": "a tensor is converted to a number; the trace keeps its value",
    "item": "a tensor is converted to a number; the trace keeps its value",
    "tolist": "a tensor is converted to a list; the trace keeps its values",
    "numpy": "a tensor is converted to NumPy; the trace keeps its values",
    "__len__": "the length of a tensor depends on data; the trace keeps that length",
    "__iter__": "the length of a tensor depends on data and is looped over; the trace keeps the number of iterations",
}
READ_LENGTH = ("__len__", "__iter__")
# Functions of torch that return a bool, in addition to the methods of that name.
FUNCTIONS = ("equal", "allclose", "is_nonzero")

SIZES = {"aten::size", "aten::numel", "aten::len", "aten::dim", "aten::sym_size", "aten::sym_numel", "prim::shape"}
# Only the shape of their first operand is read.
LIKE = {f"aten::{name}_like" for name in ("zeros", "ones", "full", "empty")}
LIKE |= {f"aten::new_{name}" for name in ("zeros", "ones", "full", "empty")}
FIXED = {"prim::Constant", "prim::GetAttr", "prim::TracedAttr"}
# Results whose shape depends on values, which torch has not marked because they are composed of other operators.
UNMARKED_DYNAMIC = {
    "aten.where.default",
    "aten.nonzero_numpy.default",
    "aten.tensor_split.tensor_indices_or_sections",
    "aten._pack_padded_sequence.default",
    "aten._pad_packed_sequence.default",
}
# The most notes: further ones would not be read.
MOST_NOTES = 100


class Watch:
    """The statements that a trace has fixed, in the order of occurrence."""

    def __init__(self):
        self.notes = {}
        self.chance = None
        # What values of an input lead to, and what they do not lead to unless more is written into it; the last node that
        # was looked at for writes.
        self.of_data, self.free, self.last = set(), set(), None
        # Tensors whose loops the trace follows, by id, and such loops.
        self.followed, self.loops = set(), {}

    def add(self, file, line, text):
        if len(self.notes) < MOST_NOTES:
            self.notes.setdefault((file, line, text), None)

    def found(self):
        """Returns the notes in the form of an archive."""
        return [{"file": file, "line": line, "text": text} for file, line, text in self.notes]

    def suspected(self):
        """Returns the statements that may be why a trace is not its model."""
        return self.found() + [{"file": file, "line": line, "text": text} for file, line, text in self.loops]

    @contextlib.contextmanager
    def watching(self):
        """Watches conversions and torch's warnings while a model is traced."""
        import torch

        self.chance = Chance()
        with contextlib.ExitStack() as stack:
            for name in CONVERSIONS:
                if hasattr(torch.Tensor, name):
                    stack.enter_context(self.replaced(torch.Tensor, name))
            for name in FUNCTIONS:
                stack.enter_context(self.replaced(torch, name))
            stack.enter_context(warnings.catch_warnings())
            show = warnings.showwarning

            def heard(message, category, filename, lineno, file=None, line=None):
                if not issubclass(category, torch.jit.TracerWarning):
                    show(message, category, filename, lineno, file, line)
                elif filename != heard.__code__.co_filename:
                    self.hear(str(message), filename, lineno)

            warnings.showwarning = heard
            warnings.simplefilter("always", torch.jit.TracerWarning)
            yield
        for name in self.chance.drawn_without_torch():
            self.add(None, None, f"forward draws random numbers with {name}; the trace keeps those that were drawn")

    @contextlib.contextmanager
    def replaced(self, owner, name):
        original, is_own = getattr(owner, name), name in vars(owner)

        def watched(*arguments, **keywords):
            self.look(name, arguments)
            return original(*arguments, **keywords)

        setattr(owner, name, watched)
        try:
            yield
        finally:
            if is_own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)

    def look(self, name, arguments):
        import torch

        if not torch._C._is_tracing():
            return
        is_length = name in READ_LENGTH
        tensors = [argument for argument in arguments[:2] if isinstance(argument, torch.Tensor)]
        if not any(self.is_of_data(tensor, is_length) for tensor in tensors):
            return
        place = place_of(sys._getframe(2))
        if name == "__iter__" and id(arguments[0]) in self.followed:
            text = "a loop over the rows that data chose runs over all of them in the trace"
            self.loops.setdefault((*(place or (None, None)), text), None)
        elif place is not None:
            self.add(*place, CONVERSIONS[name])

    def hear(self, message, file, line):
        # The numbers in `torch.tensor(...)` were checked when they were read; containers hold traced values.
        if "registered as constants" in message or message.startswith("Encountering"):
            return
        self.add(shown_path(file), line, message.partition(". ")[0])

    def is_of_data(self, tensor, is_length):
        import torch

        try:
            value = torch._C._get_value_trace(tensor)
        except RuntimeError as error:
            # A tensor that requires gradients and is not in the trace is a parameter that no module registers.
            return "requires grad" not in str(error)
        return self.leads_to(value, is_length)

    def leads_to(self, value, is_shape):
        """Tells whether values of an input lead to a value, or to its shape.

        Walks back through the trace, and from each value on to the values written into it through a view.
        """
        self.follow_writes(value)
        start = (value.unique(), is_shape)
        waiting, seen = [(value, is_shape)], set()
        while waiting:
            value, is_shape = waiting.pop()
            key = (value.unique(), is_shape)
            if key in seen or key in self.free:
                continue
            seen.add(key)
            if key in self.of_data or is_input(value, is_shape) or not is_shape and is_random(value.node()):
                self.of_data.add(start)
                return True
            waiting += sources(value.node(), is_shape)
            if not is_shape:
                waiting += [(written, False) for written in writes(value)]
        self.free |= seen
        return False

    def follow_writes(self, value):
        """Forgets what is free of data where the trace has come to write into a value since."""
        newest = node = value.node().owningBlock().returnNode().prev()
        while node is not self.last and node.kind() != "prim::Return":
            if "!" in schema_of(node).partition("->")[0] or list(node.blocks()):
                self.free.clear()
            node = node.prev()
        self.last = newest


def is_input(value, is_shape):
    return value.node().kind() == "prim::Param" and not is_shape and value.type().kind() != "ClassType"


def sources(node, is_shape):
    """Returns the operands that a node's result, or its shape, depends on, each with whether only its shape matters."""
    kind, inputs = node.kind(), list(node.inputs())
    if kind in FIXED or kind == "prim::Param":
        return []
    if kind in SIZES:
        return [(value, True) for value in inputs[:1]]
    if kind in LIKE:
        return [(inputs[0], True), *((value, is_shape and has_shape(value)) for value in inputs[1:])]
    if is_shape and is_dynamic(node):
        return [(value, False) for value in inputs]
    # A number that a shape is made of counts as a value.
    return [(value, is_shape and has_shape(value)) for value in inputs]


def has_shape(value):
    """Tells whether a value is a tensor or a list."""
    return value.type().kind() in ("TensorType", "ListType")


def is_tensor(value):
    return value.type().kind() == "TensorType"


def writes(value):
    """Returns the operands that were written into a value, itself or through views of it."""
    found, waiting, seen = [], [value], set()
    while waiting:
        value = waiting.pop()
        if value.unique() in seen:
            continue
        seen.add(value.unique())
        for use in value.uses():
            node = use.user
            if use.offset != 0 or "::" not in node.kind():
                continue
            arguments, _, results = schema_of(node).partition("->")
            if "!" in arguments.partition(",")[0]:
                found += list(node.inputs())[1:]
                waiting += list(node.outputs())
            elif "(a" in results:
                waiting += list(node.outputs())
    return found


def schema_of(node):
    try:
        return str(node.schema())
    except RuntimeError:
        return ""


def overload(node):
    """Returns torch's description of the operator of a node, or None."""
    import torch

    space, _, name = schema_of(node).partition("(")[0].partition("::")
    name, _, variant = name.partition(".")
    packet = getattr(getattr(torch.ops, space, None), name, None) if space and name else None
    return getattr(packet, variant or "default", None)


def is_random(node):
    import torch

    return torch.Tag.nondeterministic_seeded in getattr(overload(node), "tags", ())


def is_dynamic(node):
    """Tells whether the shape of a node's result depends on values, not only on shapes."""
    import torch

    operator = overload(node)
    if operator is None or node.kind().split("::")[0] not in ("aten", "prim"):
        return not node.kind().startswith("prim::")
    if str(operator) in UNMARKED_DYNAMIC:
        return True
    if torch.Tag.dynamic_output_shape not in operator.tags:
        return False
    inputs = list(node.inputs())
    if node.kind() == "aten::index":
        indices = list(inputs[1].node().inputs())
        return any(is_tensor(value) and value.type().dtype() in (torch.bool, torch.uint8, None) for value in indices)
    if node.kind() == "aten::one_hot":
        return inputs[1].node().kind() != "prim::Constant" or inputs[1].toIValue() < 0
    return True


def place_of(frame):
    """Returns file and line of the statement outside torch that called a frame; None if a tensor is only printed."""
    import torch

    torch_folder, own = os.path.dirname(torch.__file__) + os.sep, place_of.__code__.co_filename
    place = None
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(torch_folder) and frame.f_code.co_name in ("__format__", "__repr__", "_str"):
            return None
        if file != own and not file.startswith("<"):
            place = place or (shown_path(file), frame.f_lineno)
            if not file.startswith(torch_folder):
                return shown_path(file), frame.f_lineno
        frame = frame.f_back
    return place or (None, None)


def shown_path(file):
    """Returns a path for the user: relative to the current folder, or to the folder of the packages."""
    if file.startswith(os.getcwd() + os.sep):
        return os.path.relpath(file)
    for folder in ("site-packages", "dist-packages"):
        _, found, rest = file.rpartition(f"{os.sep}{folder}{os.sep}")
        if found:
            return rest
    return file
