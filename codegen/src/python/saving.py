

class _Kept(threading.local):
    """`with kept: …` makes a result that blocks keep which are recomputed but for such results.

    Only such lines run in a mode that sees each operator: elsewhere it would cost the host more than small operators take.
    """

    mode = nullcontext()

    def __enter__(self):
        self.mode.__enter__()

    def __exit__(self, *error):
        self.mode.__exit__(*error)

    @contextmanager
    def during(self, mode):
        before, self.mode = self.mode, mode
        try:
            yield
        finally:
            self.mode = before


kept = _Kept()
# What such lines compute; views and casts beside it are made again.
_DEAR = [
    torch.ops.aten.addmm,
    torch.ops.aten.baddbmm,
    torch.ops.aten.bmm,
    torch.ops.aten.convolution,
    torch.ops.aten.mm,
    torch.ops.aten._grouped_mm,
    torch.ops.aten._scaled_dot_product_cudnn_attention,
    torch.ops.aten._scaled_dot_product_efficient_attention,
    torch.ops.aten._scaled_dot_product_flash_attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu,
]


def _policy(context, operator, *_, **__):
    is_dear = getattr(operator, "overloadpacket", None) in _DEAR
    return CheckpointPolicy.MUST_SAVE if is_dear else CheckpointPolicy.PREFER_RECOMPUTE


def again(function, *values, buffers=(), light=False):
    """Saves nothing inside a block, or only what is kept: the backward pass recomputes the rest, with the same random
    numbers."""
    if not torch.is_grad_enabled():
        return function(*values)

    def contexts():
        if not light:
            return nullcontext(), _unchanged(buffers, nullcontext())
        first, second = create_selective_checkpoint_contexts(_policy)
        return kept.during(first), _unchanged(buffers, kept.during(second))

    return checkpoint(function, *values, use_reentrant=False, context_fn=contexts)


@contextmanager
def _unchanged(buffers, inner):
    """Statistics are updated in the first pass, not during recomputation."""
    before = [buffer.clone() for buffer in buffers]
    try:
        with inner:
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
