"""A traced model, and what the command says of it: each answer holds the JSON, prints as the command does, and shows itself in a notebook."""

from __future__ import annotations

import html
import pathlib
import shutil
import sys
import tempfile
from typing import Any, Generic, Optional, TypeVar, Union

from . import answers
from ._command import Error, Path, options, run, run_json

Found = TypeVar("Found")
# Pixels of a report in a notebook.
REPORT_HEIGHT = 800


class Answer(Generic[Found]):
    """What the command has answered: `answer` for programs, `print(…)` for people."""

    def __init__(self, answer: Found, again: list[Any]) -> None:
        self.answer = answer
        self._again = again
        self._text: Optional[str] = None

    def __str__(self) -> str:
        if self._text is None:
            self._text = run(*self._again)
        return self._text

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f'<pre style="line-height: 1.2">{html.escape(str(self))}</pre>'


class Picture:
    """A drawing of a model; notebooks show it."""

    def __init__(self, svg: str, again: list[Any]) -> None:
        self.svg = svg
        self._again = again

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"Picture({len(self.svg)} letters of SVG)"

    def png(self) -> bytes:
        """Returns the picture in pixels; rsvg-convert makes it."""
        return self._converted("png")

    def pdf(self) -> bytes:
        """Returns the picture to print; rsvg-convert makes it."""
        return self._converted("pdf")

    def save(self, path: Path) -> None:
        """Writes the picture to a .svg, .png or .pdf file."""
        path = pathlib.Path(path)
        if path.suffix == ".svg":
            path.write_text(self.svg, encoding="utf-8")
        elif path.suffix in (".png", ".pdf"):
            path.write_bytes(self._converted(path.suffix[1:]))
        else:
            raise Error(f"{path}: a picture is SVG, PNG or PDF\n  hint: name a .svg, .png or .pdf")

    def _converted(self, ending: str) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / f"picture.{ending}"
            run(*self._again, f"--output={path}")
            return path.read_bytes()


class Report:
    """One page with a model, its plan and its step; notebooks show it in a frame."""

    def __init__(self, page: str) -> None:
        self.html = page

    def _repr_html_(self) -> str:
        # What is shown there can neither reach the notebook nor leave the frame.
        page = html.escape(self.html, quote=True)
        return (
            f'<iframe srcdoc="{page}" sandbox="allow-scripts" width="100%" height="{REPORT_HEIGHT}" '
            'style="border: 1px solid #8884"></iframe>'
        )

    def __repr__(self) -> str:
        return f"Report({len(self.html)} letters of HTML)"

    def save(self, path: Path) -> None:
        """Writes the page, which is one file."""
        pathlib.Path(path).write_text(self.html, encoding="utf-8")


class Model:
    """A traced model in an archive: `trace` makes one, `load` takes one that is there.

    Further options of each method are those of the command by their names: `micro_batches=8` is `--micro-batches 8`,
    `no_recompute=True` a flag, and a list gives one option several times.
    """

    def __init__(self, path: Path, *, _folder: Optional[tempfile.TemporaryDirectory[str]] = None) -> None:
        self.path = pathlib.Path(path)
        # Goes with the last who needs its files.
        self._folder = _folder
        self._whole: answers.InspectReport = run_json("inspect", self.path, "--depth", "0")

    @property
    def name(self) -> str:
        """The model's name."""
        return self._whole["model"]

    @property
    def totals(self) -> answers.InspectTotals:
        """Sums over the whole model: parameters, FLOPs, bytes."""
        return self._whole["totals"]

    def __repr__(self) -> str:
        return f"<Model {self.name}: {self.totals['parameters']:,} parameters>"

    def save(self, path: Path) -> None:
        """Copies the archive."""
        shutil.copyfile(self.path, path)

    def inspect(
        self, *, depth: Optional[int] = None, device: Optional[str] = None, **more: Any
    ) -> Answer[answers.InspectReport]:
        """Returns the table of blocks, with times on a device of the catalogue where one is named."""
        arguments = ["inspect", self.path, *options({"depth": depth, "device": device, **more})]
        return Answer(run_json(*arguments), arguments)

    def graph(
        self, *, depth: Optional[int] = None, color: Optional[str] = None, plan: Union[Plan, Path, None] = None, **more: Any
    ) -> Picture:
        """Draws the model, coloured by `color`, or by the stages of a plan."""
        more = {"depth": depth, "color": color, "plan": _path_of(plan), **more}
        again = ["graph", self.path, *options(more)]
        return Picture(run(*again), again)

    def plan(
        self,
        devices: Optional[str] = None,
        *,
        strategy: Optional[str] = None,
        stages: Optional[int] = None,
        batch: Optional[int] = None,
        micro_batches: Optional[int] = None,
        check: Union[Plan, Path, None] = None,
        **more: Any,
    ) -> Plan:
        """Finds the best stages for devices on one line, such as "4xh100", or for a `cluster` file; or scores the plan `check`."""
        more = {"strategy": strategy, "stages": stages, "batch": batch, "micro_batches": micro_batches, **more}
        return Plan(self, options({"devices": devices, **more}), _path_of(check))

    def split(self, devices: Optional[str] = None, output: Optional[Path] = None, **more: Any) -> Split:
        """Plans, and writes stages, pictures and a training script into a folder."""
        if output is None and not more.get("dry_run"):
            raise TypeError("split writes a folder: name it by `output`, or say dry_run=True")
        return Split(self, output, options({"devices": devices, **more}))

    def report(self, plan: Union[Plan, Path, None] = None, **more: Any) -> Report:
        """Puts the model, and a plan and its simulated step, on one page."""
        with tempfile.TemporaryDirectory(prefix="model-analyze-") as folder:
            page = pathlib.Path(folder) / "report.html"
            named = [] if plan is None else [_path_of(plan)]
            run("report", self.path, *named, "-o", page, *options(more))
            return Report(page.read_text(encoding="utf-8"))


