"""Rules on what only the design study varies."""

from __future__ import annotations

from collections.abc import Iterator

from hopper_gemm.lab.ladder.ladder_config import LadderKernel
from hopper_gemm.model.kernel import is_odd_chunk
from hopper_gemm.model.problem import ELEMENT_BYTES
from hopper_gemm.model.rules.rule import Rule, one_of
from hopper_gemm.model.rules.technique import EPI_N, GATHERED_MOST

UNROLL_MAX, UNROLL_ACCUMULATORS = 4, 160
PREFETCH_MAX, ROTATE_MAX = 64, 64
L2_PROMOTIONS = (0, 64, 128, 256)
STREAM_K_BOXES, STREAM_K_CHUNK = 4, 16
COPIED_ROWS, DEEP_COPIES = 384, (256, 16)
DIRECT_MOST = 184
LIBRARY_ARRIVALS = ("warp", "elected", "consumer")


def _loads(kernel: LadderKernel) -> Iterator[str]:
    if kernel.loads == "tma":
        return
    loads = f'loads "{kernel.loads}"'
    if kernel.cluster_size > 1:
        yield f"{loads} cannot multicast; take cluster 1x1"
    copied = kernel.tile_n + (kernel.tile_m if kernel.loads == "cp_async" else 0)
    if copied > COPIED_ROWS:
        yield f"{loads} copy at most {COPIED_ROWS} rows of A and B a stage but got {copied}; take a smaller tile"
    if kernel.loads == "cp_async" and kernel.tile_m == 320 and kernel.consumers == 3 and kernel.stages == 1:
        yield f"{loads} of 320 rows for 3 consumers spill with one stage; take more stages or 2 consumers"
    if kernel.tile_m >= DEEP_COPIES[0] and kernel.k_depth >= DEEP_COPIES[1] and kernel.loads == "cp_async":
        yield f"{loads} of {kernel.tile_m} rows at k_depth {kernel.k_depth} spill; lower k_depth or tile_m"


def _stores(kernel: LadderKernel) -> Iterator[str]:
    if kernel.stores == "tma":
        return
    if kernel.specialised and kernel.consumers == 2 and min(kernel.share_n, kernel.accumulators) > DIRECT_MOST:
        yield (
            f'stores "direct" from {kernel.accumulators} accumulators, {kernel.share_n} columns wide, run out of '
            f"registers beyond {DIRECT_MOST} of both; take stores tma"
        )
    if kernel.epi_n or kernel.epi_buffers:
        yield 'stores "direct" use no chunks; leave epi_n at "auto" and epi_buffers at "max"'


def _persistent(kernel: LadderKernel) -> Iterator[str]:
    for name, walks in (
        ('reduction "workspace"', kernel.work_items > 1),
        ("reverse_k", kernel.reverse_k),
        ("pace", kernel.pace > 0),
        ("stream_k", kernel.stream_k),
        ('scheduler "dynamic"', kernel.scheduler == "dynamic"),
    ):
        if walks and not kernel.persistent:
            yield f"{name} is for CTAs that walk over several items; take persistent"


def _multistage(kernel: LadderKernel) -> Iterator[str]:
    if kernel.specialised:
        return
    if kernel.loads != "tma":
        yield f'loads "{kernel.loads}" come from a producer warpgroup; multistage has none, take cooperative'
    if kernel.reverse_k or kernel.pace:
        yield "reverse_k and pace are for a producer that walks over whole tiles; take cooperative or pingpong"


def _full_barriers(kernel: LadderKernel) -> Iterator[str]:
    yield from one_of("full_barriers", (1, 2))(kernel)
    if kernel.full_barriers > 1 and kernel.loads != "tma":
        yield f'loads "{kernel.loads}" land in order and need one full barrier; take full_barriers = 1'
    if kernel.full_barriers > 1 and kernel.work_items > 1:
        yield 'reduction "workspace" has no registers for more barriers; take full_barriers 1'


def _unroll(kernel: LadderKernel) -> Iterator[str]:
    if not kernel.unroll:
        return
    if kernel.stages > UNROLL_MAX:
        yield f"an unrolled loop holds at most {UNROLL_MAX} stages but got {kernel.stages}; take fewer or no unroll"
    if kernel.staging == "ring":
        yield 'staging "ring" has no room for an unrolled loop; take staging own or no unroll'
    if kernel.accumulators > UNROLL_ACCUMULATORS:
        room = f"an unrolled loop leaves {UNROLL_ACCUMULATORS} accumulators"
        yield f"{room} but got {kernel.accumulators}; do not unroll"
    if kernel.loads != "tma" and kernel.consumers == 3:
        yield f'an unrolled loop with loads "{kernel.loads}" spills beside 3 consumers; do not unroll'


def _interleave_k(kernel: LadderKernel) -> Iterator[str]:
    if kernel.interleave_k and kernel.parts_at_launch:
        yield 'interleave_k needs the number of parts at compile time: take reduction "cluster"'
    if kernel.interleave_k and (kernel.split_k == 1 or kernel.prefetch):
        yield "interleave_k deals the stages of k to split-K parts: raise split_k, and take prefetch 0"


