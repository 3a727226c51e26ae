"""Models that nothing here was made for, on two and four ranks: layers, samples and rows of images, beside the whole models.

    python outside.py COMMAND FOLDER [--models 40] [--degrees 2,4] [--seconds 3600]

Names are those that torchvision, timm and transformers list, in the order of their hashes: chosen by nothing that a model does. Models
of more than 30 million parameters are passed over (they are taken apart by the same rules, and take this machine hours). The command
traces each by its name, splits it with `--tensor-parallel`, `--context-parallel` and, where there are images, `--spatial`, and N
processes compare outputs and every gradient in float64, as `sharded.py` does. A line for each; what is refused is told with its reason.
"""

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")

import torch
from sharded import CLUSTER, TOLERANCE, in_processes, rank

MOST = 30_000_000
WAYS = {"layers": "--tensor-parallel", "samples": "--context-parallel", "rows": "--spatial"}
# As small as transformers' models can be that are described by these usual words; others keep what they have.
SMALL = dict(
    hidden_size=64, d_model=64, n_embd=64, intermediate_size=128, ffn_dim=128, encoder_ffn_dim=128, decoder_ffn_dim=128, num_hidden_layers=2,
    n_layer=2, encoder_layers=2, decoder_layers=2, num_attention_heads=4, n_head=4, encoder_attention_heads=4, decoder_attention_heads=4,
    num_key_value_heads=4, vocab_size=256, head_dim=16, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip


def names():
    """Yields (name, arguments of `trace`) in the order of their hashes."""
    import timm
    import torchvision
    from transformers import CONFIG_MAPPING

    images = ["--input", "4x3x128x128"]
    found = [(f"torchvision.{name}", [f"torchvision.models:{name}", *images]) for name in torchvision.models.list_models(module=torchvision.models)]
    found += [(f"timm.{name}", ["timm:create_model", "--arg", f"model_name={name}", *images]) for name in timm.list_models()]
    found += [(f"transformers.{name}", ["--hf", name]) for name in CONFIG_MAPPING]
    return sorted(found, key=lambda one: hashlib.sha256(one[0].encode()).hexdigest())


def size_of(name):
    """Returns how many parameters a model has, built without memory."""
    library, _, name = name.partition(".")
    with torch.device("meta"):
        if library == "timm":
            import timm

            model = timm.create_model(name)
        else:
            import torchvision

            model = torchvision.models.get_model(name, weights=None)
    return sum(parameter.numel() for parameter in model.parameters())


def configuration(name, folder):
    """Writes a small config.json of a model type."""
    from transformers import MODEL_MAPPING, AutoConfig

    config = AutoConfig.for_model(name)
    if type(config) not in MODEL_MAPPING:
        return None
    known = set(config.to_dict())
    config = AutoConfig.for_model(name, **{key: value for key, value in SMALL.items() if key in known})
    place = folder / f"{name}.config"
    place.mkdir(exist_ok=True)
    config.save_pretrained(place)
    return place


def traced(command, name, arguments, folder):
    """Traces a model; returns the archive, or why there is none."""
    archive = folder / f"{name}.pt"
    try:
        if arguments[0] == "--hf":
            place = configuration(arguments[1], folder)
            if place is None:
                return None, "no model of its own"
            arguments = ["--hf", str(place)]
        elif size_of(name) > MOST:
            return None, None
    except Exception as error:  # noqa: BLE001
        return None, f"not built: {str(error).splitlines()[0][:100] if str(error) else type(error).__name__}"
    if archive.exists():
        return archive, ""
    done = said([command, "trace", *arguments, "--seed", "0", "--python", sys.executable, "-o", str(archive)])
    return (archive, "") if done.returncode == 0 else (None, f"not traced: {reason(done)}")


def said(step):
    try:
        return subprocess.run(list(map(str, step)), capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(step, 124, "", "error: took over 300 s")


def reason(done):
    lines = [line for line in done.stderr.splitlines() if line.startswith("error")] or done.stderr.splitlines() or ["?"]
    return lines[0][:160]


def split(command, archive, way, degree, folder):
    """Splits a model; returns the folder and what the plan says of it, or why there is none."""
    cluster, made = folder / f"cluster-{degree}.yaml", folder / f"{archive.stem}-{way}-{degree}"
    cluster.write_text(CLUSTER.replace("COUNT", str(degree)))
    plan = made.with_name(made.name + ".yaml")
    ask = ["plan", archive, "--cluster", cluster, "--stages", "1", WAYS[way], degree, "-o", plan, "--format", "json"]
    done = said([command, *ask])
    if done.returncode:
        return None, reason(done)
    shared = json.loads(done.stdout)["shared"]
    done = said([command, "emit", archive, plan, "-o", made, "--targets", "python", "--force"])
    return (made, shared) if done.returncode == 0 else (None, reason(done))


def judged(made, shared, degree, folder):
    """Returns whether all ranks have what one process has, and a text."""
    results = in_processes(rank, degree, [made], folder, degree)
    found = [value for _, _, value in results]
    faults = [value for value in found if isinstance(value, str)]
    if faults or len(found) < degree:
        return False, f"failed: {faults[0].strip().splitlines()[-1] if faults else 'a rank has ended'}"
    outputs, gradients = max(v[0] for v in found), max(v[1] for v in found)
    is_same = outputs <= TOLERANCE and gradients <= TOLERANCE
    return is_same, f"outputs {outputs:.1e}, gradients {gradients:.1e} {max(found, key=lambda v: v[1])[2]}; {shared['split_flops']:.1%} of FLOPs shared"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", type=int, default=40)
    parser.add_argument("--degrees", default="2,4")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.seconds
    shares, counts, models = {way: [] for way in WAYS}, {"same": 0, "DIFFERENT": 0, "refused": 0, "untraced": 0}, 0
    for name, how in names():
        if models >= arguments.models or time.monotonic() > end:
            break
        archive, why = traced(arguments.command, name, how, arguments.folder)
        if archive is None:
            counts["untraced"] += why is not None
            print(f"{name}: {why}" if why is not None else f"{name}: passed over, over {MOST:,} parameters", flush=True)
            continue
        models += 1
        for way in WAYS:
            for degree in map(int, arguments.degrees.split(",")):
                made, shared = split(arguments.command, archive, way, degree, arguments.folder)
                if made is None:
                    if way != "rows" or "no images" not in shared:
                        counts["refused"] += 1
                        print(f"{name} {way} on {degree}: refused: {shared}", flush=True)
                    continue
                is_same, text = judged(made, shared, degree, arguments.folder)
                counts["same" if is_same else "DIFFERENT"] += 1
                shares[way].append(shared["split_flops"])
                print(f"{name} {way} on {degree}: {'the same' if is_same else 'DIFFERENT'}: {text}", flush=True)
        archive.unlink()
    told = ", ".join(f"{way} {statistics.median(all_of_way):.1%}" for way, all_of_way in shares.items() if all_of_way)
    print(f"{models} models, {counts}; median share of FLOPs: {told}")
    sys.exit(counts["DIFFERENT"] > 0)


if __name__ == "__main__":
    main()
