"""Runs of `train.py` from the first step to the last checkpoint: what is saved, resumed, validated, told, and what ends them.

    python tests/oracle/runs.py COMMAND FOLDER [CASE …]

Tasks and the plain loop beside them are those of `trainer.py`. Prints a line for each case and exits 1 when one fails.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.utils.flop_counter
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).resolve().parent))
import torchrun as processes
from torchrun import STEPS, Failed
from trainer import ADAM, LIMIT, LOADER, SCHEDULED, Trained, VALIDATION, command, elements, is_found, loading, near, task, two

warnings.filterwarnings("ignore")


def resumed(cases, path, model, first, then, is_exact=True, stages=2, more=None, steps=STEPS):
    """Five steps, then the rest from the checkpoint: parameters are those of a run that was not interrupted.

    With `more`, the rest is of so many stages.
    """
    run = Trained(cases, model, stages)
    counts = [int(dict(zip(a, a[1:])).get("--replicas", 1)) for a in (first, then)]
    worlds = [stages * counts[0], (more or stages) * counts[1]]
    common = ["--task", path, "--save-every", "5", "--steps", str(steps)]
    whole, _ = run.run(worlds[0], *common, *first, "--save", "straight")
    half, _ = run.run(worlds[0], *common, *first, "--save", "halves", "--steps", "5")
    if more:
        other = Trained(cases, model, more)
        shutil.rmtree(other.out / "halves", ignore_errors=True)
        shutil.copytree(run.out / "halves", other.out / "halves")
        straight, run = run, other
    rest, text = run.run(worlds[1], *common, *then, "--save", "halves", "--resume")
    if "resumed after step 5" not in text:
        raise Failed(text)
    limit = 0.0 if is_exact else 1e-6
    near([line["loss"] for line in whole][5:], [line["loss"] for line in rest], "losses", limit)
    near([line["lr"] for line in whole][5:], [line["lr"] for line in rest], "learning rates", 0.0)
    expected, found = (straight if more else run).merged("straight"), run.merged("halves")
    worst = max(float((expected[name] - found[name]).abs().max()) for name in expected if expected[name].is_floating_point())
    if worst > (processes.allowed(0.0) if is_exact else LIMIT):
        raise Failed(f"parameters differ by {worst:.1e}")
    return "bit-equal" if is_exact else f"parameters differ by {worst:.0e}"


def kept(cases):
    """Old checkpoints go. A job that is killed while it writes goes on from one that is whole, and begins with other weights."""
    run, path = Trained(cases, "gpt2_tiny"), task(cases.place, "gpt", **ADAM)
    folder = run.out / "kept"
    for each in ("kept", "straight"):
        shutil.rmtree(run.out / each, ignore_errors=True)
    common = ("--task", path, *two(4), "--steps", "10", "--save-every", "1", "--save")
    whole, _ = run.run(2, *common, "straight", "--keep", "2")
    if sorted(os.listdir(run.out / "straight")) != ["latest", "step_00000009", "step_00000010"]:
        raise Failed(f"{sorted(os.listdir(run.out / 'straight'))}")
    last, unfinished = 0, 0
    for rank, step in ((0, 3), (1, 5), (0, 6), (1, 9)):
        # Killed in a step, while the checkpoint of the step before it is being written.
        _, text = run.run(2, *common, "kept", "--keep", "2", "--resume", "--crash", f"{rank},{step}", fails=True)
        told = re.search(r"resumed after step (\d+)", text)
        if (int(told[1]) if told else 0) != last:
            raise Failed(f"not resumed after step {last}:\n{text}")
        names = [name for name in os.listdir(folder) if name.startswith("step_")]
        unfinished += sum(name.endswith(".part") for name in names)
        last = max([int(name[5:]) for name in names if not name.endswith(".part")], default=0)
    rest, _ = run.run(2, *common, "kept", "--resume")
    near([line["loss"] for line in whole][last:], [line["loss"] for line in rest], "losses", 0.0)
    expected, found = run.merged("straight"), run.merged("kept")
    if any(not torch.equal(expected[name], found[name]) for name in expected):
        raise Failed("other parameters")
    rate = ("--task", task(cases.place, "gpt", old="0.02 * min", new="0.0 * min"), *two(4), "--steps", "1", "--save", "begun")
    run.run(2, *rate, "--from", "kept.pt")
    if any(not torch.equal(expected[name], value) for name, value in run.merged("begun").items()):
        raise Failed("--from begins with other weights")
    pretrained(run, found)
    return f"killed four times, {unfinished} checkpoints unfinished, bit-equal"


def killed_between(cases):
    """Between any two lines that give a checkpoint its name, a job can be killed: it goes on from the last one that counts."""
    run, path = Trained(cases, "gpt2_tiny"), task(cases.place, "gpt", **ADAM)
    place = run.out / "train_parts" / "checkpoints.py"
    text = place.read_text()
    common = ("--task", path, *two(4), "--allow-changes", "--save", "between", "--save-every", "1", "--keep", "2")
    counts = '(self.folder / f"{name}.part").rename(self.folder / name)'
    for line, step in ((counts, 2), ("synced(self.folder)\n                #", 3), ("for old in before", 3)):
        shutil.rmtree(run.out / "between", ignore_errors=True)
        assert text.count(line) == 1
        place.write_text(text.replace(line, f'name == "step_00000003" and os._exit(9)\n                {line}'))
        try:
            run.run(2, *common, fails=True)
        finally:
            place.write_text(text)
        # One of a later step is of another run, which began earlier.
        shutil.copytree(run.out / "between" / "step_00000001", run.out / "between" / "step_00000009")
        _, said = run.run(2, *common, "--resume", "--steps", "4")
        if f"resumed after step {step}" not in said:
            raise Failed(f"killed before `{line}`, not resumed after step {step}:\n{said}")
    return "three places"


def pretrained(run, state):
    """`--like` gives a folder with the names, and the files beside the weights, of another one."""
    like, out = run.out / "like", run.out / "pretrained"
    shutil.rmtree(out, ignore_errors=True)
    like.mkdir(exist_ok=True)
    (like / "config.json").write_text("{}")
    names = set(state) - {"lm_head.weight", *(name for name in state if name.endswith(".attn.bias"))}
    save_file({name: torch.zeros(1) for name in names}, like / "model.safetensors")
    done = subprocess.run([sys.executable, "train.py", "--save", "kept", "--merge", "pretrained", "--like", "like"], cwd=run.out, capture_output=True, text=True)
    if done.returncode or sorted(os.listdir(out)) != ["config.json", "model.safetensors"]:
        raise Failed(done.stderr)
    found = load_file(out / "model.safetensors")
    if set(found) != names or any(not torch.equal(state[name], value) for name, value in found.items()):
        raise Failed("other weights in the folder")
    # A folder has one name of what is tied, and no masks: a run begins with it as with the checkpoint.
    path = task(run.cases.place, "gpt", **ADAM)
    first, _ = run.run(2, "--task", path, *two(4), "--steps", "1", "--from", "pretrained")
    then, _ = run.run(2, "--task", path, *two(4), "--steps", "1", "--from", "kept")
    near([line["loss"] for line in then], [line["loss"] for line in first], "losses", 0.0)


def host_trace(cases):
    """Work that is planted beside the stages is told as the script's own, and work inside of them is not."""
    run = Trained(cases, "gpt2_tiny")
    beside, inside = "            self.submod.micro_batch = (self.pipeline, number)\n", "                    outputs = self.module(*positional)\n"
    spin = "{0}import time; end = time.thread_time() + {1}\n{0}while time.thread_time() < end: pass\n"
    planted = {
        run.out / "train_parts/pipelines.py": (beside, beside + spin.format(" " * 12, 0.008)),
        run.out / "train_parts/stages.py": (inside, spin.format(" " * 20, 0.020) + inside),
    }
    texts = {file: file.read_text() for file in planted}
    for file, (old, new) in planted.items():
        assert texts[file].count(old) == 1
        file.write_text(texts[file].replace(old, new))
    try:
        lines, said = run.run(2, *two(4), "--host-trace", "--allow-changes")
    finally:
        for file, text in texts.items():
            file.write_text(text)
    host = lines[-1]["host"]
    # Half of the passes are forward passes, in which 8 and 20 ms are spent.
    if host["passes"] != 8 or not (0.004 <= host["pass"] <= 0.008 and 0.010 <= host["stage"] <= 0.016) or "train.py itself took" not in said:
        raise Failed(said)
    return f"{1e3 * host['pass']:.2f} ms of planted 4 a pass"


