"""A call that is refused, for tests of several modules."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def refused_in_one_line(call: Callable[[], object], error: type[Exception], message: str) -> None:
    """Assert that a call raises an error whose message matches a pattern and is one line."""
    with pytest.raises(error, match=message) as raised:
        call()
    assert "\n" not in str(raised.value)
