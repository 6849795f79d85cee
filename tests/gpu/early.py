"""Kernels that hand a slot of the ring back before the tensor cores have read it: the consumer with one change each."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from hopper_gemm.kernel import consumer
from hopper_gemm.kernel.consumer import Mainloop
from hopper_gemm.kernel.gemm import HopperGemm
from hopper_gemm.model.kernel import Kernel

WAIT = "        warpgroup.wait_group(self.stagger)\n"
RELEASE = (
    "        if cutlass.const_expr(not first or self.stagger == 0):\n"
    "            share.release(ring, released.index, self._due(k_tile, k_tiles))\n"
)

CHANGES = {
    "one_more_in_flight": (WAIT, WAIT.replace("self.stagger", "self.stagger + 1")),
    "released_before_the_wait": (WAIT + RELEASE, RELEASE + WAIT),
}
"""Lines of the consumer's source by fault, and what stands in their place. A release before the wait relies on the wait
of the stage before: it comes one stage early. With either fault the group of a released slot may just have begun."""

FOLDER = TemporaryDirectory(prefix="hopper-gemm-")
"""Where changed sources stay while this process compiles them: the DSL reads a function's source from its file."""


@cache
def changed(fault: str) -> ModuleType:
    """The consumer's module with a fault."""
    old, new = CHANGES[fault]
    source = inspect.getsource(consumer)
    if source.count(old) != 1:
        raise ValueError(f"{consumer.__file__} must hold the lines {old!r} once; update CHANGES")
    path = Path(FOLDER.name) / f"{fault}.py"
    path.write_text(source.replace(old, new))
    spec = importlib.util.spec_from_file_location(f"{__name__}_{fault}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class _FaultyGemm(HopperGemm):
    """The kernel with a consumer of a changed module."""

    fault = ""

    def _mainloop(self, *arguments: Any) -> Mainloop:
        right = super()._mainloop(*arguments)
        return changed(self.fault).Mainloop(**{one.name: getattr(right, one.name) for one in fields(right)})


class OneMoreInFlightGemm(_FaultyGemm):
    """A consumer that waits until one group more than ``stagger`` is in flight."""

    fault = "one_more_in_flight"


class ReleasedBeforeTheWaitGemm(_FaultyGemm):
    """A consumer that releases a slot before it waits for the slot's group."""

    fault = "released_before_the_wait"


@dataclass(frozen=True)
class OneMoreInFlight(Kernel):
    """A kernel that :class:`OneMoreInFlightGemm` builds."""

    @property
    def builder(self) -> str:
        """The class that builds the kernel."""
        return f"{__name__}:{OneMoreInFlightGemm.__name__}"


@dataclass(frozen=True)
class ReleasedBeforeTheWait(Kernel):
    """A kernel that :class:`ReleasedBeforeTheWaitGemm` builds."""

    @property
    def builder(self) -> str:
        """The class that builds the kernel."""
        return f"{__name__}:{ReleasedBeforeTheWaitGemm.__name__}"


FAULTS: dict[str, type[Kernel]] = {"one more in flight": OneMoreInFlight, "released early": ReleasedBeforeTheWait}
"""Kernels by what is wrong with them."""
