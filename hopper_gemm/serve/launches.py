"""The launch of a call: kept under the call's key, or made at its first call.

A known call has two ways. The C++ extension (``native.cpp``), where it was built, looks at the tensors, allocates the
output, launches and records a gradient without Python; a public function asks it first. Else :func:`launch` looks the
key up in a dict, and takes the launch whose guard the tensors pass. Both keep the kernel of a first call and what it
was chosen for, and check addresses at each call. What the extension cannot repeat (a workspace, padding, a config) it
leaves to Python. :func:`hopper_gemm.prebuild` and :func:`hopper_gemm.warmup` build it; a wheel brings that for its
torch.

A call that is watched (:func:`hopper_gemm.serve.call.watched`) is its operator's by either way. Operators launch below
whatever watched them, and ask no more.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch._C import _increment_version, _is_any_autocast_enabled, _is_torch_function_mode_enabled
from torch._C._dynamo.guards import TensorGuards
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from hopper_gemm.compiler.abi import NO_FINISH, NO_OBSERVER, NO_WORKSPACE
from hopper_gemm.compiler.extension import extension_of, load_extension
from hopper_gemm.compiler.loader import LoadedKernel
from hopper_gemm.compiler.padded import load_padded
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.legality import reasons
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.tuned import CHANGES
from hopper_gemm.serve import EXTENSION
from hopper_gemm.serve.background import BACKGROUND, UncompiledError
from hopper_gemm.serve.call import (
    Call,
    Maybe,
    autocast_call,
    autocast_type,
    cast,
    finish_of,
    invariant,
    keeps_product,
    make,
    needs_gradient,
    output_of,
    watched,
)
from hopper_gemm.serve.checks import DTYPES, check_apart, check_call, check_rows, recordable, refuse_foreign, strided
from hopper_gemm.serve.fallback import POLICY, torch_is_faster
from hopper_gemm.serve.kernels import CALLED, MODE, default_config, kernel_for, pick_for, refuse_uncompiled
from hopper_gemm.serve.operands import MISALIGNED, as_matrix, copied, folded, has_rows, placed, reaches, rows_of
from hopper_gemm.serve.ops import OPERATORS, Ways, arguments_of, by_operator, call_of, in_two, recording, untraced
from hopper_gemm.serve.reference import by_torch, falls_back, finished, launch_torch, repeatable

GUARD: Any = partial(TensorGuards, dynamic_dims_sizes=None, dynamic_dims_strides=None)
"""Makes the guard of tensors. It refuses one that is given twice, so that the key tells which are the same; of others
that are, each call is a first one."""

NUMBERS = float, int
"""Types of a scale whose value is no part of a launch's key."""

BIASED = Epilogue(bias=True)


class Launch(NamedTuple):
    """A launch that passed every check.

    Args:
        fits: the guard of torch.compile's graphs. It returns True of tensors with the classes, types, devices, sizes,
            strides and ``requires_grad`` of those that were checked, in the same state of the dispatcher: autocast,
            inference mode and transforms change it.
        gradient: True if some tensor requires a gradient.
        kernel: takes a (m, k), b (n, k), the output (m, n), ``before``, if it ``finishes`` bias, residual and scale,
            and ``after``; before and after are the same every time.
        device: that must be current; None on a host that has only one.
        shape, dtype: of a new output; the type None if it is that of ``a``.
        extents, misaligned: of a, b, bias, residual and a given output, as :func:`placed` gives them; ``misaligned`` is
            None if all are aligned.
        base_fits: returns True of a matrix (n, k) whose transpose in the same memory b is, as the weight of
            ``weight.t()``, which then is read itself: a new view takes longer. None where b was no such view.
    """

    fits: Callable[..., bool]
    gradient: bool
    kernel: Callable[..., None]
    before: tuple[Any, ...]
    after: tuple[Any, ...]
    finishes: bool
    device: int | None
    shape: tuple[int, ...]
    dtype: torch.dtype | None
    extents: tuple[int, ...]
    misaligned: tuple[bool, ...] | None
    base_fits: Callable[..., bool] | None


