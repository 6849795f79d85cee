"""One measurement: what is checked, what is timed, in which order, and when a config is dropped; on a CPU, with clocks
that are told what to say."""

from __future__ import annotations

import gc
import itertools
import pickle
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.grouped import GROUPINGS, GroupedProblem
from hopper_gemm.model.problem import DATA, GemmProblem
from hopper_gemm.model.recipe import ScaledProblem
from hopper_gemm.serve import grouped_mm
from hopper_gemm.tune.measure import arms
from hopper_gemm.tune.measure import bench as room
from hopper_gemm.tune.measure.baselines import Baselines
from hopper_gemm.tune.measure.baselines.base import BaselineError, Candidate
from hopper_gemm.tune.measure.baselines.choose import USUAL
from hopper_gemm.tune.measure.baselines.cublaslt import Cublas
from hopper_gemm.tune.measure.bench import ENERGY_US, KEPT, TRIES, Bench
from hopper_gemm.tune.measure.correctness import Correctness, check
from hopper_gemm.tune.measure.device import DeviceInfo
from hopper_gemm.tune.measure.protocol import Burst, Steady, seconds_of
from hopper_gemm.tune.measure.timing import Timer, Timing
from hopper_gemm.tune.measure.workload import MatrixSet, Workload, filled, fp32_product, make_workload
from hopper_gemm.tune.point import Point
from hopper_gemm.tune.statistics import Look, Race, Ratio
from hopper_gemm.tune.study.schema import CARRIED
from tests.tune.measure.fake_cuda import FakeCuda

PROBLEM = GemmProblem(64, 64, 64)
LEADER = Ratio(1.0, 0.999, 1.001, 30)


def point(config=None, context="chained", **about) -> Point:
    return Point(PROBLEM, config or GemmConfig(), context=context, **about)


def right(a, b, out):
    out.copy_(a.float() @ b.float().t())


def always_zero(a, b, out):
    out.zero_()


class World:
    """A GPU that is none: launches run on the CPU, and arms take as long as they are told."""

    care = USUAL

    def __init__(self, monkeypatch) -> None:
        self.log: list[str] = []
        self.timed: list[tuple[str, float]] = []
        self.data: list[torch.Tensor] = []
        self.us = {"ours": 100.0, "baseline": 100.0, "spacer": 4.0}
        self.slices = 1
        self.watts = None
        self.harm: list[str | None] = []
        self.chosen = 0
        self.kernel = right
        self.loaded: list[GemmConfig] = []
        monkeypatch.setattr(room, "load_any", self._load)
        monkeypatch.setattr(room, "make_workload", self._workload)
        monkeypatch.setattr(room, "seconds_per_launch", self._seconds)
        monkeypatch.setattr(room, "Timer", lambda device: self)
        monkeypatch.setattr(room, "touch", lambda sms: self._spacer)
        monkeypatch.setattr(room, "Stopwatch", self._watch)
        known = {"cublas": self, "cublaslt": self, "none": SimpleNamespace(**_NONE)}
        monkeypatch.setattr(room, "BASELINES", Baselines(known))
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)

    def bench(self) -> Bench:
        info = dict.fromkeys(DeviceInfo.__dataclass_fields__, 0) | {"sms": 132, "memory_rate": 4.3e12}
        return Bench(DeviceInfo(**info))

    # what runs

    def _load(self, config, problem, store):
        self.loaded.append(config)

        def kernel(a, b, out, **options):
            self.log.append("ours")
            self.kernel(a, b, out, **options)

        return kernel

    def _spacer(self, operands):
        self.log.append("spacer")

    def candidates(self, workload):
        self.chosen += 1

        def wrong(operands):
            self.log.append("baseline")
            operands.theirs.zero_()

        def fast(operands):
            self.log.append("baseline")
            right(operands.a, operands.b, operands.theirs)

        return [Candidate(wrong, "wrong"), Candidate(fast, "right", "recipe")]

    def _workload(self, problem, l2_bytes, seed=0, data="normal"):
        generator = torch.Generator().manual_seed(seed)

        def full() -> torch.Tensor:
            return filled(64, 64, data, generator).to(torch.bfloat16)

        sets = tuple(MatrixSet(full(), full(), full(), full()) for _ in range(2))
        return Workload(problem, sets, fp32_product(sets[0]), seed, data)

    @staticmethod
    def _seconds(launch, sets):
        launch(sets[0])
        return 1e-4

    @staticmethod
    def _watch(workload, protocol, timer, arm):
        def rel_err(candidate):
            candidate.launch(workload.sets[0])
            return check(candidate.product(workload.sets[0]), workload.reference, 64).rel_err

        same = {name: lambda candidate: 1.0 for name in ("glance", "short", "again")}
        return SimpleNamespace(**same, rel_err=rel_err)

    # the timer

    def idle(self):
        pass

    @contextmanager
    def telemetry(self, protocol):
        yield SimpleNamespace(harm=self.harm.pop(0) if self.harm else None)

    def time(self, arm, protocol, telemetry, meanwhile=lambda: None):
        assert telemetry is not None
        self.log.clear()
        for operands in arm._sets:
            if arm._spacer is not None:
                arm._spacer(operands)
            arm._launch(operands)
        who = self.log[-1]
        self.timed.append((who, protocol.timed if isinstance(protocol, Burst) else protocol.window))
        self.data.append(arm._sets[0].a)
        meanwhile()
        within = self.us["spacer"] if self.log[0] == "spacer" and who != "spacer" else 0.0
        slices = 1 if who == "spacer" else self.slices
        return Timing((self.us[who] + within,) * slices, 1700.0, self.watts)


