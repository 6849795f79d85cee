"""Every transform of torch gives of an operator what it gives of the same composition of torch's own functions."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

from hopper_gemm.serve.ops import BY_NAME, bmm_op, linear_op, linear_out_op, mm, mm_out, swiglu_op

F = torch.nn.functional

X, W, BIAS, RESIDUAL = (6, 16), (24, 16), (24,), (6, 24)
ACTIVATIONS = {
    None: lambda z: z,
    "relu": F.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
}


def torch_linear(activation, x, w, bias, residual):
    return ACTIVATIONS[activation](0.5 * (x @ w.mT) + bias) + residual


def torch_swiglu(x, w):
    gate, up = (x @ w.mT).chunk(2, -1)
    return F.silu(gate) * up


CASES = {
    "mm": (mm, torch.matmul, [X, (16, 24)]),
    "bmm": (bmm_op, torch.matmul, [(3, 6, 16), (3, 16, 24)]),
    "bmm_shared": (bmm_op, torch.matmul, [(3, 6, 16), (16, 24)]),
    "swiglu": (swiglu_op, torch_swiglu, [X, W]),
}


def layer(activation):
    """A layer of ours, with all that may follow, that of torch, and shapes."""
    return (
        lambda x, w, bias, residual: linear_op(x, w, bias, activation, residual, 0.5),
        lambda *given: torch_linear(activation, *given),
        [X, W, BIAS, RESIDUAL],
    )


CASES |= {f"linear_{activation}": layer(activation) for activation in ACTIVATIONS}
"""Operators with the same of torch, and shapes of their tensors."""

OPERATORS = ["mm", "bmm", "bmm_shared", "swiglu", "linear_silu"]
"""A case of each operator, for rules on which an activation has no bearing."""


def tensors(shapes, seed=0, leading=()):
    """bf16 values as fp32 has them, small enough that sums stay near one."""
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(*leading, *shape, generator=generator) / 2).bfloat16() for shape in shapes]


def leaves(result):
    return [leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def agree(ours, theirs, tolerance=0.03):
    """Return True if each result is that of fp32, up to a few roundings to bf16 of its largest element, and not zero
    where that is not."""
    pairs = list(zip(leaves(ours), leaves(theirs), strict=True))
    return bool(pairs) and all(
        a.shape == b.shape
        and float((a.detach().float() - b.detach()).abs().max()) <= tolerance * max(float(b.detach().abs().max()), 1e-3)
        for a, b in pairs
    )


def loss(function):
    """A function's sum of squares, in fp32, so that each derivative depends on the output."""
    return lambda *given: function(*given).float().square().sum()


def like(given, *values):
    """Tangents in the type of what they belong to."""
    return tuple(value.to(one.dtype) for one, value in zip(given, values, strict=True))


def forward(function, given):
    tangents = like(given, *tensors([one.shape for one in given], 1))
    return torch.func.jvp(function, tuple(given), tangents)


def dual_of_one(function, given):
    """Only the second tensor has a tangent."""
    with forward_ad.dual_level():
        given = list(given)
        given[1] = forward_ad.make_dual(given[1], torch.ones_like(given[1]))
        return forward_ad.unpack_dual(function(*given))


def double_backward(function, given):
    given = [one.detach().requires_grad_() for one in given]
    first = torch.autograd.grad(loss(function)(*given), given, create_graph=True)
    return torch.autograd.grad(sum(one.float().square().sum() for one in first), given)


def forward_over_backward(function, given):
    """A gradient's tangent, without torch.func and without a graph of the gradient."""
    tangents = like(given, *tensors([one.shape for one in given], 1))
    with forward_ad.dual_level():
        given = [
            forward_ad.make_dual(one.detach().requires_grad_(), step) for one, step in zip(given, tangents, strict=True)
        ]
        gradients = torch.autograd.grad(loss(function)(*given), given, create_graph=True)
        return [forward_ad.unpack_dual(gradient).tangent for gradient in gradients]


def batched_gradients(function, given):
    given = [one.detach().requires_grad_() for one in given]
    out = function(*given)
    incoming = tensors([out.shape], 2, (3,))[0].to(out.dtype)
    return torch.autograd.grad(out, given, incoming, is_grads_batched=True)


def linearized(function, given):
    out, push = torch.func.linearize(function, *given)
    return out, push(*like(given, *tensors([one.shape for one in given], 1)))


def all_arguments(given):
    return tuple(range(len(given)))