class Launches:
    """The launches of this process. Thread-safe."""

    def __init__(self) -> None:
        self.native: Any = None
        """The extension, whose functions take our arguments and return None for an unknown call; None if not built."""
        self.table: dict[Any, tuple[Launch, ...]] = {}
        """By the key of their call, those of aligned addresses first."""
        self.most, self.most_alike = 4096, 16  # keys, beyond which all are dropped, and launches of a key
        self._settings: dict[tuple[Any, ...], int] = {}
        self._ids, self._lock = itertools.count(), threading.Lock()

    def use(self, native: Any) -> None:
        """Repeat launches by the extension, or by Python alone if it is None; drop all launches."""
        self.native = native
        if native is not None:
            native.connect(MODE, POLICY, self._settings, product, torch.Tensor.__dlpack_c_exchange_api__)
        self.forget()

    def setting(self, call: Call) -> int:
        """The id of a call's settings. :meth:`forget` renews it, so that the extension misses stale launches."""
        activation = "swiglu" if call.kind == "swiglu" else call.activation
        settings = activation, MODE.context, invariant(call), POLICY.fallback  # as native.cpp reads them
        with self._lock:
            return self._settings.setdefault(settings, next(self._ids))

    def forget(self) -> None:
        """Drop all launches: the tuned tables have changed. A call in progress keeps its launch in the old table."""
        self.table = {}
        self._settings.clear()
        if self.native is not None:
            self.native.forget()

    def keep(self, table: dict[Any, tuple[Launch, ...]], key: Any, call: Call, kernel: Any) -> Launch:
        """The launch of a call by a kernel, kept for addresses that are aligned as those of the call."""
        if len(table) >= self.most:
            table.clear()
            if self.native is not None:
                self.native.forget()
        finishes, device = finish_of(call) is not None, call.a.get_device() if torch.cuda.device_count() > 1 else None
        before: tuple[Any, ...] = ()
        after: tuple[Any, ...] = ()
        if isinstance(kernel, LoadedKernel) and kernel.repeatable:
            kernel, before, after = kernel.launcher, (*kernel.order, *NO_WORKSPACE), NO_OBSERVER
            if not finishes:
                before, after = (*before, *NO_FINISH, *after), ()
        (shape, dtype), (extents, misaligned) = output_of(call), placed(*call[:3], call.residual, call.out)
        another = dtype if dtype != call.a.dtype else None
        a, residual = call.a, call.residual  # in the order of launch(); its key tells which of these are the same
        given = a, None if call.b is a else call.b, call.out, call.bias
        tensors = [tensor for tensor in given if tensor is not None]
        if residual is not None and residual is not call.out and residual is not a:
            tensors.append(residual)
        fits, gradient = GUARD(*tensors).check, any(tensor.requires_grad for tensor in tensors)
        off = misaligned if any(misaligned) else None
        turned, base, base_fits = call.b.mT, call.b._base if call.kind == "mm" else None, None
        same = (turned.shape, turned.stride(), turned.dtype, turned.is_neg())
        if base is not None and (base.shape, base.stride(), base.dtype, base.is_neg()) == same:
            base_fits = GUARD(base).check
        entry = Launch(fits, gradient, kernel, before, after, finishes, device, shape, another, extents, off, base_fits)
        others = table.get(key, ())
        table[key] = ((entry, *others) if off is None else (*others, entry))[-self.most_alike :]
        return entry

    def record(self, setting: int, call: Call, kernel: Any, out: torch.Tensor) -> None:
        """Let the extension repeat a launch that needs its matrices alone."""
        _, misaligned = placed(*call[:3], call.residual, out)
        if call.config is None and not any(misaligned) and isinstance(kernel, LoadedKernel) and kernel.repeatable:
            added = () if finish_of(call) is None else (call.bias, call.residual, call.scale)
            handle, is_product = kernel.launcher.__chandle__(), call.kind == "mm"
            self.native.record(handle, kernel.order, setting, is_product, call.a, call.b, out, *added)


