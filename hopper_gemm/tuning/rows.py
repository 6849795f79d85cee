"""A point and its answer as a row of the results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tables.trials import config_of
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


def problem_of(row: Mapping[str, Any]) -> GemmProblem:
    """The problem of a row; its sizes may be text."""
    return GemmProblem(int(row["m"]), int(row["n"]), int(row["k"]), row["dtype"], row["layouts"])


def point_of(row: Mapping[str, Any]) -> Point:
    """The point of a row that ran, or was tried."""
    return Point(problem_of(row), row["regime"], config_of(row), data=row["data"])
