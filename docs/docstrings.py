"""Docstrings for the site: the roles of Sphinx as plain names, an example as code."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:func|class|data|meth|mod|attr):`~?([^`]+)`")


class Plain(griffe.Extension):
    """Rewrite docstrings before they are parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Make a role a name in code, and the section Example the one that the Google style knows."""
        if obj.docstring is not None:
            text = ROLE.sub(r"`\1`", obj.docstring.value)
            text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
            obj.docstring.value = re.sub(r" *# doctest: \+SKIP", "", text)
