"""The Python package: live models, what they are left as, answers, errors, the page and the notebook that show it."""

import ast
import contextlib
import dataclasses
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import warnings

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
COMMAND, PLACE = sys.argv[1:3]
os.environ["MODEL_ANALYZE"] = COMMAND
os.chdir(PLACE)
sys.path.insert(0, str(ROOT / "python"))

import model_analyze  # noqa: E402


@dataclasses.dataclass(frozen=True)
class Pair:
    left: torch.Tensor
    right: torch.Tensor


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.drop, self.last = torch.nn.Embedding(20, 8), torch.nn.Dropout(), torch.nn.Linear(8, 4)

    def forward(self, batch, pairs, *, twice=False):
        found = self.words(batch["ids"]) * batch["mask"].unsqueeze(-1)
        for pair in pairs:
            found = found + pair.left - pair.right
        found = self.last(self.drop(found))
        return {"logits": found * 2 if twice else found, "none": None}

    def encode(self, ids):
        return self.words(ids)


class Branch(torch.nn.Module):
    def forward(self, x):
        return x * 2 if x.mean() > 0 else x * 3


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Custom(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        return Swish.apply(self.layer(x))


def nested():
    ids = torch.randint(0, 20, (2, 5))
    pair = Pair(torch.randn(2, 5, 8), torch.randn(2, 5, 8))
    return {"ids": ids, "mask": torch.rand(2, 5)}, (pair, pair)


@contextlib.contextmanager
def noted(*expected):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield
    assert [str(one.message) for one in found] == list(expected), [str(one.message) for one in found]
    assert all(one.category is model_analyze.Note and one.filename == __file__ for one in found), found


def refused(function, text, kind=model_analyze.Error):
    try:
        function()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"not refused: {text}")


def a_live_model_is_traced_as_it_is_called():
    torch.manual_seed(1)
    net = Net().eval()
    arguments = nested()
    with noted("constants of the call are part of the trace: twice=True"):
        model = model_analyze.trace(net, *arguments, twice=True)
    traced = torch.jit.load(str(model.path))
    batch, (one, other) = arguments
    tensors = batch["ids"], batch["mask"], one.left, one.right, other.left, other.right
    (logits,) = traced(*tensors)
    assert torch.equal(logits, net(*arguments, twice=True)["logits"])
    names = [tensor["name"] for tensor in model.inspect().answer["inputs"]]
    assert names == ["batch_ids", "batch_mask", *(f"pairs_{n}_{side}" for n in (0, 1) for side in ("left", "right"))], names
    assert model.totals["parameters"] == sum(one.numel() for one in net.parameters())
    assert repr(model) == "<Model Net: 196 parameters>"


def models_and_torch_are_left_as_they_were():
    net = Net().train()
    net.drop.eval()
    net.words.compile()
    net.config = type("Config", (), {"use_cache": True})()
    before = dict(net.__dict__), torch.get_rng_state(), vars(torch.autograd.Function)["apply"]
    modes = [module.training for module in net.modules()]
    compiled = net.words._compiled_call_impl
    for training in (None, True, False):
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", model_analyze.Note)
            options = {"train": training, "inline_functions": True}
            model_analyze.trace(net, *nested_ids(net), trace_options=options | {"method": "encode"})
    assert net.__dict__.keys() == before[0].keys()
    assert torch.equal(torch.get_rng_state(), before[1])
    assert vars(torch.autograd.Function)["apply"] is before[2]
    assert [module.training for module in net.modules()] == modes
    assert net.words._compiled_call_impl is compiled and compiled is not None
    assert net.config.use_cache is True


def nested_ids(net):
    return [torch.arange(10).reshape(2, 5)]


def what_cannot_be_traced_is_an_error():
    x = torch.randn(4, 4)
    refused(lambda: model_analyze.trace(Branch(), x), "the trace is not the model: on another input of the same sizes")
    refused(lambda: model_analyze.trace(Branch(), x), "hint: choose with torch.where")
    refused(lambda: model_analyze.trace(Custom(), x), "forward calls Swish")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", model_analyze.Note)
        model_analyze.trace(Custom(), x, trace_options={"inline_functions": True})
    refused(lambda: model_analyze.trace(Net(), {"ids": object()}, ()), "batch.ids is of type object")
    refused(lambda: model_analyze.trace(Net()), "without a tensor")
    refused(lambda: model_analyze.trace(Net(), x), "missing 1 required positional argument", TypeError)
    refused(lambda: model_analyze.trace(Net(), x, trace_options={"trian": True}), "trace_options has no trian", TypeError)
    refused(lambda: model_analyze.load("nothing.pt"), "nothing.pt: No such file")


