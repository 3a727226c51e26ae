"""Trains the stages of this folder with torch.distributed.pipelining. Written by model-analyze; needs torch 2.11.

    torchrun --nproc-per-node RANKS train.py                     one rank a stage, 1F1B, synthetic data
    torchrun --nproc-per-node 4 train.py --replicas 2            2 stages, each on 2 ranks
    torchrun --nproc-per-node 3 train.py --replicas 2,1          stage 0 on 2 ranks, stage 1 on one
    torchrun --nproc-per-node 2 train.py --schedule schedule.csv
    torchrun --nproc-per-node 2 train.py --task task.py --save checkpoints --save-every 100
    torchrun --nproc-per-node 2 train.py --task task.py --save checkpoints --resume
    python train.py --merge model.safetensors --save checkpoints  the stages' weights as one state dict
    python train.py --single --steps 10                          the same steps in one process, to compare
    torchrun --nproc-per-node 2 train.py --check                 one step: losses and all gradients beside one process

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
    clip = 1.0                         the largest norm that all gradients may have together
    def log(step, values): ...
    whole = ["name"]                   inputs that each micro-batch takes all of, where that is not seen from the trace

Ranks are laid out replica by replica: of two pipelines of three ranks, the first has ranks 0, 1, 2. Where
stages have unequal replicas, the ranks of stage 0 come first, then those of stage 1; micro-batches are dealt to the
replicas of each stage in turn, and the replicas work side by side.
"""

import argparse
import csv
import difflib
import fnmatch
import importlib.util
import json
import math
import os
import re
import resource
import signal
import statistics
import sys
import time
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
    from train_parts.data import Batches, whole_batch
    from train_parts.deferred import DEFERRAL, let_wait
    from train_parts.fsdp import FullySharded, load_whole, whole, whole_state
    from train_parts.sync import Sharded, Sync, is_by_element
except ModuleNotFoundError as error:
    if not str(error.name).startswith("train_parts"):
        raise
    sys.exit(f"{HERE / 'train_parts'} is missing, or a file of it: emit the stages again")

STAGES = HERE / "stages"
# Of the plan, where there was one.
DEFAULTS = {}


