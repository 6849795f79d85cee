"""The result of a check."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """The result of a check.

    Args:
        reason: one line on what is wrong; empty where nothing is.
        bits: digest of the output of ordinary data: the same on every board and in every run.
        skipped: why it could not be checked here; empty where it was.
    """

    reason: str = ""
    bits: str = ""
    skipped: str = ""
