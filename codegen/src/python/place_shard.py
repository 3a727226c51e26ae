def _shards():
    """Returns the module of the shards' exchanges; its file is next to this one, also if several folders are loaded."""
    spec = importlib.util.spec_from_file_location("shards", Path(__file__).with_name("shards.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Shard = _shards().Shard


def place_tensors(root):
    """Creates all tensors, uninitialised, under their names in the model: of those in CUTS this rank's part."""
    own = {}
    for name, (sizes, _) in (PARAMETERS | FROZEN | BUFFERS).items():
        own[name] = root.shard.part_sizes(name, sizes, *CUTS[name]) if name in CUTS else sizes
    for names, trains in ((PARAMETERS, True), (FROZEN, False)):
        for name, (_, dtype) in names.items():
            *path, last = name.split(".")
            parameter = nn.Parameter(torch.empty(own[name], dtype=dtype), requires_grad=trains)
            _holder(root, path)._parameters[last] = parameter
    for name, (_, dtype) in BUFFERS.items():
        *path, last = name.split(".")
        _holder(root, path)._buffers[last] = torch.empty(own[name], dtype=dtype)
    for name, (sizes, dtype) in CONSTANTS.items():
        _holder(root, ["_CONSTANTS_"]).register_buffer(name, torch.empty(sizes, dtype=dtype), persistent=False)
    for name in BLOCKS:
        _holder(root, name.split(".")).shard = root.shard
    if not CUTS:  # images may be in bands
        root.shard.attend(root)
    _tie(root)
