"""Trains the stages of this folder with torch.distributed.pipelining. Written by model-analyze; needs torch 2.11.

    python train.py                                       one rank a stage, 1F1B, synthetic data; starts its own processes
    python train.py --replicas 2                          each stage on 2 ranks
    python train.py --replicas 2,1                        stage 0 on 2 ranks, stage 1 on one
    python train.py --replicas 2 --sharding zero1         which share out the optimizer's state
    python train.py --replicas 16 --sharding zero3 --sharding-group 8    in two groups of 8, each of which has all
    python train.py --shards 1                            whole stages, where they were cut inside their operators
    python train.py --replicas 2 --sync p3                gradients in slices, those first that the next forward pass asks for first
    python train.py --schedule schedule.csv
    python train.py --schedule PipeDream                  updates after each micro-batch, weights stashed, no flush
    python train.py --schedule chimera.csv                a table of two copies of the stages, in opposite directions
    python train.py --offload both                        activations wait in host memory for the backward pass
    python train.py --offload-optimizer                   the optimizer's state stays in host memory, where parameters are stepped
    python train.py --task task.py --save checkpoints --save-every 100
    python train.py --task task.py --save checkpoints --resume
    python train.py --task task.py --from model.safetensors         begins with these weights
    python train.py --merge model.safetensors --save checkpoints    the stages' weights as one state dict
    python train.py --merge folder --like llama/ --save checkpoints the same as a folder of transformers
    python train.py --single --steps 10                   the same steps in one process, to compare
    python train.py --task task.py --profile profile      a step's passes for `report --measured`, and torch's traces for Perfetto
    python train.py --check                               two steps: losses and all gradients beside one process
    torchrun --nproc-per-node RANKS train.py              the same, started by torchrun

A task is a Python file with any of these:

    def inputs(step, samples): ...     a tuple of the model's inputs, `samples` in the first dimension
    def target(step, samples): ...     tensors with `samples` in the first dimension, in any nesting of dict, list, tuple
        (with two more arguments, replica and replicas, they make the samples of one replica only)
    def loader(replica, replicas, samples): ...    instead of both: a DataLoader, or anything that gives pairs of inputs and
                                       targets with `samples` each, again in each epoch; only ranks that need data make one
    def loss(outputs, target): ...     the mean loss of a micro-batch; `outputs` is what the model returns, flat
    groups = [{"match": "*.bias|*norm*", "weight_decay": 0.0}, {"match": "*"}]    by names in the model; the first that fits
    def optimizer(parameters): ...     gets parameters, or the groups
    def lr(step): ...                  the learning rate, times a group's `lr_scale`; or: def scheduler(optimizer): ...
    large_batch = {"base": 0.1, "reference": 256, "warm_up": 500}    or the rule of large batches
    clip = 1.0                         the largest norm that all gradients may have together
    def validation(replica, replicas, samples): ...    a loader, gone through after every --validate-every steps in eval mode
    def validate(outputs, target): ... a dict of means of a micro-batch, beside its loss
    def log(step, values): ...
    whole = ["name"]                   inputs that each micro-batch takes all of, where that is not seen from the trace

Ranks are laid out replica by replica, unless a plan has stages on other machines so: of two pipelines of three ranks, the first
has ranks 0, 1, 2. Where
stages have unequal replicas, the ranks of stage 0 come first, then those of stage 1; micro-batches are dealt to the
replicas of each stage in turn, and the replicas work side by side. Shards of a stage are neighbours, and count as one there.
Of two copies in opposite directions (GEMS, Chimera, DualPipe), stage s of the second is on the rank of stage p - 1 - s of the
first; each takes half of the micro-batches, and for a task and for batch norms each counts as a replica.
"""

import argparse
import csv
import difflib
import faulthandler
import fnmatch
import importlib.util
import json
import logging
import math
import os
import re
import resource
import signal
import statistics
import sys
import time
import traceback
import zlib
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
try:
    from train_parts.batch_norm import HOW, average, let_sync
    from train_parts.checkpoints import ABOUT, Checkpoints, Part, Weights, flat_part, last_checkpoint, load_into, model_in, save_pretrained, tensors_in
    from train_parts.counts import Operations, peak_of, tokens_of
    from train_parts.cuts import Cuts, compare_data
    from train_parts.data import Batches, whole_batch
    from train_parts.deferred import DEFERRAL, let_wait
    from train_parts.fsdp import FullySharded
    from train_parts.hangs import Watch, who
    from train_parts.host_optimizer import HostOptimizer
    from train_parts.host_trace import HostTrace
    from train_parts.launch import REPORTS, first_line, hangs_file, launch, report
    from train_parts.offload import FLOOR, MODES, Offload
    from train_parts.priority import SLICE, Sliced
    from train_parts.profile import PROFILE
    from train_parts.stragglers import BUSY, WINDOW, Stragglers, about_slow
    from train_parts.sync import Hierarchical, Mirrored, Served, Sharded, Sync, is_by_element
    from train_parts.validation import Validation
    from train_parts.versions import STASHING, TWO_VERSIONS, VERTICAL_SYNC, Versions, rounds_of, version_rule
except ModuleNotFoundError as error:
    if not str(error.name).startswith("train_parts"):
        raise
    sys.exit(f"{HERE / 'train_parts'} is missing, or a file of it: emit the stages again")

STAGES = HERE / "stages"
DOING = {"pass": None}  # what began last, to be told when something fails
# Of the plan, where there was one.
DEFAULTS = {}


