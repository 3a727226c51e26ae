"""Runs `train.py --check` of a folder on so many ranks, forked from one process that has imported torch.

    python tests/oracle/check.py FOLDER RANKS [ARGUMENT …]

Prints what the ranks print, and exits 1 when one of them fails.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import torch
import torchrun as processes


def main():
    folder, world, *arguments = sys.argv[1:]
    torch.set_num_threads(1)
    codes, texts = processes.ranks(Path(folder), int(world), ["--check", *arguments])
    print(*texts, sep="\n")
    sys.exit(1 if any(codes) else 0)


if __name__ == "__main__":
    main()
