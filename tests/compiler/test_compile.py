"""Legal means: compiles for sm_90a without a spill, with exactly the instructions that the config asks for."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from hopper_gemm.compiler.pool import CompilePool
from hopper_gemm.compiler.store import KernelId, PaddingId
from hopper_gemm.lab.counters.trace import TRACE
from hopper_gemm.lab.counters.waits import METER
from hopper_gemm.lab.ladder.ladder_config import LadderConfig
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.lookup import pick
from hopper_gemm.model.problem import DTYPES, LAYOUTS, GemmProblem
from hopper_gemm.tune.study.files import recorded_entries
from tests.compiler.test_cubin import operations
from tests.model.test_legality import K_DEPTHS, PUBLISHED_STAGES
from tests.verify.drawing import STRATA, pairs, varied

pytestmark = [pytest.mark.compile, pytest.mark.timeout(600)]

PROBLEM = GemmProblem(1024, 1024, 4096)


def grid() -> list[GemmConfig]:
    """The published grid's runnable cells, as the seed sweep runs them."""
    cells = [GemmConfig(tile_m=m, tile_n=128, k_depth=k, cluster_n=2) for m in PUBLISHED_STAGES for k in K_DEPTHS]
    lowered = [replace(cell, stagger=max(0, min(1, resolve(cell).stages - 1))) for cell in cells]
    return [cell for cell in lowered if is_legal(cell)]


def edge() -> list[GemmConfig]:
    """Legal configs at the edge of the registers."""
    found = [
        GemmConfig(tile_m=m, tile_n=n, k_depth=k, consumers=c, split=s, stages=1, stagger=0)
        for m, n, c, s in (
            (256, 208, 2, "m"),
            (256, 208, 2, "n"),
            (128, 216, 1, "m"),
            (384, 128, 3, "m"),
            (192, 200, 3, "m"),
        )
        for k in (1, 6)
    ]
    return found + [GemmConfig(192, 208, consumers=2, split="n", epi_n=104, swap_ab=swap) for swap in (False, True)]


@pytest.fixture(scope="module")
def pool(kernel_store):
    """As many compilers as there are cores: the tests beside this one mostly end before it does."""
    pool = CompilePool(kernel_store, os.cpu_count())
    yield pool
    pool.close()


def faults(
    pool: CompilePool,
    configs: list[GemmConfig],
    dtype: str = "bf16",
    layouts: str = "kk",
    scattered: bool = False,
) -> list[str]:
    """What is wrong with the kernels, one line each."""
    problem = replace(PROBLEM, dtype=dtype, layouts=layouts)
    kernels = {config: KernelId.of(config, problem, scattered=scattered) for config in configs}
    pool.submit(kernels.values())
    found = []
    for config, kernel in kernels.items():
        built, shares = pool.result(kernel), resolve(config)
        if built.status != "ok":
            found.append(f"{shares}: {built.status} {built.reason}")
            continue
        report, tensors = built.report, {"tma": 2, "mixed": 1, "cp_async": 0}[shares.loads]
        each, unrolled = shares.wgmma_per_stage, shares.unroll
        stores = 0 if scattered else shares.tma_stores(problem.out_bytes)
        right = (
            (report.wgmma % each == 0 if unrolled else report.wgmma == each)
            and report.wgmma_waits <= shares.wgmma_waits
            and report.tma_stores == stores
            and (report.tma_loads >= tensors if tensors else report.tma_loads == 0)
        )
        if not right:
            found.append(f"{shares}: expected {each} wgmma a stage and {stores} stores, got {report}")
    return found


def test_cells_of_the_published_grid_compile_as_asked(pool):
    """A third of them, of every tile and depth; on a GPU all of them run."""
    cells = grid()
    assert len(cells) == 39
    assert faults(pool, cells[::3]) == []


stores = pytest.mark.parametrize("scattered", [False, True], ids=["by TMA", "an output that TMA cannot reach"])


@stores
def test_configs_at_the_edge_of_the_registers_compile_as_asked(pool, scattered):
    assert all(map(is_legal, edge()))
    assert faults(pool, edge(), scattered=scattered) == []
    if scattered:
        wide = replace(PROBLEM, dtype="bf16_fp32")
        assert faults(pool, [one for one in edge() if is_legal(one, wide)], dtype=wide.dtype, scattered=True) == []


