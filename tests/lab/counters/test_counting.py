"""What the profiler says is read as it is meant, and what it does not say is left empty and told."""

from __future__ import annotations

import os
import time
from itertools import pairwise

import pytest

from hopper_gemm.lab.counters.counting import COUNTERS, METRICS, count, figures_of, settle
from hopper_gemm.lab.counters.profiler import (
    ProfiledLaunch,
    ProfilerError,
    command,
    find_profiler,
    read_launches,
    refusal,
    unit_factor,
)
from hopper_gemm.lab.counters.waits import FIGURES
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.measure.device import GpuId
from hopper_gemm.tune.point import Point
from hopper_gemm.tune.study.schema import COUNTED
from tests.lab.counters.fake_ncu import calls, install

GPU = GpuId(0, "NVIDIA H200", "GPU-0")
PROBLEM = GemmProblem(64, 128, 256)
OURS_NAME = "kernel_cutlass_kernel_hopper_gemmkernelgemmHopperGemm_object_at__CopyAtom_ThrID10_0"
CUBLAS_NAME = "nvjet_sm90_tst_320x128_64x3_1x2_h_bz_coopB_TNT"

HEAD = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device",'
    '"CC"'
)
RAW = f"""==PROF== Connected to process 4711 (/usr/bin/python3.12)
==PROF== Profiling "nvjet_sm90_tst_320x128_64x3_1..." - 0: 0%....50%....100% - 11 passes
==PROF== Profiling "kernel_cutlass_kernel_hopper_..." - 1: 0%....50%....100% - 11 passes
==PROF== Disconnected from process 4711
{HEAD},"dram__bytes_read.sum","dram__bytes_write.sum","gpu__time_duration.sum","l1tex__data_bank_reads.sum",\
"lts__t_sector_hit_rate.pct","lts__t_sectors_op_read.sum","sm__cycles_elapsed.avg.per_second",\
"sm__pipe_tensor_op_gmma_cycles_active.avg.pct_of_peak_sustained_active",\
"sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active","smsp__inst_executed.sum"
"","","","","","","","","","","","byte","byte","ns","","%","sector","hz","","%","inst"
"0","4711","python3.12","node","{CUBLAS_NAME}","1","7","(384, 1, 1)","(132, 1, 1)","0","9.0","1,251,234,560",\
"134,217,728","1,404,128","8,760,000,000","79.51","250,123,456","1,570,123,456.78","n/a","96.9","181,000,000"
"1","4711","python3.12","node","{OURS_NAME}","1","7","(384, 1, 1)","(1, 2, 66)","0","9.0","1010000000",\
"nan","1380000","5940000000","","228,000,000","1612345678.9","n/a","98.1","105,000,000"
"""


def config(**fields) -> GemmConfig:
    return resolve(GemmConfig(tile_m=64, tile_n=64, **fields))


POINTS = [Point(PROBLEM, "cublas"), *(Point(PROBLEM, config(swizzle=swizzle)) for swizzle in (2, 4, 8))]


@pytest.fixture
def fake(tmp_path):
    """Install a profiler of a mood, and count with it."""

    def counted(*mood, points=POINTS, **options):
        return count(points, GPU, install(tmp_path, *mood), **options)

    return counted


def test_the_raw_page_gives_one_launch_a_line_in_base_units():
    """Messages are passed over, thousands separators dropped, what was not counted is left out."""
    cublas, ours = read_launches(RAW)
    assert (cublas.kernel, ours.kernel) == (CUBLAS_NAME, OURS_NAME)
    assert cublas.values["dram__bytes_read.sum"] == 1_251_234_560
    assert cublas.values["gpu__time_duration.sum"] == pytest.approx(1.404128e-3)
    assert cublas.values["sm__cycles_elapsed.avg.per_second"] == pytest.approx(1.57012345678e9)
    assert ours.values["dram__bytes_read.sum"] == 1.01e9
    left_out = {"dram__bytes_write.sum", "lts__t_sector_hit_rate.pct"}
    assert not left_out & set(ours.values)
    assert not any("gmma" in name for name in (*cublas.values, *ours.values))


@pytest.mark.parametrize(
    "log",
    ["", "==WARNING== No kernels were profiled.\n", HEAD + ',"dram__bytes_read.sum"\n', RAW[: RAW.index(HEAD) + 300]],
)
def test_a_log_without_rows_has_no_launches(log):
    assert read_launches(log) == []


