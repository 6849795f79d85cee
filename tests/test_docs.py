"""The written word: generated parts are current, links lead somewhere, examples run."""

from __future__ import annotations

import ast
import doctest
import os
import re
import shlex
import subprocess
import sys
import tomllib
from datetime import date
from functools import cache
from importlib import import_module
from importlib.metadata import metadata, version

import pytest
import typer

import hopper_gemm
from docs.generate import __main__ as generator
from docs.generate.pages import chapters
from docs.generate.pages.pictures import DARK, darkened
from docs.generate.pages.sources import recorded
from docs.generate.pages.specialised import source_of
from docs.generate.pages.studies import worth_of_ideas
from hopper_gemm.cli import app
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve
from hopper_gemm.tune.tables.comparison import geometric_mean
from tests.conftest import ROOT
from tests.each import each
from tests.figures import figures, value_of

DOCS = sorted(ROOT.glob("docs/**/*.md"))
PAGES = sorted([*ROOT.glob("*.md"), *DOCS, *ROOT.glob("results/**/README.md")])
MODULES = [
    *sorted(path for folder in ("hopper_gemm", "docs/generate") for path in (ROOT / folder).rglob("*.py")),
    *sorted(path for folder in ("tests/verify", "tests/protocols") for path in (ROOT / folder).glob("*.py")),
]
LONGEST_README = 80

FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
GENERATED = re.compile(r"<!-- [a-z0-9-]+: make pages -->.*?<!-- end -->", re.DOTALL)


def test_the_citation_is_of_this_version_licence_and_a_day():
    cited = (ROOT / "CITATION.cff").read_text()
    date.fromisoformat(re.search(r'^date-released: "(.+)"$', cited, re.MULTILINE)[1])
    assert f"\nversion: {hopper_gemm.__version__}\n" in cited
    assert f"\nlicense: {metadata('hopper-gemm')['License-Expression']}\n" in cited


@pytest.mark.results
def test_the_generated_parts_of_the_docs_are_current():
    """``make pages`` writes them: tables of results, parameters, rules, columns, commands."""
    parts = 0
    for path in generator.pages():
        text = path.read_text()
        parts += text.count(": make pages -->")
        assert generator.filled(text) == text, f"{path.relative_to(ROOT)} is not what its sources give; run make pages"
    assert parts >= len(generator.PARTS)


SOURCES = tomllib.loads((ROOT / "docs/figures.toml").read_text())


def test_the_rows_of_a_table_have_as_many_cells_as_its_head():
    """A renderer drops what is beyond the head, and shows the rest under other columns."""
    tables = [
        (path.name, table.splitlines())
        for path in generator.pages()
        for table in re.findall(r"(?:^\|.*\n?)+", path.read_text(), re.M)
    ]
    assert len(tables) > 50
    uneven = {(name, head) for name, (head, *rows) in tables if {*map(cells_of, rows)} - {cells_of(head)}}
    assert uneven == set()


def cells_of(line: str) -> int:
    """Number of cells of a table's line; a bar in code or behind a backslash parts none."""
    return len(re.sub(r"`[^`]*`|\\\|", "", line).strip().strip("|").split("|"))


def test_a_figure_outside_generated_parts_has_its_source():
    """docs/figures.toml names it: a file, an address, a count, or that it is a setting or was expected."""
    found = {path.name: figures(path.read_text()) for path in generator.pages()}
    notebooks = {path.stem for path in ROOT.glob("notebooks/[0-9]*_*.py")}
    named = {page: set(of) for page, of in SOURCES.items() if page not in notebooks}
    assert {page: of for page, of in found.items() if of} == named
    sources = {source for of in SOURCES.values() for source in of.values() if not source.startswith("counted ")}
    files = sources - {"setting", "expected"}
    assert [name for name in files if not (name.startswith("https://") or (ROOT / name).is_file())] == []


COUNTS = {
    "problems": lambda rows: {row.point.problem for row in rows},
    "points": lambda rows: {row.point for row in rows},
    "configs": lambda rows: {row.point.config for row in rows},
    "boards": lambda rows: {row.board for row in rows},
    "kernels": lambda rows: {code for row in rows if (code := row.figures.get("code"))},
}


