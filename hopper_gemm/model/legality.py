"""What can run: one list of named rules, asked before any compiler is called.

Every reader of the rules - the kernel's builder, the sweep's enumeration, ``explain`` - uses this list; there is no
second one. A config that passes compiles without a spill and computes the right product; the tests hold that for the
whole published grid and for hundreds of drawn configs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from hopper_gemm.model import hopper
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.footprint import (
    REGISTER_SPLITS,
    WIDE_CHUNK,
    Footprint,
    accumulators_fit,
    footprint,
    is_odd_chunk,
    smem_limit,
    stages_max,
    swizzle_bytes,
)
from hopper_gemm.model.problem import ELEMENT_BYTES, GemmProblem
from hopper_gemm.model.roofline import cluster_tiles, clusters_at_once

TILE_M = (64, 128, 192, 256, 320, 384)
K_DEPTH_MAX = 16
STAGGER_MAX = 7
CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (4, 2), (2, 4))
EPI_N = (8, 16, 32, 64)
UNROLL_MAX = 4
SWIZZLE_MAX = 32
PACE_MAX = 1024
LEAST_SPAN = 16
SPLIT_K = (1, 2, 4, 8)
PARTS_MAX = 64
CTAS_PER_SM = (1, 2, 3, 4)
GATHERED_MOST = 144
PREFETCH_MAX = 64
WORKSPACE_BYTES_MAX = 2**28
STREAM_K_BOXES, STREAM_K_CHUNK = 4, 16
COPIED_ROWS = 384
UNROLL_ACCUMULATORS = 160
DIRECT_MOST = 184
L2_PROMOTIONS = (0, 64, 128, 256)
WGMMA_N_MAX_OF_THREE = 200


@dataclass(frozen=True)
class Rule:
    """One condition on a resolved config.

    Args:
        name: how tables and messages call it.
        why: the fact behind it.
        check: given the footprint of a resolved config, what is wrong and the mend, or None.
    """

    name: str
    why: str
    check: Callable[[Footprint], str | None]


@dataclass(frozen=True)
class ProblemRule:
    """One condition on a problem; as :class:`Rule`."""

    name: str
    why: str
    check: Callable[[GemmProblem], str | None]


@dataclass(frozen=True)
class PairRule:
    """One condition on a config and a problem together; as :class:`Rule`."""

    name: str
    why: str
    check: Callable[[Footprint, GemmProblem], str | None]


@dataclass(frozen=True)
class Reason:
    """Why something cannot run: the rule's name and one line for a person."""

    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


def _one_of(name: str, allowed: tuple[int, ...]) -> Callable[[Footprint], str | None]:
    def check(shares: Footprint) -> str | None:
        value = getattr(shares.config, name)
        if value in allowed:
            return None
        return f"{name} must be one of {', '.join(map(str, allowed))} but got {value}"

    return check


def _tile_n(shares: Footprint) -> str | None:
    tile_n = shares.config.tile_n
    if tile_n % hopper.WGMMA_N_STEP == 0 and tile_n <= hopper.WGMMA_N_MAX:
        return None
    return f"tile_n must be a multiple of {hopper.WGMMA_N_STEP} up to {hopper.WGMMA_N_MAX} but got {tile_n}"


def _k_depth(shares: Footprint) -> str | None:
    if shares.config.k_depth <= K_DEPTH_MAX:
        return None
    return f"k_depth must be 1 to {K_DEPTH_MAX} but got {shares.config.k_depth}"


def _split(shares: Footprint) -> str | None:
    config = shares.config
    assert isinstance(config.consumers, int)
    if config.schedule == "pingpong":
        return None if config.split == "m" else 'pingpong divides no tile; leave split at "auto"'
    if config.split == "m":
        if config.tile_m % (hopper.WGMMA_M * config.consumers) == 0:
            return None
        return (
            f"{config.consumers} consumers cannot share tile_m = {config.tile_m} in blocks of {hopper.WGMMA_M} rows; "
            "split along n or change consumers"
        )
    if config.tile_n % (hopper.WGMMA_N_STEP * config.consumers) == 0:
        return None
    return (
        f"{config.consumers} consumers cannot share tile_n = {config.tile_n} "
        f"in blocks of {hopper.WGMMA_N_STEP} columns; split along m or change consumers"
    )


