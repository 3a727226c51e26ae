"""Finds the rank that others wait for, and what it is doing."""

import json
import math
import os
import threading
import time

import torch
import torch.distributed as dist

SHOWN = 3  # the most ranks that are named
DOING = {"pass": None}  # the pass that started last, for messages about failures


class Watch:
    """Reports this rank's current pass to all ranks when a step lasts too long, and finds the ranks that do not report
    that they wait; ends this rank, by `end`, when NCCL has lost a peer.

    A separate thread reports it, through the ranks' store: a hanging rank cannot. The thread is silent only if
    something holds Python's lock.
    """

    def __init__(self, rank, world, timeout, doing, end):
        self.rank, self.world, self.timeout, self.doing, self.begun, self.end = rank, world, timeout, doing, None, end
        self.pending = []  # collectives unfinished when the step had lasted too long: later, a failed one counts as finished
        # With a connection of its own, because the first one may be waiting; restarted ranks use another prefix.
        store = dist.distributed_c10d._get_default_store().clone()
        self.store = dist.PrefixStore(f"hangs {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        threading.Thread(target=self.run, daemon=True).start()

    def begin(self):
        """Starts a step."""
        self.begun = time.monotonic()

    def run(self):
        while True:
            time.sleep(min(1.0, self.timeout / 8))
            if lost := lost_peer():
                time.sleep(0.5)  # often the rank finds out by itself, and knows more
                if not self.doing.get("fails"):
                    self.end(RuntimeError(lost))
            begun = self.begun
            if begun is not None and time.monotonic() - begun > 0.8 * self.timeout:
                self.pending = pending()
                try:
                    self.store.set(f"at {self.rank}", str(self.doing["pass"]))
                except Exception:  # the rank with the store has ended: nobody reads it any more
                    return
                self.begun = None

    def silent(self):
        """Returns the ranks that have not reported that they wait, and what each is doing, if known; this one waits."""
        try:
            self.store.append("waits", f"{self.rank} ")
            time.sleep(0.7)
            waits = set(map(int, self.store.get("waits").split()))
            found = [rank for rank in range(self.world) if rank not in waits]
            is_known = lambda at, rank: at < SHOWN and self.store.check([f"at {rank}"])  # noqa: E731
            return {rank: self.store.get(f"at {rank}").decode() if is_known(at, rank) else None for at, rank in enumerate(found)}
        except Exception:
            return {}


def lost_peer():
    """Returns what NCCL says of a peer that has ended: what waits for it on a GPU would wait until torch gives up, which may
    take minutes. gloo's calls fail by themselves."""
    if not torch.cuda.is_initialized():
        return None
    for group in list(dist.distributed_c10d._world.pg_map):
        try:
            found = group._get_backend(torch.device("cuda")).get_error().name
        except Exception:  # a group of gloo's, one that is being made, or another torch
            continue
        if found in ("REMOTE_ERROR", "COMM_ERROR"):
            return f"NCCL: {found}"
    return None


def pending():
    """Returns the unfinished collectives here, by torch's flight recorder; it does not record gloo's messages
    between two ranks."""
    try:
        entries = json.loads(torch._C._distributed_c10d._dump_fr_trace_json())["entries"]
        return [f"{e['profiling_name']} of {sum(map(math.prod, e['input_sizes']))} numbers" for e in entries if not e["retired"]]
    except Exception:  # a private part of torch, which may change
        return []


def who(silent):
    """Describes which ranks do not answer, and what they are doing."""
    if not silent:
        return None
    at = [f"rank {rank}" + (f", which is at {doing}" if doing else "") for rank, doing in silent.items()]
    return "no answer from " + "; ".join(at[:SHOWN]) + (f"; and {len(at) - SHOWN} more" if len(at) > SHOWN else "")
