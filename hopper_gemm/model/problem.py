"""One GEMM problem: sizes, element types, layouts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from hopper_gemm.model import hopper

DTYPES = ("bf16", "fp16", "bf16_fp32", "fp16_fp32")
"""Element types: of the operands and the output alike, or of the operands and then of the output. Accumulation is
always fp32; an output of fp32 is what was accumulated, unrounded."""

FP8_DTYPES = ("e4m3_bf16", "e4m3_fp16", "e4m3_fp32", "e5m2_bf16", "e5m2_fp16", "e5m2_fp32")
"""Element types of products of FP8, likewise; :func:`hopper_gemm.scaled_mm` multiplies these alone."""

LAYOUTS = ("kk", "mk", "kn", "mn")
"""Contiguous axis of A, then of B. ``kk`` is BLAS's TN: A row-major, B given as its transpose. ``kn`` is NN, both
row-major; ``mk`` is TT, ``mn`` is NT in BLAS's words."""

ELEMENT_BYTES = 2  # bytes of a 16-bit element; the kernel counts k in these: a wgmma k-block is 32 bytes of any type
OPERAND_BYTES = {"bf16": 2, "fp16": 2, "e4m3": 1, "e5m2": 1}  # bytes of an element of A or B, by its type
OUT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}  # bytes of an element of C, by its type
BLOCK = 128  # elements of k, and columns of B, that share a scale of blocks
PROMOTED = (0, 128, 256, 512)  # elements of k from one promotion of an FP8 product's sums to the next; 0 for none

DATA = ("normal", "uniform", "zeros")
"""Contents of the matrices of a measurement: standard-normal numbers, uniform numbers in [-1, 1), or zeros. A tensor
core's power follows the bits that flip, and its clock the power: figures of different contents are not comparable."""


def shown(value: object) -> str:
    """A value in one short line, for an error."""
    return " ".join(repr(value).split())[:60]


def listed(name: str, given: Any, items: str) -> list[Any]:
    """The items of an argument; a TypeError if it cannot be iterated, or is a string."""
    try:
        iterator = iter(given)
    except TypeError:
        iterator = None
    if iterator is None or isinstance(given, str | bytes):
        raise TypeError(f"{name} must be a list of {items} but is {shown(given)}; give a list")
    return list(iterator)


