"""What compares batch-invariant products: its jobs can run, a right kernel passes, and every mistake is seen."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
import torch

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.menu import menu
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.rules.invariance import STEEP
from hopper_gemm.model.rules.pairs import filled_up
from tests.verify import batches
from tests.verify.batches import (
    BATCH,
    DRAWS,
    MATMUL,
    Batch,
    Comparer,
    InvarianceJob,
    TorchCount,
    comparisons,
    drawn_sizes,
    jobs,
    loaded_for,
    reference_config,
    reference_pair,
)
from tests.verify.drawing import Pair
from tests.verify.judge import product
from tests.verify.tally import counted, failures, page, torch_table

PROBLEM = GemmProblem(BATCH, 24, 40, batch_invariant=True)
PAIR = Pair(GemmConfig(tile_m=64), PROBLEM, seed=3)


@pytest.fixture(scope="module")
def few():
    """The jobs over a part of the menu."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "menu", lambda invariant: menu(invariant)[::5])
        yield jobs(1, [])


def test_every_job_can_run_each_of_its_eight_sizes_by_the_rule(few):
    assert {job.kind for job in few} == {
        "matmul: any size", "kernel: by instruction", "kernel: by technique", "kernel: of the menu"
    }  # fmt: skip
    for job in few:
        pair = replace(job.pair, problem=filled_up(job.pair.problem))
        sizes = drawn_sizes(pair)
        assert len(sizes) == DRAWS
        if job.circumstance != MATMUL:
            assert all(is_legal(pair.config, replace(pair.problem, m=m)) for m in sizes)
            assert is_legal(pair.config, loaded_for(pair))
        assert all(is_legal(other.config, other.problem) for other in job.also)
        assert Pair.of(job.row().subject).as_dict() == job.pair.as_dict()


def test_no_kernel_that_the_rule_allows_is_left_out_and_each_has_every_type_that_it_can(few):
    types = defaultdict(set)
    for job in few:
        if job.of == batches.MENU:
            types[job.pair.config.compiled()].add(job.pair.problem.dtype)
    offered = {kernel.compiled() for kernel in menu(True)[::5]}
    assert set(types) == {kernel for kernel in offered if kernel.parts_at_launch or kernel.split_k in (1, *STEEP)}
    assert {len(found) for found in types.values()} <= {2, 4}, "some have no fp32 output"
    assert sum(job.of == batches.TECHNIQUE for job in few) == len(list(batches._techniques()))


def test_every_width_and_both_orders_of_the_instruction_are_compared(few):
    shapes = {(job.pair.config.share_n, job.pair.config.swap_ab) for job in few if job.of == batches.INSTRUCTION}
    assert shapes >= {(n, order) for n in range(8, 257, 8) for order in (False, True)}


def batch_of(pair: Pair) -> Batch:
    return Batch.of(exact, pair.problem, pair.seed, "cpu")


def exact(a, b, out):
    out.copy_(a.double() @ b.double().t())


def right(a, b):
    return (a.double() @ b.double().t()).to(torch.bfloat16)


def by_m(a, b):
    """Large batches lose the last bit of each part, as a sum in another order may."""
    parts = [product(a[:, at : at + 8], b[:, at : at + 8]) for at in range(0, a.shape[1], 8)]
    cut = [part.bfloat16().float() for part in parts] if len(a) > 100 else parts
    return sum(cut).to(torch.bfloat16)


def neighbour(a, b):
    out = right(a, b)
    out[1:] += out[:-1] * 2.0**-8
    return out


def flush(a, b):
    return right(torch.where(a.abs() < 2.0**-126, 0.0, a), b)


def signed_zero(a, b):
    out = right(a, b)
    return torch.where(out == 0, -out, out)


def quiet_nan(a, b):
    return right(a, b).nan_to_num(nan=1.0)


def test_a_kernel_that_keeps_the_order_passes():
    comparer = Comparer(right, PAIR, batch_of(PAIR))
    assert list(comparer.sizes(drawn_sizes(PAIR))) == []
    assert comparer.done == DRAWS


@pytest.mark.parametrize("run", [by_m, neighbour, flush, signed_zero, quiet_nan])
def test_a_kernel_whose_rows_depend_on_more_than_themselves_is_named(run):
    told = list(Comparer(run, PAIR, batch_of(PAIR)).sizes([64, 700]))
    assert told
    assert "rows have other bits" in told[0]


def test_a_reference_that_is_no_product_is_refused():
    with pytest.raises(ArithmeticError, match="no product"):
        Batch.of(lambda a, b, out: out.zero_(), PROBLEM, 1, "cpu")


def test_the_reference_of_a_ragged_problem_runs_on_what_tma_reaches():
    problem = GemmProblem(BATCH, 89, 444, "fp16_fp32", "mn", batch_invariant=True)
    found = reference_pair(Pair(reference_config(problem), problem, 1)).problem
    assert (found.n, found.k, found.layouts, found.dtype) == (96, 448, "kk", "fp16_fp32")
    batch = Batch.of(exact, problem, 1, "cpu")
    assert (batch.a.shape, batch.b.shape, batch.expected.shape) == ((BATCH, 444), (89, 444), (BATCH, 89))


def test_the_page_counts_equal_outputs_names_failures_and_puts_torch_beside_them():
    job, other = (InvarianceJob(replace(PAIR, seed=seed), "kernel", "of the menu") for seed in (4, 5))
    good, bad = (
        job.row("ok", bits="ab", board="GPU-1"),
        other.row("wrong_result", reason="m = 64: 3 rows", board="GPU-1"),
    )
    torch_rows = torch_table([TorchCount(":16:8", 8, 8, "bf16", "kk", 64, 3)], board="GPU-1", gpu="H", torch="2")
    header, line = (text.split(",") for text in torch_rows.splitlines())
    text = page([good, bad], [job.row(), other.row()], [dict(zip(header, line, strict=True))])
    assert counted([good, bad]) == comparisons(job.pair) == 18
    assert [one.row for one in failures([good, bad], [job.row()])] == [bad]
    assert "| kernel: of the menu | 2 | 2 | 1 | 1 | 18 |" in text
    assert "m = 64: 3 rows" in text
    assert "| :16:8 | 1 | 1 | 64 | 3 |" in text
