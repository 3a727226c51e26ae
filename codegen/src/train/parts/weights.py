"""The weights that a run begins with, from the files that others write."""

import sys
from pathlib import Path

import torch

from train_parts.checkpoints import Part, last_checkpoint, model_in
from train_parts.stages import note


class Weights:
    """A model's weights by name, in a file of safetensors or of torch, in a folder of checkpoints, in one of them, or in
    a folder of safetensors as transformers writes it.

    Names may begin with one more part, or several, or lack the model's first one: `module.`, `state_dict.model.`.
    """

    def __init__(self, path, manifest):
        path = Path(path)
        source = path if (path / ".metadata").is_file() else last_checkpoint(path) if path.is_dir() else None
        files = [path] if path.is_file() else sorted(path.glob("*.safetensors")) if source is None else []
        if files and files[0].suffix == ".safetensors":
            from safetensors import safe_open

            places = {name: file for file in (safe_open(file, framework="pt") for file in files) for name in file.keys()}
            self.names, self.read = set(places), lambda name: places[name].get_tensor(name)
        elif source is not None or path.is_file():
            state = model_in(source) if source else flat(torch.load(path, map_location="cpu", weights_only=True, mmap=True))
            self.names, self.read = set(state), state.__getitem__
        else:
            sys.exit(f"--from {path}: neither a file of weights nor a folder of checkpoints or of safetensors")
        self.path, self.lacking = path, []
        self.own = {name for about in manifest["stages"] for name in about["parameters"]}
        self.more, self.less = self.prefixes()

    def prefixes(self):
        """Returns what this file's names begin with and the model's do not, and the reverse: with it most parameters are
        found."""
        found = {("", ""): len(self.own & self.names)}
        for name in self.own if len(self.own - self.names) else ():
            for other in self.ending(name):
                found[other, ""] = found.get((other, ""), 0) + 1
            first, _, rest = name.partition(".")
            if rest in self.names:
                found["", f"{first}."] = found.get(("", f"{first}."), 0) + 1
        most = max(found.values())
        best = [pair for pair, count in found.items() if count == most]
        if ("", "") in best:
            return "", ""
        if len(best) > 1:
            names = " and ".join(f"`{more or less}`" for more, less in sorted(best)[:2])
            sys.exit(f"--from {self.path}: it has as many of the model's parameters under {names}: write one of them to a file of its own")
        [(more, less)] = best
        note(f"names in {self.path} begin with `{more}`, the model's do not" if more else f"names in {self.path} lack the model's `{less}`")
        return more, less

    def ending(self, name):
        """Returns what stands before a name of the model in names of this file."""
        if not hasattr(self, "endings"):
            self.endings = {}
            for other in self.names:
                at = other.find(".")
                while at >= 0:
                    self.endings.setdefault(other[at + 1 :], []).append(other[: at + 1])
                    at = other.find(".", at + 1)
        return self.endings.get(name, [])

    def called(self, name):
        return self.more + name.removeprefix(self.less)

    @torch.no_grad()
    def fill(self, names, target, is_buffer):
        """Fills a tensor, or a part of one, of which a file may have any of its names.

        A buffer that it lacks stays as it is, for many are no part of a model's weights.
        """
        name = next((called for called in map(self.called, names) if called in self.names), None)
        if name is None:
            if not is_buffer:
                sys.exit(f"--from {self.path}: it lacks `{self.called(names[0])}`{self.instead()}")
            self.lacking.append(names[0])
            return
        value = self.read(name)
        if value.shape != target.shape:
            sys.exit(f"--from {self.path}: it has `{name}` as {list(value.shape)}, not {list(target.shape)}")
        for begin, values in target.boxes if isinstance(target, Part) else [([0] * value.dim(), target)]:
            values.copy_(value[tuple(slice(at, at + size) for at, size in zip(begin, values.shape))])

    def instead(self):
        """Says what this file has, where it has none of the model's parameters."""
        if any(self.called(name) in self.names for name in self.own):
            return ""
        return f", and has {len(self.names)} tensors of other names" + (f", as `{min(self.names)}`" if self.names else "")


def flat(value, prefix=""):
    """Returns the tensors of nested dicts, with their keys joined by dots."""
    if not isinstance(value, dict):
        return {prefix[:-1]: value} if isinstance(value, torch.Tensor) and prefix else {}
    return {name: tensor for key, item in value.items() for name, tensor in flat(item, f"{prefix}{key}.").items()}
