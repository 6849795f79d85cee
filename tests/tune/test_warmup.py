"""A warm-up loads what is tuned, times picks of what is not, and keeps the fastest below what a search found."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

import hopper_gemm
from hopper_gemm.cli.app import NO_GPU, app
from hopper_gemm.compiler.cubin import CubinReport
from hopper_gemm.compiler.store import KernelId
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.grouped import GroupedProblem
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.lookup import Table, find
from hopper_gemm.model.menu import choices, choose
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import SXM
from hopper_gemm.model.tuned import WARMUP, TunedEntry, own_paths, read_tuned
from hopper_gemm.serve import kernels, prebuild
from hopper_gemm.tune import warmup as room
from tests.command import run

TUNED, OTHER = GemmProblem(4096, 4096, 4096), GemmProblem(264, 1048, 4096)
REPORT = CubinReport(168, 0, 0, 0, 8, 1, 2, 3, 500, "abc")


class Gpu:
    """Stands in for an H200: kernels are loaded by name, and their times are given by tile_n."""

    def __init__(self, monkeypatch, folder) -> None:
        self.loaded, self.timed, self.capturing, self.failing = [], [], False, set()
        self.folder = folder
        about = SimpleNamespace(name="NVIDIA H200", uuid="1-2", major=9, minor=0)
        fakes = {
            "is_available": lambda: True,
            "is_current_stream_capturing": lambda: self.capturing,
            "current_device": lambda: 0,
            "get_device_properties": lambda device: about,
            "device": lambda device: nullcontext(),
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)
        monkeypatch.setattr(room, "check_device", lambda device: None)
        monkeypatch.setattr(room, "chip_of", lambda device: SXM)
        monkeypatch.setattr(kernels, "chip_of", lambda device: SXM)
        monkeypatch.setattr(room, "kernel_for", self._kernel)
        monkeypatch.setattr(room, "build", self._build)
        monkeypatch.setattr(room, "isolated_seconds", self._times)
        monkeypatch.setattr(room, "_operands", lambda problem: (problem,))
        monkeypatch.setattr(room, "launch_torch", lambda problem: self.timed.append((problem, "torch.mm")) or 3e-6)
        monkeypatch.setattr("hopper_gemm.model.tuned.local_root", lambda: folder)
        kernels._picked.cache_clear()
        kernels._tables.cache_clear()
        kernels.kind_of.cache_clear()

    def _kernel(self, problem, device, config=None):
        config = config or kernels.default_config(problem, device)
        self.loaded.append((problem, config))

        def kernel(asked):
            self.timed.append((asked, config))
            return 1e-8 * config.tile_n

        return Loaded(config, kernel)

    def _build(self, asked, watch):
        for number, _ in enumerate(asked, 1):
            watch(number, len(asked))
        failed = {str(one.config): "spilled" for one in asked if str(one.config) in self.failing}
        return prebuild.Prebuilt(len(asked), len(asked) - len(failed), failed)

    def _times(self, launches, rounds, l2_bytes):
        assert l2_bytes == SXM.l2_bytes
        return [[launch()] * rounds for launch in launches]

    @property
    def table(self):
        return read_tuned(self.folder / "h200" / "best_configs.json")


class Loaded:
    """A loaded kernel."""

    def __init__(self, config, launch) -> None:
        self.config, self.report, self._launch = config, REPORT, launch

    def __call__(self, problem):
        return self._launch(problem)


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    yield Gpu(monkeypatch, tmp_path)
    for known in (kernels._picked, kernels._tables, kernels.kind_of):
        known.cache_clear()


def test_what_is_tuned_is_only_loaded_and_the_rest_is_timed_and_kept(gpu):
    told = []
    done = hopper_gemm.warmup([(4096, 4096, 4096), OTHER, OTHER], say=told.append)
    assert done.loaded == [TUNED]
    configs = choices(OTHER, 4)
    best = min(configs, key=lambda config: config.tile_n)
    (entry,) = done.timed
    assert (entry.problem, entry.config, entry.study, entry.gpu) == (OTHER, best, WARMUP, "NVIDIA H200")
    assert entry.speedup == pytest.approx(3e-6 / (1e-8 * best.tile_n))
    assert entry.speedup_low <= entry.speedup <= entry.speedup_high
    assert {what for _, what in gpu.timed} == {"torch.mm", *configs}
    assert gpu.table == [entry]
    assert kernels.pick_for(OTHER).config == best
    assert kernels.pick_for(OTHER).how == "warmup"
    assert any(f"{OTHER} bf16 kk: {best}" in line for line in told)
    assert f"{OTHER} bf16 kk: {best}" in str(done)


def test_a_second_warm_up_times_nothing(gpu):
    hopper_gemm.warmup([OTHER], say=lambda line: None)
    gpu.timed.clear()
    again = hopper_gemm.warmup([OTHER], say=lambda line: None)
    assert (again.loaded, again.timed, gpu.timed) == ([OTHER], [], [])


def test_one_candidate_is_loaded_and_not_timed(gpu):
    done = hopper_gemm.warmup([OTHER], 1, say=lambda line: None)
    assert (done.loaded, done.timed, gpu.timed) == ([OTHER], [], [])
    assert gpu.loaded == [(OTHER, choose(OTHER))]


def test_a_candidate_that_does_not_compile_is_left_out_and_a_problem_without_one_named(gpu):
    names = [str(KernelId.of(config, OTHER).config) for config in choices(OTHER, 4)]
    gpu.failing = set(names[:3])
    (entry,) = hopper_gemm.warmup([OTHER], say=lambda line: None).timed
    assert entry.config == choices(OTHER, 4)[3]
    third = GemmProblem(520, 1048, 4096)
    gpu.failing = {str(KernelId.of(config, third).config) for config in choices(third, 4)}
    assert hopper_gemm.warmup([third], say=lambda line: None).failed == {third: "spilled"}


def test_the_linear_layers_of_a_model_are_warmed_up_for_each_count_of_tokens(gpu):
    model = torch.nn.Sequential(
        *(torch.nn.Linear(264, 520, dtype=torch.bfloat16) for _ in range(3)), torch.nn.Linear(8, 8)
    )
    done = hopper_gemm.warmup(model, tokens=(16, 128), say=lambda line: None)
    assert [entry.problem for entry in done.timed] == [GemmProblem(rows, 520, 264) for rows in (16, 128)]


def test_within_batch_invariance_the_kernels_of_its_rule_are_timed_and_serve_it_alone(gpu):
    with hopper_gemm.batch_invariant():
        done = hopper_gemm.warmup([(OTHER.m, OTHER.n, OTHER.k)], say=lambda line: None)
    (entry,) = done.timed
    assert entry.problem == replace(OTHER, batch_invariant=True)
    assert is_legal(entry.config, entry.problem)
    assert (kernels.pick_for(entry.problem).how, kernels.pick_for(OTHER).how) == ("warmup", "model")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: hopper_gemm.warmup([]), ValueError, "warmup has nothing to multiply"),
        (lambda: hopper_gemm.warmup(torch.nn.Linear(8, 8), tokens=(1,)), ValueError, "nothing to multiply"),
        (lambda: hopper_gemm.warmup(torch.nn.Linear(8, 8)), ValueError, "tokens must be given with a model"),
        (lambda: hopper_gemm.warmup([OTHER], 0), ValueError, "candidates must be 1 or more but got 0"),
        (lambda: hopper_gemm.warmup([(0, 8, 8)]), ValueError, "m must be a positive integer"),
        (
            lambda: hopper_gemm.warmup([GroupedProblem(8, 8, 8, groups=2)]),
            ValueError,
            r"single products but got 2 rows of 8x8x8; hopper_gemm.autotune times groups",
        ),
    ],
)
def test_a_mistake_is_one_line(gpu, call, error, message):
    with pytest.raises(error, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_nothing_is_timed_under_capture_within_chained_or_without_a_gpu(gpu, monkeypatch):
    gpu.capturing = True
    with pytest.raises(RuntimeError, match="must not run while a CUDA graph is captured"):
        hopper_gemm.warmup([OTHER])
    gpu.capturing = False
    with hopper_gemm.chained(), pytest.raises(RuntimeError, match=r"outside of hopper_gemm\.chained"):
        hopper_gemm.warmup([OTHER])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="torch sees none"):
        hopper_gemm.warmup([OTHER])
    assert gpu.timed == []


def test_what_was_timed_before_an_interruption_is_kept(gpu, monkeypatch):
    third, fastest = GemmProblem(520, 1048, 4096), room._fastest

    def interrupted(problem, *rest):
        if problem == third:
            raise KeyboardInterrupt
        return fastest(problem, *rest)

    monkeypatch.setattr(room, "_fastest", interrupted)
    with pytest.raises(KeyboardInterrupt):
        hopper_gemm.warmup([OTHER, third], say=lambda line: None)
    assert [entry.problem for entry in gpu.table] == [OTHER]


def test_operands_lie_as_the_problem_says_and_have_its_types(monkeypatch):
    randn, empty = torch.randn, torch.empty
    monkeypatch.setattr(torch, "randn", lambda size, device, dtype: randn(size, dtype=dtype))
    monkeypatch.setattr(torch, "empty", lambda *size, device, dtype: empty(*size, dtype=dtype))
    for layouts in ("kk", "mk", "kn", "mn"):
        a, b, out = room._operands(GemmProblem(16, 24, 40, "fp16_fp32", layouts))
        assert (a.shape, b.shape, out.shape) == ((16, 40), (24, 40), (16, 24))
        assert (a.is_contiguous(), b.is_contiguous()) == (layouts[0] == "k", layouts[1] == "k")
        assert (a.dtype, out.dtype) == (torch.float16, torch.float32)


# Times by events ---------------------------------------------------------------------------


class Clock:
    """A GPU's clock: copies and launches move it, events read it."""

    def __init__(self, monkeypatch) -> None:
        self.now, self.log = 0.0, []
        clock = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                self.at = clock.now

            def elapsed_time(self, other):
                return 1e3 * (other.at - self.at)

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: self.log.append("wait"))
        monkeypatch.setattr(room.torch, "zeros", lambda size, dtype, device: Buffer(self, size))

    def launch(self, name, seconds):
        def run():
            self.log.append(name)
            self.now += seconds

        return run


