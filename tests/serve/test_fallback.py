"""What torch.mm multiplies instead of the kernel, under which policy, and what no policy lets pass."""

from __future__ import annotations

import threading

import pytest
import torch

import hopper_gemm
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.lookup import Table
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.tuned import TunedEntry
from hopper_gemm.serve import kernels
from hopper_gemm.serve.call import Call
from hopper_gemm.serve.checks import UnsupportedError
from hopper_gemm.serve.fallback import POLICY
from hopper_gemm.serve.reference import by_torch
from tests.serve.launcher import Launches
from tests.serve.test_matmul import Tagged, random


def sparse(rows, columns):
    return torch.eye(rows, columns).to_sparse()


UNSUPPORTED = {
    "cpu": lambda: (random(16, 24), random(24, 8)),
    "fp32": lambda: (random(16, 24, torch.float32), random(24, 8, torch.float32)),
    "fp64": lambda: (random(16, 24, torch.float64), random(24, 8, torch.float64)),
    "integers": lambda: (torch.ones(16, 24, dtype=torch.int32), torch.ones(24, 8, dtype=torch.int32)),
    "subclass": lambda: (random(16, 24).as_subclass(Tagged), random(24, 8)),
    "sparse": lambda: (sparse(16, 24), random(24, 8, torch.float32)),
}


@pytest.fixture(params=UNSUPPORTED)
def pair(request):
    return UNSUPPORTED[request.param]()


@pytest.mark.parametrize("policy", ["unsupported", "faster", None])
def test_what_the_kernel_cannot_run_torch_runs(pair, policy):
    product = hopper_gemm.matmul(*pair, fallback=policy)
    assert torch.equal(product, torch.mm(*pair))
    assert product.dtype == pair[0].dtype
    out = torch.zeros(16, 8, dtype=pair[0].dtype)
    assert hopper_gemm.matmul(*pair, out=out, fallback=policy) is out
    assert torch.equal(out, product)


def test_never_makes_it_an_error_of_one_line(pair):
    for call in (
        lambda: hopper_gemm.matmul(*pair, fallback="never"),
        lambda: hopper_gemm.matmul(*pair, config=GemmConfig(), fallback="faster"),
        lambda: hopper_gemm.matmul(*pair, batch_invariant=True),
    ):
        with pytest.raises(UnsupportedError) as caught:
            call()
        assert isinstance(caught.value, (TypeError, RuntimeError))
        assert "\n" not in str(caught.value)


def test_a_product_of_torch_has_our_output_types_and_gradients():
    a, b = (one.requires_grad_() for one in UNSUPPORTED["cpu"]())
    product = hopper_gemm.matmul(a, b, out_dtype=torch.float32)
    assert product.dtype == torch.float32
    assert torch.allclose(product, a.float() @ b.float())
    product.sum().backward()
    assert a.grad.dtype == torch.bfloat16
    hopper_gemm.matmul(a.detach(), b).sum().backward()
    assert b.grad.shape == b.shape
    with pytest.raises(RuntimeError, match="out must be None where a gradient is recorded"):
        hopper_gemm.matmul(a, b, out=random(16, 8))


def test_wrong_arguments_are_errors_under_every_policy():
    a, b = UNSUPPORTED["fp32"]()
    wrong = [
        (lambda: hopper_gemm.matmul(a, a), ValueError, r"a and b must be \(m, k\) and \(k, n\)"),
        (lambda: hopper_gemm.matmul(a, None), TypeError, "b must be a plain torch tensor but is None"),
        (lambda: hopper_gemm.matmul([[1.0]], b), TypeError, "a must be a plain torch tensor but is a builtins.list"),
        (lambda: hopper_gemm.matmul(a, b.double()), TypeError, "got torch.float32 and torch.float64"),
        (lambda: hopper_gemm.matmul(a, b, out_dtype=torch.float16), TypeError, "out_dtype must be torch.float32"),
        (lambda: hopper_gemm.matmul(a, b, out=a), ValueError, r"out must be \(16, 8\)"),
        (lambda: hopper_gemm.matmul(a, b.to("meta")), ValueError, "must be on one device"),
        (lambda: hopper_gemm.matmul(a, b, config={}), TypeError, "config must be a hopper_gemm.GemmConfig"),
    ]
    for policy in ("never", "unsupported", "faster"):
        for call, error, message in wrong:
            with hopper_gemm.fallback(policy), pytest.raises(error, match=message):
                call()
    with pytest.raises(ValueError, match="out must not share memory with a or b"):
        hopper_gemm.matmul(a[:, :16], a[:, :16], out=a[:, :16])


