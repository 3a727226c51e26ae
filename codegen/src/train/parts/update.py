"""From the gradients of a step to its update: whether they are finite, their norm, the scale of losses, the
optimizer's step."""

import math
import resource
import sys

import torch
import torch.distributed as dist

from train_parts.checkpoints import flat_part
from train_parts.cuts import Cuts
from train_parts.deferred import DEFERRAL
from train_parts.host_optimizer import HostOptimizer
from train_parts.priority import Sliced
from train_parts.stages import note
from train_parts.stragglers import BUSY
from train_parts.sync import Served, is_by_element
from train_parts.task import BY_ELEMENT


class Scale:
    """The factor of losses that keeps small gradients from becoming zero in fp16, as torch's GradScaler.

    A step with a non-finite gradient is skipped by all ranks together, and halves the scale; many steps without one
    double it. A power of two changes no digit. A non-finite loss ends the run: no scale helps against it.
    """

    FIRST, LEAST, GROWTH = 2.0**16, 2.0**-14, 2000

    def __init__(self, is_on):
        self.is_on, self.value, self.good = is_on, self.FIRST if is_on else 1.0, 0

    def up(self, loss):
        """Returns a loss to differentiate; fp16 could not hold it."""
        return loss.float() * self.value if self.is_on and isinstance(loss, torch.Tensor) else loss

    def follow(self, is_lost, step):
        """Takes the outcome of a step, the same on all ranks."""
        self.good = 0 if is_lost else self.good + 1
        if is_lost:
            self.value /= 2
        elif self.good == self.GROWTH:
            self.value, self.good = 2 * self.value, 0
        if self.value < self.LEAST:
            raise NotFinite(f"gradients are not finite in step {step + 1} with losses scaled by {self.value:.1e}: stopped before the update")

    def state(self):
        return {"value": self.value, "good": self.good}


