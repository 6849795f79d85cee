"""What ``make headline`` lists and how it goes on; that needs no GPU."""

from __future__ import annotations

import re
import shlex
import tomllib
from importlib.util import find_spec

import pytest
import typer

from docs.generate import headline
from docs.generate.headline import Claim, claims, main, measure
from docs.generate.pages.comparisons import headline as table_of_readme
from hopper_gemm.cli import app
from hopper_gemm.model.tuned import results_root
from hopper_gemm.tune.measure.device import GpuId, NoHopperError
from tests.conftest import ROOT

CLAIMS = [Claim("README.md", f"claim {n}", "suite", f"command {n}", "an earlier version's") for n in range(3)]


@pytest.fixture(scope="module")
def listed():
    return claims()


def test_each_line_of_the_readme_s_table_is_a_claim_with_its_mark(listed):
    """Those of an earlier version, wholly or in part, do not stand there; what is not compared comes first."""
    marks = sorted(line.strip("| ").split(" | ")[-1].split(", 20")[0] for line in table_of_readme().splitlines()[2:])
    table = [claim for claim in listed if claim.page == "README.md" and not claim.rows.startswith("measurements")]
    assert sorted(claim.code for claim in table if claim.code == "this version's") == marks
    current = [claim.current for claim in listed if claim.page == "README.md"]
    assert current == sorted(current)
    assert not all(current)


def test_each_claim_has_a_path_of_its_own_and_a_command_that_there_is(listed):
    known = typer.main.get_command(app).commands
    assert len({claim.command for claim in listed}) == len(listed)
    for claim in listed:
        program, *words = shlex.split(claim.command.partition(" > ")[0])
        if program == "hopper-gemm":
            known[words[0]].make_context(words[0], words[1:])
        else:
            assert find_spec(words[1]) if words[0] == "-m" else (ROOT / words[0]).is_file()


def test_a_figure_of_a_page_from_measurements_has_its_claim(listed):
    """What pages quote from files that nothing else measures, but for archived rows, times of single scripts (of a core
    that compiles, of many GPUs), comparisons of two versions and what is computed from rows."""
    pages = tomllib.loads((ROOT / "docs/figures.toml").read_text()).values()
    quoted = {
        source for of in pages for source in of.values() if re.match(r"results/(measurements|verification)", source)
    }
    rows = {claim.rows for claim in listed}
    found = {source.removeprefix("results/") for source in quoted}
    assert {one for one in found if not {one, one.split("/")[0]} & rows} <= {
        f"measurements/{name}" for name in ("moved.jsonl", "compile.csv", "joint-scale.csv", "model.csv", "trees.csv")
    }
    assert all((results_root() / row).exists() for row in rows if "/" in row)


def test_measuring_goes_on_where_it_stopped(tmp_path, monkeypatch):
    """A command that ended well is not run again, one that failed is; other sources of the kernel begin anew."""
    ran = []

    def run(command, bad=("command 1",)):
        ran.append(command)
        return command in bad

    assert measure(CLAIMS, tmp_path, print, run) == [CLAIMS[1]]
    ran.clear()
    assert measure(CLAIMS, tmp_path, print, lambda command: run(command, ())) == []
    assert ran == ["command 1"]
    monkeypatch.setattr(headline, "kernel_digest", lambda: "another")
    assert measure(CLAIMS, tmp_path, print, run) == [CLAIMS[1]]
    assert len(ran) == 4


def test_a_claim_of_the_table_has_its_figure(listed):
    table = table_of_readme().replace("**", "")
    current = [claim for claim in listed if claim.figure and claim.current]
    assert current
    assert all(part.partition(" over ")[0] in table for claim in current for part in claim.figure.split("; "))
    assert f"{current[0].what}: {current[0].figure}\n" in headline.listing(current)


def test_one_claim_is_measured_anew_whatever_was_measured_before(monkeypatch, tmp_path, capsys):
    """Each time where nothing is; a run that was stopped goes on."""
    out, other = headline.out_of("one"), Claim("README.md", "one more", "suite", "b", "this version's")
    claim = Claim("README.md", "one", "suite", f"a --out {out}", "this version's")
    monkeypatch.setattr(headline, "claims", lambda: [claim, other])
    monkeypatch.setattr(headline, "find_hopper", lambda: GpuId(0, "NVIDIA H200", "GPU-1"))
    monkeypatch.setattr(headline, "results_root", lambda: tmp_path / "results")
    monkeypatch.setattr(headline, "local_root", lambda: tmp_path / "results/local")
    ran = []
    for status in (0, 1, 0, 0):
        monkeypatch.setattr(headline, "run", lambda command, status=status: ran.append(command) or status)
        assert main(["--only", "ONE"]) == status
    assert ran == [claim.command, f"{claim.command}-2", f"{claim.command}-2", f"{claim.command}-3"]
    assert main(["--only", "more"]) == main(["--only", "more"]) == 0
    assert ran[4:] == ["b", "b"]
    assert main([]) == 0
    assert len(ran) == 6
    with pytest.raises(SystemExit):
        main(["--only", "none"])
    assert "--only must be of one claim but 'none' is of 0; name one of: one; one more" in capsys.readouterr().err


def test_without_a_gpu_nothing_is_measured_and_that_is_said(monkeypatch, capsys):
    def find():
        raise NoHopperError("no NVIDIA GPU here")

    monkeypatch.setattr(headline, "claims", lambda: CLAIMS)
    monkeypatch.setattr(headline, "find_hopper", find)
    assert main([]) == 0
    assert capsys.readouterr().out.endswith("Nothing was measured: no NVIDIA GPU here\n")