def test_a_policy_is_of_one_thread_ends_with_its_context_and_an_argument_comes_first():
    pair, seen = UNSUPPORTED["cpu"](), []
    with hopper_gemm.fallback("never"):
        thread = threading.Thread(target=lambda: seen.append(POLICY.fallback))
        thread.start()
        thread.join()
        with pytest.raises(UnsupportedError):
            hopper_gemm.matmul(*pair)
        hopper_gemm.matmul(*pair, fallback="unsupported")
        with pytest.raises(UnsupportedError):
            hopper_gemm.matmul(*pair)
    assert [*seen, POLICY.fallback] == ["unsupported", "unsupported"]
    hopper_gemm.matmul(*pair)


def test_a_policy_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="fallback must be one of never, unsupported, faster but got 'always'"):
        hopper_gemm.matmul(*UNSUPPORTED["cpu"](), fallback="always")
    with pytest.raises(ValueError, match="but got True"), hopper_gemm.fallback(True):
        pass
    assert POLICY.fallback == "unsupported"


# Problems on which torch.mm is faster ---------------------------------------------------------


def tuned(speedup, context="isolated", m=16):
    about = {"registers": 168, "wgmma": 8, "instructions": 500, "code": "0", "study": "s", "gpu": "NVIDIA H200"}
    problem, config = GemmProblem(m, 8, 24, layouts="kn"), resolve(GemmConfig(tile_m=64, tile_n=64))
    return TunedEntry(problem, "burst", config, speedup, 1.0, 1.2, 0.001, context=context, **about)


@pytest.mark.parametrize(
    ("entries", "by_torch"),
    [
        ((tuned(0.97),), True),
        ((tuned(0.985),), False),
        ((tuned(1.1),), False),
        ((tuned(0.9, "chained"),), False),
        ((tuned(0.9, m=32),), False),
    ],
    ids=["tuned and slower", "within the noise", "faster", "slower in the other context", "another problem"],
)
def test_faster_takes_torch_only_where_it_was_measured_to_win_by_two_percent(monkeypatch, entries, by_torch):
    monkeypatch.setattr(kernels, "_tables", lambda *_: [Table(entries)])
    kernels._picked.cache_clear()
    launches, a, b = Launches(monkeypatch), random(16, 24), random(24, 8)
    for dtype in (None, torch.bfloat16):
        for _ in range(2):
            with hopper_gemm.fallback("faster"):
                assert torch.equal(hopper_gemm.matmul(a, b, out_dtype=dtype), a @ b)
    assert len(launches.made) == (0 if by_torch else 4)
    made = len(launches.made)
    hopper_gemm.matmul(a, b)
    hopper_gemm.matmul(a, b, fallback="faster", config=GemmConfig())
    assert len(launches.made) == made + 2
    kernels._picked.cache_clear()


# Under torch.compile --------------------------------------------------------------------------


def test_a_traced_call_falls_back_by_type_without_a_break():
    a, b = UNSUPPORTED["fp32"]()
    for policy in (None, "faster"):
        call = torch.compile(
            lambda a, b, policy=policy: hopper_gemm.matmul(a, b, fallback=policy), fullgraph=True, backend="eager"
        )
        assert torch.equal(call(a, b), a @ b)
    refused = torch.compile(lambda a, b: hopper_gemm.matmul(a, b, fallback="never"), fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="must both be bfloat16 or both float16"):
        refused(a, b)


def test_a_gated_layer_of_a_subclass_has_the_type_that_autocast_chooses():
    """As torch's own products have."""
    x, w = random(16, 24), random(32, 24).as_subclass(Tagged)
    with torch.autocast("cpu", torch.float16):
        assert hopper_gemm.swiglu(x, w).dtype == (x @ w[:16].t()).dtype == torch.float16


def test_tensors_without_memory_share_none():
    """All of them have the address 0."""
    a, b, out = (torch.empty(16, 16, device="meta") for _ in range(3))
    assert by_torch(Call(a, b, out=out)) is out
