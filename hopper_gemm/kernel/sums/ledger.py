"""Bits of a ledger's word, by which the split-K parts and stream-K pieces of one tile synchronise.

:mod:`hopper_gemm.kernel.sums.workspace` describes the word; the kernel writes it, and the model of its protocol reads
the same bits.
"""

from __future__ import annotations

FIELD_BITS = 12
"""Bits of a count in the word: stream-K may cut a tile into as many pieces as a launch has clusters, 132 for each CTA
that shares an SM."""

ARRIVED, FILED = (1 << FIELD_BITS) - 1, (1 << 2 * FIELD_BITS) - (1 << FIELD_BITS)
FILED_ONE = 1 << FIELD_BITS
ALONE, TURN = 1 << 2 * FIELD_BITS, 2 << 2 * FIELD_BITS
