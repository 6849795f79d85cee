"""The ledger's protocol: how parts that bring sums for one thing agree on who adds them up.

Mirrors :class:`hopper_gemm.kernel.sums.workspace.Ledger`, whose module describes the word and its two endings, and the
order in which ``WorkspaceSum`` (:mod:`hopper_gemm.kernel.sums.reduction`) and ``StreamSum``
(:mod:`hopper_gemm.lab.ladder.stream`) call it. Each step of a part is one access to the word,
or the writing of its sums. Any part may begin first, and no more than ``resident`` are under way at once: the others
begin as these end, as where a GPU has fewer SMs to give than a launch has CTAs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from hopper_gemm.kernel.sums.ledger import ALONE, ARRIVED, FILED, FILED_ONE, TURN
from tests.protocols.exploration import Broken, Explored, explore

Fault = Literal["", "early clear", "torn alone", "no turn", "late sums"]
"""A mistake to make: clear the word before all have filed; set ``alone`` by a plain store; do not turn the word over;
count in before the sums are written."""


@dataclass(frozen=True, order=True)
class Part:
    """State of one part.

    Args:
        step: ``absent`` (its CTA has no SM yet), ``send``, ``arrive``, ``turn``, ``wait``, ``swap``, ``leave``,
            ``file``, ``clear``, ``done``.
        came: the word as its arrival left it.
        seen: what it last saw of the word.
        looks: that it still has.
        left: whether its sums are written, all of them.
        adds: ``""``, ``"share"`` or ``"all"``: what it adds up.
    """

    step: str = "absent"
    came: int = 0
    seen: int = 0
    looks: int = 1
    left: bool = False
    adds: str = ""


@dataclass(frozen=True)
class LedgerState:
    """The word, and every part."""

    word: int
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class LedgerModel:
    """One launch's use of one word.

    Args:
        parts: that meet.
        resident: of them under way at once.
        looks: of each before its patience runs out.
        owned: whether the first part owns the thing, as in stream-K.
        fault: a mistake to make.
    """

    parts: int
    resident: int
    looks: int = 1
    owned: bool = False
    fault: Fault = ""

    def run(self, word: int = 0) -> Explored:
        """Run every order of events, from the word as the launch before left it.

        Raises:
            Broken: a part is stuck (``deadlock``), sums are added up twice, never or before they are written
                (``sums``), or the word is not as the next launch wants it (``word``).
        """
        return explore(LedgerState(word, (Part(looks=self.looks),) * self.parts), self._moves, self._ended)

    def _moves(self, moment: LedgerState) -> Iterator[LedgerState]:
        under_way = sum(part.step not in ("absent", "done") for part in moment.parts)
        for i, part in enumerate(moment.parts):
            if part.step == "done" or (part.step == "absent" and under_way == self.resident):
                continue
            step = self._split_k if not self.owned else self._owner if i == 0 else self._piece
            word, after = step(moment.word, part)
            parts = (*moment.parts[:i], after, *moment.parts[i + 1 :])
            if after.adds and not part.adds:
                self._check_sums(parts)
            first = 1 if self.owned else 0  # the others are alike: in what order they are listed makes no difference
            yield LedgerState(word, (*parts[:first], *sorted(parts[first:])))

    # Split-K: Ledger.arrive, then Ledger.file -------------------------------------------------

    def _split_k(self, word: int, part: Part) -> tuple[int, Part]:
        late = self.fault == "late sums"
        if part.step == "absent":
            return word, replace(part, step="arrive" if late else "send")
        if part.step == "send":
            part = replace(part, left=True)
            return word, self._decided(part) if late else replace(part, step="arrive")
        if part.step == "arrive":
            if (word & ARRIVED) >= self.parts:
                raise Broken("word", "a part arrives at a word that the last launch did not clear")
            part = replace(part, came=word + 1, seen=word + 1)
            if (part.came & ARRIVED) == self.parts and not part.came & ALONE:
                return part.came, replace(part, step="turn", left=True)
            return part.came, replace(part, step="send") if late else self._decided(part)
        if part.step == "turn":
            flip = 0 if self.fault == "no turn" else TURN
            return (part.came & TURN) ^ flip, replace(part, step="done", adds="share")
        if part.step == "wait":
            if part.looks:
                return word, self._decided(replace(part, seen=word, looks=part.looks - 1))
            return word, replace(part, step="swap")
        if part.step == "swap":
            if word == part.seen or self.fault == "torn alone":
                return part.seen | ALONE, replace(part, step="file")
            return word, self._decided(replace(part, seen=word), "swap")
        if part.step == "file":
            word += FILED_ONE
            last = (word & FILED) == self.parts * FILED_ONE
            if self.fault == "early clear":
                last = (word & ARRIVED) == self.parts
            return word, replace(part, step="clear", came=word, adds="all") if last else replace(part, step="done")
        return part.came & TURN, replace(part, step="done")

    def _decided(self, part: Part, waiting: str = "wait") -> Part:
        """The part with what it last saw: one of the endings, or neither yet."""
        if part.seen & ALONE:
            return replace(part, step="file")
        if (part.seen & ARRIVED) == self.parts or (part.seen ^ part.came) & TURN:
            return replace(part, step="done", adds="share")
        return replace(part, step=waiting)

    # Stream-K: Ledger.file_piece of the others; wait_pieces, then give_up, of the owner -----------

    def _piece(self, word: int, part: Part) -> tuple[int, Part]:
        late = self.fault == "late sums"
        if part.step == "absent":
            return word, replace(part, step="file" if late else "leave")
        if part.step == "leave":
            return word, replace(part, left=True, step="done" if late else "file")
        if part.step == "clear":
            return 0, replace(part, step="done")
        if (word & ARRIVED) >= self.parts - 1:
            raise Broken("word", "a piece is filed at a word that the last launch did not clear")
        word += 1
        if word & ALONE and (word & ARRIVED) == self.parts - 1:
            return word, replace(part, step="clear", left=True, adds="all")
        return word, replace(part, step="leave" if late else "done")

    def _owner(self, word: int, part: Part) -> tuple[int, Part]:
        if part.step == "absent":
            return word, replace(part, step="wait")
        if part.step == "clear":
            return 0, replace(part, step="done")
        if part.step == "wait":
            if (word & ARRIVED) == self.parts - 1 or (self.fault == "early clear" and word & ARRIVED):
                return word, replace(part, step="clear", adds="all")
            return word, replace(part, step="wait" if part.looks else "leave", looks=max(0, part.looks - 1))
        if part.step == "leave":
            return word, replace(part, left=True, step="look")
        if part.step == "look":
            return word, replace(part, step="swap", seen=word)
        if (part.seen & ARRIVED) == self.parts - 1:
            return word, replace(part, step="clear", adds="all")
        if word == part.seen or self.fault == "torn alone":
            return part.seen | ALONE, replace(part, step="done")
        return word, replace(part, seen=word)

    # What must hold ------------------------------------------------------------------------------

    def _check_sums(self, parts: tuple[Part, ...]) -> None:
        """Whoever adds up finds what it reads; an owner's own sums are in its registers."""
        missing = [i for i, part in enumerate(parts) if not part.left and not (self.owned and part.adds)]
        if missing:
            raise Broken("sums", f"added up before parts {missing} had written theirs")

    def _ended(self, moment: LedgerState) -> None:
        if any(part.step != "done" for part in moment.parts):
            raise Broken("deadlock", str(moment))
        adds = sorted(part.adds for part in moment.parts if part.adds)
        if adds not in (["all"], [] if self.owned else ["share"] * self.parts):
            raise Broken("sums", f"added up: {adds}")
        if moment.word & ~(0 if self.owned else TURN):
            raise Broken("word", f"left at {moment.word:#x}")
