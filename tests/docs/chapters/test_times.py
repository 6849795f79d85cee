"""Listings are timed one by one; one that hangs, crashes or is wrong has a row that says so, and the others go on."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest

from docs.generate.chapters import times
from docs.generate.chapters.build import Built
from docs.generate.chapters.table import built_rows, table
from docs.generate.pages.chapters import burst
from hopper_gemm.compiler.cubin import CubinReport
from hopper_gemm.tune.measure.device import DeviceInfo, GpuId
from hopper_gemm.tune.measure.protocol import Outcome
from hopper_gemm.tune.point import Sample
from tests.command import run

pytestmark = pytest.mark.results
chapters = partial(run, module="docs.generate.chapters.__main__")
GPU = GpuId(0, "NVIDIA H200", "GPU-7")
REPORT = CubinReport(168, 0, 0, 0, 8, 2, 4, 0, 600, "c0de")
SPILLED = CubinReport(168, 64, 8, 8, 8, 2, 4, 0, 600, "5b11")
FIGURES = {"speedup": 0.97, "tflops": 761.0, "tensor_active": 91.0, "sm_mhz": 1550.0}
DEVICE = DeviceInfo("NVIDIA H200", "h200", "GPU-7", 132, 1, 4.3e12, "580.1", "13.0", 700.0, 1980)


def answering():
    """Stands in for the handler: chapter 2 hangs, 3 is wrong, 4 crashes."""
    assert os.environ["CUDA_VISIBLE_DEVICES"] == GPU.uuid

    def handle(asked):
        if asked is None:
            return asdict(DEVICE)
        what = asked.object_file.name
        if what == "2":
            time.sleep(60)
        if what == "4":
            os._exit(3)
        outcome = Outcome("ok", "", FIGURES, (Sample(0, 1445.0, 1400.0),))
        return Outcome("wrong_result", "7 wrong elements") if what == "3" else outcome

    return handle


@pytest.fixture(scope="module")
def found():
    built = {number: Built(Path(str(number)), REPORT) for number in range(1, 6)}
    built |= {6: Built(None, None, "NameError: no such name"), 7: Built(Path("7"), SPILLED)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(times, "LISTING_SECONDS", 0.5)
        patch.setattr("hopper_gemm.compiler.child.START_SECONDS", 10.0)
        return {row["chapter"]: row for row in times.rows(built, GPU, factory=answering)}


def test_a_listing_has_a_row_whatever_becomes_of_it_and_one_that_hangs_is_ended_in_its_own_time(found):
    assert found[2]["reason"].startswith("no answer within 0 s")
    assert {number: row["status"] for number, row in found.items()} == {
        1: "ok",
        2: "timeout",
        3: "wrong_result",
        4: "crash",
        5: "ok",
        6: "compile_error",
        7: "spilled",
    }
    assert found[6]["reason"] == "NameError: no such name"


def test_a_row_says_where_it_was_measured_and_of_what(found):
    assert json.loads(json.dumps(found[5])) == found[5]
    known = {"rung": "stagger 1", "m": 8192, "regime": "burst", "context": "chained", "board": "GPU-7", "code": "c0de"}
    known |= {"gpu": "NVIDIA H200", "driver": "580.1", "speedup": 0.97, "us": [[1445.0, 1400.0]]}
    assert {name: found[5][name] for name in known} == known
    assert found[5]["versions"]["torch"]
    assert len(found[5]["kernel"]) == 16


def test_the_table_has_a_line_for_each_chapter_beside_the_record_and_says_what_is_wrong(found):
    lines = table(list(found.values())).splitlines()
    assert lines[0].split(" | ")[2].strip() == "TFLOP/s"
    first = burst("serial")
    assert [cell.strip() for cell in lines[2].strip("| ").split("|")] == [
        *("1", "serial", "761", "0.970x", "91 %", "1550", f"{first.tflops:.0f}", f"{first.speedup:.3f}x")
    ]
    assert lines[9:] == [
        f"chapter {number}: {row['status']}: {row['reason']}" for number, row in found.items() if row["status"] != "ok"
    ]


def test_without_a_gpu_the_table_says_what_was_built():
    rows = built_rows({1: Built(Path("1"), REPORT), 2: Built(None, None, "E")}, {1: "serial", 2: "multistage"})
    head, _, first, second, wrong = table(rows).splitlines()
    assert "registers | instructions | wgmma | recorded TFLOP/s" in head
    assert "168" in first
    assert "196" not in second
    assert wrong == "chapter 2: compile_error: E"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["0"], "chapters are numbered 1 to 8 but got 0"),
        (["3", "9"], "chapters are numbered 1 to 8 but got 3 9"),
        (["--write", "code", "--code", "code"], "leave out --code and --out"),
        (["2", "--code", "nowhere"], "nowhere/2-stages.py does not exist; python -m docs.generate.chapters --write"),
    ],
)
def test_the_command_refuses_in_one_line(tmp_path, arguments, message):
    done = chapters(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr


@pytest.mark.compile
def test_the_command_builds_what_it_wrote_and_ends_with_1_if_a_listing_does_not_compile(tmp_path):
    assert chapters("1", "--write", "code", cwd=tmp_path).stdout == "Written to code\n"
    built = chapters("1", "--code", "code", "--json", cwd=tmp_path)
    (row,) = json.loads(built.stdout)
    assert (built.returncode, row["status"]) in ((0, "built"), (0, "ok"))
    file = tmp_path / "code/1-serial.py"
    file.write_text(file.read_text().replace("warpgroup.fence()", "warpgroup.fences()"))
    done = chapters("1", "--code", "code", cwd=tmp_path)
    assert done.returncode == 1
    assert "chapter 1: compile_error: " in done.stdout
