"""The program under the profiler writes down how far it came, and goes on where it can."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from hopper_gemm.lab.counters import program
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.point import Point

PROBLEMS = GemmProblem(64, 64, 64), GemmProblem(128, 64, 64)
POINTS = [Point(problem, config) for problem in PROBLEMS for config in ("cublas", GemmConfig(swizzle=4))]


@pytest.fixture
def world(monkeypatch):
    """Launches and ranges are written down instead of done; ``broken`` is the swizzle at which launches fail."""
    log: list[str] = []
    state = SimpleNamespace(log=log, broken=None, dead=False)

    @contextmanager
    def profiled():
        log.append("[")
        yield
        log.append("]")

    def synchronize():
        if state.dead:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def matrices(point):
        log.append(f"{point.problem}")
        return SimpleNamespace(problem=point.problem, sets=("first", "second"))

    def checked(point, workload, store):
        if not point.is_baseline and point.config.swizzle == state.broken:
            raise program.WrongResultError("7 of 64 elements were not written\nand more")
        return log.append

    for name, fake in (("_matrices", matrices), ("_checked", checked)):
        monkeypatch.setattr(program, name, fake)
    monkeypatch.setattr(program.torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(program.torch.cuda.profiler, "profile", profiled)
    return state


def stages(tmp_path):
    job = {"store": None, "journal": str(tmp_path / "j"), "points": list(map(asdict, POINTS))}
    (tmp_path / "job").write_text(json.dumps(job))
    try:
        program.main(tmp_path / "job")
    finally:
        lines = [json.loads(line) for line in (tmp_path / "j").read_text().splitlines()]
        written = [(line["point"], line["stage"]) for line in lines]
    return written, [line["reason"] for line in lines if line["reason"]]


def test_each_range_holds_one_launch_and_matrices_are_made_once_a_problem(world, tmp_path):
    written, _ = stages(tmp_path)
    launch = ["[", "first", "]"]
    assert world.log == ["64x64x64", *launch, *launch, "128x64x64", *launch, *launch]
    assert written == [(number, stage) for number in range(4) for stage in ("begun", "profiling", "counted")]


def test_a_failure_is_written_down_in_one_line_and_the_next_is_taken(world, tmp_path):
    world.broken = 4
    written, reasons = stages(tmp_path)
    assert [stage for _, stage in written if stage in ("counted", "failed")] == ["counted", "failed"] * 2
    assert reasons == ["WrongResultError: 7 of 64 elements were not written"] * 2


def test_a_broken_context_ends_the_program(world, tmp_path):
    world.dead = True
    with pytest.raises(RuntimeError, match="illegal memory access"):
        stages(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "j").read_text().splitlines()]
    assert [line["stage"] for line in lines] == ["begun", "profiling", "failed"]