_NONE = {"care": USUAL, "candidates": lambda workload: (_ for _ in ()).throw(BaselineError("none runs an fp32 output"))}


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


def test_every_figure_is_a_column_of_the_results_schema(world):
    world.watts, world.slices = 650.0, 3
    world.us |= {"ours": 1000.0, "baseline": 1000.0}
    names = set()
    for context in ("isolated", "chained"):
        steady = world.bench().measure(point(context=context, regime="steady"), Steady())
        burst = world.bench().measure(point(context=context), Burst(pairs=2))
        names |= set(steady.figures) | set(burst.figures)
    assert names <= set(CARRIED)
    assert {"speedup", "spacer_us", "watts", "baseline_pj_per_flop", "rel_err", "choice", "baseline_rel_err"} <= names


@pytest.mark.skipif(not hasattr(torch.nn.functional, "scaled_mm"), reason="torch has no scaled_mm")
@pytest.mark.parametrize(("scales", "promote"), [("tensor", 0), ("row", 128)])
def test_a_product_of_fp8_is_launched_with_its_scales_and_paired_with_torchs_of_the_same_recipe(
    world, monkeypatch, scales, promote
):
    """The bound is that of FP8 sums: a kernel without the scales is wrong, and so is torch's candidate."""
    problem, library = ScaledProblem(64, 256, 512, "e4m3_bf16", promote=promote, scales=scales), Cublas()
    launches, fast = library.candidates, []

    def logged(workload):
        (candidate,) = launches(workload)
        return [replace(candidate, launch=lambda operands: (world.log.append("baseline"), candidate.launch(operands)))]

    def torchs(*given, out):
        fast.append(given[-1])
        scale_a, scale_b = given[2][0].reshape(-1, 1), given[5][0].reshape(1, -1)
        return out.copy_(given[0].float() @ given[1].float() * scale_a * scale_b)

    def scaled(a, b, out, scales):
        out.copy_(a.float() @ b.float().t() * scales[0].reshape(-1, 1) * scales[1].reshape(1, -1))

    monkeypatch.setattr(torch.ops.aten._scaled_mm_v2, "out", torchs)
    monkeypatch.setattr(library, "candidates", logged)
    monkeypatch.setattr(room, "BASELINES", {"cublas": library})
    monkeypatch.setattr(room, "make_workload", lambda problem, *rest: make_workload(problem, 0, device="cpu"))
    world.kernel = scaled
    outcome = world.bench().measure(Point(problem, GemmConfig(), context="chained"), Burst(pairs=1))
    assert outcome.status == "ok", outcome.reason
    assert max(outcome.figures["rel_err"], outcome.figures["baseline_rel_err"]) < 2e-3
    assert set(fast) == {not promote}
    world.kernel = lambda a, b, out, scales: right(a, b, out)
    assert world.bench().measure(Point(problem, GemmConfig(), context="chained"), Burst()).status == "wrong_result"


