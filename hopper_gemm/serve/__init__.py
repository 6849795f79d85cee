"""Public entry points; all take their kernels from :mod:`hopper_gemm.serve.kernels`."""

from pathlib import Path

EXTENSION = Path(__file__).with_name("native.cpp")
"""Source of the extension of torch, which is compiled ahead; named here so that this needs no torch."""
