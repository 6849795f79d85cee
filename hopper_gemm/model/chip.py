"""A GPU among the Hopper GPUs: what its driver says of it. Nothing here shapes machine code, unlike
:mod:`hopper_gemm.model.hopper`, whose text is part of the kernel's digest."""

from __future__ import annotations

from dataclasses import dataclass

from hopper_gemm.model import hopper

COPIED = 0.875
"""Share of a memory's bandwidth that a copy reaches: :data:`hopper_gemm.model.hopper.HBM_BYTES_PER_SECOND` of an H200's
6144 bits twice a clock of 3201 MHz. Other GPUs are taken to reach as much."""


@dataclass(frozen=True)
class Chip(hopper.Chip):
    """Properties in which a GPU differs from other Hopper GPUs; by default an H200.

    Args:
        sms: streaming multiprocessors.
        l2_bytes: of the L2.
        resident: clusters of 1, 2, 4 and 8 CTAs that run at once, one CTA an SM, as the driver counts them; empty:
            estimated, see :func:`hopper_gemm.model.roofline.clusters_at_once`.
        memory_rate: bytes a second that a copy moves, read and written, see :func:`copied`.
    """

    memory_rate: float = hopper.HBM_BYTES_PER_SECOND


SXM = Chip()
"""An H200; plans without a GPU are made for it."""


def copied(bus_bits: int, clock_hz: float) -> float:
    """Bytes a second that a copy moves, read and written, rounded to 10 GB, in a memory that transfers twice a clock.

    Args:
        bus_bits: width of the memory's bus.
        clock_hz: of the memory.

    Example:
        >>> copied(6144, 3.201e9), copied(5120, 2.619e9)  # an H200, an H100 SXM
        (4300000000000.0, 2930000000000.0)
    """
    return round(COPIED * 2 * clock_hz * bus_bits / 8, -10)