def launch(call: tuple[Any, ...], below: bool = False) -> torch.Tensor:
    """The output of a call, or of its fields, since to make a :class:`Call` takes longer than to find a launch: by the
    launch that is kept for its key, else as a first call. Where a gradient is recorded, it is that of an autograd
    function or an operator; watched, an operator's, unless an operator, which watchers have seen, is what calls
    (``below``)."""
    if is_dynamo_compiling():
        return by_operator(make(call))
    a, b, bias, activation, residual, scale, out_dtype, rule, out, config, kind = call
    if not below and (forward_ad._current_level >= 0 or (_is_torch_function_mode_enabled() and config is None)):
        return by_operator(make(call))  # of all that watches, the guard does not know these two
    mode = MODE.__dict__  # of this thread; an attribute of a thread takes longer
    try:
        if type(scale) is int and scale.bit_length() > 63:
            refuse_foreign(make(call))
        key = (
            a.shape, b.shape, a is b, bias is None, residual is None, residual is out, residual is a, out is None,
            None if scale is None else type(scale) in NUMBERS, activation, out_dtype, config, kind,
            mode["context"], mode["batch_invariant"] if rule is None else rule, POLICY.fallback,
            _is_any_autocast_enabled() and autocast_type(a),
        )  # fmt: skip
        entries = LAUNCHES.table.get(key)
    except (AttributeError, TypeError, RuntimeError):  # no tensor, or sizes without a hash: symbolic or nested
        refuse_foreign(make(call))
        if watched(make(call)) or not all(map(strided, (a, b, bias, residual, out))):
            return by_operator(make(call))
        raise
    if entries is None:
        return first_call(make(call), key, below)
    tensors = (a,) if a is b else (a, b)
    if out is not None:
        tensors += (out,)
    if bias is not None:
        tensors += (bias,)
    if residual is not None and residual is not out and residual is not a:
        tensors += (residual,)
    for entry in entries:
        if entry.fits(*tensors):
            break
    else:
        return first_call(make(call), key, below)
    if entry.gradient and torch.is_grad_enabled():
        return _recorded(make(call))
    at_a, at_b = a.data_ptr(), b.data_ptr()
    bits = at_a | at_b
    if bias is not None:
        bits |= bias.data_ptr()
    if residual is not None:
        bits |= residual.data_ptr()
    if out is not None:
        begin, extents, size = out.data_ptr(), entry.extents, entry.extents[-1]
        near = at_a - size < begin < at_a + extents[0] or at_b - size < begin < at_b + extents[1]
        added = bias is not None or residual is not None
        bits |= 1 if near or (added and _near_added(begin, bias, residual, out, extents)) else begin
    if bits & MISALIGNED or entry.misaligned is not None:
        return _at_other_addresses(make(call), key, tensors, below)
    return _run(entry, call)


def _run(entry: Launch, call: tuple[Any, ...]) -> torch.Tensor:
    """Launch what passed every check, and return the output."""
    _, _, kernel, before, after, finishes, device, shape, dtype, _, _, base_fits = entry
    a, b, bias, _, residual, scale, _, _, out, _, kind = call
    if device is not None and device != torch.cuda.current_device():
        with torch.cuda.device(device):
            return _run(entry._replace(device=None), call)
    if out is None:  # a tuple of sizes takes longer
        out = a.new_empty(*shape) if dtype is None else a.new_empty(shape, dtype=dtype)
    else:
        _increment_version((out,))
    if kind == "mm":
        base = b._base
        if base is None or base_fits is None or base.data_ptr() != b.data_ptr() or not base_fits(base):
            base = b.mT
        kernel(a, base, out, *before)
    elif a.dim() == 2:
        kernel(a, b, out, *before, bias, residual, scale, *after) if finishes else kernel(a, b, out, *before)
    else:
        added = (bias, None if residual is None else folded(residual), scale) if finishes else ()
        kernel(folded(a), b, folded(out), *before, *added, *after)
    return out


def _near_added(begin: int, bias: Maybe, residual: Maybe, out: torch.Tensor, extents: tuple[int, ...]) -> bool:
    """Return True if an output that begins there may share memory with the bias or a part of the residual."""
    _, _, extent_bias, extent_residual, size = extents
    if bias is not None and -size < begin - bias.data_ptr() < extent_bias:
        return True
    if residual is None or (residual.data_ptr() == begin and residual.stride() == out.stride()):
        return False
    return -size < begin - residual.data_ptr() < extent_residual