def _schedule(shares: Footprint) -> str | None:
    config = shares.config
    if config.schedule != "pingpong" or config.consumers == 2:
        return None
    return f'pingpong takes turns between 2 consumers but got {config.consumers}; leave consumers at "auto"'


def _loads(shares: Footprint) -> str | None:
    config = shares.config
    if config.loads == "tma":
        return None
    if not config.specialised:
        return f'loads "cp_async" come from a producer warpgroup; {config.schedule} has none, take cooperative'
    if config.cluster_size > 1:
        return 'loads "cp_async" cannot multicast; take cluster 1x1'
    if config.tile_m + config.tile_n > COPIED_ROWS:
        return (
            f'loads "cp_async" copy at most {COPIED_ROWS} rows of A and B a stage but got '
            f"{config.tile_m + config.tile_n}; take a smaller tile"
        )
    if config.full_barriers > 1:
        return 'loads "cp_async" land in order and need one full barrier; take full_barriers = 1'
    return None


def _unroll(shares: Footprint) -> str | None:
    config = shares.config
    assert isinstance(config.stages, int)
    if not config.unroll:
        return None
    if config.stages > UNROLL_MAX:
        return (
            f"an unrolled loop holds at most {UNROLL_MAX} stages but got {config.stages}; take fewer or do not unroll"
        )
    if shares.accumulators > UNROLL_ACCUMULATORS:
        return (
            f"an unrolled loop leaves {UNROLL_ACCUMULATORS} accumulators but got {shares.accumulators}; do not unroll"
        )
    return None


def _split_k(shares: Footprint) -> str | None:
    config = shares.config
    if config.split_k == 1:
        return None
    if config.reduction == "workspace":
        return _split_through_workspace(shares)
    if config.split_k not in SPLIT_K:
        return (
            f"split_k must be one of {', '.join(map(str, SPLIT_K))} but got {config.split_k}; "
            f'take reduction "workspace" for any up to {PARTS_MAX}'
        )
    alone = config.cluster_m * config.cluster_n == 1 and config.schedule == "cooperative"
    if not alone or config.loads != "tma" or config.stores != "tma":
        return "split_k takes the cluster for itself: take cluster 1x1, schedule cooperative, loads and stores tma"
    if shares.chunks % config.split_k:
        return f"{shares.chunks} chunks of a consumer cannot be dealt to {config.split_k} CTAs; take a smaller epi_n"
    assert isinstance(config.stages, int)
    room = shares.stage_bytes * config.stages
    if shares.reduction_bytes > room:
        return f"the parts of a tile take {shares.reduction_bytes} B but the ring has {room}; take more stages"
    return None


def _split_through_workspace(shares: Footprint) -> str | None:
    config = shares.config
    most = min(PARTS_MAX, clusters_at_once(config.cluster_size) * config.ctas_per_sm)
    if config.split_k > most:
        return f"split_k must be at most {most}, parts that are under way at once, but got {config.split_k}"
    if config.schedule != "cooperative" or not config.persistent:
        return 'reduction "workspace" waits for parts that must be under way: take schedule cooperative, persistent'
    if config.loads != "tma" or config.stores != "tma":
        return 'reduction "workspace" deals out chunks that lie in shared memory: take loads and stores tma'
    if shares.accumulators > GATHERED_MOST:
        return (
            f'reduction "workspace" has registers for {GATHERED_MOST} accumulators but got {shares.accumulators}; '
            "take a smaller tile"
        )
    if config.full_barriers > 1:
        return 'reduction "workspace" has no registers for more barriers; take full_barriers 1'
    return None


def _reduction(shares: Footprint) -> str | None:
    if shares.config.reduction == "workspace" and shares.config.split_k == 1:
        return 'reduction "workspace" adds up parts of k and split_k is 1; take reduction "cluster" or raise split_k'
    return None


def _prefetch(shares: Footprint) -> str | None:
    config = shares.config
    if config.prefetch == 0:
        return None
    if config.prefetch > PREFETCH_MAX:
        return f"prefetch must be 0 to {PREFETCH_MAX} stages but got {config.prefetch}"
    if not config.early:
        return "prefetch is what a kernel does while it waits for the one ahead: take early, or prefetch 0"
    if config.loads != "tma":
        return 'prefetch asks by TMA, which loads "cp_async" do without; take loads tma or prefetch 0'
    return None


def _swizzle(shares: Footprint) -> str | None:
    if shares.config.swizzle <= SWIZZLE_MAX:
        return None
    return f"swizzle must be 1 to {SWIZZLE_MAX} but got {shares.config.swizzle}"


