"""Hooks of the site: what a page links to beside the pages of docs/ becomes a page or a file of the site as well.

A page in docs/ links to the repository as it lies: ``../hopper_gemm/kernel/gemm.py``. On the site that file is a page
under ``repository/``, so that every link can be followed and is checked: Markdown as it stands, source and data as
text, a notebook with its outputs, a folder as its README or a list of files.
"""

from __future__ import annotations

import posixpath
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[1]
DOCS, COPIES, REPORTS = "docs", "repository", "reports"
LINK = re.compile(r"(?P<before>\]\()(?P<path>[^)#\s:]+)(?P<after>(?:#[^)\s]*)?(?:\s+\"[^\"]*\")?\))")
CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)
FIGURE = re.compile(r"^!\[[^\]]*\]\(([^)]+)\)$", re.MULTILINE)
PICTURE = re.compile(r'<picture>.*?<img src="([^"]+)" alt="([^"]*)">\s*</picture>', re.DOTALL)
"""A figure with a copy for dark pages, as the README has it; the site turns the light one over."""

TEXT = {".py": "python", ".toml": "toml", ".js": "javascript", ".css": "css", ".yml": "yaml", "": "text"}
"""Suffixes of files that are shown as code, with the language."""

FOLLOWED = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md", "results/h200/", "results/h100/")
FOLLOWED += ("results/archive/h200/README.md", "results/archive/h100/README.md")
"""Pages outside of docs/ whose own links are followed too."""

SHOWN_BYTES = 200_000
"""Size from which a file is offered as it is, not shown as a page."""

LISTED = re.compile(r'(<a id="([\w-]+)"></a>\[\2\])\([^)]+\)')
"""The name of a study on the page of reports: its anchor, and a link to its plain page."""

STUDIES = tuple(study for _, study in LISTED.findall((ROOT / DOCS / f"{REPORTS}.md").read_text()))
"""Recorded studies whose interactive pages are part of the site; ``make reports`` writes the same."""

INTERVAL = re.compile(r"(?<=\d), (?=-?[\d.]+\])")
"""The gap within an interval such as [1.01, 1.02]."""

HIDDEN = "---\nsearch:\n  exclude: true\nhide:\n  - toc\n---\n\n"
"""Front matter of a copy: it is not searched."""


def on_files(files: Files, config: Any) -> Files:
    """Add the files that pages link to, and the interactive pages of the main studies."""
    waiting = [f"{DOCS}/{file.src_uri}" for file in files.documentation_pages()]
    for study in STUDIES:
        files.append(made(config, f"{REPORTS}/{study}.html", interactive(study)))
    seen: set[str] = set()
    while waiting:
        page = waiting.pop()
        for path in linked(page):
            if path in seen or is_page(path) or not (ROOT / path).exists():
                continue
            seen.add(path)
            for file in copies(config, path):
                files.append(file)
            target = str(readme(path) or path)
            if target.endswith(".md") and target.startswith(FOLLOWED):
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point the links of a page to the copies; those within docs/ stay. A figure becomes a link to its file, which a
    phone can magnify."""
    origin = origin_of(page.file.src_uri)
    if origin is None:
        return markdown
    markdown = PICTURE.sub(r"![\2](\1)", markdown)
    if origin == f"{DOCS}/index.md":
        page.meta["hide"] = ["navigation", "toc"]

    def pointed(match: re.Match[str]) -> str:
        path = resolved(origin, match["path"])
        study = match["after"].strip("#)")
        if path == f"{DOCS}/{REPORTS}.md" and study in STUDIES:
            relative = posixpath.relpath(f"{REPORTS}/{study}.html", posixpath.dirname(page.file.src_uri) or ".")
            return f"{match['before']}{relative})"
        if origin.endswith(".ipynb") and not (ROOT / path).exists():
            path = resolved(f"{DOCS}/", match["path"])  # a notebook prints tables of the docs, with their links
        if is_page(path):
            target = path.removeprefix(f"{DOCS}/")
        elif (ROOT / path).exists():
            target = copy_of(path)
        else:
            target = None
        if target is None or files.get_file_from_path(target) is None:
            return f"{match['before']}{match['path']}{match['after']}"
        relative = posixpath.relpath(target, posixpath.dirname(page.file.src_uri) or ".")
        return f"{match['before']}{relative}{match['after']}"

    if origin == f"{DOCS}/{REPORTS}.md":
        markdown = LISTED.sub(rf"\1({REPORTS}/\2.html)", markdown)
    parts = CODE.split(unbroken(FIGURE.sub(r"[\g<0>](\1)", markdown)))
    return "".join(part if at % 2 else LINK.sub(pointed, part) for at, part in enumerate(parts))


def unbroken(markdown: str) -> str:
    """The text with the two ends of an interval kept on one line where it stands in a table."""
    lines = markdown.split("\n")
    return "\n".join(INTERVAL.sub(",&nbsp;", line) if line.startswith("|") else line for line in lines)


def origin_of(uri: str) -> str | None:
    """The path in the repository of a page of the site; None for a page that the hooks wrote."""
    if not uri.startswith(f"{COPIES}/"):
        return f"{DOCS}/{uri}"
    path = uri.removeprefix(f"{COPIES}/")
    found = (one for one in (path, path.removesuffix(".md")) if (ROOT / one).is_file())
    return next((one for one in found if one.endswith((".md", ".ipynb"))), None)


def linked(page: str) -> list[str]:
    """Paths in the repository that a page links to."""
    prose = CODE.sub("", (ROOT / page).read_text())
    return [resolved(page, match["path"]) for match in LINK.finditer(prose)]


def resolved(page: str, link: str) -> str:
    """A link of a page as a path in the repository."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def is_page(path: str) -> bool:
    """Return True if a path in the repository is a page or a picture of docs/."""
    return path.startswith(f"{DOCS}/") and path.endswith((".md", ".svg"))


