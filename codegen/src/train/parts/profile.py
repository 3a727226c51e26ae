"""Profiles two steps: the passes of each rank, for `report --measured`, then torch's own trace for Perfetto."""

import json
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

SETTLED = 3  # earlier steps, which allocate memory and open connections
KINDS = {"F": "forward", "B": "backward", "I": "input-gradient", "W": "weight-gradient"}


class Profile:
    """Records the passes of one step by the clock, and runs torch's profiler, which would slow them down, on the next
    one.

    Times are those of the machine's clock, so ranks of several machines agree only as well as their clocks do; on a GPU
    they are those of the computing stream, from a moment on at which it was idle.
    """

    def __init__(self):
        self.folder, self.at, self.spans, self.is_noting, self.profiler = None, None, [], False, None

    def begin(self, folder, start, steps, rank, device):
        """Chooses the steps, and makes the folder."""
        if steps - start < 2:
            sys.exit(f"--profile needs two steps, {steps - start} are left: raise --steps")
        self.folder, self.at, self.rank, self.device = Path(folder), start + min(SETTLED, steps - start - 2), rank, device
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            sys.exit(f"--profile {folder}: {error.strerror}")
        self.follow(start)

    def follow(self, step):
        """Called when `step` steps have ended."""
        if self.folder is None or step not in (self.at, self.at + 1, self.at + 2):
            return
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.is_noting = step == self.at
        if self.is_noting:
            self.origin = time.time_ns()
            self.first = self.mark()
        elif step == self.at + 1:
            self.spans = [(*span[:4], *map(self.when, span[4:])) for span in self.spans]
            seen = [torch.profiler.ProfilerActivity.CPU] + [torch.profiler.ProfilerActivity.CUDA] * (self.device.type == "cuda")
            self.profiler = torch.profiler.profile(activities=seen, acc_events=True)
            self.profiler.start()
        else:
            self.profiler.stop()
            self.profiler.export_chrome_trace(str(self.folder / f"rank_{self.rank}.json"))
            self.profiler = None

    def mark(self):
        if self.device.type != "cuda":
            return time.time_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def when(self, mark):
        return mark if isinstance(mark, int) else self.origin + round(1e6 * self.first.elapsed_time(mark))

    @contextmanager
    def span(self, kind, stage=None, micro_batch=None):
        """Records the time inside: the letter of a pass, `optimizer` or `collective`."""
        if self.profiler is not None:
            with torch.profiler.record_function(named(kind, stage, micro_batch)):
                yield
            return
        begun = self.mark() if self.is_noting else None
        yield
        if begun is not None and self.is_noting:
            self.spans.append((kind, "collective" if kind == "collective" else "compute", stage, micro_batch, begun, self.mark()))

    def extend(self):
        """Extends the last pass to the present time."""
        if self.is_noting and self.spans:
            self.spans[-1] = (*self.spans[-1][:5], self.mark())

    def write(self, name, is_leader):
        """Writes the timeline of all ranks, which all of them call; returns a text about its use."""
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, self.spans)
        if not is_leader:
            return None
        begun = min(span[4] for spans in found for span in spans)
        tracks = []
        for rank, spans in enumerate(found):
            for stream in ("compute", "collective"):
                own = sorted((span for span in spans if span[1] == stream), key=lambda span: span[4])
                made = [noted(span, begun) for span in own]
                tracks += [{"device": rank, "stream": stream, "spans": made}] if made else []
        timeline = {"kind": "timeline", "version": 1, "name": f"{name}, step {self.at + 1}", "unit": "ns"}
        timeline |= {"devices": [f"rank {rank}" for rank in range(len(found))], "tracks": tracks}
        timeline["end"] = max(span["end"] for track in tracks for span in track["spans"])
        path = self.folder / "timeline.json"
        path.write_text(json.dumps(timeline))
        text = f"profile: step {self.at + 1} is in {path}, to compare with the plan: `model-analyze report MODEL plan.yaml --measured {path} -o report.html`;"
        return text + f" step {self.at + 2} of each rank is in {self.folder / 'rank_*.json'}, for ui.perfetto.dev"


def named(kind, stage, micro_batch):
    return kind if stage is None else f"{stage}{kind}{micro_batch}"


def noted(span, begun):
    """Returns a span in the format of a timeline."""
    kind, _, stage, micro_batch, first, last = span
    made = {"name": named(kind, stage, micro_batch), "kind": KINDS.get(kind, kind)}
    made |= {} if stage is None else {"stage": stage, "micro_batch": micro_batch}
    return made | {"start": first - begun, "end": last - begun}


PROFILE = Profile()
