"""Measures collectives between processes, and tells them in the form in which nccl-tests prints them.

`model-analyze profile --links` gives this to an interpreter. It forks a process for each rank, or is one rank of those that torchrun
has started on one or several nodes; then the first rank alone answers.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

# Bytes on the bus for each byte of the table's size, by the number of ranks: nccl-tests' doc/PERFORMANCE.md.
COLLECTIVES = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "sendrecv": lambda n: 1.0,
}
# The smallest size, and how many there are at least, each four times the one before: a latency and a bandwidth are fitted to them.
LEAST, LEAST_SIZES = 1024, 6
# Of each size: blocks of calls without a pause, and seconds for all of them, less where --minutes are few.
BLOCKS, SECONDS = 5, 0.3


def answer(**what):
    """Tells the command something: a line of JSON."""
    print(json.dumps(what), flush=True)


def fail(message, hint=""):
    """Ends this rank with an error."""
    answer(error={"message": message, "hint": hint})
    # Others may wait for this rank: a group that is left in order would wait for them.
    os._exit(1)


def calls(name, size, ranks, rank, device):
    """Returns the size that is measured, divisible among the ranks, and a function that exchanges so many bytes once."""
    import torch
    import torch.distributed as dist

    part = max(size // (4 * ranks), 1)
    whole = torch.ones(part * ranks, device=device)
    one = torch.ones(part, device=device)
    if name == "all_reduce":
        # Sums of zeros stay in range, however often they are taken.
        whole.zero_()
        return whole.nbytes, lambda: dist.all_reduce(whole)
    if name == "reduce_scatter":
        return whole.nbytes, lambda: dist.reduce_scatter_tensor(one, whole)
    if name == "all_gather":
        return whole.nbytes, lambda: dist.all_gather_into_tensor(whole, one)
    if name == "alltoall":
        other = torch.empty_like(whole)
        return whole.nbytes, lambda: dist.all_to_all_single(other, whole)
    if name == "broadcast":
        return whole.nbytes, lambda: dist.broadcast(whole, 0)
    other = torch.empty_like(whole)
    following, previous = (rank + 1) % ranks, (rank - 1) % ranks

    def pass_on():
        ways = [dist.P2POp(dist.isend, whole, following), dist.P2POp(dist.irecv, other, previous)]
        for work in dist.batch_isend_irecv(ways):
            work.wait()

    return whole.nbytes, pass_on


def table(name, rows, names):
    """Yields the lines that nccl-tests prints of a collective."""
    yield f"# Collective test starting: {name}_perf"
    yield "# Using devices"
    for rank, (host, process, local, device) in enumerate(names):
        yield f"#  Rank {rank:2} Group  0 Pid {process:6} on {host:>10} device {local:2} [{local}] {device}"
    yield "#       size         count      type   redop    root     time   algbw   busbw"
    yield "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)"
    sums = "sum" if "reduce" in name else "none"
    for size, seconds in rows:
        algorithm = size / seconds / 1e9
        bus = algorithm * COLLECTIVES[name](len(names))
        yield f"{size:12} {size // 4:13}     float {sums:>7}      -1 {1e6 * seconds:8.2f} {algorithm:7.3f} {bus:7.3f}"


class Rank:
    """One process of those that measure together."""

    def __init__(self, request, rank, ranks, local, where):
        import torch
        import torch.distributed as dist

        self.rank, self.ranks, self.request = rank, ranks, request
        is_cuda = request["device"] == "cuda"
        if is_cuda and local >= torch.cuda.device_count():
            fail(f"rank {local} of this machine has no GPU: {torch.cuda.device_count()} are here", "each rank needs one of its own: --ranks")
        if is_cuda:
            torch.cuda.set_device(local)
        self.device = f"cuda:{local}" if is_cuda else "cpu"
        self.name = torch.cuda.get_device_name(local) if is_cuda else "cpu"
        self.backend = "nccl" if is_cuda else "gloo"
        torch.set_num_threads(1)
        dist.init_process_group(self.backend, init_method=where, rank=rank, world_size=ranks)

    def together(self, value, how):
        """Returns a number that all ranks agree on."""
        import torch
        import torch.distributed as dist

        number = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.all_reduce(number, op=how)
        return float(number)

    def block(self, call, number):
        """Returns the seconds of one call among so many without a pause, those of the rank that takes longest."""
        import torch
        import torch.distributed as dist

        dist.barrier()
        begun = time.perf_counter()
        for _ in range(number):
            call()
        if self.backend == "nccl":
            torch.cuda.synchronize()
        return self.together((time.perf_counter() - begun) / number, dist.ReduceOp.MAX)

    def rows(self, name, until):
        """Measures a collective from small to large; ends at a size or at a time."""
        import torch.distributed as dist

        size, rows = LEAST, []
        seconds = min(SECONDS, 60 * self.request["minutes"] / len(COLLECTIVES) / 10)
        while size <= self.request["largest"]:
            measured, call = calls(name, size, self.ranks, self.rank, self.device)
            self.block(call, 1)
            once = self.block(call, 2)
            number = max(1, min(1000, int(seconds / BLOCKS / once)))
            # What else the machine does makes a block longer, never shorter.
            rows.append((measured, min(self.block(call, number) for _ in range(BLOCKS))))
            size *= 4
            # The next takes four times as long at most; all ranks end at the same size.
            ends = time.monotonic() + 4 * (BLOCKS * number + 3) * rows[-1][1]
            is_last = len(rows) >= LEAST_SIZES and ends > until
            if size <= self.request["largest"] and self.together(float(is_last), dist.ReduceOp.MAX):
                if self.rank == 0:
                    answer(note=f"{name} ends at {rows[-1][0]:,} bytes: --minutes sets the time")
                break
        return rows

    def measure(self, local):
        import torch
        import torch.distributed as dist

        names = [None] * self.ranks
        dist.all_gather_object(names, (socket.gethostname(), os.getpid(), local, self.name))
        lines = [f"# model-analyze profile --links: {self.ranks} ranks, {self.backend}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}"]
        begun = time.monotonic()
        for number, name in enumerate(COLLECTIVES, 1):
            if self.rank == 0:
                answer(step=f"{name.replace('_', ' ')}, {number} of {len(COLLECTIVES)}")
            try:
                rows = self.rows(name, begun + 60 * self.request["minutes"] * number / len(COLLECTIVES))
            except (RuntimeError, NotImplementedError) as error:
                # All ranks have the same backend, and so the same error.
                lines.append(f"# {name} is left out, {self.backend}: {str(error).splitlines()[0]}")
                if self.rank == 0:
                    answer(note=lines[-1][2:])
                continue
            lines += table(name, rows, names)
        dist.destroy_process_group()
        if self.rank == 0:
            answer(done={"text": "\n".join(lines) + "\n"})


def measure(request, rank, ranks, local, where):
    """Measures as one rank; what goes wrong becomes an error of the command."""
    try:
        Rank(request, rank, ranks, local, where).measure(local)
    except Exception as error:
        fail(f"rank {rank}: {type(error).__name__}: {error}")


def main(request):
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        fail(f"{sys.executable} has no torch", "name an interpreter that has it with --python")
    if not dist.is_available():
        fail(f"torch {torch.__version__} of {sys.executable} has no torch.distributed")
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        torchrun(request)
    else:
        alone(request)


def torchrun(request):
    """Measures as one of the ranks that torchrun has started."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if ranks < 2:
        fail("torchrun has started one rank: a link joins two at least")
    if request["ranks"] not in (None, ranks):
        fail(f"torchrun has started {ranks} ranks, not {request['ranks']}", "leave out --ranks")
    local = int(os.environ.get("LOCAL_RANK", 0))
    measure(request, rank, ranks, local, "env://")
    if rank > 0:
        answer(done={})


def alone(request):
    """Starts the ranks on this machine, and ends all of them when one fails."""
    if not request["ranks"]:
        request["ranks"] = max(gpus(), 2) if request["device"] == "cuda" else 2
    # On one machine gloo's own choice may be a name that nothing resolves.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    with tempfile.TemporaryDirectory() as folder:
        ranks = {}
        for rank in range(request["ranks"]):
            process = os.fork()
            if process == 0:
                measure(request, rank, request["ranks"], rank, f"file://{folder}/meeting")
                os._exit(0)
            ranks[process] = rank
        while ranks:
            process, status = os.wait()
            rank = ranks.pop(process)
            if status:
                for other in ranks:
                    os.kill(other, signal.SIGKILL)
                    os.waitpid(other, 0)
                # The last error counts, and others may have missed this rank.
                if os.WIFSIGNALED(status):
                    answer(error={"message": f"rank {rank} was ended by signal {os.WTERMSIG(status)}"})
                break


def gpus():
    """Returns the number of GPUs; asked in a process of its own, for CUDA does not survive a fork."""
    count = "import torch; print(torch.cuda.device_count())"
    return int(subprocess.run([sys.executable, "-c", count], capture_output=True, text=True, check=True).stdout)


main(json.loads(sys.argv[1]))
