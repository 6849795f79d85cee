"""A figure is this version's where the kernel that would run today is, byte for byte, the one that was measured."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest

from docs.generate import __main__ as generator
from docs.generate import todays_code as today
from docs.generate.todays_code import (
    CURRENT,
    EARLIER,
    FILE,
    UNKNOWN,
    Measured,
    TodaysCode,
    compiled,
    kernel_name,
    mark,
    measured_of,
    read_todays_code,
    write_todays_code,
)
from hopper_gemm.compiler.cubin import CubinReport
from hopper_gemm.compiler.store import DSL, KernelId, KernelStore, versions
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.parameters import kernel_digest
from hopper_gemm.tune.study.row import ResultsError
from tests.conftest import ROOT
from tests.each import each
from tests.tune.tables.making import row

CUBE, WIDE = GemmProblem(4096, 4096, 4096), GemmProblem(64, 8192, 4096)
CONFIG, OTHER = resolve(GemmConfig(tile_m=128)), resolve(GemmConfig(tile_m=256))
KERNELS = [KernelId.of(config, CUBE) for config in (CONFIG, OTHER)]
TODAY = TodaysCode("sources", {DSL: "4.8.1"}, {kernel_name(KERNELS[0]): "c0de"})
RECORDED = ROOT / "results" / FILE

CASES = {
    "equal code": (Measured(CONFIG, CUBE, "c0de", "4.8.1"), CURRENT),
    "equal code by another DSL": (Measured(CONFIG, CUBE, "c0de", "4.7.0"), CURRENT),
    "equal code by a DSL that was not noted": (Measured(CONFIG, CUBE, "c0de"), CURRENT),
    "other code": (Measured(CONFIG, CUBE, "dead", "4.8.1"), EARLIER),
    "other code by another DSL": (Measured(CONFIG, CUBE, "dead", "4.7.0"), UNKNOWN),
    "other code by a DSL that was not noted": (Measured(CONFIG, CUBE, "dead"), UNKNOWN),
    "no code": (Measured(CONFIG, CUBE, "", "4.8.1"), UNKNOWN),
    "a kernel that was not compiled today": (Measured(OTHER, CUBE, "c0de", "4.8.1"), UNKNOWN),
    "a config that the rules refuse today": (Measured(GemmConfig(tile_m=320, k_depth=16), CUBE, "c0de"), EARLIER),
}


@each("name", CASES, ids=str)
def test_a_kernel_is_this_versions_exactly_where_both_digests_are_equal(name):
    """Other digests are an earlier version's only where the same DSL made both."""
    measured, expected = CASES[name]
    assert TODAY.standing(measured) == expected


def test_a_problem_is_this_versions_only_if_all_its_kernels_are():
    same, changed, unknown = (Measured(CONFIG, CUBE, code, "4.8.1") for code in ("c0de", "dead", ""))
    assert TODAY.standings([same, replace(same, problem=WIDE)]) == {CUBE: CURRENT, WIDE: CURRENT}
    assert TODAY.standings([same, unknown]) == {CUBE: UNKNOWN}
    assert TODAY.standings([unknown, changed, same]) == {CUBE: EARLIER}


MARKS = {
    (24, 0, 0): "this version's",
    (14, 10, 0): "this version's for 14 of 24",
    (14, 8, 2): "this version's for 14 of 24, 2 not compared",
    (0, 24, 0): "an earlier version's",
    (0, 20, 4): "an earlier version's for 20 of 24, 4 not compared",
    (20, 0, 4): "this version's for 20 of 24, 4 not compared",
    (0, 0, 24): "not compared",
}


@each("counts", MARKS, ids=str)
def test_a_mark_says_for_how_many_problems_the_code_is_todays_and_what_was_not_compared(counts):
    standings = [one for one, count in zip((CURRENT, EARLIER, UNKNOWN), counts, strict=True) for _ in range(count)]
    assert mark(standings) == MARKS[counts]


def test_the_kernels_of_rows_are_ours_with_the_dsl_of_their_study():
    study = SimpleNamespace(provenance={"versions": {DSL: "4.8.1"}})
    rows = [row(tile_m=128, code="c0de"), row(tile_m=128, code="c0de", process=1), row(baseline=True), row(tile_m=256)]
    found = measured_of(study, rows)
    assert [(one.config.tile_m, one.code, one.dsl) for one in found] == [(128, "c0de", "4.8.1"), (256, "", "4.8.1")]
    assert measured_of(SimpleNamespace(provenance={}), rows)[0].dsl == ""


