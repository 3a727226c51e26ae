"""Trains the stages of this folder with torch.distributed.pipelining. Written by model-analyze; needs torch 2.11.

    python train.py                                       one rank per stage, 1F1B, synthetic data; starts its own processes
    python train.py --replicas 2                          each stage on 2 ranks
    python train.py --replicas 2,1                        stage 0 on 2 ranks, stage 1 on one
    python train.py --replicas 2 --sharding zero1         which shard the optimizer's state
    python train.py --replicas 16 --sharding zero3 --sharding-group 8    in two groups of 8, each of which has all
    python train.py --shards 1                            whole stages, if they were cut inside their operators
    python train.py --replicas 2 --sync p3                gradients in slices, in the order of the next forward pass
    python train.py --schedule schedule.csv
    python train.py --schedule PipeDream                  updates after each micro-batch, weights stashed, no flush
    python train.py --schedule chimera.csv                a table of two copies of the stages, in opposite directions
    python train.py --offload both                        activations in host memory until the backward pass
    python train.py --offload-optimizer                   the optimizer's state and update in host memory
    python train.py --task task.py --save checkpoints --save-every 100
    python train.py --task task.py --save checkpoints --resume
    python train.py --task task.py --from model.safetensors         starts with these weights
    python train.py --merge model.safetensors --save checkpoints    the stages' weights as one state dict
    python train.py --merge folder --like llama/ --save checkpoints the same, as a folder of transformers
    python train.py --single --steps 10                   the same steps in one process, to compare
    python train.py --task task.py --profile profile      the passes of a step for `report --measured`, and torch's traces for Perfetto
    python train.py --check                               compares two steps with one process: losses and all gradients
    torchrun --nproc-per-node RANKS train.py              the same, started by torchrun

A task is a Python file with any of these definitions:

    def inputs(step, samples): ...     a tuple of the model's inputs, `samples` in the first dimension
    def target(step, samples): ...     tensors with `samples` in the first dimension, in any nesting of dict, list, tuple
        (with two more arguments, replica and replicas, they make the samples of one replica only)
    def loader(replica, replicas, samples): ...    instead of both: a DataLoader, or any iterable of pairs of inputs and
                                       targets with `samples` each, restarted every epoch; only ranks that need data make one
    def loss(outputs, target): ...     the mean loss of a micro-batch; `outputs` is the flat list of the model's outputs
    groups = [{"match": "*.bias|*norm*", "weight_decay": 0.0}, {"match": "*"}]    by names in the model; the first match counts
    def optimizer(parameters): ...     gets parameters, or the groups
    def lr(step): ...                  the learning rate, times a group's `lr_scale`; or: def scheduler(optimizer): ...
    large_batch = {"base": 0.1, "reference": 256, "warm_up": 500}    or the rule for large batches
    clip = 1.0                         the largest total norm of all gradients
    def validation(replica, replicas, samples): ...    a loader, evaluated every --validate-every steps in eval mode
    def validate(outputs, target): ... a dict of means of a micro-batch, in addition to its loss
    def log(step, values): ...
    whole = ["name"]                   inputs that every micro-batch takes whole, if the trace does not show it

Ranks are numbered replica by replica, unless a plan places stages on other machines: of two pipelines of three ranks,
the first has ranks 0, 1, 2. If stages have unequal replicas, the ranks of stage 0 come first, then those of stage 1;
micro-batches are dealt to the replicas of each stage in turn, and the replicas run in parallel. Shards of a stage are
neighbours, and count as one in this numbering. Of two copies in opposite directions (GEMS, Chimera, DualPipe), stage s
of the second is on the rank of stage p - 1 - s of the first; each takes half of the micro-batches, and for a task and
for batch norms each counts as a replica.
"""

