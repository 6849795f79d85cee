"""``hopper_gemm.prebuild``: compile ahead what :func:`hopper_gemm.matmul` will run, on all cores, and once for a torch
the extension that repeats known launches (``serve/native.cpp``). It needs no GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hopper_gemm.compiler.extension import extension_of
from hopper_gemm.compiler.pool import CompilePool
from hopper_gemm.compiler.store import AnyId, KernelId, KernelStore, PaddingId, default_store, shipped
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.grouped import GroupedProblem
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.lookup import SISTERS, Table, find, served, tables
from hopper_gemm.model.menu import suited
from hopper_gemm.model.problem import BLOCK, LAYOUTS, GemmProblem, listed, shown
from hopper_gemm.model.recipe import ScaledProblem, finish_of, with_scales
from hopper_gemm.model.roofline import SXM, Chip
from hopper_gemm.model.tuned import CONTEXTS, slug
from hopper_gemm.serve import EXTENSION

EPILOGUES = (
    *(Epilogue(bias=True, activation=activation) for activation in ("", "gelu", "gelu_tanh")),
    *(Epilogue(bias=bias, residual=True) for bias in (False, True)),
    Epilogue(activation="silu", gated=True),
)
"""Epilogues that most models need."""

MenuPart = tuple[str, str] | tuple[str, str, Epilogue] | GemmProblem
"""Element types and layouts, maybe with a finish; or a problem of FP8 or of groups, whose sizes do not matter."""

RECIPES = (("tensor", 0), ("row", 0), ("row", BLOCK), ("blocks", BLOCK))
"""Scales of FP8, and the elements of k between promotions."""

WHOLE_MENU: tuple[MenuPart, ...] = (
    *((dtype, layouts) for dtype in ("bf16", "fp16") for layouts in LAYOUTS),
    *((dtype, "kk", finish) for dtype in ("bf16", "fp16") for finish in EPILOGUES),
    *(ScaledProblem(16, 16, BLOCK, "e4m3_bf16", promote=promote, scales=scales) for scales, promote in RECIPES),
    GroupedProblem(8, 8, 8),
)
"""Parts of the menu that most models call: products of bf16 and fp16 in all layouts, and layers, along k, with a
finish; products of FP8; groups of rows of bf16."""


@dataclass(frozen=True)
class Prebuilt:
    """Numbers of kernels that serve problems, or of the menu, and of those compiled now; why others could not be, by
    config; and whether the extension of torch is there, without which calls take longer on the host."""

    kernels: int
    compiled: int
    failed: dict[str, str] = field(default_factory=dict)
    extension: bool = False


def prebuild(
    problems: Iterable[GemmProblem | tuple[int, int, int] | tuple[GemmProblem, Epilogue]] = (),
    *,
    menu: Iterable[MenuPart] = (),
    context: str = "isolated",
    gpu: str | None = None,
    chip: Chip = SXM,
    store: Path | None = None,
    workers: int | None = None,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> Prebuilt:
    """Compile the kernels that ``matmul`` runs on problems, unless the store holds them; or the whole menu, from which
    it picks for every untuned problem, and what tuned tables serve of its kinds. Without arguments only the extension
    of torch is compiled, in some twenty seconds by a C++ compiler, for processes that start afterwards.

    A first call on one of the problems then loads its kernel instead of compiling it for a second or more. Processes
    compile; they do not run the caller's script again, which needs no ``if __name__ == "__main__":``.

    Args:
        problems: :class:`hopper_gemm.GemmProblem`, or (m, n, k) of bf16 operands, both contiguous along k; with a
            finish as a pair: ``hopper_gemm.Epilogue(bias=True, activation="gelu")`` for such a ``linear``,
            ``hopper_gemm.Epilogue(activation="silu", gated=True)`` for ``swiglu``, whose n is that of ``w_gate_up``.
        menu: element types and layouts, such as ("bf16", "kk"), of which every kernel of the menu is compiled, 344 at
            most, and those of tuned tables; with a finish as a third element those that serve it, for gated layers with
            some of their own; or a problem of FP8 or of groups, whose sizes do not matter, for all of its kind.
            :data:`WHOLE_MENU` of this module has all that ``hopper-gemm prebuild --menu`` compiles.
        context: ``"isolated"``, or ``"chained"`` for calls within :func:`hopper_gemm.chained`.
        gpu: ``"h100"``, ``"h200"`` or the GPU here, whose tuned tables serve; by default the recorded tables of any.
        chip: SMs and L2 of that GPU; by default those of an H200 or H100 SXM.
        store: folder of compiled kernels, and nothing but kernels; by default the one that ``matmul`` uses.
        workers: processes at most; by default one fewer than the cores.
        watch: called after each kernel with the number that are done, and the number of all.

    Raises:
        ValueError: sizes that are no problem, another context or GPU, no element type or layouts, FP8 without scales.
        RuntimeError: none of the kernels could be compiled; the message has the first reason.
        OSError: the store cannot be written; the message gives the fix.

    Example:
        >>> hopper_gemm.prebuild([(tokens, 4096, 4096) for tokens in (1, 16, 256)])     # doctest: +SKIP
        Prebuilt(kernels=3, compiled=3, failed={}, extension=True)
        >>> hopper_gemm.prebuild(menu=[("bf16", "kk"), ("bf16", "kn")])                 # doctest: +SKIP
    """
    if not isinstance(context, str) or context not in CONTEXTS:
        raise ValueError(f"context must be one of {', '.join(CONTEXTS)} but got {shown(context)}")
    classes: tuple[Any, ...] = str | None, Chip, os.PathLike | None, int | None, Callable
    optional = {"gpu": gpu, "chip": chip, "store": store, "workers": workers, "watch": watch}
    for (name, value), kind in zip(optional.items(), classes, strict=True):
        if not isinstance(value, kind) or isinstance(value, bool):
            kind = getattr(kind, "__name__", kind)
            raise TypeError(f"{name} must be a {kind} but is {shown(value)}; leave it out for the default")
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be 1 or more but got {workers}")
    menu = listed("menu", menu, "(element type, layouts)")
    for types in [part for part in menu if not isinstance(part, GemmProblem)]:
        size = len(types) if isinstance(types, tuple | list) else 0
        if size != 2 and not (size == 3 and isinstance(types[2], Epilogue)):
            raise TypeError(f"menu must have pairs such as ('bf16', 'kk') but has {shown(types)}; give both")
    hopper = None if gpu is None else slug(gpu)
    if hopper not in (None, *SISTERS):
        from hopper_gemm.serve.kernels import kind_of  # imports torch

        if hopper != kind_of(0):
            raise ValueError(f"gpu must be {' or '.join(SISTERS)}, or the GPU here, but got {shown(gpu)}; leave it out")
    among = tables(hopper)
    pairs: dict[tuple[GemmProblem, Epilogue | None], None] = {}
    for given in listed("problems", problems, "problems"):
        with_finish = isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Epilogue | None)
        problem, finish = given if with_finish else (given, None)
        pairs[GemmProblem.of(problem), finish] = None
    for problem, finish in (*pairs, *map(example_of, menu)):
        if problem.is_fp8 and not (finish or finish_of(problem) or Epilogue()).scales:
            raise ValueError(f"prebuild needs the scales of {problem.dtype}; give hopper_gemm.Epilogue(scales='row')")
    wanted: list[AnyId] = [
        KernelId.of(find(among, problem, context=context, chip=chip, finish=finish).config, problem, finish=finish)
        for problem, finish in pairs
    ]
    wanted += [PaddingId() for problem, _ in pairs if problem.padded]
    return build(list(dict.fromkeys([*wanted, *menu_kernels(menu, among)])), store, workers, watch)


def menu_kernels(parts: Iterable[MenuPart], among: Sequence[Table] | None = None) -> list[KernelId]:
    """Return the kernels of parts of the menu, each once, and those that serve such products from tuned tables, by
    default from the recorded ones of any GPU."""
    among = tables(None) if among is None else among
    kernels: dict[KernelId, None] = {}
    for like, finish in map(example_of, parts):
        kernels |= dict.fromkeys(KernelId.of(config, like, finish=finish) for config in suited(like, finish))
        kernels |= dict.fromkeys(_tuned(like, finish, among))
    return list(kernels)


def _tuned(like: GemmProblem, finish: Epilogue | None, among: Iterable[Table]) -> list[KernelId]:
    """The kernels of tuned entries for problems of a kind, isolated and chained; an entry of bf16 serves fp16 too."""
    kind, types = _kind(with_scales(like, finish)), {like.dtype, like.dtype.replace("fp16", "bf16")}
    entries = [entry for table in among for entry in table.serving if entry.problem.dtype in types]
    problems = [(entry, replace(entry.problem, dtype=like.dtype)) for entry in entries if _kind(entry.problem) == kind]
    return [
        KernelId.of(served(entry, problem, entry.regime, context).config, problem, finish=finish)
        for entry, problem in problems
        if is_legal(entry.config, problem, finish)
        for context in CONTEXTS
    ]


def _kind(problem: GemmProblem) -> tuple[object, ...]:
    """Return the properties of a problem that machine code depends on, apart from sizes and element types."""
    of_some = (getattr(problem, name, "") for name in ("scales", "grouping"))
    return type(problem), problem.layouts, problem.batch_invariant, problem.promote, *of_some


def example_of(part: MenuPart) -> tuple[GemmProblem, Epilogue | None]:
    """Return a problem of a part's kind, and its finish."""
    if isinstance(part, GemmProblem):
        return part, None
    dtype, layouts, *finish = part
    return GemmProblem(8, 8, 8, dtype, layouts), next(iter(finish), None)


