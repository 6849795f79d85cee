"""``hopper-gemm``: parses, calls, prints. Data goes to stdout, progress and complaints to stderr."""

import os

# A search thinks beside compilers that take every core, and its matrices are small: BLAS threads that wait for each
# other hold it up there. Read when numpy is first imported, here and in child processes.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from hopper_gemm.cli import measuring, reading, verify  # noqa: F401  (they hold the commands)
from hopper_gemm.cli.app import app, entry

__all__ = ["app", "entry"]
