"""Within ``autotune`` what is called is noted; behind it what no table has is measured, once, and kept."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch

import hopper_gemm
from hopper_gemm.cli import measuring
from hopper_gemm.compiler.store import KernelId
from hopper_gemm.model.grouped import GroupedProblem
from hopper_gemm.model.menu import choices
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import SXM
from hopper_gemm.model.tuned import CONTEXTS, WARMUP, own_paths, read_tuned
from hopper_gemm.serve import bmm, kernels
from hopper_gemm.serve.prebuild import Prebuilt
from hopper_gemm.tune import autotune as module
from hopper_gemm.tune.measure.device import GpuId
from hopper_gemm.tune.measure.protocol import Outcome
from hopper_gemm.tune.run import source as sources
from hopper_gemm.tune.run.questions import tune
from hopper_gemm.tune.statistics import ALONE
from tests.conftest import ROOT
from tests.serve.launcher import Launches
from tests.tune.run import fakes
from tests.tune.run.instant import TUNE_SPACE, Instant

GPU = GpuId(0, "NVIDIA H200", "GPU-1-2")
SMALL, LARGE = GemmProblem(264, 1048, 512), GemmProblem(520, 1048, 512)


class FakeBench:
    """Answers from a formula and notes what it was asked."""

    def __init__(self, gpu) -> None:
        self.device, self._gpu = SimpleNamespace(name=GPU.name, uuid=GPU.uuid), gpu

    def measure(self, point, protocol, race=ALONE):
        if not point.is_baseline:
            self._gpu.timed.append((point.problem, point.context, point.config))
            self._gpu.leaders.append(race.leader and race.leader.median)
            if len(self._gpu.timed) == self._gpu.killed_at:
                raise KeyboardInterrupt
            if str(point.config) in self._gpu.wrong:
                return Outcome("wrong_result", "1 of 16 elements differ")
        return fakes.outcome(fakes.Ask(point, protocol))


class Hopper:
    """Stands in for an H200 whose launches are those of the stand-in, and whose times are those of a formula."""

    def __init__(self, monkeypatch, folder) -> None:
        self.timed, self.wrong, self.failing, self.killed_at, self.said = [], set(), set(), 0, []
        self.leaders = []
        self.executors, self.stop_after = [], None
        self.launches = Launches(monkeypatch)
        properties = SimpleNamespace(name=GPU.name, uuid="1-2", major=9, minor=0)
        for name, fake in {
            "is_available": lambda: True,
            "current_device": lambda: 0,
            "device_count": lambda: 1,
            "get_device_properties": lambda device: properties,
            "synchronize": lambda: None,
            "empty_cache": lambda: None,
        }.items():
            monkeypatch.setattr(torch.cuda, name, fake)
        for where in (module, kernels):
            monkeypatch.setattr(where, "chip_of", lambda device=0: SXM)
        report = fakes.report("code")
        monkeypatch.setattr(module, "describe_current", lambda: None)
        monkeypatch.setattr(module, "find_hopper", lambda index: GPU)
        monkeypatch.setattr(module, "Bench", lambda device, load: FakeBench(self))
        monkeypatch.setattr(module, "load_any", lambda config, problem: SimpleNamespace(report=report))
        monkeypatch.setattr(module, "build", self._build)
        monkeypatch.setattr(sources, "Local", self._local)
        monkeypatch.setattr(tune, "_space", lambda: TUNE_SPACE)
        for where in ("hopper_gemm.model.tuned.local_root", "hopper_gemm.tune.run.source.local_root"):
            monkeypatch.setattr(where, lambda: folder)
        self.forget()

    def forget(self):
        for cached in (kernels._picked, kernels._tables, kernels.kind_of):
            cached.cache_clear()

    def _build(self, wanted, watch):
        failed = {str(kernel.config): "spilled" for kernel in wanted if str(kernel.config) in self.failing}
        return Prebuilt(len(wanted), len(wanted) - len(failed), failed)

    def _local(self, job, gpus):
        self.executors.append(Instant(stop_after=self.stop_after, gpu=GPU.name))
        return self.executors[-1]

    @property
    def table(self):
        return read_tuned(own_paths("h200")[0])

    def tuned(self, work, *given, **named):
        """Run some work within autotune."""
        with hopper_gemm.autotune(*given, say=self.said.append, **named) as tuning:
            work()
        return tuning


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    stand_in = Hopper(monkeypatch, tmp_path)
    yield stand_in
    stand_in.forget()


def product(m=264, n=1048, k=512, dtype=torch.bfloat16):
    return hopper_gemm.matmul(torch.ones(m, k, dtype=dtype), torch.ones(n, k, dtype=dtype).t())


def both():
    product(264)
    product(520)


# What is noted -------------------------------------------------------------------------------------


def test_every_way_of_calling_is_noted_once_in_its_context_and_by_its_rule(gpu):
    x, w = torch.ones(264, 512, dtype=torch.bfloat16), torch.ones(1048, 512, dtype=torch.bfloat16)

    def work():
        product()
        product()
        hopper_gemm.linear(x, w, activation="silu")
        with hopper_gemm.chained():
            product()
        hopper_gemm.swiglu(x, w[:1024], batch_invariant=True)
        hopper_gemm.matmul(x, w.t(), config=hopper_gemm.GemmConfig(tile_m=64))

    product()  # known before the block begins
    assert [*gpu.tuned(work).called] == [
        (SMALL, "isolated"),
        (SMALL, "chained"),
        (GemmProblem(264, 1024, 512, batch_invariant=True), "isolated"),
    ]
    assert kernels.CALLED == []


def test_gradients_and_patched_layers_are_noted(gpu):
    model = torch.nn.Sequential(torch.nn.Linear(64, 128, bias=False, dtype=torch.bfloat16))
    hopper_gemm.patch(model)

    def work():
        model(torch.ones(16, 64, dtype=torch.bfloat16)).sum().backward()

    sizes = {str(case.problem) for case in gpu.tuned(work).called}
    assert sizes == {"16x128x64", "128x64x16"}


ROWS, BATCH = (GroupedProblem(64, 128, 64, groups=4, grouping=grouping) for grouping in ("rows", "batch"))


def groups():
    """A batch, and groups of rows."""
    a, b = torch.ones(4, 16, 64, dtype=torch.bfloat16), torch.ones(4, 128, 64, dtype=torch.bfloat16)
    bmm._bmm(a, b.mT)
    for note in kernels.CALLED:
        note(ROWS, "isolated")


def test_the_fastest_pick_of_groups_and_of_batches_is_kept_and_served_and_the_second_time_none_is_measured(gpu):
    """Also where others are searched."""
    before = kernels.pick_for(ROWS)
    measured = gpu.tuned(groups, seconds=3600).measured
    assert [entry.problem for entry in measured] == [BATCH, ROWS]
    for entry in measured:
        timed = [config for problem, _, config in gpu.timed if problem == entry.problem]
        assert timed == choices(entry.problem, module.GROUP_PICKS)
        assert entry.config == max(timed, key=lambda config: fakes.speed_of(module.Point(ROWS, config)))
        assert (kernels.pick_for(entry.problem).config, kernels.pick_for(entry.problem).how) == (entry.config, WARMUP)
    assert before.how == "model"
    assert gpu.executors == []
    gpu.timed.clear()
    assert (gpu.tuned(groups).measured, gpu.timed) == ([], [])


def test_an_entry_serves_groups_of_its_own_kind_number_and_rows_alone(gpu):
    gpu.tuned(groups)
    others = GemmProblem(64, 128, 64), replace(ROWS, groups=8), replace(ROWS, m=128), replace(ROWS, grouping="masked")
    assert {kernels.pick_for(problem).how for problem in others} == {"model"}
    assert len(gpu.table) == 2
    assert kernels.pick_for(replace(ROWS, dtype="fp16")).how == "other type"


def test_groups_are_timed_once_more_by_name_and_those_of_fp8_are_only_counted(gpu):
    gpu.tuned(groups)
    gpu.timed.clear()
    done = module.time_groups(ROWS, "isolated", 3, say=gpu.said.append)
    assert (len(gpu.timed), [entry.problem for entry in done.measured]) == (3, [ROWS])
    assert "x grouped_mm" in str(done)
    fp8 = GroupedProblem(64, 128, 64, "e4m3_bf16", groups=4)
    tuning = gpu.tuned(lambda: [note(fp8, "isolated") for note in kernels.CALLED])
    assert (tuning.called, [*tuning.untuned]) == ({}, [(fp8, "isolated")])
    assert "1 problems of scaled_grouped_mm run as picked" in gpu.said[-1]
    with pytest.raises(ValueError, match="operands of 16 bits but got e4m3_bf16"):
        module.time_groups(fp8, "isolated")


def test_the_command_times_groups_whose_operands_lie_as_those_of_experts_and_of_their_gradients(
    gpu, monkeypatch, capsys
):
    monkeypatch.setattr("hopper_gemm.tune.measure.device.find_hopper", lambda index=0: GPU)
    for grouping, layouts in (("rows", "kk"), ("depth", "mn")):
        measuring.tune(64, 128, 64, groups=4, grouping=grouping, trials=2, as_json=True)
        (entry,) = json.loads(capsys.readouterr().out)
        wanted = GroupedProblem(64, 128, 64, layouts=layouts, groups=4, grouping=grouping)
        assert entry["problem"] == asdict(wanted)
        assert kernels.pick_for(wanted).how == WARMUP
    assert len(gpu.timed) == 4


def test_an_exception_in_the_block_ends_it_without_measuring(gpu):
    def work():
        product()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        gpu.tuned(work)
    assert (gpu.timed, kernels.CALLED) == ([], [])


def test_nothing_begins_or_is_measured_while_a_graph_is_captured(gpu, monkeypatch):
    def work():
        product()
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        monkeypatch.setattr("hopper_gemm.serve.launches.loading_allowed", None)

    tuning = gpu.tuned(work)
    assert (gpu.timed, len(tuning.open)) == ([], 1)
    assert "1 problems are left" in gpu.said[-1]
    with pytest.raises(RuntimeError, match="must not begin while a CUDA graph is captured"), hopper_gemm.autotune():
        pass


# Picks ---------------------------------------------------------------------------------------------


def test_the_fastest_pick_is_kept_for_its_context_and_the_second_time_nothing_is_measured(gpu):
    def work():
        product()
        with hopper_gemm.chained():
            product()

    measured = gpu.tuned(work).measured
    picks = choices(SMALL, module.PICKS)
    timed = {context: [config for _, at, config in gpu.timed if at == context] for context in CONTEXTS}
    assert timed == {
        "isolated": picks,
        "chained": [config.but(pdl=pdl) for config in picks[:2] for pdl in (False, True)],
    }
    best = {at: max(timed[at], key=lambda config: fakes.speed_of(module.Point(SMALL, config))) for at in CONTEXTS}
    assert [(entry.context, entry.config, entry.study) for entry in measured] == [
        (context, best[context], WARMUP) for context in CONTEXTS
    ]
    assert len(gpu.table) == 2
    assert kernels.pick_for(SMALL).config == best["isolated"]
    gpu.timed.clear()
    assert (gpu.tuned(work).measured, gpu.timed) == ([], [])


def test_each_pick_races_against_the_best_so_far(gpu):
    gpu.tuned(product)
    speeds = [fakes.speed_of(module.Point(problem, config)) for problem, _, config in gpu.timed]
    assert gpu.leaders == [None, *(pytest.approx(max(speeds[:at]), rel=0.01) for at in range(1, len(speeds)))]


def test_so_many_candidates_are_timed_and_measure_may_be_called_between_calls(gpu):
    with hopper_gemm.autotune(candidates=2, say=gpu.said.append) as tuning:
        product()
        tuning.measure()
        assert len(gpu.timed) == 2
        product()
    assert len(gpu.timed) == 2
    assert "1 problems called, 1 measured" in str(tuning)


def test_what_a_table_has_from_a_search_is_not_timed(gpu):
    assert gpu.tuned(lambda: product(4096, 4096, 4096)).measured == []
    assert gpu.timed == []


def test_a_killed_program_goes_on_with_what_was_not_measured(gpu):
    gpu.killed_at = module.PICKS + 1
    with pytest.raises(KeyboardInterrupt):
        gpu.tuned(both)
    assert [entry.problem for entry in gpu.table] == [SMALL]
    gpu.timed.clear()
    assert [entry.problem for entry in gpu.tuned(both).measured] == [LARGE]
    assert {problem for problem, *_ in gpu.timed} == {LARGE}


def test_a_batch_invariant_call_gets_an_entry_of_its_rule(gpu):
    def work():
        with hopper_gemm.batch_invariant():
            product()

    (entry,) = gpu.tuned(work).measured
    assert entry.problem == replace(SMALL, batch_invariant=True)
    assert kernels.pick_for(SMALL).how == "model"


def test_settings_of_torch_are_those_of_tune_while_it_measures_and_the_programs_afterwards(gpu, monkeypatch):
    seen = []

    def measure(bench, point, protocol, race=ALONE):
        seen.append((torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled()))
        return fakes.outcome(fakes.Ask(point, protocol))

    monkeypatch.setattr(FakeBench, "measure", measure)
    torch.use_deterministic_algorithms(True)
    try:
        gpu.tuned(product)
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_grad_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert {*seen} == {(False, False)}


def test_a_pick_that_is_wrong_or_does_not_compile_is_left_out_and_a_problem_without_one_is_named(gpu):
    first, second, *_ = choices(SMALL, module.PICKS)
    gpu.wrong, gpu.failing = {str(first)}, {str(KernelId.of(second, SMALL).config)}
    (entry,) = gpu.tuned(product).measured
    assert entry.config not in (first, second)
    gpu.wrong = {str(config) for config in choices(LARGE, module.PICKS)}
    tuning = gpu.tuned(lambda: product(520))
    assert [*tuning.failed.values()] == ["wrong result: 1 of 16 elements differ"]
    assert "failed: wrong result" in str(tuning)


# Searches ------------------------------------------------------------------------------------------


def test_a_search_is_that_of_tune_and_its_workers_stay_from_problem_to_problem(gpu, tmp_path):
    measured = gpu.tuned(both, seconds=3600, candidates=3).measured
    assert [(entry.problem, entry.study) for entry in measured] == [
        (problem, f"tune-{problem}-burst") for problem in (SMALL, LARGE)
    ]
    (executor,) = gpu.executors
    assert executor.closed
    assert sum(task.stage == "sweep" for _, task in executor.tasks) == 6
    assert {path.name for path in (tmp_path / "h200").iterdir() if path.is_dir()} == {
        f"tune-{problem}-burst" for problem in (SMALL, LARGE)
    }
    assert kernels.pick_for(LARGE).config == measured[1].config
    assert (gpu.tuned(both, seconds=3600).measured, len(gpu.executors)) == ([], 1)


def test_a_search_replaces_picks_and_searches_chained_calls_in_their_context(gpu):
    def work():
        with hopper_gemm.chained():
            product()

    gpu.tuned(work)
    (entry,) = gpu.tuned(work, seconds=3600, candidates=2).measured
    assert (entry.context, entry.study) == ("chained", f"tune-{SMALL}-burst-chained")
    assert [one.study for one in gpu.table] == [entry.study]


# Arguments, imports ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"seconds": 0}, ValueError, "seconds must be a number above 0 but got 0"),
        ({"seconds": True}, ValueError, "seconds must be a number above 0 but got True"),
        ({"candidates": 0}, ValueError, "candidates must be 1 or more but got 0"),
        ({"say": 3}, TypeError, "say must be called with a line but is 3"),
    ],
)
def test_a_mistake_is_one_line(given, error, message):
    with pytest.raises(error, match=message) as caught, hopper_gemm.autotune(**given):
        pass
    assert "\n" not in str(caught.value)


def test_on_a_cpu_the_block_measures_nothing():
    with hopper_gemm.autotune() as tuning:
        product(8, 8, 8)
    assert (tuning.called, tuning.measured) == ({}, [])


def test_without_the_extra_the_error_names_it():
    blocked = "import sys; sys.modules['pynvml'] = None; import hopper_gemm; hopper_gemm.autotune"
    done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, cwd=ROOT)
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: hopper_gemm.autotune needs pynvml, which is missing; pip install 'hopper-gemm[tune]'"
    )
