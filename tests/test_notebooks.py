"""Notebooks are committed executed, say what their scripts say, and print the figures that they name."""

from __future__ import annotations

import ast
import re
import tomllib

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import ROOT
from tests.each import each
from tests.figures import figures, stands_in

pytestmark = pytest.mark.results

SCRIPTS = sorted((ROOT / "notebooks").glob("[0-9]*_*.py"), key=lambda path: int(path.stem.partition("_")[0]))
STATED = tomllib.loads((ROOT / "docs/figures.toml").read_text())


def printed(notebook) -> str:
    """All text that the cells of an executed notebook print or show, but for what goes to stderr."""
    found = []
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        data = output.get("data", {})
        if output.get("name") != "stderr":
            found.append(output.get("text") or data.get("text/markdown") or data.get("text/plain") or "")
    return "".join(found)


@each("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_is_its_script_executed_from_top_to_bottom(script):
    notebook = nbformat.read(script.with_suffix(".ipynb"), as_version=4)
    paired = jupytext.read(script)
    assert [cell.source for cell in notebook.cells] == [cell.source for cell in paired.cells]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert not [one for one in outputs if one.output_type == "error" or one.get("name") == "stderr"]


@each("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_begins_with_its_question_and_the_answer(script):
    first = nbformat.read(script.with_suffix(".ipynb"), as_version=4).cells[0].source
    title, question, answer = first.split("\n\n")[:3]
    assert (title[:2], question[:13], answer[:11]) == ("# ", "**Question.**", "**Answer.**")


@each("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_takes_the_package_s_helpers_from_one_module(script):
    named = [one for one in ast.walk(ast.parse(script.read_text())) if isinstance(one, ast.ImportFrom)]
    assert {one.module for one in named if one.module.startswith(("hopper_gemm", "notebooks"))} == {"notebooks.helpers"}


def test_at_most_ten_notebooks_are_numbered_in_the_order_of_the_study():
    numbers = [int(script.stem.partition("_")[0]) for script in SCRIPTS]
    assert numbers == list(range(1, len(SCRIPTS) + 1))
    assert len(SCRIPTS) <= 10
    linked = [int(one) for one in re.findall(r"notebooks/(\d+)_", (ROOT / "docs/study.md").read_text())]
    assert linked == sorted(linked)
    assert set(linked) == set(numbers)


@each("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_says_its_context_and_embeds_small_pictures(script):
    """Every timing it reads is chained; a picture of a notebook takes at most 60 kB."""
    notebook = nbformat.read(script.with_suffix(".ipynb"), as_version=4)
    assert "chained" in notebook.cells[0].source
    pictures = [
        out.data["image/png"]
        for cell in notebook.cells
        for out in cell.get("outputs", [])
        if "image/png" in out.get("data", {})
    ]
    assert pictures, "plots are shown"
    assert max(map(len, pictures)) < 80_000


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_run_again_prints_the_same(script):
    """So its figures are those of the recorded rows today."""
    notebook = nbformat.read(script.with_suffix(".ipynb"), as_version=4)
    before = printed(notebook)
    resources = {"metadata": {"path": str(script.parent)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    assert printed(notebook) == before


@each("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_figure_of_a_notebook_stands_in_what_its_cells_print(script):
    """Rounded as it is written, or named in docs/figures.toml as a setting or by its source."""
    notebook = nbformat.read(script.with_suffix(".ipynb"), as_version=4)
    prose = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    numbers = [float(one.replace(",", "")) for one in re.findall(r"\d[\d,]*(?:\.\d+)?", printed(notebook))]
    lacking = {figure for figure in figures(prose) if not stands_in(figure, numbers)}
    assert lacking == set(STATED.get(script.stem, {}))
