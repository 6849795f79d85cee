"""torch's own samples on a GPU: our kernel, which may not fall back, beside torch's functions."""

from __future__ import annotations

import pytest

from hopper_gemm.serve.checks import DTYPES
from tests.serve.opinfo import ENTRIES, judge, judge_errors
from tests.serve.test_opinfo import IDS, settle

pytestmark = pytest.mark.gpu


@pytest.mark.timeout(600)
@pytest.mark.parametrize("entry", ENTRIES, ids=IDS)
def test_a_function_does_on_torch_s_samples_what_torch_does(entry, capsys):
    """In every way; types that the kernel lacks are counted apart."""
    tally = judge(entry, "cuda")
    settle(tally, capsys)
    assert 0 < sum(tally.fell_back.values()) < sum(tally.ran.values())


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPES.values())
def test_what_torch_refuses_is_an_error_that_torch_s_class_catches(dtype, capsys):
    settle(judge_errors("cuda", dtype), capsys)