def answers_are_those_of_the_command():
    net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    model = model_analyze.trace(net, torch.randn(8, 64), trace_options={"output": "net.pt"})
    plan = model.plan("2xh100", stages=2, batch=32)
    said = subprocess.run(
        [COMMAND, "plan", "net.pt", "--devices", "2xh100", "--stages", "2", "--batch", "32"], capture_output=True, text=True
    )
    assert str(plan) == said.stdout
    assert len(plan.stages) == 2 and plan.answer["micro_batches"] == 4
    assert plan.simulate(schedule="gpipe").answer["schedule"] == "gpipe"
    assert plan.graph()._repr_svg_().startswith("<?xml") or plan.graph().svg.startswith("<svg")
    page = plan.report()._repr_html_()
    assert page.startswith("<iframe srcdoc=\"&lt;!") and page.count('"') == page.split('sandbox')[1].count('"') + 2
    plan.save("plan.yaml")
    checked = model.plan("2xh100", check="plan.yaml")
    assert str(checked).startswith("net: ") and checked.path.read_bytes() == plan.path.read_bytes()
    stages = model.split("2xh100", "out", stages=2)
    assert stages.report.html.startswith("<!") and "<svg" in stages.graph.svg
    verified = stages.verify().answer
    assert verified["ok"] and verified["gradients_compared"] == 8, verified
    refused(lambda: model.split("2xh100", dry_run=True).report, "nothing was written")
    refused(lambda: model.split("2xh100"), "name it by `output`", TypeError)
    refused(lambda: model.plan("2xh1000"), "no device is called `h1000`")
    refused(lambda: model.plan("1xt4", memory_fraction=1e-6), "hint: ", model_analyze.NoPlan)
    assert model_analyze.devices("h100").answer["devices"][0]["name"] == "H100-SXM5-80GB"
    refused(lambda: model.inspect(dept=1), "unexpected argument '--dept'")
    refused(lambda: model.graph().save("x.gif"), "a picture is SVG, PNG or PDF")
    os.environ["MODEL_ANALYZE"] = "/nowhere"
    refused(lambda: model.inspect(), "cannot run /nowhere: No such file or directory")
    os.environ["MODEL_ANALYZE"] = COMMAND


def typed_answers_are_those_of_the_schemas():
    subprocess.run([sys.executable, ROOT / "python" / "generate_answers.py", "--check"], check=True)


def the_page_is_a_program():
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) >= 5
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec("\n".join(blocks), {})
    assert printed.getvalue().endswith("no device is called `h1000`\n  hint: did you mean H100 or P100 or V100?\n"), printed.getvalue()


def cells_of_the_notebook_run_and_show_themselves():
    """As Jupyter does: the value of a cell's last expression is shown by its richest form. `make notebook` asks Jupyter itself."""
    cells = json.loads((ROOT / "docs" / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    space, shown = {"__name__": "__main__"}, []
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        assert not cell["outputs"], "the notebook is kept without outputs"
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<cell>", "exec"), space)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), space)
            forms = [form for form in ("_repr_html_", "_repr_svg_") if hasattr(value, form)]
            shown.append((type(value).__name__, len(getattr(value, forms[0])() if forms else repr(value))))
    kinds = [kind for kind, _ in shown]
    assert kinds == ["Model", "Answer", "Picture", "Plan", "list", "Picture", "Report", "list"], shown
    assert all(length > 20 for _, length in shown), shown


for case in (
    a_live_model_is_traced_as_it_is_called,
    models_and_torch_are_left_as_they_were,
    what_cannot_be_traced_is_an_error,
    answers_are_those_of_the_command,
    typed_answers_are_those_of_the_schemas,
    the_page_is_a_program,
    cells_of_the_notebook_run_and_show_themselves,
):
    case()
    print(f"{case.__name__}: ok", flush=True)
