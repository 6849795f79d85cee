"""What is required, pinned, tested and shipped agrees; a relative path is found in a checkout or in the package."""

from __future__ import annotations

import re
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, metadata

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from hopper_gemm.cli.doctor import DRIVER, GLIBC, SYSTEM
from hopper_gemm.tune.study.files import here_or_recorded
from hopper_gemm.tune.study.reader import read_study
from hopper_gemm.tune.study.spec import read_spec
from tests.conftest import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
DSL, TVM_FFI = "nvidia-cutlass-dsl", "apache-tvm-ffi"


def required() -> dict[str, Requirement]:
    """Every requirement, those of extras included, by name."""
    texts = [*PROJECT["dependencies"], *(one for extra in PROJECT["optional-dependencies"].values() for one in extra)]
    return {canonicalize_name(one.name): one for one in map(Requirement, texts) if one.name != PROJECT["name"]}


def pinned() -> dict[str, str]:
    """Versions of constraints.txt by name."""
    found = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def test_every_requirement_is_pinned_to_a_version_within_its_range():
    pins = pinned()
    assert [name for name, one in required().items() if not one.specifier.contains(pins[name])] == []


def test_every_requirement_has_a_row_in_the_table_of_licences_as_its_own_metadata_states_them():
    rows = re.findall(r"^\| `([\w.-]+)` \| [^|]+ \| ([^|]+) \|", (ROOT / "docs/licences.md").read_text(), re.MULTILINE)
    build = [canonicalize_name(Requirement(text).name) for text in PYPROJECT["build-system"]["requires"]]
    assert sorted(name for name, _ in rows) == sorted([*required(), *build])
    for name, licence in rows:
        with suppress(PackageNotFoundError):
            assert metadata(name).get("License-Expression") in (None, licence)


def test_a_bare_install_has_what_torch_warns_without():
    """torch declares no dependency on NumPy, and warns that it cannot initialise it, at its import."""
    assert "numpy" in {Requirement(text).name for text in PROJECT["dependencies"]}


def test_the_dsls_range_ends_at_versions_that_were_tested_and_the_upper_one_is_pinned():
    """.ci/dsl-range compiles with both ends."""
    ends = {one.operator: one.version for one in required()[DSL].specifier}
    assert ends.keys() == {">=", "<="}
    assert ends["<="] == pinned()[DSL]


def test_what_servers_pin_lies_within_the_ranges_here_and_the_newest_tvm_ffi_is_pinned():
    """A higher floor could not be installed beside them. docs/install.md lists their pins, with the day."""
    page = (ROOT / "docs/install.md").read_text().partition("## Beside vLLM")[2].partition("\n## ")[0]
    pins = re.findall(r"^\| (?:vllm|sglang|tilelang) [\d.]+ \| (\S+) \|(?: (\S+) )?", page, re.MULTILINE)
    assert len(pins) == 3
    for name, texts in zip((TVM_FFI, DSL), zip(*pins, strict=True), strict=True):
        for text in filter(None, texts):
            lowest = next(pin.version for pin in SpecifierSet(text) if pin.operator in ("==", ">="))
            assert required()[name].specifier.contains(lowest)
    tvm_ffi = {pin.operator: pin.version for pin in required()[TVM_FFI].specifier}
    assert tvm_ffi == {">=": "0.1.11", "<": "0.2"}
    assert Version(pinned()[TVM_FFI]) > Version("0.1.11")


def test_machine_code_is_for_versions_from_the_floor_of_the_requirements_to_the_pin():
    ends = {
        name: [next(one.version for one in required()[name].specifier if one.operator == ">="), pinned()[name]]
        for name in (DSL, TVM_FFI)
    }
    assert PYPROJECT["tool"]["hopper-gemm"]["tested"] == ends


def test_the_table_of_requirements_says_what_is_required_and_what_doctor_asks_for():
    text = (ROOT / "docs/install.md").read_text().partition("## Requirements\n")[2].partition("\n## ")[0]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    table = {name: (needed, tested) for name, needed, tested in cells}
    dsl, ffi = ({one.operator: one.version for one in required()[name].specifier} for name in (DSL, TVM_FFI))
    assert table["CuTe DSL; TVM-FFI"] == (
        f"{dsl['>=']} to {dsl['<=']}; {ffi['>=']} or later, before {ffi['<']}",
        f"{dsl['>=']} and {dsl['<=']}; {ffi['>=']} and {pinned()[TVM_FFI]}",
    )
    assert SpecifierSet(f">={table['torch'][0].split()[0]}") == required()["torch"].specifier
    assert pinned()["torch"] in table["torch"][1]
    assert SpecifierSet(f">={table['Python'][0].split()[0]}") == SpecifierSet(PROJECT["requires-python"])
    known = re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)
    assert all(version in table["Python"][1] for version in known)
    assert table["system"][0] == f"{SYSTEM}, glibc {GLIBC} or later"
    assert table["driver"][0].startswith(f"{DRIVER} or later")


def test_the_wheel_holds_what_a_replay_of_the_seed_table_needs():
    shipped = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert {source for source in shipped if not (ROOT / source).exists()} == set()
    assert {f"hopper_gemm/{source}" for source in shipped} == set(shipped.values())
    assert {"results/h200/seed-table", "results/h200/best_configs.json", "sweeps"} <= shipped.keys()
    study = read_study(ROOT / "results/h200/seed-table").provenance["study"]
    assert study == read_spec(ROOT / "sweeps/seed-table.toml").name


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with a sweep and results in it, and an empty current folder."""
    for path in ("package/sweeps/one.toml", "package/results/h200/one/rows.csv"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text("")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    monkeypatch.setattr("hopper_gemm.tune.study.files.results_root", lambda: tmp_path / "package/results")
    return tmp_path


@pytest.mark.parametrize("name", ["sweeps/one.toml", "results/h200/one"])
def test_a_path_that_is_not_here_is_found_in_the_package_and_one_that_is_here_goes_first(package, name):
    asked = (package / name).relative_to(package)
    assert here_or_recorded(asked) == package / "package" / name
    asked.mkdir(parents=True)
    assert here_or_recorded(asked) == asked
