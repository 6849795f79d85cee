"""Public entry points; all take their kernels from :mod:`hopper_gemm.serve.kernels`."""
