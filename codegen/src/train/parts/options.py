"""The options of `train.py`, the values derived from them, and the combinations that are refused."""

import argparse
import math
import re
import sys
from pathlib import Path

import torch

from train_parts.batch_norm import HOW
from train_parts.host_trace import HostTrace
from train_parts.layout import TWO_WAY, copies_in, read_csv, refuse, replicas_of
from train_parts.offload import FLOOR, MODES
from train_parts.priority import SLICE
from train_parts.stages import HERE, form_of, note
from train_parts.without_flush import WITHOUT_FLUSH, refuse_without_flush, updates_of


# The schedules of torch's runtime, whose names it compares in lower case.
SCHEDULES = ("1F1B", "GPipe", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")


def options(text, plan):
    """Returns the parsed options; `text` is the script's docstring, and `plan` has the defaults."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedule", default=None, help="1F1B, GPipe, Interleaved1F1B, LoopedBFS, InterleavedZeroBubble, ZBVZeroBubble, DualPipeV, or a compute-only .csv table; PipeDream (an update after each micro-batch) and PipeDream-2BW (one per step) have no flush and keep several weight versions; a table with twice the stages runs two copies of the model in opposite directions")
    parser.add_argument("--vertical-sync", action="store_true", help="under PipeDream, a micro-batch uses weights with the same number of updates in all stages")
    parser.add_argument("--pipeline-ranks", type=counted, help="ranks of a pipeline; fewer than stages for interleaved schedules")
    parser.add_argument("--replicas", type=counts, default=plan.get("replicas", "1"), help="parallel pipelines, or pairs of two copies; or a number for each rank of a pipeline: 2,1")
    parser.add_argument("--shards", type=counted, help="ranks that share each stage, if stages are cut inside their operators; 1 runs them whole")
    parser.add_argument("--micro-batches", type=counted, default=None, help="micro-batches per step and pipeline, or per copy with two copies")
    parser.add_argument("--micro-batch-size", type=counted, help="samples per micro-batch; by default the plan's, else as traced")
    parser.add_argument("--steps", type=counted, default=10)
    parser.add_argument("--task", help="Python file that defines the training, see above")
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], default="sgd")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--clip", type=positive, help="largest total norm of all gradients; overrides `clip` of the task")
    parser.add_argument("--sharding", choices=["none", "zero1", "zero2", "zero3"], default=None, help="state that the replicas of a stage shard: zero1 the optimizer's state, zero2 also gradients, zero3 also parameters, gathered by block")
    parser.add_argument("--sharding-group", type=int, default=None, help="number of neighbouring replicas of a stage that shard together; each such group holds all: 8 on nodes of 8 GPUs keeps traffic inside nodes except one sum of slices per step; 0 for all replicas")
    parser.add_argument("--sync", choices=["buckets", "fifo", "p3"], help="how replicas sum gradients: in buckets, followed by one update; or in slices that are summed and updated one by one, in the order in which they are ready (fifo) or in which the next forward pass needs them (p3)")
    parser.add_argument("--batch-norm", choices=HOW, default="local", help="statistics of batch norms in stages with replicas: each replica's own (local); the same, averaged for checkpoints and validations (average); over a micro-batch on all replicas, with two sums per norm and pass (sync)")
    parser.add_argument("--collective", choices=["fastest", "hierarchical", "parameter-server"], help="how replicas sum a bucket: by the backend's all-reduce (fastest); inside machines, then slices of it between machines, then inside again (hierarchical); on one of them in turn, which updates the parameters and sends them back (parameter-server)")
    parser.add_argument("--slice", type=counted, default=plan.get("slice") or SLICE, help="most bytes per slice")
    parser.add_argument("--offload", choices=MODES, help="move activations to host memory until the backward pass: naive copies, pinned through page-locked buffers, non-blocking on streams of their own, both; for the blocks that the plan lists, else for whole stages")
    parser.add_argument("--offload-floor", type=counted, default=FLOOR, help="bytes; smaller tensors stay on the device")
    parser.add_argument("--offload-optimizer", action="store_true", help="keep the optimizer's state in host memory and update parameters there: with Adam this saves 8 bytes of device memory per float32 parameter that a rank updates, and a step moves 4 to the host and 4 back")
    parser.add_argument("--log", help="file for one line of JSON per step")
    parser.add_argument("--straggler", type=positive, default=1.2, help="a rank is reported as slow if its passes take this many times as long as those of the others of its stage, or as its own earlier ones, in 8 of 10 steps")
    parser.add_argument("--host-trace", action="store_true", help="report the script's own host time per pass at the end and in --log")
    parser.add_argument("--profile", metavar="FOLDER", help="after three steps, write the passes of one step on all ranks (timeline.json, for `model-analyze report --measured`), and the trace of torch's profiler for the next one (rank_N.json, for ui.perfetto.dev)")
    parser.add_argument("--validate-every", type=counted, default=100, help="steps between validations, if the task has them; there is also one after the last step")
    parser.add_argument("--dtype", choices=["fp32", "bf16", "fp16"], default="fp32", help="bf16, fp16: autocast, master weights keep their type; under fp16 losses are scaled, and steps with non-finite gradients are skipped")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--form", choices=["python", "torchscript"], help="format of the stages")
    parser.add_argument("--save", help="folder for checkpoints")
    parser.add_argument("--save-every", type=counted, default=100)
    parser.add_argument("--keep", type=counted, help="number of checkpoints to keep; all by default")
    parser.add_argument("--from", dest="weights", help="start with these weights (.safetensors, .pt, a folder of checkpoints or of transformers), by their names in the model")
    parser.add_argument("--resume", action="store_true", help="resume from the last checkpoint in --save, if there is one")
    parser.add_argument("--merge", help="write one state dict (.safetensors or .pt; with --like a folder of transformers) and exit")
    parser.add_argument("--like", help="with --merge: a folder of save_pretrained, from which the new one takes configuration, tokenizer and names of weights")
    parser.add_argument("--single", action="store_true", help="run the same steps in one process")
    parser.add_argument("--check", action="store_true", help="compare two steps under the schedule with one process: losses and all gradients")
    parser.add_argument("--allow-eval", action="store_true", help="train stages of a model that was traced in eval mode: no dropout, fixed statistics of batch norms")
    parser.add_argument("--allow-changes", action="store_true", help="run files of this folder that were changed after they were written")
    parser.add_argument("--any-torch", action="store_true", help="run with a torch other than 2.11")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=600, help="seconds to wait for a silent peer")
    parser.add_argument("--nnodes", type=counted, default=1, help="machines; start the script on each")
    parser.add_argument("--rdzv-endpoint", help="rendezvous of the machines: the first one's name and a port")
    parser.add_argument("--max-restarts", type=int, default=0, help="how often all ranks are restarted after a failure; with --save and --resume")
    parser.add_argument("--crash", help=argparse.SUPPRESS)
    return parser


def settle(arguments, manifest):
    """Adds the values that follow from the plan, the folder and the other options; refuses impossible combinations."""
    plan = arguments.plan
    if plan.get("untrainable") and not arguments.merge:
        sys.exit(f"the model cannot be trained: {plan['untrainable']}; `model-analyze verify --steps 0` compares what the stages compute")
    if not (manifest["training"] or arguments.allow_eval or arguments.merge or arguments.check):
        sys.exit(
            "the model was traced in eval mode, so dropout is off and statistics of batch norms are fixed: trace it with "
            "`model-analyze trace --train` and emit again, or train these stages unchanged with --allow-eval"
        )
    arguments.crash = tuple(int(part) for part in arguments.crash.split(",")) if arguments.crash else None
    if arguments.like and not arguments.merge:
        sys.exit("--like needs --merge FOLDER")
    if arguments.resume and not arguments.save:
        sys.exit("--resume needs --save")
    if arguments.single:
        given = {"--save": arguments.save, "--profile": arguments.profile, "--check": arguments.check}
        refuse(given, "--single", "the script without --single")
    if manifest["skips"] != "relay" and not (arguments.single or arguments.merge):
        sys.exit("torch.distributed.pipelining needs stages that relay skips: emit with --skips relay")
    default = "schedule.csv" if (HERE / "schedule.csv").is_file() else plan.get("schedule") or "1F1B"
    if default in WITHOUT_FLUSH.values() and arguments.schedule is None:
        if arguments.check or arguments.single:
            note(f"the plan is for {default}, whose steps have no equivalent in one process: running the steps of 1F1B")
            default = "1F1B"
        else:
            arguments.vertical_sync = arguments.vertical_sync or plan.get("vertical_sync", False)
    arguments.is_changed = (
        arguments.dtype != "fp32"
        or arguments.micro_batch_size not in (None, plan.get("micro_batch_size"))
        or arguments.schedule not in (None, default)
        or arguments.replicas != plan.get("replicas", "1")
        or arguments.shards not in (None, manifest.get("shards") or 1)
        or arguments.sharding not in (None, plan.get("sharding") or "none")
        or arguments.sharding_group not in (None, plan.get("sharding_group") or 0)
        or arguments.collective not in (None, plan.get("collective") or "fastest")
        or arguments.sync not in (None, plan.get("sync") or "buckets")
        or arguments.offload not in (None, plan.get("offload") or "none")
        or arguments.offload_optimizer
        or arguments.micro_batches not in (None, plan.get("micro_batches"))
    )
    arguments.micro_batch_size = arguments.micro_batch_size or plan.get("micro_batch_size")
    arguments.schedule = arguments.schedule or (str(HERE / default) if default.endswith(".csv") else default)
    arguments.updates = updates_of(arguments)
    if not (arguments.updates or arguments.schedule.endswith(".csv") or is_two_way(arguments) or arguments.schedule.lower() in map(str.lower, SCHEDULES)):
        sys.exit(f"--schedule {arguments.schedule} is none of {', '.join((*SCHEDULES, *dict.fromkeys(WITHOUT_FLUSH.values())))}, nor a .csv table")
    arguments.shards = arguments.shards or manifest.get("shards") or 1
    arguments.sharding = arguments.sharding or plan.get("sharding") or "none"
    if arguments.sharding_group and (arguments.sharding == "none" or arguments.sharding_group < 0):
        sys.exit(f"--sharding-group {arguments.sharding_group} needs --sharding zero1, zero2 or zero3")
    arguments.asks_group = arguments.sharding_group is not None
    if not arguments.asks_group and arguments.sharding != "none":
        arguments.sharding_group = plan.get("sharding_group")
    is_asked = arguments.sync is not None
    arguments.sync = arguments.sync or plan.get("sync") or "buckets"
    if (arguments.check or arguments.single) and not is_asked:
        arguments.sync = "buckets"
    arguments.offload = arguments.offload or plan.get("offload") or "none"
    arguments.offloads_blocks = any(about.get("offload") for about in manifest["stages"])
    arguments.csv_ranks, arguments.csv_is_split, arguments.copies = None, False, 1
    if is_two_way(arguments):
        how = f"`model-analyze simulate --schedule {arguments.schedule} --ranks {len(manifest['stages'])} --micro-batches 8 --write-csv order.csv`"
        sys.exit(f"{arguments.schedule} runs two copies of the model, which needs a table: write one with {how}, then use --schedule order.csv")
    if arguments.schedule.endswith(".csv"):
        arguments.passes = read_csv(arguments.schedule)
        arguments.csv_ranks = [sorted({stage for _, stage, _ in row}) for row in arguments.passes]
        arguments.csv_is_split = any(letter in "IW" for row in arguments.passes for letter, _, _ in row)
        in_table = max((number + 1 for row in arguments.passes for _, _, number in row), default=0)
        if not arguments.merge:
            arguments.copies = copies_in(arguments, len(manifest["stages"]))
        if arguments.single and arguments.micro_batches:
            in_table = arguments.micro_batches  # in one process there is no schedule
        if arguments.micro_batches not in (None, in_table):
            sys.exit(f"the schedule table is for {in_table} micro-batches" + " of each copy" * (arguments.copies > 1))
        arguments.micro_batches = in_table
    arguments.micro_batches = arguments.micro_batches or plan.get("micro_batches") or 2 * len(manifest["stages"])
    if arguments.updates and not arguments.merge:
        refuse_without_flush(manifest, arguments)
    if arguments.sync != "buckets" and not arguments.merge:
        refuse_slices(manifest, arguments)
        if replicas_of(arguments) == 1:  # nothing is sent
            arguments.sync = "buckets"
    if arguments.batch_norm == "sync" and not arguments.merge:
        refuse_norms(manifest, arguments)
    arguments.collective = arguments.collective or plan.get("collective") or "fastest"
    if arguments.collective != "fastest" and not (arguments.merge or arguments.single):
        refuse_collective(arguments)
    arguments.trace = HostTrace(arguments.host_trace)


def is_two_way(arguments):
    return re.sub(r"[^a-z]", "", arguments.schedule.lower()) in TWO_WAY


def refuse_slices(manifest, arguments):
    """Refuses options that slices with their own updates do not support, before anything starts."""
    given = {
        "--check": arguments.check,
        "--single": arguments.single,
        "--dtype fp16": arguments.dtype == "fp16",
        "--offload-optimizer": arguments.offload_optimizer,
        f"--clip {arguments.clip}": arguments.clip is not None,
        f"--sharding {arguments.sharding}": arguments.sharding != "none",
        f"--shards {arguments.shards}": arguments.shards > 1,
        f"--schedule {arguments.schedule}": bool(arguments.updates) or arguments.copies > 1,
        f"--replicas {arguments.replicas}": len(set(str(arguments.replicas).split(","))) > 1,
        "--form torchscript": any(form_of(about, arguments.form) == "torchscript" for about in manifest["stages"]),
    }
    refuse(given, f"--sync {arguments.sync}", "--sync buckets")
    for tied in manifest["tied"]:
        if tied["requires_grad"] and len({holder["stage"] for holder in tied["holders"]}) > 1:
            names = " and ".join(sorted({f"`{holder['name']}`" for holder in tied["holders"]}))
            sys.exit(f"{names} are one parameter of several stages, whose gradients are summed after those of replicas: use --sync buckets")


def refuse_collective(arguments):
    """Refuses options that need the backend's all-reduce, before anything starts."""
    given = {
        f"--sync {arguments.sync}": arguments.sync != "buckets",
        f"--sharding {arguments.sharding}": arguments.sharding != "none",
        f"--shards {arguments.shards}": arguments.shards > 1,
        f"--schedule {Path(arguments.schedule).name}": bool(arguments.updates) or arguments.copies > 1,
    }
    refuse(given, f"--collective {arguments.collective}", "--collective fastest")


def refuse_norms(manifest, arguments):
    """Refuses options that batch norms over replicas do not support, before anything starts."""
    given = {
        "--check": arguments.check,
        "--single": arguments.single,
        f"--shards {arguments.shards}": arguments.shards > 1,
        f"--schedule {Path(arguments.schedule).name}": bool(arguments.updates) or arguments.copies > 1,
        f"--replicas {arguments.replicas}": len(set(str(arguments.replicas).split(","))) > 1,
        "--form torchscript": any(form_of(about, arguments.form) == "torchscript" for about in manifest["stages"]),
    }
    refuse(given, "--batch-norm sync", "--batch-norm average")


def counted(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def counts(text):
    if not re.fullmatch("[1-9][0-9]*(,[1-9][0-9]*)*", text):
        raise argparse.ArgumentTypeError(f"{text} is neither a number above 0 nor a list of them, as 2,1")
    return text


def positive(text):
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number
