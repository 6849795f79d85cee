"""What TMA cannot reach: operands padded by a kernel ahead, rows of C stored by the consumers' threads."""
