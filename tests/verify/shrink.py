"""A failing pair made small: what a person debugs, and what becomes a test."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

from hopper_gemm.model.grouped import GroupedProblem
from hopper_gemm.model.rules.pairs import reachable
from hopper_gemm.tune.parameters import DEFAULTS, all_values
from tests.verify.drawing import Pair, varied

TRIES = 60


def shrink(pair: Pair, fails: Callable[[Pair], bool], tries: int = TRIES) -> Pair:
    """The smallest pair on the way to which every step fails: smaller sizes, fewer parameters off their defaults.

    Args:
        pair: one that fails.
        fails: runs a pair, and says whether it fails too.
        tries: runs at most.
    """
    left, tried = tries, {pair}
    while True:
        for candidate in smaller(pair):
            if candidate in tried:
                continue
            if not left:
                return pair
            left -= 1
            tried.add(candidate)
            if fails(candidate):
                pair = candidate
                break
        else:
            return pair


def smaller(pair: Pair) -> Iterator[Pair]:
    """Legal pairs one step smaller, the boldest first."""
    found = (*_nearer_defaults(pair), *_smaller_problems(pair))
    return (one for one in found if one != pair and one.legal)


def _nearer_defaults(pair: Pair) -> Iterator[Pair]:
    changed = [name for name, value in all_values(pair.config).items() if value != DEFAULTS[name]]
    for name in changed:
        yield replace(pair, config=varied(pair.config, **{name: DEFAULTS[name]}))
    if pair.problem.is_fp8:
        return
    yield replace(pair, finish=None)
    yield replace(pair, problem=replace(pair.problem, dtype="bf16"))
    yield replace(pair, problem=replace(pair.problem, layouts="kk"))


def _smaller_problems(pair: Pair) -> Iterator[Pair]:
    for side in ("m", "n", "k", "groups") if isinstance(pair.problem, GroupedProblem) else ("m", "n", "k"):
        size = getattr(pair.problem, side)
        for less in sorted({1, 8, size // 8, size // 2, reachable(size // 2), size - size // 4} - {0}):
            with contextlib.suppress(ValueError):  # groups that do not divide a side
                if less < size:
                    yield replace(pair, problem=replace(pair.problem, **{side: less}))
