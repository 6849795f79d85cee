"""``hopper_gemm.grouped_mm``: products of groups in one launch, and the launch of batches."""

from __future__ import annotations

from functools import lru_cache, partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch._C._functorch import is_legacy_batchedtensor

from hopper_gemm.model import hopper
from hopper_gemm.model.finish import ActivationName, Epilogue
from hopper_gemm.model.grouped import ROWS_MOST, GroupedProblem
from hopper_gemm.model.problem import shown
from hopper_gemm.model.tuned import CHANGES
from hopper_gemm.serve import checks, launches
from hopper_gemm.serve.background import BACKGROUND, UncompiledError
from hopper_gemm.serve.call import Call, Maybe, finish_of, keeps_product, needs_gradient, traced, watched
from hopper_gemm.serve.checks import DTYPES, PLAIN, MisfitError, MixedTypesError, UnsupportedError, strided
from hopper_gemm.serve.fallback import POLICY, while_compiling
from hopper_gemm.serve.kernels import CALLED, MODE
from hopper_gemm.serve.operands import MISALIGNED, reaches
from hopper_gemm.serve.ops import NAMESPACE, OPERATORS, TAGS, by_operator, implement, untraced
from hopper_gemm.serve.reference import activated, finished
from hopper_gemm.serve.scaled import aligned
from hopper_gemm.serve.transforms.gradients import by_columns, slope

STEP = hopper.TMA_ALIGN_BYTES // 2
"""n and k of groups are multiples of this: rows of 16-bit elements that TMA reaches."""


def grouped_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    *,
    offs: torch.Tensor | None = None,
    bias: Maybe = None,
    out_dtype: torch.dtype | None = None,
    activation: ActivationName | None = None,
    counts: Maybe = None,
) -> torch.Tensor:
    """Products of groups of rows in one launch, with the names and layouts of :func:`torch.nn.functional.grouped_mm`
    and with gradients: ``out[start:end] = activation(mat_a[start:end] @ mat_b[g] + bias[g])``, where group g ends at
    row ``offs[g]`` and starts where the one before it ends; all of it in fp32, rounded once. Of two 2-D operands the
    groups divide k, and each has a product of its own: ``out[g] = mat_a[:, start:end] @ mat_b[start:end]``, zero where
    the group is empty.

    Groups may be empty and end anywhere; nothing is padded, and no offset is read on the host, so that a captured graph
    follows offsets that change. A row's bits do not depend on the sizes of the groups.

    Args:
        mat_a: (rows, k), bf16 or fp16, row-major. Of groups along k (m, k), column-major.
        mat_b: (groups, k, n), same type; each matrix row-major or the transpose of a row-major one. n and k multiples
            of 8. Of groups along k (k, n), row-major; m and n multiples of 8. Operands that lie otherwise are copied.
        offs: (groups,), int32, on the same device, not falling. The last may be less than the rows; what is behind it
            is not written, in the output and in the gradient of ``mat_a``. Where offsets fall or exceed the rows, they
            are clamped: no access is out of bounds, and no row of a group is written by another.
        bias: (groups, n), same type; none for groups along k.
        out_dtype: ``torch.float32`` or the operands' type, which is the default.
        activation: as of :func:`hopper_gemm.linear`; none for groups along k.
        counts: (groups,), int32, on the same device, with a ``mat_a`` of (groups, rows, k) in place of ``offs``: of
            each group the first so many rows are multiplied. The others are neither computed nor written, in the output
            and in the gradient of ``mat_a``. Counts are clamped to 0 and the rows.

    Returns:
        (rows, n), (groups, m, n) of groups along k, or (groups, rows, n) with ``counts``, written on torch's current
        stream.

    Two 3-D operands without ``offs`` and ``counts`` are :func:`hopper_gemm.bmm`'s. A 3-D ``mat_a`` with a 2-D
    ``mat_b``, and what the kernel cannot run, go to torch's functions, by the policy of :func:`hopper_gemm.fallback`.

    Raises:
        TypeError, ValueError: no torch tensors, types that differ, shapes or offsets that do not fit.
        UnsupportedError: the kernel cannot run it, where nothing falls back.

    Example:
        >>> y = hopper_gemm.grouped_mm(x, experts.mT, offs=offs)                    # doctest: +SKIP
    """
    Epilogue(activation=activation or "")  # refuses another name
    return _multiplied(mat_a, mat_b, offs, counts, out_dtype, bias, activation)


