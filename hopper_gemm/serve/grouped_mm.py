"""``hopper_gemm.grouped_mm``: products of groups in one launch, and the launch of batches."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from hopper_gemm.model import hopper
from hopper_gemm.model.grouped import ROWS_MOST, GroupedProblem
from hopper_gemm.model.problem import shown
from hopper_gemm.model.tuned import CHANGES
from hopper_gemm.serve import checks, launches
from hopper_gemm.serve.background import BACKGROUND, UncompiledError
from hopper_gemm.serve.call import Call, needs_gradient, traced, watched
from hopper_gemm.serve.checks import DTYPES, PLAIN, MisfitError, MixedTypesError, UnsupportedError, strided
from hopper_gemm.serve.fallback import POLICY, while_compiling
from hopper_gemm.serve.kernels import CALLED, MODE
from hopper_gemm.serve.operands import MISALIGNED, reaches
from hopper_gemm.serve.ops import NAMESPACE, OPERATORS, by_operator, untraced

STEP = hopper.TMA_ALIGN_BYTES // 2
"""n and k of groups are multiples of this: rows of 16-bit elements that TMA reaches."""


def grouped_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    *,
    offs: torch.Tensor | None = None,
    bias: None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Products of groups of rows in one launch, with the names and layouts of :func:`torch.nn.functional.grouped_mm`
    and with gradients: ``out[start:end] = mat_a[start:end] @ mat_b[g]``, where group g ends at row ``offs[g]`` and
    starts where the one before it ends. Of two 2-D operands the groups divide k, and each has a product of its own:
    ``out[g] = mat_a[:, start:end] @ mat_b[start:end]``, zero where the group is empty.

    Groups may be empty and end anywhere; nothing is padded, and no offset is read on the host, so that a captured graph
    follows offsets that change. A row's bits do not depend on the sizes of the groups.

    Args:
        mat_a: (rows, k), bf16 or fp16, row-major. Of groups along k (m, k), column-major.
        mat_b: (groups, k, n), same type; each matrix row-major or the transpose of a row-major one. n and k multiples
            of 8. Of groups along k (k, n), row-major; m and n multiples of 8. Operands that lie otherwise are copied.
        offs: (groups,), int32, on the same device, not falling. The last may be less than the rows; what is behind it
            is not written, in the output and in the gradient of ``mat_a``. Where offsets fall or exceed the rows, they
            are clamped: no access is out of bounds, and no row of a group is written by another.
        bias: None, as torch's.
        out_dtype: ``torch.float32`` or the operands' type, which is the default.

    Returns:
        (rows, n), or (groups, m, n) of groups along k, written on torch's current stream.

    Two 3-D operands without ``offs`` are :func:`hopper_gemm.bmm`'s. A 3-D ``mat_a`` with a 2-D ``mat_b``, and what the
    kernel cannot run, go to torch's function, by the policy of :func:`hopper_gemm.fallback`.

    Raises:
        TypeError, ValueError: no torch tensors, types that differ, shapes or offsets that do not fit.
        UnsupportedError: the kernel cannot run it, where nothing falls back.

    Example:
        >>> y = hopper_gemm.grouped_mm(x, experts.mT, offs=offs)                    # doctest: +SKIP
    """
    if bias is not None:
        raise ValueError("bias must be None, as torch has none for groups either, but was given; add it to the output")
    for name, tensor in (("mat_a", mat_a), ("mat_b", mat_b)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} must be a torch tensor but is {shown(type(tensor).__name__)}; give one")
    if offs is None and mat_a.dim() == mat_b.dim() == 3:
        return by_operator(Call(mat_a, mat_b, out_dtype=out_dtype, kind="bmm"))
    if not isinstance(offs, torch.Tensor):
        raise TypeError(f"offs must be an int32 tensor for a 2-D operand but is {shown(offs)}; give each group's end")
    if (why := _unsupported(mat_a, mat_b)) is not None:
        if POLICY.fallback == "never" or MODE.batch_invariant:
            raise UnsupportedError(why)
        return torch.nn.functional.grouped_mm(mat_a, mat_b, offs=offs, out_dtype=out_dtype)
    call = Call(mat_a, mat_b, kind="mm")
    if not torch.compiler.is_compiling() and mat_a.is_cuda and not (watched(call) or needs_gradient(call)):
        return _on_gpu(mat_a, mat_b, offs, out_dtype)  # in half of the operator's time
    return torch.ops.hopper_gemm.grouped_mm(mat_a, mat_b, offs, out_dtype)


