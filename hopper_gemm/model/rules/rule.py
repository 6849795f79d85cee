"""A legality rule: its name, the fact behind it, and a check that returns a mistake with its fix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.footprint import Footprint


@dataclass(frozen=True)
class Rule:
    """One condition on a resolved config, on a problem, or on both together.

    Args:
        name: how tables and messages call it.
        why: the fact behind it.
        mistakes: what is wrong, each with its fix, where anything is. Given are a config and its footprint; these and
            a problem; or a problem.
    """

    name: str
    why: str
    mistakes: Callable[..., Iterator[str]]

    def check(self, *given: object) -> str | None:
        """The first mistake and its fix; None where there is none."""
        return next(self.mistakes(*given), None)


def one_of(name: str, allowed: tuple[int, ...]) -> Callable[[GemmConfig, Footprint], Iterator[str]]:
    """Mistakes of a rule by which a parameter has one of these values."""

    def mistakes(config: GemmConfig, footprint: Footprint) -> Iterator[str]:
        value = getattr(config, name)
        if value not in allowed:
            yield f"{name} must be one of {', '.join(map(str, allowed))} but got {value}"

    return mistakes
