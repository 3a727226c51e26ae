class Holder(nn.Module):
    """A module in the place of one of the model's. `holder[0]` is its child or tensor named "0"."""

    def __getitem__(self, name):
        name = str(name)
        for named in (self._modules, self._parameters, self._buffers):
            if name in named:
                return named[name]
        return getattr(self, name)


def _holder(root, path):
    for depth, name in enumerate(path, 1):
        if name not in root._modules:
            kind = BLOCKS.get(".".join(path[:depth]), Holder)
            root._modules[name] = kind()  # any name, including those that add_module refuses
        root = root._modules[name]
    return root