def _at_other_addresses(call: Call, key: Any, tensors: tuple[torch.Tensor, ...], below: bool) -> torch.Tensor:
    """A known call with an ``out`` that may overlap what is read, or with tensors off multiples of 16 bytes."""
    _, misaligned = placed(*call[:3], call.residual, call.out)
    off = misaligned if any(misaligned) else None
    for entry in LAUNCHES.table.get(key, ()):
        if entry.misaligned == off and entry.fits(*tensors):
            check_apart(call)
            return _run(entry, call)
    return first_call(call, key, below)


def first_call(call: Call, key: Any, below: bool = False) -> torch.Tensor:
    """The output of a call whose launch is not kept: check everything, launch, and keep the launch unless torch copies
    something, does a part, or serves the call while its kernel is compiled."""
    table, native = LAUNCHES.table, LAUNCHES.native
    setting = None if native is None else LAUNCHES.setting(call)
    refuse_foreign(call)
    if not below and watched(call):
        return by_operator(call)
    if needs_gradient(call):
        return _recorded(call)
    if cast(call):
        return by_operator(call)
    check_call(call)
    if call.out is not None and call.out.is_inference() and not torch.is_inference_mode_enabled():
        raise RuntimeError("out must not be an inference tensor outside of inference mode; give its .clone()")
    if falls_back(call):
        product = by_torch(call)
        if repeatable(call, product):
            LAUNCHES.keep(table, key, call, launch_torch)
        return product
    read = {field: getattr(call, field) for field in ("a", "b", "bias", "residual")}
    if any(tensor is not None and tensor.is_neg() for tensor in read.values()):
        read = {field: None if tensor is None else tensor.resolve_neg() for field, tensor in read.items()}
        return launch(call._replace(**read), below)
    if call.residual is not None:
        check_rows(call.residual)
    if call.out is not None:
        check_apart(call)
        # a launch writes any rows of a product, and those that TMA reaches of what follows one
        matrix = None if call.out.is_neg() else as_matrix(call.out)
        rows = matrix is not None and has_rows(matrix) and matrix.stride(1) == 1
        if not rows or (finish_of(call) is not None and not reaches(folded(call.out))):
            return call.out.copy_(launch(call._replace(out=None, out_dtype=call.out.dtype), below))
    if call.a.numel() == 0 or call.b.numel() == 0:
        return _in_parts(call, below)
    with torch.cuda.device(call.a.get_device()), loading_allowed():
        try:
            kernel = _kernel_of(call)
        except UncompiledError as error:  # the launch of torch is not kept: a later call takes the kernel
            BACKGROUND.served(*error.args)
            return _run(LAUNCHES.keep({}, key, call, launch_torch), call)
        if kernel is None:
            return _in_parts(call, below)
        out = _run(LAUNCHES.keep(table, key, call, kernel), call)
    if setting is not None:
        LAUNCHES.record(setting, call, kernel, out)
    return out


def _kernel_of(call: Call) -> Callable[..., None] | None:
    """Return the kernel for a call whose arguments fit, loaded for the current device; None where it takes more than
    one launch. Raise an UncompiledError where torch serves the call."""
    a, b = (call.a, call.b.t()) if call.kind == "mm" else (folded(call.a), call.b)
    finish, rule = finish_of(call), invariant(call)
    rows_a, rows_b = rows_of(a), rows_of(b)
    if rows_a is None or rows_b is None:
        return None
    layouts = ("k" if rows_a.by_depth else "m") + ("k" if rows_b.by_depth else "n")
    _, dtype = output_of(call)
    kind = DTYPES[a.dtype] + ("_fp32" if dtype == torch.float32 else "")
    problem, device = GemmProblem(a.shape[0], b.shape[0], a.shape[1], kind, layouts, rule), a.get_device()
    torch_can = finish is None or (finish == BIASED and dtype == a.dtype)  # by torch.mm or torch.addmm
    may_fall_back = torch_can and call.config is None and not rule
    if may_fall_back and POLICY.fallback == "faster" and torch_is_faster(pick_for(problem, device)):
        return launch_torch
    pad_a = None if reaches(a if rows_a.by_depth else a.t()) else rows_a
    pad_b = None if reaches(b if rows_b.by_depth else b.t()) else rows_b
    if finish is None:
        for note in CALLED if call.config is None else ():
            note(problem, MODE.context)
        matrix = None if call.out is None else as_matrix(call.out)
        scattered, padded = None if matrix is None else not reaches(matrix), bool(pad_a or pad_b)
        if may_fall_back:
            refuse_uncompiled(problem, device, None, scattered, padded)
        kernel = kernel_for(problem, device, call.config, scattered=scattered)
        return load_padded(kernel, pad_a, pad_b) if padded else kernel
    bias, residual = call.bias, call.residual
    readable = bias is None or (bias.is_contiguous() and not bias.data_ptr() & MISALIGNED)
    readable = readable and (residual is None or reaches(folded(residual)))
    if pad_a or pad_b or problem.out_of_reach or not readable:
        return None
    if reasons(default_config(problem, device, finish), problem, finish):
        return None
    for note in CALLED:
        note(problem, MODE.context)
    if may_fall_back:
        refuse_uncompiled(problem, device, finish)
    return kernel_for(problem, device, None, finish)


