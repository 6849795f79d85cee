"""What becomes of the children's replies, and what the children do with a request; no GPU, and no processes."""

from __future__ import annotations

import pickle

import pytest

from hopper_gemm.compiler.child import Reply
from hopper_gemm.measure import bench, device
from hopper_gemm.measure.baselines.base import BaselineError
from hopper_gemm.measure.baselines.choose import Chosen
from hopper_gemm.measure.baselines.cublaslt import Recipe
from hopper_gemm.measure.bench import Figures, Outcome
from hopper_gemm.measure.device import DeviceInfo, GpuId
from hopper_gemm.measure.regimes import Burst
from hopper_gemm.measure.statistics import Pair, Ratio
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tables.compare import NAMES
from hopper_gemm.tuning import comparing as room
from hopper_gemm.tuning.comparing import CudaComparer, Duel
from hopper_gemm.tuning.cuda import UnusableGpuError, allowed

DUEL = Duel(GemmProblem(512, 512, 512), GemmConfig(), "cublaslt", Burst())
NUMBERS = {name: 2.0 for name in Figures.__dataclass_fields__ if name not in ("ratio", "samples")}
FIGURES = Figures(ratio=Ratio(1.1, 1.0, 1.2, 15), samples=(Pair(0, 10.0, 11.0),), **NUMBERS)
CHOSEN = Chosen("BA id=66", Recipe("BA", b"x" * 64), 42, 2e-3)


class FakeChild:
    """Gives prepared replies and notes what it was asked; every message is pickled, as between processes."""

    def __init__(self, *replies: Reply) -> None:
        self.replies, self.asked, self.closed = list(replies), [], 0

    def ask(self, request, timeout):
        self.asked.append((pickle.loads(pickle.dumps(request)), timeout))
        return pickle.loads(pickle.dumps(self.replies.pop(0)))

    def close(self):
        self.closed += 1


@pytest.fixture
def comparer(monkeypatch, tmp_path):
    """A comparer whose children are given replies by the test."""

    def made(measuring=(), naming=()):
        monkeypatch.setattr(room, "CompilePool", lambda store: FakeChild())
        children = [FakeChild(*measuring), FakeChild(*naming)]
        left = list(children)
        monkeypatch.setattr(room, "Child", lambda *arguments, **options: left.pop(0))
        return CudaComparer(GpuId(0, "NVIDIA H200", "GPU-1"), tmp_path), *children

    return made


def test_a_measured_duel_has_figures_of_both_sides_and_the_name_of_the_baselines_kernel(comparer):
    answer = Reply("answer", (Outcome("ok", "", FIGURES), CHOSEN))
    made, measuring, naming = comparer([answer, answer], [Reply("answer", "nvjet")])
    result = made.duel(DUEL)
    assert result.status == "ok"
    assert set(result.figures) <= set(NAMES)
    expected = {"speedup": 1.1, "theirs_us": 2.0, "kernel": "nvjet", "candidates": 42, "choice": "BA id=66"}
    assert expected.items() <= result.figures.items()
    assert result.figures["theirs_tflops"] == pytest.approx(DUEL.problem.flop / 2.0 / 1e6)
    assert result.samples == ((10.0, 11.0),)
    (ask, seconds), (named, _) = measuring.asked[0], naming.asked[0]
    assert ask.duel == DUEL
    assert seconds > allowed(DUEL.protocol) + 100
    assert (named.recipe, named.against) == (CHOSEN.recipe, ("cublaslt",))
    made.duel(DUEL)
    assert len(naming.asked) == 1, "a kernel is named once"


def test_a_kernel_that_cannot_be_named_does_not_cost_the_figures(comparer):
    made, *_ = comparer([Reply("answer", (Outcome("ok", "", FIGURES), CHOSEN))], [Reply("timeout", error="killed")])
    assert made.duel(DUEL).figures["kernel"] == "unknown"


@pytest.mark.parametrize(
    ("reply", "status", "reason"),
    [
        (Reply("timeout", error="no answer within 60 s; killed"), "timeout", "no answer within 60 s; killed"),
        (Reply("died", error="signal SIGABRT"), "crash", "signal SIGABRT"),
        (Reply("raised", error="NoValidChoicesError: none"), "crash", "NoValidChoicesError: none"),
        (Reply("answer", "cuBLASLt has no algorithm"), "no_baseline", "cuBLASLt has no algorithm"),
        (Reply("answer", (Outcome("wrong_result", "3 of 9"), None)), "wrong_result", "3 of 9"),
        (Reply("answer", (Outcome("unstable", "thermal"), CHOSEN)), "unstable", "thermal"),
    ],
    ids=lambda value: value.kind if isinstance(value, Reply) else "",
)
def test_every_failure_is_a_status_with_its_reason(comparer, reply, status, reason):
    made, _, naming = comparer([reply])
    result = made.duel(DUEL)
    assert (result.status, result.reason, result.figures) == (status, reason, {})
    assert not naming.asked


def test_the_noise_is_how_far_the_control_strays_and_unknown_where_it_failed(comparer):
    made, *_ = comparer([Reply("answer", Outcome("ok", "", FIGURES)), Reply("answer", Outcome("unstable", "hot"))])
    assert made.noise(DUEL.problem, Burst()) == pytest.approx(0.2)
    assert made.noise(DUEL.problem, Burst()) is None


def test_a_gpu_that_cannot_be_used_is_told_at_once(comparer):
    made, *_ = comparer([Reply("raised", error="CUDA error: all devices are busy")])
    with pytest.raises(UnusableGpuError, match=r"GPU 0 \(NVIDIA H200\) cannot be used: CUDA error"):
        made.describe(["cublas"])


def test_a_fresh_process_is_the_end_of_the_measuring_one_and_closing_ends_all(comparer):
    made, measuring, naming = comparer()
    made.renew()
    assert (measuring.closed, naming.closed) == (1, 0)
    made.close()
    assert (measuring.closed, naming.closed) == (2, 1)


class FakeBench:
    def __init__(self, info, store, seed) -> None:
        self.device = info

    def control(self, problem, protocol):
        return "control"

    def versus(self, config, problem, protocol, baseline, process):
        if baseline.name == "cublas":
            return Outcome("ok", "", FIGURES), CHOSEN
        raise BaselineError("cuBLASLt has no algorithm")


def test_the_measuring_child_answers_every_kind_of_request(monkeypatch, tmp_path):
    info = DeviceInfo(**dict.fromkeys(DeviceInfo.__dataclass_fields__, 0))
    monkeypatch.setattr(bench, "Bench", FakeBench)
    monkeypatch.setattr(device, "describe_current", lambda: info)
    handle = room._comparing(tmp_path, 0)
    about = handle(room._Ask("describe", against=("cublas",)))
    assert (about.gpu, about.missing) == (info.as_dict(), {})
    assert handle(room._Ask("noise", DUEL.problem, Burst())) == "control"
    assert handle(room._Ask("duel", duel=DUEL)) == "cuBLASLt has no algorithm"
    pickle.dumps(about)
