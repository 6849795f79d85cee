"""A backend without a GPU: answers from a formula, dies on command, and remembers what it was asked."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tuning.backend import Answer
from hopper_gemm.tuning.space import Point

SPEC = """
name = "small"
regimes = ["burst"]
lower_to_fit = ["stagger"]
[[problems]]
m = 1024
n = 1024
k = 1024
[space]
tile_m = [64, 128, 320]
tile_n = 128
k_depth = [4, 16]
stages = "max"
stagger = 1
[final]
best = 2
"""

LADDER = """
name = "ladder"
regimes = ["burst", "steady"]
[[problems]]
m = 1024
n = 1024
k = 1024
[space]
tile_m = 64
tile_n = 128
k_depth = 4
[[rungs]]
name = "base"
adds = "one load ahead of the math"
set = { stages = 2 }
[[rungs]]
name = "ring"
adds = "a ring as deep as fits"
published = "1.3 times as fast"
set = { stages = "max" }
[[rungs]]
name = "tile"
adds = "a second consumer"
set = { tile_m = 128 }
[[rungs]]
name = "same"
adds = "nothing"
[[rungs]]
name = "deep"
adds = "more than fits"
set = { tile_m = 320, k_depth = 16 }
[[rungs]]
name = "pair"
from = "ring"
adds = "two CTAs that share a tile"
set = { cluster = "1x2" }
[final]
best = 0
"""


class FakeBackend:
    """Speedup is 1 for the largest tile and shallowest stage, less elsewhere; some points do not run."""

    elsewhere = False
    busy = 0.0
    source = "measured"

    def __init__(self, die_after: int | None = None) -> None:
        self.asked: Counter[str] = Counter()
        self.data: Counter[str] = Counter()
        self.measured_again: list[str] = []
        self.batches: list[int] = []
        self.named: Counter[str] = Counter()
        self.served: list[str] = []
        self.prepared: list[str] = []
        self.closed = False
        self._die_after = die_after

    def describe(self) -> dict[str, Any]:
        return {"gpu": {"name": "NVIDIA H200", "driver": "580"}, "protocols": [], "kernel": "fake"}

    def prepare(self, points) -> None:
        self.prepared += [str(point.config) for point in points]

    def ready(self, point: Point) -> bool:
        return True

    def control(self, point: Point) -> Answer:
        return Answer("ok", "", {}, tuple((0, 100.0, 100.0 + i / 10) for i in range(10)))

    def code(self, point: Point) -> str:
        return ""

    def measure(self, point: Point, pairs: int | None = None) -> Answer:
        if self._die_after is not None and sum(self.asked.values()) >= self._die_after:
            raise KeyboardInterrupt
        self.asked[str(point.config)] += 1
        self.data[point.data] += 1
        if point.config.tile_m == 128 and point.config.k_depth == 16:
            return Answer("timeout", "no answer within 60 s; killed", {"registers": 168})
        return self._ok(point)

    def finals(self, points):
        self.batches.append(len(points))
        for point in points:
            yield point, self.final(point)

    def final(self, point: Point) -> Answer:
        self.measured_again.append(str(point.config))
        return self._ok(point)

    def cublas_kernel(self, problem: GemmProblem) -> str:
        self.named[str(problem)] += 1
        return "nvjet"

    def serving(self, spec):
        self.served.append(spec.name)
        return self

    def close(self) -> None:
        self.closed = True

    @staticmethod
    def _ok(point: Point) -> Answer:
        speed = point.config.tile_m / 320 / (1 + point.config.k_depth / 100)
        if point.data == "zeros":
            speed *= 1.25
        figures = {
            "speedup": speed,
            "speedup_low": speed - 0.01,
            "speedup_high": speed + 0.01,
            "pairs": 3,
            "processes": 1,
            "time_us": 100 / speed,
            "cublas_us": 100.0,
            "tflops": 700 * speed,
            "sm_mhz": 1600.0,
            "cublas_sm_mhz": 1600.0,
            "tensor_active": 90.0,
            "rel_err": 1.7e-3,
            "registers": 168,
            "smem_bytes": 229440,
            "wgmma": 8,
            "instructions": 500,
            "code": "c0de",
        }
        return Answer("ok", "", figures, ((0, 100 / speed, 100.0),) * 3)