def build(
    kernels: Sequence[AnyId],
    store: Path | None = None,
    workers: int | None = None,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> Prebuilt:
    """Compile kernels, each given once, into a store; arguments, errors and the extension as for :func:`prebuild`."""
    folder, extension = store or default_store(), store is None and extension_of(EXTENSION, build=True) is not None
    compiled = KernelStore(folder)
    missing = [kernel for kernel in kernels if compiled.report(kernel) is None and (store or shipped(kernel) is None)]
    if not missing:
        return Prebuilt(len(kernels), 0, extension=extension)
    compiled.prepare()
    failed: dict[str, str] = {}
    pool = CompilePool(folder, min(len(missing), workers or max(1, len(os.sched_getaffinity(0)) - 1)))
    try:
        pool.submit(missing)
        for done, kernel in enumerate(missing, 1):
            built = pool.result(kernel)
            if built.status not in ("ok", "spilled"):  # calls load what spills too
                name = str(kernel.config if isinstance(kernel, KernelId) else kernel)
                failed[name] = f"{built.status.replace('_', ' ')}: {built.reason}"
            watch(done, len(missing))
    finally:
        pool.close()
    if len(failed) == len(kernels):
        reason = next(iter(failed.values()))
        raise RuntimeError(f"none of {len(kernels)} kernels could be compiled; the first: {reason}")
    return Prebuilt(len(kernels), len(missing) - len(failed), failed, extension)
