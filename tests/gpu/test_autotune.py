"""On a GPU: a program tunes what it calls, goes on after a kill, measures nothing twice; any callables are timed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

import hopper_gemm
from hopper_gemm.model.tuned import WARMUP, own_paths, read_tuned, slug
from hopper_gemm.serve.fallback import torch_is_faster
from hopper_gemm.serve.kernels import chained, pick_for
from hopper_gemm.tune.measure.device import describe_current
from tests.conftest import ROOT

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

BATCHES = (8, 72, 264)

SEARCH = """
import sys
from pathlib import Path
import torch
import hopper_gemm
import hopper_gemm.model.tuned, hopper_gemm.tune.run.source
for module in (hopper_gemm.model.tuned, hopper_gemm.tune.run.source):
    module.local_root = lambda: Path(sys.argv[1])
a, b = (torch.randn(rows, 1096, device="cuda", dtype=torch.bfloat16) for rows in (264, 1032))
with hopper_gemm.autotune(seconds=float(sys.argv[2]), candidates=int(sys.argv[3])) as tuning:
    hopper_gemm.matmul(a, b.t())
print(len(tuning.measured), len(tuning.failed))
"""


@pytest.fixture
def model():
    layers = torch.nn.Linear(1096, 1032), torch.nn.SiLU(), torch.nn.Linear(1032, 264)
    made = torch.nn.Sequential(*layers).to("cuda", torch.bfloat16)
    hopper_gemm.patch(made)
    return made


def entries():
    return read_tuned(own_paths(slug(describe_current().name))[0])


def run(model, tokens=BATCHES):
    with torch.no_grad():
        return [model(torch.ones(rows, 1096, device="cuda", dtype=torch.bfloat16)) for rows in tokens]


@pytest.mark.alone
def test_a_model_at_several_batch_sizes_gets_its_entries_once_and_right_results(own_table, model):
    before, lines = run(model), []
    with hopper_gemm.autotune(candidates=3, say=lines.append) as tuning:
        run(model)
    assert tuning.failed == {}
    assert len(tuning.called) == len(tuning.measured) == 2 * len(BATCHES)
    assert {entry.study for entry in entries()} == {WARMUP}
    assert all(pick_for(entry.problem).config == entry.config for entry in entries())
    assert all(0.2 < entry.speedup_low <= entry.speedup <= entry.speedup_high < 20 for entry in entries())
    for old, new in zip(before, run(model), strict=True):
        torch.testing.assert_close(new, old, rtol=0.02, atol=0.02)
    lines.clear()
    with hopper_gemm.autotune(candidates=3, say=lines.append) as again:
        run(model)
    ahead = [case for case in tuning.called if not torch_is_faster(pick_for(case.problem))]  # else torch's is taken
    assert ahead
    assert ([*again.called], again.measured, lines) == (ahead, [], [])


@pytest.mark.alone
def test_experts_and_batches_and_their_gradients_get_entries_that_are_served_and_right(own_table):
    """All groupings: rows, masked rows, batches, and groups along k for the gradients."""
    experts = torch.randn(4, 264, 136, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    x = torch.randn(4, 40, 136, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    offs = torch.tensor([3, 70, 70, 160], device="cuda", dtype=torch.int32)
    counts = torch.tensor([3, 40, 0, 17], device="cuda", dtype=torch.int32)

    def work():
        flat = hopper_gemm.grouped_mm(x.flatten(0, 1), experts.mT, offs=offs)
        batch, masked = hopper_gemm.bmm(x, experts.mT), hopper_gemm.grouped_mm(x, experts.mT, counts=counts)
        inside = torch.arange(40, device="cuda") < counts[:, None]
        kept = torch.where(inside[..., None], masked, torch.zeros_like(masked))
        (flat.sum() + batch.sum() + kept.sum()).backward()
        return [flat.detach(), batch.detach(), kept.detach(), experts.grad.clone()]

    before = work()
    x.grad = experts.grad = None
    with hopper_gemm.autotune(candidates=3) as tuning:
        work()
    assert tuning.failed == {}
    kinds = {getattr(entry.problem, "grouping", "product") for entry in tuning.measured}
    assert kinds == {"rows", "depth", "batch", "masked", "masked_depth", "product"}  # a sum's gradient is no batch
    assert all(pick_for(entry.problem).config == entry.config for entry in entries())
    x.grad = experts.grad = None
    for old, new in zip(before, work(), strict=True):
        torch.testing.assert_close(new, old, rtol=0.03, atol=0.5)
    x.grad = experts.grad = None
    with hopper_gemm.autotune(candidates=3) as again:
        work()
    assert again.measured == []


@pytest.mark.alone
def test_a_program_that_ends_between_two_problems_goes_on_with_the_second(own_table, model):
    def stop(line):
        if line.startswith("1 of 2:"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), hopper_gemm.autotune(candidates=2, say=stop):
        run(model, BATCHES[:1])
    assert len(entries()) == 1
    with hopper_gemm.autotune(candidates=2) as tuning:
        run(model, BATCHES[:1])
    assert len(tuning.measured) == 1
    assert len(entries()) == 2


@pytest.mark.alone
def test_chained_and_batch_invariant_calls_are_timed_as_such_within_autocast_too(own_table):
    a, b = (torch.randn(rows, 1096, device="cuda", dtype=torch.bfloat16) for rows in (72, 1032))
    with torch.autocast("cuda", torch.bfloat16), hopper_gemm.autotune(candidates=2) as tuning:
        with chained():
            hopper_gemm.matmul(a, b.t())
        hopper_gemm.matmul(a, b.t(), batch_invariant=True)
    assert tuning.failed == {}
    assert [(entry.context, entry.problem.batch_invariant) for entry in tuning.measured] == [
        ("chained", False),
        ("isolated", True),
    ]


@pytest.mark.alone
def test_a_call_that_is_captured_is_noted_and_measured_behind_the_capture(own_table):
    a, b = (torch.randn(rows, 1096, device="cuda", dtype=torch.bfloat16) for rows in (40, 1032))
    graph, lines = torch.cuda.CUDAGraph(), []
    with hopper_gemm.autotune(candidates=2, say=lines.append) as tuning:
        with torch.cuda.graph(graph):
            out = hopper_gemm.matmul(a, b.t())
            tuning.measure()
        assert (tuning.measured, len(tuning.open)) == ([], 1)
    assert len(tuning.measured) == 1
    graph.replay()
    torch.testing.assert_close(out, a @ b.t(), rtol=0.02, atol=0.3)


@pytest.mark.alone
def test_a_search_that_is_killed_keeps_its_rows_goes_on_and_is_not_made_again(tmp_path):
    paths = filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    kind = slug(describe_current().name)
    rows = tmp_path / kind / "tune-264x1032x1096-burst" / "rows.csv"

    def search(seconds, candidates):
        command = [sys.executable, "-c", SEARCH, str(tmp_path), str(seconds), str(candidates)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)

    killed = search(300, 400)
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and (not rows.is_file() or len(rows.read_text().splitlines()) < 8):
        assert killed.poll() is None
        time.sleep(0.2)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    time.sleep(15)  # its workers end by themselves
    kept = rows.read_text().splitlines()[:8]
    done = search(1, 12)
    assert done.communicate(timeout=300)[0].split() == ["1", "0"]
    assert rows.read_text().splitlines()[:8] == kept
    (entry,) = read_tuned(tmp_path / kind / "best_configs.json")
    assert entry.study == "tune-264x1032x1096-burst"
    assert search(1, 12).communicate(timeout=120)[0].split() == ["0", "0"]


@pytest.mark.alone
@pytest.mark.parametrize("context", ["isolated", "chained"])
def test_callables_are_timed_in_pairs_with_intervals(context):
    a, b = (torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    calls = {
        "half": lambda: torch.mm(a[:1024], b),
        "ours": lambda: hopper_gemm.matmul(a, b),
        "again": lambda: torch.mm(a, b),
        "torch": lambda: torch.mm(a, b),
    }
    result = hopper_gemm.bench(calls, context=context)
    for call in result.calls:
        assert call.us > 0
        assert call.speedup.low <= call.speedup.median <= call.speedup.high
        assert call.speedup.pairs == 15
    assert result["half"].speedup.low > 1.2
    assert 0.9 < result["again"].speedup.median < 1.1
    assert len(str(result).splitlines()) == 6


def test_a_callable_that_waits_for_the_gpu_is_refused_in_one_line():
    a = torch.ones(64, 64, device="cuda")
    with pytest.raises(RuntimeError, match=r"^waits cannot be captured") as caught:
        hopper_gemm.bench({"waits": lambda: a.sum().item(), "torch": lambda: a.sum()})
    assert "\n" not in str(caught.value)
    torch.cuda.synchronize()
    assert float(a.sum()) == 4096
    assert torch.randn(4, device="cuda").isfinite().all(), "random numbers are usable as before"