def halves_trace(cases):
    """Work that is planted where weight gradients wait is told as what halves cost, and not as the script's."""
    run = Trained(cases, "gpt2_tiny")
    file, work = run.out / "train_parts/deferred.py", "        for parameter in list(queue):\n"
    text = file.read_text()
    assert text.count(work) == 1
    spin = "        import time; end = time.thread_time() + 0.010 * bool(queue)\n        while time.thread_time() < end: pass\n"
    file.write_text(text.replace(work, spin + work))
    try:
        lines, said = run.run(2, *two(4), "--schedule", "InterleavedZeroBubble", "--host-trace", "--allow-changes")
    finally:
        file.write_text(text)
    host = lines[-1]["host"]
    if host["passes"] != 12 or not (0.009 <= host["split"] <= 0.014 and host["pass"] <= 0.003) or "--split-overhead" not in said:
        raise Failed(f"{host} {said}")
    _, said = run.run(2, *two(4), "--host-trace")
    if "in halves" in said:
        raise Failed(said)
    return f"{1e3 * host['split']:.2f} ms of planted 10"


def profiled(cases, fault=None):
    """The timeline of a step is that of its schedule: passes in order, none before what it waits for, as long as they are.

    A `fault` is planted in the clock of a rank.
    """
    plan = processes.planned(cases, "gpt2_tiny", "torchgpipe") / "plan.yaml"
    run, path = Trained(cases, "gpt2_tiny"), task(cases.place, "gpt")
    place = run.out / "train_parts/profile.py"
    slow = (run.out / "train_parts/stages.py", "                    outputs = self.module(*positional)\n", "                    import time; time.sleep(0.02 * self.stage)\n")
    texts = {file: file.read_text() for file in (place, slow[0])}
    assert texts[slow[0]].count(slow[1]) == 1 and (not fault or texts[place].count(fault[0]) == 1)
    slow[0].write_text(texts[slow[0]].replace(slow[1], slow[2] + slow[1]))
    place.write_text(texts[place].replace(*fault) if fault else texts[place])
    try:
        _, said = run.run(2, "--task", path, *two(4), "--schedule", "1F1B", "--profile", "profile", "--allow-changes", "--steps", "6")
    finally:
        for file, text in texts.items():
            file.write_text(text)
    timeline = run.out / "profile/timeline.json"
    about = json.loads(timeline.read_text())
    found = {track["device"]: track["spans"] for track in about["tracks"] if track["stream"] == "compute"}
    passes = {rank: [span["name"] for span in spans if span["kind"] != "optimizer"] for rank, spans in found.items()}
    if passes != {0: "0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3".split(), 1: "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3".split()}:
        raise Failed(f"other passes: {passes}")
    at = {span["name"]: span for spans in found.values() for span in spans if span["kind"] != "optimizer"}
    waits = [(f"1F{k}", f"0F{k}") for k in range(4)] + [(f"0B{k}", f"1B{k}") for k in range(4)]
    waits += [(b, a) for names in passes.values() for a, b in zip(names, names[1:])]
    early = [f"{b} begins before {a} ends" for b, a in waits if at[b]["start"] < at[a]["end"]]
    if early:
        raise Failed(", ".join(early))
    if not all(2e7 <= at[f"1F{k}"]["end"] - at[f"1F{k}"]["start"] for k in range(4)):
        raise Failed("a pass of 20 ms is not as long")
    labels = {event.get("name") for event in json.loads((run.out / "profile/rank_1.json").read_text())["traceEvents"]}
    if not {"1F0", "1B3", "optimizer"} <= labels or f"--measured {Path('profile') / 'timeline.json'}" not in said:
        raise Failed(f"torch's trace lacks passes:\n{said}")
    page = cases.place / "profiled.html"
    command(cases, "report", cases.models["gpt2_tiny"], plan, "--measured", timeline, "-o", page)
    if "Predicted against measured" not in page.read_text():
        raise Failed("the report has no measured step")
    return f"{len(at)} passes in {about['end'] / 1e6:.0f} ms"