@pytest.mark.results
def test_a_count_on_a_page_is_that_of_the_study_that_it_names():
    counted = [(f, s) for of in SOURCES.values() for f, s in of.items() if s.startswith("counted ")]
    assert counted
    for figure, source in counted:
        study, _, what = source.removeprefix("counted ").partition(": ")
        rows = recorded(study).stage("sweep", "compare", "map")
        assert value_of(figure) == (len(COUNTS[what](rows)), 0), (figure, source)


@pytest.mark.results
def test_the_picture_of_the_suite_shows_its_problems_and_means():
    """``make pages`` draws it from the rows of its comparison."""
    text = (ROOT / "docs/suite.svg").read_text()
    records = generator.charted()
    shown = {record["problem"] for record in records} | {
        f"{mean.speedup:.3f}x" for mean in generator.means(records) if mean.against == "cublas"
    }
    assert [one for one in shown if f">{one}<" not in text] == []


@pytest.mark.results
def test_the_picture_of_the_ideas_names_each_with_its_mean():
    text = (ROOT / "docs/leave-one-out.svg").read_text()
    means = {idea: 100 * (geometric_mean([ratio for ratio, _ in of]) - 1) for idea, of in worth_of_ideas()}
    assert means
    assert [idea for idea, mean in means.items() if f">{idea}<" not in text or f">{mean:+.1f}%, " not in text] == []


def test_the_picture_for_dark_pages_is_the_light_one_in_its_colours():
    light, dark = ((ROOT / f"docs/suite{name}.svg").read_text() for name in ("", "-dark"))
    assert darkened(light) == dark, "run make pages"
    assert not set(re.findall(r"#[0-9a-f]{6}", dark)) & {colour for colour in DARK if colour not in DARK.values()}


def test_the_readme_can_be_read_in_one_sitting():
    assert len((ROOT / "README.md").read_text().splitlines()) <= LONGEST_README


@each("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_to_a_file_of_the_project_leads_to_one(path):
    found = re.findall(r"\]\(([^)#\s]+)[^)]*\)|(?:src|srcset)=\"([^\"]+)\"", path.read_text())
    found = [markdown or html for markdown, html in found]
    dead = [link for link in found if "://" not in link and not (path.parent / link).exists()]
    assert dead == []


@cache
def anchors(page):
    """The anchors of a page as GitHub makes them of its headings, and those that it writes out."""
    text = FENCED.sub("", page.read_text())
    found = set(re.findall(r'<a id="([^"]+)"', text))
    for heading in re.findall(r"^#{1,6} +(.+)$", text, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")
        again = sum(re.fullmatch(rf"{anchor}(-\d+)?", one) is not None for one in found)
        found.add(f"{anchor}-{again}" if again else anchor)
    return found


@each("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_anchor_that_a_page_links_to_is_on_its_page_in_a_checkout_too(path):
    """Of a folder it is on the README; of a notebook or a source file none is looked for."""
    dead = []
    for link, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)[^)]*\)", path.read_text()):
        page = path.parent / link if link else path
        page = page / "README.md" if page.is_dir() else page
        if "://" not in link and page.suffix == ".md" and anchor not in anchors(page.resolve()):
            dead.append(f"{link}#{anchor}")
    assert dead == []


def test_an_anchor_is_a_heading_s_words_numbered_where_they_come_again(tmp_path):
    page = tmp_path / "page.md"
    page.write_text('# How `a_b` runs: [it](x.md), so\n\n## So\n\n## So\n\n```\n# no\n```\n\n<a id="own"></a>\n')
    assert anchors(page) == {"how-a_b-runs-it-so", "so", "so-1", "own"}


def test_the_page_of_words_explains_a_label_as_the_code_writes_it():
    """One line of its table for each word of a label, in order."""
    options = {"stages": 3, "stagger": 0, "cluster_n": 2, "epi_n": 64, "epi_buffers": 3, "reverse_k": True}
    label = str(resolve(GemmConfig(tile_m=256, tile_n=192, **options)))
    page = (ROOT / "docs/glossary.md").read_text()
    assert f"\n`{label}`\n" in page
    assert re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE) == label.split()


