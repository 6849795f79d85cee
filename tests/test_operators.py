"""CUTLASS Operators finds our kernel by its own search, and an operator launches what its arguments say.

``make operators`` brings the package; without it these tests skip themselves."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import pytest
import torch

from hopper_gemm.compiler.store import KernelId, KernelStore, default_store
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.serve.kernels import default_config
from hopper_gemm.serve.reference import activated
from tests.each import each

library = pytest.importorskip("cutlass.operators", reason="make operators brings CUTLASS Operators")
provider = pytest.importorskip("hopper_gemm.operators")

M, N, K, GROUPS = 64, 32, 128, 4
ENDS = torch.tensor([0, 24, 24, 64], dtype=torch.int32)


WHOLE = "def whole(accum, alpha, bias, C):\n    D = gelu(accum * alpha + bias) + C\n    return D"
BIASED = "def biased(accum, bias):\n    D = relu(accum + bias)\n    return D"
ADDED = "def added(accum, C):\n    D = accum + C\n    return D"
BY_TANH = "def by_tanh(accum, bias):\n    D = tanh(accum + bias)\n    return D"
TWICE = "def twice(accum, bias):\n    F = accum + bias\n    D = relu(F)\n    return D, F"
"""Epilogues as text, which the library reads as it reads a function's source."""


def operands(dtype=torch.bfloat16, batch=()):
    """A (m, k), B (k, n) along k, and an output."""
    torch.manual_seed(0)
    a, b = torch.randn(*batch, M, K).to(dtype), torch.randn(*batch, N, K).to(dtype).mT
    return a, b, torch.zeros(*batch, M, N, dtype=torch.bfloat16 if dtype.itemsize == 1 else dtype)


def unaligned():
    """Operands whose n is no multiple of 8."""
    a, b, out = operands()
    return a, b[:, :12], out[:, :12]


def dense(out_dtype=None, **named):
    a, b, out = operands(**named)
    return library.GemmArguments(a, b, out.to(out_dtype or out.dtype), accumulator_type=torch.float32)


def finished(function, **extra):
    a, b, out = operands()
    has = {"alpha": 0.5, "bias": torch.randn(N).bfloat16(), "C": torch.randn(M, N).bfloat16()}
    named = {name: tensor for name, tensor in has.items() if name in function.partition(")")[0]}
    epilogue = library.EpilogueArguments(function, D=out, **named | extra)
    return library.GemmArguments(a, b, out, torch.float32, epilogue=epilogue)


def scaled(mode=(1, 1, K)):
    a, b, out = operands(dtype=torch.float8_e4m3fn)
    none = library.ScaleSwizzleMode.SwizzleNone
    sides = (
        library.ScaledOperand(a, torch.rand(M, 1), mode, none),
        library.ScaledOperand(b, torch.rand(1, N), mode, none),
    )
    return library.GemmArguments(*sides, out, torch.float32)


def groups(axis):
    if axis == "m":
        a, _, out = operands()
        sides = a, torch.randn(GROUPS, N, K).bfloat16().mT, out
    elif axis == "k":
        sides = torch.randn(64, M).bfloat16().t(), torch.randn(64, N).bfloat16(), torch.zeros(GROUPS, M, N).bfloat16()
    else:
        sides = torch.randn(GROUPS, M, K).bfloat16(), torch.randn(64, K).bfloat16().t(), torch.zeros(M, 64).bfloat16()
    return library.IndexPtrGroupedGemmArguments(*sides, torch.float32, ENDS.to(sides[0].device), axis)


CARRIED = {
    "bf16": dense,
    "fp16 into fp32": lambda: dense(dtype=torch.float16, out_dtype=torch.float32),
    "batch": lambda: dense(batch=(3,)),
    "batch of one": lambda: dense(batch=(1,)),
    "whole epilogue": lambda: finished(WHOLE),
    "bias and relu": lambda: finished(BIASED),
    "residual": lambda: finished(ADDED),
    "FP8 by rows": scaled,
    "groups of rows": lambda: groups("m"),
    "groups along k": lambda: groups("k"),
}

