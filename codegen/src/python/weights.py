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


# Size and CRC-32 of stage_K.safetensors; None if they were unknown when this was written.
WEIGHTS = None


def _compare(path):
    """Raises if the weights are not those that were written with this source."""
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
