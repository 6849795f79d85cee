"""Rules on parameters that depend on each other: tile order, split-K, epilogue chunks."""

from __future__ import annotations

from collections.abc import Iterator

from hopper_gemm.model import hopper
from hopper_gemm.model.kernel import Kernel, is_odd_chunk, smem_limit, stages_max
from hopper_gemm.model.problem import ELEMENT_BYTES
from hopper_gemm.model.roofline import clusters_at_once
from hopper_gemm.model.rules.rule import Rule, one_of

EPI_N = (8, 16, 32, 64)
SWIZZLE_MAX = 32
PACE_MAX = 1024
SPLIT_K = (1, 2, 4, 8)
PARTS_MAX = 64
GATHERED_MOST = 144
WORKSPACE_MOST, CLUSTER_MOST = {1: GATHERED_MOST, 2: 128, 3: 88}, {1: 192, 2: 208, 3: 120}
"""Most accumulators of split-K parts by number of consumers. These limits and the exceptions beside them were found by
compiling 2,770 legal kernels near the limits, of every technique, type and layout, for sm_90a without a GPU: 45
spilled, 41 of them with split-K. Spilling depends on more than these figures, so that some kernels are refused that
would not spill."""


def _split_k(kernel: Kernel) -> Iterator[str]:
    if kernel.split_k > 1:
        yield from (_in_workspace if kernel.reduction == "workspace" else _in_cluster)(kernel)


def _in_cluster(kernel: Kernel) -> Iterator[str]:
    if kernel.split_k not in SPLIT_K:
        yield (
            f"split_k must be one of {', '.join(map(str, SPLIT_K))} but got {kernel.split_k}; "
            f'take reduction "workspace" for any up to {PARTS_MAX}'
        )
    alone = kernel.cluster_m * kernel.cluster_n == 1 and kernel.schedule == "cooperative"
    if not alone or kernel.loads != "tma" or kernel.stores != "tma":
        yield "split_k takes the cluster for itself: take cluster 1x1, schedule cooperative, loads and stores tma"
    if kernel.chunks % kernel.split_k:
        yield f"{kernel.chunks} chunks of a consumer cannot be split over {kernel.split_k} CTAs; take a smaller epi_n"
    most, blocks = CLUSTER_MOST.get(kernel.consumers, GATHERED_MOST), _blocks(kernel)
    if kernel.consumers == 1 and blocks <= 2:
        most = 208
    elif kernel.consumers == 2 and blocks.bit_count() > 1:  # no power of two: its chunks take more registers to address
        most = 160
    if kernel.ctas_per_sm > 1 and kernel.consumers == 1 and kernel.split_k == SPLIT_K[-1]:
        most = min(most, kernel.registers.consumer - kernel.spare_registers - 8)
    yield from _held_accumulators("cluster", kernel, most)
    room = kernel.stage_bytes * kernel.stages
    if kernel.reduction_bytes > room:
        yield f"the parts of a tile take {kernel.reduction_bytes} B but the ring has {room}; take more stages"


def _in_workspace(kernel: Kernel) -> Iterator[str]:
    most = min(PARTS_MAX, clusters_at_once(kernel.cluster_size) * kernel.ctas_per_sm)
    if kernel.split_k > most:
        yield f"split_k must be at most {most}, the clusters that fit the GPU at once, but got {kernel.split_k}"
    if kernel.schedule != "cooperative":
        yield 'reduction "workspace" needs a walk over parts: take schedule cooperative'
    if kernel.loads != "tma" or kernel.stores != "tma":
        yield 'reduction "workspace" divides chunks in shared memory: take loads and stores tma'
    most = WORKSPACE_MOST.get(kernel.consumers, GATHERED_MOST)
    if kernel.consumers != 1 and _blocks(kernel) == 5:
        most = 100 if kernel.consumers == 2 else 60
    yield from _held_accumulators("workspace", kernel, most)


def _held_accumulators(reduction: str, kernel: Kernel, most: int) -> Iterator[str]:
    if kernel.accumulators > most:
        room = f'reduction "{reduction}" has registers for {most} accumulators of {kernel.consumers} consumers'
        yield f"{room}, {_blocks(kernel)} blocks of rows each, but got {kernel.accumulators}; take a smaller tile"


def _blocks(kernel: Kernel) -> int:
    """Blocks of 64 rows that a consumer computes."""
    return kernel.share_m // hopper.WGMMA_M


def _reduction(kernel: Kernel) -> Iterator[str]:
    if kernel.reduction == "workspace" and kernel.split_k == 1:
        yield 'reduction "workspace" adds up split-K parts and split_k is 1; take reduction "cluster" or raise split_k'


def _part_order(kernel: Kernel) -> Iterator[str]:
    if kernel.part_order == "part" and kernel.work_items == 1:
        yield 'part_order "part" is for parts that clusters take one by one: take reduction workspace, raise split_k'


def _swizzle(kernel: Kernel) -> Iterator[str]:
    if kernel.swizzle > SWIZZLE_MAX:
        yield f"swizzle must be 1 to {SWIZZLE_MAX} but got {kernel.swizzle}"


