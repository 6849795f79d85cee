"""The ledger's protocol, written out: how parts that bring sums for one thing agree on who adds them up.

:mod:`hopper_gemm.kernel.workspace` describes the word and its two endings. Here the steps of a part are plain values,
each one access to the word, so that a search can run them in every order. A part is ``resident`` or not: one that is
not begins only after another has ended, as where a GPU has fewer SMs to give than a launch has CTAs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

ARRIVED, FILED, ALONE, TURN = 0xFF, 0xFF00, 1 << 16, 1 << 17
FILED_ONE = 1 << 8


class LedgerError(Exception):
    """The protocol failed; the message says how."""


@dataclass(frozen=True)
class Part:
    """Where one part stands.

    Args:
        step: ``arrive``, ``turn``, ``wait``, ``swap``, ``file``, ``clear``, ``done``.
        came: the word as its arrival left it.
        seen: what it last saw of the word.
        left: looks that it still has.
        together: whether it added up its share.
        alone: whether it added up everything.
    """

    step: str = "arrive"
    came: int = 0
    seen: int = 0
    left: int = 1
    together: bool = False
    alone: bool = False


@dataclass(frozen=True)
class Moment:
    """The word, and every part."""

    word: int
    parts: tuple[Part, ...]


def moves(moment: Moment, resident: int) -> Iterator[Moment]:
    """All that can happen next.

    Args:
        moment: now.
        resident: parts that can be under way at once; the others begin as these end.
    """
    under_way = [i for i, part in enumerate(moment.parts) if part.step != "done"][:resident]
    for i in under_way:
        for word, part in _steps(moment.word, moment.parts[i], len(moment.parts)):
            yield Moment(word, (*moment.parts[:i], part, *moment.parts[i + 1 :]))


def _steps(word: int, part: Part, parts: int) -> Iterator[tuple[int, Part]]:
    """The word and the part after each step that it can take."""
    if part.step == "arrive":
        if (word & ARRIVED) >= parts:
            raise LedgerError("a part arrives at a word that the last launch did not clear")
        came = word + 1
        part = replace(part, came=came, seen=came)
        complete = (came & ARRIVED) == parts and not came & ALONE
        yield came, replace(part, step="turn") if complete else _decided(part, parts)
    elif part.step == "turn":
        yield (part.came & TURN) ^ TURN, replace(part, step="done", together=True)
    elif part.step == "wait":
        if part.left:
            yield word, _decided(replace(part, seen=word, left=part.left - 1), parts)
        else:
            yield word, replace(part, step="swap")
    elif part.step == "swap":
        if word == part.seen:
            yield word | ALONE, replace(part, step="file")
        else:
            yield word, _decided(replace(part, seen=word), parts, swapping=True)
    elif part.step == "file":
        word += FILED_ONE
        last = (word & FILED) == parts * FILED_ONE
        yield word, replace(part, step="clear" if last else "done", alone=last)
    elif part.step == "clear":
        yield word & TURN, replace(part, step="done")


def _decided(part: Part, parts: int, swapping: bool = False) -> Part:
    if part.seen & ALONE:
        return replace(part, step="file")
    if (part.seen & ARRIVED) == parts or (part.seen ^ part.came) & TURN:
        return replace(part, step="done", together=True)
    return replace(part, step="swap" if swapping else "wait")


def owned_moves(moment: Moment, resident: int) -> Iterator[Moment]:
    """All that can happen next where the first part owns the thing and the others only file their pieces."""
    under_way = [i for i, part in enumerate(moment.parts) if part.step != "done"][:resident]
    others = len(moment.parts) - 1
    for i in under_way:
        part = moment.parts[i]
        step = _owner_step if i == 0 else _piece_step
        word, after = step(moment.word, part, others)
        yield Moment(word, (*moment.parts[:i], after, *moment.parts[i + 1 :]))


def _piece_step(word: int, part: Part, others: int) -> tuple[int, Part]:
    if part.step == "clear":
        return 0, replace(part, step="done")
    if (word & ARRIVED) >= others:
        raise LedgerError("a piece is filed at a word that the last launch did not clear")
    last = bool((word + 1) & ALONE) and ((word + 1) & ARRIVED) == others
    return word + 1, replace(part, step="clear" if last else "done", alone=last)


def _owner_step(word: int, part: Part, others: int) -> tuple[int, Part]:
    there = (word & ARRIVED) == others
    if part.step == "clear":
        return 0, replace(part, step="done")
    if part.step in ("arrive", "wait"):
        if there:
            return word, replace(part, step="clear", alone=True)
        return word, replace(part, step="wait" if part.left else "file", left=part.left - 1, seen=word)
    if part.step == "file":
        return word, replace(part, step="swap", seen=word)
    if (part.seen & ARRIVED) == others:
        return word, replace(part, step="clear", alone=True)
    if word == part.seen:
        return word | ALONE, replace(part, step="done")
    return word, replace(part, seen=word)


def explore(parts: int, resident: int, looks: int = 1, owned: bool = False, word: int = 0) -> int:
    """Run every order of events of one launch.

    Args:
        parts: that meet.
        resident: of them under way at once.
        looks: of each before its patience runs out.
        owned: whether the first part owns the thing, as in stream-K.
        word: as the launch before left it.

    Returns:
        How many moments there are.

    Raises:
        LedgerError: a part is stuck, sums are added up twice or not at all, or the word is not cleared.
    """
    start = Moment(word, (Part(left=looks),) * parts)
    seen, todo = {start}, [start]
    while todo:
        moment = todo.pop()
        after = list((owned_moves if owned else moves)(moment, resident))
        if not after:
            _check_end(moment, owned)
        for other in after:
            if other not in seen:
                seen.add(other)
                todo.append(other)
    return len(seen)


def _check_end(moment: Moment, owned: bool) -> None:
    if any(part.step != "done" for part in moment.parts):
        raise LedgerError(f"stuck: {moment}")
    together, alone = sum(part.together for part in moment.parts), sum(part.alone for part in moment.parts)
    allowed = ((0, 1),) if owned else ((len(moment.parts), 0), (0, 1))
    if (together, alone) not in allowed:
        raise LedgerError(f"{together} added up their share and {alone} everything: {moment}")
    if moment.word & ~TURN:
        raise LedgerError(f"the word is left at {moment.word:#x}")
