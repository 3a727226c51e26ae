"""Damages the files of an emitted folder, one at a time, and asks its own train.py and load() what they say.

    damaged_folder.py FOLDER OTHER COUNT SEED

FOLDER holds stages in both forms; OTHER is another cut of the same model. Prints one line of JSON: how many damages of each kind
there were, and those that were not told in one line with the name of the file. FOLDER is as before at the end.
"""

import argparse
import importlib.util
import json
import random
import re
import sys
from pathlib import Path

folder, other = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
count, draw = int(sys.argv[3]), random.Random(int(sys.argv[4]))


def module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def flip(data):
    at = draw.randrange(8 * len(data))
    changed = bytearray(data)
    changed[at // 8] ^= 1 << at % 8
    return bytes(changed)


def of_another_run(path, data):
    """A stage with other weights, its source knowing them: what another run of the same cut writes."""
    weights = path.with_suffix(".safetensors").read_bytes()
    changed = weights[:-4] + bytes(b ^ 1 for b in weights[-4:])
    if path.suffix == ".safetensors":
        return changed
    import zlib

    return re.sub(rb'WEIGHTS = .*', f'WEIGHTS = ({len(changed)}, "{zlib.crc32(changed):08x}")'.encode(), data, count=1)


KINDS = {
    "bit": lambda path, data: flip(data),
    "byte more": lambda path, data: data + b"\n",
    "cut short": lambda path, data: data[: draw.randrange(len(data))],
    "missing": lambda path, data: None,
    "another cut": lambda path, data: (other / path.relative_to(folder)).read_bytes(),
    "another run": of_another_run,
}


def said(script, form):
    arguments = argparse.Namespace(form=form, schedule=None, allow_changes=False)
    try:
        manifest = script.read_manifest(arguments)
        for about in manifest["stages"]:
            script.load_stage(about, form, "cpu")
    except SystemExit as end:
        return str(end.code)
    return None


def main():
    script = module(folder / "train.py")
    assert said(script, "python") is None and said(script, "torchscript") is None
    names = [folder / "train.py", folder / "schedule.csv", *sorted((folder / "stages").glob("stage_*.*"))]
    tried, lost = dict.fromkeys(KINDS, 0), []
    while sum(tried.values()) < count:
        path, kind = draw.choice(names), draw.choice(list(KINDS))
        if kind.startswith("another") and path.parent.name != "stages" or kind == "another run" and path.suffix == ".pt":
            continue
        before = path.read_bytes()
        after = KINDS[kind](path, before)
        path.unlink()
        if after is not None:
            path.write_bytes(after)
        forms = {".pt": ["torchscript"], ".py": ["python"], ".safetensors": ["python"]}.get(path.suffix, [])
        if path.parent.name != "stages":
            forms = ["python", "torchscript"]
        for form in forms:
            text = said(script, form)
            if text is None or "\n" in text or str(path) not in text:
                lost.append([kind, path.name, form, text])
        if path.suffix == ".safetensors" and kind != "missing":
            try:
                module(path.with_suffix(".py")).load()
                lost.append([kind, path.name, "load()", None])
            except ValueError as error:
                if str(path) not in str(error):
                    lost.append([kind, path.name, "load()", str(error)])
        path.write_bytes(before)
        tried[kind] += 1
    assert said(script, "python") is None and said(script, "torchscript") is None
    print(json.dumps({"tried": tried, "lost": lost}))


sys.dont_write_bytecode = True
main()
