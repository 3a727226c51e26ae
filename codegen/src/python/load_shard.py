def load(weights=None, device="cpu", shard=None):
    """Returns the stage with its weights: the file that was written with it, or a given one.

    Of the tensors in CUTS only the part of `shard` is read; without a shard the stage is whole.
    """
    from safetensors import safe_open

    if weights is None:
        weights = Path(__file__).with_name("stage_K.safetensors")
        _compare(weights)
    with torch.device("meta"):
        stage = Stage(shard)
    with safe_open(weights, framework="pt", device=str(device)) as file:
        for names in (PARAMETERS, FROZEN, BUFFERS, {f"_CONSTANTS_.{name}": about for name, about in CONSTANTS.items()}):
            for name, (_, dtype) in names.items():
                tensor = stage.shard.read_part(file.get_slice(name), *CUTS[name]) if name in CUTS else file.get_tensor(name)
                if tensor.data_ptr() % 64:
                    # Kernels may sum unaligned data in another order, and those of complex numbers fault.
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
