"""Predicted launch time of a config: an analytic model, good enough to say what to try first.

An SM works through its waves of tiles, and through a tile stage by stage. The slowest of four sets the time of a
stage, smoothed where two come close:

* **math**: the tensor cores' clocks, or those of shared memory where a narrow wgmma takes longer to read its operands
  than to multiply them;
* **load**: the bytes that the SM takes, multicast counted once, narrow swizzles at a lower rate; and its share of what
  all busy SMs read from DRAM, which raster, swizzle and cluster decide;
* **l2**: the bytes that the L2 passes on to the busy SMs, where what neighbours read at the same time counts once;
* **ring**: a slot is free again after its load, which takes a latency as well, and its math; that time is shared by the
  stage in the tensor cores and the ``stages - 1 - stagger`` loads in flight.

To the stages come the epilogue, unless pingpong overlaps it, the reduction of split-K parts, and the cost of a launch;
and no launch takes less than to read and write every matrix once, longer where C leaves in chunks whose rows are an odd
number of 16-byte pieces. If a launch is not persistent, as many CTAs as fit share an SM. The clock follows the load of
the tensor cores and of the L2: beyond a certain load the power cap lowers it, in a burst as well.

Neighbours (docs/neighbours.md): single CTAs fill one GPC after the other, sixteen that follow one another in the walk,
and of clusters every eighth shares a GPC. A panel that several of them read is passed on once: sixteen tiles in a
square read four panels of A and four of B, in a row one and sixteen. Rows off the L2's lines cost the same either way.

Four terms add a share to the time of a launch; they stand last in :class:`ModelConstants`. How the constants were
fitted (benchmarks/picks/fit.py), and what the first choice loses: docs/menu.md.

Known errors: launches of 3 us differ by more than predicted (256^3); they take 7 % less on an H200, 16 % on an H100.
Launches of 150 us or more take 2 to 4 % longer than predicted, those of 8 to 30 us 2 % less. The epilogue of an fp32
output is modelled as that of 16 bits, register for register. At 16384^3 CTAs without ``pace`` drift apart and read
panels two and a half times: ``drift`` is the 7 % that it costs, and nothing else of it is modelled.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil, log
from typing import NamedTuple

from hopper_gemm.model import hopper
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import Epilogue, ordered_stages
from hopper_gemm.model.kernel import Kernel, resolve, swizzle_bytes
from hopper_gemm.model.problem import ELEMENT_BYTES, GemmProblem
from hopper_gemm.model.recipe import finish_of
from hopper_gemm.model.roofline import SXM, Chip, clusters_at_once, clusters_launched, output_sides, tile_at

SMEM_BYTES_PER_CLOCK = 128
L2_PORT_BYTES = 64  # bytes a clock of an SM's port to the L2, as commonly given; not measured here
DRIFTING = 5e-3  # seconds beyond which CTAs drift apart; up to launches of 2.3 ms no drift was seen
NEIGHBOURS, TURNS = 16, 8  # SMs of a GPC, and the distance in clusters to the next cluster of the same GPC
SECTOR_BYTES = 32  # bytes of a sector, the least that the L2 writes at a time without reading
REGISTERS_BESIDE = 70  # registers of a thread beside its accumulators, without setmaxnreg
BURST_HZ = 1.58e9  # SM clock of a burst, at which a second's worth of DRAM traffic is counted in clocks


@dataclass(frozen=True)
class ModelConstants:
    """The constants of the model, clocks unless a comment says otherwise; the defaults are those of an NVIDIA H200."""

    l2_bytes: float = 139.0  # bytes that an SM takes each clock
    l2_share: float = 40.5  # bytes that the L2 passes on each clock for an SM, while all SMs load
    # extra share of a load whose rows start at odd multiples of 32 bytes, so that three of four touch another line of
    # the L2, and of 16, so that nearly all touch another sector as well; with an H200's memory. A slower one makes them
    # cost more in proportion.
    off_lines: float = 0.318
    off_sectors: float = 0.772
    beyond: float = 0.856  # cost of a byte outside the matrices, relative to one inside, for the SM whose box holds it
    outside: float = 0.0436  # clocks that 128 bytes outside the matrices add to a load of every SM (docs/neighbours.md)
    half: float = 0.625  # rate of loads whose rows span 64 bytes along k, relative to 128
    quarter: float = 0.265  # the same of 32 bytes
    narrow: float = 1.67  # extra share of a load of an operand along m or n, for each box beyond one in 128 bytes
    straddle: float = 0.386  # of what rows off lines or sectors add, what each box beyond one in 128 bytes adds again
    dram_share: float = 0.0404  # clocks that a clock's worth of DRAM traffic adds to a load: reads come in clumps
    dram_rate: float = 1.01  # share of the memory's bandwidth that a kernel reaches which reads each operand once
    # extra share of C's bytes where its rows start off sectors, for 128 columns that a cluster writes: at the edges of
    # what it writes two clusters write a sector each in part
    torn: float = 0.445
    # extra share of C's bytes for 32 columns that a store writes at a time, within a line, where the rows of C start
    # off sectors or those of the store are an odd number of 16-byte pieces: every other end tears a sector
    shred: float = 1.36
    straight: float = 0.134  # extra DRAM traffic without a serpentine walk
    latency: float = 339.0  # from a free slot to its load's first byte, the load itself excluded
    away: float = 258.0  # extra in a cluster, where consumers of every CTA must have left the slot
    stage: float = 69.1  # for the barriers and addresses of a stage, in the producer
    write_share: float = 0.245  # share of the writes to the ring that delays wgmma's reads
    drain: float = 80.8  # idle tensor cores between stages of a lone consumer that keeps no wgmma group in flight
    epilogue: float = 13.9  # for each accumulator register: convert, stage, store
    tail: float = 0.0365  # for each byte of the last tile, until it has left the SM
    direct: float = 10.0  # the epilogue's clocks with stores from registers, relative to stores through shared memory
    thread_loads: float = 0.583  # rate of copies by threads, relative to TMA
    sharpness: float = 3.07  # exponent of the norm that smooths the maximum of the four limits
    launch: float = 2850.0  # for a launch, first and last byte included
    cluster: float = 695.0  # extra for a launch with clusters of several CTAs
    counted: float = 727.0  # extra for a launch with the dynamic scheduler
    balance: float = 0.0199  # share of the launch that the dynamic scheduler saves in the limit of many rounds
    # share of the launch's clocks that PDL hides behind the kernel before: for single CTAs, and for clusters, whose
    # CTAs need room on the GPU all at once
    alone: float = 0.461
    paired: float = 0.272
    meet: float = 3680.0  # for the barriers of split-K in a cluster
    apart: float = 3360.0  # for the counters of split-K through a workspace
    scatter: float = 29.7  # bytes that an SM writes to a workspace each clock
    gather: float = 61.7  # bytes that an SM reads from a workspace each clock
    piece: float = 6290.0  # for each further piece of a tile cut by stream-K without a whole wave: one CTA adds up all
    chunk: float = 71.4  # for an epilogue chunk: a barrier, a fence, the start of a store
    lone: float = 252.0  # extra with a single buffer, which the previous chunk must have left
    turn: float = 143.0  # for each tile in pingpong: one consumer signals the other
    fast_hz: float = 1.9e9  # SM clock of a kernel that the power cap does not slow
    drift: float = 0.07  # extra share of a launch beyond DRIFTING without pace
    knee: float = 0.724  # load, as a share of the tensor cores' time, from which on the cap lowers the clock
    heat: float = 0.109  # load that a full port to the L2 adds: moving bytes takes power as well
    slope_hz: float = 0.955e9  # drop of the clock for a load of 1 beyond the knee
    level: float = 0.955  # factor on the time that the limits give; the four extra shares below are added to it
    alike: float = 0.0534  # extra share where loads and the L2 limit a stage equally
    shared: float = 0.119  # extra share for each e-fold of split-K parts in a memory-bound launch
    single: float = 0.0279  # extra share of single CTAs for each operand whose rows start off sectors
    small: float = 0.00968  # extra share for each e-fold by which a tile has fewer elements than 128x128


FITTED = ModelConstants()

GATED_ALONE = 1.6
"""Time of a gated launch of one consumer over several rows of tiles, relative to what is predicted otherwise: at 257
rows such a kernel (64x144) took the layer of examples/llama_layer.py from 0.96 to 0.79 of torch's speed. The cause is
not known; over one row of tiles, and with several consumers, gated layers ran as predicted."""

ACTIVATION_CLOCKS = {"gelu": 10.0, "gelu_tanh": 15.0, "silu": 15.0, "relu": 1.0}
"""Clocks of an SM that an activation takes for one register of a consumer's threads, while both consumers finish: by
the machine code, its stalls and the rates of its units. 16 is the least for two functions of the special unit, which
takes 16 threads a clock; some of it passes beside the stores. Measured, gelu makes 8192x14336x4096 31 us longer."""

PROMOTION = 1.0
"""Clocks in which an accumulator is promoted: each scheduler adds for one warp. Not fitted. With it picks among 939
configs of 24 problems with scales of blocks (results/h100/tune-fp8-blocks) stand at 0.973 of the best there."""

ORDERED = 1.2
"""Clocks of a finish that are hidden for each clock of one consumer's part of the stages that are multiplied in order:
one finishes under the other's last stages, and the other under the first ones of the next tile; by a simulation of one
SM. Measured, the order saves up to 0.7 % of a gated layer and nothing of others (docs/ideas.md)."""


class Prediction(NamedTuple):
    """A prediction, in clocks of an SM unless the name says otherwise."""

    seconds: float  # of one launch
    # math, load, l2, ring: of one stage, each if it were the only limit; the ring's include the load's own
    math: float
    load: float
    l2: float
    ring: float
    epilogue: float  # of one tile, not overlapped
    waves: int  # rounds of the fullest SM
    clock_hz: float  # SM clock

    @property
    def limit(self) -> str:
        """The limit of a stage: ``math``, ``load``, ``l2`` or ``ring``."""
        return max(("math", "load", "l2", "ring"), key=lambda name: getattr(self, name))


def predict(
    config: GemmConfig,
    problem: GemmProblem,
    chip: Chip = SXM,
    constants: ModelConstants = FITTED,
    finish: Epilogue | None = None,
) -> Prediction:
    """Predict the launch time of a legal config on a GPU: its SMs, the clusters that run at once, the rate of its
    memory; other rates are those of the constants. Of a finish only the activation, as far as no other consumer
    multiplies meanwhile, and scales of blocks take time here. It never makes a launch faster than without it.

    Example:
        >>> cube = GemmProblem(4096, 4096, 4096)
        >>> predict(GemmConfig(tile_m=256), cube).seconds < predict(GemmConfig(tile_m=64), cube).seconds
        True
    """
    return predict_fixed(Fixed(resolve(config), constants), problem, chip, finish)


class Fixed:
    """The part of a prediction that depends on a resolved kernel alone; it serves many problems."""

    def __init__(self, kernel: Kernel, constants: ModelConstants = FITTED) -> None:
        self.kernel, self.constants = kernel, constants
        self.size, self.items, self.ctas = kernel.cluster_size, kernel.work_items, _ctas_per_sm(kernel)
        self.tile_k, self.reach = kernel.tile_k, (kernel.tile_m * kernel.cluster_m, kernel.tile_n * kernel.cluster_n)
        self.product, self.math = _math(kernel, constants)
        self.epilogue, self.entry = _epilogue(kernel, constants), entry(kernel, constants)
        # True if the next tile's loads run during the epilogue
        self.early = kernel.persistent and kernel.specialised and kernel.staging == "own"
        self.stage = ELEMENT_BYTES * kernel.tile_k
        # bytes of A and of B that a CTA loads in a stage, matrices' ends aside
        self.boxes = self.stage * kernel.tile_m / kernel.cluster_n, self.stage * kernel.tile_n / kernel.cluster_m
        # boxes in 128 bytes beyond one, of A and of B where they are contiguous along m and n
        shares = kernel.share_m, kernel.share_n
        self.extra_boxes = tuple(hopper.SWIZZLE_BYTES[0] // swizzle_bytes(share) - 1 for share in shares)
        self.rates = {along_k: _load_rate(kernel, along_k, constants) for along_k in (False, True)}
        # share of a launch that its limits take, and what operands whose rows start off sectors add to it
        self.level = constants.level + constants.small * max(0.0, log(128 * 128 / (kernel.tile_m * kernel.tile_n)))
        self.single = constants.single if self.size == 1 else 0.0
        self.box = hopper.WGMMA_M if kernel.swap_ab else kernel.chunk_n  # columns of C that a store writes at a time
        # clusters from the first to the last that may read the same panels at a time, and how these follow one another
        self.near = (1 if self.size == 1 else TURNS) * max(1, NEIGHBOURS // self.size)
        walk = kernel.raster, kernel.swizzle, kernel.serpentine
        self.walk = walk, self.items, kernel.part_order == "part", self.size


def predict_fixed(fixed: Fixed, problem: GemmProblem, chip: Chip = SXM, finish: Epilogue | None = None) -> Prediction:
    """:func:`predict` of a kernel whose part is at hand."""
    blocks, promote, problem = in_blocks(problem, finish), problem.promote, problem.in_words
    kernel, constants, size, starts = fixed.kernel, fixed.constants, fixed.size, astray(problem)
    output = down, across = output_sides(kernel, problem.m, problem.n)
    sides = -(-down // fixed.reach[0]), -(-across // fixed.reach[1])
    tiles, fits = sides[0] * sides[1], clusters_at_once(size, chip)
    clusters, slots = tiles * fixed.items, clusters_launched(kernel, fits * fixed.ctas)
    resident = slots if kernel.stream_k else min(slots, clusters)
    steps, math = ceil(ceil(problem.k / fixed.tile_k) / kernel.split_k), fixed.math

    if promote and (kernel.readers == 1 or blocks):
        promotion = PROMOTION * kernel.accumulators * 2 * fixed.tile_k / promote
        alone = math / kernel.readers + constants.drain + promotion
        # other consumers multiply while the sums of one are promoted
        math = alone if kernel.readers == 1 else _norm((math, alone), constants.sharpness)
    taken = l2_bytes_per_stage(kernel, problem)
    requested, passed = _requested(fixed, problem, taken, sides, chip)
    load = requested / constants.l2_bytes + constants.stage + _from_dram(fixed, output, sides, resident, chip)
    load += constants.outside * _outside(fixed, output, sides, problem.k) * min(1.0, resident / tiles)
    l2 = passed / constants.l2_share * min(1.0, resident * size / chip.sms)
    away = constants.away if size > 1 else 0.0
    ring = (math + constants.latency + away + load) / max(1, kernel.stages - kernel.stagger)
    ctas = min(fixed.ctas, ceil(clusters / fits))
    math, load, l2 = math * ctas, load * ctas, l2 * ctas
    each = _norm((math, load, l2, ring), constants.sharpness)

    epilogue = fixed.epilogue
    if finish is not None:
        longer = ACTIVATION_CLOCKS.get(finish.activation, 0.0) * kernel.accumulators * kernel.readers
        longer /= 2 if finish.gated else 1  # half of the registers are activated
        epilogue += max(0.0, longer - ORDERED * ordered_stages(kernel) * math / 2)
    rounds = ceil(clusters / resident)
    if kernel.schedule == "pingpong":  # the other consumer multiplies meanwhile, except after the last tile
        total = rounds * (max(each * steps, (each * steps + epilogue) / 2) + constants.turn) + epilogue
    else:
        idle = epilogue if fixed.early else epilogue + constants.latency + load
        whole, rest = divmod(clusters, resident)
        if kernel.stream_k and (rest or not whole):
            left = 2 * kernel.tile_m * kernel.tile_n * 4 / constants.l2_bytes + constants.apart
            left += 0 if whole else constants.piece * max(1.0, slots / rest - 1)
            total = whole * (each * steps + idle) + each * max(8, rest * steps / slots) + idle + left
        else:
            total = rounds * (each * steps + idle)
    if kernel.scheduler == "dynamic":
        total = total * (1 - constants.balance * (1 - 1 / rounds)) + constants.counted
    total += fixed.entry + load

    stages = clusters * size * steps / (chip.sms * total)
    busy = min(1.0, stages * fixed.product) + constants.heat * min(1.0, stages * sum(taken) / L2_PORT_BYTES)
    clock = constants.fast_hz - constants.slope_hz * max(0.0, busy - constants.knee)
    moved = problem.bytes + _torn(fixed, problem) * problem.out_bytes * problem.m * problem.n
    least = moved / (constants.dram_rate * chip.memory_rate) + constants.launch / clock
    seconds = _norm((total / clock, least), constants.sharpness)
    if seconds > DRIFTING and not kernel.pace:
        seconds *= 1 + constants.drift
    alike = load * l2 / max(math, load, l2, ring) ** 2
    limited = problem.bytes / chip.memory_rate / seconds
    slowed = fixed.level + fixed.single * (starts[0][1] + starts[1][1])
    slowed += constants.shared * log(kernel.split_k) * limited**2
    seconds *= slowed + constants.alike * alike
    if finish is not None and finish.gated and not kernel.swap_ab and kernel.consumers == 1 and sides[0] > 1:
        seconds *= GATED_ALONE
    return Prediction(seconds, math, load, l2, ring, epilogue, rounds, clock)


def in_blocks(problem: GemmProblem, finish: Epilogue | None) -> bool:
    """Return True if operands have scales of blocks, by a finish or the problem's own."""
    finish = finish or finish_of(problem)
    return finish is not None and finish.scales == "blocks"


