"""Reading a cubin ourselves must agree with NVIDIA's own tools."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from hopper_gemm.compiler.compile import compile_kernel
from hopper_gemm.compiler.cubin import OPCODES, read_cubin
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve

NAMES = {
    "wgmma": r"^HGMMA",
    "tma_loads": r"^UTMALDG",
    "tma_stores": r"^UTMASTG",
    "local_loads": r"^LDL",
    "local_stores": r"^STL",
    "wgmma_waits": r"^WARPGROUP\.(ARRIVE|DEPBAR)",
}


def tool(name: str) -> str:
    return str(next(path for path in Path(sys.prefix).rglob(f"nvidia/*/bin/{name}")))


def operations(cubin: Path) -> list[str]:
    """A kernel's operations by NVIDIA's disassembler."""
    text = subprocess.run([tool("nvdisasm"), "-c", str(cubin)], capture_output=True, text=True, check=True).stdout
    return re.findall(r"/\*[0-9a-f]{4,5}\*/\s+(?:@!?U?P\d\s+)?([A-Z][A-Z0-9_.]*)", text)


def listing(cubin: Path) -> tuple[Counter, int, int]:
    """Operations counted by name; registers and stack by the cubin's resource usage."""
    found = operations(cubin)
    counts = Counter({name: sum(bool(re.match(pattern, op)) for op in found) for name, pattern in NAMES.items()})
    usage = subprocess.run(
        [tool("cuobjdump"), "-res-usage", str(cubin)], capture_output=True, text=True, check=True
    ).stdout
    return counts, int(re.search(r"REG:(\d+)", usage)[1]), int(re.search(r"STACK:(\d+)", usage)[1])


@pytest.mark.compile
@pytest.mark.parametrize(
    "config",
    [
        GemmConfig(),
        GemmConfig(tile_m=320, cluster_n=2),
        GemmConfig(tile_m=128, tile_n=24, k_depth=3, stagger=0),
        GemmConfig(
            tile_m=256, tile_n=224, consumers=2, split="m", stages=2
        ),  # refused by the registers rule: it spills
    ],
    ids=str,
)
def test_counts_agree_with_the_disassembler(config, tmp_path):
    compiled = compile_kernel(resolve(config), "bf16")
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(compiled.cubin)
    counts, registers, stack = listing(cubin)
    report = read_cubin(compiled.cubin)
    assert {name: getattr(report, name) for name in OPCODES} == dict(counts)
    assert (report.registers, report.stack_bytes) == (registers, stack)
    assert report.spills == (config.tile_n == 224)


def test_what_is_no_cubin_is_refused():
    with pytest.raises(ValueError, match="must be a 64-bit ELF file"):
        read_cubin(b"not a cubin at all")
