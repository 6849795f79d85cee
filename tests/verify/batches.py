"""Batch invariance, bit by bit: kernels on drawn rows of a batch against one kernel on the whole batch.

A batch has :data:`BATCH` rows, some of special values. The reference multiplies all of them at once, by one config,
with both operands contiguous along k. What is compared gets some of the rows, in another order, so that each row has
other neighbours and another place in its tile; its output must have the bits of the same rows of the reference. Kernels
differ from the reference in tile, cluster, schedule, operand order, layouts and number of rows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import cycle, islice, product
from pathlib import Path
from typing import ClassVar

import torch

from hopper_gemm.compiler.child import Child, Handler
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import Kernel, resolve
from hopper_gemm.model.legality import pair_reasons
from hopper_gemm.model.lookup import Pick, Table, find
from hopper_gemm.model.menu import menu
from hopper_gemm.model.problem import DTYPES, LAYOUTS, GemmProblem, types_of
from hopper_gemm.model.roofline import SXM, Chip
from hopper_gemm.model.rules.invariance import STEEP, parts_of
from hopper_gemm.model.rules.pairs import filled_up, reachable
from hopper_gemm.tune.measure.correctness import check, same_bits
from hopper_gemm.tune.measure.workload import TYPES
from tests.verify.busy import held
from tests.verify.drawing import Pair
from tests.verify.harness import ANSWER_SECONDS, JUDGES, VerifyJob
from tests.verify.judge import HUGE, SUBNORMAL, Launch, digest, ordinary
from tests.verify.rows import Finding

BATCH, DRAWS = 4096, 8
"""Rows of a batch; and numbers of rows drawn for each kernel."""

SIDES = (
    (4096, 4096),
    (1024, 1024),
    (1544, 2056),
    (6144, 1000),
    (256, 1024),
    (8, 4096),
    (2048, 520),
    (1024, 16384),
    (520, 8200),
    (512, 16384),
    (136, 8200),
    (512, 65536),
    (64, 8200),
    (8, 20000),
)
"""n and k: whole and ragged tiles, depths that no stage divides, and the last seven cut into four and eight parts."""

RAGGED = ((4096, 4096), (89, 444), (1001, 1003), (500, 8199), (5, 9001))
"""n and k of products through ``matmul``; most are copied and padded on the way."""

HELD = (1, 4, 16)
"""SMs that another kernel holds."""

TOGETHER = 8
"""Menu kernels in a row with one type and problem, which share a reference."""

MATMUL, KERNEL = "matmul", "kernel"
"""What is launched: the public function, which picks its kernels; or one kernel."""

MENU, INSTRUCTION, TECHNIQUE = "of the menu", "by instruction", "by technique"
"""Where a kernel comes from."""


@dataclass(frozen=True)
class InvarianceJob(VerifyJob):
    """A kernel compared with the reference. The problem's m is that of the batch."""

    judges: ClassVar[tuple[str, ...]] = (*JUDGES, "tests.verify.batches")
    shrinks: ClassVar[bool] = False


# What is compared -----------------------------------------------------------------------------


def reference_config(problem: GemmProblem) -> Kernel:
    """The config of the reference."""
    return resolve(GemmConfig(tile_m=128, tile_n=128, split_k=parts_of(problem.n, problem.k)))


def reference_pair(pair: Pair) -> Pair:
    """The reference of a pair: on a problem that TMA reaches, both operands contiguous along k."""
    problem = filled_up(replace(pair.problem, m=BATCH, layouts="kk", batch_invariant=True))
    return Pair(reference_config(problem), problem, pair.seed)