class Buffer:
    """A buffer whose copy takes a second."""

    def __init__(self, clock, size) -> None:
        self.clock, self.size = clock, size

    def copy_(self, other):
        assert self is not other
        self.clock.log.append(f"copy {other.size}")
        self.clock.now += 1.0


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def test_a_launch_is_timed_alone_behind_a_copy_of_twice_the_l2(clock):
    launches = [clock.launch("ours", 0.25), clock.launch("theirs", 0.5)]
    assert room.isolated_seconds(launches, 3, 100) == [[0.25] * 3, [0.5] * 3]
    order = ["ours", "theirs", "theirs", "ours"]
    expected = [
        word
        for number in range(5)
        for one in (order[:2] if number % 2 == 0 else order[2:])
        for word in ("copy 200", one)
    ]
    assert clock.log == [*expected, "wait"]


# Rank of its entries -------------------------------------------------------------------------


def entry(study, speedup, tile_m=128, **about):
    figures = {"noise": 0.001, "registers": 168, "wgmma": 8, "instructions": 500, "code": "0", "gpu": "NVIDIA H200"}
    config = resolve(GemmConfig(tile_m=tile_m))
    return TunedEntry(
        OTHER, "burst", config, speedup, 1.0, 1.2, study=study, **{"context": "isolated", **figures, **about}
    )


