"""Problems of several matrices that one launch multiplies: groups of rows with a matrix of B each, and batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopper_gemm.model.problem import OPERAND_BYTES, GemmProblem, shown, types_of

if TYPE_CHECKING:
    from hopper_gemm.model.kernel import Kernel

GROUPINGS = ("rows", "batch", "depth", "masked", "masked_depth")
"""``rows``: rows of A follow one another in groups, which end at offsets on the device. ``batch``: A too is a matrix
for each group, all of one size. ``depth``: groups divide k at offsets on the device, and each has a C of its own.
``masked`` and ``masked_depth``: groups begin at equal distances, in rows or along k; counts on the device end them."""

ROWS_MOST = 1 << 24  # more rows than a product of groups has, counted over all groups


@dataclass(frozen=True)
class GroupedProblem(GemmProblem):
    """C[rows of g] = A[rows of g] @ B[g] for every group g; C[g] = A[:, k of g] @ B[k of g] of groups along k. How much
    a group has is data, and no part of it. m counts the rows of all groups together, of groups along k those of each; n
    and k are of each group, but k of groups along k is of all together.

    Raises:
        ValueError: as of :class:`GemmProblem`; no groups, or an m or k that they must divide and do not.

    Example:
        >>> GroupedProblem(32768, 4096, 7168, groups=8).rows
        4096
    """

    groups: int = 1
    grouping: str = "rows"  # of GROUPINGS

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.groups) is not int or self.groups < 1:
            raise ValueError(f"groups must be a positive integer but got {shown(self.groups)}; give their number")
        if self.grouping not in GROUPINGS:
            raise ValueError(f"grouping must be one of {', '.join(GROUPINGS)} but got {shown(self.grouping)}")
        for grouping, side in (("batch", "m"), ("masked", "m"), ("masked_depth", "k")):
            if self.grouping == grouping and (size := getattr(self, side)) % self.groups:
                raise ValueError(f"{side} must be a multiple of groups of {grouping} but got {size} of {self.groups}")
        if self.grouping in ("rows", "masked") and self.m >= ROWS_MOST:
            raise ValueError(f"m must be below {ROWS_MOST} in groups but got {self.m}; multiply it in parts")
        if self.is_fp8 and self.grouping not in ("rows", "masked"):
            raise ValueError(f"groups of {self.grouping} must have operands of 16 bits but got {self.dtype}; take bf16")

    @property
    def rows(self) -> int:
        """Rows of C of a group, in the mean, rounded up."""
        return self.m if self.deep else -(-self.m // self.groups)

    @property
    def deep(self) -> bool:
        """True if groups divide k."""
        return self.grouping.endswith("depth")

    @property
    def bytes(self) -> int:
        """The fewest bytes through device memory: A and every B read once, every C written once."""
        operand = OPERAND_BYTES[types_of(self.dtype)[0]]
        more = self.out_bytes * self.m * self.n if self.deep else operand * self.n * self.k
        return super().bytes + (self.groups - 1) * more

    def dense(self, rows: int, columns: int) -> GemmProblem:
        """The dense problem of as many tiles of rows by columns of C as groups of one size have: all groups side by
        side along the longer of a group's m and n, each filled up to whole tiles there.

        Example:
            >>> str(GroupedProblem(64, 96, 256, groups=4).dense(64, 128))
            '16x512x256'
        """
        m, n, k = self.rows, self.n, -(-self.k // self.groups) if self.deep else self.k
        if m > n:
            m = self.groups * (-(-m // rows) * rows)
        else:
            n = self.groups * (-(-n // columns) * columns)
        return GemmProblem(m, n, k, self.dtype, self.layouts, promote=self.promote)

    def even(self, kernel: Kernel) -> GemmProblem:
        """The dense problem by which a kernel's time is predicted, all groups being of one size."""
        sides = kernel.tile_m * kernel.cluster_m, kernel.tile_n * kernel.cluster_n
        return self.dense(*(sides[::-1] if kernel.swap_ab else sides))

    def __str__(self) -> str:
        return f"{self.groups} {self.grouping} of {super().__str__()}"