SHOWN = re.compile(r"```python\n(.*?)```", re.DOTALL)
ON_A_GPU = re.compile(r"cuda|hopper_gemm\.\w+\(")
"""Of a block that needs a GPU: it names one, or calls the library."""

EXAMPLES = [
    (path, code) for path in [ROOT / "README.md", *DOCS] for code in SHOWN.findall(GENERATED.sub("", path.read_text()))
]


@pytest.mark.results
@each("path", EXAMPLES, ids=lambda one: str(one[0].relative_to(ROOT)))
def test_python_on_a_page_runs(path, tmp_path):
    """As it stands there; what needs a GPU is compiled only. README's runs on a CPU too."""
    where, code = path
    compile(code, str(where), "exec")
    if where.name == "README.md" or not ON_A_GPU.search(code):
        done = run_python(code, tmp_path)
        assert done.returncode == 0, f"{code}\n{done.stderr}"


def test_most_python_on_pages_needs_no_gpu():
    assert len([code for _, code in EXAMPLES if not ON_A_GPU.search(code)]) >= 5


def run_python(code, folder):
    """Run an example in a folder that holds the files it reads."""
    table = [sys.executable, "-m", "hopper_gemm", "table", "results/h200/seed-table", "--out", "seed-table.csv"]
    if "seed-table.csv" in code:
        subprocess.run(table, cwd=folder, check=True, capture_output=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    if not (folder / "results").exists():
        (folder / "results").symlink_to(ROOT / "results")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, env=environment)


COMMAND = re.compile(r"^(?:    |\$ )(hopper-gemm [a-z].*?)(?: {2,}#.*| &)?$", re.MULTILINE)
"""A command on a line of its own, or in a block with its output."""

NAMED = re.compile(r"`hopper-gemm ([a-z]+)\b")
"""A command that a sentence names."""


@each("path", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS], ids=lambda path: str(path.relative_to(ROOT)))
def test_the_command_line_understands_every_command_of_a_page(path):
    """With its options and arguments; whose output stands on the page is run by make pages."""
    known, text = typer.main.get_command(app).commands, path.read_text()
    assert [name for name in NAMED.findall(text) if name not in known] == []
    for line in COMMAND.findall(text):
        name, *words = shlex.split(line)[1:]
        known[name].make_context(name, words)


def test_the_example_of_running_one_test_selects_a_test():
    path, word = re.search(r"pytest (tests/\S+) -k (\w+)", (ROOT / "CONTRIBUTING.md").read_text()).groups()
    assert re.search(rf"^def test_\w*{word}", (ROOT / path).read_text(), re.MULTILINE)


def test_the_commands_without_json_are_those_that_the_page_names():
    commands = typer.main.get_command(app).commands
    lack = [name for name, one in commands.items() if "--json" not in [word for of in one.params for word in of.opts]]
    named = " and ".join(f"`{name}`" for name in sorted(lack))
    assert f"All but {named} have `--json`." in (ROOT / "docs/tuning.md").read_text()


def test_a_chapter_s_source_keeps_what_its_config_uses_and_drops_the_rest():
    """A producer's loop, a late release, a TMA store and a probe appear with the rung that adds them; all is Python."""
    adds = {"specialised": "def _fill", "stagger 1": "wait_group(1)", "TMA store": "bulk_commit", "peek": "peek_full"}
    rungs = [rung for chapter in chapters.CHAPTERS for rung in chapter.rungs]
    sources = {rung: source_of(chapters.kernel(rung)) for rung in rungs}
    for source in sources.values():
        ast.parse(source)
    for rung, words in adds.items():
        later = [name for name, source in sources.items() if words in source]
        assert later == rungs[rungs.index(rung) :]


WITH_EXAMPLES = [path for path in MODULES if ">>> " in path.read_text()]


@each("path", WITH_EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
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
