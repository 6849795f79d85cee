"""GPUs that are not there: launches by Python, and by both ways in turn."""

from __future__ import annotations

import pytest

from hopper_gemm.serve.background import BACKGROUND
from tests.serve.launcher import Launches


@pytest.fixture(autouse=True)
def all_compiled(monkeypatch):
    """Every kernel is in a store: no process compiles."""
    monkeypatch.setattr(BACKGROUND, "compiles", lambda problem, kernels: False)


@pytest.fixture
def by_python(monkeypatch):
    """A GPU whose launches Python repeats."""
    return Launches(monkeypatch)


@pytest.fixture(params=["python", "extension"])
def launches(monkeypatch, request):
    """A GPU whose launches Python repeats, then one whose launches the extension repeats."""
    native = request.getfixturevalue("extension") if request.param == "extension" else None
    return Launches(monkeypatch, native=native)