@stores
def test_a_drawn_config_of_each_technique_compiles_as_asked(pool, scattered):
    """In all types and layouts evenly; `make verify` draws more. Techniques of loads and walks are the same with either
    store, so that every fourth one is drawn with the other."""
    drawn: dict[tuple[str, str], list[GemmConfig]] = {}
    for pair in list(pairs(12 if scattered else 11, len(STRATA), each=1))[:: 4 if scattered else 1]:
        drawn.setdefault((pair.problem.dtype, pair.problem.layouts), []).append(pair.config)
        pool.submit([KernelId.of(pair.config, pair.problem, scattered=scattered)])
    assert scattered or len(drawn) == len(DTYPES) * len(LAYOUTS)
    assert [fault for kind, configs in drawn.items() for fault in faults(pool, configs, *kind, scattered)] == []


def test_an_output_that_tma_reaches_may_have_any_number_of_columns(pool):
    """Of any number of columns and any depth: sizes do not shape the machine code, only the reach of C does."""
    within = KernelId.of(GemmConfig(), GemmProblem(1024, 1024, 4096))
    assert KernelId.of(GemmConfig(), GemmProblem(1000, 1016, 4095)) == within
    assert KernelId.of(GemmConfig(), GemmProblem(1000, 1015, 4095)) != within
    assert KernelId.of(GemmConfig(), GemmProblem(1000, 1012, 4095, "bf16_fp32")).scattered is False


def test_the_padding_compiles_without_a_spill_and_moves_sixteen_bytes_at_a_time(pool, tmp_path):
    from hopper_gemm.compiler.compile import compile_padding

    file = tmp_path / "padding.cubin"
    file.write_bytes(compile_padding().cubin)
    found = operations(file)
    assert pool.result(PaddingId()).status == "ok"
    reads, writes = (sum(one.startswith(f"{kind}.E.128") for one in found) for kind in ("LDG", "STG"))
    assert (reads, writes) == (16, 8), "two reads and a write for each of four pieces of A and of B"


def test_the_descriptors_of_many_wgmma_stay_in_uniform_registers(monkeypatch, tmp_path):
    """Without the bound on what the compiler has in sight it moves them over from vector registers."""
    from hopper_gemm.compiler.compile import compile_kernel
    from hopper_gemm.kernel import consumer

    def moves() -> int:
        file = tmp_path / "kernel.cubin"
        file.write_bytes(compile_kernel(resolve(GemmConfig(tile_m=320, cluster_n=2)), "bf16").cubin)
        return operations(file).count("R2UR")

    assert moves() <= 2
    monkeypatch.setattr(consumer, "UNIFORM_WGMMA", 1000)
    assert moves() >= 20


RARE = [
    GemmConfig(tile_m=320, cluster_n=2),
    GemmConfig(tile_m=256, tile_n=208),
    GemmConfig(tile_m=384, tile_n=128, consumers=3, stages=1, stagger=0),
    GemmConfig(tile_m=192, tile_n=192, consumers=3, split="m", stages=1, stagger=0),
    LadderConfig(tile_m=128, tile_n=72, stores="direct"),
    LadderConfig(stores="direct", stream_k=True),
    LadderConfig(stream_k=True, cluster_n=2, epi_n=16),
    LadderConfig(stream_k=True, tile_n=192, epi_n=16),
    GemmConfig(tile_m=64, tile_n=128, split_k=8),
    GemmConfig(tile_n=128, split_k=16, reduction="workspace", cluster_m=2),
    LadderConfig(tile_m=128, split_k=5, reduction="workspace", swap_ab=True, pdl=True, prefetch=8),
    GemmConfig(tile_m=128, tile_n=192, split_k=4, swap_ab=True),
    GemmConfig(swap_ab=True, epi_n=16),
    LadderConfig(swap_ab=True, tile_n=192, stream_k=True, epi_n=32),
    LadderConfig(tile_n=192, stream_k=True, epi_n=32),
    GemmConfig(tile_m=64, tile_n=16, swap_ab=True),
    GemmConfig(tile_m=128, tile_n=208, schedule="pingpong"),
    LadderConfig(tile_n=128, stream_k=True, reverse_k=True, evict_c=True, cluster_m=2),
    GemmConfig(tile_n=192, reverse_k=True, pace=16, evict_c=True),
    GemmConfig(tile_n=192, scheduler="dynamic", pace=16, reverse_k=True),
    GemmConfig(tile_n=128, scheduler="dynamic", cluster_m=2, cluster_n=2, swap_ab=True),
    LadderConfig(tile_m=192, scheduler="dynamic", skew=1, consumers=3),
    GemmConfig(tile_m=128, split_k=5, reduction="workspace", scheduler="dynamic", cluster_n=2, pdl=True),
    LadderConfig(tile_n=128, stream_k=True, skew=2, cluster_m=2),
    GemmConfig(staging="ring", scheduler="dynamic", cluster_m=2),
]