def grouped_swiglu(
    mat_a: torch.Tensor, mat_b: torch.Tensor, *, offs: torch.Tensor | None = None, counts: Maybe = None
) -> torch.Tensor:
    """``silu(a @ gate[g]) * (a @ up[g])`` of the rows ``a`` of each group in one launch: :func:`hopper_gemm.swiglu` of
    gated experts, with gradients. Where one is recorded, the product is rounded and kept, and torch does the rest.

    Args:
        mat_a, offs, counts: as of :func:`grouped_mm`.
        mat_b: (groups, k, 2 f), the gate's f columns first, each matrix the transpose of a row-major one; f and k
            multiples of 8.

    Returns:
        (rows, f), or (groups, rows, f) with ``counts``, of the operands' type.

    Raises:
        TypeError, ValueError, UnsupportedError: as :func:`grouped_mm`.

    Example:
        >>> hidden = hopper_gemm.grouped_swiglu(x, gate_up.mT, offs=offs)           # doctest: +SKIP
    """
    return _multiplied(mat_a, mat_b, offs, counts, None, None, "swiglu")


def _multiplied(
    a: torch.Tensor, b: torch.Tensor, offs: Maybe, counts: Maybe, out_dtype: Any, bias: Maybe, activation: str | None
) -> torch.Tensor:
    """The output of a call of a public function."""
    for name, tensor in (("mat_a", a), ("mat_b", b), *((("bias", bias),) if bias is not None else ())):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} must be a torch tensor but is {shown(type(tensor).__name__)}; give one")
    batches = a.dim() == b.dim() == 3
    if offs is counts is None and batches and bias is None and not activation:
        return by_operator(Call(a, b, out_dtype=out_dtype, kind="bmm"))
    if offs is not None and (counts is not None or batches):
        raise ValueError("offs must be None for two 3-D operands but was given; give counts, or rows as (rows, k)")
    if batches:
        if a.shape[0] != b.shape[0]:
            raise MisfitError(f"mat_a and mat_b must have one number of groups but got {len(a)} and {len(b)}")
        if counts is None:
            counts = torch.full(a.shape[:1], a.shape[1], dtype=torch.int32, device=a.device)
    elif counts is not None:
        raise ValueError(f"counts must be None unless mat_a is (groups, rows, k) but it is {tuple(a.shape)}")
    ends = counts if batches else offs
    if not isinstance(ends, torch.Tensor):
        name, what = ("counts", "rows") if batches else ("offs", "end")
        raise TypeError(f"{name} must be an int32 tensor but is {shown(ends)}; give each group's {what}")
    given = Grouped(a.flatten(0, 1) if batches else a, b, ends, out_dtype, bias, activation, batches)
    if keeps_product(given.following) and _unsupported(a, b) is None:
        # the product is kept for the backward pass, as by torch: to compute it once more would take longer
        _check(given)
        product = _multiplied(a, b, offs, counts, out_dtype, bias, None)
        return finished(product, given.following._replace(bias=None))
    if (why := _unsupported(a, b)) is not None:
        if POLICY.fallback == "never" or MODE.batch_invariant:
            raise UnsupportedError(why)
        _refuse_following(given)
        check_values(ends, given.divided if a.dim() <= b.dim() else b.shape[1], given.masked)  # else columns of b
        if batches:
            product = torch.bmm(a, b).flatten(0, 1).to(out_dtype or a.dtype)
        else:
            product = torch.nn.functional.grouped_mm(a, b, offs=offs, out_dtype=out_dtype)
        out = _finished(product, given)
    else:
        call = Call(a, b, bias, kind="mm")
        if torch.compiler.is_compiling() or not a.is_cuda or watched(call) or not _plain(a, b, ends, bias):
            out = torch.ops.hopper_gemm.grouped_mm(*given)
        else:  # in half of the operator's time
            out = _Recorded.apply(*given) if needs_gradient(call) else _on_gpu(*given)
    return out.unflatten(0, a.shape[:2]) if batches else out


