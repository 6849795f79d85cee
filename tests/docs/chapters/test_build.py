"""The code that a chapter prints is the kernel's: put in the place of what it shows, it compiles to the same machine
code, and every function that is printed runs."""

from __future__ import annotations

import ast
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from docs.generate.chapters.build import build
from docs.generate.chapters.listing import functions, listing, read
from docs.generate.chapters.tree import write_tree
from docs.generate.pages.chapters import CHAPTERS, PROBLEM, kernel
from hopper_gemm.compiler.store import KernelId
from hopper_gemm.lab.guard.binaries import compiled

pytestmark = [pytest.mark.compile, pytest.mark.results]
EIGHT = range(1, len(CHAPTERS) + 1)

TRACED = """
import builtins, pickle, sys
builtins.TRACED = set()
from hopper_gemm.compiler.compile import compile_kernel
compile_kernel(pickle.loads(open("kernel.pickle", "rb").read()), "bf16")
print(*sorted(builtins.TRACED))
"""


def test_the_printed_code_of_every_chapter_compiles_to_the_machine_code_of_its_rung(tmp_path, kernel_store):
    rungs = {number: KernelId.of(kernel(CHAPTERS[number - 1].rungs[-1]), PROBLEM) for number in EIGHT}
    reports = compiled(list(rungs.values()), kernel_store)
    built = build(read(EIGHT, None), tmp_path)
    assert {number: one.error for number, one in built.items() if one.error} == {}
    for number, one in built.items():
        assert one.report == reports[rungs[number]]
        assert one.object_file.is_file()


def test_every_function_that_a_chapter_prints_is_part_of_its_kernel(tmp_path):
    """Each notes its name as the compiler traces it."""

    def traced(number):
        printed, folder = functions(listing(number)), tmp_path / str(number)
        for one in printed:
            one.code.body.insert(0, ast.parse(f"TRACED.add('{one.owner}.{one.code.name}')").body[0])
        write_tree(printed, folder)
        (folder / "kernel.pickle").write_bytes(pickle.dumps(kernel(CHAPTERS[number - 1].rungs[-1])))
        environment = os.environ | {"PYTHONPATH": str(folder)}
        command = [sys.executable, "-c", TRACED]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
        return {f"{one.owner}.{one.code.name}" for one in printed} - set(done.stdout.split())

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(traced, EIGHT)) == [set()] * len(EIGHT)


def test_a_change_to_a_listing_reaches_the_machine_code_and_a_mistake_is_told_in_a_line(tmp_path, kernel_store):
    changed, wrong = listing(3).replace("unroll=1", "unroll=2"), listing(4).replace("ring.wait(", "ring.await_(")
    built = build({3: functions(changed), 4: functions(wrong)}, tmp_path)
    own = KernelId.of(kernel(CHAPTERS[2].rungs[-1]), PROBLEM)
    assert built[3].report.code != compiled([own], kernel_store)[own].code
    assert built[4].report is None
    assert "no attribute 'await_'" in built[4].error


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kernel/pipeline.py", "kernel/pipelines.py", "the package has no file kernel/pipelines.py"),
        ("# Ring in", "# Rings in", r"kernel/pipeline.py has no Rings.init"),
        ("kernel/pipeline.py", "compiler/cubin.py", "has no function that a chapter prints"),
    ],
)
def test_a_function_that_the_package_has_not_is_named(tmp_path, old, new, message):
    with pytest.raises(ValueError, match=message):
        write_tree(functions(listing(1).replace(old, new)), tmp_path)
