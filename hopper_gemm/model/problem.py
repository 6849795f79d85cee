"""What is to be multiplied: one GEMM problem."""

from __future__ import annotations

from dataclasses import dataclass

DTYPES = ("bf16", "fp16")
"""Element types of the operands and the output; accumulation is always fp32."""

LAYOUTS = ("kk", "mk", "kn", "mn")
"""Contiguous axis of A, then of B. ``kk`` is BLAS's TN: A row-major, B given as its transpose. ``kn`` is NN, both
row-major; ``mk`` is TT, ``mn`` is NT in BLAS's words."""

ELEMENT_BYTES = 2

DATA = ("normal", "uniform", "zeros")
"""What the matrices of a measurement hold: standard-normal numbers, uniform ones in [-1, 1), or zeros. A tensor core's
power follows the bits that flip, and its clock the power, so that figures of one are none of another.
"""


@dataclass(frozen=True)
class GemmProblem:
    """C[m, n] = A[m, k] @ B[k, n], fp32 accumulation, output in the operands' type.

    Args:
        m: rows of A and C.
        n: columns of B and C.
        k: columns of A, rows of B.
        dtype: ``"bf16"`` or ``"fp16"``.
        layouts: the contiguous axis of A, then of B; see :data:`LAYOUTS`.

    Raises:
        ValueError: a size is not a positive integer, or dtype or layouts is none of the known.

    Example:
        >>> GemmProblem(4096, 4096, 4096).flop
        137438953472
    """

    m: int
    n: int
    k: int
    dtype: str = "bf16"
    layouts: str = "kk"

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a positive integer but got {value!r}; give the problem as M N K")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)} but got {self.dtype!r}")
        if self.layouts not in LAYOUTS:
            raise ValueError(
                f"layouts must be one of {', '.join(LAYOUTS)} but got {self.layouts!r}; "
                "kk is A row-major times the transpose of a row-major (n, k) matrix, kn both row-major"
            )

    @property
    def flop(self) -> int:
        """Floating-point operations: a multiply and an add per (m, n, k) triple."""
        return 2 * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """The fewest bytes through device memory: A and B read once, C written once."""
        return ELEMENT_BYTES * (self.m * self.k + self.k * self.n + self.m * self.n)

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"
