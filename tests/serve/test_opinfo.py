"""Our functions on torch's own samples: what torch's functions return, raise, differentiate and trace on them."""

from __future__ import annotations

import pytest

from hopper_gemm.serve import reference
from hopper_gemm.serve.checks import DTYPES
from tests.conftest import ROOT
from tests.serve.launcher import Launches
from tests.serve.opinfo import DIFFERENCES, ENTRIES, WAYS, judge, judge_errors

IDS = [entry.name for entry in ENTRIES]


@pytest.fixture
def hopper(monkeypatch):
    """The CPU as a Hopper GPU."""
    monkeypatch.setattr(reference, "check_device", lambda device: None, raising=False)
    return Launches(monkeypatch)


def settle(tally, capsys):
    """Print what was counted; fail on any difference that is not meant."""
    with capsys.disabled():
        print(f"\n    {tally}")
    assert tally.failures == []
    assert sum(tally.ran.values()) > 0


@pytest.mark.parametrize("entry", ENTRIES, ids=IDS)
def test_a_function_does_on_torch_s_samples_what_torch_does(entry, hopper, capsys):
    """In every way, by the kernel where it has the type."""
    tally = judge(entry, "cpu")
    settle(tally, capsys)
    assert hopper.made or entry.name == "bmm", "that is its operator, which has a reference on a CPU"
    assert set(tally.ran) == set(WAYS)
    assert 0 < sum(tally.fell_back.values()) < sum(tally.ran.values())


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPES.values())
def test_what_torch_refuses_is_an_error_that_torch_s_class_catches(dtype, hopper, capsys):
    tally = judge_errors("cpu", dtype)
    settle(tally, capsys)
    assert tally.samples["refused"] >= 20


def test_the_page_prints_every_difference_that_is_meant():
    page = (ROOT / "docs/works-with.md").read_text()
    assert [meant.what for meant in DIFFERENCES if f"{meant.what}: {meant.reason}" not in page] == []
