"""What torch computes: references of the operators, and calls that the kernel does not run."""

from __future__ import annotations

from typing import Any

import torch

from hopper_gemm.model.finish import ACTIVATIONS
from hopper_gemm.serve.call import Call, Maybe, cast, invariant, needs_gradient, output_of, traced
from hopper_gemm.serve.checks import (
    DTYPES,
    PLAIN,
    UnsupportedError,
    check_apart,
    check_call,
    check_device,
    check_supported,
)
from hopper_gemm.serve.fallback import POLICY


def activated(z: torch.Tensor, activation: str | None) -> torch.Tensor:
    """An activation by torch; ``z`` itself without an activation."""
    if not activation:
        return z
    if activation == "relu" and z.requires_grad:  # relu keeps its output, which a model may change in place
        return torch.threshold(z, 0, 0)
    entry = ACTIVATIONS[activation]
    return getattr(torch.ops.aten, entry.function)(z, **entry.options)


def finished(product: torch.Tensor, call: Call) -> torch.Tensor:
    """Return a layer's output from its product, computed by torch in the product's type."""
    if call.kind == "swiglu":
        gate, up = product.chunk(2, -1)
        return activated(gate, "silu") * up
    z = product if call.scale is None else product * call.scale
    z = activated(z if call.bias is None else z + call.bias.to(z.dtype), call.activation)
    return z if call.residual is None else z + call.residual.to(z.dtype)


def reference(call: Call) -> torch.Tensor:
    """The output of a call: products and all that follows in fp32, rounded once."""
    b = call.b if call.kind in ("mm", "bmm") else call.b.t()
    return finished(call.a.float() @ b.float(), call).to(output_of(call)[1])


def falls_back(call: Call) -> bool:
    """Return True if torch runs a call that the kernel cannot; refuse it by an UnsupportedError where torch may not.
    What is traced falls back by its type alone: which device it will run on is not known."""
    ours = POLICY.fallback == "never" or call.config is not None or invariant(call)
    if traced(call):
        return not ours and call.a.dtype not in DTYPES and call.a.dtype == call.b.dtype and not cast(call)
    if cast(call):
        if ours:
            check_device(call.a.device)
        return False
    try:
        check_supported(call)
    except UnsupportedError:
        if ours:
            raise
        return True
    return False


def by_torch(call: Call) -> torch.Tensor:
    """A call by torch, of any type and device, in the type of the output, checked by :func:`check_call`."""
    a, b, out = call.a, call.b, call.out
    if not (a.is_nested or b.is_nested):  # whose sizes torch judges
        check_call(call)
    if out is not None and not traced(call) and _have_memory(call):
        check_apart(call)
    dtype = out.dtype if out is not None else call.out_dtype or a.dtype
    if call.kind == "mm":
        more: dict[str, Any] = {} if out is None else {"out": out}
        if dtype != a.dtype and a.is_cuda and not needs_gradient(Call(a, b)):
            more["out_dtype"] = dtype
        elif dtype != a.dtype:
            a, b = a.to(dtype), b.to(dtype)
        product = torch.mm(a, b, **more)
        if out is not None:
            return out  # of a subclass torch.mm returns another object
        return product if call.out_dtype is None else product.to(call.out_dtype)  # autocast has chosen another
    a, b = (tensor if tensor.dtype == dtype else tensor.to(dtype) for tensor in (a, b))
    if call.kind == "bmm":
        return torch.matmul(a, b).to(dtype)
    bias = None if call.scale is not None or call.bias is None else call.bias.to(dtype)
    # of a subclass torch.nn.functional.linear may be all that it knows
    result = finished(torch.nn.functional.linear(a, b, bias), call if bias is None else call._replace(bias=None))
    if call.kind != "swiglu":  # whose type autocast chooses, as of torch's own products
        result = result.to(dtype)
    return result if out is None else out.copy_(result)


def _have_memory(call: Call) -> bool:
    """Return True if the elements of all tensors have addresses."""
    return all(
        tensor is None or (type(tensor) in PLAIN and tensor.layout == torch.strided and tensor.device.type != "meta")
        for tensor in (call.a, call.b, call.bias, call.residual, call.out)
    )


def repeatable(call: Call, product: torch.Tensor) -> bool:
    """Return True if :func:`launch_torch` can repeat what torch multiplied: dense matrices of real numbers on a GPU."""
    if call.kind != "mm" or product.dtype != call.a.dtype or not product.is_cuda or not product.is_floating_point():
        return False
    return _have_memory(call) and 0 not in (call.a.numel(), product.numel())


def launch_torch(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, bias: Maybe = None, *rest: None) -> None:
    """torch.mm, or torch.addmm with a bias, in the form of a loaded kernel: ``b`` is (n, k)."""
    if bias is not None:
        torch.addmm(bias, a, b.mT, out=out)
    elif out.dtype == a.dtype:
        torch.mm(a, b.mT, out=out)
    else:
        torch.mm(a, b.mT, out_dtype=out.dtype, out=out)
