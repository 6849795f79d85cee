"""``python -m hopper_gemm`` is ``hopper-gemm``."""

from hopper_gemm.cli import entry

if __name__ == "__main__":
    entry()
