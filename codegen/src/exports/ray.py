"""Runs train.py, one folder up, under Ray Train: one worker per rank of the plan.

    python exports/ray_train.py --steps 10  # options of train.py

Every machine of the cluster needs this folder at the same path.
"""

import argparse
import os
import socket
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")

import ray.train
from ray.train.collective import broadcast_from_rank_zero
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

WORKERS = 1
TRAIN = Path(__file__).resolve().parent.parent / "train.py"


def worker(config):
    """One rank, in a process of its own: train.py makes its process group and installs signal handlers itself."""
    context, address = ray.train.get_context(), None
    if context.get_world_rank() == 0:
        with socket.socket() as free:
            free.bind(("", 0))
            address = (ray.util.get_node_ip_address(), free.getsockname()[1])
    host, port = broadcast_from_rank_zero(address)
    ranks = {
        "RANK": context.get_world_rank(),
        "WORLD_SIZE": context.get_world_size(),
        "LOCAL_RANK": context.get_local_rank(),
        "LOCAL_WORLD_SIZE": context.get_local_world_size(),
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
    }
    environment = os.environ | {name: str(value) for name, value in ranks.items()}
    if gpus := ray.get_gpu_ids():
        # The worker sees only its own GPU, as device 0.
        environment |= {"CUDA_VISIBLE_DEVICES": ",".join(str(gpu) for gpu in gpus), "LOCAL_RANK": "0"}
    done = subprocess.run([sys.executable, str(TRAIN), *config["arguments"]], env=environment)
    if done.returncode:
        raise RuntimeError(f"rank {context.get_world_rank()}: train.py ended with {done.returncode}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--device", choices=["cpu", "cuda"])
    options, arguments = parser.parse_known_args()
    ray.init()
    device = options.device or ("cuda" if ray.cluster_resources().get("GPU", 0) >= WORKERS else "cpu")
    config = {"arguments": ["--device", device, *arguments]}
    # Ray waits silently for cores that a machine lacks; gloo's ranks may share them.
    share = min(1, ray.cluster_resources().get("CPU", 1) / WORKERS)
    resources = {"GPU": 1} if device == "cuda" else {"CPU": int(share * 100) / 100}
    scaling = ray.train.ScalingConfig(num_workers=WORKERS, use_gpu=device == "cuda", resources_per_worker=resources)
    DataParallelTrainer(worker, train_loop_config=config, scaling_config=scaling).fit()
