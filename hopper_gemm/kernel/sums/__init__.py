"""Adding up what several CTAs computed of one tile, and the global memory through which they meet."""
