"""matmul does what torch.mm does, and refuses what it does not."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

import hopper_gemm
from hopper_gemm import GemmConfig
from hopper_gemm.compiler.store import KernelId, PaddingId
from hopper_gemm.model.problem import DTYPES, LAYOUTS, GemmProblem
from hopper_gemm.serve import kernels as serving
from hopper_gemm.serve import launches as room
from hopper_gemm.serve.launches import LAUNCHES
from hopper_gemm.tune.measure.correctness import check
from tests.serve.test_ops import exact_with_gradients, pair

pytestmark = pytest.mark.gpu


SHAPES = [(1, 8, 8), (16, 6144, 4096), (512, 512, 65536), (2304, 2304, 4096), (1234, 4096, 4096), (65536, 256, 1024)]
"""Of which the model picks few rows, divided k, a ragged edge and a short k."""
UNALIGNED = [(13, 21, 5), (8191, 1023, 513), (300, 520, 1001), (77, 1000, 4096), (1, 1001, 511), (130, 36, 100)]
"""That TMA cannot reach in one layout or another."""
SHIFTED = GemmProblem(257, 264, 304)
"""Of which views at odd addresses and pitches are multiplied."""


def kernels() -> list[KernelId]:
    """What is picked for the problems of most calls."""
    by_layout = [GemmProblem(*sizes, "bf16", layouts) for sizes in (*SHAPES, *UNALIGNED) for layouts in LAYOUTS]
    by_type = [GemmProblem(*sizes, dtype) for sizes in (*SHAPES, *UNALIGNED) for dtype in DTYPES]
    shifted = [replace(SHIFTED, layouts=layouts) for layouts in LAYOUTS]
    shifted += [replace(SHIFTED, dtype=dtype) for dtype in DTYPES]
    picked = [KernelId.of(serving.default_config(problem), problem) for problem in by_layout + by_type + shifted]
    scattered = [KernelId.of(serving.default_config(problem), problem, scattered=True) for problem in shifted]
    return [PaddingId(), *picked, *scattered]


def operands(m, n, k, dtype=torch.bfloat16):
    generator = torch.Generator("cuda").manual_seed(m + n + k)
    a = torch.randn(m, k, device="cuda", generator=generator).to(dtype)
    b = torch.randn(n, k, device="cuda", generator=generator).to(dtype)
    return a, b.t()


def right(out, a, b):
    return check(out, a.float() @ b.float(), a.shape[1]).reason is None


@pytest.fixture(autouse=True)
def _full_precision():
    before, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("sizes", [*SHAPES, *UNALIGNED], ids=str)
@pytest.mark.parametrize("by_rows", ["", "a", "b", "ab"])
def test_whatever_the_model_picks_is_right_in_every_layout(sizes, by_rows):
    """Of sizes that TMA cannot reach too."""
    a, b = operands(*sizes)
    a = a.t().contiguous().t() if "a" in by_rows else a
    b = b.contiguous() if "b" in by_rows else b
    assert right(hopper_gemm.matmul(a, b), a, b)


def view(rows, columns, first, pitch, dtype=torch.bfloat16):
    """A random view into a matrix of NaNs: its rows begin ``first`` elements after multiples of ``pitch``."""
    whole = torch.full((rows, pitch), float("nan"), device="cuda", dtype=dtype)
    part = whole[:, first : first + columns]
    return part.copy_(torch.randn(rows, columns, device="cuda"))


def exact(out, a, b):
    """Return True if a product is that of float64, rounded."""
    reference = a.double() @ b.double()
    unit = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2e-6}[out.dtype]
    return bool(((out.double() - reference).abs() <= unit * reference.abs() + 2e-4 * a.shape[1] ** 0.5).all())


@pytest.mark.parametrize("layouts", LAYOUTS)
@pytest.mark.parametrize(("first", "more"), [(0, 1), (1, 1), (1, 8), (3, 5), (4, 12)])
def test_operands_and_output_may_have_any_pitch_and_offset(layouts, first, more):
    """What is beside an operand is NaN, and what is beside the output stays."""
    m, n, k = SHIFTED.m, SHIFTED.n, SHIFTED.k
    a = view(m, k, first, k + more) if layouts[0] == "k" else view(k, m, first, m + more).t()
    b = view(n, k, first, k + more).t() if layouts[1] == "k" else view(k, n, first, n + more)
    whole = torch.full((m, n + more), 7.0, device="cuda", dtype=a.dtype)
    out = whole[:, first : first + n] if first + n <= n + more else whole[:, :n]
    for _ in range(2):
        out.fill_(float("nan"))
        hopper_gemm.matmul(a, b, out=out)
        assert exact(out, a, b)
    out.fill_(7.0)
    assert bool((whole == 7.0).all())
    assert exact(hopper_gemm.matmul(a, b), a, b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("out_dtype", [None, torch.float32])
def test_either_type_and_an_fp32_output_may_lie_at_odd_addresses(dtype, out_dtype):
    m, n, k = SHIFTED.m, SHIFTED.n, SHIFTED.k
    a, b = view(m, k, 1, k + 3, dtype), view(n, k, 1, k + 1, dtype).t()
    out = view(m, n, 1, n + 2, out_dtype or dtype)
    assert exact(hopper_gemm.matmul(a, b, out=out), a, b)


@pytest.mark.parametrize("layouts", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_are_those_of_the_float64_product(layouts, dtype):
    given = (one.cuda() / one.shape[1] ** 0.5 for one in pair(264, 520, 1032, dtype=dtype, layouts=layouts))
    assert exact_with_gradients(hopper_gemm.matmul, *given)


def test_what_lies_behind_a_padded_row_reaches_no_other_row():
    a, b = operands(64, 33, 77)
    a[3, 0], a[4, 76] = float("inf"), float("nan")
    wrong = (~hopper_gemm.matmul(a, b).isfinite()).any(1).nonzero().flatten()
    assert wrong.tolist() == [3, 4]


@pytest.mark.parametrize("own", [True, False], ids=["streams of their own", "one stream"])
def test_padded_products_of_several_threads_do_not_mix(own):
    pairs = [operands(300, 255, 1001 + 2 * number) for number in range(4)]
    torch.cuda.synchronize()

    def multiply(pair):
        with torch.cuda.stream(torch.cuda.Stream() if own else torch.cuda.default_stream()):
            products = [hopper_gemm.matmul(*pair) for _ in range(50)]
            torch.cuda.current_stream().synchronize()
        return products[::7]

    with ThreadPoolExecutor(len(pairs)) as together:
        found = list(together.map(multiply, pairs))
    assert all(exact(product, *pair) for products, pair in zip(found, pairs, strict=True) for product in products)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [*SHAPES, (13, 21, 5), (300, 520, 1001)], ids=str)
def test_an_fp32_output_is_what_was_accumulated(sizes, dtype):
    a, b = operands(*sizes, dtype)
    product = hopper_gemm.matmul(a, b, out_dtype=torch.float32)
    assert product.dtype == torch.float32
    assert right(product, a, b)
    out = torch.full_like(product, float("nan"))
    assert hopper_gemm.matmul(a, b, out=out) is out
    assert torch.equal(out, product)


def test_a_config_of_the_callers_choice_is_used():
    a, b = operands(512, 512, 512)
    assert right(hopper_gemm.matmul(a, b, config=GemmConfig(tile_m=64, tile_n=64, cluster_m=2)), a, b)


@pytest.fixture
def nothing_known(monkeypatch):
    """As in a new process without the extension: what was loaded is forgotten, not what was compiled."""
    monkeypatch.setattr(LAUNCHES, "native", None)
    monkeypatch.setattr(LAUNCHES, "table", {})
    monkeypatch.setattr(serving, "_loaded", {})


def test_a_known_launch_is_repeated_on_the_current_stream_and_in_graphs(nothing_known, monkeypatch):
    a, b = operands(776, 1032, 520)
    expected = hopper_gemm.matmul(a, b)
    hopper_gemm.matmul(a, b, out=torch.empty_like(expected))
    with torch.no_grad():
        hopper_gemm.matmul(torch.nn.Parameter(a), b)
    monkeypatch.setattr(room, "first_call", None)
    late, side, out = torch.zeros_like(a), torch.cuda.Stream(), torch.empty_like(expected)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        late.copy_(a)
        product = hopper_gemm.matmul(late, b)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        hopper_gemm.matmul(a, b, out=out)
    out.zero_()
    graph.replay()
    with torch.no_grad():
        of_a_parameter = hopper_gemm.matmul(torch.nn.Parameter(a), b)
    torch.cuda.synchronize()
    assert all(torch.equal(one, expected) for one in (product, out, of_a_parameter))


@pytest.mark.parametrize("config", [None, GemmConfig(split_k=2, reduction="workspace")], ids=["picked", "workspace"])
def test_a_first_call_may_be_captured_and_the_graph_replays_on_new_operands(nothing_known, config):
    """Compiled before, as the docstring of CUDA graphs wants of warm-ups, but not loaded."""
    a, b = operands(776, 1032, 2048)
    expected = hopper_gemm.matmul(a, b, config=config)
    LAUNCHES.forget()
    serving._loaded.clear()
    out = torch.zeros_like(expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        hopper_gemm.matmul(a, b, out=out, config=config)
    for _ in range(2):
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, expected)
    a.copy_(torch.randn_like(a))
    graph.replay()
    torch.cuda.synchronize()
    assert right(out, a, b)


def test_first_calls_of_many_threads_at_once_are_right(nothing_known):
    """On streams of their own; without the lock the compiler took the process along."""
    sizes = [(8 * (1 + number % 5), 264, 520) for number in range(16)]
    pairs = [operands(*size) for size in sizes]
    torch.cuda.synchronize()
    start = threading.Barrier(len(pairs))

    def multiply(pair):
        start.wait()
        with torch.cuda.stream(torch.cuda.Stream()):
            product = hopper_gemm.matmul(*pair)
            torch.cuda.current_stream().synchronize()
        return product

    with ThreadPoolExecutor(len(pairs)) as together:
        products = list(together.map(multiply, pairs))
    assert all(right(product, *pair) for product, pair in zip(products, pairs, strict=True))


def test_chained_calls_are_right_and_may_run_another_kernel():
    x, w = operands(512, 1024, 1024)
    w = w / 32
    with hopper_gemm.chained():
        chained = hopper_gemm.matmul(hopper_gemm.matmul(x, w), w)
    apart = hopper_gemm.matmul(hopper_gemm.matmul(x, w), w)
    torch.testing.assert_close(chained, apart, atol=0.05, rtol=0.02)


def test_negated_and_expanded_operands_are_read_as_they_are():
    a, b = operands(128, 264, 520)
    product = hopper_gemm.matmul(a, b)
    assert torch.equal(hopper_gemm.matmul(torch._neg_view(a), b), -product)
    assert torch.equal(hopper_gemm.matmul(a, torch._neg_view(b)), -product)
    row = a[:1].expand(128, 520)
    assert right(hopper_gemm.matmul(row, b), row, b)
    vector = a[0].expand(1, 520)
    assert right(hopper_gemm.matmul(vector, b), vector, b)
    negated = torch._neg_view(torch.zeros_like(product))
    assert torch.equal(hopper_gemm.matmul(a, b, out=negated), product)