TRANSFORMS = {
    "grad": lambda f, given: torch.func.grad(loss(f), all_arguments(given))(*given),
    "dual_of_one": dual_of_one,
    "jacrev": lambda f, given: torch.func.jacrev(f, all_arguments(given))(*given),
    "jacfwd": lambda f, given: torch.func.jacfwd(f, all_arguments(given))(*given),
    "hessian": lambda f, given: torch.func.hessian(loss(f), (0, 1))(*given),
    "reverse_over_forward": lambda f, given: torch.func.grad(lambda *g: forward(loss(f), g)[1], (0, 1))(*given),
    "forward_over_reverse": lambda f, given: forward(torch.func.grad(loss(f), (0, 1)), given),
    "double_backward": double_backward,
    "forward_over_backward": forward_over_backward,
    "batched_gradients": batched_gradients,
    "linearize": linearized,
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_transform_gives_what_it_gives_of_torch(transform, name):
    ours, theirs, shapes = CASES[name]
    given = tensors(shapes)
    apply = TRANSFORMS[transform]
    assert agree(apply(ours, given), apply(theirs, [one.float() for one in given]), 0.06)


def places(shapes):
    """Each way to batch some of these tensors along their first axis, and all along their last."""
    for bits in range(1, 2 ** len(shapes)):
        yield tuple(0 if bits >> at & 1 else None for at in range(len(shapes)))
    yield (-1,) * len(shapes)


@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize("name", OPERATORS)
def test_vmap_over_any_of_the_tensors_gives_each_sample_its_own_output(name, chunk):
    ours, theirs, shapes = CASES[name]
    for axes in places(shapes):
        whole = tensors(shapes, 0, (5,))
        given = [one[0] if at is None else one.movedim(0, at) for one, at in zip(whole, axes, strict=True)]
        found = torch.vmap(ours, axes, chunk_size=chunk)(*given)
        assert agree(found, torch.vmap(theirs, axes)(*[one.float() for one in given])), axes


@pytest.mark.parametrize("product", ["a", "b"])
def test_a_product_of_samples_with_one_matrix_is_one_product(product):
    a, b = tensors([X, (16, 24)], 0, (5,))
    axes = (0, None) if product == "a" else (None, 0)
    given = (a, b[0]) if product == "a" else (a[0], b)
    graph = make_fx(torch.vmap(mm, axes))(*given)
    assert [node.target for node in graph.graph.nodes if node.target in BY_NAME.values()] == [mm]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", ["mm", "linear_silu", "swiglu", "bmm"])
def test_a_compiled_tangent_is_that_of_the_eager_call(name, backend):
    ours, theirs, shapes = CASES[name]
    given = tensors(shapes)
    compiled = torch.compile(lambda *g: forward(ours, g)[1], backend=backend)
    with torch.no_grad():
        assert agree(compiled(*given), forward(theirs, [one.float() for one in given])[1])


@pytest.mark.parametrize("transform", ["grad", "hessian", "jacfwd"])
@pytest.mark.parametrize("name", ["mm", "linear_silu"])
def test_a_compiled_transform_is_that_of_the_eager_call(name, transform):
    ours, theirs, shapes = CASES[name]
    given = tensors(shapes)
    compiled = torch.compile(lambda *g: TRANSFORMS[transform](ours, g), backend="aot_eager")
    assert agree(compiled(*given), TRANSFORMS[transform](theirs, [one.float() for one in given]), 0.06)


OUT = {
    "mm_out": lambda a, out: mm_out(a, torch.ones(16, 24, dtype=a.dtype), out),
    "linear_out": lambda a, out: linear_out_op(a, torch.ones(24, 16, dtype=a.dtype), out),
}


@pytest.mark.parametrize("name", OUT)
def test_an_output_that_is_given_has_no_gradient_no_tangent_and_no_samples(name):
    (a,), out = tensors([X]), torch.zeros(6, 24, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="out must be None where a gradient is recorded or a tangent computed"):
        OUT[name](a.requires_grad_(), out)
    a = a.detach()
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="a tangent computed; use what is returned"):
        OUT[name](forward_ad.make_dual(a, a), out)
    with pytest.raises(RuntimeError, match=r"out must be None under torch.vmap; use what is returned"):
        torch.vmap(lambda a, out: OUT[name](a, out) or out)(a[None], out[None])
    assert not out.any()


@pytest.mark.parametrize("name", ["mm", "linear_None", "swiglu", "bmm", "bmm_shared"])
def test_flops_are_those_of_torch_with_those_of_gradients(name):
    ours, theirs, shapes = CASES[name]

    def counted(function):
        given = [one.requires_grad_() for one in tensors(shapes)]
        with FlopCounterMode(display=False) as forward_only:
            out = function(*given)
        with FlopCounterMode(display=False) as backward:
            out.sum().backward()
        recomputed = 1 if name == "swiglu" and function is ours else 0
        total = forward_only.get_total_flops()
        return total, backward.get_total_flops() - recomputed * total

    assert counted(ours) == counted(theirs)