def _rotate_k(kernel: LadderKernel) -> Iterator[str]:
    if kernel.rotate_k and (kernel.loads != "tma" or not kernel.specialised or kernel.prefetch):
        yield "rotate_k is for a producer by TMA: take loads tma, schedule cooperative or pingpong, prefetch 0"
    if kernel.rotate_k > ROTATE_MAX:
        yield f"rotate_k must be 0 to {ROTATE_MAX} but got {kernel.rotate_k}"


def _prefetch(kernel: LadderKernel) -> Iterator[str]:
    if kernel.prefetch > PREFETCH_MAX:
        yield f"prefetch must be 0 to {PREFETCH_MAX} stages but got {kernel.prefetch}"
    if kernel.prefetch and kernel.scheduler == "dynamic":
        yield 'scheduler "dynamic" does not know its first tile before the kernel ahead has ended; take prefetch 0'
    if kernel.prefetch and (kernel.loads != "tma" or not kernel.specialised):
        yield "prefetch is asked by TMA, by a warp of the producer: take loads tma and a schedule with a producer"


def _arrivals(kernel: LadderKernel) -> Iterator[str]:
    if kernel.every_thread("producer") and kernel.scheduler == "dynamic":
        yield (
            f'scheduler "dynamic" ends with a slot that one thread fills and arrivals "{kernel.arrivals}" expects all '
            "of a warp; take arrivals warp"
        )
    if kernel.arrivals not in ("warp", "group") and kernel.cluster_size > 1:
        yield f'arrivals "{kernel.arrivals}" reach only their own CTA; take cluster 1x1'


def _waits(kernel: LadderKernel) -> Iterator[str]:
    if kernel.waits == "relaxed" and (kernel.loads != "tma" or kernel.scheduler != "static"):
        yield 'waits "relaxed" do not show what threads wrote: take loads tma and scheduler static'


def _ring(kernel: LadderKernel) -> Iterator[str]:
    if kernel.ring == "own":
        return
    if kernel.loads != "tma" or kernel.full_barriers > 1 or kernel.scheduler != "static" or kernel.waits != "acquire":
        yield 'ring "library" takes loads tma, full_barriers 1, scheduler static and waits acquire'
    if kernel.ring_state != "index_phase":
        yield f'ring "library" has a state of its own; leave ring_state but got {kernel.ring_state}'
    if kernel.arrivals not in LIBRARY_ARRIVALS:
        yield f'ring "library" offers arrivals {", ".join(LIBRARY_ARRIVALS)} but got {kernel.arrivals}'


def _spills(kernel: LadderKernel) -> Iterator[str]:
    plain = kernel.schedule == "cooperative" and kernel.split_k == 1 and not kernel.stream_k
    if kernel.spills and (not plain or kernel.unroll):
        yield "spills are for one plain kernel: take schedule cooperative, split_k 1, no stream_k, no unroll"


def _skew(kernel: LadderKernel) -> Iterator[str]:
    if kernel.skew == 0:
        return
    if kernel.schedule != "cooperative" or kernel.consumers == 1 or kernel.parts_meet or kernel.loads != "tma":
        yield "skew is between consumers that share a tile: take schedule cooperative, 2 or 3 consumers, loads tma"
    most = (kernel.stages - 1 - kernel.stagger) // (kernel.consumers - 1)
    if kernel.skew > most:
        yield f"skew must be 0 to {most} with {kernel.stages} stages but got {kernel.skew}: the ring holds no more"


def _stream_k(kernel: LadderKernel) -> Iterator[str]:
    if not kernel.stream_k:
        return
    if kernel.schedule != "cooperative" or kernel.split_k > 1:
        yield "stream_k cuts the last wave of a launch: take schedule cooperative, split_k 1"
    boxes = ELEMENT_BYTES * kernel.tile_k // kernel.swizzle_bytes
    if boxes > STREAM_K_BOXES:
        yield f"stream_k's producer has registers for {STREAM_K_BOXES} boxes a stage but got {boxes}; change k_depth"
    if kernel.chunk_n < STREAM_K_CHUNK:
        yield f"stream_k stores chunks of {STREAM_K_CHUNK} columns at least but got {kernel.chunk_n}; raise epi_n"
    if is_odd_chunk(kernel.chunk_n) and (kernel.accumulators > GATHERED_MOST or kernel.consumers > 2):
        yield (
            f"stream_k has no registers for chunks of {kernel.chunk_n} columns beside {kernel.accumulators} "
            f"accumulators of {kernel.consumers} consumers; take epi_n of {', '.join(map(str, EPI_N))}"
        )
    if kernel.pace:
        yield "pace and stream_k together run out of registers; leave one of them out"
    if kernel.consumers == 4:
        yield "stream_k has no registers for 4 consumers; take 2 or 3"
    if kernel.staging == "ring":
        yield 'staging "ring" stores whole tiles; take stream_k false, or staging own'
    if kernel.scheduler == "dynamic":
        yield 'scheduler "dynamic" takes whole tiles or split-K parts through a workspace; take static'
    if kernel.cluster_size > 2:
        yield "stream_k waits for clusters that must all be resident: take a cluster of two at most"
    if kernel.loads != "tma":
        yield f'stream_k starts within a tile, which loads "{kernel.loads}" cannot; take loads tma'


LADDER_RULES = (
    Rule("loads", "threads copy into their own CTA, and complete a barrier by arriving, not by bytes", _loads),
    Rule("stores", "stores from registers to global memory use no chunk buffers", _stores),
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
