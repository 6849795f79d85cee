"""The small kernels compile for sm_90a, and the compiler leaves in them what they are for."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from hopper_gemm.compiler.cubin import read_cubin
from hopper_gemm.compiler.store import SOURCES
from hopper_gemm.kernel import gemm
from hopper_gemm.tune.measure import probes
from hopper_gemm.tune.measure.probes import compile_clock_probe, compile_spacer
from tests.compiler.test_cubin import tool
from tests.conftest import ROOT


@pytest.mark.compile
@pytest.mark.parametrize("compiled", [compile_clock_probe, compile_spacer])
def test_a_probe_compiles_without_a_spill(compiled, tmp_path):
    report = read_cubin(compiled(f"--keep-cubin --dump-dir {tmp_path}").__cubin__)
    assert not report.spills
    assert report.instructions < 60


@pytest.mark.compile
def test_a_spacer_reads_what_it_writes_and_waits_in_between(tmp_path):
    """Neither the read nor the write of an unchanged value is removed, and the clock is read in a loop."""
    (tmp_path / "cubin").write_bytes(compile_spacer(f"--keep-cubin --dump-dir {tmp_path}").__cubin__)
    listed = subprocess.run([tool("nvdisasm"), "-c", tmp_path / "cubin"], capture_output=True, text=True, check=True)
    found = re.findall(r"\b(LDG|STG|CS2R(?=.*SR_CLOCKLO)|BRA)\b", listed.stdout)
    assert found[: found.index("STG") + 1] == ["CS2R", "LDG", "BRA", "CS2R", "BRA", "STG"]


def test_the_probes_are_no_part_of_a_kernels_name():
    """A change to them leaves the compiled kernels as they are."""
    sources = {path for pattern in SOURCES for path in (ROOT / "hopper_gemm").glob(pattern)}
    assert Path(gemm.__file__) in sources
    assert Path(probes.__file__) not in sources
