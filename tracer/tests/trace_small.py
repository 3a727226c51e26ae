"""Traces small models into a folder; beside each its operators with their modules' paths, one a line."""

import os
import sys

import torch
from torch import nn

SKIP = {"Constant", "GetAttr", "ListConstruct", "TupleConstruct", "TupleUnpack", "DictConstruct"}


def operators(method, known, lines):
    """Walks a method's graph and those it calls; `known` gives module and path for each module input."""
    graph = method.graph
    places = {value.debugName(): place for value, place in zip(graph.inputs(), known)}
    path = known[0][1]
    for node in graph.nodes():
        kind = node.kind()
        if kind == "prim::GetAttr":
            owner = places.get(node.inputsAt(0).debugName())
            if owner and owner[0].hasattr(node.s("name")):
                child = owner[0].getattr(node.s("name"))
                if isinstance(child, torch._C.ScriptModule):
                    name = f"{owner[1]}.{node.s('name')}".lstrip(".")
                    places[node.outputsAt(0).debugName()] = (child, name)
        elif kind == "prim::CallMethod":
            inputs = [places.get(value.debugName()) for value in node.inputs()]
            operators(inputs[0][0]._get_method(node.s("name")), inputs, lines)
        elif kind.removeprefix("prim::") not in SKIP:
            lines.append(f"{kind} {path}\n")


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.relu = nn.ReLU(inplace=True)
        self.body = nn.Sequential(self.conv, self.relu, nn.MaxPool2d(2))

    def forward(self, x):
        return self.body(self.relu(self.norm(self.conv(x)) + x)).flatten(1)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(self.embedding(x))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.LSTM(4, 8, batch_first=True)
        self.decoder = nn.LSTM(4, 8, batch_first=True)

    def forward(self, a, b):
        _, state = self.encoder(a)
        return self.decoder(b, state)[0]


class Containers(nn.Module):
    def forward(self, pair, table):
        a, b = pair
        left, right = a.chunk(2)
        return {"sum": left + right, "view": b.view(b.shape[0] // 2, -1), "table": table["a"] * 2}


class Names(nn.Module):
    def __init__(self):
        super().__init__()
        self.add_module("block1-0", nn.Linear(4, 4))
        self.layers = nn.ModuleDict({"a-b": nn.ReLU(), "0": nn.GELU()})

    def forward(self, x):
        x = getattr(self, "block1-0")(x)
        return self.layers["0"](self.layers["a-b"](x)) * torch.tensor([1.0, 2.0, 3.0, 4.0])


def main(folder):
    x = torch.rand(4, 4)
    models = {
        "residual": (Residual(), (torch.rand(1, 3, 8, 8),)),
        "tied": (Tied(), (torch.randint(0, 10, (2, 3)),)),
        "recurrent": (Recurrent(), (torch.rand(2, 3, 4), torch.rand(2, 5, 4))),
        "containers": (Containers(), ((x, x), {"a": x})),
        "names": (Names(), (x,)),
        "transformer": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).train(), (torch.rand(2, 3, 8),)),
    }
    for name, (model, inputs) in models.items():
        traced = torch.jit.trace(model, inputs, strict=False, check_trace=False)
        traced.save(os.path.join(folder, f"{name}.pt"))
        lines = []
        root = traced._c
        operators(root._get_method("forward"), [(root, "")] + [None] * 8, lines)
        with open(os.path.join(folder, f"{name}.ops"), "w") as file:
            file.writelines(lines)
        print(name)


main(sys.argv[1])
