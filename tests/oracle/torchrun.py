"""Trains emitted stages in several gloo processes and compares them with the whole model in one.

    python tests/oracle/torchrun.py COMMAND FOLDER [CASE … | --list]

Every case emits a small model, runs `train.py` as torchrun would, and holds its losses over six steps against those of
the whole traced model, which knows nothing of stages. Processes are forked from this one: importing torch is most of
what a small case costs. Prints a line for each case and exits 1 when one fails.

With TRAIN_DEVICE=cuda in the environment, these cases and those of the other scripts run under NCCL, and one GPU is enough
for all ranks (`one_card/sitecustomize.py`); what they are held against stays on the processor.
"""

import _imp
import argparse
import concurrent.futures
import contextlib
import importlib.util
import json
import marshal
import math
import os
import random
import re
import resource
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
DEVICE = os.environ.get("TRAIN_DEVICE", "cpu")
# A process that has once seen a GPU cannot be forked.
CARDS = os.environ.get("CUDA_VISIBLE_DEVICES")
if DEVICE == "cuda":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import safetensors.torch  # noqa: F401  (once, not in every rank, as the next two)
import torch
import torch.distributed.checkpoint
import torch.distributed.pipelining
import torch.utils.checkpoint
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).resolve().parent))
import nccl_order

warnings.filterwarnings("ignore")
ROOT = Path(__file__).resolve().parent.parent.parent
STEPS = 6
TASK = '''
import torch


def inputs(step, samples):
    generator = torch.Generator().manual_seed(step)
    return (torch.randn(samples, 3, 32, 32, generator=generator),)


def target(step, samples):
    generator = torch.Generator().manual_seed(1000 + step)
    return torch.randn(samples, 10, generator=generator)


def loss(outputs, target):
    return torch.nn.functional.mse_loss(outputs[0], target)


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3)
'''