def counted(cases):
    """Tokens are those of the rows, and MFU is thrice torch's own count of the whole model's forward pass beside the plan's peak."""
    model = torch.nn.Sequential(torch.nn.Embedding(64, 16), torch.nn.Linear(16, 48), torch.nn.GELU(), torch.nn.Linear(48, 64))
    script, path = processes.module_of(processes.ROOT / "src/trace.py", "trace_script"), cases.place / "words.pt"
    traced, outputs = script.trace(model, [(None, torch.randint(0, 64, (2, 12)))])
    script.save(traced, str(path), script.record(traced, about={"target": "words"}, training=True, outputs=outputs))
    cases.models["words"] = path
    with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
        model(torch.randint(0, 64, (2, 12)))
    plan = processes.planned(cases, "words", "torchgpipe")
    peak, run = 2 * 8.141e12, Trained.__new__(Trained)
    run.cases, run.out = cases, plan
    (text,) = re.findall(r'"devices": "2 × T4".*"peak": \{.*"float32": ([0-9.e+]+)', (plan / "train.py").read_text())
    if abs(float(text) / peak - 1) > 0.01:
        raise Failed(f"a peak of {text}")
    script = (plan / "train.py").read_text()
    (plan / "train.py").write_text(script.replace('"devices": "2 × T4"', '"devices": "2 × CPU"'))
    try:
        lines, said = run.run(2, *two(4), "--allow-changes")
    finally:
        (plan / "train.py").write_text(script)
    for line in lines:
        near([24 * 4], [line["tokens_per_second"] * line["seconds"]], "tokens", 1e-9)
        near([3 * counter.get_total_flops() * 4 / float(text)], [line["mfu"] * line["seconds"]], "MFU", 1e-9)
    if " tokens/s, MFU " not in said:
        raise Failed(said)
    return f"{counter.get_total_flops()} operations a forward pass"


def host_predicted(cases):
    """What the script costs the host is put into the prediction as `simulate --host-overhead` has it."""
    plan = processes.planned(cases, "gpt2_tiny", "torchgpipe")
    script = (plan / "train.py").read_text()
    known = eval(re.search(r'"host": (\[.*?\])', script)[1])
    step = lambda us: json.loads(command(cases, "simulate", plan / "plan.yaml", "--host-overhead", us, "--format", "json"))["step_seconds"]  # noqa: E731
    near([step(us) for us in (0, 300, 1000)], [dict(known)[us / 1e6] for us in (0, 300, 1000)], "steps", 1e-9)
    train = processes.part_of(plan, "progress")
    near([step(250) - step(0)], [train.under(known, 250e-6)], "a step between two that are known", 1e-2)
    (plan / "train.py").write_text(script.replace('"devices": "2 × T4"', '"devices": "2 × CPU"'))
    try:
        lines, said = Trained.run(argparse.Namespace(out=plan), 2, "--host-trace", "--allow-changes")
    finally:
        (plan / "train.py").write_text(script)
    host = lines[-1]["host"]
    expected = train.told(known[0][1] + train.under(known, host["pass"]) + host["step"])
    if f", and {expected} with the script's host time" not in said:
        raise Failed(f"not {expected}: {said}")
    return f"{train.told(known[0][1])}, and {expected} with the host"