def _reverse_k(kernel: Kernel) -> Iterator[str]:
    if kernel.reverse_k and not _walks(kernel):
        yield f"reverse_k reverses k from tile to tile of a CTA: {_WALKS}"


def _pace(kernel: Kernel) -> Iterator[str]:
    if kernel.pace > PACE_MAX:
        yield f"pace must be 0 to {PACE_MAX} stages but got {kernel.pace}"
    if kernel.pace and not _walks(kernel):
        yield f"pace holds back a producer that walks over tiles: {_WALKS}"


_WALKS = "take loads tma, split_k 1"


def _walks(kernel: Kernel) -> bool:
    """Return True if a producer walks over whole tiles."""
    return kernel.loads == "tma" and kernel.split_k == 1


def _evict_c(kernel: Kernel) -> Iterator[str]:
    if kernel.evict_c and kernel.stores == "direct":
        yield 'evict_c needs stores by TMA and stores are "direct"; take stores tma'


def _swap_ab(kernel: Kernel) -> Iterator[str]:
    if kernel.swap_ab and kernel.stores == "direct":
        yield 'stores "direct" write rows of C and swap_ab computes columns; take stores tma'


def _four(kernel: Kernel) -> Iterator[str]:
    plain = kernel.schedule == "cooperative" and kernel.split_k == 1
    if kernel.consumers == 4 and not (plain and kernel.loads == "tma" and kernel.stores == "tma"):
        yield "4 consumers share whole tiles by TMA: take schedule cooperative, split_k 1, loads and stores tma"


def _epi_n(kernel: Kernel) -> Iterator[str]:
    columns = kernel.epi_n
    if kernel.stores == "direct":
        return
    if not is_odd_chunk(columns):
        yield from one_of("epi_n", EPI_N)(kernel)
    elif kernel.share_n % columns:
        yield f"chunks of {columns} columns cannot make up a share of {kernel.share_n}; take a divisor, or {EPI_N}"


def _staging(kernel: Kernel) -> Iterator[str]:
    if kernel.stores == "direct" or kernel.staging == "ring" or kernel.stages > stages_max(kernel):
        return
    if kernel.epi_buffers == 0:
        yield 'epi_buffers must be at least 1 but got 0; leave it at "max"'
    if kernel.smem_bytes > smem_limit(kernel):
        yield (
            f"{kernel.epi_buffers} epilogue buffers take the CTA to {kernel.smem_bytes} B of {smem_limit(kernel)}; "
            'leave epi_buffers at "max"'
        )


def _ring_staging(kernel: Kernel) -> Iterator[str]:
    if kernel.staging == "own":
        return
    if kernel.schedule != "cooperative" or kernel.loads != "tma" or kernel.stores != "tma":
        yield 'staging "ring" is for a tile that TMA loads and stores: take schedule cooperative'
    if kernel.split_k > 1:
        yield 'staging "ring" stores whole tiles; take split_k 1, or staging own'
    if kernel.k_depth != 4:
        yield f'staging "ring" puts chunks where rows of 128 bytes lay: take k_depth 4 but got {kernel.k_depth}'
    if kernel.epi_buffers:
        yield 'staging "ring" has no buffers of its own; leave epi_buffers at "max"'
    if not kernel.slot_chunks:
        yield f"a chunk of {kernel.chunk_n} columns does not fit into a consumer's part of a slot; lower epi_n"
    held = kernel.held_slots(ELEMENT_BYTES)
    if held > kernel.stages:
        yield f'staging "ring" takes {held} slots and the ring has {kernel.stages}; take more stages, or a wider epi_n'


def _scheduler(kernel: Kernel) -> Iterator[str]:
    if kernel.scheduler == "static":
        return
    if kernel.schedule != "cooperative" or kernel.loads != "tma":
        yield (
            'scheduler "dynamic" hands work from a producer to consumers that share each tile: take schedule '
            "cooperative, loads tma"
        )
    if kernel.parts_meet:
        yield 'scheduler "dynamic" takes whole tiles or split-K parts through a workspace; take static'


TECHNIQUE_RULES = (
    Rule("swizzle", "a group wider than the clusters that run at once is the other raster", _swizzle),
    Rule("split_k", "split-K parts are added up in the ring's memory after its last read", _split_k),
    Rule("reduction", "a workspace holds the sums of split-K parts", _reduction),
    Rule("part_order", "only split-K parts through a workspace have an order", _part_order),
    Rule("reverse_k", "only a producer that loads whole tiles can start at the end of k", _reverse_k),
    Rule("pace", "producers that wait for one another must run at the same time", _pace),
    Rule("staging", "a slot is free for C between the tile's last wgmma and its release", _ring_staging),
    Rule("scheduler", "the number of a tile goes from the producer to the consumers through the ring", _scheduler),
    Rule("evict_c", "a hint to the L2 goes with a store by TMA", _evict_c),
    Rule("swap_ab", "a swapped tile is transposed back on its way through shared memory", _swap_ab),
    Rule("four consumers", "each of four consumers has 48 registers beside 64 accumulators", _four),
    Rule("epi_n", "an epilogue chunk is one TMA box with one swizzle", _epi_n),
    Rule("epi_buffers", "the epilogue's buffers take what the ring leaves of shared memory", _staging),
)
"""Rules on techniques."""
