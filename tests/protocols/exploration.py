"""Running a protocol through every order of events."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple, TypeVar

Moment = TypeVar("Moment", bound=Hashable)


class Broken(Exception):
    """The protocol failed.

    Args:
        kind: one or two words, such as ``overwrite`` or ``deadlock``; each model names its own.
        text: what happened.
        trail: the moves that led there, where they are kept.
    """

    def __init__(self, kind: str, text: str, trail: tuple[Any, ...] = ()) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.trail = trail


class Explored(NamedTuple):
    """Number of different moments, and the moments after which nothing happens."""

    moments: int
    ends: tuple[Any, ...]


def explore(
    start: Moment, moves: Callable[[Moment], Iterable[Moment]], ended: Callable[[Moment], None] = lambda _: None
) -> Explored:
    """Run through every order of events, those with fewer steps first.

    Args:
        start: the first moment.
        moves: every moment that may come next; raises :class:`Broken` where it must not.
        ended: looks at a moment after which nothing happens, and raises :class:`Broken` where that is no good end.

    Example:
        >>> explore(0, lambda at: [at + 1, at + 2] if at < 3 else [])
        Explored(moments=5, ends=(3, 4))
    """
    seen, todo, ends = {start}, deque([start]), []
    while todo:
        moment = todo.popleft()
        following = list(moves(moment))
        if not following:
            ended(moment)
            ends.append(moment)
        for one in following:
            if one not in seen:
                seen.add(one)
                todo.append(one)
    return Explored(len(seen), tuple(ends))
