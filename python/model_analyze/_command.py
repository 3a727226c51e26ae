"""Finds the command `model-analyze`, runs it, and turns its errors into exceptions and its notes into warnings."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import warnings
from typing import Any, Sequence, Union

Path = Union[str, "os.PathLike[str]"]


class Error(Exception):
    """What the command says when it ends without a result.

    `str(error)` is the whole text, hint and all; `code` is the exit code.
    """

    def __init__(self, text: str, code: int = 2) -> None:
        super().__init__(text)
        self.code = code


class NoPlan(Error):
    """A right question whose answer is no: nothing fits, or a check has found a difference (exit code 1)."""


class Note(UserWarning):
    """What the command says beside its result."""


def command() -> str:
    """Returns the path of the command: `MODEL_ANALYZE`, that beside this package, or that on the PATH."""
    named = os.environ.get("MODEL_ANALYZE")
    if named:
        return named
    name = "model-analyze.exe" if os.name == "nt" else "model-analyze"
    for folder in (sysconfig.get_path("scripts"), sysconfig.get_path("scripts", f"{os.name}_user")):
        if (pathlib.Path(folder) / name).is_file():
            return str(pathlib.Path(folder) / name)
    found = shutil.which(name)
    if found is None:
        raise Error("the command model-analyze is not installed\n  hint: pip install model-analyze, or set MODEL_ANALYZE")
    return found


def run(*arguments: Any) -> str:
    """Runs the command and returns what it printed.

    Raises `Error` with what it said, and warns of its notes.
    """
    program = command()
    environment = {**os.environ, "NO_COLOR": "1"}
    try:
        process = subprocess.Popen(
            [program, *map(_text, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        raise Error(f"cannot run {program}: {error.strerror}\n  hint: MODEL_ANALYZE names the command") from error
    try:
        printed, said = process.communicate()
    except BaseException:
        # It removes what it has not finished.
        process.terminate()
        process.communicate()
        raise
    notes, rest = _parted(said)
    for note in notes:
        warn(note)
    if process.returncode != 0:
        kind = NoPlan if process.returncode == 1 else Error
        raise kind(rest.strip().removeprefix("error: ") or f"ended with {process.returncode}", process.returncode)
    return printed


def run_json(*arguments: Any) -> Any:
    """Runs the command and returns its answer."""
    return json.loads(run(*arguments, "--format", "json"))


def warn(note: str) -> None:
    """Warns of a note at the line outside this package that asked."""
    own = str(pathlib.Path(__file__).parent) + os.sep
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(own):
        frame, level = frame.f_back, level + 1
    warnings.warn(note, Note, stacklevel=level)


def options(named: dict[str, Any]) -> list[str]:
    """Returns options of the command: `micro_batches=8` is `--micro-batches 8`, True a flag, and a list several of one."""
    found: list[str] = []
    for name, value in named.items():
        option = "--" + name.replace("_", "-")
        several: Sequence[Any] = value if isinstance(value, (list, tuple)) else [value]
        for one in several:
            if one is True:
                found.append(option)
            elif one is not None and one is not False:
                # In one word, so that a value may begin with a dash.
                found.append(f"{option}={_text(one)}")
    return found


def _text(value: Any) -> str:
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _parted(said: str) -> tuple[list[str], str]:
    """Parts what was said into notes and the rest; lines that are indented belong to what stands before them."""
    notes: list[str] = []
    rest: list[str] = []
    is_note = False
    for line in said.splitlines():
        if line.startswith("note: "):
            is_note = True
            notes.append(line.removeprefix("note: "))
        elif is_note and line.startswith("  "):
            notes[-1] += f"\n{line}"
        else:
            is_note = False
            rest.append(line)
    return notes, "\n".join(rest)
