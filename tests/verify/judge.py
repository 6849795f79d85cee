"""Everything that is checked of one config on one problem."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hopper_gemm.compiler.child import Handler
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.grouped import GroupedProblem
from hopper_gemm.model.hopper import TMA_ALIGN_BYTES
from hopper_gemm.model.problem import GemmProblem, types_of
from hopper_gemm.serve.call import Call
from hopper_gemm.serve.reference import activated, finished
from hopper_gemm.tune.measure import scaling
from hopper_gemm.tune.measure.correctness import check, same_bits
from hopper_gemm.tune.measure.workload import TYPES, filled
from tests.verify import groups
from tests.verify.drawing import Pair
from tests.verify.groups import flat
from tests.verify.rows import Finding

if TYPE_CHECKING:
    from hopper_gemm.compiler.loader import LoadedKernel

Launch = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
"""``launch(a, b, out)``: a is (m, k), b is (n, k), out is (m, n); out = a @ b.T."""

Replay = Callable[[Callable[[], None]], Callable[[], None]]
"""Captures what a function launches; what it returns runs it again."""

RUNS = 3
GUARD_ROWS, GUARD = 3, -77.0
"""Rows above and below a matrix, and what stands around an output."""

SPECIALS = (float("inf"), float("-inf"), float("nan"), 0.0)
HUGE = {torch.bfloat16: 2.0**120, torch.float16: 60000.0}
"""Values whose product with an ordinary one is finite in fp32, and with each other not, or not in the output's type."""

SUBNORMAL = {torch.bfloat16: 2.0**-130, torch.float16: 2.0**-15}
NEAR = 0.02
"""Share of the greatest finite value within which rounding may decide whether a sum is infinite."""


