"""Hardware counters of kernels, by Nsight Compute, and waits that our kernel counts itself."""
