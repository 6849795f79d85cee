"""Problems of FP8 with their recipe: what is tuned, measured and looked up for :func:`hopper_gemm.scaled_mm`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from hopper_gemm.model.finish import SCALES, Epilogue
from hopper_gemm.model.grouped import GroupedProblem
from hopper_gemm.model.problem import BLOCK, FP8_DTYPES, GemmProblem, shown


@dataclass(frozen=True)
class ScaledProblem(GemmProblem):
    """A product of FP8 operands that have scales. With ``promote`` these are its recipe: figures of two recipes are
    never compared.

    Args:
        scales: of :data:`hopper_gemm.model.finish.SCALES`, where they are explained. Sums of blocks are promoted each
            :data:`BLOCK` of k.

    Raises:
        ValueError: as of :class:`GemmProblem`; other scales, or operands of 16 bits.

    Example:
        >>> ScaledProblem(64, 7168, 2048, "e4m3_bf16", promote=128, scales="row").recipe
        'row:128'
    """

    scales: str = "tensor"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scales not in SCALES[1:]:
            raise ValueError(f"scales must be one of {', '.join(SCALES[1:])} but got {shown(self.scales)}")
        if not self.is_fp8:
            raise ValueError(f"a dtype with scales must be one of {', '.join(FP8_DTYPES)} but got {self.dtype}")
        if self.scales == "blocks" and self.promote != BLOCK:
            raise ValueError(f"promote must be {BLOCK} with scales of blocks but got {self.promote}; set it to {BLOCK}")

    @cached_property
    def in_words(self) -> GemmProblem:
        """The 16-bit problem, see :class:`GemmProblem`; scales take no clocks of the main loop."""
        return GemmProblem(self.m, self.n, self.k, self.dtype, self.layouts, self.batch_invariant).in_words

    @cached_property
    def finish(self) -> Epilogue:
        """The finish that multiplies by the scales."""
        return Epilogue(scales=self.scales)

    @property
    def recipe(self) -> str:
        """The scales, with fast sums, or behind a colon the elements of k from one promotion to the next."""
        return f"{self.scales}:{self.promote}" if self.promote and self.scales != "blocks" else self.scales


def problem_from(*, scales: str = "", **fields: Any) -> GemmProblem:
    """The problem of fields by their names: a :class:`ScaledProblem` if it has scales, a :class:`GroupedProblem` if it
    has groups. A ValueError as of these, and for operands of FP8 without scales, of which nothing is measured."""
    kind = GroupedProblem if "groups" in fields else GemmProblem
    problem = ScaledProblem(**fields, scales=scales) if scales else kind(**fields)
    if problem.is_fp8 and not scales:
        raise ValueError(f"scales must be one of {', '.join(SCALES[1:])} for {problem.dtype} but are missing; add them")
    return problem


def with_scales(problem: GemmProblem, finish: Epilogue | None) -> GemmProblem:
    """The problem as a tuned table has it: of FP8 operands with the scales of the finish."""
    if finish is None or not finish.scales or type(problem) is not GemmProblem or not problem.is_fp8:
        return problem
    return ScaledProblem(**{**asdict(problem), "scales": finish.scales})


def finish_of(problem: GemmProblem | None) -> Epilogue | None:
    """The finish that a problem has of itself: its scales; None without."""
    return problem.finish if isinstance(problem, ScaledProblem) else None


def recipe_of(problem: GemmProblem) -> str:
    """The recipe of a problem in words, as names and keys have it; empty where operands have 16 bits.

    Example:
        >>> recipe_of(GemmProblem(64, 64, 64)), recipe_of(ScaledProblem(64, 64, 64, "e4m3_bf16", promote=256))
        ('', 'tensor 256')
    """
    return problem.recipe.replace(":", " ") if isinstance(problem, ScaledProblem) else ""
