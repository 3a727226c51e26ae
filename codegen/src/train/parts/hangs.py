"""Ranks that wait for one that does not answer: which one it is, and what it is at."""

import json
import math
import os
import threading
import time

import torch
import torch.distributed as dist

SHOWN = 3  # ranks that are told
DOING = {"pass": None}  # what began last, to be told when something fails


class Watch:
    """Tells all ranks what this one is at when a step lasts too long, and finds those that tell nothing of waiting.

    A thread of its own tells it, through the ranks' store: a rank that hangs cannot. It is silent only where something holds Python.
    """

    def __init__(self, rank, world, timeout, doing):
        self.rank, self.world, self.timeout, self.doing, self.begun = rank, world, timeout, doing, None
        self.pending = []  # collectives that had not ended when the step had lasted too long: one that fails counts as ended
        # Of its own connection, for the first one may be waiting; ranks that are started again begin anew.
        store = dist.distributed_c10d._get_default_store().clone()
        self.store = dist.PrefixStore(f"hangs {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        threading.Thread(target=self.run, daemon=True).start()

    def begin(self):
        """Begins a step."""
        self.begun = time.monotonic()

    def run(self):
        while True:
            time.sleep(min(1.0, self.timeout / 8))
            begun = self.begun
            if begun is not None and time.monotonic() - begun > 0.8 * self.timeout:
                self.pending = pending()
                try:
                    self.store.set(f"at {self.rank}", str(self.doing["pass"]))
                except Exception:  # whoever kept the store has ended: nobody asks any more
                    return
                self.begun = None

    def silent(self):
        """Returns the ranks that have not said that they wait, and what each is at, where that is known; this one waits."""
        try:
            self.store.append("waits", f"{self.rank} ")
            time.sleep(0.7)
            waits = set(map(int, self.store.get("waits").split()))
            found = [rank for rank in range(self.world) if rank not in waits]
            is_known = lambda at, rank: at < SHOWN and self.store.check([f"at {rank}"])  # noqa: E731
            return {rank: self.store.get(f"at {rank}").decode() if is_known(at, rank) else None for at, rank in enumerate(found)}
        except Exception:
            return {}


def pending():
    """Returns the collectives here that have not ended, by torch's flight recorder; it has none of gloo's messages between two ranks."""
    try:
        entries = json.loads(torch._C._distributed_c10d._dump_fr_trace_json())["entries"]
        return [f"{e['profiling_name']} of {sum(map(math.prod, e['input_sizes']))} numbers" for e in entries if not e["retired"]]
    except Exception:  # a private part of torch, which may be another one
        return []


def who(silent):
    """Says which ranks do not answer, and what they are at."""
    if not silent:
        return None
    at = [f"rank {rank}" + (f", which is at {doing}" if doing else "") for rank, doing in silent.items()]
    return "no answer from " + "; ".join(at[:SHOWN]) + (f"; and {len(at) - SHOWN} more" if len(at) > SHOWN else "")
