"""A command on a page works as printed."""

from __future__ import annotations

import re
import shlex
import shutil

import pytest

import benchmarks
from hopper_gemm.compiler.extension import extension_name
from hopper_gemm.serve import EXTENSION
from hopper_gemm.tune.measure.device import NoHopperError
from tests.command import run
from tests.conftest import ROOT, hoppers
from tests.each import each
from tests.printed import ELSEWHERE, LISTED, MEASURES, listed, printed

RUN = [command for command in printed() if not listed(command)]


def test_a_command_that_is_not_run_as_printed_is_run_by_what_the_list_names():
    """No entry of the lists is left over from a page that was changed."""
    assert [path for path in ELSEWHERE.values() if not (ROOT / path).exists()] == []
    commands = printed()
    used = {pattern for pattern in LISTED for command in commands if re.fullmatch(pattern, command)}
    assert [pattern for pattern in LISTED if pattern not in used] == []
    assert [command for command in RUN if not command.startswith("hopper-gemm ")] == []


@pytest.fixture
def folder(pytestconfig, tmp_path, monkeypatch, extension):
    """A folder with a finished study, DIR, and a cache that has the extension of torch alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    libraries = tmp_path / "cache/hopper-gemm/libraries"
    libraries.mkdir(parents=True, mode=0o700)
    shutil.copy(extension.__file__, libraries / str(extension_name(EXTENSION)))
    made = run("sweep", "sweeps/archive/options.toml", "--backend", "replay", "--out", str(tmp_path / "DIR"))
    assert made.returncode == 0, made.stderr
    return tmp_path


@pytest.mark.timeout(400)  # half a minute of a core, beside other tests
@each("command", RUN)
def test_a_printed_command_runs_or_says_in_a_line_that_it_needs_a_gpu(command, folder):
    """In a folder of its own, as far as it does not write to one by default: ``sweep`` and ``ladder`` are given it."""
    if MEASURES.match(command) and hoppers():
        return  # tests/gpu/test_printed.py
    words = shlex.split(command)[1:]
    if words[0] in ("ladder", "sweep") and "--out" not in words:
        words += ["--out", f"OUT-{RUN.index(command)}"]
    done = run(*words, cwd=folder)
    assert done.returncode == (3 if MEASURES.match(command) else 0), done.stderr
    if MEASURES.match(command):
        assert re.fullmatch(r"hopper-gemm: no NVIDIA GPU here .*; .+\n", done.stderr)


def test_a_benchmark_says_in_a_line_that_it_needs_a_gpu(monkeypatch, capsys):
    def missing() -> None:
        raise NoHopperError("no NVIDIA GPU here; run on a machine with an H100 or H200")

    monkeypatch.setattr("hopper_gemm.tune.measure.device.find_hopper", missing)
    with pytest.raises(SystemExit) as ended:
        benchmarks.need_hopper()
    assert (ended.value.code, capsys.readouterr().err.count("\n")) == (3, 1)
    measuring = [path for path in ROOT.glob("benchmarks/*.py") if "Bench(" in path.read_text()]
    assert [path.name for path in measuring if "need_hopper()" not in path.read_text()] == []