def _refuse_following(call: Grouped) -> None:
    """Refuse what follows a product of groups that are not rows."""
    if call.b.dim() == 2 and (call.bias is not None or call.activation):
        raise MisfitError(
            "bias and activation must be None unless groups are rows of mat_a; apply them to the products"
        )


def _finished(product: torch.Tensor, call: Grouped) -> torch.Tensor:
    """What follows a product of groups of rows, by torch, in the product's type."""
    bias = call.bias
    if bias is not None:
        rows = torch.arange(len(product), device=product.device, dtype=torch.int32)
        if call.masked:
            rows = rows // (len(rows) // len(bias))
        else:
            rows = torch.searchsorted(call.offs.cummax(0).values, rows, right=True).clamp(max=len(bias) - 1)
        bias = bias[rows]
    return finished(product, call.following._replace(bias=bias))


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


def batched(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    residual: Maybe = None,
    scale: float | None = None,
    *,
    invariant: bool = False,
) -> bool:
    """Multiply (batch, m, k) by (batch, k, n) into a contiguous output in one launch, with a residual (batch, m, n) of
    the output's type, n contiguous, and a scale; or, of a product alone that is not invariant, by torch.bmm while the
    kernel is compiled. Return False, and do nothing, where TMA does not reach a matrix in
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
        problem = batch * m, n, k, dtype, layouts, False, 0, batch, "batch"
        finish = finish_of(Call(a, b, residual=residual, scale=scale))
        added = () if finish is None else (None, residual, scale)
        key = problem, finish, MODE.context, a.get_device(), CHANGES.count
        try:
            kernel = kernel_of_groups(*key)
        except UncompiledError as error:
            if not invariant:
                BACKGROUND.served(*error.args)
                torch.bmm(a, b, out=out, **({} if out.dtype == a.dtype else {"out_dtype": out.dtype}))
                return True
            with while_compiling("wait"):
                kernel = kernel_of_groups(*key)
        kernel(a, b.mT, out, *added)
    return True


def readable(matrices: torch.Tensor) -> bool | None:
    """Return True if TMA reads (rows, k), or a batch of it, in place along k, False if along rows; None if neither."""
    if matrices.dim() == 3:
        apart = matrices.stride(0)
        if apart <= 0 or apart * matrices.element_size() & MISALIGNED:
            return None
    return True if reaches(matrices) else False if reaches(matrices.mT) else None


def along(matrices: torch.Tensor, k: bool) -> torch.Tensor:
    """(rows, k), or a batch of it, as TMA reads it along k, or else along its rows: a copy where it cannot."""
    if not k:
        return along(matrices.mT, True).mT
    if readable(matrices):
        return matrices
    return matrices.clone(memory_format=torch.contiguous_format)


@lru_cache(maxsize=4096)
def kernel_of_groups(fields: tuple[Any, ...], finish: Epilogue | None, context: str, device: int, _: int) -> Any:
    """The kernel of the fields of a problem, with a finish, in a context, until the tables change.

    Raises:
        UncompiledError: torch.bmm may serve the batch.
    """
    problem = GroupedProblem(*fields)
    for note in CALLED:
        note(problem, context)
    if problem.grouping == "batch" and finish is None:  # torch.bmm is the same product; torch's groups have no bounds
        launches.refuse_uncompiled(problem, device)
    with launches.loading_allowed():
        return launches.kernel_for(problem, device, finish=finish)


# The operator -----------------------------------------------------------------------------------


class Grouped(NamedTuple):
    """Arguments of the operator.

    Args:
        a, b, offs, bias: as of :func:`grouped_mm`.
        out_dtype: of the output; None: that of the operands.
        activation: as there, or ``"swiglu"``.
        masked: True if ``offs`` are counts, and groups have as many rows of ``a`` each, or as much of k.
    """

    a: torch.Tensor
    b: torch.Tensor
    offs: torch.Tensor
    out_dtype: torch.dtype | None = None
    bias: Maybe = None
    activation: str | None = None
    masked: bool = False

    @property
    def grouping(self) -> str:
        """Of the problem."""
        return ("masked_depth", "depth", "masked", "rows")[2 * (not self.deep) + (not self.masked)]

    def spans(self) -> list[tuple[int, int]]:
        """Where each group begins and ends, by offsets on the host."""
        size, ends = self.divided, self.offs.tolist()
        if self.masked:
            most = size // len(ends)
            return [(at * most, at * most + max(0, min(count, most))) for at, count in enumerate(ends)]
        return list(pairwise(accumulate((min(end, size) for end in ends), max, initial=0)))

    @property
    def deep(self) -> bool:
        """True if groups divide k."""
        return self.b.dim() == 2

    @property
    def divided(self) -> int:
        """Rows, or k, of all groups."""
        return self.a.shape[1 if self.deep else 0]

    @property
    def following(self) -> Call:
        """A call with what follows the product."""
        kind = "swiglu" if self.activation == "swiglu" else "linear"
        return Call(self.a, self.b, self.bias, self.activation, kind=kind)

    def output(self) -> torch.Tensor:
        """A new output."""
        rows, n = self.a.shape[0], self.b.shape[-1] // (2 if self.activation == "swiglu" else 1)
        return self.a.new_empty((self.offs.shape[0], rows, n) if self.deep else (rows, n), dtype=self.out_dtype)


def check_ends(offs: torch.Tensor, groups: int | None, device: torch.device, masked: bool = False) -> None:
    """Refuse offsets, or counts, that do not fit so many groups; of any number if it is None."""
    if offs.dim() != 1 or offs.shape[0] != (offs.shape[0] if groups is None else groups) or offs.dtype != torch.int32:
        wanted = "(groups,)" if groups is None else f"({groups},)"
        name, what, made = ("counts", "rows", "int()") if masked else ("offs", "end", "cumsum(0, dtype=torch.int32)")
        raise MisfitError(
            f"{name} must be {wanted} torch.int32, the {what} of each group, but is {tuple(offs.shape)} {offs.dtype}; "
            f"give rows_of_groups.{made}"
        )
    if offs.device != device:
        raise MisfitError(f"groups must end on the operands' device, {device}, but end on {offs.device}; use .to()")


def _check(call: Grouped) -> None:
    """Refuse what does not fit; tensors may be fake."""
    a, b, offs, out_dtype, bias, activation, masked = call
    if a.dim() != 2 or b.dim() not in (2, 3) or a.shape[1] != b.shape[-2]:
        raise MisfitError(
            f"mat_a and mat_b must be (rows, k) and (groups, k, n) or (m, k) and (k, n) but got {tuple(a.shape)} and "
            f"{tuple(b.shape)}; give one of them as .mT"
        )
    if a.dtype != b.dtype or a.dtype not in DTYPES:
        raise MixedTypesError(
            f"mat_a and mat_b must both be bfloat16 or both float16 but got {a.dtype} and {b.dtype}; use .to()"
        )
    deep = call.deep
    check_ends(offs, None if deep else b.shape[0], a.device, masked)
    if masked and call.divided % max(1, offs.shape[0]):
        raise MisfitError(
            f"masked groups must be of one size but {offs.shape[0]} do not divide {call.divided}; pad them"
        )
    if a.device != b.device:
        raise MisfitError(f"mat_a and mat_b must be on one device but are on {a.device} and {b.device}; use .to()")
    if out_dtype not in (None, a.dtype, torch.float32):
        raise TypeError(f"out_dtype must be {a.dtype}, as the operands are, or torch.float32 but got {out_dtype}")
    for name, size in (("m", a.shape[0]) if deep else ("k", a.shape[1]), ("n", b.shape[-1])):
        if size % STEP:
            raise MisfitError(f"{name} must be a multiple of {STEP} in groups but got {size}; pad with zeros")
    if activation == "swiglu" and b.shape[-1] % (2 * STEP):
        raise MisfitError(
            f"n must be gate and up of a multiple of {STEP} columns but got {b.shape[-1]}; pad with zeros"
        )
    _refuse_following(call)
    wanted = (*b.shape[::2], a.dtype, a.device)
    if bias is not None and (*bias.shape, bias.dtype, bias.device) != wanted:
        raise MisfitError(checks.misfit("bias", bias, tuple(b.shape[::2]), a.device, a.dtype))


def check_values(offs: torch.Tensor, size: int, masked: bool = False) -> None:
    """Refuse offsets that fall or exceed a size, and counts that exceed their group, where that is checked."""
    if not MODE.checked_offsets or (offs.is_cuda and torch.cuda.is_current_stream_capturing()):
        return
    name, least, most = ("counts", 0, size // max(1, len(offs))) if masked else ("offs", 0, size)
    for at, end in enumerate(offs.tolist()):
        if not least <= end <= most:
            rule = "be of its group" if masked else "neither fall nor exceed all"
            raise MisfitError(f"{name}[{at}] must be {least} to {most} but is {end}; {name} must {rule}")
        least = least if masked else end


def _on_cpu(*given: Any, **named: Any) -> torch.Tensor:
    """Products in fp32, finished, rounded once; zeros behind the last group."""
    call = Grouped(*given, **named)
    _check(call)
    check_values(call.offs, call.divided, call.masked)
    (a, b, *_), out = call, call.output().zero_()
    for group, (start, end) in enumerate(call.spans()):
        if call.deep:
            out[group] = a[:, start:end].float() @ b[start:end].float()
        else:
            added = None if call.bias is None else call.bias[group]
            out[start:end] = finished(a[start:end].float() @ b[group].float(), call.following._replace(bias=added))
    return out


def _on_fake(*given: Any, **named: Any) -> torch.Tensor:
    call = Grouped(*given, **named)
    _check(call)
    return call.output()


@untraced
def _on_gpu(*given: Any, **named: Any) -> torch.Tensor:
    call = Grouped(*given, **named)
    _check(call)
    a, b, offs, _, bias, activation, _ = call
    check_values(offs, call.divided, call.masked)
    checks.check_device(a.device)
    (m, k), n, groups, deep = a.shape, b.shape[-1], offs.shape[0], call.deep
    if m >= ROWS_MOST and not deep:
        raise MisfitError(f"mat_a must have fewer than {ROWS_MOST} rows but has {m}; multiply it in parts")
    out = call.output()
    if 0 in (m, n, groups) or (k == 0 and bias is None):
        return out.zero_()
    if k == 0:
        return out.copy_(_finished(out.new_zeros(m, n), call))
    left, right, layouts = along(a, not deep), b.mT, "mn" if deep else "kk"
    if deep or readable(right) is None or (activation == "swiglu" and not readable(right)):
        right = along(right, not deep)
    elif not readable(right):
        layouts = "kn"
    ends = aligned(offs)
    kind, device = DTYPES[a.dtype] + "_fp32" * (out.dtype != a.dtype), a.get_device()
    finish = None if bias is None and not activation else finish_of(call.following)
    added = () if finish is None else (None if bias is None else aligned(bias), None, None)
    with torch.cuda.device(device):
        problem = m, n, k, kind, layouts, False, 0, groups, call.grouping
        kernel = kernel_of_groups(problem, finish, MODE.context, device, CHANGES.count)
        kernel(left, right, out, *added, ends=ends)
    return out


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    a, b, offs, _, bias, activation, masked = inputs
    wants_a, wants_b = ctx.needs_input_grad[:2]
    again = bool(activation)  # what is before an activation is computed once more
    ctx.save_for_backward(a if wants_b or again else None, b if wants_a or again else None, offs, bias)
    ctx.dtype, ctx.activation, ctx.masked = a.dtype, activation, masked
    ctx.by_columns = b.dim() == 3 and by_columns(b)


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[Maybe, ...]:
    """The gradients, by the same operator: of groups of rows that of mat_b is grouped along k, and vice versa; that of
    the bias is the product of ones, grouped along k, so that it is summed in fp32. The gradient of mat_b lies as mat_b
    does, so that experts' weights need no copy."""
    a, b, offs, bias = ctx.saved_tensors
    to_a, to_b = ctx.needs_input_grad[:2]
    direct = (
        gradient.is_cuda and _plain(gradient) and not (torch.is_grad_enabled() or watched(Call(gradient, gradient)))
    )
    operator = _on_gpu if direct else torch.ops.hopper_gemm.grouped_mm  # which takes twice as long
    multiply, of_bias = partial(operator, masked=ctx.masked), None
    if ctx.activation == "swiglu":
        (gate, up), incoming = multiply(a, b, offs, torch.float32).chunk(2, -1), gradient.float()
        gradient = torch.cat((slope(incoming * up, gate, "silu"), incoming * activated(gate, "silu")), -1)
    elif ctx.activation:
        gradient = slope(gradient.float(), multiply(a, b, offs, torch.float32, bias), ctx.activation)
    gradient, deep = gradient.to(ctx.dtype), gradient.dim() == 3
    of_a = None if not to_a else multiply(b, gradient.mT, offs).t() if deep else multiply(gradient, b.mT, offs)
    of_b = None
    if to_b:
        of_b = multiply(gradient.t(), a, offs).mT if ctx.by_columns else multiply(a.t(), gradient, offs)
    if bias is not None and ctx.needs_input_grad[4]:
        ones = gradient.new_ones(gradient.shape[0], STEP)
        of_bias = multiply(ones.t(), gradient, offs, torch.float32)[:, 0].to(ctx.dtype)
    return of_a, of_b, None, None, of_bias, None, None


