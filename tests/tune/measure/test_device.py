"""Which GPUs are visible, what a GPU is called, and what power is read from the counter's whole steps."""

from __future__ import annotations

import pytest

from hopper_gemm.tune.measure.device import GpuId, NoHopperError, Telemetry, find_hopper, slug, visible
from tests.tune.measure.fake_nvml import Board, FakeNvml

A, B, C = "GPU-a1b2", "GPU-a1c3", "GPU-d4e5"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100"),
        ("NVIDIA GH200 480GB", "nvidia-gh200-480gb"),
    ],
)
def test_the_slug_names_the_model(name, expected):
    assert slug(name) == expected


def reading(ticks: list[tuple[float, float]], reasons: int = 0) -> Telemetry:
    telemetry = object.__new__(Telemetry)
    telemetry.ticks, telemetry.reasons = ticks, reasons
    return telemetry


def test_power_comes_from_whole_steps_inside_the_window():
    """Steps of 70 J each 0.1 s are 700 W, wherever the window cuts them."""
    telemetry = reading([(i / 10, 70.0 * i) for i in range(40)])
    assert telemetry.watts(1.03, 2.57) == pytest.approx(700)


def test_too_few_steps_give_no_power():
    assert reading([(i / 10, 70.0 * i) for i in range(40)]).watts(1.0, 1.15) is None


@pytest.mark.parametrize(
    ("reasons", "harm"), [(0x0, None), (0x4, None), (0x44, "hardware thermal slowdown"), (0x8, "hardware slowdown")]
)
def test_the_power_cap_is_normal_and_a_slowdown_voids(reasons, harm):
    assert reading([], reasons).harm == harm


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (None, [0, 1, 2]),
        ("2,0", [2, 0]),
        (" 1, 2 ", [1, 2]),
        ("1gpu2,2ampere", [1, 2]),
        ("", []),
        ("0,-1,1", [0]),
        ("NoDevFiles", []),
        ("1,7,0", [1]),
        ("1,x,0", [1]),
        ("0,1,0", []),
        (f"{C},{A}", [2, 0]),
        ("GPU-d,GPU-a1c", [2, 1]),
        ("GPU-a1", []),
        (f"{C},GPU-d", []),
        (f"1,{A}", [1]),
        ("1,MIG-a1b2", [1]),
    ],
    ids=repr,
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(text, shown):
    assert visible(text, [A, B, C]) == shown


def test_a_mig_slice_is_refused_in_one_line_that_names_the_fix():
    with pytest.raises(NoHopperError) as refused:
        visible("MIG-GPU-a1b2/1/0", [A])
    assert "names a MIG slice, MIG-GPU-a1b2/1/0; " in str(refused.value)
    assert "must show whole GPUs, by index or UUID, but" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_index_i_is_the_ith_visible_gpu(monkeypatch):
    FakeNvml(monkeypatch, Board(A), Board(B, name="NVIDIA A100", capability=(8, 0)), Board(C))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    assert (find_hopper(), find_hopper(1)) == (GpuId(0, "NVIDIA H200", C), GpuId(1, "NVIDIA H200", A))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert find_hopper(2).uuid == C
    with pytest.raises(NoHopperError, match=r"but GPU 1 is NVIDIA A100 \(sm_80\)"):
        find_hopper(1)


@pytest.mark.parametrize(
    ("text", "index", "message"),
    [
        (None, 2, "GPU 2 does not exist, there are 2; "),
        ("1", 1, "GPU 1 does not exist, CUDA_VISIBLE_DEVICES='1' shows 1 of 2 (unset, it shows all); "),
        ("", 0, "GPU 0 does not exist, CUDA_VISIBLE_DEVICES='' shows 0 of 2 (unset, it shows all); "),
        ("5", 0, "GPU 0 does not exist, CUDA_VISIBLE_DEVICES='5' shows 0 of 2 (unset, it shows all); "),
    ],
)
def test_a_gpu_that_is_not_visible_is_told_with_what_hides_it(monkeypatch, text, index, message):
    FakeNvml(monkeypatch, Board(A), Board(B))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if text is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    with pytest.raises(NoHopperError) as refused:
        find_hopper(index)
    assert str(refused.value) == f"{message}name another with --gpus"


def test_a_driver_that_refuses_to_tell_is_one_line(monkeypatch):
    FakeNvml(monkeypatch, Board(A, refused=("uuid",)))
    with pytest.raises(NoHopperError, match=r"no NVIDIA GPU here \(Insufficient Permissions\)"):
        find_hopper()