import faulthandler
import logging
import math
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
try:
    from train_parts.batch_norm import average, let_sync
    from train_parts.check import check
    from train_parts.checkpoints import Checkpoints
    from train_parts.counts import peak_of
    from train_parts.cuts import Cuts, compare_data
    from train_parts.data import Batches, compare_loaders
    from train_parts.executor import Executor
    from train_parts.failures import failed, go_on, need_gpus
    from train_parts.fsdp import FullySharded
    from train_parts.groups import Groups
    from train_parts.hangs import DOING, Watch
    from train_parts.launch import REPORTS, hangs_file, launch, report
    from train_parts.layout import Layout, splits_backward
    from train_parts.looks import places_of
    from train_parts.offload import Offload
    from train_parts.one_process import merge, single
    from train_parts.options import options, settle
    from train_parts.pipelines import Pipeline
    from train_parts.priority import Sliced
    from train_parts.profile import PROFILE
    from train_parts.progress import Progress, about_gathered, about_host, about_kept, about_offload, about_slices, beside_prediction, found_slow, is_on
    from train_parts.saved import Saved
    from train_parts.stages import STAGES, Wrapped, autocast, load_stage, looks_alike, read_manifest, seed_step
    from train_parts.stragglers import BUSY, Stragglers, about_slow
    from train_parts.sync import sum_gradients
    from train_parts.task import Task, find_task
    from train_parts.update import NotFinite, Update, is_scaled, memory_of, parameter_at
    from train_parts.validation import Validation
    from train_parts.without_flush import WithoutFlush, agreed_length, end_epoch
except ModuleNotFoundError as error:
    if not str(error.name).startswith("train_parts"):
        raise
    sys.exit(f"{HERE / 'train_parts'} is missing, or a file of it: emit the stages again")

# Set from the plan, if there was one.
DEFAULTS = {}


def train(arguments, manifest):
    """Runs one rank; a failure ends it with a message, or with a report for the launcher."""
    rank = int(os.environ["RANK"])
    logging.getLogger("torch.distributed.pipelining").setLevel(logging.CRITICAL)  # it prints whole schedules
    is_launched = REPORTS in os.environ

    def ended(number, frame):
        print(f"rank {rank}: stopped, because another rank failed; {go_on(arguments)}\n", end="", file=sys.stderr, flush=True)  # one write: other ranks write too
        os._exit(143)

    # A handler would wait until a collective returns to Python; this script's own launcher needs no message.
    signal.signal(signal.SIGTERM, signal.SIG_DFL if is_launched else ended)
    if is_launched:  # Ctrl-C ends ranks and launcher, which says so
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if arguments.device == "cuda":
        local = int(os.environ.get("LOCAL_RANK", "0"))
        need_gpus(local + 1)
        torch.cuda.set_device(local)
        arguments.device = f"cuda:{local}"
    watch = None
    try:
        is_gpu = "cuda" in arguments.device
        if not is_gpu:
            os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "200")  # the flight recorder is off with gloo
        here = {"device_id": torch.device(arguments.device)} if is_gpu else {}  # otherwise NCCL guesses it from the rank
        dist.init_process_group("nccl" if is_gpu else "gloo", timeout=timedelta(seconds=arguments.timeout), **here)
        arguments.watch = watch = Watch(rank, dist.get_world_size(), arguments.timeout, DOING, lambda error: failed(error, rank, arguments, is_launched, watch))
        run = Run(arguments, manifest)
        is_same = True
        if arguments.check:
            is_same = check(run) is not False
        else:
            if arguments.weights:
                run.begin_with(arguments.weights)
            if arguments.resume:
                run.resume(arguments.save)
            steps(run, arguments)
        dist.barrier()
    except SystemExit as error:
        # This script exits with a text; a task that exits, even with 0, has not trained.
        place = f" in {DOING['pass']}" if DOING["pass"] else ""
        text = error.code if isinstance(error.code, str) else f"the task ended this rank by sys.exit({'' if error.code is None else error.code}){place}"
        if report(rank, "error", text):
            os._exit(1)
        sys.exit(text)
    except Exception as error:
        failed(error, rank, arguments, is_launched, watch)
    dist.destroy_process_group()
    if not is_same:
        report(rank, "error", "the check found differences")
        sys.exit(1)