def _math(kernel: Kernel, constants: ModelConstants) -> tuple[float, float]:
    """Clocks of a stage in the tensor cores: the products alone, and with what delays them."""
    product = 2 * kernel.tile_m * kernel.tile_n * kernel.tile_k / hopper.FLOP_PER_CLOCK_PER_SM
    filled = constants.write_share * kernel.stage_bytes / SMEM_BYTES_PER_CLOCK
    wgmma = 2 * hopper.WGMMA_M * kernel.share_n * hopper.WGMMA_K / hopper.FLOP_PER_CLOCK_PER_SM
    reads = ELEMENT_BYTES * hopper.WGMMA_K * (hopper.WGMMA_M + kernel.share_n) / SMEM_BYTES_PER_CLOCK
    math = max(product, product * (reads / wgmma) + filled)
    if not kernel.stagger and kernel.readers == 1:
        math += constants.drain
    return product, math


def _epilogue(kernel: Kernel, constants: ModelConstants) -> float:
    """Clocks of the epilogue of a tile, split-K's sum included."""
    epilogue = constants.epilogue * kernel.accumulators * (constants.direct if kernel.stores == "direct" else 1.0)
    if kernel.stores == "tma":
        epilogue += kernel.chunks * (constants.chunk + (constants.lone if kernel.epi_buffers == 1 else 0.0))
    if kernel.work_items > 1:
        return epilogue + constants.apart + through_memory(kernel, constants)
    if kernel.split_k > 1:
        return epilogue + constants.meet + kernel.tile_m * kernel.tile_n * 4 / SMEM_BYTES_PER_CLOCK
    return epilogue