def refused(cases):
    """What a task lacks is one line, before the first step."""
    picture = lambda **about: task(cases.place, "picture", **about)  # noqa: E731
    rows = "batch_size=samples, drop_last=True"
    faults = {
        "the task has `target` and lacks `loss`": (picture(old="def loss(", new="def loss_of("),),
        "both `lr` and `scheduler`": (picture(more="\n\ndef scheduler(optimizer):\n    pass\n"),),
        "loss() of the task returns NoneType": (picture(old="    return torch.nn.functional.mse", new="    torch.nn.functional.mse"),),
        "a number without a gradient": (picture(old="mse_loss(outputs[0]", new="mse_loss(outputs[0].detach()"),),
        "the inputs ['y'], the model takes": (picture(old="return (data(step, samples, 'picture'),)", new="return {'y': data(step, samples, 'picture')}"),),
        "no group of the task matches": (picture(old=', {"match": "*", "weight_decay": 0.1}', new=""),),
        "give the group an `lr_scale`": (picture(old='"lr_scale": 2.0', new='"lr": 2.0'),),
        "`clip`, the largest norm": (picture(clip=-1.0),),
        "optimizer() of the task returns NoneType": (picture(old="return torch.optim", new="torch.optim"),),
        "no such file": ("nowhere.py",),
        "returned 7 rows": (picture(old="torch.randn(samples, 3", new="torch.randn(samples - 1, 3"),),
        "target()['tokens'] of the task returned 7 rows": (picture(old="torch.randn(samples, 10", new="torch.randn(samples - 1, 10"),),
        "target() of the task returned a list of 8 tensors of 8 rows each": (
            picture(old='return {"tokens": torch.randn(samples, 10, generator=generator)}', new="return [torch.randn(samples, 10) for _ in range(samples)]"),
        ),
        "loader() of the task gives batches of 3": (loading(cases.place, more=LOADER.replace("SHUFFLE", "False").replace("=samples,", "=3,")),),
        "the last batch of loader() has 2 samples of 8": (loading(cases.place, more=LOADER.replace("SHUFFLE", "False").replace("drop_last=True", "drop_last=False")),),
        "loader() of the task gives no batch": (loading(cases.place, more="\n\ndef loader(*_):\n    return []\n"),),
        "gives Tensor, not pairs": (loading(cases.place, more="\n\ndef loader(*_):\n    return [torch.zeros(3)]\n"),),
        "returns int, which is not iterable": (loading(cases.place, more="\n\ndef loader(*_):\n    return 3\n"),),
        "lr(0) of the task returns None": (picture(old="return 0.02 * min(1.0, (step + 1) / 4)", new="pass"),),
        "lr(0) of the task returns nan": (picture(old="return 0.02 * min(1.0, (step + 1) / 4)", new="return float('nan')"),),
        "a step of LBFGS needs a closure": (picture(old="SGD(parameters, lr=0.1, momentum=0.9)", new="LBFGS([p for group in parameters for p in group['params']])"),),
        "the task ended this rank by sys.exit(0)": (picture(more="\n\nimport sys\n\nsys.exit(0)\n"),),
        "target()['tokens'] of the task returned targets as numpy.ndarray": (picture(old="torch.randn(samples, 10, generator=generator)", new="torch.randn(samples, 10).numpy()"),),
        "--schedule foo is none of 1F1B, GPipe": (picture(), "--schedule", "foo"),
        "--save cannot be combined with --single": (picture(), "--single", "--save", "nowhere"),
        "cannot shard the update of Muon": (
            picture(old="SGD(parameters, lr=0.1, momentum=0.9)", new="Muon([p for p in parameters if p.dim() == 2])", clip=1.0),
            "--replicas", "2", "--sharding", "zero1",
        ),
    }
    if not torch.cuda.is_available():
        faults["this machine has 0 GPUs for"] = (picture(), "--device", "cuda")
    assert rows in LOADER
    run = Trained(cases, "resnet_plain", 1)
    for message, (path, *arguments) in faults.items():
        if "Muon" in message:
            text = Path(path).read_text()
            Path(path).write_text(text[: text.index("groups =")] + text[text.index("def optimizer") :])
        world = 2 if arguments else 1
        lines, text = run.run(world, "--task", path, *two(4), *arguments, fails=True)
        if message not in text or "Traceback" in text or lines:
            raise Failed(f"not `{message}`:\n{text}")
    # Pictures end as one pixel, so of one sample a norm has one value.
    lines, text = Trained(cases, "resnet", 1).run(1, "--micro-batch-size", "1", "--steps", "1", fails=True)
    if "rank 0: " not in text and "a batch norm sees one value per channel, so `layer4" not in text or "Traceback" in text or lines:
        raise Failed(text)
    return f"{len(faults) + 1} faults"


def unwritten(cases):
    """A folder that takes no files is refused at once; a full disk, and a torn checkpoint, are told in the last line."""
    path, run = task(cases.place, "picture"), Trained(cases, "resnet_plain", 2)
    (run.out / "file").write_text("")
    lines, text = run.run(2, "--task", path, *two(4), "--save", "file", fails=True)
    if "--save file: File exists" not in text or lines:
        raise Failed(text)
    small = "\n\nimport resource, signal\n\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nresource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))\n"
    _, text = run.run(2, "--task", task(cases.place, "picture", more=small), *two(4), "--save", "full", "--save-every", "1", fails=True)
    if not re.search(r"\nrank 0: OSError: rank [01] could not write its part of a checkpoint: .* MiB are free in full.* in the checkpoint after step 2; resume", text):
        raise Failed(text)
    run.run(2, "--task", path, *two(4), "--save", "torn", "--steps", "1")
    for file in (run.out / "torn/step_00000001").glob("*.distcp"):
        file.write_bytes(file.read_bytes()[:100])
    _, text = run.run(2, "--task", path, *two(4), "--save", "torn", "--resume", fails=True)
    if "torn/step_00000001 cannot be read: " not in text or "Traceback" in text:
        raise Failed(text)
    return "three faults"


def another_optimizer(cases):
    """The state of one optimizer is no other's."""
    first, then, run = task(cases.place, "picture"), task(cases.place, "picture", **ADAM), Trained(cases, "resnet_plain", 1)
    run.run(1, "--task", first, *two(4), "--steps", "1", "--save", "another")
    lines, text = run.run(1, "--task", then, *two(4), "--steps", "2", "--save", "another", "--resume", fails=True)
    if "the checkpoint has the state of SGD, and the optimizer here is AdamW" not in text or "Traceback" in text or lines:
        raise Failed(text)
    path = Path(task(cases.place, "picture", **SCHEDULED))
    _, text = run.run(1, "--task", str(path), *two(4), "--steps", "2", "--save", "another", "--resume")
    if "the checkpoint has no scheduler: OneCycleLR begins at its first step" not in text:
        raise Failed(text)
    path.write_text(path.read_text().replace("OneCycleLR(optimizer, 0.1, total_steps=12)", "ExponentialLR(optimizer, 0.9)"))
    _, text = run.run(1, "--task", str(path), *two(4), "--steps", "3", "--save", "another", "--resume", fails=True)
    if "the checkpoint has the state of OneCycleLR, and the scheduler here is ExponentialLR" not in text:
        raise Failed(text)
    return "refused, and said"