def steps(run, arguments):
    leader = run.leader
    if run.start >= arguments.steps:
        if run.rank == leader:
            print(f"nothing to do: the checkpoint is of step {run.start}, --steps is {arguments.steps}", file=sys.stderr)
        return
    planned = DEFAULTS.get("planned")
    if planned and run.rank == leader:
        print(
            f"note: the plan is for {planned}, which keeps several weight versions and has no flush; "
            f"this script runs {Path(arguments.schedule).name} with a flush after each step: gradients are exact, times differ from the plan's",
            file=sys.stderr,
            flush=True,
        )
    if run.task.rule and run.rank == leader:
        print(f"learning rate: {run.task.rule}", file=sys.stderr, flush=True)
    samples = run.task.micro_batch * arguments.micro_batches * run.layout.pipelines
    slow = Stragglers(run.layout.peers(), arguments.straggler)
    progress = Progress(run.task, arguments, samples, run.start, slow) if run.rank == leader else None
    peak = run.peak()
    hangs, last = hangs_file(run.rank), {}

    def begin():
        arguments.watch.begin()
        if hangs:
            faulthandler.dump_traceback_later(arguments.timeout, file=hangs)

    def tell(step, loss, known):
        if len(run.reporters) > 1 and run.rank in run.reporters:
            total = torch.tensor([loss or 0.0], dtype=torch.float64, device=run.device)
            dist.all_reduce(total, group=run.groups[tuple(run.reporters)])
            loss = float(total)
        if progress:
            if peak and run.operations:  # both passes: three times the forward pass
                progress.share = 3 * run.operations * arguments.micro_batches * run.layout.pipelines / peak
            progress.tell(step + 1, {"loss": loss} | known)
        if arguments.crash and (run.rank, step + 1) == arguments.crash:
            os.kill(os.getpid(), signal.SIGKILL)  # for tests
        last.update(known)
        PROFILE.follow(step + 1)
        begin()

    begin()
    if arguments.profile:
        PROFILE.begin(arguments.profile, run.start, arguments.steps, run.rank, run.device)
    for first, step in stops(run, arguments):
        if run.without_flush:
            run.without_flush.steps(first, step + 1, tell)
        else:
            with arguments.trace.timed("step"):
                loss, known = run.step(step)
            arguments.trace.end_step()
            tell(step, loss, known)
        if run.validation and ((step + 1) % arguments.validate_every == 0 or step + 1 == arguments.steps):
            run.drain()
            run.average_norms()
            DOING["pass"] = f"the validation after step {step + 1}"
            values, count = run.validation.all()
            BUSY.begin_step()
            if progress:
                progress.tell_validation(step + 1, values, count)
        if arguments.save and ((step + 1) % arguments.save_every == 0 or step + 1 == arguments.steps):
            DOING["pass"] = f"the checkpoint after step {step + 1}"
            run.save(step + 1)
            DOING["saving"] = run.checkpoints
            if progress:
                progress.go_on()
    if run.checkpoints:
        run.checkpoints.wait()
    sliced = about_slices(run) if run.sends_slices else None
    faulthandler.cancel_dump_traceback_later()
    versions, count = None, 1
    if run.layout.copies > 1:
        versions = run.executor.told()
    if run.without_flush:
        versions = run.without_flush.told()
        if run.offload.mode != "none":  # over all steps: ranks are never between the same two steps
            last["offload"], count = run.offloaded(), arguments.steps - run.start
    host, stragglers = about_host(run) if arguments.host_trace else None, found_slow(run, slow)
    profiled = PROFILE.write(run.manifest["model"]["name"], run.rank == leader) if arguments.profile else None
    gathered = about_gathered(run) if arguments.sharding == "zero3" else None
    kept = about_kept(run) if arguments.offload_optimizer else None
    if progress:
        done = arguments.steps - run.start
        if stragglers:
            print(f"{about_slow(stragglers)}, over all steps", file=sys.stderr, flush=True)
        if host:
            progress.write({"step": arguments.steps, "host": host[1]})
            print(host[0], file=sys.stderr, flush=True)
        for text in filter(None, (gathered, kept, profiled)):
            print(text, file=sys.stderr, flush=True)
        if sliced:
            print(sliced, file=sys.stderr, flush=True)
        if versions:
            print(versions, file=sys.stderr, flush=True)
        if "offload" in last:
            print(about_offload(arguments, last["offload"], count), file=sys.stderr, flush=True)
        print(f"{done} steps in {time.perf_counter() - progress.begun:.1f} s", file=sys.stderr, flush=True)
        print(beside_prediction(arguments, progress.seconds, host and host[1]), end="", file=sys.stderr, flush=True)