def _torn(fixed: Fixed, problem: GemmProblem) -> float:
    """Extra share of C's bytes that writing it takes where rows of C, or of what a store writes, end within sectors."""
    kernel, constants = fixed.kernel, fixed.constants
    shred = 32 * constants.shred / min(fixed.box, hopper.L2_LINE_BYTES // problem.out_bytes)
    if problem.n * problem.out_bytes % SECTOR_BYTES:
        across = kernel.tile_m * kernel.cluster_m if kernel.swap_ab else kernel.tile_n * kernel.cluster_n
        return 128 * constants.torn / across + shred
    return shred if kernel.stores == "tma" and fixed.box * problem.out_bytes % SECTOR_BYTES else 0.0


def entry(kernel: Kernel, constants: ModelConstants) -> float:
    """Clocks of a launch beside its rounds, its first load excluded."""
    size = kernel.cluster_size
    hidden = (constants.alone if size == 1 else constants.paired) if kernel.pdl else 0.0
    launch = constants.launch + (constants.cluster if size > 1 else 0.0)
    tail = constants.tail * ELEMENT_BYTES * kernel.tile_m * kernel.tile_n
    return launch * (1 - hidden) + constants.latency + tail


def _load_rate(kernel: Kernel, along_k: bool, constants: ModelConstants) -> float:
    """Rate of loads, relative to TMA's with boxes of 128 bytes; those of an operand along k span what a stage has."""
    span = kernel.swizzle_bytes if along_k else hopper.SWIZZLE_BYTES[0]
    rate = {128: 1.0, 64: constants.half}.get(span, constants.quarter)
    return rate * (constants.thread_loads if kernel.loads != "tma" else 1.0)


def _norm(limits: tuple[float, ...], sharpness: float) -> float:
    """Smooth maximum of several limits."""
    most = max(limits)
    return most * sum([(limit / most) ** sharpness for limit in limits]) ** (1 / sharpness)


def _ctas_per_sm(kernel: Kernel) -> int:
    """CTAs that share an SM; a persistent launch has ``ctas_per_sm``."""
    if kernel.persistent or kernel.ctas_per_sm > 1:
        return kernel.ctas_per_sm
    by_memory = hopper.SMEM_BYTES_PER_SM // (kernel.smem_bytes + hopper.SMEM_SYSTEM_BYTES)
    if kernel.registers.moved:  # the launch takes all registers
        return 1
    by_registers = hopper.REGISTERS_PER_SM // (kernel.threads * (kernel.accumulators + REGISTERS_BESIDE))
    return max(1, min(by_memory, by_registers))


def through_memory(kernel: Kernel, constants: ModelConstants) -> float:
    """Clocks in which a CTA writes its part of a tile to a workspace and reads its own chunks from every part."""
    tile = 4 * kernel.tile_m * kernel.tile_n
    own = ceil(kernel.chunks / kernel.split_k) / kernel.chunks
    return tile / constants.scatter + kernel.split_k * own * tile / constants.gather


def l2_bytes_per_stage(config: GemmConfig, problem: GemmProblem) -> tuple[float, float]:
    """Bytes of A and B that an SM takes from the L2 for a stage, multicast counted once, none outside the matrices."""
    rows, columns = map(min, (config.tile_m, config.tile_n), output_sides(config, problem.m, problem.n))
    row = ELEMENT_BYTES * config.tile_k
    return row * rows / config.cluster_n, row * columns / config.cluster_m


def _requested(
    fixed: Fixed, problem: GemmProblem, taken: tuple[float, float], sides: tuple[int, int], chip: Chip
) -> tuple[float, float]:
    """Bytes that an SM asks for in a stage, those in narrow boxes, off lines of the L2 and outside the matrices by what
    they cost; and those that are left of them if what neighbours ask for too counts once. ``taken`` are the bytes of
    A and of B (:func:`l2_bytes_per_stage`), ``sides`` cluster tiles down and across the output."""
    constants, near, slower = fixed.constants, fixed.near, SXM.memory_rate / chip.memory_rate
    again = _repeated((min(sides[0], near), min(sides[1], near)), *fixed.walk)
    layouts, starts = problem.layouts, astray(problem)
    if fixed.kernel.swap_ab:
        layouts, starts = layouts[::-1], starts[::-1]
    requested = passed = 0.0
    for side, axis in enumerate(layouts):
        (lines, sectors), inside, rate = starts[side], taken[side], fixed.rates[axis == "k"]
        more = 0 if axis == "k" else fixed.extra_boxes[side]
        off = inside * (lines * constants.off_lines + sectors * constants.off_sectors) * slower
        beyond = (fixed.boxes[side] - inside) * constants.beyond
        requested += (inside + beyond) * (1 + constants.narrow * more) / rate + off * (1 + constants.straddle * more)
        passed += (inside * (1 - again[side]) + beyond) / rate + off
    return requested, passed


def _outside(fixed: Fixed, output: tuple[int, int], sides: tuple[int, int], k: int) -> float:
    """Pieces of 128 bytes outside the matrices that the boxes of all tiles hold in a stage, multicast counted once."""
    kernel, (down, across) = fixed.kernel, output
    past_m, past_n = sides[0] * fixed.reach[0] - down, sides[1] * fixed.reach[1] - across
    if (past_m or past_n) and kernel.moves_back(k):
        past_m = sides[0] * kernel.cluster_m * max(0, kernel.tile_m - down)
        past_n = sides[1] * kernel.cluster_n * max(0, kernel.tile_n - across)
    return (past_m * sides[1] + past_n * sides[0]) * fixed.stage / hopper.L2_LINE_BYTES


def _from_dram(fixed: Fixed, output: tuple[int, int], sides: tuple[int, int], resident: int, chip: Chip) -> float:
    """Clocks that what all busy SMs read from DRAM adds to the load of a stage: panels of the part of the output
    that is computed at once; see :func:`hopper_gemm.model.roofline.best_swizzle`."""
    kernel, constants, (down, across), (rows, columns) = fixed.kernel, fixed.constants, output, fixed.reach
    area = resident / fixed.items * rows * columns
    height, width = sides[0] * rows, sides[1] * columns
    if kernel.raster == "m":
        wide = float(min(kernel.swizzle * columns, width))
        tall = min(area / wide, height)
    else:
        tall = float(min(kernel.swizzle * rows, height))
        wide = min(area / tall, width)
    read = fixed.stage * kernel.split_k * (min(tall, down) + min(wide, across))
    read *= 1.0 if kernel.serpentine else 1.0 + constants.straight
    return constants.dram_share * read * (BURST_HZ / chip.memory_rate)


@cache
def _repeated(
    sides: tuple[int, int], walk: tuple[str, int, bool], parts: int, by_part: bool, size: int
) -> tuple[float, ...]:
    """Share of the panels of A and of B, read by the clusters of one GPC at a time, that another of these reads too: by
    cluster tiles down and across the output, raster, swizzle and serpentine, split-K parts of a tile that are work
    items, whether all tiles of a part come first, and CTAs of a cluster."""
    (raster, swizzle, serpentine), tiles, stride = walk, sides[0] * sides[1], 1 if size == 1 else TURNS
    items = range(0, min(stride * max(1, NEIGHBOURS // size), tiles * parts), stride)
    numbers = [divmod(item, tiles) if by_part else (item % parts, item // parts) for item in items]
    read = [(part, *tile_at(tile, *sides, raster, swizzle, serpentine)) for part, tile in numbers]
    return tuple(1 - len({(of[0], of[side]) for of in read}) / len(items) for side in (1, 2))


@cache
def astray(problem: GemmProblem) -> tuple[tuple[bool, bool], ...]:
    """Return of each operand whether its rows start at sectors but off lines of the L2, and whether they start off
    sectors. Rows of padded operands start at lines."""
    rows = {"m": problem.m, "n": problem.n, "k": problem.k}
    starts = []
    for name, axis in zip("ab", problem.layouts, strict=True):
        start = 0 if name in problem.out_of_reach else ELEMENT_BYTES * rows[axis] % hopper.L2_LINE_BYTES
        starts.append((start in (32, 96), start % 32 > 0))
    return tuple(starts)
