"""Lets several ranks of a job share one GPU under NCCL, when this folder is in PYTHONPATH: Python runs it as it starts.

NCCL refuses two ranks that have one card of one machine. Here each rank is a machine of its own, with one card, and what
they exchange goes through the network's loopback: nothing is said of speed, but order, streams and kinds of calls are those
of several cards. Sums are of float32 numbers, not of TF32's, as on a processor.
"""

import os

if folder := os.environ.get("STACKS"):  # where a process tells what it does when it gets SIGUSR1
    import faulthandler
    import signal

    faulthandler.register(signal.SIGUSR1, open(f"{folder}/{os.environ.get('RANK', 'test')}-{os.getpid()}.stack", "w"))
if "RANK" in os.environ:
    os.environ |= {"NCCL_HOSTID": f"machine-{os.environ['RANK']}", "LOCAL_RANK": "0", "NVIDIA_TF32_OVERRIDE": "0"}
    for name, value in {"SOCKET_IFNAME": "lo", "IB_DISABLE": "1", "MAX_NCHANNELS": "1", "BUFFSIZE": "1048576", "DEBUG": "WARN"}.items():
        os.environ.setdefault(f"NCCL_{name}", value)