@pytest.mark.skipif(not hasattr(torch.nn.functional, "grouped_mm"), reason="torch has no grouped_mm")
@pytest.mark.parametrize("grouping", GROUPINGS)
def test_groups_are_launched_with_their_ends_and_paired_with_torchs_product_of_groups(world, monkeypatch, grouping):
    """A kernel that multiplies as if groups were of one size is wrong where they are not."""
    deep, batch = grouping.endswith("depth"), grouping == "batch"
    problem = GroupedProblem(64, 48, 64, layouts="mn" if deep else "kk", groups=4, grouping=grouping)
    library, launches = Cublas(), Cublas().candidates

    def logged(workload):
        (candidate,) = launches(workload)
        return [replace(candidate, launch=lambda operands: (world.log.append("baseline"), candidate.launch(operands)))]

    def by_operator(a, b, out, ends=None):
        product = torch.bmm(a, b.mT) if batch else grouped_mm._on_cpu(a, b.mT, ends, masked=masked)
        out.copy_(product)

    def even(a, b, out, ends):
        by_operator(a, b, out, torch.tensor([16, 32, 48, 64], dtype=torch.int32))

    masked = grouping.startswith("masked")
    monkeypatch.setattr(library, "candidates", logged)
    monkeypatch.setattr(room, "BASELINES", {"cublas": library})
    monkeypatch.setattr(room, "make_workload", lambda problem, *rest: make_workload(problem, 0, device="cpu"))
    world.kernel = by_operator
    outcome = world.bench().measure(Point(problem, GemmConfig()), Burst(pairs=1))
    assert outcome.status == "ok", outcome.reason
    assert max(outcome.figures["rel_err"], outcome.figures["baseline_rel_err"]) < 2e-3
    assert outcome.figures["speedup"] == pytest.approx(1)
    if grouping in ("rows", "depth"):
        world.kernel = even
        assert world.bench().measure(Point(problem, GemmConfig()), Burst()).status == "wrong_result"


def test_a_bench_takes_its_kernels_from_what_it_is_given(world):
    asked = []

    def load(config, problem, store):
        asked.append((config, problem, store))
        return lambda a, b, out: (world.log.append("ours"), right(a, b, out))

    info = dict.fromkeys(DeviceInfo.__dataclass_fields__, 0) | {"sms": 132, "memory_rate": 4.3e12}
    outcome = Bench(DeviceInfo(**info), load=load).measure(point(), Burst(pairs=2))
    assert (outcome.status, world.loaded) == ("ok", [])
    assert asked == [(point().config, PROBLEM, None)]


def test_an_outcome_travels_between_processes(world):
    outcome = world.bench().measure(point(context="isolated"), Burst(pairs=2), process=3)
    assert pickle.loads(pickle.dumps(outcome)) == outcome
    assert [tuple(sample) for sample in outcome.samples] == [(3, 104.0, 104.0, 4.0)] * 2


def test_sides_are_timed_in_the_order_a_b_b_a_and_in_isolation_the_spacer_alone_between_them(world):
    world.bench().measure(point(), Burst(pairs=3))
    assert [who for who, _ in world.timed] == ["ours", "baseline", "baseline", "ours", "ours", "baseline"]
    world.timed.clear()
    world.bench().measure(point(context="isolated"), Burst(pairs=2, timed=0.008))
    assert world.timed == [
        ("ours", 0.008), ("spacer", 0.002), ("baseline", 0.008),
        ("baseline", 0.008), ("spacer", 0.002), ("ours", 0.008),
    ]  # fmt: skip


def test_in_isolation_the_spacer_is_taken_off_both_sides_and_off_every_time(world):
    world.us = {"ours": 5.0, "baseline": 6.0, "spacer": 4.0}
    outcome = world.bench().measure(point(context="isolated"), Burst(pairs=4))
    figures = outcome.figures
    assert (figures["time_us"], figures["baseline_us"], figures["spacer_us"]) == (5.0, 6.0, 4.0)
    assert figures["speedup"] == pytest.approx(1.2)
    assert figures["tflops"] == pytest.approx(PROBLEM.flop / 5.0 / 1e6)
    assert outcome.samples[0] == (0, 9.0, 10.0, 4.0)
    chained = world.bench().measure(point(), Burst(pairs=4))
    assert "spacer_us" not in chained.figures
    assert chained.samples[0] == (0, 5.0, 6.0, None)


