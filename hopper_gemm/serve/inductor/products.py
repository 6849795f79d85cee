"""Our products among Inductor's choices, by interfaces that torch does not document.

* ``mm`` (torch 2.9 on): ``torch._inductor.config.external_matmul``, beside ATen and Inductor's templates.
* ``addmm`` (torch 2.12 on): ``register_custom_op_autotuning``, beside ATen and Inductor's own lowering.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from hopper_gemm.model import hopper
from hopper_gemm.serve.checks import DTYPES
from hopper_gemm.serve.fallback import GAIN
from hopper_gemm.serve.matmul import matmul
from hopper_gemm.serve.ops import linear_op, mm

ADDMM = torch.ops.aten.addmm.default

_own: dict[Any, Callable[..., Any]] = {}
"""Our lowering of addmm while it is registered."""


def hopper_gemm_mm(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """A product as Inductor calls an external one; Inductor keeps functions by name."""
    matmul(a, b, out=out)


def hopper_gemm_addmm(
    input: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    """``torch.addmm`` by our operators: a bias, and no factor, in the epilogue; else added to the rounded product."""
    m, n = mat1.shape[0], mat2.shape[1]
    if alpha == beta == 1 and input.dtype == mat1.dtype:
        if input.dim() == 1 and input.shape[0] == n:
            return linear_op(mat1, mat2.t(), input)
        if input.dim() == 2 and input.shape == (m, n) and input.stride() == (0, 1):
            return linear_op(mat1, mat2.t(), input[0])
    return alpha * mm(mat1, mat2) + beta * input


def offer() -> None:
    """Offer our products, from the next compilation on; a RuntimeError where this torch has no such interface."""
    try:
        from torch._inductor import config
        from torch._inductor.select_algorithm import add_feedback_saver  # noqa: F401

        external = config.external_matmul
    except (ImportError, AttributeError):
        lacks = f"Inductor of torch {torch.__version__} takes no external product"
        raise RuntimeError(f"{lacks}; use torch 2.9 or later") from None
    if hopper_gemm_mm not in external:
        config.external_matmul = [*external, hopper_gemm_mm]  # a new list: the old one is the default
    _handicap()
    _register_addmm()


def withdraw() -> None:
    """Withdraw our products; compiled graphs stay."""
    from torch._inductor import config

    config.external_matmul = [product for product in config.external_matmul if product is not hopper_gemm_mm]
    if ADDMM in _own:
        from torch._inductor.lowering import user_lowerings

        if user_lowerings.get(ADDMM) is _own.pop(ADDMM):
            del user_lowerings[ADDMM]


@cache
def _handicap() -> None:
    """Let our time count 2 % more, before Inductor takes the shortest. It concerns our choice alone, and stays."""
    from torch._inductor.select_algorithm import add_feedback_saver

    def longer(timings: dict[Any, float], *rest: Any) -> None:
        for choice in timings:
            if getattr(choice, "name", "") == hopper_gemm_mm.__name__:
                timings[choice] *= GAIN

    add_feedback_saver(longer)


def _register_addmm() -> None:
    try:
        from torch._inductor.kernel.custom_op import CustomOpConfig, register_custom_op_autotuning
        from torch._inductor.lowering import user_lowerings
    except ImportError:  # before 2.10
        return
    if ADDMM in user_lowerings:  # ours, or another's
        return

    def configs(tensors: dict[str, torch.Tensor]) -> list[Any]:
        """Inductor's own lowering, and ours, of a product that the kernel can run."""
        return [CustomOpConfig(), CustomOpConfig(hopper_gemm_addmm)] if able(tensors["mat1"], tensors["mat2"]) else []

    try:
        register_custom_op_autotuning(ADDMM, config_generator=configs, min_speedup_threshold=GAIN)
    except TypeError:  # before 2.12: for operators of custom_op alone
        return
    _own[ADDMM] = user_lowerings[ADDMM]


def able(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return True if the kernel multiplies operands of such types on such a device; they may be fake."""
    fit = a.dtype == b.dtype and a.dtype in DTYPES and a.device.type == "cuda"
    return fit and torch.cuda.get_device_capability(a.device) == hopper.COMPUTE_CAPABILITY