def test_a_table_without_units_is_refused_rather_than_misread():
    lines = [line for line in RAW.splitlines() if not line.startswith('"",')]
    with pytest.raises(ProfilerError, match="no line of units"):
        read_launches("\n".join(lines))


@pytest.mark.parametrize(
    ("unit", "factor"),
    [
        *[("ns", 1e-9), ("nsecond", 1e-9), ("us", 1e-6), ("msecond", 1e-3), ("second", 1)],
        *[("byte", 1), ("Kbyte", 1e3), ("Gbyte", 1e9), ("hz", 1), ("Ghz", 1e9)],
        *[("cycle/nsecond", 1e9), ("byte/ns", 1e9), ("%", 1), ("inst", 1), ("", 1)],
    ],
)
def test_units_come_down_to_seconds_bytes_and_hertz(unit, factor):
    assert unit_factor(unit) == pytest.approx(factor)


def test_figures_have_the_units_of_the_results_and_say_what_is_missing():
    cublas, ours = (figures_of([launch]) for launch in read_launches(RAW))
    expected = {"tensor_active_hw": 96.9, "sm_ghz": 1.570123, "duration_us": 1404.128, "l2_hit_pct": 79.51}
    assert {name: cublas[0][name] for name in expected} == pytest.approx(expected, rel=1e-6)
    assert cublas[0]["l2_read_sectors"] == 250_123_456
    assert "no dram_write_bytes; no l2_hit_pct" in ours[1]
    assert "dram_write_bytes" not in ours[0]


def test_a_rate_without_its_own_metric_is_a_ratio_of_two():
    hits, of = (f"lts__t_sectors_srcunit_tex_op_read{name}.sum" for name in ("_lookup_hit", ""))
    assert figures_of([ProfiledLaunch("k", {hits: 30.0, of: 40.0})])[0] == {"l2_load_hit_pct": 75}
    assert figures_of([ProfiledLaunch("k", {hits: 30.0, of: 0.0})])[0] == {}


def test_counts_of_several_kernels_add_up_and_rates_are_the_longest_ones():
    launches = [
        ProfiledLaunch("gemm", {"gpu__time_duration.sum": 9e-6, "lts__t_sector_hit_rate.pct": 80.0}),
        ProfiledLaunch("reduce", {"gpu__time_duration.sum": 1e-6, "lts__t_sector_hit_rate.pct": 10.0}),
    ]
    figures, note = figures_of(launches)
    assert figures == pytest.approx({"duration_us": 10.0, "l2_hit_pct": 80.0})
    assert note.endswith("2 kernels")


def test_every_figure_has_metrics_and_every_metric_its_suffix():
    assert all("__" in metric and metric.endswith((".sum", ".pct", "_active", "per_second")) for metric in METRICS)


def test_the_command_line_leaves_clocks_alone_flushes_caches_and_counts_the_marked_range(tmp_path):
    built = command(tmp_path / "ncu", ["a.sum", "b.pct"], tmp_path / "log", ["python", "x"])
    pairs = dict(pairwise(built))
    expected = {
        "--clock-control": "none",
        "--cache-control": "all",
        "--profile-from-start": "off",
        "--replay-mode": "kernel",
        "--page": "raw",
        "--print-units": "base",
        "--metrics": "a.sum,b.pct",
        "--log-file": str(tmp_path / "log"),
    }
    assert {name: pairs[name] for name in expected} == expected
    assert "--csv" in built
    assert (built[0], built[-2:]) == (str(tmp_path / "ncu"), ["python", "x"])


