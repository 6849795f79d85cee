"""Workers that are kept measure question after question, in the same processes."""

from __future__ import annotations

from dataclasses import replace

from hopper_gemm.tune.run.coordinator import run
from hopper_gemm.tune.run.executors.kept import Kept
from hopper_gemm.tune.run.executors.local import Local
from hopper_gemm.tune.run.questions.sweep import Sweep
from tests.tune.run import fakes
from tests.tune.run.instant import rows_of, spec_of


def test_a_later_run_meets_the_workers_of_an_earlier_one(tmp_path, monkeypatch):
    log = tmp_path / "log"
    monkeypatch.setenv("FAKE_LOG", str(log))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    spec = spec_of(tmp_path)
    about = {"gpu": {"name": "NVIDIA H200"}, "kernel": "fake"}
    kept = Kept(Local(replace(fakes.job(tmp_path), fresh=spec.final.fresh), [0]))
    try:
        for name in ("first", "second"):
            run(Sweep(spec, tmp_path / name, about), kept)
    finally:
        kept.end()
    figures = [[(row.point, row.status) for row in rows_of(tmp_path / name)] for name in ("first", "second")]
    assert figures[0] == figures[1]
    finals = [rows_of(tmp_path / name, "final") for name in ("first", "second")]
    assert len(finals[0]) == len(finals[1]) == 2 * spec.final.processes
    processes = [line.split()[1] for line in log.read_text().splitlines() if line.startswith("measure")]
    assert len({*processes}) < len(processes) / 2
