"""What stands in for a GPU's child and for the compilers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hopper_gemm.compiler.child import Handler
from hopper_gemm.compiler.cubin import CubinReport
from hopper_gemm.compiler.pool import Built
from tests.verify.drawing import Pair
from tests.verify.rows import Finding

WRONG = "one element is off"


def harmful(pair: Pair) -> bool:
    """Where a mistake is made: what a failure must shrink to."""
    return pair.config.stagger >= 2 and pair.problem.k >= 100


def faking(mistake: str, log: Path | None, store: Path) -> Handler:
    """Answers as a GPU's child does; every pair is noted in the log.

    Args:
        mistake: ``""``, ``"wrong"``, ``"hang"``, ``"crash"``, ``"raise"``; or one of a
            :class:`tests.verify.kernels.Kernel`, which is run and checked.
        log: file.
        store: not used.
    """

    def handle(request: tuple[str, Pair, int] | None) -> Finding:
        if request is None:
            return Finding()
        circumstance, pair, runs = request
        if log is not None:
            with log.open("a") as file:
                file.write(f"{circumstance}|{pair}|{os.environ['CUDA_VISIBLE_DEVICES']}\n")
        if circumstance == "few SMs":
            return Finding(skipped="no green contexts here")
        if not mistake or not harmful(pair):
            return Finding(bits="0" * 16)
        if mistake == "wrong":
            return Finding(WRONG)
        if mistake == "hang":
            time.sleep(3600)
        if mistake == "crash":
            os.abort()
        if mistake == "raise":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        from tests.verify.judge import check_pair
        from tests.verify.kernels import Kernel

        return check_pair(Kernel(mistake), pair, "cpu", runs)

    return handle


def fake(mistake: str = "", log: Path | None = None) -> Callable[[Path], Handler]:
    """A factory of such handlers."""
    return partial(faking, mistake, log)


class Compiled:
    """Stands in for a compile pool. The kernels of a tile_n of 24 do not compile."""

    def __init__(self, store: Path) -> None:
        self.submitted: list = []

    def submit(self, kernels) -> None:
        self.submitted += kernels

    def result(self, kernel) -> Built:
        if kernel.config.tile_n == 24:
            return Built("spilled", "8 B of stack")
        return Built("ok", "", CubinReport(*[0] * 9, code=f"code {kernel.config.tile_n}"))

    def close(self) -> None:
        pass
