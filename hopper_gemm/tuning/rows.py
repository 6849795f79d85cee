"""A point and its answer as a row of the results."""

from __future__ import annotations

from typing import Any

from hopper_gemm.tuning.backend import Answer
from hopper_gemm.tuning.space import Point


def row_of(
    point: Point, answer: Answer | None = None, *, study: str = "", source: str = "", gpu: str = ""
) -> dict[str, Any]:
    """The row of the schema; without an answer only the columns that tell rows apart."""
    problem = point.problem
    row: dict[str, Any] = {
        "study": study,
        "m": problem.m,
        "n": problem.n,
        "k": problem.k,
        "dtype": problem.dtype,
        "layouts": problem.layouts,
        "data": point.data,
        "regime": point.regime,
        **point.config.as_dict(),
        "source": source,
        "gpu": gpu,
    }
    if answer is not None:
        row.update(answer.figures, status=answer.status, reason=answer.reason)
    return row
