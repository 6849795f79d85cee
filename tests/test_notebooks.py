"""Notebooks are committed executed, and say what their scripts say."""

from __future__ import annotations

import jupytext
import nbformat
import pytest

from tests.conftest import ROOT
from tests.each import each

pytestmark = pytest.mark.results


@each("script", sorted((ROOT / "notebooks").glob("*.py")), ids=lambda path: path.stem)
def test_a_notebook_is_its_script_executed_from_top_to_bottom(script):
    notebook = nbformat.read(script.with_suffix(".ipynb"), as_version=4)
    paired = jupytext.read(script)
    assert [cell.source for cell in notebook.cells] == [cell.source for cell in paired.cells]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert not [one for one in outputs if one.output_type == "error" or one.get("name") == "stderr"]


@each("script", sorted((ROOT / "notebooks").glob("*.py")), ids=lambda path: path.stem)
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
