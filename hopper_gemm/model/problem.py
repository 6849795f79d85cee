"""One GEMM problem: sizes, element types, layouts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from hopper_gemm.model import hopper

DTYPES = ("bf16", "fp16", "bf16_fp32", "fp16_fp32")
"""Element types: of the operands and the output alike, or of the operands and then of the output. Accumulation is
always fp32; an output of fp32 is what was accumulated, unrounded."""

LAYOUTS = ("kk", "mk", "kn", "mn")
"""Contiguous axis of A, then of B. ``kk`` is BLAS's TN: A row-major, B given as its transpose. ``kn`` is NN, both
row-major; ``mk`` is TT, ``mn`` is NT in BLAS's words."""

ELEMENT_BYTES = 2
"""Bytes of an element of A or B, and of C where it has their type."""

OUT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
"""Bytes of an element of C, by its type."""

DATA = ("normal", "uniform", "zeros")
"""Contents of the matrices of a measurement: standard-normal numbers, uniform numbers in [-1, 1), or zeros. A tensor
core's power follows the bits that flip, and its clock the power: figures of different contents are not comparable.
"""


def shown(value: object) -> str:
    """A value in one short line, for an error."""
    return " ".join(repr(value).split())[:60]


def listed(name: str, given: Any, items: str) -> list[Any]:
    """The items of an argument.

    Raises:
        TypeError: it cannot be iterated, or is a string.
    """
    try:
        iterator = iter(given)
    except TypeError:
        iterator = None
    if iterator is None or isinstance(given, str | bytes):
        raise TypeError(f"{name} must be a list of {items} but is {shown(given)}; give a list")
    return list(iterator)


@dataclass(frozen=True)
class GemmProblem:
    """C[m, n] = A[m, k] @ B[k, n], fp32 accumulation, output in the operands' type or in fp32.

    Args:
        m: rows of A and C.
        n: columns of B and C.
        k: columns of A, rows of B.
        dtype: ``"bf16"`` or ``"fp16"``; ``"bf16_fp32"`` or ``"fp16_fp32"`` with an output of fp32. See :data:`DTYPES`.
        layouts: the contiguous axis of A, then of B; see :data:`LAYOUTS`.
        batch_invariant: True if a row's bits may not depend on m; see :mod:`hopper_gemm.model.rules.invariance`.

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
    batch_invariant: bool = False

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a positive integer but got {shown(value)}; give the problem as M N K")
        if not isinstance(self.dtype, str) or self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)} but got {shown(self.dtype)}")
        if not isinstance(self.batch_invariant, bool):
            raise TypeError(f"batch_invariant must be True or False but got {shown(self.batch_invariant)}; give a bool")
        if not isinstance(self.layouts, str) or self.layouts not in LAYOUTS:
            raise ValueError(
                f"layouts must be one of {', '.join(LAYOUTS)} but got {shown(self.layouts)}; "
                "kk is A row-major times the transpose of a row-major (n, k) matrix, kn both row-major"
            )

    @classmethod
    def of(cls, given: Any, batch_invariant: bool = False) -> GemmProblem:
        """A problem that is given as such, or by its sizes.

        Raises:
            TypeError: neither.
            ValueError: sizes that are no problem.
        """
        if isinstance(given, GemmProblem):
            return given
        if not isinstance(given, tuple | list) or len(given) != 3:
            raise TypeError(
                f"a problem must be (m, n, k) or a hopper_gemm.GemmProblem but is {shown(given)}; give its sizes"
            )
        m, n, k = given
        return cls(m, n, k, batch_invariant=batch_invariant)

    @property
    def flop(self) -> int:
        """Floating-point operations: a multiply and an add per (m, n, k) triple."""
        return 2 * self.m * self.n * self.k

    @cached_property
    def out_bytes(self) -> int:
        """Bytes of an element of C."""
        return OUT_BYTES[types_of(self.dtype)[1]]

    @cached_property
    def bytes(self) -> int:
        """The fewest bytes through device memory: A and B read once, C written once."""
        return ELEMENT_BYTES * (self.m * self.k + self.k * self.n) + self.out_bytes * self.m * self.n

    @cached_property
    def out_of_reach(self) -> str:
        """Names of the matrices, among a, b and c, whose rows TMA cannot reach where each is contiguous: they do not
        start at multiples of 16 bytes. Such an operand is padded first, and threads store such an output.

        Example:
            >>> GemmProblem(3175, 1140, 3696).out_of_reach, GemmProblem(3175, 1140, 3694).out_of_reach
            ('c', 'abc')
        """
        sides = {"m": self.m, "n": self.n, "k": self.k}
        rows = {name: ELEMENT_BYTES * sides[axis] for name, axis in zip("ab", self.layouts, strict=True)}
        rows["c"] = self.out_bytes * self.n
        return "".join(name for name, size in rows.items() if size % hopper.TMA_ALIGN_BYTES)

    @property
    def padded(self) -> str:
        """Names of the operands, among a and b, that are padded first; see :attr:`out_of_reach`."""
        return self.out_of_reach.removesuffix("c")

    def as_dict(self) -> dict[str, Any]:
        """Every field by its name, ready for JSON; ``batch_invariant`` only where it is true."""
        return {name: value for name, value in asdict(self).items() if name != "batch_invariant" or value}

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


def padded_pitch(size: Any) -> Any:
    """Elements from row to row of a padded operand: whole lines of the L2, which a TMA load reads fastest.

    Args:
        size: elements of a row; an integer, or a device value.

    Example:
        >>> padded_pitch(119)
        128
    """
    line = hopper.L2_LINE_BYTES // ELEMENT_BYTES
    return (size + line - 1) // line * line


def types_of(dtype: str) -> tuple[str, str]:
    """Element types of the operands and of the output, of a name of :data:`DTYPES`.

    Example:
        >>> types_of("bf16"), types_of("fp16_fp32")
        (('bf16', 'bf16'), ('fp16', 'fp32'))
    """
    operands, _, out = dtype.partition("_")
    return operands, out or operands
