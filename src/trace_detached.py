"""Keeps in a trace what `torch.no_grad()` does: gradients end where such a region begins.

`model-analyze trace` feeds this file to the interpreter before `trace.py`. Torch's tracer does not record whether gradients
are on. Inside of a region without them, what comes from outside and has gradients is therefore detached: operators of the
region then have no gradients in the archive, either, and may write into tensors that they are given.
"""


def detaching():
    """Returns a mode that detaches, while a model is traced, the operands of operators that run without gradients."""
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._pytree import tree_map_only

    # What these are asked is about the tensor itself.
    about_itself = {torch.Tensor.detach, torch.Tensor.detach_, torch.Tensor.requires_grad_}

    class Detaching(TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), keywords=None):
            keywords = keywords or {}
            if torch.is_grad_enabled() or not torch._C._is_tracing() or function in about_itself:
                return function(*arguments, **keywords)
            if getattr(function, "__name__", "") in ("__get__", "__set__"):
                found = function(*arguments, **keywords)
                is_made = isinstance(found, torch.Tensor) and arguments[0].requires_grad
                return found.detach() if is_made else found
            given = {}

            def detached(tensor):
                if not tensor.requires_grad:
                    return tensor
                alone = tensor.detach()
                given[id(alone)] = (alone, tensor)
                return alone

            found = function(*tree_map_only(torch.Tensor, detached, tuple(arguments)), **tree_map_only(torch.Tensor, detached, keywords))
            # An operator that writes into its operand returns it.
            return given[id(found)][1] if id(found) in given else found

    return Detaching()