def readme(path: str) -> str | None:
    """The README of a folder, if it has one."""
    found = f"{path}/README.md"
    return found if (ROOT / found).is_file() else None


def copy_of(path: str) -> str:
    """Where the site has a file or folder of the repository."""
    full = ROOT / path
    if full.is_dir():
        return f"{COPIES}/{readme(path) or f'{path}/index.md'}"
    return f"{COPIES}/{path}.md" if shown_as_code(path) or full.suffix == ".ipynb" else f"{COPIES}/{path}"


def shown_as_code(path: str) -> bool:
    """Return True if a file becomes a page with its text."""
    full = ROOT / path
    return full.suffix in TEXT and full.stat().st_size < SHOWN_BYTES


def copies(config: Any, path: str) -> list[File]:
    """The files of the site for a file or folder of the repository."""
    full, uri = ROOT / path, copy_of(path)
    if full.is_dir() and (found := readme(path)):
        return [made(config, uri, HIDDEN + (ROOT / found).read_text())]
    if full.is_dir():
        names = [f"- {name}" for name in tracked(path)]
        return [made(config, uri, "\n".join([f"{HIDDEN}# {path}", "", *names, ""]))]
    if full.suffix == ".md":
        return [made(config, uri, HIDDEN + full.read_text())]
    if full.suffix == ".ipynb":
        return notebook(config, full, uri)
    if shown_as_code(path):
        fence = f"````{TEXT[full.suffix]}"
        return [made(config, uri, f"{HIDDEN}# {path}\n\n{fence}\n{full.read_text().rstrip()}\n````\n")]
    return [made(config, uri, full.read_bytes())]


@cache
def tracked(path: str) -> list[str]:
    """Names in a folder, without what git ignores; every name where there is no git."""
    done = subprocess.run(["git", "ls-files", path], cwd=ROOT, capture_output=True, text=True)
    files = done.stdout.split() or [str(one.relative_to(ROOT)) for one in (ROOT / path).iterdir()]
    names = (name.removeprefix(f"{path}/").split("/") for name in files)
    return sorted({name[0] + "/" * (len(name) > 1) for name in names})


def notebook(config: Any, path: Path, uri: str) -> list[File]:
    """A notebook with its recorded outputs, and its pictures."""
    from nbconvert import MarkdownExporter

    text, resources = MarkdownExporter().from_filename(str(path))
    folder = f"{posixpath.dirname(uri)}/{path.stem}"
    for name in resources["outputs"]:
        text = text.replace(f"({name})", f"({path.stem}/{name})")
    pictures = [made(config, f"{folder}/{name}", data) for name, data in resources["outputs"].items()]
    return [made(config, uri, f"{HIDDEN}{beside(path)}\n\n{text}"), *pictures]


def beside(path: Path) -> str:
    """A line that leads from a notebook to the study, and to the notebooks before and after it."""
    numbered = sorted(path.parent.glob("[0-9]*_*.ipynb"), key=lambda file: int(file.stem.partition("_")[0]))
    at = numbered.index(path)
    around = [("before", at - 1), ("next", at + 1)]
    links = [f"[{said}]({numbered[to].name})" for said, to in around if 0 <= to < len(numbered)]
    return f"*Notebook {at + 1} of {len(numbered)} of [the study](../docs/study.md): {', '.join(links)}*"


@cache
def interactive(study: str) -> str:
    """The interactive page of a recorded study."""
    from hopper_gemm.tune.study.reader import read_study
    from hopper_gemm.tune.tables.html.document import document

    return document(read_study(ROOT / "results/h200" / study))


def made(config: Any, uri: str, content: str | bytes) -> File:
    """A file of the site that no file in docs/ stands for."""
    return File.generated(config, uri, content=content, inclusion=InclusionLevel.NOT_IN_NAV)