def _unsupported(a: torch.Tensor, b: torch.Tensor) -> str | None:
    """Why torch must run a call; None if the kernel can, or if arguments do not fit."""
    if (a.dim(), b.dim()) == (3, 2):
        return "groups must be rows of mat_a or divide k; groups of columns of mat_b are torch's"
    if a.dtype not in DTYPES and a.dtype == b.dtype:
        return f"mat_a and mat_b must be bfloat16 or float16 but are {a.dtype}; convert them with .to()"
    if traced(Call(a, b)):
        return None
    for name, tensor in (("mat_a", a), ("mat_b", b)):
        if type(tensor) not in PLAIN:
            return f"{name} must be a plain torch tensor but is a {type(tensor).__qualname__}; take its plain tensor"
        if not strided(tensor):
            return f"{name} must be a dense tensor but is {tensor.layout}; take its .to_dense()"
    try:
        checks.check_device(a.device)
    except UnsupportedError as error:
        return str(error)
    return None


# Launches ---------------------------------------------------------------------------------------


def batched(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *, invariant: bool = False) -> bool:
    """Multiply (batch, m, k) by (batch, k, n) into a contiguous output in one launch, or by torch.bmm while the kernel
    is compiled, unless the product is invariant; return False, and do nothing, where TMA does not reach a matrix in
    place."""
    (batch, m, k), n = a.shape, b.shape[-1]
    left, right = readable(a), readable(b.mT)
    if left is None or right is None or batch < 2 or batch * m >= ROWS_MOST or n % STEP or k % STEP:
        return False
    if not left and m % STEP:
        return False
    checks.check_device(a.device)
    dtype = DTYPES[a.dtype] + "_fp32" * (out.dtype != a.dtype)
    layouts = ("k" if left else "m") + ("k" if right else "n")
    with torch.cuda.device(a.get_device()):
        key = batch * m, n, k, dtype, layouts, batch, "batch", MODE.context, a.get_device(), CHANGES.count
        try:
            kernel = _kernel(*key)
        except UncompiledError as error:
            if not invariant:
                BACKGROUND.served(*error.args)
                torch.bmm(a, b, out=out, **({} if out.dtype == a.dtype else {"out_dtype": out.dtype}))
                return True
            with while_compiling("wait"):
                kernel = _kernel(*key)
        kernel(a, b.mT, out)
    return True


def readable(matrices: torch.Tensor) -> bool | None:
    """Return True if TMA reads (rows, k), or a batch of it, in place along k, False if along rows; None if neither."""
    first = matrices
    if matrices.dim() == 3:
        apart = matrices.stride(0)
        if apart <= 0 or apart * matrices.element_size() & MISALIGNED:
            return None
        first = matrices[0]
    return True if reaches(first) else False if reaches(first.mT) else None


def _along(matrices: torch.Tensor, k: bool) -> torch.Tensor:
    """(rows, k), or a batch of it, as TMA reads it along k, or else along its rows: a copy where it cannot."""
    if not k:
        return _along(matrices.mT, True).mT
    if matrices.dim() == 2 and reaches(matrices):
        return matrices
    return matrices.clone(memory_format=torch.contiguous_format)


@lru_cache(maxsize=4096)
def _kernel(
    m: int, n: int, k: int, dtype: str, layouts: str, groups: int, grouping: str, context: str, device: int, _: int
) -> Any:
    """The kernel of a problem in a context, until the tables change.

    Raises:
        UncompiledError: torch.bmm may serve the batch.
    """
    problem = GroupedProblem(m, n, k, dtype, layouts, groups=groups, grouping=grouping)
    for note in CALLED:
        note(problem, context)
    if grouping == "batch":  # torch.bmm is the same product; torch's groups have no bounds
        launches.refuse_uncompiled(problem, device)
    with launches.loading_allowed():
        return launches.kernel_for(problem, device)


# The operator -----------------------------------------------------------------------------------


