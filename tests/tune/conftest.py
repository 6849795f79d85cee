"""Shared by the tests of tuning: what each of hundreds of studies would ask of the machine is asked once."""

from __future__ import annotations

from functools import cache

import pytest

from hopper_gemm.tune.study import provenance


@pytest.fixture(scope="session", autouse=True)
def _one_commit():
    """Ask git once for the revision of this checkout, which it tells in a tenth of a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provenance, "commit", cache(provenance.commit))
        yield