def test_a_launch_that_takes_no_time_behind_its_spacer_is_no_measurement(world):
    world.us |= {"ours": -0.5}
    outcome = world.bench().measure(point(context="isolated"), Burst(pairs=2))
    assert (outcome.status, outcome.reason) == ("unstable", "the spacer alone took as long as with a launch behind it")


@pytest.mark.parametrize(("context", "us", "told"), [
    ("chained", 5.0, True), ("isolated", ENERGY_US - 1, False), ("isolated", ENERGY_US + 1, True),
])  # fmt: skip
def test_energy_in_isolation_is_told_only_where_the_spacers_share_is_small(world, context, us, told):
    world.watts = 700.0
    world.us |= {"ours": us, "baseline": us}
    figures = world.bench().measure(point(context=context, regime="steady"), Steady()).figures
    assert {"watts", "pj_per_flop", "baseline_watts", "baseline_pj_per_flop"} & set(figures) == (
        {"watts", "pj_per_flop", "baseline_watts", "baseline_pj_per_flop"} if told else set()
    )
    if told:
        launch = us + (4.0 if context == "isolated" else 0.0)
        assert figures["pj_per_flop"] == pytest.approx(700 * launch * 1e6 / PROBLEM.flop)


def test_a_burst_has_no_energy_and_slices_of_steady_state_are_pairs(world):
    assert "watts" not in world.bench().measure(point(), Burst(pairs=2)).figures
    world.slices = 3
    outcome = world.bench().measure(point(context="isolated", regime="steady"), Steady(pairs=2))
    assert (outcome.figures["pairs"], outcome.samples[5].spacer_us) == (6, 4.0)


# Looks ---------------------------------------------------------------------------------------


def looked(world, ours, looks, pairs=5, leader=LEADER, noise=0.0):
    world.us["ours"] = ours
    outcome = world.bench().measure(point(), Burst(pairs=pairs), race=Race(looks, leader, noise))
    return outcome, [seconds for who, seconds in world.timed if who == "ours"]


LOOKS = (Look(1, 0.015), Look(3, 0.0))


@pytest.mark.parametrize(
    ("ours", "pairs"), [(104.0, 1), (101.2, 3), (100.0, 5)], ids=["after a pair", "after three", "never"]
)
def test_a_config_is_dropped_at_the_first_look_at_which_it_is_hopeless(world, ours, pairs):
    outcome, timed = looked(world, ours, LOOKS)
    assert timed == [0.008] * pairs
    assert outcome.status == "ok"
    assert outcome.figures["pairs"] == pairs


def test_the_noise_is_added_to_a_looks_margin(world):
    looks = (Look(1, 0.01),)
    assert looked(world, 103.0, looks, noise=0.0)[0].figures["pairs"] == 1
    assert looked(world, 103.0, looks, noise=0.02)[0].figures["pairs"] == 5


def test_looks_beyond_the_protocols_pairs_take_no_more_of_them(world):
    outcome, timed = looked(world, 100.0, (Look(1), Look(1), Look(99)), pairs=2)
    assert (outcome.figures["pairs"], len(timed)) == (2, 2)


def test_a_protocol_of_another_regime_is_refused(world):
    with pytest.raises(ValueError, match="a burst point must be timed by a burst protocol but got Steady"):
        world.bench().measure(point(), Steady())


def test_the_next_kernel_is_loaded_while_this_one_is_timed(world):
    bench = world.bench()
    other = GemmConfig(tile_m=64)
    bench.measure(point(), Burst(pairs=1), following=point(other))
    assert world.loaded == [GemmConfig(), other]
    bench.measure(point(other), Burst(pairs=1))
    assert world.loaded == [GemmConfig(), other]