def _zigzag(shares: Footprint) -> str | None:
    if not shares.config.zigzag or _walks(shares.config):
        return None
    return f"zigzag turns k round from tile to tile of a CTA: {_WALKS}"


def _pace(shares: Footprint) -> str | None:
    config = shares.config
    if config.pace == 0:
        return None
    if config.pace > PACE_MAX:
        return f"pace must be 0 to {PACE_MAX} stages but got {config.pace}"
    if config.stream_k:
        return "pace and stream_k together run out of registers; leave one of them out"
    return None if _walks(config) else f"pace holds back who walks over tiles: {_WALKS}"


_WALKS = "take loads tma by a producer, persistent, split_k 1"


def _walks(config: GemmConfig) -> bool:
    """Whether a producer walks over whole tiles."""
    return config.specialised and config.loads == "tma" and config.persistent and config.split_k == 1


def _evict_c(shares: Footprint) -> str | None:
    if not shares.config.evict_c or shares.config.stores == "tma":
        return None
    return 'evict_c needs stores by TMA and stores are "direct"; take stores tma'


def _stream_k(shares: Footprint) -> str | None:
    config = shares.config
    if not config.stream_k:
        return None
    if config.schedule != "cooperative" or not config.persistent or config.split_k > 1:
        return "stream_k cuts the last wave of a persistent launch: take schedule cooperative, persistent, split_k 1"
    boxes = ELEMENT_BYTES * config.tile_k // shares.swizzle_bytes
    if boxes > STREAM_K_BOXES:
        return (
            f"stream_k's producer has registers for {STREAM_K_BOXES} boxes of a stage but got {boxes}; change k_depth"
        )
    if shares.chunk_n < STREAM_K_CHUNK:
        return f"stream_k stores chunks of {STREAM_K_CHUNK} columns at least but got {shares.chunk_n}; raise epi_n"
    assert isinstance(config.consumers, int)
    if is_odd_chunk(shares.chunk_n) and (shares.accumulators > GATHERED_MOST or config.consumers > 2):
        return (
            f"stream_k has no registers for chunks of {shares.chunk_n} columns beside {shares.accumulators} "
            f"accumulators of {config.consumers} consumers; take epi_n of {', '.join(map(str, EPI_N))}"
        )
    if config.cluster_size > 2:
        return "stream_k waits for clusters that must all be resident: take a cluster of two at most"
    if config.loads != "tma":
        return 'stream_k starts within a tile, which loads "cp_async" cannot; take loads tma'
    return None


def _swap_ab(shares: Footprint) -> str | None:
    if shares.config.swap_ab and shares.config.stores == "direct":
        return 'stores "direct" write rows of C and swap_ab computes columns; take stores tma'
    return None


def _stores(shares: Footprint) -> str | None:
    config = shares.config
    if config.stores == "tma":
        return None
    if config.specialised and config.consumers == 2 and min(shares.share_n, shares.accumulators) > DIRECT_MOST:
        return (
            f'stores "direct" from {shares.accumulators} accumulators, {shares.share_n} columns wide, run out of '
            f"registers beyond {DIRECT_MOST} of both; take stores tma"
        )
    if config.epi_n == 0 and config.epi_buffers == 0:
        return None
    return 'stores "direct" use no chunks; leave epi_n at "auto" and epi_buffers at "max"'


def _arrivals(shares: Footprint) -> str | None:
    config = shares.config
    if config.arrivals == "warp" or config.cluster_size == 1:
        return None
    return 'arrivals of every "thread" reach only their own CTA; take cluster 1x1'


def _registers(shares: Footprint) -> str | None:
    if accumulators_fit(shares):
        return None
    room = shares.registers.consumer - shares.spare_registers
    return (
        f"{shares.accumulators} accumulator registers per thread exceed the {room} that {shares.config.consumers} "
        "consumers leave; take a smaller tile or more consumers"
    )


def _wgmma_n(shares: Footprint) -> str | None:
    config = shares.config
    if config.consumers != 3 or not config.specialised or shares.share_n <= WGMMA_N_MAX_OF_THREE:
        return None
    return (
        f"with 3 consumers a wgmma may be at most {WGMMA_N_MAX_OF_THREE} columns wide but is {shares.share_n}; "
        "split along n or take 2 consumers"
    )


