"""Sums over the parts of a tile that several CTAs computed, and the workspace in global memory for them."""
