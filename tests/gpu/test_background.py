"""On a GPU: a fresh process whose kernel no store holds multiplies by torch until another process has compiled it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.gpu

PROGRAM = """
import json, sys, time
import torch, hopper_gemm
from hopper_gemm.compiler import store
store.shipped = lambda kernel: None
m, n, k = 520, 1032, 2056
a, w = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(n, k, device="cuda").bfloat16()
bias = torch.randn(n, device="cuda").bfloat16()
batch = a.view(2, m // 2, k), w.t().expand(2, k, n).contiguous()
ways = {
    "matmul": (lambda: hopper_gemm.matmul(a, w.t()), lambda: torch.mm(a, w.t())),
    "fp32": (
        lambda: hopper_gemm.matmul(a, w.t(), out_dtype=torch.float32),
        lambda: torch.mm(a, w.t(), out_dtype=torch.float32),
    ),
    "bias": (lambda: hopper_gemm.linear(a, w, bias), lambda: torch.addmm(bias, a, w.t())),
    "batch": (lambda: hopper_gemm.bmm(*batch), lambda: torch.bmm(*batch)),
    "batch in fp32": (
        lambda: hopper_gemm.bmm(*batch, out_dtype=torch.float32),
        lambda: torch.bmm(*batch, out_dtype=torch.float32),
    ),
}
found = {}
for name, (ours, theirs) in ways.items():
    equal, calls, began = torch.equal(ours(), theirs()), hopper_gemm.compiling, time.monotonic()
    while hopper_gemm.compiling().pending and time.monotonic() - began < 100:
        time.sleep(0.05)
    before = sum(calls().by_torch.values())
    close = torch.allclose(ours().float(), theirs().float(), atol=0.5, rtol=0.02)
    found[name] = equal, close, before, sum(calls().by_torch.values())
graph = torch.cuda.CUDAGraph()
b = torch.randn(1544, k, device="cuda").bfloat16().t()
with torch.cuda.graph(graph):
    captured = hopper_gemm.matmul(a, b)
graph.replay()
found["capture"] = torch.allclose(captured.float(), torch.mm(a, b).float(), atol=0.5, rtol=0.02)
print(json.dumps([found, sum(hopper_gemm.compiling().by_torch.values())]))
"""


@pytest.mark.timeout(500)
def test_torch_multiplies_until_the_kernel_is_compiled_and_a_capture_waits(tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", PROGRAM]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=450, check=False)
    assert run.returncode == 0, run.stderr
    found, calls = json.loads(run.stdout)
    assert found.pop("capture")
    for number, (name, (equal, close, before, after)) in enumerate(found.items(), 1):
        assert (equal, close, before, after) == (True, True, number, number), name
    assert calls == len(found)
