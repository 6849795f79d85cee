"""The ends of the ranges of the DSL and of TVM-FFI: .ci/dsl-range runs, and its table says what differs or failed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions, version

import pytest

from hopper_gemm.compiler.compile import compile_kernel
from hopper_gemm.compiler.cubin import read_cubin
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve
from tests.conftest import ROOT, script

SCRIPT = ROOT / ".ci/dsl-range"


@pytest.fixture(scope="module", name="script")
def dsl_range():
    return script(".ci/dsl-range")


@pytest.fixture
def fake(script, monkeypatch):
    """Replace environments by digests: of a kernel ``"a"``, but as set here for a pair of versions."""
    digests = {}

    def compiled(dsl, ffis):
        return {ffi: dict.fromkeys(script.KERNELS, "a") | digests.get((dsl, ffi), {}) for ffi in ffis}

    monkeypatch.setattr(script, "compiled", compiled)
    return digests


def verdicts(text: str) -> dict[str, str]:
    """Last cell of each row of a Markdown table, by its first."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    return {row[0]: row[-1] for row in cells}


def test_every_dsl_is_compiled_with_every_tvm_ffi_and_equal_digests_are_the_same(script, fake, capsys):
    assert script.main([]) == 0
    text = capsys.readouterr().out
    pairs = [(dsl, ffi) for dsl in script.versions(script.DSL) for ffi in script.versions(script.TVM_FFI)]
    assert len(pairs) == 4
    assert re.findall(r"DSL (\S+), TVM-FFI (\S+)", text) == pairs
    assert verdicts(text) == dict.fromkeys(script.KERNELS, "same")


def test_machine_code_that_differs_is_reported_and_fails_nothing(script, fake, capsys):
    fake["4.8.1", "0.1.11"] = {"pingpong 128x128": "b"}
    assert script.main([]) == 0
    assert verdicts(capsys.readouterr().out) == dict.fromkeys(script.KERNELS, "same") | {"pingpong 128x128": "differs"}


def test_a_kernel_that_does_not_compile_fails_the_run(script, monkeypatch, capsys):
    monkeypatch.setattr(script, "compiled", lambda dsl, ffis: {ffi: {"pingpong 128x128": "a"} for ffi in ffis})
    assert script.main([]) == 1
    assert verdicts(capsys.readouterr().out) == dict.fromkeys(script.KERNELS, "failed") | {"pingpong 128x128": "same"}


@pytest.mark.parametrize("argument", ["4.9.0", "numpy==2.0", "--help"])
def test_an_argument_that_names_no_version_of_either_package_is_refused_in_one_line(script, capsys, argument):
    assert script.main([argument]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"but is {argument!r}")


def test_an_environment_that_cannot_be_made_fails_its_versions_and_says_why(script, monkeypatch, capsys):
    monkeypatch.setattr(script, "run", lambda *command: (_ for _ in ()).throw(script.StepError("no such version")))
    assert script.compiled("4.8.0", ["0.1.11", "0.1.12"]) == {"0.1.11": {}, "0.1.12": {}}
    assert capsys.readouterr().err.splitlines()[0] == "DSL 4.8.0, TVM-FFI 0.1.11: no such version"


def test_digests_of_another_version_than_was_installed_are_refused(script):
    report = json.dumps({script.DSL: "4.8.0", script.TVM_FFI: "0.1.15", "a kernel": "a"})
    assert script.read_report(report, {script.DSL: "4.8.0", script.TVM_FFI: "0.1.15"}) == {"a kernel": "a"}
    with pytest.raises(script.StepError, match=r"apache-tvm-ffi 0\.1\.15 was used instead of 0\.1\.11"):
        script.read_report(report, {script.DSL: "4.8.0", script.TVM_FFI: "0.1.11"})


@pytest.mark.compile
def test_the_compile_half_compiles_and_loads_a_kernel_with_the_packages_that_are_installed(script):
    """It imports nothing else of this project's dependencies, which no environment of the script has."""
    name = "pingpong 128x128"
    fields, dtype = script.KERNELS[name]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["tune"]]
    required = {re.match(r"[\w-]+", line)[0] for line in lines} - {script.DSL, script.TVM_FFI, script.BESIDE}
    absent = [module for module, names in packages_distributions().items() if required & {*names}]
    assert {"torch", "pandas", "pydantic"} <= {*absent}
    kernels = {name: script.KERNELS[name]}
    lines = [
        f"import runpy, sys; sys.modules |= dict.fromkeys({absent})",
        f"compile_all = runpy.run_path({str(SCRIPT)!r})['compile_all']",
        f"compile_all.__globals__['KERNELS'] = {kernels}; compile_all()",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, env=environment)
    assert done.stderr == ""
    assert json.loads(done.stdout) == {
        script.DSL: version(script.DSL),
        script.TVM_FFI: version(script.TVM_FFI),
        name: read_cubin(compile_kernel(resolve(GemmConfig(**fields)), dtype).cubin).code,
    }
