"""Progress on stderr: a line before torch is imported, which takes seconds, then a line a step with the time."""

from __future__ import annotations

import sys
import time
from pathlib import Path

BEGAN = time.monotonic()


def step(what: str) -> None:
    """Say what is done, with the seconds since the start."""
    print(f"{time.monotonic() - BEGAN:4.0f} s  {what}", file=sys.stderr, flush=True)


if Path(sys.argv[0]).resolve().parent == Path(__file__).resolve().parent:  # an example runs; a test imports one
    step("loading torch")
