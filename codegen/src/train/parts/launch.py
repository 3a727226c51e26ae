"""`python train.py` starts its own ranks, so that one line with the cause of a failure comes last.

A failing rank writes a report; the launcher picks the cause out of all reports: an error rather than a lost peer, and
among ranks that waited for each other the one that did not answer.
"""

import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

from train_parts.hangs import who

REPORTS = "TRAIN_REPORTS"  # the folder of reports, in the ranks' environment
TRACES = "nccl_trace_rank_"  # files that NCCL's flight recorder writes there at a timeout


def launch(script, world, nodes, endpoint, restarts, again):
    """Runs this script in `world` processes; exits with their exit code."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    if world % nodes:
        sys.exit(f"{world} ranks cannot be divided evenly over {nodes} machines: use torchrun")
    logging.disable(logging.CRITICAL)  # the agent's own reports
    folder = os.environ[REPORTS] = tempfile.mkdtemp(prefix="train-")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
    # Otherwise restarted ranks find addresses of their predecessors in a store that all attempts share.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    os.environ.setdefault("TORCH_FR_DUMP_TEMP_FILE", str(Path(folder) / TRACES))
    config = LaunchConfig(
        min_nodes=nodes,
        max_nodes=nodes,
        nproc_per_node=world // nodes,
        run_id="train",
        rdzv_backend="c10d",
        rdzv_endpoint=endpoint or "localhost:0",
        max_restarts=restarts,
        monitor_interval=0.2,
    )
    begun = time.monotonic()
    try:
        elastic_launch(config, sys.executable)("-u", script, *sys.argv[1:])
    except ChildFailedError as error:
        text = cause(Path(folder), error.failures, world)
        print(f"{text}, after {time.monotonic() - begun:.1f} s; {again}", file=sys.stderr, flush=True)
        sys.exit(1)
    except BaseException as error:  # of the agent, for signals and for missing machines
        shutil.rmtree(folder, ignore_errors=True)
        name = signal.Signals(error.sigval).name if hasattr(error, "sigval") else f"{type(error).__name__}: {first_line(error)}"
        print(f"stopped ({name}); {again}", file=sys.stderr, flush=True)
        os._exit(1)
    shutil.rmtree(folder, ignore_errors=True)


def cause(folder, failures, world):
    """Describes what happened first."""
    reports = {}
    for path in folder.glob("rank_*.json"):
        report = json.loads(path.read_text())
        reports[report["rank"]] = report
    for report in sorted(reports.values(), key=lambda report: report["time"]):
        if report["kind"] == "error":
            details = f" (see {report['details']})" if report["details"] else ""
            return f"rank {report['rank']} failed: {report['text']}{details}"
    waited = [report for report in reports.values() if report["kind"] == "timeout"]
    if not reports and any(folder.glob(f"{TRACES}*")):  # NCCL's watchdog ends a rank before it can report
        return f"ranks waited for each other until NCCL's timeout; `torchfrtrace --prefix {TRACES} {folder}` shows which, and in which collective"
    has_lost = any(report["text"].startswith("lost a peer (NCCL: ") for report in reports.values())  # on another machine
    for rank, failure in failures.items():
        # The remaining ranks are ended by SIGTERM.
        if rank not in reports and not ((waited or has_lost) and failure.exitcode == -signal.SIGTERM):
            if failure.exitcode < 0:
                return f"rank {rank} was ended by {signal.Signals(-failure.exitcode).name}"
            return f"rank {rank} failed with exit code {failure.exitcode}"
    if waited:
        # The last rank that reported waiting knows most of the others that wait.
        silent = max(waited, key=lambda report: report["time"])["silent"]
        silent = {int(rank): doing for rank, doing in silent.items() if int(rank) not in reports}
        silent = silent or {rank: None for rank in range(world) if rank not in reports}
        stacks = [str(path) for rank in silent if (path := folder / f"hangs_{rank}.txt").exists()]
        where = f" (its stack: {stacks[0]})" if stacks else ""
        how = "; ".join(f"rank {report['rank']} {report['text']}" for report in sorted(waited, key=lambda r: r["rank"])[:3])
        return f"{who(silent) or 'all ranks wait for each other'}{where}: {how}"
    report = min(reports.values(), key=lambda report: report["time"])
    return f"rank {report['rank']}: {report['text']}"


def report(rank, kind, text, error=None, silent=None):
    """Leaves a report for the launcher; returns whether there is one."""
    folder = os.environ.get(REPORTS)
    if folder is None:
        return False
    details = None
    if error is not None:
        details = str(Path(folder) / f"rank_{rank}.txt")
        Path(details).write_text("".join(traceback.format_exception(error)))
    about = {"rank": rank, "kind": kind, "text": text, "time": time.time(), "details": details, "silent": silent or {}}
    beside = Path(folder) / f"rank_{rank}.part"
    beside.write_text(json.dumps(about))
    os.replace(beside, Path(folder) / f"rank_{rank}.json")
    return True


def hangs_file(rank):
    """Returns the file for a rank's stack when a step lasts too long."""
    folder = os.environ.get(REPORTS)
    return open(Path(folder) / f"hangs_{rank}.txt", "w") if folder else None


def first_line(error):
    while error.__cause__ is not None:  # torch's schedules wrap what a stage raised
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
