"""The size of a step: tokens, floating-point operations, and these as a share of the devices' peak."""

import torch
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode

# torch's counter has no formula for fused attention on CPUs, and none for heads that share keys and values.
KERNELS = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")
ATTENTION = [getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}", None) for kernel in KERNELS]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Operations(TorchDispatchMode):
    """Counts the operations of matrix products and convolutions by torch's formulas, as they run."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        made = function(*args, **kwargs)
        if function._overloadpacket in ATTENTION:
            query, key, value = (tensor.shape for tensor in args[:3])
            self.count += 2 * query[:-1].numel() * key[-2] * (query[-1] + value[-1])
        elif formula := flop_counter.flop_registry.get(function._overloadpacket):
            self.count += formula(*args, **kwargs, out_val=made)
        return made


def tokens_of(manifest):
    """Returns the tokens of a sample, if the model takes rows of integers; otherwise None."""
    for about in manifest["inputs"][:1]:
        if about["shape"] and len(about["shape"]) == 2 and about["dtype"] in ("int64", "int32", "int16", "uint8"):
            return about["shape"][1]
    return None


def peak_of(predicted, ranks, dtype, modules):
    """Returns the peak operations per second of the plan's devices, in the type that most of the model computes in."""
    peaks = predicted.get("peak") if predicted else None
    if not peaks or ranks != predicted["count"]:
        return None
    sizes = {}
    for parameter in (parameter for module in modules for parameter in module.parameters()):
        sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
    name = str(DTYPES.get(dtype) or max(sizes, key=sizes.get, default=torch.float32)).removeprefix("torch.")
    return peaks.get("tf32" if name == "float32" and torch.backends.cuda.matmul.allow_tf32 else name)
