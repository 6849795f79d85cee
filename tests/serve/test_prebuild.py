"""The kernels compiled ahead are those that matmul runs, each once for all problems that share it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import product

import pytest
from typer.testing import CliRunner

import hopper_gemm
from hopper_gemm.cli.app import app
from hopper_gemm.cli.reading import paced
from hopper_gemm.cli.stored import usage
from hopper_gemm.compiler.cubin import CubinReport
from hopper_gemm.compiler.pool import Built
from hopper_gemm.compiler.store import KernelId, KernelStore, PaddingId, default_store
from hopper_gemm.model.grouped import GROUPINGS, GroupedProblem
from hopper_gemm.model.lookup import Table, find, tables
from hopper_gemm.model.menu import binaries, choices, choose, suited
from hopper_gemm.model.problem import LAYOUTS, GemmProblem
from hopper_gemm.model.recipe import ScaledProblem, finish_of
from hopper_gemm.model.tuned import CONTEXTS
from hopper_gemm.serve import EXTENSION
from hopper_gemm.serve import prebuild as module
from hopper_gemm.serve.kernels import default_config
from hopper_gemm.tune.parameters import config_of
from hopper_gemm.tune.study.shapes import problems_of
from tests.command import run
from tests.model.test_lookup import entry

IN_NO_TABLE = 4104, 4104
"""n and k at which no problem was tuned, so that the model picks: for a row a kernel of tile_n 8."""

SCALED = {
    problem.recipe: problem
    for problem in (
        ScaledProblem(16, 16, 128, "e4m3_bf16", promote=promote, scales=scales)
        for scales, promote in (("tensor", 0), ("row", 0), ("row", 128), ("blocks", 128))
    )
}

REPORT = CubinReport(*[0] * 9, "code")


class Pool:
    """Compiles at once, into the store; nothing of tile_n 8."""

    def __init__(self, store, workers):
        self.store, self.workers = KernelStore(store), workers

    def submit(self, kernels):
        for kernel in kernels:
            if isinstance(kernel, PaddingId) or kernel.config.tile_n > 8:
                self.store.put(kernel, b"object", REPORT)

    def result(self, kernel):
        if isinstance(kernel, KernelId) and kernel.config.tile_n == 8:
            return Built("compile_error", "no register")
        return Built("ok", "", REPORT)

    def close(self):
        pass


@pytest.fixture
def pool(monkeypatch):
    monkeypatch.setattr(module, "CompilePool", Pool)


def test_the_kernels_of_the_problems_are_in_the_store_afterwards(pool, tmp_path):
    sizes, told = [(4096, 4096, 4096), (4095, 4095, 4095), (300, 520, 1000)], []
    done = hopper_gemm.prebuild(sizes, store=tmp_path, watch=lambda *at: told.append(at))
    problems = [GemmProblem(*one) for one in sizes]
    kernels = {PaddingId(), *(KernelId.of(default_config(one), one) for one in problems)}
    assert [kernel.scattered for kernel in kernels if isinstance(kernel, KernelId)].count(True) == 1
    assert (done.kernels, done.compiled, done.failed) == (len(kernels), len(kernels), {})
    assert all(KernelStore(tmp_path).report(kernel) is not None for kernel in kernels)
    assert told == [(at + 1, len(kernels)) for at in range(len(kernels))]


def test_kernels_with_a_finish_are_those_that_linear_and_swiglu_run(pool, tmp_path):
    finishes = [hopper_gemm.Epilogue(bias=True, activation="gelu"), hopper_gemm.Epilogue(activation="silu", gated=True)]
    problem = GemmProblem(4096, 4096, 4096)
    assert hopper_gemm.prebuild([(problem, one) for one in finishes], store=tmp_path).compiled == 2
    kernels = [KernelId.of(default_config(problem, 0, one), problem, finish=one) for one in finishes]
    assert all(KernelStore(tmp_path).report(kernel) is not None for kernel in kernels)


def test_the_whole_menu_of_a_type_and_layouts_is_compiled_so_that_no_pick_is_left_out(pool, tmp_path):
    done = hopper_gemm.prebuild(menu=[("bf16_fp32", "kn")], store=tmp_path)
    assert done.kernels <= len(binaries())
    for sizes in ((1, 4096, 4096), (777, 3584, 1024), (8192, 8192, 8192), (512, 512, 65536)):
        kernel = KernelId.of(choose(GemmProblem(*sizes, "bf16_fp32", "kn")), GemmProblem(*sizes, "bf16_fp32", "kn"))
        assert KernelStore(tmp_path).report(kernel) is not None or kernel.config.tile_n == 8
    assert hopper_gemm.prebuild(menu=[("bf16_fp32", "kn"), ("bf16", "kn")], store=tmp_path).compiled > 64


def test_the_whole_menu_has_every_pick_of_both_types_all_layouts_and_the_usual_epilogues():
    ready = {*module.menu_kernels(module.WHOLE_MENU)}
    parts = [
        *((dtype, layouts, None) for dtype in ("bf16", "fp16") for layouts in LAYOUTS),
        *((dtype, "kk", finish) for dtype in ("bf16", "fp16") for finish in module.EPILOGUES),
    ]
    for sizes in ((16, 4096, 4096), (784, 3584, 1024), (8192, 8192, 8192), (512, 512, 65536)):
        for dtype, layouts, finish in parts:
            problem = GemmProblem(*sizes, dtype, layouts)
            pick = choose(problem, finish=finish)
            assert KernelId.of(pick, problem, finish=finish) in ready, (problem, finish, pick)
        for like in (*SCALED.values(), GroupedProblem(8, 8, 8, groups=2)):
            problem = replace(like, m=sizes[0], n=sizes[1], k=sizes[2])
            assert KernelId.of(choices(problem, 1)[0], problem) in ready, problem


def test_a_problem_of_any_sizes_stands_for_all_of_its_kind(pool, tmp_path):
    for like in (SCALED["row:128"], GroupedProblem(8, 8, 8)):
        done = hopper_gemm.prebuild(menu=[like], store=tmp_path)
        kernels = module.menu_kernels([replace(like, m=4096)])
        assert done.kernels == len(kernels) > 64
        assert {(kernel.dtype, kernel.promote, kernel.finish) for kernel in kernels} == {
            (like.dtype, like.promote, finish_of(like))
        }
    with pytest.raises(ValueError, match="prebuild needs the scales of e4m3_bf16"):
        hopper_gemm.prebuild(menu=[GemmProblem(16, 16, 128, "e4m3_bf16")], store=tmp_path)


def test_an_element_of_the_menu_may_have_a_finish(pool, tmp_path):
    finish = hopper_gemm.Epilogue(activation="silu", gated=True)
    done = hopper_gemm.prebuild(menu=[("bf16", "kk", finish)], store=tmp_path)
    kernels = module.menu_kernels([("bf16", "kk", finish)])
    assert done.kernels == len(kernels)
    assert {kernel.finish for kernel in kernels} == {finish}
    with pytest.raises(TypeError, match="menu must have pairs such as"):
        hopper_gemm.prebuild(menu=[("bf16", "kk", "silu")], store=tmp_path)


def test_progress_comes_at_intervals_and_at_the_end():
    lines, times = [], iter([0.0, 1.0, 5.0, 9.0, 12.0])
    watch = paced(lines.append, lambda: next(times))
    for done in range(1, 5):
        watch(done, 4)
    assert lines == ["2 of 4 compiled, 0.1 minutes to go", "4 of 4 compiled, 0.0 minutes to go"]


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ([], module.WHOLE_MENU),
        (["--dtype", "fp16"], (GemmProblem(16, 16, 128, "fp16"),)),
        (["--layouts", "mn"], (GemmProblem(16, 16, 128, layouts="mn"),)),
        (["--dtype", "e4m3", "--scales", "blocks"], (SCALED["blocks"],)),
    ],
)
def test_the_command_compiles_the_whole_menu_or_one_part_and_says_how_much_the_store_holds(
    monkeypatch, tmp_path, options, parts
):
    given = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(
        module, "prebuild", lambda problems, menu, **named: given.append(menu) or module.Prebuilt(7, 2, {}, True)
    )
    done = CliRunner().invoke(app, ["prebuild", "--menu", "--gpu", "h200", *options])
    assert (given, done.exit_code) == ([parts], 0), done.output
    assert "7 kernels of menu and tables" in done.stdout
    assert "it holds 0 kernels, 0.0 MB" in done.stdout


def test_what_the_store_holds_is_not_compiled_again(pool, tmp_path, monkeypatch):
    hopper_gemm.prebuild([(4096, 4096, 4096)], store=tmp_path)
    monkeypatch.setattr(module, "CompilePool", None)
    assert hopper_gemm.prebuild([(4096, 4096, 4096)], store=tmp_path) == module.Prebuilt(1, 0)


def test_a_kernel_that_does_not_compile_is_named_with_the_reason(pool, tmp_path):
    done = hopper_gemm.prebuild([(1, *IN_NO_TABLE), (4096, 4096, 4096)], store=tmp_path)
    ((config, reason),) = done.failed.items()
    assert "64x8x" in config
    assert reason == "compile error: no register"
    assert (done.kernels, done.compiled) == (2, 1)


def test_where_no_kernel_could_be_compiled_the_first_reason_is_raised(pool, tmp_path):
    with pytest.raises(RuntimeError, match="none of 1 kernels could be compiled; the first: compile error: no regist"):
        hopper_gemm.prebuild([(1, *IN_NO_TABLE)], store=tmp_path)


def test_a_store_that_cannot_be_written_is_one_line_before_anything_is_compiled(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "CompilePool", None)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"^compiled kernels must lie in a folder .*/file gives .*; free it, or set .*$"):
        hopper_gemm.prebuild([(4096, 4096, 4096)], store=tmp_path / "file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for arguments in (("prebuild", "64", "64", "64"), ("store", "--clear")):
        done = run(*arguments)
        assert len(done.stderr.splitlines()) == (arguments[0] == "prebuild")
        assert done.returncode == (2 if arguments[0] == "prebuild" else 0)


@pytest.mark.compile
@pytest.mark.timeout(300)
def test_a_script_without_a_guard_compiles_and_runs_once(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys; from pathlib import Path; import hopper_gemm; print('runs', flush=True)\n"
        "print(hopper_gemm.prebuild([(64, 64, 64)], store=Path(sys.argv[1])))\n"
    )
    done = subprocess.run([sys.executable, script, tmp_path / "store"], capture_output=True, text=True, check=False)
    assert done.stdout == "runs\nPrebuilt(kernels=1, compiled=1, failed={}, extension=False)\n", done.stderr


def test_the_extension_is_made_for_the_users_store_alone(pool, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(module, "extension_of", lambda source, build: asked.append(source) if build else None)
    monkeypatch.setattr(module, "default_store", lambda: tmp_path)
    assert hopper_gemm.prebuild([(4096, 4096, 4096)], store=tmp_path).compiled == 1
    assert asked == []
    assert hopper_gemm.prebuild() == module.Prebuilt(0, 0)
    assert asked == [EXTENSION]
    monkeypatch.setattr(module, "extension_of", lambda source, build: source)
    assert hopper_gemm.prebuild() == module.Prebuilt(0, 0, extension=True)
    assert hopper_gemm.prebuild([(300, 520, 1000)]).extension


def test_another_context_is_refused():
    with pytest.raises(ValueError, match="context must be one of isolated, chained but got 'graph'"):
        hopper_gemm.prebuild([(8, 8, 8)], context="graph")


def test_a_gpu_that_is_neither_known_nor_here_is_refused_in_a_line(pool, monkeypatch, tmp_path):
    with pytest.raises(ValueError, match=r"^gpu must be h100 or h200, or the GPU here, but got 'h1000'; leave"):
        hopper_gemm.prebuild([(8, 8, 8)], gpu="h1000", store=tmp_path)
    assert hopper_gemm.prebuild([(64, 4096, 4096)], gpu="NVIDIA H100 80GB HBM3", store=tmp_path).kernels == 1
    monkeypatch.setattr("hopper_gemm.serve.kernels.kind_of", lambda device: "h20")
    assert hopper_gemm.prebuild([(64, 4096, 4096)], gpu="NVIDIA H20", store=tmp_path).kernels == 1


@pytest.mark.compile
@pytest.mark.timeout(300)
def test_the_command_compiles_what_explain_names(monkeypatch, tmp_path, extension):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = tmp_path / "hopper-gemm/libraries"
    kept.mkdir(parents=True, mode=0o700)
    shutil.copy(extension.__file__, kept)
    done = run("prebuild", "64", "64", "64", "--layouts", "kn", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["kernels"], told["compiled"], told["failed"]) == (0, 1, 1, {})
    assert told["extension"]
    assert usage(KernelStore(default_store())).kernels == 1
    assert "1 kernel for 1 problem, 0 compiled now" in run("prebuild", "64", "64", "64", "--layouts", "kn").stdout


@pytest.mark.parametrize(
    ("options", "problems"),
    [
        ([], [*problems_of(None, (), "burst")[2]]),
        (["64", "7168", "2048"], [GemmProblem(64, 7168, 2048)]),
        (["64", "7168", "2048", "--layouts", "kn", "--dtype", "fp16"], [GemmProblem(64, 7168, 2048, "fp16", "kn")]),
        (
            ["64", "7168", "2048", "--dtype", "e4m3", "--scales", "row", "--promote", "128"],
            [ScaledProblem(64, 7168, 2048, "e4m3_bf16", promote=128, scales="row")],
        ),
    ],
)
def test_the_command_compiles_problems_as_they_are_given_and_those_of_a_list_as_it_has_them(
    monkeypatch, tmp_path, options, problems
):
    given = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(
        module, "prebuild", lambda problems, menu, **named: given.append([*problems]) or module.Prebuilt(1, 1, {}, True)
    )
    assert CliRunner().invoke(app, ["prebuild", "--gpu", "h200", *options]).exit_code == 0
    assert given == [problems]


def test_the_command_compiles_a_config_that_is_set_unless_a_rule_refuses_it(monkeypatch, tmp_path):
    given, done = [], module.Prebuilt(1, 1, {}, True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "build", lambda kernels, watch: given.append(kernels) or done)
    sizes = ("64", "64", "64", "128", "64", "64")
    assert CliRunner().invoke(app, ["prebuild", *sizes, "--set", "cluster=2x1", "--set", "unroll=true"]).exit_code == 0
    config = config_of({"cluster_m": 2, "cluster_n": 1, "unroll": True})
    assert given == [[KernelId.of(config, GemmProblem(64, 64, 64))]], "one kernel serves both"
    assert CliRunner().invoke(app, ["prebuild", "64", "64", "63", "--set", "unroll=true"]).exit_code == 0
    assert PaddingId() in given[1]
    refused = run("prebuild", *sizes[:3], "--set", "tile_m=100", "--set", "k_depth=64")
    assert refused.returncode == 2
    assert [line.split(": ")[:3] for line in refused.stderr.splitlines()] == [
        ["hopper-gemm", "64x64x64", "tile_m"],
        ["hopper-gemm", "64x64x64", "k_depth"],
    ]
    (line,) = run("prebuild", *sizes, "256", "64", "64", "--set", "tile_m=100").stderr.splitlines()
    assert line.startswith("hopper-gemm: 64x64x64 and 2 more: tile_m: "), "a reason is told once"


def test_the_command_compiles_what_an_epilogue_runs(monkeypatch, tmp_path):
    given, done = [], module.Prebuilt(1, 1, {}, True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "prebuild", lambda problems, menu, **named: given.append([*problems]) or done)
    monkeypatch.setattr(module, "build", lambda kernels, watch: given.append(kernels) or done)
    problem, finish = GemmProblem(64, 128, 64), hopper_gemm.Epilogue(activation="silu", gated=True)
    asked = ["prebuild", "64", "128", "64", "--gpu", "h200", "--epilogue"]
    assert CliRunner().invoke(app, [*asked, "silu*up"]).exit_code == 0
    assert CliRunner().invoke(app, [*asked, "bias+relu", "--set", "cluster=2x1"]).exit_code == 0
    scaled = [*asked, "bias", "--dtype", "e4m3", "--scales", "row"]
    assert CliRunner().invoke(app, scaled).exit_code == 0
    own = KernelId.of(
        config_of({"cluster_m": 2, "cluster_n": 1}), problem, finish=hopper_gemm.Epilogue(bias=True, activation="relu")
    )
    eight = ScaledProblem(64, 128, 64, "e4m3_bf16", scales="row")
    assert given == [
        [(problem, finish)],
        [own],
        [(eight, hopper_gemm.Epilogue(bias=True, scales="row"))],
    ]


def test_the_command_compiles_what_groups_run_of_fp8_with_their_scales(monkeypatch, tmp_path):
    given, done = [], module.Prebuilt(1, 1, {}, True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "prebuild", lambda problems, menu, **named: given.append([*problems]) or done)
    asked = ["prebuild", "64", "128", "64", "--gpu", "h200", "--groups", "4"]
    assert CliRunner().invoke(app, asked).exit_code == 0
    assert CliRunner().invoke(app, [*asked, "--epilogue", "silu*up", "--grouping", "masked"]).exit_code == 0
    scaled = [*asked, "--dtype", "e4m3", "--scales", "row", "--promote", "128"]
    assert CliRunner().invoke(app, scaled).exit_code == 0
    eight = GroupedProblem(64, 128, 64, "e4m3_bf16", promote=128, groups=4)
    assert given == [
        [GroupedProblem(64, 128, 64, groups=4)],
        [
            (
                GroupedProblem(64, 128, 64, groups=4, grouping="masked"),
                hopper_gemm.Epilogue(activation="silu", gated=True),
            )
        ],
        [(eight, hopper_gemm.Epilogue(scales="row"))],
    ]


def test_a_command_that_compiled_nothing_says_why_in_a_line(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def refuse(*given, **named):
        raise RuntimeError("none of 1 kernels could be compiled; the first: timeout")

    monkeypatch.setattr(module, "prebuild", refuse)
    done = CliRunner().invoke(app, ["prebuild", "64", "64", "64", "--gpu", "h200"])
    assert (done.exit_code, done.stderr) == (
        1,
        "hopper-gemm: none of 1 kernels could be compiled; the first: timeout\n",
    )


def test_the_command_says_which_gpu_it_assumes_before_it_compiles(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("hopper_gemm.cli.doctor.kind_here", lambda: None)

    def refuse(*given, **named):
        raise RuntimeError("nothing is compiled")

    monkeypatch.setattr(module, "prebuild", refuse)
    assert CliRunner().invoke(app, ["prebuild", "64", "64", "64"]).stdout.startswith("h100 is assumed: ")
    monkeypatch.setattr(module, "prebuild", lambda problems, **named: module.Prebuilt(1, 1, {}, True))
    for options, assumed in (([], True), (["--gpu", "h100"], False)):
        told = json.loads(CliRunner().invoke(app, ["prebuild", "64", "64", "64", *options, "--json"]).stdout)
        assert (told["gpu"], told["gpu_assumed"]) == ("h100", assumed)


def test_the_menu_brings_what_tuned_tables_serve_isolated_and_chained_and_with_an_epilogue():
    """A suite out of the box by its own table compiles nothing."""
    ready = {*module.menu_kernels(module.WHOLE_MENU)}
    for kind in ("h100", "h200"):
        among = tables(kind)
        problems = [one.problem for table in among for one in table.serving]
        rows = [one for one in problems if not one.batch_invariant and getattr(one, "grouping", "rows") == "rows"]
        usual = [one for one in rows if one.promote in (0, 128)]
        assert len(usual) > 50
        for problem, context in product(usual, CONTEXTS):
            served = find(among, problem, context=context)
            assert KernelId.of(served.config, problem) in ready, (problem, context)
        fp16 = GemmProblem(4096, 4096, 4096, "fp16")
        assert KernelId.of(find(among, fp16).config, fp16) in ready
        finish = hopper_gemm.Epilogue(bias=True, activation="gelu")
        layer = GemmProblem(4096, 4096, 4096)
        assert KernelId.of(find(among, layer, finish=finish).config, layer, finish=finish) in ready


def test_a_part_brings_the_entries_of_its_kind_alone():
    along_n = entry(tile_n=48, problem=GemmProblem(512, 512, 512, layouts="kn"))
    assert along_n.config not in suited(GemmProblem(8, 8, 8, layouts="kn"))
    for layouts, more in (("kk", []), ("kn", [along_n.config])):
        like = GemmProblem(8, 8, 8, layouts=layouts)
        kernels = module.menu_kernels([("bf16", layouts)], [Table((along_n,))])
        assert kernels == [KernelId.of(kernel, like) for kernel in [*suited(like), *more]]


@pytest.mark.parametrize("sizes", [(777, 1001, 4096), (64, 1000, 1001)], ids=["C off 16 bytes", "k off 16 bytes"])
def test_an_entry_that_tma_does_not_reach_brings_the_kernel_that_serves_it(sizes):
    odd = entry(tile_n=48, problem=GemmProblem(*sizes))
    served = find([Table((odd,))], odd.problem).config
    assert KernelId.of(served, odd.problem) in module.menu_kernels([("bf16", "kk")], [Table((odd,))])


@pytest.mark.parametrize("grouping", GROUPINGS)
def test_entries_of_other_groupings_are_left_out(grouping):
    many = entry(tile_n=48, problem=GroupedProblem(1000, 512, 512, groups=3))
    layouts = "mn" if "depth" in grouping else "kk"
    part = GroupedProblem(8, 8, 8, layouts=layouts, groups=1, grouping=grouping)
    more = [] if grouping != "rows" else [KernelId.of(many.config, many.problem)]
    kernels = [KernelId.of(kernel, part) for kernel in suited(part)]
    assert module.menu_kernels([part], [Table((many,))]) == [*kernels, *more]
