"""Compares emitted cuts with the whole model, one a line, for `codegen/tests/random_cuts.rs`.

    python tests/oracle/random_cuts.py FOLDER

Traces the small models of the zoo into FOLDER in training mode and says `ready`. Each line `MODEL OUT` that follows is
answered with a line of JSON: the report of each form of the stages. One interpreter for all: importing torch is most of
what a small case costs.
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import verify_stages
import zoo_stages


def main():
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    for name in zoo_stages.zoo.FIXTURES:
        zoo_stages.trace(name, True, folder / f"{name}.pt")
    print("ready", flush=True)
    wholes = {}
    for line in sys.stdin:
        model, out = line.split()
        whole = wholes.get(model) or wholes.setdefault(model, verify_stages.Whole(model))
        reports = {}
        for form in ("torchscript", "python"):
            try:
                report = verify_stages.verify(whole, out, form, 0)
                reports[form] = {"ok": verify_stages.is_fine(report), **report}
            except Exception as error:
                reports[form] = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reports), flush=True)


if __name__ == "__main__":
    main()
