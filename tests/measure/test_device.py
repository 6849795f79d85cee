"""What a GPU is called, and what power is read from the counter's whole steps."""

from __future__ import annotations

import pytest

from hopper_gemm.measure.device import Telemetry, Tick, slug


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


def reading(ticks: list[Tick], reasons: int = 0) -> Telemetry:
    telemetry = object.__new__(Telemetry)
    telemetry.ticks, telemetry.reasons = ticks, reasons
    return telemetry


def test_power_comes_from_whole_steps_inside_the_window():
    """Steps of 70 J each 0.1 s are 700 W, wherever the window cuts them."""
    telemetry = reading([Tick(i / 10, 70.0 * i) for i in range(40)])
    assert telemetry.watts(1.03, 2.57) == pytest.approx(700)


def test_too_few_steps_give_no_power():
    assert reading([Tick(i / 10, 70.0 * i) for i in range(40)]).watts(1.0, 1.15) is None


@pytest.mark.parametrize(
    ("reasons", "harm"), [(0x0, None), (0x4, None), (0x44, "hardware thermal slowdown"), (0x8, "hardware slowdown")]
)
def test_the_power_cap_is_normal_and_a_slowdown_voids(reasons, harm):
    assert reading([], reasons).harm == harm
