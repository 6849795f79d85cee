"""How a protocol breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.protocols.exploration import Broken


def failing(check: Callable[..., Any], *arguments: Any) -> str | None:
    """In which way a protocol breaks, None if it holds."""
    try:
        check(*arguments)
    except Broken as broken:
        return broken.kind
    return None
