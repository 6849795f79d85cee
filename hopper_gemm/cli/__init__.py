"""``hopper-gemm``: parses, calls, prints. Data goes to stdout, progress and complaints to stderr."""

from hopper_gemm.cli import measuring, reading  # noqa: F401  (they hold the commands)
from hopper_gemm.cli.app import app, entry

__all__ = ["app", "entry"]
