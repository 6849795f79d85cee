"""How long a config should take on a problem: an analytic model, good enough to say what to try first.

An SM works through its waves of tiles, and through a tile stage by stage. The pace of a stage is set by the slowest of
three, rounded off where two come close:

* **math**: the tensor cores' clocks, or those of shared memory where a narrow wgmma reads its operands back faster
  than it multiplies them;
* **load**: what the SM must take from the L2 (multicast counted once), half-width swizzles at a lower rate, and its
  part of what all SMs under way read from DRAM, which raster, swizzle and cluster decide;
* **ring**: a slot comes round again when it was loaded, which takes a latency beside the load, and multiplied; with
  ``stages - 1 - stagger`` loads under way that time is shared among them and the one that is multiplied.

Beside the stages stand the epilogue, unless the other consumer multiplies meanwhile, and what a launch costs.

The constants were fitted to the bursts of ``results/h200/seed-table`` and ``results/h200/options``: predicted times are
off by 5 % (root mean square), and by Spearman's rank correlation the configs of each problem there are ranked at 0.97
(4096 cubed) and 0.95 (8192 cubed) in the seed table, and at 0.96 in the options. All of these have 128 columns; beyond
them, and for the parameters that neither study varies, the model is physics and not yet experience.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from hopper_gemm.model import hopper
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.footprint import footprint
from hopper_gemm.model.problem import ELEMENT_BYTES, GemmProblem
from hopper_gemm.model.roofline import waves

CLOCK_HZ = 1.58e9
"""SM clock of a burst at the power cap."""

L2_BYTES_PER_CLOCK = 92.0
"""What an SM takes from the L2 each clock while all others do."""

HALF_SWIZZLE = 0.72
"""Rate of loads whose rows span 64 bytes or less, against 128."""

DRAM_BYTES_PER_CLOCK = hopper.HBM_BYTES_PER_SECOND / CLOCK_HZ
DRAM_SHARE = 1.25
"""Clocks that a clock's worth of DRAM traffic adds to a load: reads come in clumps."""

STRAIGHT_WALK = 0.12
"""More traffic where a group of tiles starts afresh instead of turning back."""

LATENCY_CLOCKS = 240.0
"""From a free slot to its load's first byte, beyond what the load itself takes."""

STAGE_CLOCKS = 31.0
"""Barriers and addresses of a stage, on the loading side."""

SMEM_BYTES_PER_CLOCK = 128
WRITE_SHARE = 0.09
"""Part of the ring's filling that gets in the way of wgmma's reads."""

EPILOGUE_CLOCKS = 8.0
"""For each accumulator register: convert, stage, store."""

DIRECT_STORES = 1.5
"""The epilogue's clocks with stores from registers, against those through shared memory."""

THREAD_LOADS = 0.5
"""Rate of copies by threads, against TMA."""

DRAIN_CLOCKS = 32.0
"""Tensor cores without work between two stages where no wgmma group stays in flight; published gains say so much."""

SHARPNESS = 7.6
"""Exponent of the norm that rounds off the slowest of three."""

LAUNCH_CLOCKS = 2000.0


@dataclass(frozen=True)
class Prediction:
    """What the model says, in clocks of an SM unless the name says otherwise.

    Args:
        seconds: of one launch.
        math, load, ring: of one stage, each if it alone set the pace; the load's own clocks are part of the ring's.
        epilogue: of one tile, where it is not overlapped.
        waves: rounds of the fullest SM.
    """

    seconds: float
    math: float
    load: float
    ring: float
    epilogue: float
    waves: int

    @property
    def limit(self) -> str:
        """What sets the pace of a stage: ``math``, ``load`` or ``ring``."""
        return max(("math", "load", "ring"), key=lambda name: getattr(self, name))


