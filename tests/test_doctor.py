"""Doctor compares what is here with what is needed, and names a fix wherever the two differ."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, metadata, requires

import pytest

from hopper_gemm.cli import app, doctor, machine
from hopper_gemm.cli.doctor import PREBUILD, MachineFinding, examine, remedy
from hopper_gemm.cli.machine import Gpu, Machine, this_machine
from hopper_gemm.compiler import extension, store
from hopper_gemm.compiler.cubin import CubinReport
from hopper_gemm.compiler.extension import extension_name
from hopper_gemm.compiler.store import KernelStore, default_store
from hopper_gemm.model.roofline import SXM, Chip
from hopper_gemm.serve import EXTENSION
from hopper_gemm.serve.prebuild import menu_kernels
from hopper_gemm.tune.limits import CHIPS
from tests.conftest import ROOT, script

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
H200, A100 = Gpu("NVIDIA H200", (9, 0)), Gpu("NVIDIA A100-SXM4-80GB", (8, 0))
GOOD = Machine(
    python="3.12.3",
    system="Linux x86_64",
    glibc="2.36",
    gpus=(H200,),
    driver="580.159.04",
    driver_cuda="13.0",
    torch_cuda="13.0",
    installed={"torch": "2.13.0+cu130", "nvidia-cutlass-dsl": "4.8.1"},
    requirements=("torch>=2.9", "nvidia-cutlass-dsl[cu13]>=4.8.0,<=4.8.1"),
    requires_python=">=3.11",
)
NO_GPU = {"gpus": (), "driver": "", "driver_cuda": "", "no_gpu": "Driver Not Loaded"}
JUDGED = ("system", "glibc", "Python", "torch", "nvidia-cutlass-dsl", "GPU", "driver", "torch's CUDA")


def judged(**changes) -> dict[str, MachineFinding]:
    """Findings about a machine that differs from a good one, by what they look at."""
    return {one.what: one for one in examine(replace(GOOD, **changes))}


def test_on_a_machine_that_has_everything_every_line_is_ok_and_says_what_is_needed():
    found = judged()
    assert {what: found[what].mark for what in JUDGED} == dict.fromkeys(JUDGED, "ok")
    assert {what for what in JUDGED if not found[what].needed or found[what].fix} == set()
    assert found["nvidia-cutlass-dsl"].needed in (">=4.8.0,<=4.8.1", "<=4.8.1,>=4.8.0")


CASES = [
    ({"system": "Darwin arm64", "glibc": ""}, "system", "note", "Darwin arm64", "use a Linux x86_64 machine"),
    ({"glibc": ""}, "glibc", "missing", "another C library", "glibc 2.28 or later"),
    ({"glibc": "2.9"}, "glibc", "missing", "2.9", "glibc 2.28 or later"),
    ({"python": "3.10.13"}, "Python", "missing", "3.10.13", "make an environment of Python >=3.11"),
    ({"installed": {"torch": None}}, "torch", "missing", "not installed", 'pip install "torch>=2.9"'),
    ({"installed": {"torch": "2.8.0"}}, "torch", "missing", "2.8.0", 'pip install "torch>=2.9"'),
    (
        {"installed": {"nvidia-cutlass-dsl": "4.9.0"}},
        *("nvidia-cutlass-dsl", "missing", "4.9.0", 'pip install "nvidia-cutlass-dsl[cu13]>=4.8.0,<=4.8.1"'),
    ),
    ({"requirements": None}, "hopper-gemm", "missing", "not installed", "pip install -e ."),
    (NO_GPU, "GPU", "note", "no NVIDIA GPU (Driver Not Loaded)", "H100 or H200"),
    (NO_GPU, "driver", "note", "none", "install NVIDIA driver 580"),
    ({"gpus": (A100,)}, "GPU", "note", "NVIDIA A100-SXM4-80GB (sm_80)", "H100 or H200"),
    ({"gpus": (A100, H200)}, "GPU", "ok", "NVIDIA H200", ""),
    ({"driver": "550.54", "driver_cuda": "12.4"}, "driver", "missing", "too old for CUDA 13.0", "update the NVIDIA"),
    ({"driver": "550.54", "driver_cuda": "12.4", "gpus": (A100,)}, "driver", "note", "too old", "update the NVIDIA"),
    ({"torch_cuda": None}, "torch's CUDA", "missing", "a CPU build", "pip install --force-reinstall torch"),
    ({"torch_cuda": None, **NO_GPU}, "torch's CUDA", "note", "a CPU build", "pip install --force-reinstall torch"),
    ({"torch_cuda": "14.1"}, "torch's CUDA", "missing", "driver 580.159.04 (CUDA 13.0) cannot run", "for CUDA 13"),
]


@pytest.mark.parametrize(("changes", "what", "mark", "found", "fix"), CASES)
def test_what_differs_from_what_is_needed_is_called_what_it_is_with_its_fix(changes, what, mark, found, fix):
    """It is missing only where its use needs it: a driver or a CUDA build only beside a Hopper GPU."""
    one = judged(**changes)[what]
    assert one.mark == mark
    assert found in one.value
    assert fix in one.fix


@pytest.mark.parametrize("cuda", ["12.8", "13.0", "13.2"])
def test_a_build_of_torch_for_the_drivers_cuda_or_an_earlier_one_is_ok(cuda):
    """Minor versions of one major version run on each other's drivers."""
    assert judged(torch_cuda=cuda)["torch's CUDA"].mark == "ok"