def drawn_sizes(pair: Pair) -> list[int]:
    """Numbers of rows on which a pair's kernel runs: the fewest first, then any, in equal numbers from each octave; of
    a problem whose A is contiguous along m multiples of 8. Fewer than :data:`DRAWS` where the rules leave no more."""
    rng, step = random.Random(pair.seed), reachable(1) if pair.problem.layouts[0] == "m" else 1
    drawn = (step * -(-round(2 ** rng.uniform(0, 12)) // step) for _ in range(40 * DRAWS))
    sizes = dict.fromkeys((step, *drawn))
    kernel = resolve(pair.config)
    return list(islice((m for m in sizes if not pair_reasons(kernel, replace(pair.problem, m=m))), DRAWS))


def loaded_for(pair: Pair) -> GemmProblem:
    """The largest problem on which a pair's kernel runs: not every kernel may run a whole batch."""
    return replace(pair.problem, m=max(drawn_sizes(pair)))


def comparisons(pair: Pair) -> int:
    """Outputs that are compared for a pair: each size once, two replays of a graph, two sizes three times on a stream
    each, and two launches with SMs held."""
    return DRAWS + 2 + 2 * 3 + 2 * _is_held(pair)


def _is_held(pair: Pair) -> bool:
    """Return True if a pair is also launched with SMs held: all kernels with a workspace, and one of four others."""
    return resolve(pair.config).has_workspace or pair.seed % 4 == 0


def _instructions() -> Iterator[GemmConfig]:
    """Every n of the wgmma instruction, in both operand orders; then every depth of a stage."""
    for tile_n, swap_ab in product(range(8, 257, 8), (False, True)):
        yield GemmConfig(tile_m=64, tile_n=tile_n, swap_ab=swap_ab)
    for k_depth in range(1, 17):
        yield GemmConfig(tile_m=64, tile_n=64, k_depth=k_depth, stages=2)


def _techniques() -> Iterator[GemmConfig]:
    """Techniques of which the menu has few kernels or none."""
    tile = GemmConfig(tile_m=128, tile_n=128)
    changes: list[dict[str, object]] = [
        {"schedule": "pingpong"},
        {"scheduler": "dynamic"},
        {"scheduler": "dynamic", "cluster_m": 2, "cluster_n": 2},
        {"staging": "ring", "scheduler": "dynamic", "cluster_m": 2},
        {"cluster_m": 4, "multicast": "alternate"},
        {"cluster_m": 2, "cluster_n": 4},
        {"pace": 4, "cluster_m": 2},
        {"tile_n": 64, "ctas_per_sm": 2},
        {"tile_m": 192, "consumers": 3},
        {"tile_n": 256, "split": "n"},
        {"pdl": True},
        {"evict_c": True},
    ]
    for change in changes:
        yield replace(tile, **change)  # type: ignore[arg-type]
    apart: list[dict[str, object]] = [
        {},
        {"scheduler": "dynamic"},
        {"cluster_m": 2},
        {"part_order": "part"},
        {"k_depth": 8},
    ]
    for parts in (4, 8):
        for change in apart:
            yield replace(tile, split_k=parts, reduction="workspace", **change)  # type: ignore[arg-type]
        for tile_n in (64, 192):
            yield replace(tile, tile_n=tile_n, split_k=parts)
            yield replace(tile, tile_n=tile_n, tile_m=64, split_k=parts, swap_ab=True)


def jobs(seed: int, tables: Sequence[Table], chip: Chip = SXM) -> list[InvarianceJob]:
    """Everything to compare: instructions and techniques first, then ``matmul``, then every kernel of the menu that has
    some problem, in a drawn order with one type, then with the others.

    Args:
        seed: of the draws.
        tables: from which ``matmul`` picks on the GPU at hand.
        chip: that GPU.
    """
    rng = random.Random(seed)
    found: list[InvarianceJob] = []
    for of, configs in ((INSTRUCTION, _instructions()), (TECHNIQUE, _techniques())):
        for config in configs:
            sides, dtypes = rng.sample(SIDES, len(SIDES)), rng.sample(DTYPES, len(DTYPES))
            found += _placed(rng, resolve(config), of, sides, dtypes)
    pick = partial(find, tables, chip=chip)
    found += [_of_matmul(rng, n, k, dtype, pick) for (n, k), dtype in zip(RAGGED, cycle(DTYPES), strict=False)]
    kernels: dict[int, list[Kernel]] = {}
    for kernel in dict.fromkeys(kernel.compiled() for kernel in menu(True)):
        for parts in STEEP if kernel.parts_at_launch else (kernel.split_k,):
            kernels.setdefault(parts, []).append(kernel.but(split_k=parts))
    groups = []
    for parts, some in kernels.items():
        sides = [side for side in SIDES if parts_of(*side) == parts]
        rng.shuffle(some)
        groups += [(some[at : at + TOGETHER], sides) for at in range(0, len(some), TOGETHER) if sides]
    rng.shuffle(groups)
    for turn, (number, (some, sides)) in product(range(len(DTYPES)), enumerate(groups)):
        side, dtype = rng.choice(sides), DTYPES[(turn + number) % len(DTYPES)]
        for kernel in some:
            walks: dict[str, object] = {"raster": rng.choice("mn"), "swizzle": rng.choice((1, 2, 4, 8, 16))}
            found += _placed(rng, kernel.but(**walks), MENU, [side, *sides], [dtype, *DTYPES])
    return found


def _of_matmul(rng: random.Random, n: int, k: int, dtype: str, pick: Callable[..., Pick]) -> InvarianceJob:
    problem = GemmProblem(BATCH, n, k, dtype, rng.choice(LAYOUTS), batch_invariant=True)
    pair = Pair(reference_config(problem), problem, rng.randrange(2**31))
    run = [filled_up(replace(problem, m=m)) for m in _sizes_of_matmul(pair)]
    return InvarianceJob(
        pair, MATMUL, "any size", (reference_pair(pair), *(Pair(pick(one).config, one) for one in run))
    )


def _sizes_of_matmul(pair: Pair) -> list[int]:
    return drawn_sizes(replace(pair, problem=filled_up(pair.problem)))


def _placed(
    rng: random.Random, kernel: Kernel, of: str, sides: Sequence[tuple[int, int]], dtypes: Sequence[str]
) -> Iterator[InvarianceJob]:
    """A kernel on the first of some sides and types, with drawn layouts, on which the rules let it run."""
    seed, layouts = rng.randrange(2**31), rng.sample(LAYOUTS, len(LAYOUTS))
    for (n, k), dtype, axes in product(sides, dtypes, layouts):
        pair = Pair(kernel, GemmProblem(BATCH, n, k, dtype, axes, batch_invariant=True), seed)
        fewest = replace(pair.problem, m=reachable(1))
        if not pair_reasons(kernel, fewest) and len(drawn_sizes(pair)) == DRAWS:
            yield InvarianceJob(pair, KERNEL, of, (reference_pair(pair),))
            return


# Matrices -------------------------------------------------------------------------------------


def values(problem: GemmProblem, seed: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Operands (m, k) and (n, k): normal numbers, and special ones in a few rows of A and columns of C."""
    a, b = ordinary(replace(problem, layouts="kk"), seed, device)
    at = random.Random(seed).randrange(problem.k)
    infinite, tiny, huge = float("inf"), SUBNORMAL[a.dtype], HUGE[a.dtype]
    for row, value in enumerate((infinite, -infinite, float("nan"), huge, -huge)):
        a[row, at] = value
    a[5], a[6], a[7] = 0.0, -0.0, a[7].sign() * tiny
    a[8] = -0.0
    a[8, at] = tiny
    b[0].abs_()
    if problem.n >= SPECIAL:
        b[1], b[2] = -0.0, b[2].sign() * tiny
        b[3, -1], b[4, at] = infinite, float("nan")
    return a, b


SPECIAL = 9
"""Rows with special values; they are the first of the batch, so that every larger draw can be made to have them."""


def laid(matrix: torch.Tensor, axis: str) -> torch.Tensor:
    """The matrix (rows, k), contiguous along k, or else along its rows."""
    return matrix.contiguous() if axis == "k" else matrix.t().contiguous().t()


def rows_of(m: int, seed: int, device: str) -> torch.Tensor:
    """Numbers of ``m`` rows of the batch in a drawn order, each once; those with special values among them where they
    are few beside the others."""
    generator = torch.Generator().manual_seed(seed + m)
    drawn = torch.randperm(BATCH, generator=generator)
    if m >= 4 * SPECIAL:
        drawn = torch.cat((torch.arange(SPECIAL), drawn[drawn >= SPECIAL]))[:m]
        drawn = drawn[torch.randperm(m, generator=generator)]
    return drawn[:m].to(device)


@dataclass
class Batch:
    """A batch with its reference.

    Args:
        a, b: (m, k) and (n, k) values, both contiguous along k.
        expected: (m, n), the reference.
    """

    a: torch.Tensor
    b: torch.Tensor
    expected: torch.Tensor

    @cached_property
    def bits(self) -> str:
        """A name for the bits of the reference."""
        return digest(self.expected)

    @staticmethod
    def of(launch: Launch, problem: GemmProblem, seed: int, device: str) -> Batch:
        """The batch of a problem that TMA may not reach: the reference runs on copies padded with zeros.

        Raises:
            ArithmeticError: the reference is no product.
        """
        a, b = values(problem, seed, device)
        rows, columns, depth = (reachable(size) for size in (problem.m, problem.n, problem.k))
        left, right = a.new_zeros(rows, depth), b.new_zeros(columns, depth)
        left[: problem.m, : problem.k], right[: problem.n, : problem.k] = a, b
        out = torch.full((rows, columns), float("nan"), device=device).to(TYPES[types_of(problem.dtype)[1]])
        launch(left, right, out)
        expected = out[: problem.m, : problem.n].contiguous()
        ordinary_rows, ordinary_columns = slice(SPECIAL, SPECIAL + 256), slice(5, None)
        if problem.n > 5:
            exact = a[ordinary_rows].float() @ b[ordinary_columns].float().t()
            found = check(expected[ordinary_rows, ordinary_columns].contiguous(), exact, problem.k)
            if found.reason:
                raise ArithmeticError(f"the reference is no product: {found.reason}")
        return Batch(a, b, expected)


# Comparing ------------------------------------------------------------------------------------

Runner = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Multiplies (m, k) by the transpose of (n, k), into an output that it makes."""


class Comparer:
    """Compares the outputs of one pair with the reference.

    Args:
        run: multiplies.
        pair: what runs.
        batch: of the pair.
        special: whether rows with special values may be drawn.
    """

    def __init__(self, run: Runner, pair: Pair, batch: Batch) -> None:
        self._run, self._pair, self._batch = run, pair, batch
        self._device = str(batch.a.device)
        self._b = laid(batch.b, pair.problem.layouts[1])
        self.done = 0

    def given(self, m: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of A, laid as the problem says, and their numbers."""
        rows = rows_of(m, self._pair.seed, self._device)
        return laid(self._batch.a[rows], self._pair.problem.layouts[0]), rows

    def launch(self, a: torch.Tensor) -> torch.Tensor:
        """Launch on the current stream."""
        return self._run(a, self._b)

    def differs(self, out: torch.Tensor, rows: torch.Tensor, where: str) -> Iterator[str]:
        """Say which rows of an output have other bits than the reference."""
        self.done += 1
        expected = self._batch.expected[rows]
        if not same_bits(out, expected):
            other = int((out.view(torch.int16) != expected.view(torch.int16)).any(1).sum())
            yield f"{where}, m = {len(rows)}: {other} rows have other bits"

    def sizes(self, sizes: Iterable[int]) -> Iterator[str]:
        """Each number of rows once."""
        for m in sizes:
            a, rows = self.given(m)
            yield from self.differs(self.launch(a), rows, "alone")

    def disturbed(self, one: int, other: int, number: int) -> Iterator[str]:
        """A graph, two streams, and, if the pair wants it, SMs that another kernel holds."""
        (a, rows), (b, others) = self.given(one), self.given(other)
        graph, streams = torch.cuda.CUDAGraph(), (torch.cuda.Stream(), torch.cuda.Stream())
        torch.cuda.synchronize()
        with torch.cuda.stream(streams[0]):  # torch.cuda.graph would first give back all memory, each time
            graph.capture_begin()
            try:
                out = self.launch(a)
            finally:
                graph.capture_end()
        for _ in range(2):
            out.fill_(float("nan"))
            graph.replay()
            yield from self.differs(out, rows, "replay")
        torch.cuda.synchronize()
        outputs = []
        for _ in range(3):
            for stream, operand, numbers in ((streams[0], a, rows), (streams[1], b, others)):
                with torch.cuda.stream(stream):
                    outputs.append((self.launch(operand), numbers))
        torch.cuda.synchronize()
        for out, numbers in outputs:
            yield from self.differs(out, numbers, "two streams")
        if _is_held(self._pair):
            with held(HELD[number % len(HELD)]):
                outputs = [(self.launch(a), rows), (self.launch(b), others)]
                torch.cuda.current_stream().synchronize()
            for out, numbers in outputs:
                yield from self.differs(out, numbers, "SMs held")


def answering(store: Path) -> Handler:
    """Answers ``(circumstance, pair, runs)`` with a finding, on this process's GPU; and None, which only asks whether
    the process has started."""
    from hopper_gemm.compiler.loader import load

    torch.backends.cuda.matmul.allow_tf32 = False
    known: dict[Pair, Batch] = {}

    def batch_of(pair: Pair) -> Batch:
        wanted = reference_pair(pair)
        key = Pair(wanted.config, replace(pair.problem, layouts="kk"), SEED)
        if key not in known:
            known.clear()
            known[key] = Batch.of(load(wanted.config, wanted.problem, store), key.problem, key.seed, "cuda")
        return known[key]

    def handle(request: tuple[str, Pair, int] | None) -> Finding:
        if request is None:
            return Finding()
        what, pair, _ = request
        if what == MATMUL:
            run, sizes = _by_matmul(pair), _sizes_of_matmul(pair)
        else:
            sizes = drawn_sizes(pair)
            run = _by_kernel(load(pair.config, loaded_for(pair), store), pair)
        batch = batch_of(pair)
        comparer = Comparer(run, pair, batch)
        found = [*comparer.sizes(sizes), *comparer.disturbed(sizes[-1], sizes[-2], pair.seed)]
        if comparer.done != comparisons(pair):
            found.append(f"{comparer.done} outputs were compared instead of {comparisons(pair)}")
        return Finding("; ".join(found[:3]), "" if found else batch.bits)

    return handle


SEED = 28
"""Of every batch: its values are the same on every board."""


def _by_kernel(kernel: Launch, pair: Pair) -> Runner:
    dtype = TYPES[types_of(pair.problem.dtype)[1]]

    def run(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = torch.full((a.shape[0], b.shape[0]), float("nan"), device=a.device, dtype=dtype)
        kernel(a, b, out)
        return out

    return run


def _by_matmul(pair: Pair) -> Runner:
    from hopper_gemm.serve.matmul import matmul

    dtype = TYPES[types_of(pair.problem.dtype)[1]]
    return lambda a, b: matmul(a, b.t(), out_dtype=dtype, batch_invariant=True)


# torch.mm beside it ---------------------------------------------------------------------------


@dataclass(frozen=True)
class TorchCount:
    """Rows of torch.mm that change with m.

    Args:
        workspace: of cuBLAS, as ``CUBLAS_WORKSPACE_CONFIG`` gives it; empty: its own.
        n, k, dtype, layouts: of the problem.
        m: rows at once.
        rows_changed: of these, rows that have other bits than in the whole batch.
    """

    workspace: str
    n: int
    k: int
    dtype: str
    layouts: str
    m: int
    rows_changed: int


WORKSPACES = ("", ":16:8")
"""Workspaces of cuBLAS; the second is one of the two that its manual names for the same bits in every run."""


def counting(workspace: str) -> Handler:
    """Answers ``(n, k, dtype, layouts, seed)`` with the counts of torch.mm, on this process's GPU."""

    def handle(request: tuple[int, int, str, str, int]) -> list[TorchCount]:
        n, k, dtype, layouts, seed = request
        problem = GemmProblem(BATCH, n, k, dtype, layouts)
        a, b = values(problem, SEED, "cuda")
        b = laid(b, layouts[1]).t()
        whole = torch.mm(laid(a, layouts[0]), b)
        found = []
        for m in drawn_sizes(Pair(reference_config(problem), problem, seed)):
            rows = rows_of(m, seed, "cuda")
            out, expected = torch.mm(laid(a[rows], layouts[0]), b), whole[rows]
            other = (out.view(torch.int16) != expected.view(torch.int16)) & ~(out.isnan() & expected.isnan())
            found.append(TorchCount(workspace, n, k, dtype, layouts, m, int(other.any(1).sum())))
        return found

    return handle


def torch_counts(board: str, seed: int) -> list[TorchCount]:
    """Count rows of torch.mm on a board, with each workspace in a process of its own; of a NaN only the place counts.

    Args:
        board: UUID of the GPU.
        seed: of the draws.

    Raises:
        ChildProcessError: a product could not be counted.
    """
    found: list[TorchCount] = []
    rng = random.Random(seed)
    asked = [(n, k, dtype, rng.choice(LAYOUTS), rng.randrange(2**31)) for n, k in SIDES for dtype in ("bf16", "fp16")]
    for workspace in WORKSPACES:
        environment = {"CUDA_VISIBLE_DEVICES": board, **({"CUBLAS_WORKSPACE_CONFIG": workspace} if workspace else {})}
        child = Child(counting, workspace, environment=environment)
        try:
            for request in asked:
                reply = child.ask(request, ANSWER_SECONDS)
                if reply.kind != "answer":
                    raise ChildProcessError(f"{request}: {reply.error}")
                found += reply.value
        finally:
            child.close()
    return found
