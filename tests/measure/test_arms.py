"""cuBLAS is asked for the product in the type in which ours is measured."""

from __future__ import annotations

import pytest
import torch

from hopper_gemm.measure.arms import cublas_launch
from hopper_gemm.measure.workload import Operands


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wide", [False, True], ids=["same", "fp32"])
def test_torch_takes_the_call_for_either_output(dtype, wide):
    """On matrices without memory: torch checks types and shapes of them as of any."""
    a, b = torch.empty(24, 16, dtype=dtype, device="meta"), torch.empty(40, 16, dtype=dtype, device="meta")
    out = torch.empty(24, 40, dtype=torch.float32 if wide else dtype, device="meta")
    cublas_launch(Operands(a, b, out, out))


def test_only_another_type_is_named(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "mm", lambda a, b, **options: asked.append(options))
    a, b, same, wide = torch.ones(2, 2), torch.ones(2, 2), torch.ones(2, 2), torch.ones(2, 2, dtype=torch.float64)
    cublas_launch(Operands(a, b, same, same))
    cublas_launch(Operands(a, b, wide, wide))
    assert [set(options) for options in asked] == [{"out"}, {"out", "out_dtype"}]
    assert asked[1]["out_dtype"] == torch.float64
