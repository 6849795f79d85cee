"""Check of a product: every element, against fp32, and the same bits twice."""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot

import torch

REL_ERR_MAX = {torch.bfloat16: 2.5e-3, torch.float16: 4e-4}
"""Largest relative Frobenius error that passes: half again what rounding the output alone gives (1.7e-3, 2.1e-4)."""

UNIT_ROUNDOFF = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}

FP32_REL_ERR, FP32_REL_ERR_PER_K = 1e-6, 5e-9
"""Terms of the largest relative error of an fp32 output: a constant, and a term for each k.

Only the accumulation rounds an fp32 output. wgmma adds 16 products to an accumulator and truncates the sum to 24 bits,
on average by 0.7 * 2^-24 of the sum. The sum after i of t = k / 16 steps is a random walk; the errors, all against its
sign, add up to 0.7 * 2^-24 times the sum of those sums, which deviates by t / sqrt(3) of the last sum: 1.5e-9 k. A
simulation gives 1.3e-9 k at k = 4,096 and 1.5e-9 k at 65,536; twice as much with a truncation every 8 products. The
bound is three times that and a constant; the reference's own error, at most 2e-8 * sqrt(k), lies below it for any k. A
lost stage of s columns costs sqrt(s / k): 16 of 65,536 nearly fifty times the bound. An output rounded to bf16 or fp16
on its way costs 1.7e-3 or 2.1e-4, more than the bound up to k = 300,000 or 40,000.
"""

ELEMENT_SLACK, ELEMENT_SLACK_PER_K = 1e-4, 1e-8
"""Slack of an element beside rounding, in units of sqrt(k), its standard deviation: fp32 sums in another order, and the
tensor cores' truncation as they accumulate. On an NVIDIA H200 the largest of 16.8 million elements was 2e-4 at
k = 65,536, less than a third of the slack there. A wrong element is off by about 1.
"""

ROUNDED = {torch.bfloat16: 1.72e-3, torch.float16: 2.2e-4, torch.float32: 0.0}
"""Relative Frobenius error of the output's rounding alone."""

FAST_ERROR, PROMOTED_ERROR = 4e-5, {128: 2.6e-4, 256: 4.2e-4, 512: 7e-4}
"""Errors of sums of FP8 products alone: of fast ones by the root of k, of promoted ones by the interval. Twice what a
simulation of 13 bits gives: 1.3e-3 at k = 4096 and 3.1e-3 at 16384; 1.3e-4, 2.1e-4 and 3.5e-4."""

FEW, OF_FEW = 10_000, 1.5
"""Elements of an output that is small, and by what its error may be larger, since fewer of them make up its mean."""

FP8_ELEMENT_ERRORS = 10
"""Largest error of an element of FP8 products beside rounding, in relative errors of the output times the output's mean
size and the element's own: what tensor cores cut off grows with the sum. The largest of 3 million simulated sums of 13
bits was 18 times the relative error for the mean size alone, 7.5 times with both."""


@dataclass(frozen=True)
class Correctness:
    """The result of a check."""

    # relative Frobenius error against fp32; NaN if elements were not written. Against a product of zeros it is 0 if all
    # elements are zero, else infinite.
    rel_err: float
    wrong: int  # number of elements further from the reference than rounding explains
    reason: str | None  # one line on what is wrong, or None

    @property
    def ok(self) -> bool:
        return self.reason is None


def poison(out: torch.Tensor) -> None:
    """Fill with NaN, so that an element that is never written shows."""
    out.fill_(float("nan"))


def rel_err_max(dtype: torch.dtype, k: int, promote: int | None = None) -> float:
    """Return the largest relative Frobenius error that passes, by the output's type and the product's depth; of FP8 by
    ``promote``, as of :func:`check`, for an output that is not small."""
    if promote is not None:
        return hypot(ROUNDED[dtype], PROMOTED_ERROR[promote] if promote else FAST_ERROR * k**0.5)
    return FP32_REL_ERR + FP32_REL_ERR_PER_K * k if dtype == torch.float32 else REL_ERR_MAX[dtype]


def check(out: torch.Tensor, reference: torch.Tensor, k: int, promote: int | None = None) -> Correctness:
    """Compare an output with its fp32 reference, as a whole and element by element.

    The relative Frobenius error cannot see a few wrong elements among millions. The element-wise bound can: a rounding
    to the output's type (for fp32, the truncation of a sum that never changes its sign) plus the effect of another
    summation order in fp32.

    Args:
        out: (m, n), the kernel's output: bf16, fp16 or fp32.
        reference: (m, n), fp32.
        k: depth of the product of matrices whose elements are of the size of standard-normal ones, or smaller; those of
            FP8 may be of any size.
        promote: of FP8 products, elements of k from one promotion of the sums to the next, or 0; else None.
    """
    error, size = torch.sub(out, reference), torch.linalg.vector_norm(reference)
    most = rel_err_max(out.dtype, k, promote)
    if promote is None:
        relative, slack = UNIT_ROUNDOFF.get(out.dtype, most), (ELEMENT_SLACK + ELEMENT_SLACK_PER_K * k) * k**0.5
    else:
        most *= OF_FEW if out.numel() < FEW else 1.0
        relative = UNIT_ROUNDOFF.get(out.dtype, 0.0) + FP8_ELEMENT_ERRORS * most
        slack = FP8_ELEMENT_ERRORS * most * float(size) / reference.numel() ** 0.5
    norms = torch.linalg.vector_norm(error), size
    beyond = error.abs_().sub_(reference.abs(), alpha=relative)
    off, size, worst = torch.stack((*norms, beyond.amax())).tolist()  # NaN wherever an element is
    rel_err = off / size if size else off * float("inf") if off else 0.0
    if rel_err <= most and worst <= slack:
        return Correctness(rel_err, 0, None)
    unwritten, wrong = int(torch.isnan(out).sum()), int((beyond > slack).sum())
    if unwritten:
        reason = f"{unwritten} of {out.numel()} elements were not written"
    elif wrong:
        reason = f"{wrong} of {out.numel()} elements are off by more than rounding, relative error {rel_err:.2e}"
    else:
        reason = f"relative error {rel_err:.2e} exceeds {most:.1e}"
    return Correctness(rel_err, wrong, reason)


def same_bits(out: torch.Tensor, again: torch.Tensor) -> bool:
    """Return True if two outputs of one type hold the same bits."""
    return torch.equal(out.view(torch.int16), again.view(torch.int16))