@dataclass(frozen=True)
class GuardedMatrix:
    """A matrix with rows of memory above and below it, and 16 bytes or more on either side.

    Args:
        whole: all of it, (rows, columns), contiguous.
        matrix: the middle, or its transpose.
    """

    whole: torch.Tensor
    matrix: torch.Tensor

    @staticmethod
    def of(matrix: torch.Tensor, by_rows: bool = False, fill: float = float("nan")) -> GuardedMatrix:
        """A copy of a matrix inside memory that holds a number.

        Args:
            matrix: (rows, depth).
            by_rows: whether rows are contiguous, and not depth.
            fill: what stands around it.
        """
        inner = matrix.t() if by_rows else matrix
        (rows, columns), side = inner.shape, TMA_ALIGN_BYTES // matrix.element_size()
        pitch = (-(-columns // side) + 2) * side
        whole = torch.full((rows + 2 * GUARD_ROWS, pitch), fill, dtype=matrix.dtype, device=matrix.device)
        middle = whole[GUARD_ROWS : GUARD_ROWS + rows, side : side + columns]
        middle.copy_(inner)
        return GuardedMatrix(whole, middle.t() if by_rows else middle)

    def strays(self, fill: float) -> int:
        """Elements around the matrix that no longer hold a number, bit by bit."""
        (rows, columns), side = self.matrix.shape, TMA_ALIGN_BYTES // self.matrix.element_size()
        around = self.whole.clone()
        around[GUARD_ROWS : GUARD_ROWS + rows, side : side + columns] = fill
        return int((around != fill).sum())


def check_pair(launch: Launch, pair: Pair, device: str, runs: int = RUNS, replay: Replay | None = None) -> Finding:
    """Check a launcher on a problem.

    On ordinary numbers: every element against fp32, none left unwritten; nothing written outside the output or into the
    operands, which lie among NaNs; the same bits in several runs, over outputs that held other things, and when a graph
    is replayed. Without a finish on special values: infinities and NaNs where torch has them, nothing lost of zeros and
    subnormals.

    Args:
        launch: what runs the config.
        pair: the problem, and the seed of its matrices.
        device: of the matrices.
        runs: launches on ordinary data that must give the same bits.
        replay: how to capture a graph, or None.
    """
    problem = flat(pair.problem) if isinstance(pair.problem, GroupedProblem) else pair.problem
    a, b = ordinary(problem, pair.seed, device)
    if pair.finish is not None and not problem.is_fp8:
        b = b * problem.k**-0.5  # where activations bend
    reason, first = _check_guarded(launch, problem, a, b, finished_product(pair, a, b))
    if reason:
        return Finding(reason)
    again = torch.empty_like(first)
    for run in range(1, runs):
        launch(a, b, again.fill_((0.0, float("inf"), float("nan"))[run % 3]))
        if not same_bits(first, again):
            return Finding(f"run {run + 1} gave other bits than the first")
    if replay is not None:
        replayed = replay(lambda: launch(a, b, again))
        for number in range(2):
            again.fill_(float("nan"))
            replayed()
            if not same_bits(first, again):
                return Finding(f"replay {number + 1} of a graph gave other bits than the first run")
    if pair.finish is not None:
        return Finding("", digest(first))
    reason = _check_special(launch, pair, a.clone(), b.clone(), again)
    return Finding(reason, "" if reason else digest(first))


def _check_guarded(
    launch: Launch, problem: GemmProblem, a: torch.Tensor, b: torch.Tensor, expected: torch.Tensor
) -> tuple[str, torch.Tensor]:
    """Mistakes of one launch between guards, and its output."""
    given = [GuardedMatrix.of(one, axis != "k") for one, axis in zip((a, b), problem.layouts, strict=True)]
    before = [one.whole.clone() for one in given]
    nan = torch.full(expected.shape, float("nan"), dtype=TYPES[types_of(problem.dtype)[1]], device=a.device)
    out = GuardedMatrix.of(nan, fill=GUARD)
    launch(given[0].matrix, given[1].matrix, out.matrix)
    reason, strays = _mistake(out.matrix, expected, problem), out.strays(GUARD)
    written = [name for name, one, was in zip("AB", given, before, strict=True) if not same_bits(one.whole, was)]
    if strays:
        reason = f"{strays} elements outside the output were written"
    elif written:
        reason = f"operand {' and '.join(written)} was written"
    return reason, out.matrix.contiguous()


def _mistake(out: torch.Tensor, expected: torch.Tensor, problem: GemmProblem) -> str:
    """What is wrong with an output; empty where nothing is."""
    return check(out, expected, problem.k, problem.promote if problem.is_fp8 else None).reason or ""


def ordinary(problem: GemmProblem, seed: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Standard-normal operands (m, k) and (n, k), contiguous as the layouts say."""
    generator, dtype = torch.Generator(device).manual_seed(seed), (TYPES | scaling.TYPES)[types_of(problem.dtype)[0]]
    sizes = zip((problem.m, problem.n), problem.layouts, strict=True)
    made = [
        filled(rows, problem.k, "normal", generator).to(dtype)
        if axis == "k"
        else filled(problem.k, rows, "normal", generator).to(dtype).t()
        for rows, axis in sizes
    ]
    return made[0], made[1]


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b.T in fp32."""
    return a.float() @ b.float().t()


def added(pair: Pair, device: str) -> Call:
    """What a pair's finish adds, drawn by its seed; of the call's other arguments the activation."""
    finish, problem = pair.finish or Epilogue(), pair.problem
    if isinstance(problem, GroupedProblem):
        problem = flat(problem)
    generator = torch.Generator(device).manual_seed(pair.seed + 1)
    operand, result = types_of(problem.dtype)
    out = TYPES[result]
    own = TYPES.get(operand, torch.float16 if out == torch.float16 else torch.bfloat16)
    bias = filled(1, problem.n, "normal", generator)[0].to(own) if finish.bias else None
    residual = filled(problem.m, pair.problem.n, "normal", generator).to(out) if finish.residual else None
    nothing = torch.empty(0, device=device)
    return Call(nothing, nothing, bias, finish.activation, residual, 0.75 if finish.scale else None)


def scales_of(pair: Pair, device: str) -> scaling.Scales:
    """The scales of a pair of FP8, by which the product comes to where activations bend."""
    assert pair.finish is not None
    generator = torch.Generator(device).manual_seed(pair.seed + 2)
    kind, problem = pair.finish.scales, pair.problem
    of_groups = isinstance(problem, GroupedProblem)
    draw: Any = groups.drawn_scales if of_groups else scaling.drawn_scales
    first, second = draw(problem, kind, generator)
    return first.mul_(pair.problem.k**-0.5), second


def finished_product(pair: Pair, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """What a pair's kernel must compute, in fp32."""
    if isinstance(pair.problem, GroupedProblem):
        device = a.device.type
        scales = scales_of(pair, device) if pair.problem.is_fp8 else None
        return groups.product_of(pair, a, b, added(pair, device), scales)
    if pair.finish is not None and pair.finish.gated:
        gate, up = product(a, b).chunk(2, -1)
        return activated(gate, pair.finish.activation) * up
    if pair.finish is not None and pair.finish.scales:
        a, b = scaling.dequantised(a, b, scales_of(pair, a.device.type), pair.finish.scales)
    return finished(product(a, b), added(pair, a.device.type))


def finishing(kernel: LoadedKernel, pair: Pair, device: str) -> Launch:
    """The launch of a pair's kernel with what its finish adds."""
    call = added(pair, device)
    if isinstance(pair.problem, GroupedProblem):
        scales = scales_of(pair, device) if pair.problem.is_fp8 else None
        return groups.launching(kernel, pair, call, scales, device)
    if pair.finish is None:
        return kernel
    if pair.finish.scales:
        scales = scaling.for_kernel(scales_of(pair, device), pair.finish.scales)
        return lambda a, b, out: kernel(a, b, out, call.bias, None, None, scales=scales)
    return lambda a, b, out: kernel(a, b, out, call.bias, call.residual, call.scale)


def digest(matrix: torch.Tensor) -> str:
    """A name for the bits of a contiguous matrix."""
    return hashlib.sha256(matrix.view(torch.uint8).cpu().numpy().tobytes()).hexdigest()[:16]


# Special values ----------------------------------------------------------------------------------


def _check_special(launch: Launch, pair: Pair, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> str:
    """Mistakes where a few rows of A and B hold one special value each, or are zero, or subnormal.

    One value in a row: then what comes out does not depend on the order of the sum. Subnormal numbers that are taken
    for zero show where they meet an infinity.
    """
    plant(a, pair.seed, (*SPECIALS, HUGE[a.dtype], -HUGE[a.dtype]), whole_rows=True)
    plant(b, pair.seed + 1, (*SPECIALS, -HUGE[b.dtype], HUGE[b.dtype]))
    launch(a, b, out.fill_(1.0))
    expected = finished_product(pair, a, b)
    wanted, most = expected.to(out.dtype), torch.finfo(out.dtype).max
    sure = ~((expected.abs() > (1 - NEAR) * most) & (expected.abs() < (1 + NEAR) * most))
    for name, test in (("NaN", torch.isnan), ("+inf", torch.isposinf), ("-inf", torch.isneginf)):
        differ = (test(out) != test(wanted)) & sure
        if differ.any():
            i, j = (int(at) for at in differ.nonzero()[0])
            have = f"element ({i}, {j}) is {float(out[i, j])} and torch's {float(wanted[i, j])}"
            return f"{int(differ.sum())} elements are {name} in one of both: {have}"
    finite = torch.isfinite(out) & torch.isfinite(expected)
    sizes = [one.float().abs().nan_to_num(0.0, 0.0).amax(1) for one in (a, b)]
    both = groups.outer(pair, *sizes) if isinstance(pair.problem, GroupedProblem) else sizes[0][:, None] * sizes[1]
    allowed = 0.01 * expected.abs() + 1e-3 * pair.problem.k**0.5 + both * 2.0**-16
    wrong = finite & ((out.float() - expected).abs() > allowed)
    if wrong.any():
        return f"{int(wrong.sum())} elements beside special values are wrong"
    return ""


def plant(matrix: torch.Tensor, seed: int, values: tuple[float, ...], whole_rows: bool = False) -> None:
    """Put special values into rows of a matrix, one each; where asked, also make a row zero and one subnormal."""
    rng, (rows, depth) = random.Random(seed), matrix.shape
    chosen = rng.sample(range(rows), min(rows, len(values) + 2 * whole_rows))
    if rows > len(chosen):
        chosen[0] = rows - 1 if rows - 1 not in chosen else chosen[0]
    tasks: list[Any] = [*values, *(("zero", "subnormal") if whole_rows else ())]
    rng.shuffle(tasks)
    for row, task in zip(chosen, tasks, strict=False):
        if task == "zero":
            matrix[row] = 0.0
        elif task == "subnormal":
            matrix[row] = matrix[row].sign() * SUBNORMAL[matrix.dtype]
        else:
            matrix[row, rng.randrange(depth)] = task


# On the GPU --------------------------------------------------------------------------------------


def checking(store: Path) -> Handler:
    """Answers ``(pair, runs)`` with what was found of its kernel, on this process's GPU."""
    from hopper_gemm.compiler.loader import load

    torch.backends.cuda.matmul.allow_tf32 = False

    def replay(function: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            function()
        return graph.replay

    def handle(request: tuple[Pair, int]) -> Finding:
        pair, runs = request
        kernel = load(pair.config, pair.problem, store, finish=pair.finish)
        return check_pair(finishing(kernel, pair, "cuda"), pair, "cuda", runs, replay)

    return handle
