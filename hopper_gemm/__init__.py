"""Fast matrix multiplication on NVIDIA Hopper GPUs, and knowing why it is fast.

>>> import torch, hopper_gemm                                     # doctest: +SKIP
>>> c = hopper_gemm.matmul(a, b)                                  # a: (m, k), b: (k, n) with k contiguous
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.problem import GemmProblem

if TYPE_CHECKING:
    from hopper_gemm.drop_in import matmul

__all__ = ["GemmConfig", "GemmProblem", "matmul"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """``matmul`` brings torch and the DSL along, so it is imported when first asked for."""
    if name == "matmul":
        from hopper_gemm.drop_in import matmul

        globals()["matmul"] = matmul
        return matmul
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
