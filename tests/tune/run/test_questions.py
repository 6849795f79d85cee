"""Comparisons, checks, counters, host times and lists: other questions, the same coordinator."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from hopper_gemm.cli.options import titled, with_recipe
from hopper_gemm.cli.shorthand import EXPLANATION
from hopper_gemm.lab.counters.counting_question import KINDS, Counting, folder_of, read_target
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.lookup import Table, find, pick
from hopper_gemm.model.menu import choose as picked
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.recipe import ScaledProblem
from hopper_gemm.model.roofline import Chip
from hopper_gemm.model.tuned import FILE, TunedEntry, read_tuned, write_tuned
from hopper_gemm.tune.parameters import kernel_digest
from hopper_gemm.tune.run.coordinator import run
from hopper_gemm.tune.run.questions import tune
from hopper_gemm.tune.run.questions.compare import Comparison
from hopper_gemm.tune.run.questions.sweep import Sweep
from hopper_gemm.tune.run.questions.tune import question, recorded_problem
from hopper_gemm.tune.study.files import read_object, recorded_entries, write_sealed
from hopper_gemm.tune.study.reader import read_study
from hopper_gemm.tune.study.row import ResultsError
from hopper_gemm.tune.study.schema import COUNTED
from hopper_gemm.tune.study.space import begun_with, points, problem_label, space_of
from hopper_gemm.tune.study.spec import command_spec
from hopper_gemm.tune.tables.comparison import compare_page
from tests.command import run as command
from tests.conftest import ROOT
from tests.each import each
from tests.tune.run import fakes
from tests.tune.run.instant import ABOUT, FEW_SMS, SEARCH, TUNE_SPACE, Instant, rows_of, run_sweep, spec_of

CUBE, WIDE = GemmProblem(4096, 4096, 4096), GemmProblem(1024, 8192, 4096)


def entry_of(problem=CUBE, context="isolated", **more):
    figures = {"speedup": 1.0, "speedup_low": 0.999, "speedup_high": 1.001, "noise": 0.002}
    counts = {"registers": 168, "wgmma": 8, "instructions": 500, "code": "c0de"}
    about = {"study": "tune", "gpu": "NVIDIA H200", "context": context, "regime": "burst"}
    told = {"config": resolve(GemmConfig()), **figures, **counts, **about, **more}
    return TunedEntry(problem=problem, **told)


NO_TRITON = {"triton": "not installed"}


def compared_spec(problems, **keys):
    keys = {"name": "list", "question": "why", "config": "tuned", "against": ["cublas", "cublaslt"], **keys}
    return command_spec("compare", problems, **keys)


def compared(out, executor=None, problems=(CUBE, WIDE), **options):
    executor = executor or Instant(missing=NO_TRITON)
    run_by = {name: options.pop(name) for name in ("tables", "limit", "watch", "say") if name in options}
    earlier = options.pop("begin_with", None)
    comparison = Comparison(compared_spec(problems, **options), out, "NVIDIA H200", **run_by)
    if earlier is not None:
        comparison.begin_with(earlier)
    run(comparison, executor)
    return comparison, executor


def test_every_problem_meets_every_baseline_in_every_process_after_its_noise_floor(tmp_path):
    out = tmp_path / "c"
    seen = []
    found, asked = compared(
        out,
        against=["cublas", "cublaslt", "triton"],
        processes=2,
        tables=[Table((entry_of(),))],
        watch=lambda row, done, total: seen.append((done, total)),
    )
    rows = rows_of(out, "compare")
    keys = Counter((row.point.problem, row.point.against, row.process) for row in rows)
    assert set(keys.values()) == {1}
    assert len(keys) == 2 * 2 * 2
    assert found.missing == NO_TRITON
    assert seen[-1] == (8, 8)
    assert [task.stage for _, task in asked.tasks].count("control") == 2
    (control,) = {row.figures["speedup_high"] - 1 for row in rows_of(out, "control")}
    for row in rows:
        assert row.figures["noise"] == pytest.approx(abs(control), abs=2e-3)
        assert row.figures["baseline_kernel"] == "nvjet"
        assert row.samples[0].process == row.process
        how = "tuned" if row.point.problem == CUBE else "model"
        assert row.figures["how"] == how
        assert bool(row.figures.get("tuned_on")) == (how == "tuned")
    assert {task.child for _, task in asked.tasks if task.process == 1} == {"process 1"}
    assert read_study(out).provenance["missing"] == NO_TRITON
    again = compared(out, against=["cublas", "cublaslt"], processes=2, tables=[Table((entry_of(),))])[1]
    assert again.tasks == []


def test_later_processes_choose_among_the_finalists_of_the_first_and_a_run_that_goes_on_does_too(tmp_path):
    """One process of a problem is at work at a time, and the provenance notes what the first one found."""
    out, executor = tmp_path / "c", Instant(workers=2)
    compared(out, executor, processes=2)
    ways = {"cublas": ("way 0",), "cublaslt": ("way 0",)}
    compare = [task for _, task in executor.tasks if task.stage == "compare"]
    assert [dict(task.finalists) for task in compare if task.process == 0] == [dict.fromkeys(ways, ())] * 2
    assert [dict(task.finalists) for task in compare if task.process == 1] == [ways] * 2
    assert {task.child for task in compare} == {"process 0", "process 1"}
    places = [f"{sizes} burst isolated" for sizes in ("4096x4096x4096", "1024x8192x4096")]
    noted = {f"{place} against {name}": ["way 0"] for place in places for name in ways}
    assert read_study(out).provenance["finalists"] == noted
    _, more = compared(out, Instant(), processes=3)
    compare = [task for _, task in more.tasks if task.stage == "compare"]
    assert [(task.process, dict(task.finalists), task.method.pairs) for task in compare] == [(2, ways, 7)] * 2
    assert read_study(out).provenance["finalists"] == noted


def test_a_comparison_in_another_context_takes_the_finalists_of_an_earlier_one_and_searches_the_rest(tmp_path):
    """Provenance and page say where they come from; of two contexts the one that is asked for comes first."""
    first, second, said = tmp_path / "first", tmp_path / "second", []
    compared(first, Instant(), contexts=["chained"], against=["cublas", "cublaslt"])
    half = GemmProblem(WIDE.m, WIDE.n, WIDE.k, "fp16")
    asked = {"problems": (CUBE, half), "against": ["cublas", "cublaslt"], "begin_with": first, "say": said.append}
    _, executor = compared(second, Instant(), **asked)
    among = {task.points[0].problem: dict(task.finalists) for _, task in executor.tasks if task.stage == "compare"}
    assert among == {CUBE: {"cublas": (), "cublaslt": ("way 0",)}, half: {"cublas": (), "cublaslt": ()}}
    assert said == [f"1 of 2 searches are left out for the finalists of {first}"]
    about, way = read_study(second).provenance, "4096x4096x4096 burst isolated against cublaslt"
    assert about["finalists_from"] == {way: f"{first}: {way.replace('isolated', 'chained')}"}
    assert f"not searched but chosen among the finalists of {first}: 1." in compare_page(read_study(second))
    note_finalists(first, {way: ["nearer"], way.replace("isolated", "chained"): ["farther"]})
    _, executor = compared(tmp_path / "third", Instant(), **asked)
    compare = [task for _, task in executor.tasks if task.stage == "compare"]
    assert [task.finalists["cublaslt"] for task in compare] == [("nearer",), ()]


def test_a_run_that_goes_on_prefers_its_own_finalists_to_those_of_an_earlier_comparison(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    compared(second, Instant(), problems=[CUBE])
    compared(first, Instant(), problems=[CUBE])
    note_finalists(first, {"4096x4096x4096 burst isolated against cublaslt": ["theirs"]})
    _, executor = compared(second, Instant(), problems=[CUBE], processes=2, begin_with=first)
    assert [(task.process, task.finalists["cublaslt"]) for _, task in executor.tasks] == [(1, ("way 0",))]
    assert "finalists_from" not in read_study(second).provenance


def note_finalists(folder, finalists, **more):
    path = folder / "provenance.json"
    write_sealed(path, {**read_object(path), "finalists": finalists, **more})


@pytest.mark.parametrize(
    ("finalists", "more", "why"),
    [
        ({}, {}, "names no finalists of a comparison with cublaslt; leave --finalists out"),
        ({"x": ["y"]}, {"gpu": {"name": "NVIDIA H100"}}, "are of the GPU NVIDIA H100, here is NVIDIA H200; leave"),
        ({"x": ["y"]}, {"versions": {"nvidia-cublas": "1.0"}}, r"are of the nvidia-cublas 1\.0, here is .*; leave"),
    ],
    ids=["none", "another GPU", "another cuBLAS"],
)
def test_finalists_that_cannot_serve_are_refused_in_one_line(tmp_path, finalists, more, why):
    compared(tmp_path / "first", problems=[CUBE])
    note_finalists(tmp_path / "first", finalists, **more)
    with pytest.raises(ResultsError, match=why) as caught:
        compared(tmp_path / "second", problems=[CUBE], begin_with=tmp_path / "first")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "second").exists()
    with pytest.raises(ResultsError, match="nowhere"):
        compared(tmp_path / "second", problems=[CUBE], begin_with=tmp_path / "nowhere")


def test_a_limit_leaves_the_rest_for_later_and_vanished_rows_are_measured_again(tmp_path):
    out = tmp_path / "c"
    compared(out, limit=3)
    assert len(rows_of(out, "compare")) == 3
    compared(out)
    lines = (out / "rows.csv").read_text().splitlines(keepends=True)
    (out / "rows.csv").write_text("".join(line for line in lines if not (",compare," in line and "8192" in line)))
    said = []
    _, asked = compared(out, say=said.append)
    assert "2 of the 6 rows of the finished study are gone" in said[0]
    assert [task.points[0].problem for _, task in asked.tasks] == [WIDE]
    assert len(rows_of(out, "compare")) == 4


def test_a_comparison_goes_on_only_with_the_same_libraries(tmp_path):
    out = tmp_path / "c"
    compared(out, limit=1)
    about = json.loads((out / "provenance.json").read_text())
    about["versions"]["torch"] = "1.0"
    write_sealed(out / "provenance.json", about)
    with pytest.raises(ResultsError, match=r"was begun with torch 1\.0, now "):
        Comparison(compared_spec([CUBE]), out, "NVIDIA H200")


def test_the_config_is_that_of_problem_regime_and_context_else_what_matmul_picks(tmp_path):
    tuned, chained = entry_of(), entry_of(context="chained", config=resolve(GemmConfig(pdl=True)))
    tables, ragged = [Table((tuned, chained))], GemmProblem(3000, 5000, 2050)
    assert find(tables, CUBE, "burst", "isolated").config == tuned.config
    assert find(tables, CUBE, "burst", "chained").config == chained.config
    assert find([], ragged, "burst", "isolated").config == picked(ragged)
    for config, how in (("tuned", "tuned"), ("auto", "model")):
        compared(tmp_path / config, problems=[CUBE], tables=tables, config=config)
        assert {row.figures["how"] for row in rows_of(tmp_path / config, "compare")} == {how}


@pytest.mark.parametrize("config", ["auto", "tuned"])
def test_configs_are_those_for_the_kind_of_gpu_that_joined(tmp_path, config):
    problem = GemmProblem(1000, 5000, 2048)
    compared(tmp_path / "c", Instant(facts=FEW_SMS), problems=[problem], config=config)
    (ours,) = {row.point.config for row in rows_of(tmp_path / "c", "compare")}
    assert ours == picked(problem, Chip(**FEW_SMS)) != picked(problem)


# --- counters


class CountingWorkers(Instant):
    """Counts; what the plan names fails."""

    failing: tuple[str, ...] = ()

    def row(self, task, point, board):
        (kind,) = (name for name, counter in KINDS.items() if counter == task.method)
        if kind in self.failing:
            return task.row(point, board, "crash", "no permission")
        names = {"profile": {"duration_us": 100.0}, "meter": {"producer_wait_pct": 3.0}}
        return task.row(point, board, "ok", figures={**names[kind], "code": "c0de", "baseline_kernel": "nvjet"})


def counted(target, out, executor=None, **options):
    question = Counting(target, out, "NVIDIA H200", **options)
    executor = executor or CountingWorkers()
    run(question, executor)
    return question, executor


@pytest.fixture
def target(tmp_path):
    path = tmp_path / "two.toml"
    path.write_text(fakes.SPEC.replace('["burst"]', '["burst", "steady"]'))
    return path


@each("name", ["decode", "fresh-7"])
def test_the_kernels_of_a_comparison_and_of_a_map_can_be_counted(name):
    launches, _ = read_target(ROOT / "results/h100" / name)
    problems = {point.problem for point in launches}
    assert len(problems) >= 36
    assert not any(point.is_baseline for point in launches)


def test_every_legal_config_is_counted_once_by_each_kind_and_cublas_before_them(tmp_path, target):
    found, asked = counted(target, tmp_path / "c")
    assert (found.written, found.open) == (6 + 5, 0)
    profile, meter = (task for _, task in asked.tasks)
    assert profile.points[0].subject == "cublas"
    assert len(set(profile.points[1:])) == 5
    assert meter.points == profile.points[1:]
    rows = rows_of(tmp_path / "c", "counters")
    assert Counter(row.process for row in rows) == {0: 6, 1: 5}
    assert all(row.figures["code"] == "c0de" and row.gpu == "NVIDIA H200" and row.board for row in rows)
    assert counted(target, tmp_path / "c")[1].tasks == []


def test_a_kind_that_fails_does_not_keep_back_the_other_and_is_tried_again(tmp_path, target):
    executor = CountingWorkers()
    executor.failing = ("profile",)
    found, _ = counted(target, tmp_path / "c", executor)
    assert (found.written, len(found.failed)) == (5, 6)
    assert found.failed[0][1] == "crash: no permission"
    found, _ = counted(target, tmp_path / "c")
    assert (found.written, found.failed) == (6, [])
    names = {column.name for column in COUNTED}
    assert {frozenset(names & set(row.figures)) for row in rows_of(tmp_path / "c", "counters")} == {
        frozenset({"duration_us"}),
        frozenset({"producer_wait_pct"}),
    }


def test_a_study_is_counted_in_its_folder_and_stays_finished(tmp_path, target):
    out = tmp_path / "results" / "small"
    spec = spec_of(tmp_path)
    run_sweep(spec, out, Instant())
    kernel = json.loads((out / "provenance.json").read_text())["kernel"]
    assert folder_of(out, "h200") == out
    about = json.loads((out / "provenance.json").read_text())
    write_sealed(out / "provenance.json", {**about, "kernel": kernel_digest()})
    counted(out, out)
    assert len(rows_of(out, "counters")) == 6 + 5
    finished = Sweep(spec, out, {**ABOUT, "kernel": kernel_digest()}).finished
    assert finished, kernel


def test_a_comparison_that_is_unfinished_stays_so_when_it_is_counted(tmp_path):
    out = tmp_path / "c"
    compared(out, limit=3)
    about = json.loads((out / "provenance.json").read_text())
    assert "finished" not in about
    write_sealed(out / "provenance.json", {**about, "kernel": kernel_digest()})
    counted(out, out)
    assert rows_of(out, "counters")
    assert "finished" not in json.loads((out / "provenance.json").read_text())


# --- lists


PROBLEMS = ((1024, 1024, 1024), (1024, 8192, 4096), (512, 512, 512))


def list_of(tmp_path, trials=6):
    more = "\n".join("[[problems]]\nm = {}\nn = {}\nk = {}".format(*sizes) for sizes in PROBLEMS[1:])
    return spec_of(tmp_path, SEARCH, ("trials = 12", f"trials = {trials}"), ("[space]", f"{more}\n[space]"))


def test_a_list_is_one_study_in_which_workers_search_different_problems(tmp_path):
    out, executor = tmp_path / "list", Instant(workers=3)
    run_sweep(list_of(tmp_path), out, executor)
    first = {worker: task.points[0].problem for worker, task in reversed(executor.tasks)}
    assert len(set(first.values())) == 3
    assert Counter(row.point.problem for row in rows_of(out)) == dict.fromkeys(first.values(), 6)
    again = Instant(workers=3)
    run_sweep(list_of(tmp_path), out, again)
    assert again.tasks == []
    more = Instant(workers=3)
    run_sweep(list_of(tmp_path, trials=8), out, more)
    assert sum(more.measured.values()) == 3 * 2


def test_a_large_list_is_enumerated_side_by_side_with_the_same_result(tmp_path, monkeypatch):
    spec = list_of(tmp_path)
    one_by_one = space_of(spec)
    monkeypatch.setattr("hopper_gemm.tune.run.questions.sweep.LARGE", 1)
    found = Sweep(spec, tmp_path / "list", ABOUT)._space
    assert found == one_by_one
    assert list(found.points) == list(one_by_one.points)


def test_a_problem_has_its_winner_before_the_last_is_searched(tmp_path):
    """A list that is stopped keeps what it has found so far: the next search fills only the time until the finals of
    the one before have their rows."""
    executor = Instant()
    run_sweep(list_of(tmp_path), tmp_path / "h200" / "list", executor)
    first: dict[tuple[GemmProblem, str], int] = {}
    last: dict[tuple[GemmProblem, str], int] = {}
    for number, (_, task) in enumerate(executor.tasks):
        last[task.points[0].problem, task.stage] = number
        first.setdefault((task.points[0].problem, task.stage), number)
    one, other, third = (GemmProblem(*sizes) for sizes in PROBLEMS)
    assert first[one, "final"] < last[other, "sweep"]
    assert last[one, "final"] < first[other, "final"] < last[third, "sweep"]
    assert last[other, "final"] < first[third, "final"]
    assert {entry.problem for entry in read_tuned(tmp_path / "h200" / FILE)} == {GemmProblem(*one) for one in PROBLEMS}


# --- tune

CHAINED = {"contexts": ["chained"]}


def test_the_table_takes_a_slower_entry_only_if_both_were_measured_side_by_side(tmp_path):
    path, other = tmp_path / FILE, resolve(GemmConfig(tile_n=192, stagger=0))
    old, new = entry_of(speedup=1.04), entry_of(speedup=1.02, study="again", config=other)
    write_tuned(path, [old])
    write_tuned(path, [new])
    assert read_tuned(path) == [old]
    write_tuned(path, [new], {old.config})
    assert read_tuned(path) == [new]


def seconds(number):
    return {"budget": {"seconds": number}}


def trials(number, **more):
    return {"budget": {"trials": number}, **more}


def thinned(grid):
    """A grid of a search with a single width and order of tiles."""
    few = {"tile_n": 128, "raster": "m", "swizzle": 8}
    return {name: few.get(name, value) for name, value in grid.items()}


def test_the_space_of_tune_holds_what_a_search_needs():
    small, large = GemmProblem(1024, 1024, 1024), GemmProblem(8192, 8192, 8192)
    spec = question([large], seconds(10))
    (own,) = spec.each()
    thin = own.model_copy(update={"space": thinned(own.space), "grids": [*map(thinned, own.grids)]})
    configs = {point.config for point, why in points(thin).items() if not why}
    varied = ("pace", "swap_ab", "split_k", "schedule", "multicast")
    for name, least in zip(varied, (2, 2, 3, 2, 2), strict=True):
        assert len({getattr(config, name) for config in configs}) >= least, name
    assert own.space["evict_c"] is True
    specs = {
        "usual": question([small], {}),
        "chained": question([small], CHAINED),
        "given": question([small], {}, pdl=True),
    }
    own = {name: spec.each()[0].space["pdl"] for name, spec in specs.items()}
    assert own == {"usual": False, "chained": [False, True], "given": [False, True]}
    assert spec.budget.seconds == 10
    assert question([small], trials(5)).budget.seconds is None


@pytest.mark.parametrize("sizes", [(2048, 2048, 2048), (512, 512, 65536)])
def test_a_batch_invariant_problem_is_searched_among_the_kernels_of_its_rule(sizes):
    problem = GemmProblem(*sizes, batch_invariant=True)
    (spec,) = question([problem], trials(10)).each()
    known, some = begun_with(spec), spec.model_copy(update={"grids": spec.grids[-2:], "keep": 20})
    assert any(is_legal(config, problem) for config in known)
    assert not any(config.reverse_k for config in known)
    legal = [point.config for point in space_of(some).legal]
    assert legal
    assert all(is_legal(config, problem) for config in legal)
    assert spec.name == f"tune-{problem}-burst-batch-invariant"


@pytest.mark.parametrize("context", ["isolated", "chained"])
def test_tuning_begins_with_what_is_known_of_the_problem_and_of_those_near_it(context):
    problem, stranger = GemmProblem(2048, 2048, 2048), GemmProblem(2048, 2048, 2049 + 7)
    entries = [entry for entry in recorded_entries() if entry.problem == problem]
    (spec,) = question([problem], {"contexts": [context]}).each()
    first = begun_with(spec)
    alone = spec.model_copy(update={"space": {}, "grids": [], "keep": 1})
    legal = {point.config for point in space_of(alone).legal}
    assert {entry.config for entry in entries if context == "chained" or not entry.config.pdl} <= set(first) & legal
    assert {config.pdl for config in first} == ({False, True} if context == "chained" else {False})
    usual = {"raster": "m", "swizzle": 8}
    assert sum(config.but(**usual) == first[0].but(**usual) for config in legal) >= 10
    nearby = question([stranger], {"contexts": [context]})
    assert pick(entries, problem, context=context).config in begun_with(nearby)
    assert not begun_with(question([problem], {"contexts": [context]}, tuned_first=False))


@pytest.mark.parametrize(
    ("problem", "listed", "keys", "name"),
    [
        (CUBE, "", {}, "tune-4096x4096x4096-burst"),
        (CUBE, "", {"regimes": ["steady"], **CHAINED}, "tune-4096x4096x4096-steady-chained"),
        (GemmProblem(64, 64, 64, "bf16_fp32", "kn"), "", {}, "tune-64x64x64-burst-bf16-fp32-kn"),
        (GemmProblem(64, 64, 64, "fp16"), "suite", CHAINED, "tune-suite-burst-chained"),
        (ScaledProblem(64, 64, 64, "e4m3_bf16", promote=256), "", {}, "tune-64x64x64-burst-e4m3-bf16-tensor-256"),
    ],
)
def test_what_is_tuned_is_named_with_what_is_unusual(problem, listed, keys, name):
    assert question([problem], keys, listed=listed).name == name


def test_each_problem_of_a_list_is_searched_in_the_space_that_it_has_alone():
    problems = [GemmProblem(256, 256, 256), GemmProblem(8192, 8192, 8192)]
    spec = question(problems, seconds(10), listed="two")
    assert spec.budget.seconds == 20
    alone = [question([problem], seconds(10)).each()[0] for problem in problems]
    for one, own in zip(spec.each(), alone, strict=True):
        assert (one.space, one.grids, one.warm_grids, one.keep) == (own.space, own.grids, own.warm_grids, own.keep)


def test_a_list_of_fp8_is_compared_and_tabulated_by_recipe_each_with_its_entry(tmp_path):
    """Two recipes of the same sizes are two problems, to the rows, the tables and the title."""
    sizes = [GemmProblem(256, 512, 1024), GemmProblem(64, 512, 1024)]
    fast, promoted = (with_recipe(sizes, "e4m3", *recipe) for recipe in (("tensor",), ("row", 256)))
    assert with_recipe([*sizes, *promoted], "e4m3", "tensor") == fast, "what a list has in two types is one problem"
    assert (titled("list", fast), titled("list", promoted)) == ("list-e4m3-bf16-tensor", "list-e4m3-bf16-row-256")
    assert titled("list", sizes) == titled("list", [*fast, *promoted]) == "list"
    table = Table((entry_of(promoted[0], study="s"),))
    comparison = Comparison(compared_spec([*fast, *promoted]), tmp_path / "c", "NVIDIA H200", tables=[table])
    run(comparison, Instant())
    study = read_study(tmp_path / "c")
    tuned = {row.point.problem: row.figures["how"] for row in study.stage("compare")}
    assert tuned == {problem: "tuned" if problem == promoted[0] else "model" for problem in (*fast, *promoted)}
    page = compare_page(study)
    assert all(problem_label(problem) in page for problem in tuned)


SQUARE = 1152, 640, 1920
RECIPES = [("tensor", 0), ("row", 128), ("blocks", 128)]


@pytest.mark.parametrize(
    ("problem", "call", "scales"),
    [
        (GemmProblem(*SQUARE, batch_invariant=True), GemmProblem(*SQUARE, batch_invariant=True), ""),
        *(
            (
                ScaledProblem(*SQUARE, "e4m3_bf16", promote=promote, scales=scales),
                GemmProblem(*SQUARE, "e4m3_bf16", promote=promote),
                scales,
            )
            for scales, promote in RECIPES
        ),
    ],
    ids=["batch-invariant", *(scales for scales, _ in RECIPES)],
)
def test_a_problem_of_a_rule_or_a_recipe_is_searched_and_the_best_serves_its_calls(
    tmp_path, monkeypatch, problem, call, scales
):
    """FP8 from the pick on."""
    monkeypatch.setattr(tune, "_space", lambda: TUNE_SPACE)
    spec, out = question([problem], trials(6, final={"best": 2})), tmp_path / "h200" / "tune"
    usual = {"raster": "m", "swizzle": 8}
    if scales:
        assert begun_with(spec)[0].but(**usual) == picked(problem).but(**usual)
    run_sweep(spec, out)
    (entry,) = entries = read_tuned(out.parent / FILE)
    assert {row.point.problem for row in read_study(out).rows} == {problem} == {entry.problem}
    served = find([Table(tuple(entries))], call, finish=Epilogue(scales=scales))
    assert (served.how, served.config) == ("tuned", entry.config)


def test_tune_replays_a_recorded_study_and_says_why_the_winner_won(tmp_path):
    words = "tune 8192 8192 8192 --context chained --backend replay --out"
    asked = [*words.split(), str(tmp_path / "t")]
    done = command(*asked, "--trials", "6")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Replaying tune-8192x8192x8192-burst-chained from recorded measurements of an NVIDIA")
    for word in ("256x200x64", "=alternate", "cuBLAS, ", "runner-up", "waves", "intensity", "look-ahead", "limit"):
        assert word in done.stdout
    assert done.stdout.count(EXPLANATION) == 1


def test_a_study_to_replay_is_chosen_by_its_spec_and_rows_are_read_only_where_the_problem_stands(monkeypatch):
    """All recorded rows together take half a minute."""
    read: list[Path] = []
    monkeypatch.setattr(tune, "read_study", lambda folder: read.append(folder) or read_study(folder))
    with pytest.raises(ResultsError, match="no recorded study of 700x89x447 burst isolated"):
        recorded_problem(GemmProblem(700, 89, 447), "burst", "isolated")
    assert read == []
    assert recorded_problem(GemmProblem(8192, 8192, 8192), "steady", "isolated") in read


def test_a_replay_keeps_recorded_configs_that_todays_model_would_not_keep():
    (spec,) = question([CUBE], trials(10), tuned_first=False).each()
    space = {"tile_m": 128, "tile_n": [64, 128, 192]}
    few, more = (spec.model_copy(update={"space": space, "grids": [], "keep": keep}) for keep in (1, 2))
    dropped = next(point for point, why in points(more).items() if not why and point not in points(few))
    assert dropped in points(few, {dropped})