def test_few_loaded_kernels_are_kept(world):
    bench = world.bench()
    for stages in range(1, 4 * KEPT):
        bench.prepare(point(GemmConfig(stages=stages)))
        assert bench._kernel.cache_info().currsize <= KEPT


# What is right -------------------------------------------------------------------------------


def test_what_is_timed_holds_what_was_asked_also_when_it_changes_between_points(world):
    bench = world.bench()
    statuses = [bench.measure(point(data=data), Burst(pairs=1)).status for data in ("zeros", "normal", "uniform")]
    assert statuses == ["ok"] * 3
    zeros, normal, uniform = world.data[0::2]
    assert not zeros.any()
    assert float(normal.float().abs().max()) > 2
    assert 0.9 < float(uniform.float().abs().max()) <= 1
    assert all(ours is theirs for ours, theirs in zip(world.data[::2], world.data[1::2], strict=True))


@pytest.mark.parametrize("data", DATA)
def test_a_kernel_that_is_right_only_for_zeros_is_found_out_on_any_data(world, data):
    world.kernel = always_zero
    outcome = world.bench().measure(point(data=data), Burst(pairs=1))
    assert outcome.status == "wrong_result"
    assert not world.timed
    assert not world.chosen, "the baseline is not asked"


def test_a_second_run_must_give_the_same_bits(world):
    count = itertools.count()

    def wavering(a, b, out):
        right(a, b, out)
        out[0, 0] *= 1 + 2**-7 * (next(count) % 2)

    world.kernel = wavering
    outcome = world.bench().measure(point(), Burst(pairs=1))
    assert outcome.status == "wrong_result"
    assert not outcome.figures


def test_a_product_that_is_wrong_after_timing_voids_the_timing(world):
    """What is checked last was written by the timed launches: the output was poisoned before them."""
    runs = itertools.count()

    def tiring(a, b, out):
        if next(runs) < 2:
            right(a, b, out)

    world.kernel = tiring
    outcome = world.bench().measure(point(), Burst(pairs=1))
    assert (outcome.status, outcome.figures) == ("wrong_result", {})
    assert outcome.reason == "after timing: 4096 of 4096 elements were not written"


@pytest.mark.parametrize("harmed", range(TRIES + 1))
def test_a_slowdown_voids_a_timing_and_it_is_taken_again_a_few_times(world, harmed):
    world.harm = ["hardware slowdown"] * harmed
    outcome = world.bench().measure(point(), Burst(pairs=2))
    assert len(world.timed) == 4 * min(TRIES, harmed + 1)
    if harmed == TRIES:
        assert (outcome.status, outcome.figures) == ("unstable", {})
        assert outcome.reason == "hardware slowdown in each of 3 tries"
    else:
        assert (outcome.status, outcome.figures["pairs"]) == ("ok", 2)


def test_matrices_of_a_problem_are_given_back_when_the_next_one_comes(world, monkeypatch):
    """Also those of which a spacer keeps pieces."""
    monkeypatch.setattr(room, "touch", arms.touch)
    monkeypatch.setattr(arms, "load_spacer", lambda: lambda piece, blocks: world.log.append("spacer"))
    bench = world.bench()
    bench.measure(point(context="isolated"), Burst(pairs=1))
    kept = [StorageWeakRef(operands.a.untyped_storage()) for operands in bench._scene.workload.sets]
    world.data.clear()
    bench.prepare(Point(replace(PROBLEM, dtype="fp16"), GemmConfig(), context="isolated"))
    gc.collect()
    assert [ref.expired() for ref in kept] == [True, True]


# Baselines -----------------------------------------------------------------------------------


def test_a_baseline_is_chosen_once_for_a_problem_a_context_and_a_regime(world):
    bench = world.bench()
    asked = [point(), point(), point(context="isolated"), point(against="cublaslt"), point(regime="steady")]
    for one in asked:
        protocol = Steady() if one.regime == "steady" else Burst(pairs=1)
        outcome = bench.measure(one, protocol)
        assert (outcome.recipe, outcome.figures["choice"], outcome.figures["candidates"]) == ("recipe", "right", 2)
    assert world.chosen == 4
    bench.measure(Point(replace(PROBLEM, dtype="fp16"), GemmConfig(), context="chained"), Burst(pairs=1))
    assert world.chosen == 5


