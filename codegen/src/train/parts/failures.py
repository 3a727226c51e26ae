"""The messages of a rank that fails, and how to resume."""

import os
import re
import signal
import sys
import threading
import time
import traceback

import torch

from train_parts.hangs import DOING, who
from train_parts.launch import REPORTS, first_line, report
from train_parts.update import NotFinite


def failed(error, rank, arguments, is_launched, watch):
    """Reports the failure of a rank, and ends it."""
    DOING["fails"] = True
    if not is_launched and threading.current_thread() is threading.main_thread():  # torchrun may end this rank meanwhile: it has a message of its own
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    text, place = first_line(error), f" in {DOING['pass']}" if DOING["pass"] else ""
    kind, details, silent = "error", None, {}
    if isinstance(error, NotFinite):
        if "saving" in DOING:  # all ranks end here together: the checkpoint in progress is valid
            DOING["saving"].wait()
        kind = "other" if "another rank" in text else "error"
    elif "connectFullMesh" in str(error):  # before any wait
        kind, text = "lost", f"could not connect to another rank ({text[-200:]})"
    elif re.search(r"timed? ?out", str(error), re.IGNORECASE):
        waits = f" in {' and '.join(names[:2])}" if (names := watch.pending if watch else []) else ""
        kind, text = "timeout", f"waited {arguments.timeout:.0f} s for another rank{waits}{place.replace(' in ', ' after ', 1)}"
        silent = watch.silent() if watch else {}
    elif "unhandled cuda error" in text:
        text = f"CUDA failed on this rank ({text[:200]}){place}"
    elif "cudnn RNN backward" in text:
        text = f"a recurrent layer was traced in eval mode, in which cuDNN has no backward pass{place}: trace the model with --train, or use --device cpu"
    elif re.search(r"[Cc]onnection (closed|reset|refused)|peer|NCCL|Broken pipe", str(error)):
        kind, text = "lost", f"lost a peer ({text[:200]})"
    elif type(error).__name__ == "PipeliningShapeError":
        text = f"between stages a value has other sizes than in the first micro-batch ({text}{place}); torch's pipelines send"
        text += " tensors of fixed sizes: where these depend on the data, cut the model elsewhere (--cut-at, --keep-together)"
    else:
        text, details = f"{type(error).__name__}: {text}{place}", error
    if not report(rank, kind, text, details, silent):
        if details:
            traceback.print_exception(details)
        text = ", ".join(filter(None, (text, who(silent))))
        if kind != "other":
            line = f"rank {rank}: {text}; {go_on(arguments)}\n"
            print(line, end="", file=sys.stderr, flush=True)  # one write: other ranks write too
    # A rank that waited lets the others report first, and a cause comes before its consequences.
    time.sleep({"timeout": 1.2, "lost": 0.5, "other": 1.0}.get(kind, 0.0) if is_launched else 0.0)
    os._exit(1)


def go_on(arguments):
    launcher = "python" if REPORTS in os.environ or "RANK" not in os.environ else "torchrun …"
    return f"resume from the last checkpoint with: {launcher} train.py … --save {arguments.save or 'DIR'} --resume"


def need_gpus(ranks):
    """Every rank of a machine needs a GPU of its own: NCCL refuses to share one."""
    have = torch.cuda.device_count()
    if ranks > have:
        sys.exit(f"this machine has {have} GPUs for {ranks} ranks, and each needs its own: use --nnodes, --device cpu or --single")
