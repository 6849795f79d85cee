"""Prices are those of the rows, of each board the newest, and where there are none the page says so."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from docs.generate.pages.prices import (
    NOT_YET,
    bits,
    costs,
    examples,
    finished_rows,
    layers,
    out_of_reach,
    over,
    torch_changes,
)
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.rules.pairs import filled_up
from hopper_gemm.tune.parameters import kernel_digest
from hopper_gemm.tune.study.shapes import read_shapes
from tests.conftest import ROOT
from tests.verify.batches import InvarianceJob, TorchCount, comparisons
from tests.verify.drawing import Pair
from tests.verify.rows import Rows
from tests.verify.tally import torch_table

ABOUT = {"context": "isolated", "kernel": "0123456789", "gpu": "NVIDIA H200", "board": "GPU-1"}


def row(m, us, workspace="", title="suite"):
    about = {"list": title, "problem": [m, 8, 8, "bf16", "kk"], "workspace": workspace}
    return json.dumps({**about, "us": us, **ABOUT})


def test_without_rows_each_part_says_that_nothing_was_run(tmp_path):
    nothing = tmp_path / "none"
    assert {bits(nothing), torch_changes(nothing)} == {NOT_YET}
    assert costs(nothing).startswith("Not measured on a GPU yet: ")


def test_prices_are_medians_of_the_rounds_with_their_mean_and_the_least(tmp_path):
    path = tmp_path / "invariance.jsonl"
    lines = [
        row(64, {"torch": [2, 4, 6], "ours": [2, 2, 2], "plain": [1, 1, 9]}),
        row(128, {"torch": [2, 2, 2], "ours": [2, 2, 2], "plain": [2, 2, 2]}),
        row(128, {"torch": [8, 8, 8], "ours": [2, 2, 2]}, ":16:8"),
        row(256, {"torch": [1, 1, 1], "ours": [1, 1, 1], "plain": [1, 1, 1], "triton": [3, 3, 3]}, title="rows"),
        row(512, {"torch": [1, 1, 1], "ours": [2, 2, 2], "plain": [1, 1, 1]}, title="deep"),
    ]
    path.write_text("\n".join(lines) + "\n")
    suite, deep, by_rows = costs(path).split("On the [suite]")[1].split(":\n\n| problem |")[1:]
    assert "| 64x8x8 | 2.000x |  | 0.500x |" in suite
    assert "| 128x8x8 | 1.000x | 4.000x | 1.000x |" in suite
    assert re.search(r"\| geometric mean \| 1\.414x \[.*\] \| 4\.000x \[.*\] \| 0\.707x \[.*\] \|", suite)
    assert "| least | 1.000x | 4.000x | 0.500x |" in suite
    assert "| 512x8x8 | 0.500x | 0.500x |" in deep
    assert "| 256x8x8 | 3.000x | 1.000x | 1.000x |" in by_rows


def test_bits_count_the_newest_kernel_alone(tmp_path):
    pair = Pair(GemmConfig(tile_m=64), GemmProblem(4096, 64, 64, batch_invariant=True), 1)
    rows = Rows(tmp_path)
    rows.add(replace(InvarianceJob(pair, "kernel", "of the menu").row("ok", gpu="H", board="a"), kernel="old"))
    for seed, status in ((1, "ok"), (2, "ok"), (3, "wrong_result")):
        rows.add(InvarianceJob(replace(pair, seed=seed), "kernel", "of the menu").row(status, gpu="H", board="a"))
    equal = 2 * comparisons(pair)
    assert f"| kernel: of the menu | 3 | {equal} | 1 | 0 | 1 |" in bits(tmp_path)
    assert f"kernel `{kernel_digest()}`, today's; verifier" in bits(tmp_path)
    rows.add(replace(InvarianceJob(pair, "kernel", "of the menu").row("ok", gpu="H", board="a"), kernel="older"))
    assert f"kernel `older`, an earlier one; today's, `{kernel_digest()}`, was not compared yet" in bits(tmp_path)
    (tmp_path / "torch-mm.csv").write_text(
        torch_table([TorchCount("", 8, 8, "bf16", "kk", 64, 3)], board="a", gpu="H", torch="2")
    )
    assert "| its own | 1 | 1 | 64 | 3 |" in torch_changes(tmp_path)


def layer(ours, plain, finish="bias+gelu", **more):
    us = {"ours": ours, "plain product": plain, "torch.mm": plain, "eager": [2 * one for one in plain]}
    return json.dumps({"problem": [64, 8, 8], "finish": finish, "gpu": "H", "torch": "2", "us": us, **more})


def test_a_layer_is_shown_by_its_newest_row_of_each_board_and_the_page_says_where_it_costs(tmp_path):
    """Slower than its product alone by more than the threshold; rows of earlier kernels are left out."""
    path, same = tmp_path / "linear.jsonl", [100.0, 100.0, 100.0]
    path.write_text(layer([400.0, 400.0, 400.0], same) + "\n" + layer([101.0, 125.0, 101.0], same) + "\n")
    told = layers(path)
    assert "| `linear` with bias and gelu | 64x8x8 | 101.0 | 1.980x | 0.990x | 0.990x | an earlier one |" in told
    assert "longer than" not in told
    path.write_text(path.read_text() + layer([125.0] * 3, same, board="GPU-2", kernel="0123456789") + "\n")
    lines = [line for line in layers(path).splitlines() if "64x8x8 |" in line]
    assert [line.split(" | ")[-2:] for line in lines] == [["0.800x", "`012345` |"]]
    told = " ".join(layers(path).split())
    assert told.endswith("takes over 2 % longer than its product alone: 1.250 times at 64x8x8.")
    path.write_text(path.read_text() + layer([130.0] * 3, same, board="GPU-3", kernel="0123456789") + "\n")
    assert "alone: 1.250 and 1.300 times at 64x8x8." in " ".join(layers(path).split())


@pytest.mark.results
def test_a_layer_with_gelu_takes_longer_than_its_product_at_every_size_timed():
    """So the README says; of this version, on every board, gelu by tanh included."""
    rows = finished_rows()
    ours = [row for row in rows if row.get("kernel") == rows[0]["kernel"] and row["finish"].startswith("bias+gelu")]
    assert max(over(row, "plain product") for row in ours) < 1
    assert "than our product at every size timed" in " ".join((ROOT / "README.md").read_text().split())


def test_the_random_problems_that_are_no_multiples_of_8_were_all_measured_padded():
    """The headline and the suite's page call them the other ones."""
    drawn = read_shapes(ROOT / "sweeps/shapes/drawn.toml").of_regime("burst")
    off = {str(problem) for problem in drawn if filled_up(problem) != problem}
    assert off
    assert off <= out_of_reach().keys()


def test_an_example_is_shown_as_it_was_printed_last(tmp_path):
    path = tmp_path / "examples.jsonl"
    about = {"table": "A layer", "device": "a GPU", "torch": "2.11"}
    tables = [{**about, "rows": [{"tokens": 8, "speedup": speedup}]} for speedup in (1.0, 1.0625)]
    path.write_text("".join(json.dumps(table) + "\n" for table in tables))
    table = "| tokens | speedup |\n| --- | --- |\n| 8 | 1.062 |"
    assert examples(path) == f"A layer, a GPU with torch 2.11:\n\n{table}"