def rests(cases):
    """A last batch of fewer samples is told for what it is; where an epoch has too few samples for one more, the next one begins."""
    run, few = Trained(cases, "resnet_plain", 2), "drop_last=True, shuffle=SHUFFLE"
    assert few in LOADER
    streamed = LOADER.replace("torch.utils.data.Dataset)", "torch.utils.data.IterableDataset)").replace("def __len__(self):\n        return len(self.numbers)", "def __iter__(self):\n        return map(self.__getitem__, range(len(self.numbers)))")
    _, text = run.run(2, "--task", loading(cases.place, more=streamed.replace(few, "num_workers=1, persistent_workers=True")), *two(4), fails=True)
    for said in ("the dataset of loader() does not tell how many samples it has", "workers of loader() persist", "returned 2 rows of `x`, 8 are needed (8 samples per step); leave a last batch of fewer samples out"):
        if said not in text or "Traceback" in text:
            raise Failed(f"not `{said}`: {text}")
    path = loading(cases.place)
    run.run(2, "--task", path, *two(4), "--steps", "4", "--save", "rest")
    _, text = run.run(2, "--task", path, *two(16), "--steps", "6", "--save", "rest", "--resume")
    if "resumed after step 4" not in text:
        raise Failed(text)
    return "told, and gone on"


def saving_is_no_step(cases):
    """The time of a checkpoint is not the next step's."""
    run = Trained(cases, "resnet_plain", 1)
    place = run.out / "train_parts" / "checkpoints.py"
    text, begins = place.read_text(), '        self.wait()\n        name = f"step_'
    assert text.count(begins) == 1
    place.write_text(text.replace(begins, f'        __import__("time").sleep(2.0)\n{begins}'))
    try:
        lines, _ = run.run(1, "--task", task(cases.place, "picture"), *two(4), "--steps", "3", "--save", "slowly", "--save-every", "1", "--allow-changes")
    finally:
        place.write_text(text)
    if max(line["seconds"] for line in lines[1:]) >= 2.0:
        raise Failed(f"{[line['seconds'] for line in lines]} s")
    return f"a step took {lines[-1]['seconds']:.2f} s"


def interrupted(cases):
    """Ctrl-C reaches the launcher and its ranks: what is printed last says so, without a stack of each rank."""
    run = Trained(cases, "resnet_plain", 2)
    started = subprocess.Popen(
        [sys.executable, "-W", "ignore", "train.py", "--allow-eval", "--device", "cpu", "--steps", "1000000"],
        cwd=run.out, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )
    text = ""
    while not re.search("^step 3 ", text, re.MULTILINE):
        if not (line := started.stdout.readline()):
            raise Failed(text)
        text += line
    os.killpg(started.pid, signal.SIGINT)
    text += started.communicate(timeout=20)[0]
    if not text.splitlines()[-1].startswith("stopped (SIGINT); resume from the last checkpoint with: python train.py") or "KeyboardInterrupt" in text:
        raise Failed(text)
    return "in one line"


def from_weights(cases):
    """One process begins with the weights of --from, too, also where they stand in a dict beside others, and under more names."""
    path, run = task(cases.place, "picture"), Trained(cases, "resnet_plain", 2)
    run.run(2, "--task", path, *two(4), "--steps", "1", "--save", "begun")
    begins = lambda source, world=2, **fails: run.run(world, "--task", path, *two(4), "--steps", "2", "--from", source, *(("--single",) * (world == 1)), **fails)  # noqa: E731
    (many, _), (one, _) = begins("begun"), begins("begun", 1)
    state = run.merged("begun")
    wrapped = {f"module.{name}": value for name, value in state.items()}
    for name, value in {"nested": {"epoch": 1, "state_dict": wrapped}, "two": {"model": state, "ema": state}, "other": {"x": state["fc.bias"]}}.items():
        torch.save(value, run.out / f"{name}.pt")
    nested, text = begins("nested.pt")
    near([line["loss"] for line in many], [line["loss"] for line in nested], "losses", 0.0)
    if "names in nested.pt begin with `state_dict.module.`" not in text:
        raise Failed(text)
    for name, message in {"two": "it has as many of the model's parameters under `ema.` and `model.`", "other": "and has 1 tensors of other names, as `x`"}.items():
        if message not in (text := begins(f"{name}.pt", fails=True)[1]) or "Traceback" in text:
            raise Failed(text)
    return f"losses differ by {near([line['loss'] for line in many], [line['loss'] for line in one], 'losses', 1e-6):.0e}"


OWN_ORDER = """

import os

import numpy


class Shuffled:
    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        rows, order = Rows(0, 1, 42), ORDER
        for at in range(0, 42 - self.samples, self.samples):
            items = [rows[int(number)] for number in order[at : at + self.samples]]
            yield CHANGED(torch.stack([x for x, _ in items])), {"tokens": torch.stack([y["tokens"] for _, y in items])}


def loader(replica, replicas, samples):
    return Shuffled(samples)
"""


def orders(cases):
    """Stages that load for themselves have the same batches: numpy's numbers are seeded, too, and other orders are refused."""
    run = Trained(cases, "resnet_plain", 2)
    own = "numpy.random.default_rng(int(os.environ['RANK']))"  # as two processes draw that were given no seed
    made = lambda order, change="": loading(cases.place, more=OWN_ORDER.replace("ORDER", order).replace("CHANGED", change))  # noqa: E731
    _, text = run.run(2, "--task", made(f"{own}.permutation(42)"), *two(4), fails=True)
    if "loader() of the task gives the ranks of replica 0 different targets: each" not in text or "Traceback" in text:
        raise Failed(text)
    _, text = run.run(2, "--task", made("range(42)", f"(lambda x: x + {own}.random())"), *two(4), "--steps", "2")
    if "different inputs, with equal targets" not in text:
        raise Failed(text)
    seen = []
    for number in range(2):  # the state that a process has of itself changes nothing
        path = Path(made("numpy.random.permutation(42)"))
        path.write_text(path.read_text().replace("import numpy\n", f"import numpy\n\nnumpy.random.seed({number} + 2 * int(os.environ['RANK']))\n"))
        lines, _ = run.run(2, "--task", str(path), *two(4))
        seen.append([line["loss"] for line in lines])
    near(*seen, "losses", 0.0)
    return "one order on both ranks"