class Update:
    """From the gradients of a step to its update: whether they are finite, their norm over the whole model, the
    optimizer's step.

    The norm counts each parameter once: the first of replicas has it, the first of shards unless they have parts of it,
    the first holder of copies in several stages, and the first of two copies of the model. If replicas shard the
    update, each counts its pieces in place of the first, with groups those of the first group. The ranks exchange all
    this in one sum.

    A sum over ranks makes zeros of a gradient that none of them has. The optimizer would decay such a parameter, and keep
    state for it, as it does not in one process; so the ranks also tell which parameters have gradients.
    """

    def __init__(self, task, stages, sync=None, place=(0, 0), world=(1, 0), cuts=None, is_scaled=False, host_device=None):
        self.scale = Scale(is_scaled)
        self.task, self.sync, self.cuts = task, sync, cuts or Cuts({}, task.manifest, False)
        (replica, shard), (self.ranks, self.rank) = place, world
        self.stages, self.named = stages, named_parameters_of(stages)
        self.count = len(task.manifest["stages"])
        self.optimizer = task.optimizer(self.named)
        self.is_shared = hasattr(sync, "pieces")
        kind = type(self.optimizer)
        if isinstance(sync, Sliced) and self.optimizer:
            if kind.__name__ not in BY_ELEMENT or kind.__module__.partition(".")[0] != "torch":
                sys.exit(f"--sync with slices cannot be combined with {kind.__name__}, which may need whole parameters: use --sync buckets")
            sync.take(self.optimizer)
        looks_whole = self.optimizer and (kind.__module__.partition(".")[0] != "torch" or kind.__name__ not in BY_ELEMENT)
        if looks_whole and any(p in self.cuts for _, _, p in self.named):
            sys.exit(f"--shards cannot be combined with {kind.__name__}, which may need whole parameters: use --shards 1")
        if self.is_shared and self.optimizer:
            if looks_whole:
                how = "--collective fastest" if isinstance(sync, Served) else "--sharding none"
                sys.exit(f"replicas cannot shard the update of {kind.__name__}, which may need whole parameters: use {how}")
            sync.take(self.optimizer)
        self.scheduler = task.scheduler(self.optimizer)
        later = set()
        for holder in (holder for tied in task.manifest["tied"] for holder in tied["holders"][1:]):
            later |= {parameter_at(module, holder["name"]) for held, module in stages.items() if held % self.count == holder["stage"]}
        # The tensors that this rank updates: name, tensor, whether it counts in the norm.
        stepped = [(held, name, self.own(p), p) for held, name, p in self.named]
        is_first = self.is_shared and sync.copy == 0
        counts = lambda held, own, p: is_first if own is not p else held < self.count and replica == 0  # noqa: E731
        is_once = lambda p: self.cuts.is_first(p, shard) and p not in later  # noqa: E731
        self.stepped = [(name, own, counts(held, own, p) and is_once(p)) for held, name, own, p in stepped if own is not None]
        # The number of each parameter's name in the model, how many there are, and the parameters that have a gradient.
        self.known, self.count_known, self.present = {}, 0, set()
        if sync is not None or self.ranks > 1:
            self.follow_gradients()
        # For updates on the host, the optimizer gets host copies of them.
        is_on_host = host_device is not None and self.optimizer
        self.host = HostOptimizer(self.optimizer, [own for _, own, _ in self.stepped], host_device) if is_on_host else None

    def follow_gradients(self):
        """Notes from now on which parameters get gradients, by the first of a parameter's names in the manifest."""
        manifest = self.task.manifest
        holders = [holder["name"] for tied in manifest["tied"] for holder in tied["holders"]]
        names = sorted({*holders, *(name for about in manifest["stages"] for name in about["parameters"])})
        places = {name: place for place, name in enumerate(names)}
        shared = {holder["name"]: places[tied["holders"][0]["name"]] for tied in manifest["tied"] for holder in tied["holders"]}
        self.count_known = len(names)
        for stage, name, parameter in self.named:
            self.known[parameter] = next((shared[one] for one in self.names(stage, name, parameter) if one in shared), places[name])
            parameter.register_post_accumulate_grad_hook(self.has_come)
        DEFERRAL.arrived.append(self.has_come)

    def has_come(self, parameter):
        self.present.add(parameter)

    def own(self, parameter):
        """Returns the part of a parameter that is updated here: all of it, a piece, or nothing."""
        return self.sync.pieces.get(parameter, (None,))[0] if self.is_shared else parameter

    def keeper(self, parameter):
        """Returns the tensor that the optimizer has for a parameter here, and keeps state for."""
        own = self.own(parameter)
        return self.host.twins[own] if self.host and own is not None else own

    def step(self):
        """Runs the optimizer with the present gradients."""
        if self.optimizer:
            (self.host or self.optimizer).step()

    def refresh(self):
        """Copies the parameters' values again, if the updated tensors may be copies."""
        if self.is_shared:
            self.sync.refresh()
        if self.host:
            self.host.refresh()

    def apply(self, step, loss, has_ended, device):
        """Updates if all is finite; returns the statistics of the step, and whether some replica's data have ended."""
        found = [(name, own.grad.detach(), counts) for name, own, counts in self.stepped if own.grad is not None]
        if self.scale.is_on and found:
            torch._foreach_mul_([g for _, g, _ in found], 1.0 / self.scale.value)
        norms = torch.stack(torch._foreach_norm([g for _, g, _ in found])).double() if found else torch.zeros(0)
        counted = torch.tensor([counts for _, _, counts in found], dtype=torch.bool, device=norms.device)
        is_loss_lost = loss is not None and not math.isfinite(loss)
        is_lost = is_loss_lost or not bool(norms.isfinite().all())
        first_known = 3 + 2 * self.ranks
        sums = torch.zeros(first_known + self.count_known, dtype=torch.float64)
        sums[[first_known + self.known[parameter] for parameter in self.present]] = 1.0
        sums[0] = norms[counted].square().sum()
        sums[1], sums[2], sums[3 + self.rank] = float(has_ended), is_lost + 1e6 * is_loss_lost, memory_of(device)
        sums[3 + self.ranks + self.rank] = BUSY.end_step()
        if self.ranks > 1:
            sums = sums.to(device)
            dist.all_reduce(sums)
        sums = sums.tolist()
        for _, _, parameter in self.named if self.known else ():
            own = self.own(parameter)
            if own is not None and not sums[first_known + self.known[parameter]]:
                own.grad = None
        # A loss comes before the gradients that it spoils.
        is_left_out = bool(sums[2]) and self.scale.is_on and sums[2] < 1e6
        if self.scale.is_on:
            scale = {"scale": self.scale.value}
            self.scale.follow(is_left_out, step)
        if sums[2] and not is_left_out:
            is_lost = is_loss_lost if sums[2] >= 1e6 else is_lost  # a non-finite loss is reported rather than its gradients
            self.stop(step, is_lost, loss, [name for (name, _, _), norm in zip(found, norms) if not math.isfinite(norm)])
        groups = self.optimizer.param_groups if self.optimizer else []
        norm = None if is_left_out else math.sqrt(sums[0])
        if self.task.clip and found and not is_left_out and norm > self.task.clip:  # a rank may update nothing
            torch._foreach_mul_([g for _, g, _ in found], self.task.clip / (norm + 1e-6))
        for group in groups if self.task.lr else []:
            group["lr"] = self.task.rate(step) * group.get("lr_scale", 1.0)
        rates = [group["lr"] for group in groups]
        if not is_left_out:
            self.step()
        if self.scheduler and not is_left_out:
            self.scheduler.step()
        if self.is_shared and not is_left_out:
            self.sync.gather()
        known = {"lr": float(rates[0]) if rates else None, "norm": norm, "memory": max(sums[3 : 3 + self.ranks]), "busy": sums[3 + self.ranks : first_known]}
        return known | (scale | {"left_out": is_left_out} if self.scale.is_on else {}), int(sums[1])

    def stop(self, step, is_lost, loss, names):
        """Ends all ranks before the update: checkpoints stay valid."""
        if is_lost:
            what = "the loss" if loss is not None and not math.isfinite(loss) else f"the gradient of `{names[0]}`"
            raise NotFinite(f"{what} is not finite in step {step + 1}: stopped before the update")
        raise NotFinite(f"another rank has a number that is not finite in step {step + 1}: stopped before the update")

    def zero_grad(self):
        for _, _, parameter in self.named:
            parameter.grad = None
        for _, own, _ in self.stepped:
            own.grad = None
        self.present.clear()

    # -- checkpoints

    def about(self):
        """Returns the state outside of tensors, to be saved."""
        about = {"scale": self.scale.state()} if self.scale.is_on else {}
        if self.optimizer is not None:
            about["kinds"] = kinds_of(self.optimizer, self.scheduler)
            about["groups"] = [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]
            about["scheduler"] = self.scheduler.state_dict() if self.scheduler else None
            about["others"] = {f"{name}.{key}": value for _, name, key, _, value in self.values() if not isinstance(value, torch.Tensor)}
        return about

    def values(self):
        """Yields the optimizer's state here: stage, name, key, the parameter, the value."""
        for stage, name, parameter in self.named if self.optimizer is not None else ():
            own = self.keeper(parameter)
            for key, value in self.optimizer.state.get(own, {}).items() if own is not None else ():
                yield stage, name, key, parameter, value

    def tensors(self):
        return (found for found in self.values() if isinstance(found[4], torch.Tensor))

    def held(self, parameter, key, value):
        """Returns the part of a whole parameter's value that a state value is: all of it, a part, or nothing."""
        own = self.own(parameter)
        if not is_by_element(key, value, own):
            return value
        if own is not parameter:
            return self.cuts.of_whole(parameter, flat_part(parameter.shape, self.sync.pieces[parameter][1], value))
        return self.cuts.held(parameter, value)

    def begin_to_load(self, known):
        """Allocates the optimizer state of a checkpoint: (parameter, key, value, tensor to fill)."""
        by_name, found = {}, []
        for key in known:
            if key.startswith("optimizer."):
                name, _, last = key.removeprefix("optimizer.").rpartition(".")
                by_name.setdefault(name, []).append(last)
        for stage, name, parameter in self.named if self.optimizer is not None else ():
            own = self.keeper(parameter)
            name = next((one for one in self.names(stage, name, parameter) if one in by_name), None)
            for last in by_name[name] if own is not None and name is not None else ():
                key = f"optimizer.{name}.{last}"
                sizes, dtype = known[key].size, known[key].properties.dtype
                is_elements = last != "step" and list(sizes) == self.cuts.sizes(parameter)
                value = torch.zeros(own.shape if is_elements else sizes, dtype=dtype, device=own.device)
                found.append((parameter, key, value, self.held(parameter, last, value)))
        return found

    def names(self, stage, name, parameter):
        """Returns all names of a parameter, in any stage."""
        names = [name] + [other for other, p in self.stages[stage].named_parameters(remove_duplicate=False) if p is parameter]
        for tied in self.task.manifest["tied"]:
            if any(holder["stage"] == stage % self.count and holder["name"] in names for holder in tied["holders"]):
                names += [holder["name"] for holder in tied["holders"]]
        return list(dict.fromkeys(names))

    def load(self, about, states):
        """Takes loaded state: filled tensors, and the rest."""
        if self.scale.is_on and "scale" in about:
            self.scale.value, self.scale.good = about["scale"]["value"], about["scale"]["good"]
        if self.optimizer is None or "groups" not in about:
            return
        for known, own, what in zip(about.get("kinds", ()), kinds_of(self.optimizer, self.scheduler), ("optimizer", "scheduler")):
            if known and own and known != own:
                sys.exit(f"the checkpoint has the state of {known}, and the {what} here is {own}: resume with {known}, or begin with the weights alone, by --from")
        begins_anew = self.scheduler and not about.get("scheduler")
        if begins_anew:
            note(f"the checkpoint has no scheduler: {type(self.scheduler).__name__} begins at its first step")
        numbers, state = {}, {}
        for group in self.optimizer.param_groups:
            for own in group["params"]:
                numbers[own] = len(numbers)
        for parameter, key, value, _ in states:
            state.setdefault(numbers[self.keeper(parameter)], {})[key.rpartition(".")[2]] = value
        for stage, name, parameter in self.named:
            prefixes = [f"{one}." for one in self.names(stage, name, parameter)]
            for key, value in about.get("others", {}).items():
                if self.keeper(parameter) in numbers and any(key.rpartition(".")[0] + "." == prefix for prefix in prefixes):
                    state.setdefault(numbers[self.keeper(parameter)], {})[key.rpartition(".")[2]] = value
        if len(about["groups"]) != len(self.optimizer.param_groups):
            sys.exit(f"the checkpoint has {len(about['groups'])} groups of parameters, the task has {len(self.optimizer.param_groups)}")
        groups = [  # a scheduler that begins has put its rates there
            saved | (group if begins_anew else {}) | {"params": [numbers[own] for own in group["params"]]}
            for saved, group in zip(about["groups"], self.optimizer.param_groups)
        ]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        if self.scheduler and about.get("scheduler"):
            self.scheduler.load_state_dict(about["scheduler"])


def kinds_of(optimizer, scheduler):
    """Returns the names of both classes; None for a scheduler that is not there."""
    return [type(optimizer).__name__, type(scheduler).__name__ if scheduler else None]


def is_scaled(arguments):
    """Tells whether losses are scaled: a check compares unscaled gradients."""
    return arguments.dtype == "fp16" and not arguments.check


class NotFinite(Exception):
    """A loss or a gradient is infinite or NaN."""


def parameter_at(module, name):
    return dict(module.named_parameters(remove_duplicate=False))[name]


def named_parameters_of(stages):
    """Returns the trained parameters, as (stage, name, parameter); `stages` are modules by number."""
    seen = {}
    for stage, module in stages.items():
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                seen.setdefault(id(parameter), (stage, name, parameter))
    return list(seen.values())


def memory_of(device):
    """Returns the peak memory of this rank in bytes: of the GPU, or of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