RUNGS = [
    *(LadderConfig(ring="library", arrivals=arrivals) for arrivals in ("warp", "elected", "consumer")),
    LadderConfig(ring="library", cluster_m=2, cluster_n=2),
    LadderConfig(ring="library", stages=1, stagger=0),
    LadderConfig(tile_m=128, ring="library", schedule="pingpong", cluster_n=2),
    LadderConfig(tile_m=128, ring="library", schedule="multistage", stages=4),
    *(LadderConfig(arrivals=arrivals) for arrivals in ("elected", "group", "producer", "consumer")),
    LadderConfig(arrivals="group", cluster_m=2, stagger=0),
    LadderConfig(waits="relaxed", cluster_n=2, full_barriers=2),
    LadderConfig(loads="mixed"),
    LadderConfig(tile_m=128, tile_n=256, loads="mixed", arrivals="thread"),
    GemmConfig(consumers=4, split="m"),
    GemmConfig(tile_m=256, tile_n=136, consumers=4, split="m", cluster_n=2),
    GemmConfig(tile_m=128, tile_n=256, consumers=4, split="n"),
    GemmConfig(tile_m=64, tile_n=256, consumers=4, split="n", stagger=3),
]


def test_the_rungs_of_the_ring_compile_as_asked(pool):
    assert all(map(is_legal, RUNGS))
    assert faults(pool, RUNGS) == []


def test_a_spill_is_refused_unless_it_is_asked_for(pool):
    """320 x 128 with one consumer: 320 accumulators of 255 registers, and wgmma serialised."""
    naive = LadderConfig(tile_m=320, consumers=1, split="m", spills=True)
    allowed, refused = (KernelId.of(varied(naive, spills=spills), PROBLEM) for spills in (True, False))
    built = pool.result(allowed)
    assert (built.status, built.report.registers) == ("ok", 255)
    assert built.report.stack_bytes > 320
    assert f"{built.report.stack_bytes} B of stack" in built.reason
    assert built.report.wgmma_waits > resolve(naive).wgmma_waits
    assert pool.result(refused).status == "spilled"


def test_without_moved_registers_two_consumers_of_the_320_row_spill(pool):
    naive = LadderConfig(tile_m=320, consumers=2, split="n", spills=True)
    built = pool.result(KernelId.of(naive, PROBLEM))
    assert built.report.registers == 168
    assert built.report.spills
    assert not pool.result(KernelId.of(varied(naive, spills=False), PROBLEM)).report.spills


def test_the_assembler_makes_of_a_relaxed_wait_what_it_makes_of_an_acquire(monkeypatch):
    """In the scope of a CTA: so a relaxed wait can gain nothing on sm_90a."""
    from hopper_gemm.compiler.compile import compile_kernel
    from hopper_gemm.compiler.cubin import read_cubin
    from hopper_gemm.lab.ladder import ring

    config = resolve(LadderConfig(tile_m=64, tile_n=64, waits="relaxed"))
    relaxed = compile_kernel(config, "bf16").cubin
    plain = ring.wait_in
    asked = []

    def acquiring(barrier, parity, order):
        asked.append(order)
        return plain(barrier, parity, "acquire")

    monkeypatch.setattr(ring, "wait_in", acquiring)
    acquire = compile_kernel(config, "bf16").cubin
    assert set(asked) == {"relaxed"}
    assert read_cubin(acquire).code == read_cubin(relaxed).code