SOME = """

def validate(outputs, target):
    COUNTED.append(1)
    return {"hits": (outputs[0].argmax(1) == target["tokens"].argmax(1)).double().mean()} | ({"some": 3.0} if len(COUNTED) % 3 == 0 else {})


COUNTED = []
"""


def sometimes(cases):
    """A value is the mean over the micro-batches that have it, on whichever replica; inputs may be a dict."""
    named = VALIDATION.replace("found.append((x,", "found.append(({NAME: x},")
    run = Trained(cases, "resnet_plain", 1)
    name = json.loads((run.out / "stages/manifest.json").read_text())["inputs"][0]["name"]
    path = task(cases.place, "picture", more=named.replace("NAME", repr(name)) + SOME)
    lines, _ = run.run(2, "--task", path, "--replicas", "2", *two(2), "--steps", "2")
    [found] = [line["validation"] for line in lines if "validation" in line]
    if found.get("some") != 3.0 or not 0 <= found["hits"] <= 1:
        raise Failed(f"{found}")
    path = task(cases.place, "picture", more=VALIDATION + "\n\ndef validate(outputs, target):\n    return outputs[0].argmax(1)\n")
    _, text = run.run(1, "--task", path, *two(2), "--steps", "1", fails=True)
    if "validate() of the task returns Tensor, not a dict of numbers" not in text or "Traceback" in text:
        raise Failed(text)
    return "3 of 9 micro-batches have it"


def validated(cases, model, world, replicas, *arguments, stages=2):
    """Values are those of the eager model in eval mode with the trained weights; training is what it is without."""
    path, pipelines = task(cases.place, "picture", more=VALIDATION), max(map(int, str(replicas).split(",")))
    run = Trained(cases, model, stages)
    arguments = ("--task", path, *arguments, *two(3), "--replicas", str(replicas))
    lines, _ = run.run(world, *arguments, "--validate-every", "4", "--save", "valid")
    without, _ = run.run(world, *arguments[:1], task(cases.place, "picture"), *arguments[2:])
    near([l["loss"] for l in without], [l["loss"] for l in lines if "loss" in l], "losses", 0.0)
    found = [line for line in lines if "validation" in line]
    if [line["step"] for line in found] != [4, STEPS]:
        raise Failed(f"validated after {[line['step'] for line in found]}")
    eager, trained = processes.resnet(model == "resnet").eval(), processes.module_of(Path(path), "task")
    eager.load_state_dict(run.merged("valid"))
    values = []
    with torch.no_grad():
        for replica in range(pipelines):
            for x, y in trained.validation(replica, pipelines, 6)[:3]:
                out = [eager(x)]
                values.append((float(trained.loss(out, y)), float(trained.validate(out, y)["hits"])))
    loss, hits = (sum(each) / len(values) for each in zip(*values))
    near([loss, hits], [found[-1]["validation"][name] for name in ("loss", "hits")], "values", 1e-5)
    if found[-1]["samples"] != 18 * pipelines:
        raise Failed(f"{found[-1]['samples']} samples")
    return f"loss {loss:.4g}, hits {hits:.3g}"


def failing(at, what):
    """A task whose loss does something from its `at`-th call on: three steps of four micro-batches go well before 13."""
    return {
        "old": "return torch.nn.functional.mse",
        "new": "torn()\n    return torch.nn.functional.mse",
        "more": f"\n\nCALLS = []\n\n\ndef torn():\n    CALLS.append(1)\n    if len(CALLS) >= {at}:\n        {what}\n",
    }


def failures(cases, first):
    """`python train.py` starts its ranks; what happened is the last line, within five seconds."""
    picture = lambda **about: task(cases.place, "picture", **about)  # noqa: E731
    out = cases.emit("resnet_plain", "--stages", "2", "--targets", "python")
    short = '(samples - (step == 3), 3'
    again = "resume from the last checkpoint with: python train.py"
    faults = [
        # what the last line says, the task, arguments, seconds that a rank is waited for
        ("rank 1 was ended by SIGKILL, after", picture(), ["--crash", "1,3"], 0),
        ("rank 0 was ended by SIGKILL, after", picture(), ["--crash", "0,3"], 0),
        ("rank 1 failed: ValueError: no such label in the loss after the forward pass", picture(**failing(14, "raise ValueError('no such label')")), [], 0),
        ("rank 1 was ended by SIGSEGV, after", picture(**failing(14, "import os; os.kill(os.getpid(), 11)")), [], 0),
        ("rank 1 failed with exit code 3, after", picture(**failing(14, "import os; os._exit(3)")), [], 0),
        ("no answer from rank 1, which is at the loss after the forward pass of micro-batch 1 in stage 1 (its stack: ", picture(**failing(14, "import time; time.sleep(100)")), ["--timeout", "4"], 4),
        ("rank 0 failed: inputs() of the task returned 7 rows", picture(old="(samples, 3", new=short), [], 0),
        ("rank 1 failed: the loss is not finite in step 4", picture(**failing(13, "return float('nan')"), clip=None), [], 0),
        ("rank 1 failed: a recurrent layer was traced in eval mode", picture(**failing(14, "raise RuntimeError('cudnn RNN backward can only be called in training mode')")), [], 0),
    ]
    faults, slowest = faults[first::5], 0.0
    for message, path, arguments, waits in faults:
        if "not finite" in message:
            Path(path).write_text(Path(path).read_text().replace("torn()\n    return", "return (torn() or 1.0) *"))
        log, fastest = out / "log.jsonl", float("inf")
        command = [sys.executable, "train.py", "--device", processes.DEVICE, "--steps", "8", "--task", path, "--log", log, *two(4)]
        for _ in range(3):  # other work on the machine makes some slow
            log.unlink(missing_ok=True)
            done = subprocess.run([*command, *arguments], cwd=out, env=processes.environment(), capture_output=True, text=True, timeout=120)
            fastest = min(fastest, time.time() - log.stat().st_mtime - waits)
            lines = done.stderr.strip().splitlines()
            if done.returncode != 1 or message not in lines[-1] or again not in lines[-1] or "Traceback" in done.stderr:
                raise Failed(f"not `{message}`: {done.returncode}\n{done.stderr}")
            if len(lines) > 1 or len(log.read_text().splitlines()) != 3:
                raise Failed(f"more is said:\n{done.stderr}\n{log.read_text()}")
            if fastest <= 5:
                break
        slowest = max(slowest, fastest)
    if slowest > 5:
        raise Failed(f"a job ended only after {slowest:.1f} s")
    return f"{len(faults)} faults, each told last and alone; the slowest end took {slowest:.1f} s"


