"""Writes out what `torch.vmap` maps while a model is traced, since torch's tracer cannot follow it.

`model-analyze trace` feeds this file to the interpreter before `trace.py`. The function is called once for each row and the
results are stacked, which is how vmap is defined. The trace is then compared with the model, which does call vmap.
"""

import contextlib
import sys

# The most calls that one vmap becomes: a model of several members has few, a mask of all pairs of tokens would have thousands.
MOST_ROWS = 256


@contextlib.contextmanager
def mapped_row_by_row():
    """Replaces vmap, under whichever name a model has it, and transformers' masks that are made with it."""
    from torch._functorch import apis

    from torch.nn.utils import stateless

    def with_parameters(module, values, arguments=(), named=None, *, tie_weights=True, strict=False):
        arguments = arguments if isinstance(arguments, tuple) else () if arguments is None else (arguments,)
        with stateless._reparametrize_module(module, values, tie_weights=tie_weights, strict=strict):
            return module(*arguments, **(named or {}))

    masks = sys.modules.get("transformers.masking_utils")
    with contextlib.ExitStack() as stack:
        # Torch refuses to call a module with other parameters while it traces, though it can.
        stack.enter_context(replacing(stateless, _functional_call=with_parameters))
        stack.enter_context(replacing(apis, vmap_impl=rows_of(getattr(apis, "vmap_impl", None))))
        if masks is not None:
            # The mode turns indexing into a Python function, which vmap needs.
            stack.enter_context(
                replacing(masks, _vmap_expansion_sdpa=of_all_pairs, TransformGetItemToIndex=contextlib.nullcontext)
            )
        yield


def rows_of(original):
    """Returns what stands for vmap's implementation: `original` where random numbers or too many rows are mapped."""
    import torch
    from torch._functorch.vmap import _broadcast_to_and_flatten, _process_batched_inputs
    from torch.utils._pytree import tree_flatten, tree_unflatten

    def mapped(function, in_dims, out_dims, randomness, chunk_size, *arguments, **named):
        count, dims, values, spec = _process_batched_inputs(in_dims, arguments, function)
        if randomness != "error" or count > MOST_ROWS:
            return original(function, in_dims, out_dims, randomness, chunk_size, *arguments, **named)
        rows = []
        for row in range(count):
            own = [value if dim is None else value.select(dim, row) for value, dim in zip(values, dims)]
            rows.append(tree_flatten(function(*tree_unflatten(own, spec), **named)))
        made = rows[0][1]
        is_one = out_dims is None or isinstance(out_dims, int)
        places = [out_dims] * len(rows[0][0]) if is_one else _broadcast_to_and_flatten(out_dims, made)
        columns = zip(*(leaves for leaves, _ in rows))
        joined = [column[0] if place is None else torch.stack(column, place) for column, place in zip(columns, places)]
        return tree_unflatten(joined, made)

    return mapped


def of_all_pairs(function):
    """Calls one of transformers' mask functions once for all pairs of tokens, with indices that broadcast."""

    def mask(*indices):
        placed = [index.view([-1 if at == axis else 1 for axis in range(len(indices))]) for at, index in enumerate(indices)]
        return function(*placed).expand([index.shape[0] for index in indices])

    return mask


# The most experts over which a loop is written out, whether a token has come to them or not.
MOST_HITS = 256


def over_all_hits(watch):
    """Returns a mode that lets loops over the experts that some token has come to run over all experts.

    `for expert in (tokens_of > 0).nonzero()` has as many rounds as experts were hit by the traced tokens, and others for other
    tokens. The round of an expert without tokens computes with none, and changes nothing; where it does, the comparison of the
    trace with the model tells.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    class OverAllHits(TorchFunctionMode):
        def __init__(self):
            super().__init__()
            self.counts = {}

        def __torch_function__(self, function, types, arguments=(), keywords=None):
            found = function(*arguments, **(keywords or {}))
            name, given = getattr(function, "__name__", ""), arguments[0] if arguments else None
            if not (torch._C._is_tracing() and isinstance(given, torch.Tensor)):
                return found
            if name == "nonzero" and isinstance(found, torch.Tensor) and given.dim() == 1 and int(given.shape[0]) <= MOST_HITS:
                # The tensor is kept, so that no other gets its id.
                self.counts[id(found)] = (found, int(given.shape[0]))
                watch.followed.add(id(found))
            elif name == "unbind" and id(given) in self.counts and watch.is_of_data(given, True):
                count = self.counts[id(given)][1]
                return torch.arange(count, device=given.device).view(count, 1).unbind()
            return found

    return OverAllHits()