class Plan(Answer[answers.PlanAnswer]):
    """A plan for a model: its stages, and how long a step takes."""

    def __init__(self, model: Model, arguments: list[str], check: Optional[Path] = None) -> None:
        self.model = model
        self._folder = tempfile.TemporaryDirectory(prefix="model-analyze-")
        self.path = pathlib.Path(self._folder.name) / "plan.yaml"
        again = ["plan", model.path, *arguments, *options({"check": check})]
        # A plan that is checked is there already.
        super().__init__(run_json(*again, *([] if check else ["-o", self.path])), again)
        if check:
            shutil.copyfile(check, self.path)

    @property
    def stages(self) -> list[answers.StageAnswer]:
        """The stages in order."""
        return self.answer["stages"]

    def save(self, path: Path) -> None:
        """Writes the plan as a file that the command takes."""
        shutil.copyfile(self.path, path)

    def graph(self, **more: Any) -> Picture:
        """Draws the model with its stages."""
        return self.model.graph(plan=self, **more)

    def report(self, **more: Any) -> Report:
        """Puts the model, the plan and its simulated step on one page."""
        return self.model.report(self, **more)

    def simulate(self, **more: Any) -> Answer[answers.SimulatedPlan]:
        """Simulates the training step: time, memory, and where both go."""
        arguments = ["simulate", self.path, *options(more)]
        return Answer(run_json(*arguments), arguments)


class Split(Answer[answers.SplitAnswer]):
    """A model that has been split: the folder with its stages, and why they are these."""

    def __init__(self, model: Model, output: Optional[Path], arguments: list[str]) -> None:
        self._model = model
        self.folder = None if output is None else pathlib.Path(output)
        named = [] if output is None else [f"--output={self.folder}"]
        again = ["split", model.path, *arguments]
        super().__init__(run_json(*again, *named), [*again, *([] if "--dry-run" in again else ["--dry-run"])])

    @property
    def report(self) -> Report:
        """The page that lies in the folder."""
        return Report((self._written() / "report.html").read_text(encoding="utf-8"))

    @property
    def graph(self) -> Picture:
        """The picture of the stages that lies in the folder."""
        folder = self._written()
        again = ["graph", self._model.path, f"--plan={folder / 'plan.yaml'}"]
        return Picture((folder / "graph.svg").read_text(encoding="utf-8"), again)

    def verify(self, **more: Any) -> Answer[answers.Verified]:
        """Compares the stages with the whole model, outputs and gradients, in this Python."""
        arguments = ["verify", self._written(), *options({"python": sys.executable, **more})]
        return Answer(run_json(*arguments), arguments)

    def _written(self) -> pathlib.Path:
        if self.folder is None:
            raise Error("nothing was written: the model was split with dry_run=True")
        return self.folder


def load(path: Path) -> Model:
    """Returns what to ask about an archive of `torch.jit.save` or `torch.export.save`, or an IR text."""
    return Model(path)


def devices(name: Optional[str] = None) -> Answer[answers.DevicesAnswer]:
    """Returns the devices of the catalogue, or all that is known of one."""
    arguments = ["devices", *([] if name is None else [name])]
    return Answer(run_json(*arguments), arguments)


def _path_of(plan: Union[Plan, Path, None]) -> Any:
    return plan.path if isinstance(plan, Plan) else plan
