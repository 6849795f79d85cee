"""The written word: generated parts are current, links lead somewhere, examples run."""

from __future__ import annotations

import doctest
import importlib.util
import re
import tomllib
from functools import cache
from importlib import import_module
from importlib.metadata import metadata, version

import pytest

import hopper_gemm
from hopper_gemm.lab.pages.sources import recorded
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve
from tests.conftest import ROOT
from tests.each import each
from tests.figures import figures, value_of

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("results/**/README.md")])
MODULES = sorted((ROOT / "hopper_gemm").rglob("*.py"))
LONGEST_README = 110


@cache
def generator():
    """docs/generate.py as a module."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_citation_is_of_this_version_and_licence():
    cited = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {hopper_gemm.__version__}\n" in cited
    assert f"\nlicense: {metadata('hopper-gemm')['License-Expression']}\n" in cited


@pytest.mark.results
def test_the_generated_parts_of_the_docs_are_current():
    """``make pages`` writes them: tables of results, parameters, rules, columns, commands."""
    made = generator()
    parts = 0
    for path in made.pages():
        text = path.read_text()
        parts += text.count(": make pages -->")
        assert made.filled(text) == text, f"{path.relative_to(ROOT)} is not what its sources give; run make pages"
    assert parts >= len(made.PARTS)


SOURCES = tomllib.loads((ROOT / "docs/figures.toml").read_text())


def test_a_figure_outside_generated_parts_has_its_source():
    """docs/figures.toml names it: a file, an address, a count, or that it is a setting or was expected."""
    found = {path.name: figures(path.read_text()) for path in generator().pages()}
    notebooks = {path.stem for path in ROOT.glob("notebooks/*.py")}
    named = {page: set(of) for page, of in SOURCES.items() if page not in notebooks}
    assert {page: of for page, of in found.items() if of} == named
    sources = {source for of in SOURCES.values() for source in of.values() if not source.startswith("counted ")}
    files = sources - {"setting", "expected"}
    assert [name for name in files if not (name.startswith("https://") or (ROOT / name).is_file())] == []


COUNTS = {
    "problems": lambda rows: {row.point.problem for row in rows},
    "points": lambda rows: {row.point for row in rows},
    "configs": lambda rows: {row.point.config for row in rows},
    "kernels": lambda rows: {code for row in rows if (code := row.figures.get("code"))},
}


@pytest.mark.results
def test_a_count_on_a_page_is_that_of_the_study_that_it_names():
    counted = [(f, s) for of in SOURCES.values() for f, s in of.items() if s.startswith("counted ")]
    assert len(counted) >= 10
    for figure, source in counted:
        study, _, what = source.removeprefix("counted ").partition(": ")
        rows = recorded(study).stage("sweep", "compare")
        assert value_of(figure) == (len(COUNTS[what](rows)), 0), (figure, source)


@pytest.mark.results
def test_the_picture_of_the_suite_shows_its_problems_and_means():
    """``make pages`` draws it from the rows of its comparison."""
    made, text = generator(), (ROOT / "docs/suite.svg").read_text()
    records = made.compared(made.study("suite").stage("compare"))
    shown = {record["problem"] for record in records} | {
        f"{mean.speedup:.3f}x" for mean in made.means(records) if mean.against == "cublas"
    }
    assert [one for one in shown if f">{one}<" not in text] == []


def test_the_readme_can_be_read_in_one_sitting():
    assert len((ROOT / "README.md").read_text().splitlines()) <= LONGEST_README


@each("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_to_a_file_of_the_project_leads_to_one(path):
    found = re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text())
    dead = [link for link in found if "://" not in link and not (path.parent / link).exists()]
    assert dead == []


def test_the_page_of_words_explains_a_label_as_the_code_writes_it():
    """One line of its table for each word of a label, in order."""
    options = {"stages": 3, "stagger": 0, "cluster_n": 2, "epi_n": 64, "epi_buffers": 3, "reverse_k": True}
    label = str(resolve(GemmConfig(tile_m=256, tile_n=192, **options)))
    page = (ROOT / "docs/glossary.md").read_text()
    assert f"\n`{label}`\n" in page
    assert re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE) == label.split()


WITH_EXAMPLES = [path for path in MODULES if ">>> " in path.read_text()]


@each("path", WITH_EXAMPLES, ids=lambda path: str(path.relative_to(ROOT / "hopper_gemm")))
def test_the_examples_of_a_module_give_what_they_show(path):
    """Those that need a GPU are marked to be skipped."""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    found = doctest.testmod(import_module(name))
    assert found.failed == 0


def test_most_examples_run_without_a_gpu():
    assert len(WITH_EXAMPLES) >= 10


def test_the_version_is_stated_once():
    stated = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert stated == [version("hopper-gemm")] == [hopper_gemm.__version__]
