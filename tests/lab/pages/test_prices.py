"""The figures on batch invariance are those of the rows, and where there are none the page says so."""

from __future__ import annotations

import json
from dataclasses import replace

from hopper_gemm.lab.pages.prices import NOT_YET, bits, costs, torch_changes
from hopper_gemm.lab.verify.batches import InvarianceJob, TorchCount, comparisons
from hopper_gemm.lab.verify.drawing import Pair
from hopper_gemm.lab.verify.rows import Rows
from hopper_gemm.lab.verify.tally import torch_table
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.problem import GemmProblem

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
    assert "| geometric mean | 1.414x | 4.000x | 0.707x |" in suite
    assert "| least | 1.000x | 4.000x | 0.500x |" in suite
    assert "| 512x8x8 | 0.500x | 0.500x |" in deep
    assert "| 256x8x8 | 3.000x | 1.000x | 1.000x |" in by_rows


def test_bits_count_the_newest_sources_alone(tmp_path):
    pair = Pair(GemmConfig(tile_m=64), GemmProblem(4096, 64, 64, batch_invariant=True), 1)
    rows = Rows(tmp_path)
    rows.add(replace(InvarianceJob(pair, "kernel", "of the menu").row("ok", gpu="H", board="a"), verifier="old"))
    for seed, status in ((1, "ok"), (2, "ok"), (3, "wrong_result")):
        rows.add(InvarianceJob(replace(pair, seed=seed), "kernel", "of the menu").row(status, gpu="H", board="a"))
    equal = 2 * comparisons(pair)
    assert f"| kernel: of the menu | 3 | {equal} | 1 | 0 | 1 |" in bits(tmp_path)
    (tmp_path / "torch-mm.csv").write_text(
        torch_table([TorchCount("", 8, 8, "bf16", "kk", 64, 3)], board="a", gpu="H", torch="2")
    )
    assert "| its own | 1 | 1 | 64 | 3 |" in torch_changes(tmp_path)