def stops(run, arguments):
    """Yields the first and last step of uninterrupted runs: one step, or without a flush those up to a checkpoint or
    validation."""
    first = run.start
    while first < arguments.steps:
        step = first
        while run.without_flush and not (
            step + 1 == arguments.steps
            or (arguments.save and (step + 1) % arguments.save_every == 0)
            or (run.validation and (step + 1) % arguments.validate_every == 0)
        ):
            step += 1
        yield first, step
        first = step + 1


class Run(Groups, Saved):
    """One rank's part of the training."""

    def __init__(self, arguments, manifest):
        self.arguments, self.manifest = arguments, manifest
        self.rank, world = dist.get_rank(), dist.get_world_size()
        self.layout = Layout(manifest, arguments, arguments.schedule.lower())
        if world != self.layout.world:
            sys.exit(
                f"{world} ranks were started, {self.layout.world} are needed: "
                f"torchrun --nproc-per-node {self.layout.world} {Path(__file__).name} …"
            )
        self.device = torch.device(arguments.device)
        BUSY.on_gpu = self.device.type == "cuda"
        self.object_device = self.device if self.device.type == "cuda" else None
        self.task = Task(manifest, arguments)
        place, self.replica, self.shard = self.layout.place(self.rank)
        last = len(manifest["stages"]) - 1
        self.reporters = self.layout.ranks_of_stage(last, self.shard)  # together they know the loss
        self.leader = self.layout.ranks_of_stage(last, 0)[0]  # reports it
        self.make_groups()
        self.shard_group = self.groups.get(tuple(self.layout.shard_ranks(self.rank)))
        shards = [self.groups.get(tuple(self.layout.inner_ranks(self.rank)))]
        if self.layout.group_size < self.layout.shards:
            shards.append(self.groups[tuple(self.layout.outer_ranks(self.rank))])
        self.offload = Offload(arguments.offload, self.device, arguments.offload_floor)
        alike = tuple(self.layout.replicas_of_place(place, self.shard))
        self.norm_group = self.norm_groups.get(alike)
        self.stages = {}
        waits = arguments.trace.splits = splits_backward(arguments)
        for held in self.layout.stages_of[place]:
            about = manifest["stages"][held % self.layout.count]
            # A sharded model need not fit whole.
            shares = arguments.sharding == "zero3" and len(self.layout.sharers(place, self.shard)[0]) > 1
            where = "cpu" if shares else arguments.device
            module = load_stage(about, arguments.form, where, waits, shards if self.shard_group else (), self.offload)
            if self.norm_group is not None:
                let_sync(module, STAGES / about["files"]["python"], self.norm_group)
            self.stages[held] = Wrapped(module, about, arguments, self.offload)
            self.stages[held].is_last = about["stage"] == last
        self.looks_alike = looks_alike(manifest, arguments.form)
        self.modules = {held: wrapped.module for held, wrapped in self.stages.items()}
        self.cuts = Cuts(self.modules, manifest, self.shard_group is not None)
        self.pipelines = [
            Pipeline(self, number)
            for number in range(self.layout.pipelines)
            if self.rank in self.layout.members(number, self.shard)
        ]
        has_lists = (self.layout.is_unequal and not arguments.updates) or self.layout.copies > 1
        self.executor = Executor(self) if has_lists else None
        self.without_flush = None  # until the task's optimizer is known
        self.sync = self.make_sync(place)
        self.is_fully_shared = isinstance(self.sync, FullySharded)
        self.looks = self.make_looks()
        for wrapped in self.stages.values() if self.is_fully_shared else ():
            wrapped.sharing = self.sync
        self.sends_slices = isinstance(self.sync, Sliced)
        self.update = Update(self.task, self.modules, self.sync, (self.replica, self.shard), (world, self.rank), self.cuts, is_scaled(arguments), self.device if arguments.offload_optimizer else None)
        # Only ranks at a model's inputs and outputs need data: those of their own pipelines.
        self.wants = any(wrapped.late for wrapped in self.stages.values()), any(wrapped.is_last for wrapped in self.stages.values())
        self.batches = {}
        for pipeline in self.pipelines if any(self.wants) else ():
            made = Batches(self.task, pipeline.number, self.layout.pipelines, arguments.micro_batches)
            self.batches[pipeline.number] = made
        compare_loaders(self)
        # Steps without an end, and updates before it, need sums at once.
        shards = [module.shard for module in self.modules.values() if hasattr(module, "shard")]
        self.summed_later = [] if self.sends_slices or arguments.updates else [each for shard in shards for each in (shard, shard.outer) if each.size > 1]
        for shard in self.summed_later:
            shard.later = {}
        self.validation = Validation(self) if hasattr(self.task.file, "validation") else None
        if self.validation and any(isinstance(module, torch.jit.ScriptModule) for module in self.modules.values()):
            sys.exit("archives cannot leave training mode: use --form python for validation")
        if arguments.updates:
            self.without_flush = WithoutFlush(self)
        if arguments.sync != "buckets":
            self.epoch_steps = agreed_length(self, self.batches.values(), f"--sync {arguments.sync} needs: use --sync buckets")
        self.start, self.operations = 0, None  # operations of a micro-batch's forward pass, once known on the ranks of the last stage
        self.checkpoints = Checkpoints(arguments.save, arguments.keep, arguments.timeout) if arguments.save else None

    def peak(self):
        """Returns the peak operations per second of all ranks, if the plan is for these devices."""
        predicted = DEFAULTS.get("prediction")
        is_here = predicted and self.layout.shards == 1 and is_on(predicted, self.arguments.device)
        return peak_of(predicted, self.layout.world, self.arguments.dtype, self.modules.values()) if is_here else None

    def autocast(self):
        return autocast(self.arguments)

    def first_arguments(self, micro_batch):
        names = [port["from"].split(":", 1)[1] for port in self.manifest["stages"][0]["inputs"]]
        return tuple(micro_batch[name] for name in names)

    def scaled_loss(self, outputs, target, count=None):
        """Returns a micro-batch's part of the mean over `count` of them: by default over all pipelines of a step."""
        outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
        DOING["pass"] = f"the loss after {DOING['pass']}"
        places = places_of(outputs) if self.looks else None
        with self.arguments.trace.timed("stages"), autocast(self.arguments):
            loss = self.task.loss(outputs, target) / (count or self.arguments.micro_batches * self.layout.pipelines)
        if self.looks:
            self.looks.compare(loss, places)
        PROFILE.extend()  # it is part of the last stage's pass
        return self.update.scale.up(loss)

    def step(self, step):
        """Trains a step; returns the loss if this rank knows it, and the statistics of all ranks."""
        if self.sends_slices:
            return self.sliced_step(step)
        loss = self.gradients(step)
        DOING["pass"] = f"the update of step {step + 1}"
        loaders = [batches.loader for batches in self.batches.values() if batches.loader]
        with PROFILE.span("optimizer"):
            known, ended = self.update.apply(step, loss, any(loader.has_ended for loader in loaders), self.device)
        if ended:  # all start the next epoch together
            for loader in loaders:
                loader.begin(loader.epoch + 1)
            compare_loaders(self)
        if self.offload.mode != "none":
            known["offload"] = self.offloaded()
        return loss, known

    def sliced_step(self, step):
        """Trains a step whose slices are updated one by one; there are no statistics of all ranks at one time."""
        update = self.update
        for group in update.optimizer.param_groups if self.task.lr and update.optimizer else []:
            group["lr"] = self.task.rate(step) * group.get("lr_scale", 1.0)
        known = {"lr": float(update.optimizer.param_groups[0]["lr"]) if update.optimizer else None, "norm": None}
        self.sync.begin(step)
        loss = self.gradients(step)
        BUSY.end_step()
        if loss is not None and not math.isfinite(loss):
            raise NotFinite(f"the loss is not finite in step {step + 1}: stopped")
        if update.scheduler:
            update.scheduler.step()
        for loader in (batches.loader for batches in self.batches.values() if batches.loader):
            end_epoch(loader, self.epoch_steps)
        return loss, known | {"memory": memory_of(self.device)}

    def average_norms(self):
        """Averages the statistics of batch norms over replicas and copies, if requested."""
        layout = self.layout
        for stage in sorted({held % layout.count for held in self.modules} if self.arguments.batch_norm == "average" else ()):
            copies = [module for held, module in self.modules.items() if held % layout.count == stage]
            group = self.groups.get(tuple(layout.ranks_of_stage(stage, self.shard)))
            average(copies, group, layout.replicas[layout.place(self.rank)[0]] * layout.copies)

    def drain(self):
        """Waits until all parameters have the same number of updates."""
        if self.sends_slices:
            self.sync.drain()

    def offloaded(self):
        """Returns the offload traffic of a step and the bytes on the hosts, over all ranks."""
        found = self.offload.figures()
        sums = torch.tensor([float(value) for value in found.values()], dtype=torch.float64, device=self.device)
        dist.all_reduce(sums)
        return {name: total if name.startswith("seconds") else int(total) for name, total in zip(found, sums.tolist())}

    def gradients(self, step):
        """Leaves the gradients of a step in the parameters; returns the loss if this rank knows it."""
        seed_step(self.arguments.seed, step, self.rank // self.layout.shards)  # the shards of a stage draw the same numbers
        self.update.zero_grad()
        nothing = [{}] * self.arguments.micro_batches, [None] * self.arguments.micro_batches
        DOING["pass"] = f"the data of step {step + 1}"
        parts, targets = {}, {}
        for number in (pipeline.number for pipeline in self.pipelines):
            own = self.batches.get(number)
            parts[number], targets[number] = own.at(step, self.device, *self.wants) if own else nothing
        if self.shard_group is not None and step == self.start:
            compare_data(self.shard_group, parts, targets)
        with self.arguments.trace.timed("passes"):
            if self.executor:
                loss = self.executor.step(parts, targets)
            else:
                [pipeline] = self.pipelines
                loss = pipeline.step(parts[pipeline.number], targets[pipeline.number])
        DOING["pass"] = f"the sums of gradients of step {step + 1}"
        with PROFILE.span("collective"):
            self.average_gradients()
        return None if loss is None else loss / self.update.scale.value

    def average_gradients(self):
        """Sums gradients over the replicas of each stage, then over the copies of each tied parameter, then over shards where
        they have the same parameter for their parts."""
        if self.sync:
            self.sync.finish()
        for tied in self.manifest["tied"]:
            self.sum_tied(tied)
        if self.update.is_shared:
            self.sync.take_tied()
        for shard in self.summed_later:
            own = [self.update.own(parameter) for parameter in shard.later]
            sum_gradients([tensor for tensor in own if tensor is not None], shard.group)

    def sum_tied(self, tied):
        ranks = self.tied_ranks(tied, self.shard)
        if self.rank not in ranks or not tied["requires_grad"]:
            return
        copies, total = [], None
        for holder in tied["holders"]:
            for module in (module for held, module in self.modules.items() if held % self.layout.count == holder["stage"]):
                parameter = parameter_at(module, holder["name"])
                copies.append(parameter)
                gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
                if self.sync is None or self.sync.sums_tied:  # replicas have the sum already
                    gradient = gradient / len(self.layout.ranks_of_stage(holder["stage"], self.shard))
                total = gradient if total is None else total + gradient
        if len(ranks) > 1:
            dist.all_reduce(total, group=self.groups[ranks])
        for parameter in copies:
            parameter.grad = total.clone()


def main():
    arguments = options(__doc__, DEFAULTS).parse_args()
    arguments.plan = DEFAULTS
    if not torch.__version__.startswith("2.11.") and not arguments.any_torch:
        sys.exit(f"this script was written for torch 2.11, this is {torch.__version__}: install 2.11, or try --any-torch")
    manifest = read_manifest(arguments)
    settle(arguments, manifest)
    if arguments.merge:
        merge(arguments, manifest)
    elif arguments.single:
        single(arguments, manifest)
    elif "RANK" in os.environ:
        train(arguments, manifest)
    else:
        world = Layout(manifest, arguments, arguments.schedule.lower()).world
        if arguments.task:
            find_task(arguments.task)
        if arguments.device == "cuda":
            need_gpus(world // arguments.nnodes)
        launch(__file__, world, arguments.nnodes, arguments.rdzv_endpoint, arguments.max_restarts, go_on(arguments))


if __name__ == "__main__":
    main()