def _plain(*tensors: Maybe) -> bool:
    """Return True if no tensor is of a subclass, such as one that waits for a collective, or batched by the vmap of
    ``torch.autograd.grad(is_grads_batched=True)``, which :func:`watched` does not see."""
    given = [tensor for tensor in tensors if tensor is not None]
    return all(type(tensor) in PLAIN and not is_legacy_batchedtensor(tensor) for tensor in given)


class _Recorded(torch.autograd.Function):
    """The operator on a GPU with a gradient, where nothing looks at operators: the dispatcher and what torch.library
    does in Python take longer than the launch, and few tokens' experts are as fast as the host."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> torch.Tensor:
        """Launch, and keep what the gradients need."""
        _save(ctx, given, given[0])
        return _on_gpu(*given)

    backward = staticmethod(_backward)


ARGUMENTS = (
    "Tensor a, Tensor b, Tensor offs, ScalarType? out_dtype=None, Tensor? bias=None, str? activation=None, "
    "bool masked=False"
)
OPERATORS.define(f"grouped_mm({ARGUMENTS}) -> Tensor", tags=TAGS)
implement("grouped_mm", _on_fake, CUDA=_on_gpu, CPU=_on_cpu)
torch.library.register_autograd(f"{NAMESPACE}::grouped_mm", _backward, setup_context=_save, lib=OPERATORS)
