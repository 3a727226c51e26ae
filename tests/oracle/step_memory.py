"""Memory of a training step beside torch's own tracker, which follows every tensor through a second step without running it.

    python tests/oracle/step_memory.py COMMAND OUT [MODEL ...]     prints each model, and fails where an error is above 3 %

Optimizers are those of torch in their `foreach` form, as on a GPU. Dropout is left out: a CPU keeps other masks. The estimate of
accelerate and DeepSpeed stands beside: parameters, gradients and the optimizer's state.
"""

import json
import pathlib
import subprocess
import sys
import warnings

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

LIMIT = 0.03
HERE = pathlib.Path(__file__).resolve()


def vision(name, **arguments):
    import torchvision

    return getattr(torchvision.models, name)(weights=None, **arguments)


def timm(name):
    import timm as library

    return library.create_model(name, pretrained=False)


def language(kind, **config):
    import transformers

    made = getattr(transformers, kind + "Config")(use_cache=False, **config)
    class_ = {"GPT2": "GPT2LMHeadModel", "Bert": "BertForMaskedLM"}.get(kind, kind + "ForCausalLM")
    return Logits(getattr(transformers, class_)(made))


class Logits(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(input_ids=ids).logits


def picture(build, *arguments, batch=32, size=224, **more):
    return lambda: build(*arguments, **more), (batch, 3, size, size)


SMALL = dict(vocab_size=32000, hidden_size=512, num_hidden_layers=6, num_attention_heads=8)
GPT2 = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
MODELS = {
    **{name: picture(vision, name) for name in (
        "resnet50 resnext50_32x4d densenet121 mnasnet1_0 shufflenet_v2_x1_0 wide_resnet50_2 swin_t vit_b_16").split()},
    "vgg19_bn": picture(vision, "vgg19_bn", batch=16, dropout=0.0),
    "mobilenet_v2": picture(vision, "mobilenet_v2", dropout=0.0),
    "efficientnet_b0": picture(vision, "efficientnet_b0", dropout=0.0, stochastic_depth_prob=0.0),
    "convnext_tiny": picture(vision, "convnext_tiny", stochastic_depth_prob=0.0),
    **{name: picture(timm, name) for name in (
        "mixer_s16_224 deit_tiny_patch16_224 poolformer_s12 res2net50_26w_4s pvt_v2_b0").split()},
    "gpt2": (lambda: language("GPT2", **GPT2), (4, 1024)),
    "bert": (lambda: language("Bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0), (8, 512)),
    "llama": (lambda: language("Llama", intermediate_size=1376, **SMALL), (4, 512)),
    "opt": (lambda: language("OPT", ffn_dim=2048, dropout=0.0, word_embed_proj_dim=512, **SMALL), (4, 512)),
}


def build(model):
    return MODELS[model][0]().train()


def without_memory(mode, name):
    """Builds a model whose parameters are none in memory; those that ask for numbers while they are built become so afterwards."""
    try:
        with mode:
            return build(name)
    except torch._subclasses.fake_tensor.DataDependentOutputException:
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        return build(name)._apply(mode.from_tensor)


def optimizer(name, model):
    if name == "adam":
        return torch.optim.Adam(model.parameters(), foreach=True)
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)


def tracked(name, optimizer_name):
    """Returns the tracker's peak of a second step, in bytes."""
    sizes = MODELS[name][1]
    mode = FakeTensorMode()
    model = without_memory(mode, name)
    with mode:
        step = optimizer(optimizer_name, model)
        is_text = len(sizes) == 2
        inputs = torch.zeros(sizes, dtype=torch.int64) if is_text else torch.randn(sizes)
        target = torch.zeros(sizes if is_text else sizes[:1], dtype=torch.int64)
        tracker = MemTracker()
        tracker.track_external(model, step, inputs, target)
        with tracker:
            for number in range(2):
                if number == 1:
                    tracker.reset_mod_stats()
                outputs = model(inputs)
                loss = torch.nn.functional.cross_entropy(outputs.flatten(0, -2), target.flatten())
                loss.backward()
                step.step()
                step.zero_grad()
                del outputs, loss
        peak = tracker.get_tracker_snapshot("peak")
    return {str(kind).split(".")[-1]: size for kind, size in peak[torch.device("cpu")].items()}


def predicted(command, folder, name, optimizer_name):
    sizes = MODELS[name][1]
    path = folder / f"{name}.pt"
    dtype = ":int64" if len(sizes) == 2 else ""
    if not path.exists():
        small = "x".join(map(str, (2, 64) if dtype else (2, *sizes[1:])))
        target = f"{HERE}:build"
        trace = [command, "trace", target, "--arg", f"model={name}", "--input", small + dtype, "--train", "--no-weights"]
        trace += ["--no-check", "--python", sys.executable, "-o", str(path)]
        subprocess.run(trace, check=True, capture_output=True)
    given = "x".join(map(str, sizes)) + dtype
    inspect = [command, "inspect", str(path), "--input", given, "--memory", "--optimizer", optimizer_name]
    inspect += ["--loss", "cross-entropy", "--depth", "0", "--format", "json"]
    done = subprocess.run(inspect, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)["memory"]


def main():
    command, out, *chosen = sys.argv[1:]
    folder = pathlib.Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    warnings.filterwarnings("ignore")
    wrong = []
    print(f"{'model':24} {'optimizer':9} {'tracker':>10} {'predicted':>10} {'error':>8} {'estimators':>11}")
    for name in chosen or MODELS:
        for optimizer_name in ("adam", "momentum"):
            memory = predicted(command, folder, name, optimizer_name)
            truth = tracked(name, optimizer_name)
            error = memory["bytes"] / truth["Total"] - 1
            kinds = {"adam": 4, "momentum": 3}[optimizer_name]
            plain = kinds * truth["PARAM"] / truth["Total"] - 1
            print(f"{name:24} {optimizer_name:9} {truth['Total'] / 2**20:10.1f} {memory['bytes'] / 2**20:10.1f} "
                  f"{error:8.1%} {plain:11.0%}   {memory['when']}", flush=True)
            if "-v" in chosen or abs(error) > LIMIT:
                print("   tracker  ", {kind: round(size / 2**20) for kind, size in truth.items() if size > 2**19})
                print("   predicted", {part["name"]: round(part["bytes"] / 2**20) for part in memory["parts"]})
            if abs(error) > LIMIT:
                wrong.append(f"{name}, {optimizer_name}: {error:.1%}")
    if wrong:
        sys.exit("beyond 3 %: " + "; ".join(wrong))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main()
