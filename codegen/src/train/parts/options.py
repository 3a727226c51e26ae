"""What `train.py` is started with, what follows from it, and what does not go together."""

import argparse
import math
import os
import re
import sys
from pathlib import Path

import torch

from train_parts.batch_norm import HOW
from train_parts.host_trace import HostTrace
from train_parts.layout import TWO_WAY, copies_in, read_csv, refuse, replicas_of
from train_parts.offload import FLOOR, MODES
from train_parts.priority import SLICE
from train_parts.stages import HERE, form_of
from train_parts.without_flush import WITHOUT_FLUSH, refuse_without_flush, updates_of


def options(text, plan):
    """Returns what the script takes; `text` is its own, and `plan` has the defaults."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedule", default=None, help="1F1B, GPipe, Interleaved1F1B, LoopedBFS, InterleavedZeroBubble, ZBVZeroBubble, DualPipeV, or a compute-only .csv table; PipeDream (an update after each micro-batch) and PipeDream-2BW (one a step) never drain and keep versions of the weights; a table with twice the stages runs two copies of the model in opposite directions")
    parser.add_argument("--vertical-sync", action="store_true", help="under PipeDream all stages take weights of the same number of updates")
    parser.add_argument("--pipeline-ranks", type=counted, help="ranks of a pipeline; fewer than stages for interleaved schedules")
    parser.add_argument("--replicas", default=plan.get("replicas", "1"), help="pipelines side by side, or pairs of two copies; or a number for each rank of a pipeline: 2,1")
    parser.add_argument("--shards", type=counted, help="ranks that hold each stage together, where stages are cut inside their operators; 1 runs them whole")
    parser.add_argument("--micro-batches", type=counted, default=None, help="micro-batches of a pipeline in a step, of each of two copies")
    parser.add_argument("--micro-batch-size", type=counted, help="samples in a micro-batch; the plan's by default, or as traced")
    parser.add_argument("--steps", type=counted, default=10)
    parser.add_argument("--task", help="Python file with what is trained on, see above")
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], default="sgd")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--clip", type=positive, help="largest norm of all gradients together; before `clip` of the task")
    parser.add_argument("--sharding", choices=["none", "zero1", "zero2", "zero3"], default=None, help="what the replicas of a stage share out: zero1 the optimizer's state, zero2 gradients, too, zero3 parameters, too, gathered by block")
    parser.add_argument("--sharding-group", type=int, default=None, help="so many replicas of a stage, neighbours, share out together, and each such group has all: 8 on nodes of 8 GPUs keeps traffic inside nodes but for one sum of slices a step; 0 for all replicas together")
    parser.add_argument("--sync", choices=["buckets", "fifo", "p3"], help="how replicas sum gradients: in buckets, and then all are stepped; in slices that are summed and stepped by themselves, as they come (fifo) or those first that the next forward pass asks for first (p3)")
    parser.add_argument("--batch-norm", choices=HOW, default="local", help="statistics of batch norms where stages have replicas: each replica's own (local); those, averaged for checkpoints and validations (average); those of a micro-batch on all replicas, two sums a norm and pass (sync)")
    parser.add_argument("--collective", choices=["fastest", "hierarchical", "parameter-server"], help="how replicas sum a bucket: as the backend does it (fastest); inside machines, slices of it across, and inside again (hierarchical); on one of them, in turn, which steps its parameters and sends them back (parameter-server)")
    parser.add_argument("--slice", type=counted, default=plan.get("slice") or SLICE, help="bytes of a slice at most")
    parser.add_argument("--offload", choices=MODES, help="activations wait in host memory for the backward pass: naive copies, pinned through page-locked buffers, non-blocking on streams of their own, both; of the blocks that the plan lists, or else of whole stages")
    parser.add_argument("--offload-floor", type=counted, default=FLOOR, help="bytes; what is smaller stays")
    parser.add_argument("--offload-optimizer", action="store_true", help="the optimizer's state stays in host memory and parameters are stepped there: with Adam a rank's device saves 8 bytes for each float32 parameter that it steps, and a step moves 4 to the host and 4 back")
    parser.add_argument("--log", help="file for a line of JSON each step")
    parser.add_argument("--straggler", type=positive, default=1.2, help="a rank is called slow that takes so many times as long in its passes as the others of its stage, or than it took before, in 8 of 10 steps")
    parser.add_argument("--host-trace", action="store_true", help="say at the end what the script itself costs the host for each pass, and put it into --log")
    parser.add_argument("--profile", metavar="FOLDER", help="after three steps, write when each rank ran which pass of a step (timeline.json, for `model-analyze report --measured`), and what torch's profiler sees in the next one (rank_N.json, for ui.perfetto.dev)")
    parser.add_argument("--validate-every", type=counted, default=100, help="steps between validations, where the task has some; the last step has one, too")
    parser.add_argument("--dtype", choices=["fp32", "bf16", "fp16"], default="fp32", help="bf16, fp16: autocast, master weights stay as they are; under fp16 losses are scaled, and steps whose gradients are not finite are left out")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--form", choices=["python", "torchscript"], help="which form of the stages")
    parser.add_argument("--save", help="folder for checkpoints")
    parser.add_argument("--save-every", type=counted, default=100)
    parser.add_argument("--keep", type=counted, help="how many checkpoints stay; all of them by default")
    parser.add_argument("--from", dest="weights", help="begin with these weights (.safetensors, .pt, a folder of checkpoints), by their names in the model")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --save, if there is one")
    parser.add_argument("--merge", help="write one state dict (.safetensors or .pt; with --like a folder of transformers) and end")
    parser.add_argument("--like", help="with --merge: a folder of save_pretrained, whose configuration, tokenizer and names of weights the new one has")
    parser.add_argument("--single", action="store_true", help="the same steps in one process")
    parser.add_argument("--check", action="store_true", help="one step under the schedule beside one process: losses and all gradients")
    parser.add_argument("--allow-eval", action="store_true", help="train stages of a model that was traced in eval mode: no dropout, batch norms as they are")
    parser.add_argument("--allow-changes", action="store_true", help="run files of this folder that were changed after they were written")
    parser.add_argument("--any-torch", action="store_true", help="run with another torch than 2.11")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=600, help="seconds after which a silent peer is given up")
    parser.add_argument("--nnodes", type=counted, default=1, help="machines; start the script on each")
    parser.add_argument("--rdzv-endpoint", help="where machines meet: the first one's name and a port")
    parser.add_argument("--max-restarts", type=int, default=0, help="how often all ranks are started again when one fails; with --save and --resume")
    parser.add_argument("--crash", help=argparse.SUPPRESS)
    return parser


def settle(arguments, manifest):
    """Puts what follows from the plan, the folder and each other into the arguments; refuses what does not go together."""
    plan = arguments.plan
    if not (manifest["training"] or arguments.allow_eval or arguments.merge or arguments.check):
        sys.exit(
            "the model was traced in eval mode, so dropout is off and batch norms keep their statistics: trace it with "
            "`model-analyze trace --train` and emit again, or train these stages as they are with --allow-eval"
        )
    arguments.crash = tuple(int(part) for part in arguments.crash.split(",")) if arguments.crash else None
    if arguments.like and not arguments.merge:
        sys.exit("--like goes with --merge FOLDER")
    if arguments.resume and not arguments.save:
        sys.exit("--resume needs --save")
    if manifest["skips"] != "relay" and not (arguments.single or arguments.merge):
        sys.exit("torch.distributed.pipelining needs stages that relay skips: emit with --skips relay")
    default = "schedule.csv" if (HERE / "schedule.csv").is_file() else plan.get("schedule") or "1F1B"
    if default in WITHOUT_FLUSH.values() and arguments.schedule is None:
        if arguments.check or arguments.single:
            if os.environ.get("RANK", "0") == "0":
                print(f"note: the plan is for {default}, whose steps are no steps of one process: these are those of 1F1B", file=sys.stderr)
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
    arguments.shards = arguments.shards or manifest.get("shards") or 1
    arguments.sharding = arguments.sharding or plan.get("sharding") or "none"
    if arguments.sharding_group and (arguments.sharding == "none" or arguments.sharding_group < 0):
        sys.exit(f"--sharding-group {arguments.sharding_group} is a number of replicas that share something out: with --sharding zero1, zero2 or zero3")
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
    if re.sub(r"[^a-z]", "", arguments.schedule.lower()) in TWO_WAY:
        how = f"`model-analyze simulate --schedule {arguments.schedule} --ranks {len(manifest['stages'])} --micro-batches 8 --write-csv order.csv`"
        sys.exit(f"{arguments.schedule} runs two copies of the model by a table: write one with {how}, then --schedule order.csv")
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
        if replicas_of(arguments) == 1:  # which send nothing
            arguments.sync = "buckets"
    if arguments.batch_norm == "sync" and not arguments.merge:
        refuse_norms(manifest, arguments)
    arguments.collective = arguments.collective or plan.get("collective") or "fastest"
    if arguments.collective != "fastest" and not (arguments.merge or arguments.single):
        refuse_collective(arguments)
    arguments.trace = HostTrace(arguments.host_trace)


def refuse_slices(manifest, arguments):
    """Refuses what does not go with slices that are stepped by themselves, before anything starts."""
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
            sys.exit(f"{names} are one parameter of several stages, whose gradients are summed after those of replicas: --sync buckets")


def refuse_collective(arguments):
    """Refuses what does not go with sums of gradients that are no all-reduce of the backend, before anything starts."""
    given = {
        f"--sync {arguments.sync}": arguments.sync != "buckets",
        f"--sharding {arguments.sharding}": arguments.sharding != "none",
        f"--shards {arguments.shards}": arguments.shards > 1,
        f"--schedule {Path(arguments.schedule).name}": bool(arguments.updates) or arguments.copies > 1,
    }
    refuse(given, f"--collective {arguments.collective}", "--collective fastest")


def refuse_norms(manifest, arguments):
    """Refuses what does not go with batch norms over replicas, before anything starts."""
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


def positive(text):
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number
