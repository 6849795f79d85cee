"""The code that a chapter prints is the kernel's: put in the place of what it shows, it compiles to the same machine
code, and every function that is printed runs."""

from __future__ import annotations

import ast

import pytest

from docs.generate.chapters.build import build
from docs.generate.chapters.listing import functions, listing, read
from docs.generate.chapters.tree import write_tree
from docs.generate.pages.chapters import CHAPTERS, PROBLEM, kernel
from docs.generate.todays_code import compiled
from hopper_gemm.compiler.store import KernelId

pytestmark = [pytest.mark.compile, pytest.mark.results]
EIGHT = range(1, len(CHAPTERS) + 1)


@pytest.mark.timeout(600)  # sixteen kernels, beside other tests
def test_the_printed_code_of_every_chapter_compiles_to_the_machine_code_of_its_rung_and_all_of_it_is_traced(
    tmp_path, kernel_store
):
    """Each printed function notes its name as the compiler traces it, which leaves the machine code as it is."""
    listings = read(EIGHT, None)
    names = {n: {f"{one.owner}.{one.code.name}" for one in printed} for n, printed in listings.items()}
    for one in (function for printed in listings.values() for function in printed):
        note = f"open('traced', 'a').write('{one.owner}.{one.code.name}\\n')"
        one.code.body.insert(0, ast.parse(note).body[0])
    rungs = {number: KernelId.of(kernel(CHAPTERS[number - 1].rungs[-1]), PROBLEM) for number in EIGHT}
    reports = compiled(list(rungs.values()), kernel_store)
    built = build(listings, tmp_path)
    assert {number: one.error for number, one in built.items() if one.error} == {}
    for number, one in built.items():
        assert one.report == reports[rungs[number]]
        assert one.object_file.is_file()
        traced = (one.object_file.parent / "traced").read_text().split()
        assert names[number] - set(traced) == set()


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
