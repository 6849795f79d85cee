"""The site as `make docs` builds it: links lead somewhere, nothing is loaded from the network, tables fit a phone."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest

from docs.generate.pages.index import INTERACTIVE
from tests.conftest import ROOT
from tests.each import each

pytestmark = pytest.mark.results

WRAPS = 3
"""Columns of a table, at most, that a phone wraps into its width; a wider table scrolls, line by line."""

LONGEST_CELL = 64


class Page(HTMLParser):
    """Identifiers of a page, what it links to, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids |= {found[name] for name in ("id", "name") if found.get(name)}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        elif tag != "a":
            self.loaded += [found[name] for name in ("href", "src") if found.get(name)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The pages of the site by path, built without a warning."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^(?!INFO).+", done.stderr, re.MULTILINE) == []
    pages = [path for path in folder.rglob("*.html") if path.name != "404.html" and path.parent.name != "reports"]
    return {path: Page(path.read_text()) for path in pages}


def test_every_link_and_anchor_of_the_site_leads_somewhere(site):
    dead = []
    for path, page in site.items():
        for link in page.links + page.loaded:
            parts = urlsplit(link)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if parts.scheme:
                continue
            ids = site[target].ids if target in site else {parts.fragment}
            if not target.is_file() or unquote(parts.fragment) not in ids | {""}:
                dead.append((path.name, link))
    assert dead == []
    assert len(site) > 100


def test_a_page_of_the_site_loads_nothing_from_the_network(site):
    """It opens from a folder: its search too runs without a server."""
    assert {one for page in site.values() for one in page.loaded if urlsplit(one).scheme not in ("", "data")} == set()
    assert all(any(one.endswith("iframe-worker.js") for one in page.loaded) for page in site.values())


def hooks():
    """docs/hooks.py as a module."""
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs/hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_command_builds_the_interactive_pages_that_the_site_has(site):
    (listed,) = re.findall(r"^REPORTS := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert tuple(listed.split()) == hooks().STUDIES == INTERACTIVE


def test_a_question_of_the_study_and_the_list_link_to_the_interactive_page_itself(site):
    for name in ("study.html", "reports.html"):
        (page,) = (page for path, page in site.items() if path.name == name)
        assert {f"reports/{study}.html" for study in INTERACTIVE} <= set(page.links)


def test_the_list_of_interactive_pages_has_one_line_for_each_with_its_own_question():
    page = (ROOT / "docs/reports.md").read_text()
    questions = re.findall(r"^\| <a id=[^|]+ \| ([^|]+) \| [^|]+; [^|]+ \|$", page, re.MULTILINE)
    assert len(set(questions)) == len(INTERACTIVE)


def test_an_interval_in_a_table_is_not_broken_over_two_lines():
    text = "| 1.078x [1.045, 1.112] | a, b |\nfrom [1.0, 1.1] on"
    assert hooks().unbroken(text) == "| 1.078x [1.045,&nbsp;1.112] | a, b |\nfrom [1.0, 1.1] on"


@each("path", sorted(ROOT.glob("docs/**/*.md")), ids=lambda path: str(path.relative_to(ROOT / "docs")))
def test_a_table_of_many_columns_has_short_cells(path):
    for line in path.read_text().splitlines():
        cells = [re.sub(r"\]\([^)]*\)", "", cell.strip()) for cell in re.split(r"(?<!\\)\|", line.strip("| "))]
        if line.startswith("|") and len(cells) > WRAPS:
            assert [cell for cell in cells if len(cell) > LONGEST_CELL] == []
