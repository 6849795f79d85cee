"""Docstrings for the site: roles of Sphinx as plain names, an example as code, each argument by itself."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:func|class|data|meth|mod|attr):`~?([^`]+)`")

ARGUMENTS = re.compile(r"^Args:\n(?:(?: +.*)?(?:\n|$))+", re.MULTILINE)
JOINT = re.compile(r"^ {4}(\w+(?:, \w+)+)(:.*\n?(?:^ {5}.*\n?)*)", re.MULTILINE)
"""The section of arguments; within it arguments that share a text."""


class Plain(griffe.Extension):
    """Rewrite docstrings before they are parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Make a role a name in code, and the section Example the one that the Google style knows."""
        if obj.docstring is not None:
            text = ROLE.sub(r"`\1`", obj.docstring.value)
            text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
            text = ARGUMENTS.sub(lambda section: JOINT.sub(apart, section[0]), text)
            obj.docstring.value = re.sub(r" *# doctest: \+SKIP", "", text)


def apart(joint: re.Match[str]) -> str:
    """The text of some arguments once for each, since the parser looks each name up in the signature."""
    text = joint[2] if joint[2].endswith("\n") else f"{joint[2]}\n"
    return "".join(f"    {name}{text}" for name in joint[1].split(", "))