def _stages(shares: Footprint) -> str | None:
    config = shares.config
    most = stages_max(config)
    if most == 0:
        need = shares.stage_bytes
        return f"exceeds smem: one stage of {need} B does not fit beside the epilogue; take a smaller tile or k_depth"
    assert isinstance(config.stages, int)
    if 1 <= config.stages <= most:
        return None
    return f"stages must be 1 to {most} here but got {config.stages}; one stage takes {shares.stage_bytes} B"


def _stagger(shares: Footprint) -> str | None:
    config = shares.config
    assert isinstance(config.stages, int)
    most = max(0, min(config.stages - 1, STAGGER_MAX))
    if config.stages == 0 or config.stagger <= most:
        return None
    return f"stagger must be 0 to {most} with {config.stages} stages but got {config.stagger}"


def _cluster(shares: Footprint) -> str | None:
    config = shares.config
    if (config.cluster_m, config.cluster_n) in CLUSTERS:
        return None
    allowed = ", ".join(f"{m}x{n}" for m, n in CLUSTERS)
    return f"cluster must be one of {allowed} but got {config.cluster_m}x{config.cluster_n}"


def _multicast(shares: Footprint) -> str | None:
    config = shares.config
    if config.multicast == "turns":
        if config.cluster_m * config.cluster_n == 1:
            return 'multicast "turns" is for CTAs that share a tile and cluster is 1x1; leave it at "rows"'
        return None
    for side, rows, sharers in (
        ("tile_m", config.tile_m, config.cluster_n),
        ("tile_n", config.tile_n, config.cluster_m),
    ):
        if rows % (8 * sharers):
            return (
                f"{side} = {rows} cannot be cut into {sharers} parts of whole 8-row atoms; change it or the cluster, "
                'or take multicast "turns"'
            )
    return None


def _epi_n(shares: Footprint) -> str | None:
    config = shares.config
    if config.stores == "direct":
        return None
    assert isinstance(config.epi_n, int)
    if not is_odd_chunk(config.epi_n):
        return _one_of("epi_n", EPI_N)(shares)
    if shares.share_n % config.epi_n:
        return (
            f"chunks of {config.epi_n} columns cannot make up a share of {shares.share_n}; take a divisor, or {EPI_N}"
        )
    return None


def _staging(shares: Footprint) -> str | None:
    config = shares.config
    assert isinstance(config.stages, int)
    if config.stores == "direct" or config.stages > stages_max(config):
        return None
    if config.epi_buffers == 0:
        return 'epi_buffers must be at least 1 but got 0; leave it at "max"'
    if shares.smem_bytes <= smem_limit(config):
        return None
    return (
        f"{config.epi_buffers} epilogue buffers take the CTA to {shares.smem_bytes} B of {smem_limit(config)}; "
        'leave epi_buffers at "max"'
    )


RULES = (
    Rule("tile_m", "a tile is whole 64-row wgmma blocks, up to three consumers of two each", _one_of("tile_m", TILE_M)),
    Rule("tile_n", "wgmma's n goes from 8 to 256 in steps of 8", _tile_n),
    Rule("k_depth", "deeper stages leave no room for a second one", _k_depth),
    Rule(
        "consumers",
        "four consumer warpgroups leave too few registers at entry",
        _one_of("consumers", tuple(REGISTER_SPLITS)),
    ),
    Rule("schedule", "two accumulator sets fit into an SM's registers, three do not", _schedule),
    Rule("split", "each consumer needs whole wgmma blocks of the side that is split", _split),
    Rule("ctas_per_sm", "shared memory for a ring is what there is for all", _one_of("ctas_per_sm", CTAS_PER_SM)),
    Rule("registers", "accumulators live in registers; a spill costs more than any tile gains", _registers),
    Rule(
        "wgmma_n", "512 threads enter with 128 registers each, and one instruction must fit into them (C7602)", _wgmma_n
    ),
    Rule("stages", "the ring and the epilogue's staging share one SM's 227 KiB", _stages),
    Rule("stagger", "a stage held back is a stage that cannot be loaded; with none free the ring deadlocks", _stagger),
    Rule("cluster", "clusters of two and four are built; eight strand SMs, since GPCs are unequal", _cluster),
    Rule("multicast", "a CTA multicasts whole 8-row swizzle atoms, or the copy never completes", _multicast),
    Rule("swizzle", "a wider group than the GPU has clusters abreast is another raster", _swizzle),
    Rule("loads", "threads copy into their own CTA, and complete a barrier by arriving, not by bytes", _loads),
    Rule("stores", "registers that go straight to global memory pass no buffers", _stores),
    Rule("split_k", "parts of a tile meet in the ring's memory, once nobody reads it any more", _split_k),
    Rule("reduction", "a workspace holds parts of k", _reduction),
    Rule("prefetch", "operands can be asked into the L2 while another kernel writes them, not read", _prefetch),
    Rule("zigzag", "the one who loads a tile decides from which end of k", _zigzag),
    Rule("pace", "those who wait for one another must be there at once, each with a place to wait", _pace),
    Rule("evict_c", "a hint to the L2 goes with a store by TMA", _evict_c),
    Rule("stream_k", "all clusters must be there at once, for one waits for the sums of others", _stream_k),
    Rule("swap_ab", "a transposed tile is turned round on its way through shared memory", _swap_ab),
    Rule("unroll", "the addresses of many unrolled stages take more registers than there are", _unroll),
    Rule("arrivals", "one instruction of a warp arrives on one barrier for each lane", _arrivals),
    Rule("full_barriers", "a stage has two loads, A and B", _one_of("full_barriers", (1, 2))),
    Rule("l2_promotion", "sizes that a TMA descriptor can name", _one_of("l2_promotion", L2_PROMOTIONS)),
    Rule("epi_n", "an epilogue chunk is one TMA box with one swizzle", _epi_n),
    Rule("epi_buffers", "the epilogue's buffers come after the ring", _staging),
)
"""The rules on configs, in the order in which their reasons are given."""


