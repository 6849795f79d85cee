"""Dealing out a tile's chunks among the parts of k that computed it: of a consumer's, part p owns p, p + parts, ...

Each part sends away what it does not own and adds up what it does, so that all share the work. Which chunks a part owns
is known only as it runs, but registers cannot be indexed then: its own are picked out first, after which the
accumulators are free to hold what the others sent.
"""

from __future__ import annotations

import cutlass
from cutlass import Boolean, Float32, Int32, cute


def slots_of(chunks: int, parts: int) -> int:
    """Chunks that a part owns, at most."""
    return -(-chunks // parts)


@cute.jit
def own_chunks(accumulators: cute.Tensor, size: cutlass.Constexpr[int], parts: int, rank: Int32) -> cute.Tensor:
    """The chunks that a part owns, of ``size`` registers each: (size, slots). Past the last chunk it holds nothing of
    use."""
    chunks = cute.size(accumulators) // size
    slots = slots_of(chunks, parts)
    flat = cute.make_tensor(accumulators.iterator, cute.make_layout((size, chunks)))
    own = cute.make_rmem_tensor((size, slots), Float32)
    for slot in cutlass.range_constexpr(slots):
        for i in cutlass.range_constexpr(size):
            value = flat[i, slot * parts]
            for other in cutlass.range_constexpr(1, min(parts, chunks - slot * parts)):
                value = cutlass.select_(rank == other, flat[i, slot * parts + other], value)
            own[i, slot] = value
    return own


def of_others(number: int, rank: Int32) -> Int32:
    """The rank of the ``number``-th of the other parts, in their order."""
    return Int32(number) + Int32(rank <= number)


def add_in_order(total: Float32, own: Float32, own_first: Boolean, other: Float32) -> Float32:
    """One step of a sum in the order of the parts: add what another part sent, one's own value before it if it is its
    turn."""
    return cutlass.select_(own_first, total + own, total) + other
