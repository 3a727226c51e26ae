"""Draws a PyTorch model, predicts its cost, plans how to spread it over devices, and writes stages that run.

    import model_analyze

    model = model_analyze.trace(net, images)
    model.graph()
    plan = model.plan("4xh100")
    plan.report()

A thin layer over the command `model-analyze`, which does the work: docs/python.md.
"""

from . import answers
from ._command import Error, NoPlan, Note, command
from ._model import Answer, Model, Picture, Plan, Report, Split, devices, load
from ._tracing import TraceOptions, trace

__all__ = [
    "Answer",
    "Error",
    "Model",
    "NoPlan",
    "Note",
    "Picture",
    "Plan",
    "Report",
    "Split",
    "TraceOptions",
    "answers",
    "command",
    "devices",
    "load",
    "trace",
]
