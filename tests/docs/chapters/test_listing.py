"""A listing is read as it was printed, and says what is wrong with a changed one."""

from __future__ import annotations

import ast

import pytest

from docs.generate.chapters.listing import functions, listing, read, write
from docs.generate.pages.chapters import CHAPTERS

pytestmark = pytest.mark.results
EIGHT = range(1, len(CHAPTERS) + 1)


def test_what_is_read_from_a_listing_is_what_it_prints():
    for number in EIGHT:
        text = listing(number)
        found = functions(text)
        assert len(found) == text.count("\ndef ")
        assert all(f"# {one.owner} in {one.file}\ndef {one.code.name}(" in text for one in found)
        printed = ast.parse(text).body
        assert [ast.unparse(one.code) for one in found] == [ast.unparse(one) for one in printed]


def test_files_of_listings_give_the_printed_code_and_are_not_overwritten(tmp_path):
    write(EIGHT, tmp_path / "code")
    unparsed = [
        {number: [ast.unparse(one.code) for one in found] for number, found in read(EIGHT, folder).items()}
        for folder in (tmp_path / "code", None)
    ]
    assert unparsed[0] == unparsed[1]
    with pytest.raises(ValueError, match="exists and may have been changed"):
        write([8], tmp_path / "code")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("def acquire(", "def acquire", r"1-serial.py, line \d+: "),
        ("# Ring in kernel/pipeline.py\ndef acquire", "def acquire", "must be followed by one function"),
        ("# Ring in", "# the ring:", "must be followed by one function"),
    ],
)
def test_a_listing_that_cannot_be_read_is_named_with_the_line(tmp_path, old, new, message):
    (path,) = write([1], tmp_path)
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ValueError, match=message):
        read([1], tmp_path)


def test_a_syntax_error_is_named_by_the_line_of_the_file(tmp_path):
    (path,) = write([1], tmp_path)
    lines = path.read_text().splitlines()
    at = next(number for number, line in enumerate(lines, 1) if "def wait(" in line)
    lines[at - 1] = "def wait(:"
    path.write_text("\n".join(lines))
    with pytest.raises(ValueError, match=f"line {at}: "):
        read([1], tmp_path)
