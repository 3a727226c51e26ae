

def again(function, *values, buffers=()):
    """Saves nothing inside a block: the backward pass recomputes it, with the same random numbers."""
    if not torch.is_grad_enabled():
        return function(*values)
    return checkpoint(
        function, *values, use_reentrant=False, context_fn=lambda: (nullcontext(), _unchanged(buffers))
    )


@contextmanager
def _unchanged(buffers):
    """Statistics are updated in the first pass, not during recomputation."""
    before = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        for buffer, value in zip(buffers, before):
            buffer.data.copy_(value)


def on_host(stage, function, *values, **options):
    """Keeps a block's saved activations in host memory, except the weights themselves."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in stage.parameters()}

    def pack(tensor):
        stays = tensor.device.type == "cpu" or tensor.untyped_storage().data_ptr() in weights
        return (tensor.device, tensor if stays else tensor.cpu())

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept[1].to(kept[0])):
        return function(*values, **options)