def predict(config: GemmConfig, problem: GemmProblem, sms: int = hopper.SM_COUNT) -> Prediction:
    """How long a legal config should take.

    Args:
        config: any legal config.
        problem: what is multiplied.
        sms: SMs of the GPU.

    Example:
        >>> cube = GemmProblem(4096, 4096, 4096)
        >>> predict(GemmConfig(tile_m=256), cube).seconds < predict(GemmConfig(tile_m=64), cube).seconds
        True
    """
    shares = footprint(config)
    config = shares.config
    assert isinstance(config.stages, int)
    math = config.tile_m * config.tile_n * config.tile_k * 2 / hopper.FLOP_PER_CLOCK_PER_SM
    filled = WRITE_SHARE * shares.stage_bytes / SMEM_BYTES_PER_CLOCK
    math = max(math, math * _reads_per_math(shares.share_n) + filled) + (0.0 if config.stagger else DRAIN_CLOCKS)

    taken = ELEMENT_BYTES * config.tile_k * (config.tile_m / config.cluster_n + config.tile_n / config.cluster_m)
    rate = L2_BYTES_PER_CLOCK * (1.0 if shares.swizzle_bytes == hopper.SWIZZLE_BYTES[0] else HALF_SWIZZLE)
    rate *= THREAD_LOADS if config.loads == "cp_async" else 1.0
    read = ELEMENT_BYTES * config.tile_k * sum(_patch(config, problem, sms))
    read *= 1.0 if config.serpentine else 1.0 + STRAIGHT_WALK
    load = taken / rate + STAGE_CLOCKS + DRAM_SHARE * read / DRAM_BYTES_PER_CLOCK

    ahead = max(0, config.stages - 1 - config.stagger)
    ring = (math + LATENCY_CLOCKS + load) / (ahead + 1)
    pace = sum(one**SHARPNESS for one in (math, load, ring)) ** (1 / SHARPNESS)

    epilogue = EPILOGUE_CLOCKS * shares.accumulators * (DIRECT_STORES if config.stores == "direct" else 1.0)
    falls = waves(config, problem, sms)
    steps = ceil(problem.k / config.tile_k)
    if config.schedule == "pingpong":  # the other consumer multiplies meanwhile, except after the last tile
        total = falls.waves * max(pace * steps, (pace * steps + epilogue) / 2) + epilogue
    else:
        idle = epilogue if config.persistent and config.specialised else epilogue + LATENCY_CLOCKS + load
        total = falls.waves * (pace * steps + idle)
    total += LAUNCH_CLOCKS + LATENCY_CLOCKS + load
    return Prediction(total / CLOCK_HZ, math, load, ring, epilogue, falls.waves)


def ranked(configs: Iterable[GemmConfig], problem: GemmProblem, sms: int = hopper.SM_COUNT) -> list[GemmConfig]:
    """Legal configs, the most promising first; equal ones keep their order."""
    return sorted(configs, key=lambda config: predict(config, problem, sms).seconds)


def _reads_per_math(share_n: int) -> float:
    """Clocks in which a wgmma reads its operands, 64 rows of A and n columns of B, for each in which it multiplies."""
    reads = ELEMENT_BYTES * hopper.WGMMA_K * (hopper.WGMMA_M + share_n) / SMEM_BYTES_PER_CLOCK
    return reads / (2 * hopper.WGMMA_M * share_n * hopper.WGMMA_K / hopper.FLOP_PER_CLOCK_PER_SM)


def _patch(config: GemmConfig, problem: GemmProblem, sms: int) -> tuple[float, float]:
    """Rows and columns of the part of the output that is under way at once; see
    :func:`hopper_gemm.model.roofline.best_swizzle`."""
    rows, columns = config.tile_m * config.cluster_m, config.tile_n * config.cluster_n
    area = sms // config.cluster_size * rows * columns
    most_m, most_n = ceil(problem.m / rows) * rows, ceil(problem.n / columns) * columns
    if config.raster == "m":
        wide = min(config.swizzle * columns, most_n)
        return min(area / wide, most_m), wide
    tall = min(config.swizzle * rows, most_m)
    return tall, min(area / tall, most_n)