def _aligned(name: str) -> Callable[[GemmProblem], str | None]:
    step = hopper.TMA_ALIGN_BYTES // ELEMENT_BYTES

    def check(problem: GemmProblem) -> str | None:
        value = getattr(problem, name)
        if value % step == 0 or (name != "n" and name not in problem.layouts):
            return None
        return f"{name} must be a multiple of {step} but got {value}; pad it to {-(-value // step) * step}"

    return check


_PITCHES = "TMA wants pitches in multiples of 16 bytes"

PROBLEM_RULES = (
    ProblemRule("m_aligned", f"{_PITCHES}: m is that of A where A is contiguous along m", _aligned("m")),
    ProblemRule("n_aligned", f"{_PITCHES}: n is that of C, and of B where B is contiguous along n", _aligned("n")),
    ProblemRule("k_aligned", f"{_PITCHES}: k is that of the operands contiguous along k", _aligned("k")),
)
"""The rules on problems."""


def _parts_of_k(shares: Footprint, problem: GemmProblem) -> str | None:
    config = shares.config
    if problem.k > config.tile_k * (config.split_k - 1):
        return None
    return f"k = {problem.k} is too short for {config.split_k} parts of {config.tile_k} each; lower split_k or k_depth"


def _workspace(shares: Footprint, problem: GemmProblem) -> str | None:
    config = shares.config
    if config.work_items == 1:
        return None
    tiles = cluster_tiles(config, problem) * config.cluster_size
    need = 4 * config.split_k * tiles * config.tile_m * config.tile_n
    if need <= WORKSPACE_BYTES_MAX:
        return None
    most = WORKSPACE_BYTES_MAX // 2**20
    return f"{config.split_k} parts of the output take {need / 2**20:.0f} MiB of {most} for a workspace; lower split_k"


def _layouts(shares: Footprint, problem: GemmProblem) -> str | None:
    """Operands contiguous along their rows: their swizzle spans rows, and a TMA box is one row of it."""
    config = shares.config
    if problem.layouts == "kk":
        return None
    if config.loads != "tma":
        return f'loads "cp_async" read only layouts kk but got {problem.layouts}; take loads tma'
    axes = reversed(problem.layouts) if config.swap_ab else problem.layouts
    sides = (
        ("tile_m", config.tile_m, shares.share_m, config.cluster_n),
        ("tile_n", config.tile_n, shares.share_n, config.cluster_m),
    )
    for axis, (name, tile, share, sharers) in zip(axes, sides, strict=True):
        span = swizzle_bytes(share) // ELEMENT_BYTES
        if axis == "k":
            continue
        if span < LEAST_SPAN:
            return f"{name} must give each consumer a multiple of {LEAST_SPAN} with layouts {problem.layouts}"
        if tile // span % sharers:
            return f"{name} = {tile} has {tile // span} boxes of {span}, which {sharers} CTAs cannot share out"
    return None