def lost_under_nccl(cases):
    """A rank whose peer NCCL has lost, which a call on a GPU would never tell it, ends at once. (What NCCL says is planted.)"""
    out = cases.emit("resnet_plain", "--stages", "2", "--targets", "python")
    part = out / "train_parts/hangs.py"
    before = part.read_text()
    path = task(cases.place, "picture", **failing(14, "import pathlib, time; pathlib.Path('gone').touch(); time.sleep(100)"))
    begun = "def lost_peer():\n"
    assert before.count(begun) == 1
    part.write_text(before.replace(begun, f"{begun}    if os.environ['RANK'] == '0' and os.path.exists('gone'):\n        return 'NCCL: REMOTE_ERROR'\n"))
    try:
        command = [sys.executable, "train.py", "--device", processes.DEVICE, "--steps", "8", "--task", path, "--allow-changes", *two(4)]
        done = subprocess.run(command, cwd=out, env=processes.environment(), capture_output=True, text=True, timeout=60)
    finally:
        part.write_text(before)
    seconds = time.time() - (out / "gone").stat().st_mtime
    if done.returncode != 1 or "rank 0: lost a peer (NCCL: REMOTE_ERROR), after" not in done.stderr or seconds > 10:
        raise Failed(f"{seconds:.1f} s: {done.returncode}\n{done.stderr}")
    if done.stderr.count("hangs.py was changed after it was written") != 1:  # not by the launcher, and by a rank again
        raise Failed(done.stderr)
    return "told at once"


def not_finite(cases):
    """A gradient that is NaN ends all ranks before the update, with the step, the rank and the parameter's name."""
    path = task(cases.place, "picture", old="return torch.nn.functional.mse", new="return (1e30 if COUNT(outputs) > 12 else 1) ** 2 * torch.nn.functional.mse", more="\n\nSEEN = []\n\n\ndef COUNT(outputs):\n    SEEN.append(1)\n    return len(SEEN)\n")
    run = Trained(cases, "resnet_plain")
    lines, text = run.run(2, "--task", path, *two(4), fails=True)
    if len(lines) != 3 or not re.search(r"rank [01]: (the loss|the gradient of `\S+`) is not finite in step 4", text):
        raise Failed(text)
    return "step 4"


def planned_sharding(cases):
    """A plan's sharding is what the script does unless told otherwise."""
    plan = processes.planned(cases, "gpt2_tiny", "torchgpipe") / "plan.yaml"
    path = cases.place / "sharded.yaml"
    path.write_text(plan.read_text().replace("predicted:", "execution:\n  sharding: zero1\npredicted:", 1))
    text = (cases.emit("gpt2_tiny", str(path), "--targets", "python") / "train.py").read_text()
    if '"sharding": "zero1"' not in text:
        raise Failed("the script does not know the plan's sharding")
    return "known"


SMALL = """kind: cluster
version: 1
types:
  small: {{memory: {memory}, memory_bandwidth: 3.2e+11, peak: {{float32: 8.1e+12}}}}
devices: [{{type: small, count: 2}}]
levels: [{{name: pcie, bandwidth: 1.2e+10, latency: 8.0e-6}}]
"""


