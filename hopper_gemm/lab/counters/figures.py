"""Figures of a launch from hardware counters: their meaning, and the metrics behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hopper_gemm.lab.counters.profiler import ProfiledLaunch, Profiler

SECTOR_BYTES = 32
"""The grain of the L2 and of device memory."""


@dataclass(frozen=True)
class MetricSource:
    """A metric that a figure may come from.

    Args:
        metric: full name.
        factor: from seconds, bytes, hertz, percent or a plain number to the figure's unit.
        over: a second metric by which the first is divided.
    """

    metric: str
    factor: float = 1.0
    over: str | None = None

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of its metrics."""
        return (self.metric,) if self.over is None else (self.metric, self.over)

    def value(self, values: dict[str, float]) -> float | None:
        """Return the figure, or None if a metric is missing."""
        if not all(name in values for name in self.metrics):
            return None
        below = 1.0 if self.over is None else values[self.over]
        return self.factor * values[self.metric] / below if below else None


@dataclass(frozen=True)
class HardwareCounter:
    """A figure of a launch.

    Args:
        name: name in results.
        unit: unit of the figure.
        meaning: what it counts.
        sources: metrics that it may come from, the best first.
        adds: True if the figures of several kernels add up; otherwise the longest kernel's stands for all.
    """

    name: str
    unit: str
    meaning: str
    sources: tuple[MetricSource, ...]
    adds: bool = True

    def value(self, values: dict[str, float]) -> tuple[float | None, MetricSource | None]:
        """Return the figure and its source. A source that counted nothing is passed over for one that counted: a metric
        may exist and not count the instruction."""
        candidates = [(value, source) for source in self.sources if (value := source.value(values)) is not None]
        return next((pair for pair in candidates if pair[0] > 0), candidates[0] if candidates else (None, None))


def _figure(name: str, unit: str, meaning: str, *sources: str | MetricSource, adds: bool = True) -> HardwareCounter:
    """Return a counter from metrics that need no factor, or from sources."""
    metrics = tuple(MetricSource(source) if isinstance(source, str) else source for source in sources)
    return HardwareCounter(name, unit, meaning, metrics, adds)


def _hits(of: str, hit: str) -> MetricSource:
    """Return hits in percent of the sectors that were looked up."""
    return MetricSource(f"lts__t_sectors{hit}.sum", 100, over=f"lts__t_sectors{of}.sum")


_ACTIVE = "avg.pct_of_peak_sustained_active"

COUNTERS = (
    _figure(
        "tensor_active_hw",
        "%",
        "cycles in which the tensor cores compute, of those in which an SM has work; wgmma counts as hmma",
        f"sm__pipe_tensor_op_hmma_cycles_active.{_ACTIVE}",
        f"sm__pipe_tensor_cycles_active.{_ACTIVE}",
        f"sm__pipe_tensor_op_gmma_cycles_active.{_ACTIVE}",
        f"sm__inst_executed_pipe_tensor_op_gmma.{_ACTIVE}",
        adds=False,
    ),
    _figure(
        "sm_ghz",
        "GHz",
        "mean SM clock during the launch",
        *(MetricSource(f"{unit}__cycles_elapsed.avg.per_second", 1e-9) for unit in ("sm", "smsp", "gpc")),
        adds=False,
    ),
    _figure(
        "duration_us",
        "us",
        "time of the replay in which it was taken, from a cold start; no substitute for a timing",
        MetricSource("gpu__time_duration.sum", 1e6),
    ),
    _figure(
        "dram_read_bytes",
        "B",
        "bytes read from device memory",
        "dram__bytes_read.sum",
        MetricSource("dram__sectors_read.sum", SECTOR_BYTES),
    ),
    _figure(
        "dram_write_bytes",
        "B",
        "bytes written to device memory; what is still in the L2 at the end is not among them",
        "dram__bytes_write.sum",
        MetricSource("dram__sectors_write.sum", SECTOR_BYTES),
    ),
    _figure("l2_read_sectors", "sectors", "sectors of 32 bytes read in the L2", "lts__t_sectors_op_read.sum"),
    _figure(
        "l2_hit_pct",
        "%",
        "sectors found in the L2, of all that were looked up, reads and writes",
        "lts__t_sector_hit_rate.pct",
        _hits("", "_lookup_hit"),
        adds=False,
    ),
    _figure(
        "l2_read_hit_pct",
        "%",
        "the same of reads alone",
        "lts__t_sector_op_read_hit_rate.pct",
        _hits("_op_read", "_op_read_lookup_hit"),
        adds=False,
    ),
    _figure(
        "l2_load_hit_pct",
        "%",
        "the same of reads that SMs asked for: in these kernels TMA loads, which no metric of the L2 tells apart",
        _hits("_srcunit_tex_op_read", "_srcunit_tex_op_read_lookup_hit"),
        adds=False,
    ),
    _figure(
        "tma_load_bytes",
        "B",
        "bytes that TMA loads brought into the SMs",
        "l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum",
        "l1tex__m_xbar2l1tex_read_bytes_pipe_tma.sum",
    ),
    _figure(
        "shared_bank_reads",
        "reads",
        "reads of a 4-byte bank of shared memory (of the L1 data array, to be exact), wgmma's operands above all",
        "l1tex__data_bank_reads.sum",
    ),
    _figure(
        "executed",
        "",
        "warp instructions executed, spinning and waiting included",
        "smsp__inst_executed.sum",
        "sm__inst_executed.sum",
    ),
)
"""The figures, in the order in which tables show them. Metrics: Nsight Compute, ``--query-metrics --chips gh100``."""


def wanted_metrics(profiler: Profiler) -> list[str]:
    """Return the metrics to count: for each figure those that the profiler knows, or all if it knows none."""
    wanted: list[str] = []
    for counter in COUNTERS:
        sources = [source for source in counter.sources if all(map(profiler.knows, source.metrics))]
        for source in sources or counter.sources:
            wanted += source.metrics
    return list(dict.fromkeys(wanted))


def figures_of(launches: Sequence[ProfiledLaunch]) -> tuple[dict[str, float], str]:
    """Return the figures of a point's launches, and the note on figures that are missing or not of their best source.

    Args:
        launches: a single launch, or the several kernels that one call started.
    """
    longest = max(launches, key=lambda launch: launch.values.get("gpu__time_duration.sum", 0.0))
    figures, remarks = {}, []
    for counter in COUNTERS:
        values = [counter.value(launch.values) for launch in (launches if counter.adds else [longest])]
        numbers = [value for value, _ in values if value is not None]
        if len(numbers) < len(values):
            remarks.append(f"no {counter.name}")
            continue
        figures[counter.name] = sum(numbers)
        source = values[0][1]
        if source is not None and source != counter.sources[0]:
            remarks.append(f"{counter.name} from {source.metric}")
    if len(launches) > 1:
        remarks.append(f"{len(launches)} kernels")
    return figures, "; ".join(remarks)
