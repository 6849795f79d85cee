"""What GPU tests check is known before they run, and can run: this test needs no GPU."""

from __future__ import annotations

import subprocess
import sys

from tests.conftest import ROOT

PROGRAM = """
import sys
import pytest

class Ahead:
    def pytest_collection_finish(self, session):
        from hopper_gemm.compiler.store import KernelId
        from hopper_gemm.model.legality import reasons
        from tests.gpu.conftest import kernels_of, pairs_of
        pairs = [pair for item in session.items for pair in pairs_of(item)]
        refused = [str(pair) for pair in pairs if reasons(pair.config, pair.problem)]
        kernels = kernels_of(session.items)
        refused += [str(one.config) for one in kernels if isinstance(one, KernelId) and reasons(one.config)]
        print(f"{len(pairs)} pairs, {len(kernels)} kernels, refused: {refused}")

sys.exit(pytest.main(["-q", "--collect-only", "-m", "gpu", "tests/gpu"], plugins=[Ahead()]))
"""


def test_every_pair_of_a_gpu_test_is_legal_and_its_kernel_known_ahead():
    """A config that some rule refuses would fail on the GPU alone, where tests run last."""
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    told = next((line for line in done.stdout.splitlines() if " pairs, " in line), "")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert told.endswith("refused: []"), told
    pairs, kernels = (int(part.split()[0]) for part in told.split(", ")[:2])
    assert pairs >= kernels > 1000
