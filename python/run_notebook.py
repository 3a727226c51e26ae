"""Runs a notebook in Jupyter and writes it with what it shows: run_notebook.py NOTEBOOK FOLDER (`make notebook`)."""

import pathlib
import sys

import nbclient
import nbformat

source, folder = map(pathlib.Path, sys.argv[1:3])
notebook = nbformat.read(source, as_version=4)
nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
nbformat.write(notebook, folder / source.name)
for cell in notebook.cells:
    if cell.cell_type != "code":
        continue
    shown = [f"{kind} {len(data):,}" for output in cell.outputs for kind, data in output.get("data", {}).items()]
    printed = [output.name for output in cell.outputs if output.output_type == "stream"]
    print(f"{cell.source.splitlines()[0]:<72.72} {', '.join(shown + printed)}")