def test_kernels_whose_machine_code_may_differ_have_names_that_differ():
    kernel = KERNELS[0]
    others = [
        *(
            KernelId.of(resolve(CONFIG.but(**{name: value})), CUBE)
            for name, value in (("stages", 3), ("swap_ab", True))
        ),
        replace(kernel, dtype="fp16"),
        replace(kernel, layouts="kn"),
        replace(kernel, scattered=True),
        replace(kernel, observer="module:Observer"),
        *(replace(kernel, finish=Epilogue(activation=name)) for name in ("gelu", "silu")),
    ]
    assert len({kernel_name(one) for one in (kernel, *others)}) == 1 + len(others)


@pytest.fixture
def compiles(monkeypatch):
    """Kernels that are compiled, each to a digest of its own."""
    asked = []

    def stand_in(kernels, store=None, say=None):
        asked.extend(kernels)
        return {kernel: CubinReport(*[0] * 9, f"code of {kernel_name(kernel)}") for kernel in kernels}

    monkeypatch.setattr(today, "compiled", stand_in)
    return asked


def test_only_what_the_file_lacks_is_compiled_while_the_sources_are_the_same(tmp_path, compiles, monkeypatch):
    path = tmp_path / FILE
    write_todays_code(path, KERNELS[:1], print)
    code = write_todays_code(path, [*KERNELS, *KERNELS], print)
    assert (compiles, [*code.kernels]) == (KERNELS, sorted(map(kernel_name, KERNELS)))
    assert code == read_todays_code(path)
    assert code.current
    assert [*write_todays_code(path, KERNELS[1:], print).kernels] == [kernel_name(KERNELS[1])]
    assert compiles == KERNELS
    monkeypatch.setattr(today, "kernel_digest", lambda: "other sources")
    assert not code.current
    assert write_todays_code(path, KERNELS, print).sources == "other sources"
    assert compiles == [*KERNELS, *KERNELS]


def test_two_kernels_of_one_name_are_refused(tmp_path, compiles, monkeypatch):
    monkeypatch.setattr(today, "kernel_name", lambda kernel: "name")
    with pytest.raises(ValueError, match="2 kernels must have as many names but have 1; see kernel_name"):
        write_todays_code(tmp_path / FILE, KERNELS, print)


def test_a_missing_or_damaged_file_is_named_with_the_fix(tmp_path):
    path = tmp_path / FILE
    for content in (None, "", "[]", '{"sources": "a"}'):
        if content is not None:
            path.write_text(content)
        with pytest.raises(ResultsError, match=f"{FILE} must hold today's machine code .*; run make pages"):
            read_todays_code(path)


def test_a_kernel_that_does_not_compile_is_named_with_the_reason(tmp_path, monkeypatch):
    failed = {str(KERNELS[0].config): "compile error: no"}
    monkeypatch.setattr(today, "build", lambda *asked: SimpleNamespace(failed=failed))
    with pytest.raises(ChildProcessError, match=r"128x.* must compile but does not \(compile error: no\); fix"):
        compiled(KERNELS[:1], tmp_path / "store")


def test_the_recorded_file_is_of_todays_sources():
    assert read_todays_code(RECORDED).sources == kernel_digest(), "the kernel's sources changed: run make pages"


@pytest.mark.results
def test_the_recorded_file_has_the_kernels_behind_marked_figures_and_no_others():
    named = {kernel_name(kernel) for kernel in generator.marked_kernels()}
    assert named == read_todays_code(RECORDED).kernels.keys(), "run make pages"


SAMPLE = 4
"""Kernels of the file that are compiled again: others after each change of the sources."""


@pytest.mark.compile
@pytest.mark.results
@pytest.mark.timeout(600)
def test_a_sample_of_the_recorded_file_is_what_todays_compiler_gives(kernel_store):
    code = read_todays_code(RECORDED)
    if code.versions != versions():
        pytest.skip(f"compiled by {code.versions}, here are {versions()}")
    kernels = {kernel_name(kernel): kernel for kernel in generator.marked_kernels()}
    names = random.Random(kernel_digest()).sample(sorted(kernels.keys() & code.kernels.keys()), SAMPLE)
    reports = compiled([kernels[name] for name in names], KernelStore(kernel_store).root)
    made = {kernel_name(kernel): report.code for kernel, report in reports.items()}
    assert made == {name: code.kernels[name] for name in names}, "remove the file and run make pages"
