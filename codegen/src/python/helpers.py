class Holder(nn.Module):
    """Stands where a module of the model stood. `holder[0]` is its child or tensor named "0"."""

    def __getitem__(self, name):
        name = str(name)
        for named in (self._modules, self._parameters, self._buffers):
            if name in named:
                return named[name]
        return getattr(self, name)


def _holder(root, path):
    for name in path:
        if name not in root._modules:
            root._modules[name] = Holder()  # any name, also one that add_module refuses
        root = root._modules[name]
    return root


def place_tensors(root):
    """Makes all tensors, not filled yet, under their names in the model."""
    for names, trains in ((PARAMETERS, True), (FROZEN, False)):
        for name, (sizes, dtype) in names.items():
            *path, last = name.split(".")
            parameter = nn.Parameter(torch.empty(sizes, dtype=dtype), requires_grad=trains)
            _holder(root, path)._parameters[last] = parameter
    for name, (sizes, dtype) in BUFFERS.items():
        *path, last = name.split(".")
        _holder(root, path)._buffers[last] = torch.empty(sizes, dtype=dtype)
    for name, (sizes, dtype) in CONSTANTS.items():
        _holder(root, ["_CONSTANTS_"]).register_buffer(name, torch.empty(sizes, dtype=dtype), persistent=False)
    _tie(root)


def _tie(root):
    for second, first in TIED.items():
        *path, last = first.split(".")
        tensor = _holder(root, path)[last]
        *path, last = second.split(".")
        holder = _holder(root, path)
        if isinstance(tensor, nn.Parameter):
            holder._parameters[last] = tensor
        else:
            holder._buffers[last] = tensor


# Size and CRC-32 of stage_K.safetensors; None where that was not known when this was written.
WEIGHTS = None


def _compare(path):
    """Raises where the weights are not those that were written with this source."""
    if WEIGHTS is None:
        return
    size, checksum = WEIGHTS
    found = 0
    if path.stat().st_size == size:
        with open(path, "rb") as file:
            while part := file.read(1 << 20):
                found = zlib.crc32(part, found)
        if f"{found:08x}" == checksum:
            return
    raise ValueError(f"{path} is not the file that was written with {__file__}: emit the stages again, or name it, load(weights)")


def load(weights=None, device="cpu"):
    """Returns the stage with its weights: those that were written with it, or a file that is named."""
    from safetensors.torch import load_file

    if weights is None:
        weights = Path(__file__).with_name("stage_K.safetensors")
        _compare(weights)
    tensors = load_file(weights, device=str(device))
    with torch.device("meta"):
        stage = Stage()
    for names in (PARAMETERS, FROZEN, BUFFERS, {f"_CONSTANTS_.{name}": about for name, about in CONSTANTS.items()}):
        for name, (_, dtype) in names.items():
            tensor = tensors[name]
            if tensor.data_ptr() % 64:
                # Kernels may add up unaligned data in another order, and those of complex numbers fault.
                tensor = tensor.clone()
            if dtype.is_complex:
                tensor = torch.view_as_complex(tensor)
            *path, last = name.split(".")
            holder = _holder(stage, path)
            if last in holder._parameters:
                trains = name in PARAMETERS
                holder._parameters[last] = nn.Parameter(tensor, requires_grad=trains)
            else:
                holder._buffers[last] = tensor
    _tie(stage)
    return stage
