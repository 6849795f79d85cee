"""The check sees one wrong element among millions, an element that was never written, and nothing else."""

from __future__ import annotations

import pytest
import torch

from hopper_gemm.measure.correctness import Correctness, check, poison

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
    assert check(torch.zeros(64, 64, dtype=torch.bfloat16), reference, K) == Correctness(0.0, 0, 0, None)
    off = torch.zeros(64, 64, dtype=torch.bfloat16)
    off[3, 5] = 1e-3
    found = check(off, reference, K)
    assert (found.rel_err, found.ok) == (float("inf"), False)


def test_a_small_error_everywhere_fails_by_the_whole():
    reference = torch.randn(512, 512, generator=torch.Generator().manual_seed(1)) * K**0.5
    out = (reference * 1.0035).to(torch.bfloat16)
    assert check(out, reference, K).reason is not None
