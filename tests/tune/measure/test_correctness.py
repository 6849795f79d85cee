"""The check sees one wrong element among millions, an element that was never written, and nothing else."""

from __future__ import annotations

import pytest
import torch

from hopper_gemm.tune.measure.correctness import Correctness, check, poison, rel_err_max, same_bits

K = 1024


@pytest.fixture(params=[torch.bfloat16, torch.float16], ids=str)
def product(request):
    generator = torch.Generator().manual_seed(0)
    reference = torch.randn(1024, 1024, generator=generator) * K**0.5
    return reference.to(request.param), reference


def test_rounding_alone_passes(product):
    out, reference = product
    found = check(out, reference, K)
    assert found.ok
    assert 1e-4 < found.rel_err < 2e-3


def test_one_element_off_by_a_tenth_of_a_standard_deviation_is_seen(product):
    out, reference = product
    out = out.clone()
    at = int(reference.abs().argmin())
    out.view(-1)[at] += 0.1 * K**0.5
    found = check(out, reference, K)
    assert (found.ok, found.wrong) == (False, 1)
    assert found.reason.startswith("1 of 1048576 elements are off by more than rounding")


def accumulated(a: torch.Tensor, b: torch.Tensor, step: int = 16) -> torch.Tensor:
    """As a tensor core accumulates it: ``step`` products at a time, the sum cut off to fp32 towards zero."""
    a, b, fp32_bits = a.double(), b.double(), -(1 << 29)
    total = torch.zeros(a.shape[0], b.shape[1]).double()
    for first in range(0, a.shape[1], step):
        exact = torch.addmm(total, a[:, first : first + step], b[first : first + step])
        total = (exact.view(torch.int64) & fp32_bits).view(torch.float64)
    return total.float()


def operands(k: int, rows: int = 96) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(k)
    a, b = torch.randn(rows, k, generator=generator), torch.randn(k, rows, generator=generator)
    return a.bfloat16().float(), b.bfloat16().float()


@pytest.mark.parametrize("step", [8, 16])
@pytest.mark.parametrize("k", [16, 1024, 4096, 32768])
def test_an_fp32_product_passes_with_what_truncation_leaves_and_by_a_margin(k, step):
    a, b = operands(k, rows=32)
    found = check(accumulated(a, b, step), a @ b, k)
    assert found.ok
    assert found.rel_err < rel_err_max(torch.float32, k) / 1.5
    assert check((a.double() @ b.double()).float(), a @ b, k).ok


@pytest.mark.parametrize("k", [1024, 4096, 32768, 65536])
@pytest.mark.parametrize("lost", [1, 16, 64], ids="{} columns lost".format)
def test_an_fp32_product_without_some_of_its_k_fails_as_a_whole(k, lost):
    a, b = operands(k)
    error = a[:, :lost] @ b[:lost]
    reference = a @ b
    assert float(error.norm() / reference.norm()) > 5 * rel_err_max(torch.float32, k)
    assert not check(reference - error, reference, k).ok


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_fp32_product_that_was_rounded_on_its_way_fails(dtype):
    a, b = operands(4096)
    assert check((a @ b).to(dtype).float(), a @ b, 4096).reason is not None


def test_one_fp32_element_without_one_block_of_k_is_seen():
    a, b = operands(4096)
    out = accumulated(a, b)
    out[5, 7] -= a[5, :16] @ b[:16, 7]
    assert check(out, a @ b, 4096).wrong == 1


def test_elements_that_were_never_written_are_counted(product):
    out, reference = product
    written = out.clone()
    poison(out)
    out[:, 3:] = written[:, 3:]
    assert check(out, reference, K).reason == "3072 of 1048576 elements were not written"


def test_a_product_of_other_matrices_fails(product):
    out, reference = product
    assert check(out.t().contiguous(), reference, K).wrong > 900_000


def test_a_product_of_zeros_is_right_only_as_zeros():
    """Its norm is no measure of an error, which is then as large as it can be."""
    reference = torch.zeros(64, 64)
    assert check(torch.zeros(64, 64, dtype=torch.bfloat16), reference, K) == Correctness(0.0, 0, None)
    off = torch.zeros(64, 64, dtype=torch.bfloat16)
    off[3, 5] = 1e-3
    found = check(off, reference, K)
    assert (found.rel_err, found.ok) == (float("inf"), False)


def test_a_small_error_everywhere_fails_by_the_whole():
    reference = torch.randn(512, 512, generator=torch.Generator().manual_seed(1)) * K**0.5
    out = (reference * 1.0035).to(torch.bfloat16)
    assert check(out, reference, K).reason is not None


def test_bits_are_compared_and_not_values():
    """Zero of either sign is equal and has other bits; NaN of the same bits is the same."""
    one = torch.tensor([0.0, float("nan"), 3.0], dtype=torch.bfloat16)
    assert same_bits(one, one.clone())
    assert not same_bits(one, -one)
    wide = one.float()
    assert same_bits(wide, wide.clone())
    assert not same_bits(wide, torch.tensor([0.0, float("nan"), 3.0000002]))