def module_of(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def part_of(out, name):
    """Imports one of the modules beside an emitted training script, and none of another folder."""
    place = f"{out}/train_parts/"
    for known in [known for known, module in sys.modules.items() if known.startswith("train_parts") and not str(module.__file__ or place).startswith(place)]:
        del sys.modules[known]
    sys.path[:] = [str(out)] + [path for path in sys.path if not (Path(path) / "train_parts").is_dir()]
    return importlib.import_module(f"train_parts.{name}")


# -- models ---------------------------------------------------------------------------------------------------------


def resnet(normalised):
    """A ResNet of a quarter of the channels in training mode; without BatchNorm, samples do not see each other."""
    from torchvision.models.resnet import BasicBlock, ResNet

    class Narrow(ResNet):
        def _make_layer(self, block, planes, *others, **named):
            return super()._make_layer(block, planes // 4, *others, **named)

    torch.manual_seed(3)
    plain = {} if normalised else {"norm_layer": lambda channels: torch.nn.GroupNorm(2, channels)}
    model = Narrow(BasicBlock, [1, 1, 1, 1], **plain)
    model.fc = torch.nn.Linear(128, 10)
    if DEVICE == "cuda":
        # Norms of two values each, as at the end of the usual one, make 1e-3 of a last bit; kernels of a GPU differ in it.
        model.conv1, model.maxpool = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False), torch.nn.Identity()
    return model.train()


class Ahead(torch.nn.Module):
    """Returns values of an observed range, a matrix that has a Cholesky factor, which zeros have not, and counts that no
    gradient reaches."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 6)
        self.observed = torch.ao.quantization.FusedMovingAvgObsFakeQuantize(quant_min=0, quant_max=127)

    def forward(self, x):
        h = self.observed(self.linear(x))
        written = torch.zeros_like(h)
        written[..., 1:] = h[..., 1:]
        return torch.tanh(written), h.transpose(1, 2) @ h + torch.eye(6), torch.histc(h.topk(2).indices.float(), 6, 0, 5)


class Behind(torch.nn.Module):
    """Sums counts up as whole numbers, which torch refuses of what requires a gradient, and returns as many values as are positive."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 3)

    def forward(self, h, matrix, counts):
        found = self.linear(h @ torch.linalg.cholesky(matrix)) * counts.cumsum(0, dtype=torch.int32).float().mean()
        return found, found[found > 0]


class Received(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.ahead, self.behind = Ahead(), Behind()

    def forward(self, x):
        return self.behind(*self.ahead(x))


def make_models(place):
    script = module_of(ROOT / "src/trace.py", "trace_script")
    models = {name: ROOT / f"fixtures/traces/{name}.pt" for name in ("unet_small", "bert_tiny", "gpt2_tiny", "lstm_seq2seq_small")}
    for name, normalised in (("resnet", True), ("resnet_plain", False)):
        traced, outputs = script.trace(resnet(normalised), [(None, torch.randn(2, 3, 32, 32))])
        text = script.record(traced, about={"target": name, "seed": "3"}, training=True, outputs=outputs)
        models[name] = place / f"{name}.pt"
        script.save(traced, str(models[name]), text)
    traced, outputs = script.trace(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Sigmoid()), [(None, torch.randn(2, 3))])
    models["no_parameters"] = place / "no_parameters.pt"
    script.save(traced, str(models["no_parameters"]), script.record(traced, about={"target": "no_parameters"}, training=False, outputs=outputs))
    torch.manual_seed(4)
    traced, outputs = script.trace(Received().train(), [(None, torch.randn(2, 4, 6))])
    models["received"] = place / "received.pt"
    script.save(traced, str(models["received"]), script.record(traced, about={"target": "received"}, training=True, outputs=outputs))
    (place / "task.py").write_text(TASK)
    return models


# -- processes ------------------------------------------------------------------------------------------------------


def compiled_once():
    """Has Python compile the parts of `train.py` once, not again in each folder and rank: half of what a small case costs."""
    parts = (path.read_bytes() for path in sorted((ROOT / "codegen/src/train/parts").glob("*.py")))
    # `emit` writes a line of its own above each.
    known = {text: marshal.dumps(compile(b"\n" + text, "part", "exec", dont_inherit=True)) for text in parts}
    compiles = importlib.machinery.SourceFileLoader.source_to_code

    def source_to_code(loader, text, path, **options):
        code = known.get(bytes(text).partition(b"\n")[2])
        if code is None:
            return compiles(loader, text, path, **options)
        code = marshal.loads(code)
        _imp._fix_co_filename(code, path)
        return code

    importlib.machinery.SourceFileLoader.source_to_code = source_to_code


compiled_once()


def forked(function):
    """Runs a function in a process of its own; returns its id and where its output will be read."""
    read, written = os.pipe()
    pid = os.fork()
    if pid:
        os.close(written)
        return pid, os.fdopen(read)
    code = 1
    for name in [name for name in sys.modules if name.startswith("train_parts")]:
        del sys.modules[name]  # of another folder
    try:
        os.close(read)
        os.dup2(written, 1)
        os.dup2(written, 2)
        code = function() or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else (0 if end.code is None else 1)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


# Seconds that ranks have once another has failed; a launcher ends them, too. Where one refuses nobody else has anything to say.
GRACE = 20.0
AFTER_A_REFUSAL = 2.0


def ended(processes, grace=GRACE):
    """Returns exit codes and texts."""
    with concurrent.futures.ThreadPoolExecutor(len(processes)) as pool:
        texts = [pool.submit(output.read) for _, output in processes]
        codes, failed = {}, None
        while len(codes) < len(processes):
            for pid in [pid for pid, _ in processes if pid not in codes]:
                if (found := os.waitpid(pid, os.WNOHANG))[0]:
                    codes[pid] = os.waitstatus_to_exitcode(found[1])
                    failed = failed or (time.monotonic() if codes[pid] else None)
                elif failed and time.monotonic() > failed + grace:
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        return [codes[pid] for pid, _ in processes], [text.result() for text in texts]


def free_port():
    """A port that nothing else takes until it is listened to: the system hands out none of these by itself."""
    while True:
        with socket.socket() as found, contextlib.suppress(OSError):
            found.bind(("127.0.0.1", random.SystemRandom().randrange(20_000, 30_000)))
            return found.getsockname()[1]


def ranks(out, world, arguments, grace=GRACE):
    """Starts `train.py` with what torchrun gives it; `grace` as `ended` has it."""
    port = free_port()
    command = ["train.py", "--device", DEVICE, "--steps", str(STEPS), "--allow-eval", *arguments]

    def given(number):
        about = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": world, "MASTER_PORT": port, "MASTER_ADDR": "127.0.0.1"}
        return {name: str(value) for name, value in about.items()}

    def rank(number):
        def run():
            os.environ.update(given(number))
            sys.argv = command
            os.chdir(out)
            calls = nccl_order.Calls()
            runpy.run_path("train.py", run_name="__main__")
            calls.write(f"{folder}/{number}.json")

        return run

    if DEVICE == "cpu":
        with tempfile.TemporaryDirectory() as folder:
            codes, texts = ended([forked(rank(number)) for number in range(world)], grace)
            written = [Path(folder) / f"{number}.json" for number in range(world)]
            if not any(codes) and (wrong := nccl_order.problem([json.loads(path.read_text()) for path in written])):
                raise Failed(wrong)
            return codes, texts
    options = {"cwd": out, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    started = [subprocess.Popen([sys.executable, "-W", "ignore", *command], env=environment() | given(number), **options) for number in range(world)]
    return ended([(process.pid, process.stdout) for process in started], grace)


def environment():
    """What a program is started with that may use a GPU."""
    if DEVICE == "cpu":
        return dict(os.environ)
    kept = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    path = ":".join(filter(None, (str(ROOT / "tests/oracle/one_card"), kept.get("PYTHONPATH"))))
    return kept | ({"CUDA_VISIBLE_DEVICES": CARDS} if CARDS is not None else {}) | {"PYTHONPATH": path}


def losses_in(text):
    words = [line.split("loss ")[1].split()[0] for line in text.splitlines() if line.startswith("step ")]
    return [float(word) for word in words]


# -- the whole model ------------------------------------------------------------------------------------------------


def whole(path, out, count, task=None, steps=STEPS, state=None, replicas=1):
    """Trains the whole traced model in one process, micro-batch by micro-batch; prints its losses."""

    def run():
        task_part, data_part, update, stages = (part_of(out, name) for name in ("task", "data", "update", "stages"))
        manifest = json.loads((out / "stages/manifest.json").read_text())
        arguments = argparse.Namespace(
            task=task, seed=0, learning_rate=1e-3, optimizer="sgd", micro_batch_size=None, device="cpu"
        )
        model, data = torch.jit.load(path), task_part.Task(manifest, arguments)
        optimizer = data.optimizer(update.named_parameters_of({0: model}))
        batches = [data_part.Batches(data, replica, replicas, count // replicas) for replica in range(replicas)]
        for step in range(steps):
            stages.seed_step(0, step, 0)
            optimizer.zero_grad()
            total = 0.0
            for part, target in zip(*data_part.whole_batch(batches, step, "cpu")):
                loss = data.loss(leaves(model(*part.values())), target) / count
                loss.backward()
                total += float(loss.detach())
            optimizer.step()
            print(f"step {step + 1} loss {total:.9g}", flush=True)
        if state:
            torch.save(model.state_dict(), state)

    (code,), (text,) = ended([forked(run)])
    assert code == 0, text
    return losses_in(text)


def big_batch(path, count):
    """Trains the eager model, never traced nor cut, on all samples at once."""

    def run():
        task, model = module_of(Path(path), "task"), resnet(False)
        optimizer = task.optimizer(model.parameters())
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = task.loss([model(*task.inputs(step, 2 * count))], task.target(step, 2 * count))
            loss.backward()
            optimizer.step()
            print(f"step {step + 1} loss {float(loss):.9g}", flush=True)

    (code,), (text,) = ended([forked(run)])
    assert code == 0, text
    return losses_in(text)


def leaves(value):
    if isinstance(value, torch.Tensor):
        return [value]
    values = value.values() if isinstance(value, dict) else value
    return [leaf for item in values for leaf in leaves(item)]


# -- cases ----------------------------------------------------------------------------------------------------------


class Failed(Exception):
    pass


def finds_fault(path, old, new, message, case):
    """Plants a fault in a file: `case` fails with a message of this pattern, or nobody has seen the fault."""
    before = path.read_text()
    if before.count(old) != 1:
        raise Failed(f"{path.name} has no `{old}`")
    path.write_text(before.replace(old, new))
    try:
        said = case()
    except Failed as error:
        if not re.search(message, str(error)):
            raise
        return str(error).splitlines()[0][:70]
    finally:
        path.write_text(before)
    raise Failed(f"nobody saw it: {said}")


class Cases:
    def __init__(self, command, place):
        self.command, self.place = command, place
        self.models = make_models(place)
        self.task = str(place / "task.py")
        self.known = {}
        self.emitted = {}

    def emit(self, model, *how):
        """Emits once for each way."""
        key = (model, *how)
        if key not in self.emitted:
            out = self.place / f"out{len(self.emitted)}"
            command = [self.command, "emit", self.models[model], *how, "-o", out]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise Failed(done.stderr)
            self.emitted[key] = out
        return self.emitted[key]

    def expected(self, model, out, count, task=None, replicas=1):
        key = (model, count, task, replicas)
        if key not in self.known:
            self.known[key] = whole(str(self.models[model]), out, count, task, replicas=replicas)
        return self.known[key]

    def train(self, out, world, *arguments):
        codes, texts = ranks(out, world, arguments)
        if any(codes):
            raise Failed(f"exit codes {codes}\n" + "\n".join(texts))
        return losses_in("".join(texts))

    def same(self, model, stages, world, *arguments, form="python", count, task=None, expected=None):
        out = self.emit(model, *stages, "--targets", form)
        each = arguments[arguments.index("--replicas") + 1] if "--replicas" in arguments else "1"
        replicas = math.lcm(*map(int, each.split(",")))
        expected = expected or self.expected(model, out, count, task, replicas)
        if task:
            arguments = (*arguments, "--task", task)
        return close(expected, self.train(out, world, *arguments, "--form", form))


def allowed(limit):
    """What a difference may be: kernels of a GPU add in another order than those of the processor, some in another one each time."""
    return limit if DEVICE == "cpu" else 20 * max(limit, 1e-6)


def allowed_of(names, limit):
    """The same of parameters with these names: a last bit of a weight becomes 3e-3 of the bias of a batch norm in 20 steps."""
    is_blurred = DEVICE == "cuda" and any("bn1" in name for name in names)
    return 1e-2 if is_blurred else allowed(limit)


def is_equal(one, other):
    """Tells whether two numbers or tensors are those of the same computation: bit by bit, but for kernels of a GPU."""
    one, other = torch.as_tensor(one).double(), torch.as_tensor(other).double()
    return float((one - other).abs().max() / one.abs().max().clamp_min(1e-3)) <= allowed(0.0)


def close(expected, found, steps=STEPS):
    if len(expected) != steps or len(found) != steps:
        raise Failed(f"{len(expected)} and {len(found)} steps, not {steps}")
    if len(set(expected)) < steps:
        raise Failed("the losses stand still")
    worst = max(abs(a - b) / abs(a) for a, b in zip(expected, found))
    if not worst <= allowed(1e-5):
        raise Failed(f"losses differ by {worst:.1e}: {expected} {found}")
    return f"losses differ by {worst:.0e}"


def table(count):
    return ("--micro-batches", str(count))


def cases():
    """Name and test of each case."""
    two, four = ("--stages", "2"), ("--stages", "4")
    made = {
        # U-Net: skips that jump over stages, in both forms.
        "unet gpipe 4": lambda c: c.same("unet_small", four, 4, "--schedule", "GPipe", *table(6), count=6),
        "unet 1f1b 4": lambda c: c.same(
            "unet_small", four, 4, "--schedule", "1F1B", *table(6), form="torchscript", count=6
        ),
        # GPT-2: the embedding is tied to the head; more borders than ranks, cut inside blocks.
        "gpt2 1f1b 2": lambda c: c.same("gpt2_tiny", two, 2, "--schedule", "1F1B", *table(4), count=4),
        "gpt2 interleaved 2": lambda c: c.same(
            "gpt2_tiny", four, 2, "--pipeline-ranks", "2", "--schedule", "Interleaved1F1B", *table(4), count=4
        ),
        "gpt2 zbv 2": lambda c: c.same(
            "gpt2_tiny", four, 2, "--pipeline-ranks", "2", "--schedule", "ZBVZeroBubble", *table(4), count=4
        ),
        "gpt2 own csv 2": own_table,
        # Several tensors at a border, some of them whole numbers.
        "lstm gpipe 2": lambda c: c.same("lstm_seq2seq_small", two, 2, "--schedule", "GPipe", *table(4), count=4),
        # ResNet in training mode: statistics of BatchNorm.
        "resnet zero bubble 2": lambda c: c.same(
            "resnet", four, 2, "--pipeline-ranks", "2", "--schedule", "InterleavedZeroBubble", *table(4), count=4,
            task=c.task,
        ),
        # What a stage receives is what the other has made, also when it learns the sizes, and needs no other gradients.
        "received 2": lambda c: c.same("received", ("--cut", "behind"), 2, *table(4), count=4),
        "resnet merge": merged,
        # Replicas: two pipelines of two stages, then two and one, one and two, side by side.
        "resnet 2x2 big batch": two_by_two,
        "unet 2x2": lambda c: c.same("unet_small", two, 4, "--replicas", "2", *table(3), count=6),
        "gpt2 zbv 2x2": lambda c: c.same(
            "gpt2_tiny", four, 4, "--pipeline-ranks", "2", "--replicas", "2", "--schedule", "ZBVZeroBubble", *table(4),
            count=8,
        ),
        "buckets leave early": early,
        "gpt2 2-1": lambda c: c.same("gpt2_tiny", two, 3, "--replicas", "2,1", *table(2), count=4),
        "unet 1-2 gpipe": lambda c: c.same(
            "unet_small", two, 3, "--replicas", "1,2", "--schedule", "GPipe", *table(2), count=4
        ),
        "resnet 2-1-1": lambda c: c.same(
            "resnet_plain", ("--stages", "3"), 4, "--replicas", "2,1,1", *table(2), count=4, task=c.task
        ),
        "gpt2 recompute": recomputed,
        "recompute but for products": but_for_products,
        "gpt2 whole stages recomputed": recomputed_whole,
        "on a card": on_a_card,
        "nothing to train": untrained,
        "resnet bf16": half_precision,
        "killed and resumed": killed,
        "torchrun": under_torchrun,
    }
    return made


def early(cases):
    """Gradients of replicas travel while the backward pass goes on, and only when they are final."""
    out = cases.emit("unet_small", "--stages", "2", "--targets", "python")
    port = free_port()

    def rank(number):
        def run():
            import torch.distributed as dist

            dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=number, world_size=2)
            # Each 1 MiB; the loss is the product of the means of all but the third, which nothing uses.
            weights = [torch.full((1 << 18,), 1.0 + index, requires_grad=True) for index in range(4)]
            sync = part_of(out, "sync").Sync(weights, dist.new_group([0, 1]), 2)
            assert [len(bucket) for bucket in sync.buckets] == [1, 3], "the first bucket is the small one"
            sent = []
            weights[0].register_hook(lambda gradient: sent.append(len(sync.sent)))
            for _ in range(2):
                value = torch.tensor(float(number + 1))
                for weight in (weights[0], weights[1], weights[3]):
                    value = value * weight.sum() / (1 << 18)
                value.backward()
            # The small bucket was under way before the first layer had its gradient, in the last pass only.
            assert sent == [0, 1] and len(sync.sent) == 1, (sent, len(sync.sent))
            sync.finish()
            # The product of the others, twice from one rank and twice twofold from the other.
            for weight, factor in zip(weights, (8, 4, 0, 2)):
                expected = torch.full_like(weight, 2 * 3 * factor / (1 << 18))
                assert torch.allclose(weight.grad, expected), weight.grad[0] * (1 << 18)
            dist.destroy_process_group()

        return run

    codes, texts = ended([forked(rank(number)) for number in range(2)])
    if any(codes):
        raise Failed("\n".join(texts))
    return "a bucket was under way before the backward pass had ended"


def planned(cases, model, strategy, *again):
    """Emits a plan for two devices, with blocks that are computed again or held in host memory."""
    name = "_".join([model, strategy, *(f"{how}_{block}" for how, block in again)])
    plan = cases.place / f"{name}.yaml"
    command = [cases.command, "plan", cases.models[model], "--devices", "2xt4", "--strategy", strategy]
    done = subprocess.run([*command, "--stages", "2", "--micro-batches", "4", "-o", plan], capture_output=True, text=True)
    if done.returncode:
        raise Failed(done.stderr)
    head, *stages = plan.read_text().split("- blocks:\n")
    for how, block in again:
        for index, stage in enumerate(stages):
            blocks, rest = stage.split("  devices:\n", 1)
            if f"  - {block}\n" in blocks:
                stages[index] = f"{blocks}  {how}:\n  - {block}\n  devices:\n{rest}"
    plan.write_text("- blocks:\n".join([head, *stages]))
    return cases.emit(model, str(plan), "--targets", "python")


def saved_bytes(out, stage, inputs):
    """Returns what a stage keeps for its backward pass, but for its own tensors."""
    module = module_of(out / f"stages/stage_{stage}.py", "stage").load()
    own = {value.untyped_storage().data_ptr() for value in module.state_dict().values()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = module(*inputs)  # alive until everything is counted
    return sum(kept.values()) if outputs is not None else 0


def recomputed(cases):
    """Blocks that the plan wants computed again, or held in host memory: less is kept, and the losses are the same."""
    plain = planned(cases, "gpt2_tiny", "torchgpipe")
    out = planned(cases, "gpt2_tiny", "torchgpipe", ("recompute", "transformer.h.0"), ("offload", "transformer.h.1"))
    tokens = torch.zeros(json.loads((out / "stages/manifest.json").read_text())["inputs"][0]["shape"], dtype=torch.int64)
    less, more = saved_bytes(out, 0, [tokens]), saved_bytes(plain, 0, [tokens])
    if not less < 0.5 * more:
        raise Failed(f"{less} bytes are kept, not much less than {more}")
    text = (out / "stages/stage_0.py").read_text() + (out / "stages/stage_1.py").read_text()
    if "again(self.block_0" not in text or "on_host(self, self.block_" not in text:
        raise Failed("the stages have no such blocks")
    said = close(cases.expected("gpt2_tiny", out, 4), cases.train(out, 2, "--schedule", "1F1B"))
    return f"{less} instead of {more} bytes are kept; {said}"


class Products(TorchDispatchMode):
    """Counts products, convolutions and attention."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operator, types, arguments=(), options=None):
        name = operator.overloadpacket.__name__
        self.count += name in ("mm", "addmm", "bmm", "convolution") or "attention" in name and "backward" not in name
        return operator(*arguments, **(options or {}))


def waiting_bytes(queue, module):
    """Returns the bytes of tensors that deferred gradients are made of, but for the stage's own."""
    own = {value.untyped_storage().data_ptr() for value in module.state_dict().values()}
    held, looked_at = {}, [gradient for gradients in queue.values() for gradient in gradients]
    while looked_at:
        one = looked_at.pop()
        if isinstance(one, torch.Tensor) and one.untyped_storage().data_ptr() not in own:
            held[one.untyped_storage().data_ptr()] = one.untyped_storage().nbytes()
        looked_at += [cell.cell_contents for cell in getattr(one, "__closure__", None) or ()]
    return sum(held.values())


def backward(out, stage, inputs, waits):
    """Returns the products of a stage's backward pass, the bytes of results that its blocks keep, its gradients, and the bytes that
    its weights' gradients wait with."""
    source = module_of(out / f"stages/stage_{stage}.py", "stage")
    module, kept, make = source.load(), [], getattr(source, "create_selective_checkpoint_contexts", None)
    seen = set()

    def contexts(policy):
        def looking(context, operator, *values, **options):
            seen.add(operator.overloadpacket.__name__)
            return policy(context, operator, *values, **options)

        first, second = make(looking)
        kept.append(first.storage)
        return first, second

    source.create_selective_checkpoint_contexts = contexts
    deferred, queue = module_of(out / "train_parts/deferred.py", "deferred"), {}
    if waits:  # as under schedules in halves
        deferred.let_wait(source)
    torch.manual_seed(1)
    outputs = module(*inputs)
    results = [result.val for store in kept for results in store.values() for result in tree_leaves(list(results))]
    held = sum(r.untyped_storage().nbytes() for r in results if isinstance(r, torch.Tensor))
    outputs = [o for o in ([outputs] if isinstance(outputs, torch.Tensor) else outputs) if o.requires_grad]
    with Products() as products, deferred.DEFERRAL.into(queue):
        torch.autograd.backward(outputs, [torch.full_like(output, 0.5) for output in outputs])
    # A mode that sees an operator takes the host longer than a small operator does.
    between = {"add", "mul", "relu", "gelu", "tanh", "native_layer_norm", "native_batch_norm", "_softmax"}
    if seen & between:
        raise Failed(f"{sorted(seen & between)} run in a mode, though their results are not kept")
    waiting = waiting_bytes(queue, module)
    deferred.DEFERRAL.work(queue)
    return products.count, held, [parameter.grad for parameter in module.parameters()], waiting


def but_for_products(cases):
    """Blocks that are computed again but for their products: nothing of these is computed twice, just as many bytes as planned are
    kept, and gradients are the same to the last bit; nor does a block compute its last product again, if nothing is kept. Where
    weights' gradients wait, they do with just as many bytes as planned."""
    said = []
    for model, calls, n_again in (("bert_tiny", "BertLayer", 7), ("unet_small", "DoubleConv", 8), ("gpt2_tiny", "GPT2Block", 4)):
        found, planned_bytes = {}, {}
        for how in ("never", "always", "light"):
            plan = cases.place / f"{model}_{how}.yaml"
            command = [cases.command, "plan", cases.models[model], "--devices", "2xt4", "--stages", "2", "--strategy", "torchgpipe"]
            done = subprocess.run([*command, "--micro-batches", "4", "--recompute", f"{calls}={how}", "-o", plan], capture_output=True, text=True)
            if done.returncode:
                raise Failed(done.stderr)
            out = cases.emit(model, str(plan), "--targets", "python")
            about = json.loads((out / "stages/manifest.json").read_text())["inputs"]
            inputs = [torch.zeros(i["shape"], dtype=torch.int64) if "int" in i["dtype"] else torch.randn(i["shape"], generator=torch.Generator().manual_seed(3)) for i in about]
            found[how] = backward(out, 0, inputs, False)
            waiting = backward(out, 0, inputs, True)
            n_put_off = found[how][0] - waiting[0]
            if waiting[1] != found[how][1] or n_put_off < 0 or not all(map(torch.equal, waiting[2], found[how][2])):
                raise Failed(f"{model}, {how}: {found[how][:2]} products and bytes, {waiting[:2]} where weight gradients may wait")
            cost = plan.read_text().split("  cost:\n")[1].split("\n  ")
            cost = {key: int(value) for key, value in (line.strip().split(": ") for line in cost if ": " in line) if value.strip().isdigit()}
            planned_bytes[how] = cost["activations"]
            most = cost["activations"] + cost.get("waiting", 0)
            if waiting[3] > most or how != "never" and waiting[3] != most:
                raise Failed(f"{model}, {how}: weights' gradients wait with {waiting[3]} bytes, {most} are planned")
            blocks = plan.read_text().split("  recompute:\n", 1)[-1].split("  recompute_light:")[0].count("  - ") if how == "light" else 0
        (least, _, gradients, _), (most, _, again, _), (light, held, other, _) = (found[how] for how in ("never", "always", "light"))
        if not all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(gradients, again, other)):
            raise Failed(f"{model}: other gradients")
        if held != planned_bytes["light"] - planned_bytes["always"] or held == 0:
            raise Failed(f"{model}: {held} bytes of results are kept; plans differ by {planned_bytes}")
        text = (out / "stages/stage_0.py").read_text()
        n_kept = sum(line.startswith("        with kept: ") for line in text.splitlines())
        if not least <= light < most or most - least != n_again or n_kept == 0 or blocks == 0:
            raise Failed(f"{model}: {least}, {light}, {most} products in the backward pass, {n_kept} lines keep theirs")
        said.append(f"{model}: {least}, {light} and {most} products, {held} bytes; {close(cases.expected(model, out, 4), cases.train(out, 2, *table(4)))}")
    return "; ".join(said)


SMALL = """kind: cluster
version: 1
types:
  small: {memory: 190000, memory_bandwidth: 3.2e+11, host_bandwidth: 1.6e+10, peak: {float32: 8.1e+12}}
devices: [{type: small, count: 2}]
levels: [{name: pcie, bandwidth: 1.2e+10, latency: 8.0e-6}]
"""

@contextlib.contextmanager
def told_checkpoints():
    """Says each pass that torch computes again, in processes forked meanwhile."""
    checkpoint = torch.utils.checkpoint.checkpoint

    def told(function, *values, **options):
        print("computed again:", type(function).__name__, flush=True)
        return checkpoint(function, *values, **options)

    torch.utils.checkpoint.checkpoint = told
    yield
    torch.utils.checkpoint.checkpoint = checkpoint


def recomputed_whole(cases):
    """Where no block can be spared, GPipe's stages keep their inputs alone, which is planned, emitted and done."""
    cluster, out = cases.place / "small.yaml", cases.place / "whole"
    cluster.write_text(SMALL)
    command = [cases.command, "split", cases.models["gpt2_tiny"], "--cluster", cluster, "--strategy", "gpipe", "--stages", "2"]
    command += ["--micro-batches", "16", "--loss", "none", "--tensor-parallel", "none", "-o", out]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Failed(done.stdout + done.stderr)
    plan = (out / "plan.yaml").read_text()
    n_whole = plan.count("  recompute_unit: stage\n")
    if not n_whole or "again(self" in "".join(path.read_text() for path in (out / "stages").glob("stage_*.py")):
        raise Failed(plan)
    with told_checkpoints():
        codes, texts = ranks(out, 2, table(16))
    if any(codes):
        raise Failed("\n".join(texts))
    again = "".join(texts).count("computed again:")
    if again != n_whole * 16 * STEPS:
        raise Failed(f"{n_whole} stages of 16 micro-batches and {STEPS} steps, {again} times computed again")
    return close(cases.expected("gpt2_tiny", out, 16), losses_in("".join(texts)))


def untrained(cases):
    """A model without parameters runs in one process, too: there is no optimizer and nothing to differentiate."""
    out = cases.emit("no_parameters", "--stages", "2", "--targets", "python")
    found = cases.train(out, 1, "--single", *table(2))
    if len(found) != STEPS:
        raise Failed(f"{len(found)} steps, not {STEPS}")
    return f"{STEPS} steps"


def half_precision(cases):
    """bf16 is autocast over the same weights: the losses are near, and not the same."""
    out = cases.emit("resnet_plain", "--stages", "2", "--targets", "python")
    expected = cases.expected("resnet_plain", out, 4, cases.task)
    found = cases.train(out, 2, *table(4), "--task", cases.task, "--dtype", "bf16")
    worst = max(abs(a - b) / abs(a) for a, b in zip(expected, found))
    if len(found) != STEPS or not 1e-6 < worst < 0.05:
        raise Failed(f"losses differ by {worst:.1e}")
    return f"losses differ by {worst:.0e}"


def on_a_card(cases):
    """Passes of stages on a card that there is not: nothing is computed on the processor, and all that is sent lies on the card,
    for NCCL sends nothing else. Sizes that are sent as whole numbers are those of a pass on the processor."""
    count = 0
    for model in ("gpt2_tiny", "lstm_seq2seq_small", "unet_small", "resnet", "bert_tiny", "repeats", "amoebanet_6_small"):
        cases.models.setdefault(model, ROOT / f"fixtures/traces/{model}.pt")
        out = cases.emit(model, "--stages", "3", "--targets", "python")
        (code,), (text,) = ended([forked(lambda: passes_on_a_card(out))])  # noqa: B023
        if code:
            raise Failed(f"{model}: {text}")
        count += int(text.split()[-1])
    if count < 20:
        raise Failed(f"{count} tensors are sent")
    return f"{count} tensors are sent"


def passes_on_a_card(out):
    from torch._subclasses.fake_tensor import FakeTensorMode

    part, trace, offload = (part_of(out, name) for name in ("stages", "host_trace", "offload"))
    manifest, count, sent = json.loads((out / "stages/manifest.json").read_text()), 0, {}
    fake, decode = FakeTensorMode(), part.decode
    given = {f"input:{port['name']}": torch.ones(port["shape"], dtype=getattr(torch, port["dtype"])) for port in manifest["inputs"]}
    for stage, about in enumerate(manifest["stages"]):
        about |= {"allow_changes": True, "digests": {}}
        outputs = {}
        for device in ("cpu", "cuda:0"):
            arguments = argparse.Namespace(device=device, form="python", check=False, dtype="fp32", trace=trace.HostTrace(False), offloads_blocks=False, plan={"without_gradient": {}})
            module = part.load_stage(about, "python", "cpu")
            wrapped = part.Wrapped(module, about, arguments, offload.Offload("none", "cpu"))
            names = [port["from"].split(":", 1)[1] for port in about["inputs"] if port["from"].startswith("input:")]
            received = [sent[port["name"]] for port in about["inputs"] if port["from"].startswith("stage:")]
            if device == "cpu":
                wrapped.dtypes = [tensor.dtype for tensor in received]
                found = wrapped(*map(part.encode, received), **{name: given[f"input:{name}"] for name in names})
                outputs = dict(zip((port["name"] for port in about["outputs"]), map(decode, found, wrapped.sent_dtypes or [o.dtype for o in found])))
                continue
            numbers = [int(tensor) for tensor in received if not tensor.dim() and not tensor.is_floating_point()]
            coded = [part.encode(tensor) for tensor in received]
            on_card = lambda tensor: torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)  # noqa: B023, E731
            part.decode = lambda tensor, dtype: decode(tensor, dtype) if tensor.dim() or dtype.is_floating_point else numbers.pop(0)  # noqa: B023
            with fake, torch.backends.cudnn.flags(enabled=False):
                for held in module.modules():
                    for name, value in held._parameters.items():
                        held._parameters[name] = value if value is None else torch.nn.Parameter(on_card(value), value.requires_grad)
                    for name, value in held._buffers.items():
                        held._buffers[name] = value if value is None else on_card(value)
                wrapped.dtypes = [tensor.dtype for tensor in received]
                found = wrapped(*map(on_card, coded), **{name: on_card(given[f"input:{name}"]) for name in names})
            part.decode = decode
            last = stage + 1 == len(manifest["stages"])
            wrong = [port["name"] for port, tensor in zip(about["outputs"], found) if tensor.device.type != "cuda" and not last]
            if wrong:
                sys.exit(f"stage {stage} sends {', '.join(wrong)} from the processor")
            count += 0 if last else len(found)
        sent |= outputs
    print(count)


def own_table(cases):
    """A plan's own schedule, through torch's runtime of compute-only tables."""
    out = planned(cases, "gpt2_tiny", "zero-bubble")
    table = (out / "schedule.csv").read_text()
    if "W0" not in table:
        raise Failed(f"the table does not split the backward pass:\n{table}")
    return close(cases.expected("gpt2_tiny", out, 4), cases.train(out, 2))


def merged(cases):
    """After the last step the stages' checkpoints are one state dict: the one that the whole model has.

    Blocks are computed again on the way, which must not count statistics twice.
    """
    out = planned(cases, "resnet", "torchgpipe", ("recompute", "layer1"), ("recompute", "layer4"))
    text = "".join(path.read_text() for path in sorted((out / "stages").glob("*.py")))
    if text.count("= again(self.") != 2:
        raise Failed("the stages compute nothing again")
    state = cases.place / "whole.pt"
    expected = whole(str(cases.models["resnet"]), out, 4, cases.task, state=str(state))
    found = cases.train(out, 2, *table(4), "--task", cases.task, "--save", "checkpoints")
    close(expected, found)

    def merge():
        os.chdir(out)
        sys.argv = ["train.py", "--save", "checkpoints", "--merge", "merged.safetensors"]
        runpy.run_path("train.py", run_name="__main__")

    (code,), (text,) = ended([forked(merge)])
    if code:
        raise Failed(text)
    from safetensors.torch import load_file

    expected, found = torch.load(state), load_file(out / "merged.safetensors")
    if set(expected) != set(found):
        raise Failed(f"names differ: {sorted(set(expected) ^ set(found))}")
    eager = resnet(True)
    eager.load_state_dict(found)  # strict: the original model takes them
    worst = 0.0
    for name, value in expected.items():
        difference = (value.double() - found[name].double()).abs().max()
        worst = max(worst, float(difference / value.double().abs().max().clamp_min(1e-12)))
    if worst > 1e-4:
        raise Failed(f"tensors differ by {worst:.1e}")
    return f"{len(found)} tensors differ by {worst:.0e}"


def two_by_two(cases):
    """Two stages on two ranks each are one process with twice the batch."""
    expected = big_batch(cases.task, 8)
    return cases.same(
        "resnet_plain", ("--stages", "2"), 4, "--replicas", "2", *table(4), count=8, task=cases.task, expected=expected
    )


def killed(cases):
    """One rank dies: the others say what happened and how to go on, and going on gives the same curve."""
    out = cases.emit("resnet", "--stages", "2", "--targets", "python")
    expected = cases.expected("resnet", out, 4, cases.task)
    common = [*table(4), "--task", cases.task, "--save", "kept", "--save-every", "2"]
    begun = time.perf_counter()
    codes, texts = ranks(out, 2, [*common, "--crash", "0,5"])
    seconds = time.perf_counter() - begun
    if codes[0] != -9 or codes[1] != 1:
        raise Failed(f"exit codes {codes}\n{texts}")
    if "rank 1: lost a peer" not in texts[1] or "--save kept --resume" not in texts[1] or "Traceback" in texts[1]:
        raise Failed(texts[1])
    first = losses_in("".join(texts))
    if seconds > 60:
        raise Failed(f"the other rank noticed only after {seconds:.0f} s")
    codes, texts = ranks(out, 2, [*common, "--resume"])
    told = re.search("resumed after step ([24])", "".join(texts))  # the second may have been under way
    if any(codes) or not told:
        raise Failed("\n".join(texts))
    return close(expected, first[: int(told[1])] + losses_in("".join(texts)))


def under_torchrun(cases):
    """The same under torchrun itself, with three processes: it ends the others when one dies. (Who resumes imports torch once.)"""
    out = cases.emit("gpt2_tiny", "--stages", "3", "--targets", "python")
    expected = cases.expected("gpt2_tiny", out, 4)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", "train.py"]
    more = [*table(4), "--save", "kept", "--save-every", "2"]
    common = ["--device", DEVICE, "--steps", str(STEPS), "--allow-eval", *more, "--crash", "1,5"]
    killed = subprocess.run([*torchrun, *common], cwd=out, env=environment(), capture_output=True, text=True)
    codes, texts = ranks(out, 3, [*more, "--resume"])
    resumed = "".join(texts)
    if killed.returncode == 0 or any(codes):
        raise Failed(f"{killed.stderr}\n{resumed}")
    told = re.findall(r"rank (\d): (?:lost a peer|stopped, because another rank failed).*?--save kept --resume", killed.stderr)
    if sorted(told) != ["0", "2"]:
        raise Failed(f"not every other rank says what happened:\n{killed.stderr}")
    told = re.search("resumed after step ([24])", resumed)
    return close(expected, losses_in(killed.stdout)[: int(told[1])] + losses_in(resumed))


def processor():
    """Seconds of a processor so far, of this process and of those that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main(all_cases, seldom=()):
    """Runs the cases but those in `seldom`, all of them with `--all`, or those that are named; exits with 1 where one fails.

    `--list` prints their names.
    """
    command, place, *wanted = sys.argv[1:]
    if wanted == ["--list"]:
        print("\n".join(all_cases))
        return
    torch.set_num_threads(1)
    ran = Cases(str(Path(command).resolve()), Path(place).resolve())
    if wanted == ["--all"]:
        wanted = list(all_cases)
    assert set(seldom) <= set(all_cases), seldom
    found = {name: test for name, test in all_cases.items() if (name in wanted if wanted else name not in seldom)}
    failed = 0
    for name, test in found.items():
        begun, before = time.perf_counter(), processor()
        try:
            said = f"ok: {test(ran)}"
        except Failed as error:
            failed, said = failed + 1, f"FAILED: {error}"
        print(f"{name}: {said} ({time.perf_counter() - begun:.1f} s, {processor() - before:.1f} s of a processor)", flush=True)
    print(f"{len(found) - failed} of {len(found)} cases")
    sys.exit(1 if failed or not found else 0)


# What others say, too, but for sizes: `make zoo-training` takes them.
SELDOM = ("gpt2 interleaved 2", "unet 2x2", "gpt2 zbv 2x2", "unet 1-2 gpipe", "resnet 2-1-1")

if __name__ == "__main__":
    main(cases(), SELDOM)