REFUSED = {
    "tanh": (lambda: finished(BY_TANH), "activation(accum * alpha + bias) + C"),
    "two outputs": (lambda: finished(TWICE, F=torch.zeros(M, N).bfloat16()), "return D alone"),
    "a residual off 16 bytes": (
        lambda: finished(ADDED, C=torch.randn(M, N + 4).bfloat16()[:, :N]),
        "residual must be BFloat16, with rows",
    ),
    "a bias of fp32": (lambda: finished(BIASED, bias=torch.randn(N)), "bias must be BFloat16"),
    "FP8 without scales": (lambda: dense(dtype=torch.float8_e4m3fn), "scale for each row"),
    "FP8 by blocks": (lambda: scaled((1, 1, 128 // 4)), "scale for each row"),
    "groups along n": (lambda: groups("n"), "along m or k"),
    "sums of fp16": (lambda: library.GemmArguments(*operands(torch.float16), torch.float16), "sums of fp32"),
    "rows off 16 bytes": (lambda: library.GemmArguments(*unaligned(), torch.float32), "multiples of 16 bytes"),
}


def found(args):
    """Our operators, by the library's search on a CPU."""
    operators = library.get_operators(args, target_sm="90a")
    return [one for one in operators if one.metadata.provider is provider.HopperProvider]


@each("name", CARRIED)
def test_the_search_finds_what_the_arguments_carry(name):
    operators = found(CARRIED[name]())
    assert len(operators) == provider.CANDIDATES
    assert len({one.metadata.operator_name for one in operators}) == provider.CANDIDATES
    assert not library.get_operators(CARRIED[name](), target_sm="100a", providers=[provider.HopperProvider])


@each("name", REFUSED)
def test_the_search_leaves_out_what_the_kernel_lacks_and_supports_says_why(name):
    build, reason = REFUSED[name]
    args = build()
    assert found(args) == []
    with pytest.raises(ValueError, match=r"\w") as error:
        provider.problem_of(args)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_the_first_operator_is_what_matmul_runs():
    (first, *_) = found(dense())
    assert first.metadata.design.config == default_config(GemmProblem(M, N, K))


def test_an_operator_refuses_arguments_that_need_other_machine_code():
    """A batch has the same strides and types as a product without one."""
    for one in found(dense()):
        assert one.supports(dense())
        assert not one.supports(dense(batch=(3,)))
        assert not one.supports(finished(BIASED))


@pytest.mark.compile
@pytest.mark.timeout(600)
@each("name", CARRIED)
def test_compiling_without_a_gpu_fills_the_store(name, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    args = CARRIED[name]()
    (first, *_), (problem, finish) = found(args), provider.problem_of(args)
    assert first.compile(args, target_sm="90a").operator_obj is first
    report = KernelStore(default_store()).report(KernelId.of(first.metadata.design.config, problem, "", finish, False))
    assert report.wgmma > 0


def multiplied(a, b, out, bias=None, residual=None, scale=None, *, ends=None, scales=None, activation=None):
    """What a kernel does with its arguments, as hopper_gemm.compiler.abi declares them."""
    if ends is None:
        product = a.float() @ b.mT.float() * (1.0 if scale is None else scale)
        product = product if scales is None else product * scales[0][:, None] * scales[1]
        product = activated(product if bias is None else product + bias.float(), activation or None)
        out.copy_(product if residual is None else product + residual.float())
        return
    start = 0
    for group, end in enumerate(ends.tolist()):
        if out.dim() == 3:
            out[group] = a[:, start:end].float() @ b[:, start:end].mT.float()
        else:
            out[start:end] = a[start:end].float() @ b[group].mT.float()
        start = end


def expected(args):
    """The product of arguments in fp32, and what follows it, by torch."""
    a, b = (side.tensor.runtime_tensor.float() for side in (args.A, args.B))
    if hasattr(args, "offsets_along"):
        ends = args.offsets.tensor.runtime_tensor.tolist()
        spans = list(enumerate(zip([0, *ends[:-1]], ends, strict=True)))
        if b.dim() == 3:
            return torch.cat([a[start:end] @ b[group] for group, (start, end) in spans])
        return torch.stack([a[:, start:end] @ b[start:end] for _, (start, end) in spans])
    product = a @ b
    if isinstance(args.A, library.ScaledOperand):
        scale_a, scale_b = (side.scale.tensor.runtime_tensor for side in (args.A, args.B))
        return product * scale_a * scale_b
    if args.epilogue is None:
        return product
    given = {name: getattr(of, "runtime_tensor", of) for name, of in args.epilogue.tensors.items()}
    product = product * given.get("alpha", 1.0) + given.get("bias", torch.zeros(())).to(product)
    functions = {"whole": torch.nn.functional.gelu, "biased": torch.relu, "added": lambda z: z}
    finish = functions[args.epilogue.epilogue_fn.split("(")[0].removeprefix("def ")]
    return finish(product) + given.get("C", torch.zeros(())).to(product)


@each("name", CARRIED)
def test_a_run_hands_the_operands_to_the_kernel_as_it_reads_them(name, monkeypatch):
    """The kernel is a stand-in that multiplies on a CPU; its result is that of torch."""
    args = CARRIED[name]()
    (first, *_) = found(args)
    activation = first.metadata.design.finish and first.metadata.design.finish.activation
    monkeypatch.setattr(provider, "kernel_for", lambda *given: partial(multiplied, activation=activation))
    for function in ("device", "stream"):
        monkeypatch.setattr(torch.cuda, function, lambda which: nullcontext())
    first.run(args, library.CompiledArtifact(None, first, provider.TARGET))
    out = args.out.tensor.runtime_tensor
    torch.testing.assert_close(out.float(), expected(args).to(out.dtype).float())