def test_without_a_config_the_baseline_is_timed_against_itself(world):
    outcome = world.bench().measure(Point(PROBLEM, "cublas", context="isolated"), Burst(pairs=2))
    assert [who for who, _ in world.timed] == ["baseline", "spacer", "baseline"] * 2
    assert outcome.figures["speedup"] == 1.0
    assert "rel_err" not in outcome.figures
    assert not world.loaded


def test_a_baseline_that_cannot_run_the_problem_is_a_status(world):
    outcome = world.bench().measure(point(against="none"), Burst(pairs=1))
    assert (outcome.status, outcome.reason) == ("no_baseline", "none runs an fp32 output")
    with pytest.raises(ValueError, match="the baseline must be one of cublas, cublaslt, none but got 'mkl'"):
        world.bench().measure(point(against="mkl"), Burst(pairs=1))


# From end to end -----------------------------------------------------------------------------


@pytest.mark.parametrize("context", ["isolated", "chained"])
@pytest.mark.parametrize(("ours", "theirs"), [(5.0, 6.0), (6.5, 5.5), (170.0, 171.0)])
def test_from_end_to_end_the_figures_are_those_of_the_launches_alone(world, monkeypatch, context, ours, theirs):
    """Real graphs, timers and choice on a CUDA that is none, where starting a graph takes 5 us: within 0.5 % from 20 us
    on, within 0.1 us below, and neither the spacer nor the graphs' start shows."""
    monkeypatch.undo()
    cuda = FakeCuda(monkeypatch, overhead=5e-6, sending=1e-6)

    def multiplying(name):
        return lambda operands: right(operands.a, operands.b, getattr(operands, name))

    slow, fast = (
        Candidate(cuda.launch("theirs", 1e-6 * us, multiplying("theirs")), label, label)
        for us, label in ((1.05 * theirs, "slow"), (theirs, "fast"))
    )
    launch = cuda.launch("ours", 1e-6 * ours, multiplying("ours"))
    kernel = object()
    watched = SimpleNamespace(harm=None, look=lambda: None, watts=lambda start, end: None)

    @contextmanager
    def telemetry(self, protocol):
        yield watched

    monkeypatch.setattr(Timer, "telemetry", telemetry)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(room, "make_workload", world._workload)
    monkeypatch.setattr(room, "touch", lambda sms: cuda.launch("spacer", 4e-6))
    baseline = SimpleNamespace(candidates=lambda workload: [slow, fast], care=USUAL)
    monkeypatch.setattr(room, "BASELINES", {"cublas": baseline})
    monkeypatch.setattr(room, "load_any", lambda config, problem, store: kernel)
    monkeypatch.setattr(room, "kernel_launch", lambda kernel: launch)
    monkeypatch.setattr(room, "checked_twice", lambda kernel, workload: (Correctness(0.0, 0, None), 1e-5))
    figures = world.bench().measure(point(context=context), Burst(rest=0.001, pairs=4)).figures
    assert figures["choice"] == "fast"
    for name, us in (("time_us", ours), ("baseline_us", theirs)):
        assert abs(figures[name] - us) < max(0.1, 0.005 * us)
    assert figures["speedup"] == pytest.approx(theirs / ours, rel=0.003)
    assert figures.get("spacer_us") == (pytest.approx(4.0, abs=0.1) if context == "isolated" else None)


# Protocols -----------------------------------------------------------------------------------


def test_a_pair_takes_both_sides_and_in_isolation_the_spacer_too():
    burst = Burst(rest=0.010, warm=0.002, timed=0.008)
    assert seconds_of(burst, "chained") == pytest.approx(0.040)
    assert seconds_of(burst, "isolated") == pytest.approx(0.0425)
    assert seconds_of(Steady(settle=1.0, window=1.5, slice=0.5), "isolated") == pytest.approx(5.15)


def test_a_time_in_which_no_gpu_can_read_the_operands_is_no_measurement(world):
    world.us |= {"ours": 0.003}
    outcome = world.bench().measure(point(), Burst(pairs=2))
    assert outcome.status == "unstable"
    assert "us in which operands can be read" in outcome.reason