def test_a_search_in_a_later_table_or_another_regime_serves_before_a_warm_up():
    warm, found = entry(WARMUP, 1.3), entry("tune", 1.1, 64)
    assert find([Table((warm,)), Table((found,))], OTHER).entry == found
    steady = replace(found, regime="steady")
    assert find([Table((warm, steady))], OTHER).entry == steady
    assert find([Table((warm, replace(found, context="chained")))], OTHER).entry == warm


def test_the_command_prints_what_was_timed(gpu, monkeypatch):
    monkeypatch.setattr("hopper_gemm.cli.running.local_source", lambda *words: None)
    done = CliRunner().invoke(app, ["warmup", "264", "1048", "4096", "--json"])
    assert done.exit_code == 0, done.output
    (timed,) = json.loads(done.stdout)["timed"]
    assert timed["problem"]["m"] == 264
    assert own_paths("h200")[0] == gpu.folder / "h200" / "best_configs.json"


def test_the_command_needs_a_gpu():
    done = run("warmup", "264", "1048", "4096")
    assert done.returncode == NO_GPU
    assert done.stderr.startswith("hopper-gemm: ")
    options = set(re.findall(r"--[a-z-]+", CliRunner().invoke(app, ["warmup", "--help"]).stdout))
    assert set(re.findall(r"--[a-z-]+", done.stderr)) <= options, "no option that the command lacks"
    assert "hopper-gemm prebuild needs no GPU" in done.stderr
