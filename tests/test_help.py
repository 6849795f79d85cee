"""The first screen: what the command and the package say of themselves, and how much a run prints."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import hopper_gemm
from hopper_gemm.cli import app
from hopper_gemm.cli.running import watching
from hopper_gemm.model.config import PARAMETERS, GemmConfig
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.point import Point
from hopper_gemm.tune.run.questions.sweep import Progress
from hopper_gemm.tune.study.row import Row
from tests.conftest import ROOT


def test_every_summary_is_a_whole_sentence_on_80_columns():
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}, terminal_width=80).output
    panels = re.split(r"^\w+:\n", text, flags=re.MULTILINE)[2:]
    lines = [line for panel in panels for line in panel.splitlines() if line]
    assert len(lines) > 10
    assert [line for line in lines if not line.endswith(".") or line.endswith("...")] == []


def test_a_wrong_option_points_to_the_help_of_its_command():
    command = [sys.executable, "-m", "hopper_gemm", "table", "--nope"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, "hopper-gemm: No such option: --nope; see hopper-gemm table --help\n")


def test_the_version_is_printed_by_the_command_and_by_the_package():
    assert CliRunner().invoke(app, ["--version"]).output == f"hopper-gemm {hopper_gemm.__version__}\n"


def test_the_package_shows_what_users_call_and_explains_every_parameter():
    assert {"matmul", "chained", "use_table", "GemmConfig", "__version__"} <= set(dir(hopper_gemm))
    missing = [name for name in PARAMETERS if f"        {name} (default " not in (GemmConfig.__doc__ or "")]
    assert missing == []


@pytest.mark.parametrize(("verbose", "lines"), [(True, 30), (False, 1)])
def test_progress_prints_every_point_only_when_asked(capsys, verbose, lines):
    point = Point(GemmProblem(64, 64, 64), GemmConfig())
    row = Row(point, "illegal", "a rule", {}, (), "sweep", 0, "s", "replayed", "H200")
    with watching(30, verbose) as (watch, _):
        for done in range(30):
            watch(Progress(row, "w", done, 30, None))
    assert len(capsys.readouterr().err.splitlines()) == lines
