"""Shared by all tests: which of them need a Hopper GPU, and a folder of compiled kernels that lasts for a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopper_gemm.measure.device import NoHopperError, find_hopper

ROOT = Path(__file__).parents[1]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """GPU tests skip themselves, with the reason, where there is no Hopper GPU."""
    try:
        find_hopper()
    except NoHopperError as error:
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason=str(error)))


@pytest.fixture(scope="session")
def kernel_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of its own, so that nothing compiled by an earlier version is taken for this one."""
    return tmp_path_factory.mktemp("kernels")