@dataclass(frozen=True)
class GemmProblem:
    """C[m, n] = A[m, k] @ B[k, n], fp32 accumulation, output in the operands' type or in fp32; of FP8 operands in bf16,
    fp16 or fp32.

    Args:
        m: rows of A and C.
        n: columns of B and C.
        k: columns of A, rows of B.
        dtype: ``"bf16"`` or ``"fp16"``; ``"bf16_fp32"`` or ``"fp16_fp32"`` with an output of fp32. See :data:`DTYPES`
            and :data:`FP8_DTYPES`.
        layouts: the contiguous axis of A, then of B; see :data:`LAYOUTS`.
        batch_invariant: True if a row's bits may not depend on m; see :mod:`hopper_gemm.model.rules.invariance`.
        promote: elements of k after which sums of FP8 products move to fp32 registers, of :data:`PROMOTED`. The tensor
            cores add FP8 products to a sum of about 13 bits.

    Raises:
        ValueError: a size is not a positive integer, or dtype, layouts or promote is none of the known.

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
    promote: int = 0

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a positive integer but got {shown(value)}; give the problem as M N K")
        types = *DTYPES, *FP8_DTYPES
        if not isinstance(self.dtype, str) or self.dtype not in types:
            raise ValueError(f"dtype must be one of {', '.join(types)} but got {shown(self.dtype)}")
        if not isinstance(self.batch_invariant, bool):
            raise TypeError(f"batch_invariant must be True or False but got {shown(self.batch_invariant)}; give a bool")
        if not isinstance(self.layouts, str) or self.layouts not in LAYOUTS:
            raise ValueError(
                f"layouts must be one of {', '.join(LAYOUTS)} but got {shown(self.layouts)}; "
                "kk is A row-major times the transpose of a row-major (n, k) matrix, kn both row-major"
            )
        if type(self.promote) is not int or self.promote not in PROMOTED:
            raise ValueError(f"promote must be one of {', '.join(map(str, PROMOTED))} but got {shown(self.promote)}")
        if self.promote and not self.is_fp8:
            raise ValueError(f"promote must be 0 for {self.dtype} but got {self.promote}; only sums of FP8 need it")

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
    def is_fp8(self) -> bool:
        """True if the operands are of FP8."""
        return OPERAND_BYTES[types_of(self.dtype)[0]] == 1

    @cached_property
    def in_words(self) -> GemmProblem:
        """The 16-bit problem that takes the same clocks and bytes: of FP8 operands half of k, of others the problem
        itself.

        Example:
            >>> GemmProblem(64, 7168, 2048, "e4m3_bf16").in_words
            GemmProblem(m=64, n=7168, k=1024, dtype='bf16', layouts='kk', batch_invariant=False, promote=0)
        """
        if not self.is_fp8:
            return self
        return replace(self, k=-(-self.k // 2), dtype="bf16" if self.out_bytes == 2 else "bf16_fp32", promote=0)

    @cached_property
    def out_bytes(self) -> int:
        """Bytes of an element of C."""
        return OUT_BYTES[types_of(self.dtype)[1]]

    @cached_property
    def bytes(self) -> int:
        """The fewest bytes through device memory: A and B read once, C written once."""
        operand = OPERAND_BYTES[types_of(self.dtype)[0]]
        return operand * (self.m * self.k + self.k * self.n) + self.out_bytes * self.m * self.n

    @cached_property
    def out_of_reach(self) -> str:
        """Names of the matrices, among a, b and c, whose rows TMA cannot reach where each is contiguous: they do not
        start at multiples of 16 bytes. Such an operand is padded first, and threads store such an output.

        Example:
            >>> GemmProblem(3175, 1140, 3696).out_of_reach, GemmProblem(3175, 1140, 3694).out_of_reach
            ('c', 'abc')
        """
        sides, operand = {"m": self.m, "n": self.n, "k": self.k}, OPERAND_BYTES[types_of(self.dtype)[0]]
        rows = {name: operand * sides[axis] for name, axis in zip("ab", self.layouts, strict=True)}
        rows["c"] = self.out_bytes * self.n
        return "".join(name for name, size in rows.items() if size % hopper.TMA_ALIGN_BYTES)

    @property
    def padded(self) -> str:
        """Names of the operands, among a and b, that are padded first; see :attr:`out_of_reach`."""
        return self.out_of_reach.removesuffix("c")

    def as_dict(self) -> dict[str, Any]:
        """Every field by its name, ready for JSON; ``batch_invariant`` and ``promote`` only where they are set."""
        seldom = "batch_invariant", "promote"
        return {name: value for name, value in asdict(self).items() if name not in seldom or value}

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


def padded_pitch(size: Any) -> Any:
    """Elements from row to row of a padded operand: whole lines of the L2, which a TMA load reads fastest. The size of
    a row is an integer, or a device value.

    Example:
        >>> padded_pitch(119)
        128
    """
    line = hopper.L2_LINE_BYTES // ELEMENT_BYTES
    return (size + line - 1) // line * line


def types_of(dtype: str) -> tuple[str, str]:
    """Element types of the operands and of the output, of a name of :data:`DTYPES` or :data:`FP8_DTYPES`.

    Example:
        >>> types_of("bf16"), types_of("fp16_fp32"), types_of("e4m3_bf16")
        (('bf16', 'bf16'), ('fp16', 'fp32'), ('e4m3', 'bf16'))
    """
    operands, _, out = dtype.partition("_")
    return operands, out or operands