def chosen_sharding(cases):
    """What `split` chooses of itself, where two replicas fit only if they share out, is what its folder trains with."""
    model, cluster, out = cases.models["gpt2_tiny"], cases.place / "small.yaml", cases.place / "chosen"
    told = ("plan", model, "--devices", "2xt4", "--strategy", "ddp", "--sharding", "none", "--no-recompute")
    whole = command(cases, *told, "--micro-batches", "8", "--format", "json")
    cluster.write_text(SMALL.format(memory=json.loads(whole)["memory_bytes"] * 51 // 50))
    command(cases, "split", model, "--cluster", cluster, "--micro-batches", "8", "-o", out)
    if "sharding: zero1" not in (out / "plan.yaml").read_text():
        raise Failed("split did not choose to share out")
    codes, texts = processes.ranks(out, 2, ["--check"])
    if any(codes) or "the same" not in texts[0]:
        raise Failed(f"exit codes {codes}\n" + "\n".join(texts))
    cases.train(out, 2, "--steps", "3", "--save", "shared", "--task", task(cases.place, "gpt"))
    held, _ = elements(out / "shared/step_00000003", (0, 1), "momentum_buffer")
    if held[0] != held[1] or not held[0]:
        raise Failed(f"elements of the replicas: {held}")
    return f"elements of the replicas: {held}"


class Picks(torch.nn.Module):
    """Rows that a threshold picks: between the stages their number depends on the data."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.middle, self.last = torch.nn.Linear(6, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 2)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = self.middle(x.index_select(0, torch.nonzero(x.sum(1) > 0.6).flatten()))
        return self.last(x).mean(0, keepdim=True)


def sized_by_data(cases):
    """Torch's pipelines send tensors of fixed sizes: where sizes depend on the data, a run ends with a line that says what to do."""
    script = processes.module_of(processes.ROOT / "src/trace.py", "trace_script")
    traced, outputs = script.trace(Picks().train(), [(None, torch.randn(16, 6))])
    cases.models["picks"] = cases.place / "picks.pt"
    script.save(traced, str(cases.models["picks"]), script.record(traced, about={"target": "picks"}, training=True, outputs=outputs))
    _, text = Trained(cases, "picks").run(2, *two(4), fails=True)
    if "cut the model elsewhere (--cut-at, --keep-together)" not in text or "Traceback" in text:
        raise Failed(text)
    return "told"


def cases():
    made = {
        "resume, scheduler": lambda c: resumed(c, task(c.place, "picture", **SCHEDULED), "resnet_plain", two(4), two(4)),
        "resume, shuffled loader": lambda c: resumed(
            c, loading(c.place, True), "resnet_plain", ("--replicas", "2", *two(2)), ("--replicas", "2", *two(2))
        ),
        "resume, a generator of the loader": lambda c: resumed(
            c, loading(c.place, "True, generator=torch.Generator().manual_seed(3)"), "resnet_plain", two(4), two(4)
        ),
        "resume, another optimizer": another_optimizer,
        "checkpoints that cannot be written or read": unwritten,
        "one process, with weights": from_weights,
        "orders of loaders": orders,
        "validation, values of some": sometimes,
        "resume, other stages and replicas": lambda c: resumed(
            c, task(c.place, "gpt", **ADAM), "gpt2_tiny", ("--replicas", "2", "--sharding", "zero1", *two(2)),
            ("--replicas", "2", "--sharding", "zero3", *two(2)), False, more=1
        ),
        "resume, more stages": lambda c: resumed(
            c, task(c.place, "gpt", **ADAM), "gpt2_tiny", ("--replicas", "2", *two(2)), two(4), False, more=3
        ),
        "resume, from shares to one rank": lambda c: resumed(
            c, task(c.place, "gpt", **ADAM), "gpt2_tiny", ("--replicas", "2", "--sharding", "zero3", *two(2)), two(4), False, more=1
        ),
        "resume, other stages and shares, 20 steps": lambda c: resumed(
            c, task(c.place, "gpt", **ADAM), "gpt2_tiny", ("--replicas", "2", "--sharding", "zero3", *two(2)), two(4), False, more=3, steps=25
        ),
        "resume, kept checkpoints": kept,
        "resume, killed between two names": killed_between,
        "a task's faults": refused,
        "what is left of an epoch": rests,
        "a checkpoint's time": saving_is_no_step,
        "Ctrl-C": interrupted,
        "not finite": not_finite,
        "sizes that depend on the data": sized_by_data,
        "validation, batch norm": lambda c: validated(c, "resnet", 2, 1),
        "validation, replicas": lambda c: validated(c, "resnet_plain", 4, 2, "--sharding", "zero3"),
        "validation, unequal": lambda c: validated(c, "resnet_plain", 3, "2,1"),
        "validation, two stages a rank": lambda c: validated(
            c, "resnet_plain", 2, 1, "--pipeline-ranks", "2", "--schedule", "ZBVZeroBubble", stages=4
        ),
        "failures": lambda c: failures(c, 0),
        "failures, NCCL": lost_under_nccl,
        "failures, others": lambda c: failures(c, 1),
        "failures, further": lambda c: failures(c, 2),
        "failures, more": lambda c: failures(c, 3),
        "failures, one more": lambda c: failures(c, 4),
        "a plan's sharding": planned_sharding,
        "a chosen sharding": chosen_sharding,
        "host trace": host_trace,
        "host trace, halves": halves_trace,
        "servers, resume as replicas": lambda c: resumed(
            c, task(c.place, "gpt", **ADAM), "gpt2_tiny", ("--replicas", "2", "--collective", "parameter-server", *two(2)), ("--replicas", "2", *two(2)), False
        ),
        "profile": profiled,
        "profile: a clock that is ahead is found": is_found(lambda c: profiled(c, ("return time.time_ns()", "return time.time_ns() + 10**9 * self.rank")), "before"),
        "tokens and MFU": counted,
        "host in the prediction": host_predicted,
    }
    for level in ("zero1", "zero2", "zero3"):
        s = ("--sharding", level)
        made |= {
            f"{level} resume": lambda c, s=s: resumed(
                c, task(c.place, "gpt", **ADAM), "gpt2_tiny", ("--replicas", "2", *s, *two(2)), ("--replicas", "2", *s, *two(2))
            ),
            f"{level} resume as one replica": lambda c, s=s: resumed(
                c, task(c.place, "gpt", **ADAM), "gpt2_tiny", ("--replicas", "2", *s, *two(2)), two(4), False
            ),
            f"{level} resume from one replica": lambda c, s=s: resumed(
                c, task(c.place, "gpt", **ADAM), "gpt2_tiny", two(4), ("--replicas", "2", *s, *two(2)), False
            ),
        }
    return made


# What others say, too, but for sizes: `make zoo-training` takes them.
SELDOM = (
    "resume, more stages",
    "resume, from shares to one rank",
    "validation, unequal",
    "validation, two stages a rank",
    "servers, resume as replicas",
    "profile: a clock that is ahead is found",
    "resume, other stages and shares, 20 steps",
    "failures, others",
    "failures, further",
    "failures, more",
    "failures, one more",
    "resume, kept checkpoints",
    "zero1 resume",
    "zero1 resume from one replica",
    "zero2 resume as one replica",
    "zero2 resume from one replica",
    "zero3 resume as one replica",
    "zero3 resume from one replica",
)

if __name__ == "__main__":
    processes.main(cases(), SELDOM)
