"""Layers to check: kinds of kernel, finishes, and the float64 result, for tests with and without a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import ACTIVATIONS, Epilogue
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.problem import GemmProblem, types_of
from hopper_gemm.serve.reference import activated

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 1e-5}
SLACK, TRUNCATION = 5e-5, 1e-5
"""What an element may be off by beside the rounding of the output. The first is for fp32 sums in another order and for
the GPU's exp2 and reciprocal, where elements are of size 2. The second is for the tensor cores, which truncate each
partial sum to 24 bits: 2^-24 for each of k / 16 steps, 4e-6 at k = 1032, as a share of the root mean square of the
elements, which is what partial sums measure."""

KINDS = {
    "cooperative": GemmConfig(tile_m=256, tile_n=128),
    "wide chunk": GemmConfig(256, 176, cluster_n=2, stagger=0, epi_n=88, reverse_k=True, pace=8, scheduler="dynamic"),
    "wide": GemmConfig(128, 256, cluster_m=2),
    "three consumers": GemmConfig(192, 128, consumers=3),
    "split n": GemmConfig(64, 256, consumers=2, split="n"),
    "narrow": GemmConfig(64, 24),
    "pingpong": GemmConfig(128, 128, schedule="pingpong"),
    "swapped": GemmConfig(256, 128, swap_ab=True),
    "swapped narrow": GemmConfig(128, 16, swap_ab=True, cluster_m=2),
    "ring": GemmConfig(128, 128, staging="ring"),
    "cluster": GemmConfig(128, 128, split_k=4),
    "swapped cluster": GemmConfig(128, 64, split_k=2, swap_ab=True),
    "workspace": GemmConfig(128, 128, split_k=3, reduction="workspace", stagger=0),
    "two an SM": GemmConfig(64, 64, ctas_per_sm=2, pdl=True),
}
"""Kinds of kernel."""

GATED = Epilogue(activation="silu", gated=True)

FINISHES = [
    *(Epilogue(bias=True, activation=one) for one in ACTIVATIONS),
    Epilogue(bias=True),
    Epilogue(residual=True),
    Epilogue(scale=True, activation="relu"),
    Epilogue(scale=True, bias=True, activation="gelu", residual=True),
]
"""Finishes of every step, but gated."""

SIZES = [(300, 528, 1000), (1, 1040, 264), (776, 272, 2056)]
"""Ragged, one row, and uneven in everything."""


@dataclass(frozen=True)
class Case:
    """A kernel with a finish on a problem."""

    kind: str
    finish: Epilogue
    problem: GemmProblem

    @property
    def config(self) -> GemmConfig:
        """The kernel's config."""
        return KINDS[self.kind]

    @property
    def out(self) -> torch.dtype:
        """Type of the output."""
        return TYPES[types_of(self.problem.dtype)[1]]

    def __str__(self) -> str:
        return f"{self.kind}, {self.finish}, {self.problem} {self.problem.dtype} {self.problem.layouts}"


def legal(cases):
    """The cases that the rules allow."""
    return [case for case in cases if is_legal(case.config, case.problem, case.finish)]


def cases() -> list[Case]:
    """Every kind with every finish on one problem; every kind with all steps, types and further problems."""
    first = GemmProblem(*SIZES[0])
    found = [Case(*one, first) for one in product(KINDS, [*FINISHES, GATED])]
    further = [(GemmProblem(*size), FINISHES[-1]) for size in SIZES[1:]]
    further += [(GemmProblem(*SIZES[0], dtype), FINISHES[-1]) for dtype in ("fp16", "bf16_fp32", "fp16_fp32")]
    further += [(GemmProblem(*SIZES[2], layouts="mn"), FINISHES[0])]
    further += [(GemmProblem(*size, dtype), GATED) for size in SIZES[1:] for dtype in ("bf16", "fp16")]
    return legal(found + [Case(kind, finish, problem) for kind, (problem, finish) in product(KINDS, further)])


@dataclass(frozen=True)
class Layer:
    """The tensors of a case, and its float64 result."""

    x: torch.Tensor
    w: torch.Tensor
    bias: torch.Tensor | None
    residual: torch.Tensor | None
    scale: float | None
    exact: torch.Tensor


def layer_of(case: Case, device: str, seed: int = 0) -> Layer:
    """Random tensors of a case; what is before the activation has a deviation of about 2."""
    generator, (kind, out) = torch.Generator(device).manual_seed(seed), types_of(case.problem.dtype)
    m, n, k = case.problem.m, case.problem.n, case.problem.k

    def normal(*shape, by=TYPES[kind]):
        return torch.randn(*shape, device=device, generator=generator).to(by)

    x = normal(m, k) if case.problem.layouts[0] == "k" else normal(k, m).t()
    w = (normal(n, k) if case.problem.layouts[1] == "k" else normal(k, n).t()) * (2 / k**0.5)
    finish, columns = case.finish, n // 2 if case.finish.gated else n
    bias = normal(n) if finish.bias else None
    residual = normal(m, columns + 16, by=TYPES[out])[:, 8 : columns + 8] if finish.residual else None
    scale = 0.75 if finish.scale else None
    z = x.double() @ w.double().t() * (1.0 if scale is None else scale)
    if finish.gated:
        z = activated(z[:, :columns], finish.activation) * z[:, columns:]
    else:
        z = activated(z if bias is None else z + bias.double(), finish.activation)
    return Layer(x, w, bias, residual, scale, z if residual is None else z + residual.double())


def excess(out: torch.Tensor, exact: torch.Tensor) -> float:
    """How far the worst element is from the exact one, as a multiple of what is allowed; NaN if one is not a number."""
    slack = SLACK * exact.abs().clamp(1) + TRUNCATION * exact.square().mean().sqrt()
    allowed = exact.abs() * ROUNDING[out.dtype] * 1.01 + slack
    return float(((out.double() - exact).abs() / allowed).max())


def with_gradients(ours: Any, exact: Any, given: Iterable[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Our result and its gradients for a drawn incoming one, each with that of a function of float64."""
    given = [tensor.detach().requires_grad_() for tensor in given]
    wide = [tensor.detach().double().requires_grad_() for tensor in given]
    out, right = ours(*given), exact(*wide)
    incoming = torch.randn_like(out)
    out.backward(incoming)
    right.backward(incoming.double())
    gradients = ((one.grad, other.grad) for one, other in zip(given, wide, strict=True))
    return [(out.detach(), right.detach()), *gradients]
