"""Programs that measure what no study does, such as ``python -m benchmarks.host``."""

from __future__ import annotations

import sys


def need_hopper() -> None:
    """End the program with one line and exit code 3 where there is no Hopper GPU to measure on."""
    from hopper_gemm.tune.measure.device import NoHopperError, find_hopper

    try:
        find_hopper()
    except NoHopperError as error:
        print(error, file=sys.stderr)
        sys.exit(3)
