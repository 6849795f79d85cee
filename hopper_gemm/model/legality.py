"""Legality: one list of named rules, checked before any compiler is called.

The kernel's builder, the sweep's enumeration and ``explain`` all use this list, whose rules stand in
:mod:`hopper_gemm.model.rules`. A config that passes compiles without a spill and computes the right product; the tests
hold that for the whole published grid and for hundreds of random configs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.grouped import GroupedProblem
from hopper_gemm.model.kernel import KINDS, Kernel, resolve
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.recipe import finish_of
from hopper_gemm.model.rules.finishes import FINISH_RULES
from hopper_gemm.model.rules.fp8 import FP8_RULES
from hopper_gemm.model.rules.grouping import GROUP_FINISH, GROUP_RULES
from hopper_gemm.model.rules.pairs import PAIR_RULES
from hopper_gemm.model.rules.rule import Rule
from hopper_gemm.model.rules.shape import SHAPE_RULES
from hopper_gemm.model.rules.technique import TECHNIQUE_RULES


@dataclass(frozen=True)
class Reason:
    """A reason for which a config or a problem cannot run: the rule's name and one line of text."""

    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


RULES = (*SHAPE_RULES, *TECHNIQUE_RULES)
"""The rules on configs, in the order in which their reasons are given."""

_MORE: dict[type[Kernel], tuple[Rule, ...]] = {}


def add_kind(config: type[GemmConfig], kernel: type[Kernel], rules: tuple[Rule, ...]) -> None:
    """Register a config class with further parameters, its kernel class, and further rules; their reasons come last."""
    KINDS[config] = kernel
    _MORE[kernel] = rules


def rules_on(kernel: Kernel) -> tuple[Rule, ...]:
    """The rules on a kernel."""
    return (*RULES, *_MORE.get(type(kernel), ()))


def reasons(config: GemmConfig, problem: GemmProblem | None = None, finish: Epilogue | None = None) -> list[Reason]:
    """Every reason why the config cannot run the problem; empty means that it can.

    Args:
        config: any config; ``"max"`` and ``"auto"`` are resolved first.
        problem: the problem, or None to check the config alone.
        finish: of the product; with a problem only. By default that of the problem's scales.

    Example:
        >>> [reason.rule for reason in reasons(GemmConfig(tile_m=320, tile_n=128, k_depth=16))]
        ['stages']
    """
    kernel, violations, sound = resolve(config), list[Reason](), True
    for rule in rules_on(kernel):
        if not sound and rule.name in _NEED_SOUND_SHARES:
            continue
        text = rule.check(kernel)
        if text is not None:
            violations.append(Reason(rule.name, text))
            sound = sound and rule.name not in _SHARES
    if problem is None:
        return violations
    return [*violations, *(pair_reasons(kernel, problem, finish) if sound else ())]


def pair_reasons(kernel: Kernel, problem: GemmProblem, finish: Epilogue | None = None) -> list[Reason]:
    """Every reason why a kernel that is legal by itself cannot run a problem."""
    finish, violations = finish or finish_of(problem), _broken(PAIR_RULES, kernel, problem.in_words)
    if problem.is_fp8:
        violations += _broken(FP8_RULES, kernel, problem)
    if isinstance(problem, GroupedProblem):
        violations += _broken(GROUP_RULES, kernel, problem)
        if finish is not None:
            violations += _broken((GROUP_FINISH,), kernel, problem, finish)
    return violations if finish is None else [*violations, *_broken(FINISH_RULES, kernel, problem, finish)]


def _broken(rules: Iterable[Rule], *given: object) -> list[Reason]:
    return [Reason(rule.name, text) for rule in rules if (text := rule.check(*given)) is not None]


_SHARES = frozenset({"tile_m", "tile_n", "consumers", "schedule", "split", "ctas_per_sm"})
_NEED_SOUND_SHARES = frozenset(
    {"split", "stores", "registers", "wgmma_n", "stages", "stagger", "multicast", "unroll", "split_k", "epi_buffers"}
)
"""Rules whose figures mean nothing if the tile cannot be divided among the consumers; skipped then."""


def is_legal(config: GemmConfig, problem: GemmProblem | None = None, finish: Epilogue | None = None) -> bool:
    """Return True if :func:`reasons` finds none."""
    return not reasons(config, problem, finish)
