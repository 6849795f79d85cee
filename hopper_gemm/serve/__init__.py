"""What users call. Everything here asks :mod:`hopper_gemm.serve.kernels` for its kernels."""
