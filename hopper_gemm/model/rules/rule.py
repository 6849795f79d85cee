"""What a rule is: one fact that must hold, with what is wrong and the mend where it does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hopper_gemm.model.footprint import Footprint
from hopper_gemm.model.problem import GemmProblem


@dataclass(frozen=True)
class Rule:
    """One condition on a resolved config.

    Args:
        name: how tables and messages call it.
        why: the fact behind it.
        check: given the footprint of a resolved config, what is wrong and the mend, or None.
    """

    name: str
    why: str
    check: Callable[[Footprint], str | None]


@dataclass(frozen=True)
class ProblemRule:
    """One condition on a problem; as :class:`Rule`."""

    name: str
    why: str
    check: Callable[[GemmProblem], str | None]


@dataclass(frozen=True)
class PairRule:
    """One condition on a config and a problem together; as :class:`Rule`."""

    name: str
    why: str
    check: Callable[[Footprint, GemmProblem], str | None]


def one_of(name: str, allowed: tuple[int, ...]) -> Callable[[Footprint], str | None]:
    """A check that a parameter has one of these values."""

    def check(shares: Footprint) -> str | None:
        value = getattr(shares.config, name)
        if value in allowed:
            return None
        return f"{name} must be one of {', '.join(map(str, allowed))} but got {value}"

    return check