def test_flops_of_a_product_into_an_output_are_counted():
    a, b, x, w = tensors([X, (16, 24), X, W])
    with FlopCounterMode(display=False) as counter:
        mm_out(a, b, torch.empty(6, 24, dtype=a.dtype))
        linear_out_op(x, w, torch.empty(6, 24, dtype=a.dtype))
    assert counter.get_total_flops() == 2 * (2 * 6 * 16 * 24)


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_passes_the_checks_of_torch(name):
    function, _, shapes = CASES[name]
    given = [one.requires_grad_() for one in tensors(shapes)]
    if name.startswith("linear"):
        x, w, bias, residual = given
        torch.library.opcheck(linear_op, (x, w, bias, "silu", residual, 0.5))
    else:
        torch.library.opcheck(function, tuple(given))


def test_operators_that_write_pass_the_checks_of_torch():
    x, w, bias, out = tensors([X, W, BIAS, RESIDUAL])
    torch.library.opcheck(linear_out_op, (x, w, out, bias, "silu"))
    torch.library.opcheck(mm_out, (x, w.t(), out))


SHARDS = textwrap.dedent(
    """
    import sys, torch
    import torch.distributed as dist
    from hopper_gemm.serve.ops import mm, linear_op, swiglu_op, bmm_op
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor, init_device_mesh

    dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=int(sys.argv[1]), world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    x, w, bias, residual = (torch.randn(*s).bfloat16() for s in ((8, 16), (24, 16), (24,), (8, 24)))
    R = Replicate()

    def put(tensor, placement):
        return distribute_tensor(tensor, mesh, [placement])

    def same(name, whole, shards, placement):
        assert shards.placements == (placement,), (name, shards.placements)
        found, right = shards.full_tensor().float(), whole.float()
        assert (found - right).abs().max() <= 0.02 * right.abs().max(), name

    same("rows", mm(x, w.t()), mm(put(x, Shard(0)), put(w, R).t()), Shard(0))
    same("columns", mm(x, w.t()), mm(put(x, R), put(w, Shard(0)).t()), Shard(1))
    same("depth", mm(x, w.t()), mm(put(x, Shard(1)), put(w, Shard(1)).t()), Partial())
    for activation in ("silu", None, "silu"):
        given = (put(x, R), put(w, Shard(0)), put(bias, Shard(0)), activation)
        same("columns", linear_op(x, w, bias, activation), linear_op(*given), Shard(1))
    same("depth", linear_op(x, w, bias), linear_op(put(x, Shard(1)), put(w, Shard(1)), put(bias, R)), Partial())
    deep = linear_op(put(x, Shard(1)), put(w, Shard(1)), put(bias, R), "silu")
    assert (deep.full_tensor() - linear_op(x, w, bias, "silu")).abs().max() < 0.1
    given = (put(x, Shard(0)), put(w, R), put(bias, R), "gelu", put(residual, Shard(0)))
    same("rows", linear_op(x, w, bias, "gelu", residual), linear_op(*given), Shard(0))
    same("gated", swiglu_op(x, w), swiglu_op(put(x, Shard(0)), put(w, R)), Shard(0))
    gated = swiglu_op(put(x, R), put(w, Shard(0)))
    same("gated columns", swiglu_op(x, w), gated, gated.placements[0])
    a, b = x.view(2, 4, 16), w.t().reshape(2, 16, 12)[:, :, :8]
    same("batch", bmm_op(a, b), bmm_op(put(a, Shard(0)), put(b, Shard(0))), Shard(0))
    same("batch rows", bmm_op(a, b), bmm_op(put(a, Shard(1)), put(b, R)), Shard(1))
    same("shared", bmm_op(a, b[0]), bmm_op(put(a, Shard(0)), put(b[0].contiguous(), R)), Shard(0))

    w1 = put(w, Shard(0)).requires_grad_()
    out = torch.compile(lambda x, w: linear_op(x, w, None, "silu"), backend="aot_eager", fullgraph=True)(put(x, R), w1)
    same("compiled", linear_op(x, w, None, "silu"), out, Shard(1))
    out.sum().backward()
    plain = w.clone().requires_grad_()
    linear_op(x, plain, None, "silu").sum().backward()
    same("gradient", plain.grad, w1.grad, Shard(0))
    dist.destroy_process_group()
    """
)


@pytest.mark.timeout(150)
def test_shards_are_multiplied_where_they_lie(tmp_path):
    """Placements of DTensors of two processes, by rows, columns, the depth and batches."""
    command = [sys.executable, "-c", SHARDS]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        ended = [rank.communicate(timeout=120)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], ended
