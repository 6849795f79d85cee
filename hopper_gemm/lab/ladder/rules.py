"""Rules on what only the design study varies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hopper_gemm.model.footprint import Footprint, is_odd_chunk
from hopper_gemm.model.problem import ELEMENT_BYTES
from hopper_gemm.model.rules.rule import Rule, one_of
from hopper_gemm.model.rules.technique import EPI_N, GATHERED_MOST

if TYPE_CHECKING:
    from hopper_gemm.lab.ladder.config import LadderConfig

UNROLL_MAX, UNROLL_ACCUMULATORS = 4, 160
PREFETCH_MAX, ROTATE_MAX = 64, 64
L2_PROMOTIONS = (0, 64, 128, 256)
STREAM_K_BOXES, STREAM_K_CHUNK = 4, 16
LIBRARY_ARRIVALS = ("warp", "elected", "consumer")


def _persistent(config: LadderConfig, footprint: Footprint) -> Iterator[str]:
    for name, walks in (
        ('reduction "workspace"', config.work_items > 1),
        ("reverse_k", config.reverse_k),
        ("pace", config.pace > 0),
        ("stream_k", config.stream_k),
        ('scheduler "dynamic"', config.scheduler == "dynamic"),
    ):
        if walks and not config.persistent:
            yield f"{name} is for CTAs that walk over several items; take persistent"


def _multistage(config: LadderConfig, footprint: Footprint) -> Iterator[str]:
    if config.specialised:
        return
    if config.loads != "tma":
        yield f'loads "{config.loads}" come from a producer warpgroup; multistage has none, take cooperative'
    if config.reverse_k or config.pace:
        yield "reverse_k and pace are for a producer that walks over whole tiles; take cooperative or pingpong"


def _full_barriers(config: LadderConfig, footprint: Footprint) -> Iterator[str]:
    yield from one_of("full_barriers", (1, 2))(config, footprint)
    if config.full_barriers > 1 and config.loads != "tma":
        yield f'loads "{config.loads}" land in order and need one full barrier; take full_barriers = 1'
    if config.full_barriers > 1 and config.work_items > 1:
        yield 'reduction "workspace" has no registers for more barriers; take full_barriers 1'


def _unroll(config: LadderConfig, footprint: Footprint) -> Iterator[str]:
    if not config.unroll:
        return
    if int(config.stages) > UNROLL_MAX:
        yield f"an unrolled loop holds at most {UNROLL_MAX} stages but got {config.stages}; take fewer or no unroll"
    if config.staging == "ring":
        yield 'staging "ring" has no room for an unrolled loop; take staging own or no unroll'
    if footprint.accumulators > UNROLL_ACCUMULATORS:
        room = f"an unrolled loop leaves {UNROLL_ACCUMULATORS} accumulators"
        yield f"{room} but got {footprint.accumulators}; do not unroll"


def _interleave_k(config: LadderConfig, footprint: Footprint) -> Iterator[str]:
    if config.interleave_k and (config.split_k == 1 or config.prefetch):
        yield "interleave_k deals the stages of k to split-K parts: raise split_k, and take prefetch 0"


def _rotate_k(config: LadderConfig, footprint: Footprint) -> Iterator[str]:
    if config.rotate_k and (config.loads != "tma" or not config.specialised or config.prefetch):
        yield "rotate_k is for a producer by TMA: take loads tma, schedule cooperative or pingpong, prefetch 0"
    if config.rotate_k > ROTATE_MAX:
        yield f"rotate_k must be 0 to {ROTATE_MAX} but got {config.rotate_k}"


def _prefetch(config: LadderConfig, footprint: Footprint) -> Iterator[str]:
    if config.prefetch > PREFETCH_MAX:
        yield f"prefetch must be 0 to {PREFETCH_MAX} stages but got {config.prefetch}"
    if config.prefetch and config.scheduler == "dynamic":
        yield 'scheduler "dynamic" does not know its first tile before the kernel ahead has ended; take prefetch 0'
    if config.prefetch and (config.loads != "tma" or not config.specialised):
        yield "prefetch is asked by TMA, by a warp of the producer: take loads tma and a schedule with a producer"


def _arrivals(config: LadderConfig, footprint: Footprint) -> Iterator[str]:
    if config.every_thread("producer") and config.scheduler == "dynamic":
        yield (
            f'scheduler "dynamic" ends with a slot that one thread fills and arrivals "{config.arrivals}" expects all '
            "of a warp; take arrivals warp"
        )
    if config.arrivals not in ("warp", "group") and config.cluster_size > 1:
        yield f'arrivals "{config.arrivals}" reach only their own CTA; take cluster 1x1'


def _waits(config: LadderConfig, footprint: Footprint) -> Iterator[str]:
    if config.waits == "relaxed" and (config.loads != "tma" or config.scheduler != "static"):
        yield 'waits "relaxed" do not show what threads wrote: take loads tma and scheduler static'


def _ring(config: LadderConfig, footprint: Footprint) -> Iterator[str]:
    if config.ring == "own":
        return
    if config.loads != "tma" or config.full_barriers > 1 or config.scheduler != "static" or config.waits != "acquire":
        yield 'ring "library" takes loads tma, full_barriers 1, scheduler static and waits acquire'
    if config.ring_state != "index_phase":
        yield f'ring "library" has a state of its own; leave ring_state but got {config.ring_state}'
    if config.arrivals not in LIBRARY_ARRIVALS:
        yield f'ring "library" offers arrivals {", ".join(LIBRARY_ARRIVALS)} but got {config.arrivals}'


def _spills(config: LadderConfig, footprint: Footprint) -> Iterator[str]:
    plain = config.schedule == "cooperative" and config.split_k == 1 and not config.stream_k
    if config.spills and (not plain or config.unroll):
        yield "spills are for one plain kernel: take schedule cooperative, split_k 1, no stream_k, no unroll"


def _skew(config: LadderConfig, footprint: Footprint) -> Iterator[str]:
    if config.skew == 0:
        return
    if config.schedule != "cooperative" or config.consumers == 1 or footprint.parts_meet or config.loads != "tma":
        yield "skew is between consumers that share a tile: take schedule cooperative, 2 or 3 consumers, loads tma"
    most = (int(config.stages) - 1 - config.stagger) // (int(config.consumers) - 1)
    if config.skew > most:
        yield f"skew must be 0 to {most} with {config.stages} stages but got {config.skew}: the ring holds no more"


def _stream_k(config: LadderConfig, footprint: Footprint) -> Iterator[str]:
    if not config.stream_k:
        return
    if config.schedule != "cooperative" or config.split_k > 1:
        yield "stream_k cuts the last wave of a launch: take schedule cooperative, split_k 1"
    boxes = ELEMENT_BYTES * config.tile_k // footprint.swizzle_bytes
    if boxes > STREAM_K_BOXES:
        yield f"stream_k's producer has registers for {STREAM_K_BOXES} boxes a stage but got {boxes}; change k_depth"
    if footprint.chunk_n < STREAM_K_CHUNK:
        yield f"stream_k stores chunks of {STREAM_K_CHUNK} columns at least but got {footprint.chunk_n}; raise epi_n"
    if is_odd_chunk(footprint.chunk_n) and (footprint.accumulators > GATHERED_MOST or int(config.consumers) > 2):
        yield (
            f"stream_k has no registers for chunks of {footprint.chunk_n} columns beside {footprint.accumulators} "
            f"accumulators of {config.consumers} consumers; take epi_n of {', '.join(map(str, EPI_N))}"
        )
    if config.pace:
        yield "pace and stream_k together run out of registers; leave one of them out"
    if config.consumers == 4:
        yield "stream_k has no registers for 4 consumers; take 2 or 3"
    if config.staging == "ring":
        yield 'staging "ring" stores whole tiles; take stream_k false, or staging own'
    if config.scheduler == "dynamic":
        yield 'scheduler "dynamic" takes whole tiles or split-K parts through a workspace; take static'
    if config.cluster_size > 2:
        yield "stream_k waits for clusters that must all be resident: take a cluster of two at most"
    if config.loads != "tma":
        yield f'stream_k starts within a tile, which loads "{config.loads}" cannot; take loads tma'


LADDER_RULES = (
    Rule("persistent", "what passes from item to item wants more than one item", _persistent),
    Rule("multistage", "without a producer nobody walks ahead of the consumers", _multistage),
    Rule("interleave_k", "there are stages to deal out where k has parts", _interleave_k),
    Rule("rotate_k", "the one who loads a tile decides where in k it begins", _rotate_k),
    Rule("prefetch", "operands can be asked into the L2 before the kernel is set up", _prefetch),
    Rule("skew", "a consumer behind the other holds stages that cannot be loaded meanwhile", _skew),
    Rule("unroll", "the addresses of many unrolled stages take more registers than there are", _unroll),
    Rule("arrivals", "one instruction of a warp arrives on one barrier for each lane", _arrivals),
    Rule("waits", "what TMA writes comes with its bytes, what a thread writes with an acquire", _waits),
    Rule("ring", "the library keeps a plain ring, filled by TMA, whose producer is one elected thread", _ring),
    Rule("stream_k", "all clusters must be there at once, for one waits for the sums of others", _stream_k),
    Rule("spills", "a study of what a spill costs needs no techniques", _spills),
    Rule("full_barriers", "a stage has two loads, A and B", _full_barriers),
    Rule("l2_promotion", "sizes that a TMA descriptor can name", one_of("l2_promotion", L2_PROMOTIONS)),
)
"""The rules on what only the study varies."""
