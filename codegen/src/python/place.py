def place_tensors(root):
    """Creates all tensors, uninitialised, under their names in the model."""
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
