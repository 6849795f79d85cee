"""Messages on the page of troubleshooting are those that the package raises, word for word."""

from __future__ import annotations

import ast
import re

from tests.conftest import ROOT

PAGE = ROOT / "docs/troubleshooting.md"


def template(node: ast.AST) -> str:
    """Return a string of the source, with ``...`` for each value that stands in it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return re.sub(r"\0(?:\s*\0)*", "...", "".join(template(value) for value in node.values))
    return "\0"


def messages() -> list[str]:
    """Return the first cell of each row of a table whose rows begin with a message."""
    tables = re.findall(r"^\| message \|.*\n\| --- .*\n((?:\|.*\n)+)", PAGE.read_text(), re.MULTILINE)
    return [row.split(" | ")[0].removeprefix("| ") for table in tables for row in table.splitlines()]


def test_each_quoted_message_stands_in_the_source_of_the_package():
    trees = [ast.parse(path.read_text()) for path in (ROOT / "hopper_gemm").rglob("*.py")]
    templates = "\n".join(dict.fromkeys(template(node) for tree in trees for node in ast.walk(tree)))
    quoted = messages()
    assert len(quoted) > 30
    assert [message for message in quoted if message.strip("`") not in templates] == []
    assert all(re.fullmatch("`[^`]+`", message) for message in quoted)
