"""The listing of a chapter: the functions that it prints, from the chapter or from a file that a reader changed.

A function stands below a line that says where it belongs: ``# Ring in kernel/pipeline.py``. The comments at the top of
a listing describe the kernel's config; they are not read.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from docs.generate.pages.chapters import CHAPTERS, formatted, head, kernel
from docs.generate.pages.specialised import source_of
from hopper_gemm.tune.study.files import read_text, write_whole

OWNER = re.compile(r"^# (?P<owner>\w+) in (?P<file>[\w/]+\.py)$", re.MULTILINE)


@dataclass(frozen=True)
class Printed:
    """One function of a listing.

    Args:
        file: in the package, such as ``kernel/pipeline.py``.
        owner: class that it is a method of.
        code: the function as written, without decorators and annotations.
    """

    file: str
    owner: str
    code: ast.FunctionDef


def listing(number: int) -> str:
    """The listing of a chapter, whole: facts of its last rung as comments, then the functions."""
    rung = CHAPTERS[number - 1].rungs[-1]
    return head(rung) + formatted(source_of(kernel(rung)))


def functions(text: str, name: str = "the listing") -> list[Printed]:
    """The functions of a listing.

    Args:
        text: of the listing.
        name: of it, for errors.

    Raises:
        ValueError: it is not Python, or a line that names an owner is not followed by one function.
    """
    owners = list(OWNER.finditer(text))
    if not owners:
        raise ValueError(f"{name} must have a line such as '# Ring in kernel/pipeline.py' above each function")
    found = []
    for place, end in zip(owners, [*(one.start() for one in owners[1:]), len(text)], strict=True):
        first_line = text.count("\n", 0, place.start())
        try:
            body = ast.parse("\n" * first_line + text[place.start() : end]).body
        except SyntaxError as error:
            raise ValueError(f"{name}, line {error.lineno}: {error.msg}") from None
        if len(body) != 1 or not isinstance(body[0], ast.FunctionDef):
            raise ValueError(f"{name}, line {first_line + 1}: '{place[0]}' must be followed by one function")
        found.append(Printed(place["file"], place["owner"], body[0]))
    return found


def file_of(number: int, folder: Path) -> Path:
    """The file of a chapter's listing in a folder."""
    return folder / f"{CHAPTERS[number - 1].page}.py"


def write(numbers: Iterable[int], folder: Path) -> list[Path]:
    """Write the listings of some chapters; the files.

    Raises:
        ValueError: one of the files exists: a reader may have changed it.
    """
    files = {number: file_of(number, folder) for number in numbers}
    if there := [path for path in files.values() if path.exists()]:
        raise ValueError(f"{there[0]} exists and may have been changed; name another folder, or remove it")
    folder.mkdir(parents=True, exist_ok=True)
    for number, path in files.items():
        write_whole(path, listing(number))
    return list(files.values())


def read(numbers: Iterable[int], folder: Path | None) -> dict[int, list[Printed]]:
    """The functions of some chapters, as printed or from a folder that :func:`write` made.

    Raises:
        ValueError: as :func:`functions`, or a file is not there.
        ResultsError: a file cannot be read.
    """
    if folder is None:
        return {number: functions(listing(number)) for number in numbers}
    files = {number: file_of(number, folder) for number in numbers}
    if missing := [path for path in files.values() if not path.is_file()]:
        raise ValueError(f"{missing[0]} does not exist; python -m docs.generate.chapters --write {folder} makes it")
    return {number: functions(read_text(path), str(path)) for number, path in files.items()}