def _check(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor, out_dtype: torch.dtype | None) -> None:
    """Refuse what does not fit; tensors may be fake."""
    if a.dim() != 2 or b.dim() not in (2, 3) or a.shape[1] != b.shape[-2]:
        raise MisfitError(
            f"mat_a and mat_b must be (rows, k) and (groups, k, n) or (m, k) and (k, n) but got {tuple(a.shape)} and "
            f"{tuple(b.shape)}; give one of them as .mT"
        )
    if a.dtype != b.dtype or a.dtype not in DTYPES:
        raise MixedTypesError(
            f"mat_a and mat_b must both be bfloat16 or both float16 but got {a.dtype} and {b.dtype}; use .to()"
        )
    deep = b.dim() == 2
    if offs.dim() != 1 or not (deep or offs.shape[0] == b.shape[0]) or offs.dtype != torch.int32:
        wanted = "(groups,)" if deep else f"({b.shape[0]},)"
        raise MisfitError(
            f"offs must be {wanted} torch.int32, the end of each group, but is {tuple(offs.shape)} "
            f"{offs.dtype}; give rows_of_groups.cumsum(0, dtype=torch.int32)"
        )
    if not a.device == b.device == offs.device:
        raise MisfitError(
            f"mat_a, mat_b and offs must be on one device but are on {a.device}, {b.device} and {offs.device}; "
            "move them with .to()"
        )
    if out_dtype not in (None, a.dtype, torch.float32):
        raise TypeError(f"out_dtype must be {a.dtype}, as the operands are, or torch.float32 but got {out_dtype}")
    for name, size in (("m", a.shape[0]) if deep else ("k", a.shape[1]), ("n", b.shape[-1])):
        if size % STEP:
            raise MisfitError(f"{name} must be a multiple of {STEP} in groups but got {size}; pad with zeros")


def _on_cpu(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor, out_dtype: torch.dtype | None = None) -> torch.Tensor:
    """Products in fp32, rounded once; zeros behind the last group."""
    _check(a, b, offs, out_dtype)
    out, start, deep = _output(a, b, offs, out_dtype).zero_(), 0, b.dim() == 2
    for group, end in enumerate(offs.tolist()):
        end = max(start, min(end, a.shape[1 if deep else 0]))
        if deep:
            out[group] = a[:, start:end].float() @ b[start:end].float()
        else:
            out[start:end] = a[start:end].float() @ b[group].float()
        start = end
    return out


def _output(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor, out_dtype: torch.dtype | None) -> torch.Tensor:
    shape = (a.shape[0], b.shape[-1])
    return a.new_empty((offs.shape[0], *shape) if b.dim() == 2 else shape, dtype=out_dtype)


def _on_fake(
    a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    _check(a, b, offs, out_dtype)
    return _output(a, b, offs, out_dtype)


@untraced
def _on_gpu(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor, out_dtype: torch.dtype | None = None) -> torch.Tensor:
    _check(a, b, offs, out_dtype)
    checks.check_device(a.device)
    (m, k), n, groups, deep = a.shape, b.shape[-1], offs.shape[0], b.dim() == 2
    if m >= ROWS_MOST and not deep:
        raise MisfitError(f"mat_a must have fewer than {ROWS_MOST} rows but has {m}; multiply it in parts")
    out = _output(a, b, offs, out_dtype)
    if 0 in (m, n, k, groups):
        return out.zero_()
    left, right, layouts = _along(a, not deep), b.mT, "mn" if deep else "kk"
    if deep or readable(right) is None:
        right = _along(right, not deep)
    elif not readable(right):
        layouts = "kn"
    ends = offs if offs.is_contiguous() and not offs.data_ptr() & MISALIGNED else offs.clone()
    kind, device = DTYPES[a.dtype] + "_fp32" * (out.dtype != a.dtype), a.get_device()
    with torch.cuda.device(device):
        grouping = "depth" if deep else "rows"
        kernel = _kernel(m, n, k, kind, layouts, groups, grouping, MODE.context, device, CHANGES.count)
        kernel(left, right, out, ends=ends)
    return out


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    a, b, offs, _ = inputs
    wants_a, wants_b = ctx.needs_input_grad[:2]
    ctx.save_for_backward(a if wants_b else None, b if wants_a else None, offs)
    ctx.dtype = a.dtype


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """The gradients, by the same operator: of groups of rows that of mat_b is grouped along k, and vice versa."""
    a, b, offs = ctx.saved_tensors
    multiply, gradient = torch.ops.hopper_gemm.grouped_mm, gradient.to(ctx.dtype)
    of_b = None if a is None else multiply(a.t(), gradient, offs, None)
    if gradient.dim() == 3:
        return None if b is None else multiply(b, gradient.mT, offs, None).t(), of_b, None, None
    return None if b is None else multiply(gradient, b.mT, offs, None), of_b, None, None


OPERATORS.define(
    "grouped_mm(Tensor a, Tensor b, Tensor offs, ScalarType? out_dtype=None) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
OPERATORS.impl("grouped_mm", _on_gpu, "CUDA")
OPERATORS.impl("grouped_mm", _on_cpu, "CPU")
torch.library.register_fake(f"{NAMESPACE}::grouped_mm", _on_fake, lib=OPERATORS)
torch.library.register_autograd(f"{NAMESPACE}::grouped_mm", _backward, setup_context=_save, lib=OPERATORS)
register_flop_formula(torch.ops.hopper_gemm.grouped_mm)(lambda a, b, *_, **__: 2 * a[0] * a[1] * b[-1])