@pytest.mark.parametrize(
    ("layouts", "configs"),
    [(layouts, RARE[number::4]) for number, layouts in enumerate(LAYOUTS)],
    ids=LAYOUTS,
)
def test_the_options_of_the_epilogue_with_an_fp32_output_compile_as_asked(pool, layouts, configs):
    """In all layouts in turn."""
    problem = replace(PROBLEM, dtype="bf16_fp32", layouts=layouts)
    assert all(is_legal(config, problem) for config in configs)
    assert faults(pool, configs, dtype="bf16_fp32", layouts=layouts) == []


OBSERVED = [
    (METER, GemmConfig()),
    (METER, GemmConfig(cluster_n=2)),
    (METER, GemmConfig(tile_m=320, tile_n=128)),
    (METER, GemmConfig(tile_m=128, tile_n=128, schedule="pingpong")),
    (METER, LadderConfig(tile_m=128, tile_n=128, schedule="multistage", stages=4)),
    (METER, LadderConfig(peek=False, unroll=True, ring_state="packed")),
    (TRACE, GemmConfig()),
    (TRACE, GemmConfig(consumers=4, split="m")),
    (TRACE, GemmConfig(stages=1, stagger=0)),
]


@pytest.mark.parametrize(("observer", "config"), OBSERVED, ids=str)
def test_an_observed_kernel_is_another_binary_that_does_not_spill_either(pool, observer, config):
    """It multiplies and stores with the same instructions: an observer only adds to them."""
    assert is_legal(config)
    plain, observed = (KernelId.of(config, PROBLEM, name) for name in ("", observer))
    pool.submit([plain, observed])
    plain, observed = pool.result(plain), pool.result(observed)
    assert (observed.status, observed.reason) == ("ok", "")
    assert observed.report.code != plain.report.code
    for name in ("wgmma_waits", "tma_stores"):
        assert getattr(observed.report, name) == getattr(plain.report, name)
    assert observed.report.wgmma % resolve(config).wgmma_per_stage == 0
    assert observer == METER or observed.report.wgmma == plain.report.wgmma


def test_kernels_that_matmul_takes_from_the_tuned_table_compile_without_a_spill(pool):
    """Every other one; on a GPU all of them run."""
    table = recorded_entries()
    picks = {entry.problem: pick(table, entry.problem).config for entry in table}
    entries = list(dict.fromkeys(KernelId.of(config, problem) for problem, config in picks.items()))[::2]
    assert entries
    pool.submit(entries)
    built = {kernel: pool.result(kernel) for kernel in entries}
    assert [f"{kernel}: {one.reason}" for kernel, one in built.items() if one.status != "ok"] == []


def test_stream_k_of_an_fp32_output_beside_the_most_accumulators_does_not_spill(pool):
    """It did while the ring's index lay in vector registers."""
    config = LadderConfig(192, 256, 1, stages=3, consumers=2, split="n", peek="consumer", stream_k=True, epi_n=64)
    problem = replace(PROBLEM, dtype="bf16_fp32")
    assert is_legal(config, problem)
    assert pool.result(KernelId.of(config, problem)).status == "ok"


@pytest.mark.parametrize(
    "config",
    [
        GemmConfig(tile_m=256, tile_n=224, consumers=2, split="m", stages=2),
        GemmConfig(tile_m=384, tile_n=144, consumers=3, split="m", stages=2),
        GemmConfig(tile_m=192, tile_n=208, consumers=3, split="m", stages=2),
        GemmConfig(tile_m=256, tile_n=144, consumers=4, split="m", stages=2),
    ],
    ids=str,
)
def test_what_the_register_rules_refuse_indeed_spills_or_does_not_assemble(pool, config):
    """The rules are no stricter than the compiler at these edges."""
    assert not is_legal(config)
    assert pool.result(KernelId.of(config, PROBLEM)).status in ("spilled", "compile_error")