def _output(shares: Footprint, problem: GemmProblem) -> str | None:
    """A wider output in chunks of the same bytes: they have fewer columns, each stored to an address of its own."""
    columns, least = shares.chunk_columns(problem.out_bytes), hopper.WGMMA_N_STEP
    if problem.out_bytes == ELEMENT_BYTES:
        return None
    full = shares.accumulators + shares.spare_registers >= shares.registers.consumer
    if shares.config.stream_k and shares.chunk_n == WIDE_CHUNK and full and shares.config.stores == "tma":
        return (
            f"stream_k beside {shares.accumulators} accumulators has no registers for the addresses of {columns} "
            f"columns of {problem.dtype}; take epi_n 32"
        )
    if columns % least == 0:
        return None
    need = least * problem.out_bytes // ELEMENT_BYTES
    found = f"{problem.dtype} leaves in chunks of {columns} columns here and needs whole {least}"
    if shares.share_n % need == 0:
        return f"{found}; take epi_n {need} or more"
    mend = f"{found}; give each consumer a multiple of {need} columns instead of {shares.share_n}"
    return mend if shares.config.swap_ab else f"{mend}, or take stores direct"


PAIR_RULES = (
    PairRule("split_k", "every CTA that divides k needs a stage of its own", _parts_of_k),
    PairRule("workspace", "parts of k of a large output are more traffic than they save", _workspace),
    PairRule("layouts", "TMA moves whole rows of the swizzle, which span the contiguous axis", _layouts),
    PairRule("output", "a chunk keeps its bytes, and wgmma leaves its columns in groups of eight", _output),
)
"""The rules on a config and a problem together."""


def reasons(config: GemmConfig, problem: GemmProblem | None = None) -> list[Reason]:
    """Every reason why the config cannot run the problem; empty means that it can.

    Args:
        config: any config; ``"max"`` and ``"auto"`` are resolved first.
        problem: the problem, or None to ask about the config alone.

    Example:
        >>> [reason.rule for reason in reasons(GemmConfig(tile_m=320, tile_n=128, k_depth=16))]
        ['stages']
    """
    found = []
    shares = footprint(config)
    sound = True
    for rule in RULES:
        if rule.name in _NEED_SOUND_SHARES and not sound:
            continue
        text = rule.check(shares)
        if text is not None:
            found.append(Reason(rule.name, text))
            sound = sound and rule.name not in _SHARES
    if problem is None:
        return found
    if sound:
        found += pair_reasons(config, problem)
    return found + problem_reasons(problem)


def pair_reasons(config: GemmConfig, problem: GemmProblem) -> list[Reason]:
    """Every reason why a config that is legal by itself cannot run a problem that some config can."""
    shares = footprint(config)
    checked = ((rule.name, rule.check(shares, problem)) for rule in PAIR_RULES)
    return [Reason(name, text) for name, text in checked if text is not None]


def problem_reasons(problem: GemmProblem) -> list[Reason]:
    """Every reason why no config can run the problem."""
    checked = ((rule.name, rule.check(problem)) for rule in PROBLEM_RULES)
    return [Reason(name, text) for name, text in checked if text is not None]


_SHARES = frozenset({"tile_m", "tile_n", "consumers", "schedule", "split", "ctas_per_sm"})
_NEED_SOUND_SHARES = frozenset(
    {"split", "stores", "registers", "wgmma_n", "stages", "stagger", "multicast", "unroll", "split_k", "epi_buffers"}
)
"""Rules whose figures mean nothing while the tile cannot be shared out; they wait until it can."""


def filled_up(problem: GemmProblem) -> GemmProblem:
    """The problem as it is run where TMA cannot reach its matrices: on copies, with zeros up to the next multiple of 8
    of every size that must be one. A problem that some config can run is returned as it is.

    Example:
        >>> str(filled_up(GemmProblem(628, 89, 444)))
        '628x96x448'
    """
    step = hopper.TMA_ALIGN_BYTES // ELEMENT_BYTES
    sides = {rule.name.removesuffix("_aligned") for rule in PROBLEM_RULES if rule.check(problem) is not None}
    return replace(problem, **{side: -(-getattr(problem, side) // step) * step for side in sides})


def is_legal(config: GemmConfig, problem: GemmProblem | None = None) -> bool:
    """Whether :func:`reasons` finds nothing."""
    return not reasons(config, problem)