def test_a_missing_profiler_is_told_with_the_fix(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("hopper_gemm.lab.counters.profiler.PATHS", ("/nowhere/*/ncu",))
    with pytest.raises(ProfilerError, match=r"no ncu on PATH nor under .*; install it"):
        find_profiler()


def test_the_newest_profiler_is_taken(monkeypatch, tmp_path):
    for version in ("2024.10.1", "2025.3.1", "2025.12.0"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "ncu").write_text("")
        (tmp_path / version / "ncu").chmod(0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("hopper_gemm.lab.counters.profiler.PATHS", (f"{tmp_path}/*/ncu",))
    assert find_profiler() == tmp_path / "2025.12.0" / "ncu"


def test_a_profiler_that_cannot_be_started_is_told(tmp_path):
    (tmp_path / "ncu").write_text("")
    with pytest.raises(ProfilerError, match=r"cannot be started \(Permission denied\); repair the installation"):
        count(POINTS, GPU, tmp_path / "ncu")


def test_complaints_are_told_apart():
    assert refusal("==ERROR== Profiling failed because a driver resource was unavailable.").startswith("another tool")
    assert refusal(RAW) is None


def test_every_figure_is_a_column_of_the_results_schema():
    assert (*COUNTERS, *FIGURES) == tuple(column.name for column in COUNTED)


# -- matching -------------------------------------------------------------------------------------


def launches(*kernels):
    return [
        ProfiledLaunch(OURS_NAME if kernel == "ours" else kernel, {"dram__bytes_read.sum": float(number)})
        for number, kernel in enumerate(kernels, 1)
    ]


def stages(*names):
    return {number: (name, "why" if name == "failed" else "") for number, name in enumerate(names)}


@pytest.mark.parametrize(
    "seen",
    [
        ("nvjet", "ours", "ours"),
        ("nvjet", "reduce", "ours", "ours"),
        ("nvjet", "reduce", "ours", "ours", "ours"),
        ("nvjet", "ours", "ours", "ours", "ours"),
    ],
)
def test_no_launch_is_given_away_where_the_order_is_in_doubt(seen):
    assert settle(POINTS, stages(*["counted"] * 4), launches(*seen)) == {}


def test_alone_a_point_takes_all_that_was_seen_if_it_begins_with_its_own():
    found = settle(POINTS[:1], stages("counted"), launches("nvjet", "reduce"))
    assert (found[POINTS[0]].kernel, found[POINTS[0]].figures["dram_read_bytes"]) == ("nvjet+reduce", 3)
    found = settle(POINTS[1:2], stages("counted"), launches("nvjet"))
    assert found[POINTS[1]].reason == "the profiler saw another kernel than was launched: nvjet"


# -- whole runs -----------------------------------------------------------------------------------


def test_one_run_counts_everything(fake, tmp_path):
    answers = fake()
    assert calls(tmp_path) == 1
    assert [answer.point for answer in answers] == POINTS
    assert [answer.figures["executed"] for answer in answers] == [1, 3, 5, 9]
    assert answers[0].figures["duration_us"] == pytest.approx(1404.128)


def test_a_wrong_product_is_no_harm_to_the_others(fake, tmp_path):
    answers = fake("wrong")
    assert calls(tmp_path) == 1
    assert answers[2].reason == "WrongResultError: 7 of 64 elements were not written"
    assert [bool(answer.figures) for answer in answers] == [True, True, False, True]


def test_a_crash_costs_its_own_point_alone(fake, tmp_path):
    answers = fake("crashes")
    assert calls(tmp_path) == 2
    assert answers[2].reason.startswith("the process died")
    assert [answer.figures.get("executed") for answer in answers] == [1, 3, None, 9]


def test_a_hang_is_killed_with_its_children_and_costs_its_own_point_alone(fake, tmp_path):
    answers = fake("hangs", point_seconds=0.5, start_seconds=2)
    assert answers[2].reason == "hung; killed"
    assert [answer.figures.get("executed") for answer in answers] == [1, 3, None, 9]
    pid = int((tmp_path / "pid").read_text())
    for _ in range(50):
        if not _runs(pid):
            break
        time.sleep(0.1)
    assert not _runs(pid)


def test_several_kernels_of_one_call_are_told_apart_by_running_alone(fake, tmp_path):
    answers = fake("splits", points=POINTS[:2])
    assert calls(tmp_path) == 3
    assert answers[0].kernel == "nvjet_sm90_tst_256x128+void cublasLt::splitKreduce_kernel<32, 16, int>(float *)"
    assert answers[0].figures["executed"] == 2
    assert answers[1].figures["executed"] == 3


@pytest.mark.parametrize(
    ("mood", "message"),
    [
        ("forbidden", "this user may not read the GPU's performance counters .*; run as root"),
        ("refuses", "counted nothing: Failed to access the following 1 metrics: l1tex__data_bank_reads.sum"),
        ("stillborn", "did not start: ModuleNotFoundError: No module named 'torch'"),
    ],
)
def test_what_stops_everything_is_one_line_with_the_fix(fake, mood, message):
    with pytest.raises(ProfilerError, match=message) as caught:
        fake(mood)
    assert len(str(caught.value).splitlines()) == 1


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return open(f"/proc/{pid}/stat").read().split()[2] != "Z"
    except OSError:
        return False
