"""The training task: a task file, or synthetic data; groups of parameters, rules of learning rates."""

import difflib
import fnmatch
import inspect
import math
import sys
from pathlib import Path

import torch

from train_parts.layout import replicas_of
from train_parts.stages import load_module, note


# Names that a task file may define.
TASK_NAMES = "clip groups inputs large_batch loader log loss lr optimizer scheduler target validate validation whole".split()

# What is trained on where a task lacks all of these.
MADE_UP = {
    "the task has neither `loader` nor `inputs`: the model is trained on random numbers": {"loader", "inputs"},
    "the task has no `loss`: outputs are drawn towards made-up numbers": {"loss"},
}

# Optimizers that update each element independently, so that replicas may shard the update.
BY_ELEMENT = "ASGD Adadelta Adagrad Adam AdamW Adamax NAdam RAdam RMSprop Rprop SGD".split()


class Task:
    """The training task; synthetic unless a task file defines it."""

    def __init__(self, manifest, arguments):
        self.file = load_task(arguments.task) if arguments.task else None
        self.manifest, self.seed = manifest, arguments.seed
        self.learning_rate = arguments.learning_rate
        self.optimizer_name = arguments.optimizer
        shapes = [about["shape"] for about in manifest["inputs"] if about["shape"]]
        self.micro_batch = arguments.micro_batch_size or (shapes[0][0] if shapes and shapes[0] else 1)
        self.traced = shapes[0][0] if shapes and shapes[0] else 1
        self.ramps = {}
        self.whole = getattr(self.file, "whole", [])
        self.lr, self.rule = getattr(self.file, "lr", None), None
        clip = getattr(arguments, "clip", None)
        self.clip = clip if clip is not None else getattr(self.file, "clip", None)
        self.inputs = getattr(self.file, "inputs", self.synthetic)
        self.target = getattr(self.file, "target", lambda step, samples: torch.zeros(samples))
        self.check()
        if hasattr(self.file, "large_batch"):
            self.lr, self.rule = large_batch(self.file.large_batch, self.micro_batch * arguments.micro_batches * replicas_of(arguments))

    def check(self):
        """Refuses inconsistent definitions, before the first step."""
        has = {name for name in TASK_NAMES if hasattr(self.file, name)}
        for one, other in (("loader", "inputs"), ("loader", "target"), ("lr", "scheduler"), ("large_batch", "lr"), ("large_batch", "scheduler")):
            if {one, other} <= has:
                sys.exit(f"the task has both `{one}` and `{other}`: define only one")
        for one, other in (("loader", "loss"), ("target", "loss"), ("validate", "validation")):
            if one in has and other not in has:
                sys.exit(f"the task has `{one}` and lacks `{other}`")
        for name in sorted(has - {"whole", "groups", "clip", "large_batch"}):
            if not callable(getattr(self.file, name)):
                sys.exit(f"`{name}` of the task is not a function")
        if self.clip is not None and not (isinstance(self.clip, (int, float)) and self.clip > 0):
            sys.exit(f"`clip`, the largest norm of gradients, must be a number above 0, not {self.clip!r}")
        made_up = [text for text, names in MADE_UP.items() if self.file and not has & names]
        if made_up:
            note(" and ".join(made_up))
        known = set(TASK_NAMES)
        for name, value in vars(self.file or object()).items() if self.file else ():
            if name not in known and getattr(value, "__module__", None) == "task" and callable(value):
                if near := difflib.get_close_matches(name, TASK_NAMES, 1, 0.8):
                    note(f"`{name}` of the task is not called; did you mean `{near[0]}`?")

    def synthetic(self, step, samples, replica, replicas):
        generator = torch.Generator().manual_seed(self.seed + step + replica * 1_000_003)
        made = []
        for about in self.manifest["inputs"]:
            if about["shape"] is None or about["dtype"] is None:
                sys.exit(f"the size of input `{about['name']}` is unknown: give --task with a function `inputs`")
            shape = list(about["shape"])
            if shape and shape[0] % self.traced == 0 and about["name"] not in self.whole:
                shape[0] = shape[0] // self.traced * samples
            dtype = getattr(torch, about["dtype"])
            if about.get("values") is not None:
                known = torch.tensor(about["values"], dtype=torch.float64).to(dtype).reshape(about["shape"])
                # Each micro-batch has the example's.
                made.append(torch.cat([known] * -(-shape[0] // max(len(known), 1)))[: shape[0]] if shape else known)
                continue
            low, high = about.get("range") or (None, None)
            if (dtype.is_floating_point or dtype.is_complex) and low is not None:
                made.append((torch.rand(shape, generator=generator) * (high - low) + low).to(dtype))
            elif dtype.is_complex:
                made.append(torch.randn(shape, generator=generator, dtype=dtype))
            elif dtype.is_floating_point:
                made.append(torch.randn(shape, generator=generator).to(dtype))
            elif dtype == torch.bool:
                made.append(torch.ones(shape, dtype=dtype))
            else:
                low, high = (0, 2) if low is None else (int(low), max(int(high), int(low) + 1))
                made.append(torch.randint(low, high, shape, generator=generator, dtype=dtype))
        return tuple(made)

    def loss(self, outputs, target):
        if hasattr(self.file, "loss"):
            found = self.file.loss(outputs, target)
            if not isinstance(found, torch.Tensor) or found.numel() != 1:
                what = f"a tensor of {found.numel()} numbers" if isinstance(found, torch.Tensor) else type(found).__name__
                sys.exit(f"loss() of the task returns {what}, not a tensor of one number")
            if torch.is_grad_enabled() and not found.requires_grad and any(output.requires_grad for output in outputs):
                sys.exit("loss() of the task returns a number without a gradient: it must be computed from the outputs, undetached")
            return found
        total = 0.0
        for index, output in enumerate(outputs):
            if output.requires_grad and output.numel():  # the mean of no numbers is NaN
                output = torch.view_as_real(output) if output.is_complex() else output.float()
                total = total + torch.nn.functional.mse_loss(output, self.ramp(output)) * (0.5 * (index + 1))
        return total

    def rate(self, step):
        """Returns the learning rate of a step."""
        found = self.lr(step)
        is_number = found.numel() == 1 if isinstance(found, torch.Tensor) else hasattr(type(found), "__float__")
        if not is_number or not 0 <= float(found) < math.inf:
            sys.exit(f"lr({step}) of the task returns {found!r}, not a finite number of at least 0")
        return float(found)

    def ramp(self, output):
        """The synthetic target of outputs; made once, so that a loss costs no more than usual."""
        about = (output.shape, output.device)
        if about not in self.ramps:
            self.ramps[about] = torch.linspace(-1.0, 1.0, output.numel(), device=output.device).reshape(output.shape)
        return self.ramps[about]

    def optimizer(self, named):
        """Makes the optimizer of (stage, name, parameter) triples: in the task's groups, if it has any."""
        parameters = [parameter for _, _, parameter in named]
        if not parameters:
            return None
        if hasattr(self.file, "groups"):
            parameters = self.grouped(named)
        if hasattr(self.file, "optimizer"):
            made = self.file.optimizer(parameters)
            if not isinstance(made, torch.optim.Optimizer):
                sys.exit(f"optimizer() of the task returns {type(made).__name__}, not an optimizer of torch")
            if any(each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD for each in inspect.signature(made.step).parameters.values()):
                sys.exit(f"a step of {type(made).__name__} needs a closure that computes the loss again, which a pipeline cannot be asked for: use another optimizer")
            return made
        if self.optimizer_name == "adamw":
            return torch.optim.AdamW(parameters, lr=self.learning_rate)
        return torch.optim.SGD(parameters, lr=self.learning_rate, momentum=0.9)

    def group_of(self, name):
        """Returns the number of the first group whose pattern matches a parameter's name."""
        for number, group in enumerate(self.file.groups):
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in group["match"].split("|")):
                return number
        return sys.exit(f"no group of the task matches `{name}`: end the list with {{'match': '*'}}")

    def grouped(self, named):
        """Sorts parameters into the task's groups. Each stage has all groups, even if empty."""
        groups = self.file.groups
        for group in groups:
            if not isinstance(group, dict) or not isinstance(group.get("match"), str):
                sys.exit(f"a group of the task must be a dict with `match`, patterns of names separated by |, not {group!r}")
            if self.lr and "lr" in group:
                sys.exit("the task has `lr(step)`, and a group with its own `lr`: give the group an `lr_scale`")
        for tied in self.manifest["tied"]:
            if len({self.group_of(holder["name"]) for holder in tied["holders"]}) > 1:
                names = " and ".join(sorted({f"`{holder['name']}`" for holder in tied["holders"]}))
                sys.exit(f"{names} are one parameter, and the task has them in different groups")
        made = [{key: value for key, value in group.items() if key != "match"} | {"params": []} for group in groups]
        for _, name, parameter in named:
            made[self.group_of(name)]["params"].append(parameter)
        return made

    def scheduler(self, optimizer):
        if optimizer is None or not hasattr(self.file, "scheduler"):
            return None
        made = self.file.scheduler(optimizer)
        if isinstance(made, torch.optim.lr_scheduler.ReduceLROnPlateau):
            sys.exit("ReduceLROnPlateau needs the validation's result, which only one rank has: use another scheduler, or lr(step)")
        if not isinstance(made, torch.optim.lr_scheduler.LRScheduler):
            sys.exit(f"scheduler() of the task returns {type(made).__name__}, not a scheduler of torch")
        return made


def large_batch(rule, samples):
    """Returns the learning rate by step, after "Accurate, Large Minibatch SGD" (2017), and a description of it.

    The rate is proportional to the global batch, and grows to that value gradually from `base`.
    """
    wanted = {"base", "reference", "warm_up"}
    if not isinstance(rule, dict) or not wanted <= set(rule) <= wanted | {"milestones"}:
        sys.exit(f"`large_batch` of the task must be a dict of {', '.join(sorted(wanted))} and optionally milestones, not {rule!r}")
    base, warm_up, milestones = rule["base"], rule["warm_up"], rule.get("milestones", [])
    peak = base * samples / rule["reference"]

    def lr(step):
        rate = base + (peak - base) * min(1.0, step / max(1, warm_up))
        return rate * 0.1 ** sum(step >= milestone for milestone in milestones)

    text = f"{samples} samples per step, {rule['reference']} at a rate of {base:g}: {peak:g} after {warm_up} steps"
    text += f", a tenth from each of the steps {milestones}" if milestones else ""
    return lr, text + "; torch's SGD needs no momentum correction, batch norms see one micro-batch"


def load_task(path):
    find_task(path)
    return load_module(path, "task")


def find_task(path):
    if not Path(path).is_file():
        sys.exit(f"--task {path}: no such file")
