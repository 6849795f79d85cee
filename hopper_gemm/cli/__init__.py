"""``hopper-gemm``: parses, calls, prints. Data goes to stdout, progress and complaints to stderr."""

import os
import sys

# A search thinks beside compilers that take every core, and its matrices are small: BLAS threads that wait for each
# other hold it up there. Read when numpy is first imported, here and in child processes.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

try:
    from hopper_gemm.cli import instruments, measuring, reading  # noqa: F401  (they hold the commands)
    from hopper_gemm.cli.app import app, entry
except ModuleNotFoundError as error:
    if (error.name or "hopper_gemm").startswith("hopper_gemm"):
        raise
    sys.exit(
        f"hopper-gemm: the command line needs the package {error.name}, which is not installed; "
        "pip install 'hopper-gemm[tune]'"
    )

__all__ = ["app", "entry"]
