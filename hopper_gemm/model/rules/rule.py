"""A legality rule: its name, the fact behind it, and a check that returns a mistake with its fix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hopper_gemm.model.kernel import Kernel


@dataclass(frozen=True)
class Rule:
    """One condition on a kernel, on a problem, or on both together: its name in tables and messages, the fact behind
    it, and what yields every violation with its fix, called with the kernel, the problem, or both."""

    name: str
    why: str
    mistakes: Callable[..., Iterator[str]]

    def check(self, *given: object) -> str | None:
        """The first mistake and its fix; None if there is none."""
        return next(self.mistakes(*given), None)


def one_of(name: str, allowed: tuple[int, ...]) -> Callable[[Kernel], Iterator[str]]:
    """Violations of a rule that a parameter has one of these values."""

    def mistakes(kernel: Kernel) -> Iterator[str]:
        value = getattr(kernel, name)
        if value not in allowed:
            yield f"{name} must be one of {', '.join(map(str, allowed))} but got {value}"

    return mistakes
