"""Tensors that the kernel cannot take: torch's result, or an error that torch's class catches; one line where torch may
not run them."""

from __future__ import annotations

import pytest
import torch

import hopper_gemm
from hopper_gemm.serve.checks import UnsupportedError
from tests.serve.launcher import Launches

linear = torch.nn.functional.linear


PRODUCTS = torch.mm, torch.addmm, torch.matmul, torch.Tensor.matmul, torch.Tensor.mT.__get__, torch.Tensor.t


class KnowsLinear(torch.Tensor):
    """A weight that only torch.nn.functional.linear multiplies, as quantized ones are."""

    @classmethod
    def __torch_function__(cls, function, types, given=(), named=None):
        if function is linear:
            plain = [one.as_subclass(torch.Tensor) if isinstance(one, cls) else one for one in given]
            return linear(*plain, **(named or {}))
        if function in PRODUCTS:
            raise NotImplementedError(function)
        return super().__torch_function__(function, types, given, named or {})


X, W, ROWS = torch.randn(4, 8), torch.randn(6, 8), [torch.randn(3, 8), torch.randn(2, 8)]

BY_TORCH = {
    "no rows": lambda: (torch.randn(0, 8), W),
    "no columns": lambda: (X, torch.randn(0, 8)),
    "no depth": lambda: (torch.randn(4, 0), torch.randn(6, 0)),
    "one axis": lambda: (X[0], W),
    "coo": lambda: (X.to_sparse(), W),
    "csr": lambda: (X.to_sparse_csr(), W),
    "a csr weight": lambda: (X, W.to_sparse_csr()),
    "a csc weight": lambda: (X, W.to_sparse_csc()),
    "a bsr weight": lambda: (X, W.to_sparse_bsr((2, 2))),
    "nested": lambda: (torch.nested.nested_tensor(ROWS), W),
    "jagged": lambda: (torch.nested.nested_tensor(ROWS, layout=torch.jagged), W),
    "a weight that knows linear alone": lambda: (X, W.as_subclass(KnowsLinear)),
}


def dense(tensor):
    parts = tensor.unbind() if tensor.is_nested else [tensor]
    return [one.as_subclass(torch.Tensor) if one.layout == torch.strided else one.to_dense() for one in parts]


@pytest.mark.parametrize("stand_in", [False, True], ids=["a CPU", "a Hopper GPU"])
@pytest.mark.parametrize("case", BY_TORCH)
@pytest.mark.filterwarnings("ignore")
def test_a_layer_of_them_is_torchs(monkeypatch, case, stand_in):
    if stand_in:
        Launches(monkeypatch)
    x, w = BY_TORCH[case]()
    pairs = list(zip(dense(hopper_gemm.linear(x, w)), dense(linear(x, w)), strict=True))
    assert pairs
    assert all(torch.allclose(found, right, atol=1e-5) and found.shape == right.shape for found, right in pairs)


@pytest.mark.parametrize("case", BY_TORCH)
@pytest.mark.filterwarnings("ignore")
def test_where_torch_may_not_run_them_the_error_is_one_line(case):
    with hopper_gemm.fallback("never"), pytest.raises(UnsupportedError) as caught:
        hopper_gemm.linear(*BY_TORCH[case]())
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function", [linear, hopper_gemm.linear])
def test_a_parameter_of_a_lazy_layer_is_refused_as_by_torch(function):
    with pytest.raises(ValueError):
        function(X, torch.nn.LazyLinear(6).weight)
