"""The stages of this folder's parent as a PipelineModule of DeepSpeed, one per rank, as planned.

    model = pipeline(loss)  # loss(outputs of the last stage, target)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=[p for p in model.parameters() if p.requires_grad], config=CONFIG | {"optimizer": …})
    engine.train_batch(data_iter)  # pairs: the model's inputs in the order of INPUTS, a tuple if there are several; the target
"""
# DIFFERENCES
import importlib.util
import json
from pathlib import Path

import torch
from deepspeed import comm
from deepspeed.pipe import LayerSpec, PipelineModule
from torch import nn

CONFIG = {
    "gradient_clipping": 0.0,  # DeepSpeed's default is 1, train.py has none
    # CONFIG
}
STAGES = Path(__file__).resolve().parent.parent / "stages"
MANIFEST = json.loads((STAGES / "manifest.json").read_text())
INPUTS = [f"input:{given['name']}" for given in MANIFEST["inputs"]]


def sent(stage):
    """Names the inputs of stage `stage`: the model's inputs, or all values that it and later stages take from
    earlier ones, and inputs."""
    if stage == 0:
        return INPUTS
    taken = {port["from"] for about in MANIFEST["stages"][stage:] for port in about["inputs"]}
    return sorted(name for name in taken if name.startswith("input:") or int(name.split(":")[1]) < stage)


class Linked(torch.autograd.Function):
    """Returns tensors unchanged. In the backward pass all get a gradient, zeros if there is none: DeepSpeed sends
    one for each floating tensor that a stage has received, and expects one for each that it has sent."""

    @staticmethod
    def forward(ctx, anchor, *tensors):
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx, *gradients):
        return gradients[0].new_zeros(()), *gradients


def link(anchor, values):
    """Links the floating ones of named values to an anchor."""
    names = [name for name, value in values.items() if value.is_floating_point()]
    if names:
        values.update(zip(names, Linked.apply(anchor, *(values[name] for name in names))))


class Stage(nn.Module):
    """A stage with DeepSpeed's kind of inputs and outputs: a tensor, or a tuple."""

    def __init__(self, stage):
        super().__init__()
        self.about, self.takes = MANIFEST["stages"][stage], sent(stage)
        is_last = stage + 1 == len(MANIFEST["stages"])
        self.gives = [f"stage:{stage}:{port['name']}" for port in self.about["outputs"]] if is_last else sent(stage + 1)
        # Complex tensors are sent as pairs of numbers: DeepSpeed sends gradients only of floating ones.
        self.is_complex = {f"stage:{other['stage']}:{port['name']}" for other in MANIFEST["stages"] for port in other["outputs"] if "complex" in port["dtype"]}
        files = self.about["files"]
        if "python" in files:
            spec = importlib.util.spec_from_file_location(f"stage_{stage}", STAGES / files["python"])
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            self.module = module.load()
        else:
            self.module = torch.jit.load(STAGES / files["torchscript"])

        # DeepSpeed's optimizer needs a parameter on every rank.
        if not any(parameter.requires_grad for parameter in self.parameters()):
            self.nothing = nn.Parameter(torch.zeros(1))

    def train(self, mode=True):
        """A model that was traced in eval mode stays in it."""
        return super().train(mode and MANIFEST["training"])

    def forward(self, given):
        values = dict(zip(self.takes, (given,) if isinstance(given, torch.Tensor) else given, strict=True))
        device = next(iter(values.values())).device
        link(torch.zeros((), device=device), values)
        # Empty sums: outputs depend on all received values, even if none is computed from them.
        anchor = self.nothing.sum() if hasattr(self, "nothing") else torch.zeros((), device=device, requires_grad=True)
        anchor = anchor + sum(value.flatten()[:0].sum() for value in values.values() if value.is_floating_point())
        values = {name: torch.view_as_complex(value) if name in self.is_complex else value for name, value in values.items()}
        made = self.module(*(values[port["from"]] for port in self.about["inputs"]))
        made = (made,) if isinstance(made, torch.Tensor) else made
        values.update(zip((f"stage:{self.about['stage']}:{port['name']}" for port in self.about["outputs"]), made, strict=True))
        values = {name: torch.view_as_real(values[name]) if values[name].is_complex() else values[name] for name in self.gives}
        link(anchor, values)
        made = tuple(value.contiguous() for value in values.values())
        return made[0] if len(made) == 1 else made


class Planned(PipelineModule):
    """Tied parameters are in the stages that use them; their gradients are summed like those of TiedLayerSpec."""

    def _index_tied_modules(self):
        found = {}
        for number, tie in enumerate(MANIFEST["tied"]):
            names = {}
            for holder in tie["holders"]:
                names.setdefault(holder["stage"], holder["name"])
            if not tie["requires_grad"] or len(names) < 2:
                continue
            for data in range(self._grid.data_parallel_size):
                ranks = [self._grid.stage_to_global(stage_id=stage, data=data) for stage in sorted(names)]
                group = comm.new_group(ranks)
                if self.global_rank in ranks:
                    held = dict(self.forward_funcs[0].module.named_parameters(remove_duplicate=False))[names[self.stage_id]]
                    held.ds_pipe_replicated = self.global_rank != ranks[0]
                    found[f"tie_{number}"] = {"ranks": ranks, "group": group, "weight_attr": ["0"], "module": nn.ParameterList([held])}
        return found

    def get_tied_weights_and_groups(self):
        return [(tie["module"][0], tie["group"]) for tie in self.tied_comms.values()]

    def allreduce_tied_weight_gradients(self):
        for weight, group in self.get_tied_weights_and_groups():
            comm.all_reduce(weight.grad, group=group)


def pipeline(loss_fn, **options):
    """Returns the model; each process loads its own stage. `options` are PipelineModule's."""
    layers = [LayerSpec(Stage, stage) for stage in range(len(MANIFEST["stages"]))]
    return Planned(layers=layers, num_stages=len(layers), loss_fn=loss_fn, partition_method="uniform", **options)