def _in_parts(call: Call, below: bool) -> torch.Tensor:
    """The output of a call that takes more than one launch: operands are copied first, or torch does what follows the
    product. Of no elements, or sums of none, it is zeros, finished."""
    a, b, out, (_, dtype) = folded(call.a), call.b.t() if call.kind == "mm" else call.b, call.out, output_of(call)
    if call.kind != "mm":
        wide = dtype if finish_of(call) is None else torch.float32
        product = launch(Call(a, b.t(), out_dtype=wide, batch_invariant=call.batch_invariant, kind="mm"), below)
        whole = finished(product.view(*call.a.shape[:-1], b.shape[0]), call).to(dtype)
        return whole if out is None else out.copy_(whole)
    if 0 in (*a.shape, b.shape[0]):
        return a.new_zeros((a.shape[0], b.shape[0]), dtype=dtype) if out is None else out.zero_()
    left, right = a if rows_of(a) else copied(a), b if rows_of(b) else copied(b)
    return launch(call._replace(a=left, b=right.t()), below)


@contextmanager
def loading_allowed() -> Iterator[None]:
    """While a stream of this thread is captured, permit what loading a kernel needs and captures forbid by default,
    such as allocating memory; none of it is part of the graph."""
    if not torch.cuda.is_current_stream_capturing():
        yield
        return
    from cuda.bindings import driver

    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    _, before = driver.cuThreadExchangeStreamCaptureMode(relaxed)
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(before)


def _recorded(call: Call) -> torch.Tensor:
    """The output of a call of which a gradient is recorded: without an operator where nothing looks at operators."""
    if call.out is None and call.config is None:
        if keeps_product(call) and not falls_back(call):
            return in_two(call, launch)
        typed = autocast_call(call) if cast(call) else call
        if recordable(typed):
            return RECORDING[call.kind](*arguments_of(call.kind, typed), typed)
    return by_operator(call)


def product(
    a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None, batch_invariant: bool | None = None
) -> torch.Tensor:
    """:func:`launch` with the arguments of ``torch.ops.hopper_gemm.mm``."""
    return launch(Call(a, b, out_dtype=out_dtype, batch_invariant=batch_invariant, kind="mm"))


WAYS = Ways(product, lambda *given: launch(Call(*given)))

RECORDING = {name: recording(name, launch, WAYS) for name in ("mm", "linear", "swiglu")}
"""Functions with a gradient, of the arguments of the operators of these names and the call that they make."""


@untraced
def on_gpu(name: str, *given: Any, **named: Any) -> torch.Tensor | None:
    """What an operator runs on a GPU."""
    call = call_of(name, *given, **named)
    with torch.no_grad():  # autograd has been here
        result = launch(call, below=True)
    return result if call.out is None else None


LAUNCHES = Launches()
_library = extension_of(EXTENSION)
if _library is not None and hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):  # an older torch is read through Python
    LAUNCHES.use(load_extension(_library))
CHANGES.watchers.append(LAUNCHES.forget)

IMPLEMENTED: list[Any] = []
"""Handles of the operators that the extension implements."""

for _name in ("mm", "mm_out", "linear", "linear_out", "swiglu"):
    _function = partial(on_gpu, _name)
    if LAUNCHES.native is None or _name == "linear_out":
        OPERATORS.impl(_name, _function, "CUDA")
    else:
        IMPLEMENTED.append(LAUNCHES.native.implement(_name, _function, "CUDA"))
