"""Figures of a launch from hardware counters, by the columns of :data:`hopper_gemm.tune.study.schema.COUNTED`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hopper_gemm.lab.counters.profiler import ProfiledLaunch


class HardwareCounter(NamedTuple):
    """A figure: a metric times a factor, from seconds, bytes or hertz to the figure's unit; divided by the metric
    ``over`` if there is one. If ``adds``, the figures of several kernels add up; else the longest kernel's stands for
    all."""

    metric: str
    factor: float = 1.0
    over: str = ""
    adds: bool = True


COUNTERS = {
    "tensor_active_hw": HardwareCounter(  # wgmma counts as hmma
        "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active", adds=False
    ),
    "sm_ghz": HardwareCounter("sm__cycles_elapsed.avg.per_second", 1e-9, adds=False),
    "duration_us": HardwareCounter("gpu__time_duration.sum", 1e6),  # of a replay from a cold start, which is no timing
    "dram_read_bytes": HardwareCounter("dram__bytes_read.sum"),
    "dram_write_bytes": HardwareCounter("dram__bytes_write.sum"),  # without what is still in the L2 at the end
    "l2_read_sectors": HardwareCounter("lts__t_sectors_op_read.sum"),
    "l2_hit_pct": HardwareCounter("lts__t_sector_hit_rate.pct", adds=False),
    "l2_read_hit_pct": HardwareCounter("lts__t_sector_op_read_hit_rate.pct", adds=False),
    "l2_load_hit_pct": HardwareCounter(  # in these kernels TMA loads, which no metric of the L2 tells apart
        "lts__t_sectors_srcunit_tex_op_read_lookup_hit.sum",
        100,
        over="lts__t_sectors_srcunit_tex_op_read.sum",
        adds=False,
    ),
    "tma_load_bytes": HardwareCounter("l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum"),
    "shared_bank_reads": HardwareCounter("l1tex__data_bank_reads.sum"),  # of the L1 data array, wgmma's above all
    "executed": HardwareCounter("smsp__inst_executed.sum"),  # spinning and waiting included
}
"""Counters by column, in the order of the schema. Nsight Compute lists metrics by ``--query-metrics --chips gh100``;
version 2025.3.1 counts all of these."""

METRICS = tuple(dict.fromkeys(name for counter in COUNTERS.values() for name in (counter.metric, counter.over) if name))
"""Full names of all metrics."""


def figures_of(launches: Sequence[ProfiledLaunch]) -> tuple[dict[str, float], str]:
    """Return the figures of a launch, or of the several kernels that one call started, and the note on figures that are
    missing."""
    longest = max(launches, key=lambda launch: launch.values.get("gpu__time_duration.sum", 0.0))
    figures, remarks = {}, []
    for name, counter in COUNTERS.items():
        counted = [launch.values for launch in (launches if counter.adds else [longest])]
        below = [values.get(counter.over, 0.0) if counter.over else 1.0 for values in counted]
        if all(below) and all(counter.metric in values for values in counted):
            shares = (values[counter.metric] / over for values, over in zip(counted, below, strict=True))
            figures[name] = counter.factor * sum(shares)
        else:
            remarks.append(f"no {name}")
    if len(launches) > 1:
        remarks.append(f"{len(launches)} kernels")
    return figures, "; ".join(remarks)