def test_whatever_is_not_ok_has_a_fix(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("hopper_gemm.lab.counters.profiler.PATHS", ())
    machines = [replace(GOOD, **changes) for changes, *_ in CASES]
    machines.append(Machine("3.9.1", "Windows AMD64", torch_cuda=None, requirements=("torch",), requires_python=">=9"))
    found = [one for facts in machines for one in examine(facts) if one.mark != "ok"]
    assert len(found) > len(CASES)
    assert [one for one in found if not one.fix] == []


def test_a_machine_without_any_package_or_driver_is_looked_at_all_the_same(monkeypatch):
    def none(*name):
        raise PackageNotFoundError(*name)

    for name in ("requires", "metadata", "distribution"):
        monkeypatch.setattr(machine, name, none)
    for name in ("pynvml", "packaging", "packaging.requirements"):
        monkeypatch.setitem(sys.modules, name, None)
    facts = this_machine()
    assert (facts.requirements, facts.torch_cuda, facts.gpus, facts.driver) == (None, "", (), "")
    assert {one.what: one.mark for one in examine(facts)}["hopper-gemm"] == "missing"
    without = examine(replace(facts, requirements=("torch>=2.9",)))
    assert {one.what: one.fix for one in without}["packaging"] == "pip install packaging"


def test_packages_and_ranges_are_those_of_the_projects_own_metadata():
    facts = this_machine()
    known = requires("hopper-gemm") or ()
    required = [one for one in known if "extra ==" not in one or re.search("extra == .tune.", one)]
    assert facts.requirements == tuple(one.partition(";")[0].strip() for one in required)
    assert facts.requires_python == metadata("hopper-gemm")["Requires-Python"]
    assert [name for name, version in facts.installed.items() if version is None] == []
    assert len(facts.installed) == len(required) > 5


@pytest.mark.parametrize(
    ("text", "cuda"), [("cuda: Optional[str] = '13.0'", "13.0"), ("cuda = None", None), ("1 +", "")]
)
def test_what_torch_was_built_for_is_read_from_its_file(monkeypatch, tmp_path, text, cuda):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/version.py").write_text(f"from typing import Optional\n{text}\n")
    (tmp_path / "torch-9.0.dist-info").mkdir()
    (tmp_path / "torch-9.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert this_machine().torch_cuda == cuda


@pytest.mark.parametrize("compiler", [True, False])
def test_an_extension_of_torch_that_is_not_there_is_slow_with_what_makes_it(monkeypatch, tmp_path, compiler):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(extension, "FOLDER", tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: name if compiler else None)
    finding = judged()["extension of torch"]
    assert finding.mark == "slow"
    assert (
        finding.fix
        == f"{'' if compiler else 'install a C++ compiler (g++) and the headers of Python, then '}{PREBUILD}"
    )
    assert judged(**NO_GPU)["extension of torch"].mark == "note"
    (tmp_path / str(extension_name(EXTENSION))).write_bytes(b"made")
    monkeypatch.setattr(extension, "is_whole", lambda data: data == b"made")
    assert judged()["extension of torch"].mark == "ok"


def test_a_store_that_calls_refuse_is_missing_with_the_fix(monkeypatch, tmp_path):
    """One that anybody may write, and one that cannot be made."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert judged()["kernel store"].mark == "ok"
    default_store().chmod(0o777)
    finding = judged()["kernel store"]
    assert (finding.mark, "chmod go-w" in finding.fix) == ("missing", True)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    finding = judged()["kernel store"]
    assert (finding.mark, "set XDG_CACHE_HOME" in finding.fix) == ("missing", True)


def test_machine_code_of_the_menu_that_is_neither_shipped_nor_compiled_is_slow(monkeypatch, tmp_path):
    """Shipped code counts if it was tested with the installed versions of the DSL and TVM-FFI."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(store, "FOLDER", tmp_path)
    first, second = kernels = menu_kernels([("bf16", "kk")])[:2]
    monkeypatch.setattr(doctor, "menu_kernels", lambda parts, among: kernels)
    finding = judged()["machine code"]
    assert (finding.mark, finding.fix) == ("slow", PREBUILD)
    assert finding.value.startswith("0 of 2 kernels of menu and tables, 0 of them shipped")
    KernelStore(default_store()).object_file(first).write_bytes(b"")
    script(".ci/machine-code").bring([(second, b"", CubinReport(*[0] * 9, "code"))])
    finding = judged()["machine code"]
    assert finding.mark == "slow"
    assert finding.value.startswith("1 of 2 kernels of menu and tables, 1 of them shipped, for other versions")
    monkeypatch.setattr(doctor, "tested_here", lambda: True)
    assert judged()["machine code"].mark == "ok"


def test_the_last_line_names_each_command_that_makes_fast_what_is_slow():
    fixes = "hopper-gemm prebuild --menu", "install g++, then hopper-gemm prebuild --menu", "hopper-gemm tune M N K"
    findings = [MachineFinding("slow", "thing", "none", fix) for fix in fixes]
    assert remedy(findings) == f"What is slow is made fast by: {fixes[1]}; {fixes[2]}"
    assert remedy([MachineFinding("note", "thing", "none", fixes[0])]) == ""


def test_without_what_the_command_itself_needs_it_says_so_in_one_line():
    check = "import sys; sys.modules['typer'] = None; import hopper_gemm.cli"
    done = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("hopper-gemm: the command line needs the package typer, ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("mark", "code"), [("ok", None), ("note", None), ("missing", 1)])
def test_the_exit_code_is_1_only_where_something_needed_is_missing(monkeypatch, capsys, mark, code):
    monkeypatch.setattr(
        "hopper_gemm.cli.doctor.examine", lambda: [MachineFinding(mark, "thing", "none", "get one", ">=1")]
    )
    assert app(["doctor"], standalone_mode=False) == code
    assert capsys.readouterr().out == f"{mark:7} thing: none (needed: >=1); get one\n"
    app(["doctor", "--json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)[0]["needed"] == ">=1"


def test_without_a_gpu_and_its_name_a_command_assumes_an_h100_and_says_so(monkeypatch, capsys):
    """Tables, memory and picks are those of one kind of GPU."""
    monkeypatch.setattr(doctor, "kind_here", lambda: None)
    texts = []
    for option in ([], ["--gpu", "h100"]):
        app(["explain", "136", "4104", "4096", *option], standalone_mode=False)
        texts.append(capsys.readouterr().out.splitlines())
    assert [line for line in texts[0] if line not in texts[1]] == [
        "  GPU         h100 is assumed: no Hopper GPU is here, and --gpu names none"
    ]
    assert texts[0][-1].endswith("no tuned table of h100 has 136x4104x4096")
    monkeypatch.setattr(doctor, "kind_here", lambda: "h200")
    assert (doctor.kind_of(None), doctor.assumed(None), doctor.assumed("h100")) == ("h200", "", "")


def test_a_kind_that_is_named_is_one_whose_chip_is_recorded_or_that_of_the_gpu_here(monkeypatch):
    """Its chip is as the driver says here, as recorded elsewhere; of another architecture there is none."""
    monkeypatch.setattr(doctor, "kind_here", lambda: "h20")
    assert [doctor.kind_of(gpu) for gpu in (None, "h20", "H200", "NVIDIA H100 80GB HBM3")] == [
        *("h20", "h20", "h200", "h100")
    ]
    with pytest.raises(ValueError, match="--gpu must be one of h100, h200, h20 but got 'a100'"):
        doctor.kind_of("a100")
    monkeypatch.setattr("hopper_gemm.serve.kernels.chip_of", lambda: Chip(78))
    assert [doctor.chip_here(kind) for kind in ("h20", "h100", "h200", None)] == [Chip(78), CHIPS["h100"], SXM, SXM]
    assert doctor.chip_here("h100", 100) == replace(CHIPS["h100"], sms=100)
