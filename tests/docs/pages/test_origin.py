"""What a page says of boards, processes, GPUs and days follows from rows, and no list of studies is typed."""

from __future__ import annotations

import re

import pytest

from docs.generate.pages.comparisons import compared_studies, lists
from docs.generate.pages.sources import origin, shares_of_gpus, short_name
from hopper_gemm.tune.study.reader import read_provenance, read_study, recorded_folders
from tests.conftest import ROOT
from tests.each import each
from tests.tune.tables.making import row, write_study


def test_the_words_are_of_the_boards_and_processes_of_each_problem(tmp_path):
    """Two boards of which each measured other problems are not two boards of each problem."""
    sizes = (64, 64, 64), (128, 64, 64)
    apart = [
        row(stage="compare", sizes=one, board=board, process=process)
        for one, board in zip(sizes, "ab", strict=True)
        for process in (0, 1)
    ]
    both = [row(stage="compare", sizes=one, board=board, process=n) for one in sizes for n, board in enumerate("ab")]
    more = row(stage="compare", board="a", process=2)
    first, second = write_study(tmp_path / "a", *apart), write_study(tmp_path / "b", *both, more)
    assert origin([read_study(first)]) == (
        "on 2 NVIDIA H200 boards, each problem on 1 of them, in 2 fresh processes (2026-11-23)"
    )
    assert origin([read_study(second)]) == (
        "on 2 NVIDIA H200 boards, each problem on all of them, in 2 to 3 fresh processes (2026-11-23)"
    )


@pytest.mark.results
def test_every_recorded_comparison_is_listed_and_the_least_of_all_among_them():
    text = lists()
    paths = {str(study.path.relative_to(ROOT)) for study in compared_studies()}
    assert paths == {path.removesuffix("/compare.md") for path in re.findall(r"\]\(\.\./(results/[^)]*)\)", text)}
    assert any("suite-nine" in path for path in paths)


def test_the_recorded_studies_are_of_several_kinds_of_gpu():
    """Else the next rule would say nothing."""
    kinds = {short_name(read_provenance(folder)["gpu"]["name"]) for folder in recorded_folders()}
    assert len(kinds) > 1


@each("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_no_page_says_that_everything_is_of_one_gpu_while_rows_are_of_two(page):
    said = re.findall(
        r"(?i)\b(?:all|everything|every figure)\b[^.|]*\b(?:from|on) (?:an? )?NVIDIA H\d00s?", page.read_text()
    )
    assert said == []


@pytest.mark.results
def test_the_shares_of_gpus_are_of_all_rows():
    shares = [int(share) for share in re.findall(r"(\d+)% on NVIDIA", shares_of_gpus())]
    assert abs(sum(shares) - 100) < len(shares)
    assert len(shares) > 1
