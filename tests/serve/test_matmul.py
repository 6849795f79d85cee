"""What matmul refuses, what it copies and what it remembers, before any GPU is touched."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import hopper_gemm
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.legality import reasons
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.tuned import CHANGES
from hopper_gemm.serve import launches as room
from hopper_gemm.serve import operands
from hopper_gemm.serve.kernels import default_config
from tests.serve.launcher import Launches


def matrix(rows, columns, dtype=torch.bfloat16):
    return torch.zeros(rows, columns, dtype=dtype)


@pytest.mark.parametrize(
    ("a", "b", "error", "message"),
    [
        (matrix(8, 8), matrix(16, 8).t()[:, :4, None], ValueError, "a and b must be (m, k) and (k, n)"),
        (matrix(8, 8), matrix(8, 16).t(), ValueError, "but got (8, 8) and (16, 8)"),
        (
            matrix(8, 8, torch.float32),
            matrix(8, 8, torch.float32).t(),
            TypeError,
            "must both be bfloat16 or both float16",
        ),
        (matrix(8, 8), matrix(8, 8, torch.float16).t(), TypeError, "but got torch.bfloat16 and torch.float16"),
        (matrix(8, 8), matrix(8, 8).t(), RuntimeError, "must be on a Hopper GPU but are on cpu"),
        (None, matrix(8, 8), TypeError, "a must be a plain torch tensor but is None; give one"),
        (matrix(8, 8), None, TypeError, "b must be a plain torch tensor but is None; give one"),
        (matrix(8, 8)[None], matrix(8, 8), ValueError, "got (1, 8, 8) and (8, 8); hopper_gemm.bmm multiplies batches"),
        (matrix(8, 8), matrix(8, 8)[None], ValueError, "hopper_gemm.linear(a, b.t()) takes leading axes of a"),
    ],
)
def test_what_cannot_be_multiplied_is_refused_with_the_fix(a, b, error, message):
    with pytest.raises(error) as caught:
        hopper_gemm.matmul(a, b, fallback="never")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("a", "b", "layouts"),
    [
        (matrix(8, 16), matrix(8, 16).t(), "kk"),
        (matrix(8, 16), matrix(16, 8), "kn"),
        (matrix(16, 8).t(), matrix(8, 16).t(), "mk"),
        (matrix(16, 8).t(), matrix(16, 8), "mn"),
        (matrix(1, 16), matrix(16, 8), "kn"),
        (matrix(8, 32)[:, :16], matrix(8, 32)[:, :16].t(), "kk"),
    ],
)
def test_each_operand_is_read_along_the_axis_that_is_contiguous(launches, a, b, layouts):
    hopper_gemm.matmul(a, b)
    assert launches.loaded[0][1].layouts == layouts


def test_out_must_fit():
    fits = r"out must be \(8, 8\) torch.bfloat16 or torch.float32 on cpu"
    for out in (matrix(8, 16), matrix(8, 8, torch.float16), matrix(8, 16, torch.float32)):
        with pytest.raises(ValueError, match=rf"{fits} but is \(8, {out.shape[1]}\) {out.dtype}"):
            hopper_gemm.matmul(matrix(8, 8), matrix(8, 8).t(), out=out)


def test_an_output_is_of_the_operands_type_or_of_fp32_and_of_the_one_that_was_named():
    a, b = matrix(8, 8), matrix(8, 8).t()
    with pytest.raises(
        TypeError, match=r"out_dtype must be torch.bfloat16, as .*, or torch.float32 but got torch.float16"
    ):
        hopper_gemm.matmul(a, b, out_dtype=torch.float16)
    for named, given in ((torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)):
        with pytest.raises(ValueError, match=rf"out must be \(8, 8\) {named} on cpu but is \(8, 8\) {given}"):
            hopper_gemm.matmul(a, b, out=matrix(8, 8, given), out_dtype=named)


def test_a_second_call_with_the_same_shapes_checks_and_loads_nothing(launches, monkeypatch):
    a, b, out = matrix(16, 24), matrix(8, 24).t(), matrix(16, 8)
    assert hopper_gemm.matmul(a, b, out=out) is out
    monkeypatch.setattr(room, "first_call", None)
    others = matrix(16, 24), matrix(8, 24).t(), matrix(16, 8)
    assert hopper_gemm.matmul(*others[:2], out=others[2]) is others[2]
    assert launches.loaded == [(None, GemmProblem(16, 8, 24))]
    assert [(problem, shape) for problem, shape, _ in launches.made] == [(GemmProblem(16, 8, 24), (8, 24))] * 2
    assert launches.made[1][2] == others[2].data_ptr()


def test_an_output_that_is_not_given_is_made_each_time(launches):
    a, b = matrix(16, 24), matrix(8, 24).t()
    first, second = hopper_gemm.matmul(a, b), hopper_gemm.matmul(a, b)
    assert first.shape == second.shape == (16, 8)
    assert first.dtype == second.dtype == a.dtype
    assert first.data_ptr() != second.data_ptr()
    assert len(launches.loaded) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_fp32_output_is_another_problem_and_is_remembered_beside_the_other(launches, dtype):
    a, b = matrix(16, 24, dtype), matrix(8, 24, dtype).t()
    for _ in range(2):
        assert hopper_gemm.matmul(a, b).dtype == dtype
        assert hopper_gemm.matmul(a, b, out_dtype=dtype).dtype == dtype
        assert hopper_gemm.matmul(a, b, out_dtype=torch.float32).dtype == torch.float32
        out = matrix(16, 8, torch.float32)
        assert hopper_gemm.matmul(a, b, out=out) is out
        assert hopper_gemm.matmul(a, b, out=out, out_dtype=torch.float32) is out
    name = room.DTYPES[dtype]
    dtypes = [problem.dtype for _, problem in launches.loaded]
    again = (
        [] if launches.native else [name, *[f"{name}_fp32"] * 2]
    )  # to the extension outputs are alike if their types are
    assert sorted(dtypes) == sorted([name, f"{name}_fp32", *again])


@pytest.mark.parametrize("out", [None, matrix(16, 16)], ids=["made", "given"])
def test_what_differs_in_anything_is_checked_again_and_refused_as_ever(launches, out):
    """After a good call with the same shapes: other types."""
    a, b = matrix(16, 16), matrix(16, 16).t()
    hopper_gemm.matmul(a, b, out=out)
    with pytest.raises(TypeError, match=r"got torch.bfloat16 and torch.float16"):
        hopper_gemm.matmul(a, matrix(16, 16, torch.float16).t(), out=out)
    with pytest.raises(ValueError, match=r"out must be \(16, 16\)"):
        hopper_gemm.matmul(a, b, out=matrix(16, 16, torch.float16))
    assert len(launches.made) == 1


def within(rows, columns, step=1, offset=0, by_rows=True):
    """A random matrix that is part of a larger one."""
    sides = (rows * step, columns * step + offset)
    if not by_rows:
        return within(columns, rows, step, offset).t()
    return torch.randn(sides).to(torch.bfloat16)[::step, offset::step]


REACHED = [
    (within(16, 24), within(24, 8), "kn", 0),
    (within(16, 24, by_rows=False), within(24, 8, by_rows=False), "mk", 0),
    (within(13, 24), within(24, 16), "kn", 0),
    (within(16, 21), within(21, 8, by_rows=False), "kk", 2),
    (within(16, 24), within(24, 9, by_rows=False), "kk", 0),
    (within(13, 24, by_rows=False), within(24, 16), "mn", 1),
    (within(16, 24, offset=1), within(24, 8, by_rows=False), "kk", 1),
    (within(16, 24, step=2), within(24, 8, step=2), "kk", 2),
    (torch.randn(1, 24).to(torch.bfloat16).expand(16, 24), within(24, 8), "kn", 1),
    (within(5, 3), within(3, 7), "kn", 2),
]
"""Operands, the layouts in which they are read, and how many must be padded, or copied, to be."""


@pytest.mark.parametrize(("a", "b", "layouts", "copied"), REACHED)
@pytest.mark.parametrize("wide", [False, True], ids=["same", "fp32"])
@pytest.mark.parametrize("given", ["none", "aligned", "shifted"])
def test_what_tma_cannot_reach_is_padded_and_nothing_else(launches, a, b, layouts, copied, given, wide):
    m, n, dtype = a.shape[0], b.shape[1], torch.float32 if wide else a.dtype
    whole = {"aligned": matrix(m, 48, dtype), "shifted": matrix(m, 49, dtype)}
    out = {"none": None, "aligned": whole["aligned"][:, :n], "shifted": whole["shifted"][:, 1 : n + 1]}[given]
    product = hopper_gemm.matmul(a, b, out=out, out_dtype=dtype)
    assert product.dtype == dtype
    torch.testing.assert_close(product, a.float() @ b.float() if wide else a @ b)
    assert product.is_contiguous() if out is None else product is out
    ((problem, _, written),) = launches.made
    assert problem == GemmProblem(m, n, a.shape[1], "bf16_fp32" if wide else "bf16", layouts)
    assert reasons(default_config(problem), problem) == []
    read_a, read_b = launches.read[0]
    assert (read_a.data_ptr() != a.data_ptr()) + (read_b.data_ptr() != b.data_ptr()) == copied
    assert written == product.data_ptr(), "in place"
    assert launches.scattered == [given == "shifted" or (given == "none" and n * dtype.itemsize % 16 != 0)]


@pytest.mark.parametrize("out", [matrix(16, 8).t(), matrix(8, 32)[:, ::2]], ids=["columns", "every other"])
def test_an_output_without_contiguous_rows_is_written_from_a_buffer(launches, out):
    a, b = random(8, 24), random(24, 16)
    assert hopper_gemm.matmul(a, b, out=out) is out
    assert torch.equal(out, a @ b)


def test_a_second_call_at_an_odd_address_loads_nothing_either(launches):
    a, b = within(16, 16), within(16, 16).t()
    shifted = torch.randn(16 * 16 + 1).to(torch.bfloat16)[1:].view(16, 16)
    others = [(shifted, b, matrix(16, 16)), (a, shifted.t(), matrix(16, 16)), (a, b, matrix(16, 24)[:, 1:17])]
    for _ in range(2):
        for left, right, out in (*others, (a, b, matrix(16, 24)[:, 8:])):
            assert torch.equal(hopper_gemm.matmul(left, right, out=out), left @ right)
            assert torch.equal(hopper_gemm.matmul(left, right), left @ right)
    assert len(launches.loaded) == 7
    with pytest.raises(ValueError, match="out must not share memory"):
        hopper_gemm.matmul(shifted, b, out=shifted)


def test_config_and_context_are_part_of_what_is_remembered(launches):
    a, b = matrix(16, 16), matrix(16, 16).t()
    for config in (None, GemmConfig(), GemmConfig(tile_m=128), GemmConfig()):
        hopper_gemm.matmul(a, b, config=config)
        with hopper_gemm.chained():
            hopper_gemm.matmul(a, b)
    configs = [config for config, _ in launches.loaded]
    assert configs == [None, None, GemmConfig(), GemmConfig(tile_m=128)], "the second of the chained context"


def test_among_several_gpus_that_of_the_matrices_is_made_current_where_it_is_not(monkeypatch):
    launches = Launches(monkeypatch, devices=2, current=-1)
    a, b = matrix(16, 16), matrix(16, 16).t()
    hopper_gemm.matmul(a, b)
    hopper_gemm.matmul(a, b)
    assert launches.entered == [-1], "only while the kernel was loaded"
    launches.current = 1
    hopper_gemm.matmul(a, b)
    assert launches.entered == [-1, -1]


# Tensors that are not what their memory holds ------------------------------------------------


def random(rows, columns, dtype=torch.bfloat16):
    return torch.randn(rows, columns).to(dtype)


@pytest.mark.parametrize("warm", [False, True], ids=["first call", "known"])
@pytest.mark.parametrize("which", ["a", "b", "out"])
def test_a_gradient_through_out_is_refused_and_never_dropped(launches, which, warm):
    tensors = {"a": random(16, 16), "b": random(16, 16), "out": random(16, 16)}
    if warm:
        hopper_gemm.matmul(**tensors)
        with torch.no_grad():
            hopper_gemm.matmul(**{**tensors, which: tensors[which].clone().requires_grad_()})
    made = len(launches.made)
    tensors[which].requires_grad_()
    with pytest.raises(RuntimeError, match=r"out must be None where a gradient is recorded; .* or torch.no_grad\(\)"):
        hopper_gemm.matmul(**tensors)
    assert len(launches.made) == made
    with torch.no_grad():
        assert hopper_gemm.matmul(**tensors) is tensors["out"]
    with torch.inference_mode():
        hopper_gemm.matmul(**tensors)
    assert len(launches.made) == made + 2


def test_where_a_gradient_is_recorded_the_operator_multiplies_and_takes_no_config(launches):
    a, b = random(16, 16).requires_grad_(), random(16, 16)
    assert "hopper_gemm_mm" in type(hopper_gemm.matmul(a, b).grad_fn).__name__
    with pytest.raises(RuntimeError, match="config must be None where gradients are recorded"):
        hopper_gemm.matmul(a, b, config=GemmConfig())


def test_a_parameter_is_read_as_a_tensor_without_gradients(launches):
    weight = torch.nn.Parameter(random(8, 24))
    x = random(16, 24)
    with torch.no_grad():
        assert torch.equal(hopper_gemm.matmul(x, weight.t()), x @ weight.t())
        assert torch.equal(hopper_gemm.matmul(torch.nn.Parameter(x), weight.t()), x @ weight.t())
    frozen = torch.nn.Parameter(random(24, 8), requires_grad=False)
    assert torch.equal(hopper_gemm.matmul(x, frozen), x @ frozen)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("which", ["a", "b", "both"])
def test_a_negated_view_is_read_with_its_sign(launches, which, known):
    a, b = random(16, 24), random(24, 8)
    if known:
        hopper_gemm.matmul(a, b)
    left = torch._neg_view(a) if which in ("a", "both") else a
    right = torch._neg_view(b) if which in ("b", "both") else b
    expected = a @ b if which == "both" else -(a @ b)
    for _ in range(2):
        assert torch.equal(hopper_gemm.matmul(left, right), expected)
    assert torch.equal(hopper_gemm.matmul(a, b), a @ b)


@pytest.mark.parametrize("known", [False, True])
def test_a_negated_output_ends_up_with_the_product(launches, known):
    a, b, out = random(16, 24), random(24, 8), random(16, 8)
    if known:
        hopper_gemm.matmul(a, b, out=out)
    for _ in range(2):
        negated = torch._neg_view(random(16, 8))
        assert hopper_gemm.matmul(a, b, out=negated) is negated
        assert torch.equal(negated.resolve_neg(), a @ b)


class Tagged(torch.Tensor):
    """A tensor of a kind of its own."""


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: random(16, 16).as_subclass(Tagged), "test_matmul.Tagged; take its plain tensor"),
        (lambda: np.zeros((16, 16), np.float16), "a numpy.ndarray; convert it with torch.as_tensor"),
        (lambda: [[1.0] * 16] * 16, "a builtins.list; convert it"),
        (lambda: 3, "a builtins.int; convert it"),
    ],
)
@pytest.mark.parametrize("which", ["a", "b", "out"])
def test_what_is_no_plain_tensor_is_refused_in_one_line(launches, make, kind, which):
    tensors = {"a": random(16, 16), "b": random(16, 16), "out": random(16, 16)}
    for _ in range(2):
        with pytest.raises(TypeError) as caught:
            hopper_gemm.matmul(**{**tensors, which: make()}, fallback="never")
        assert str(caught.value).startswith(f"{which} must be a plain torch tensor but is a ")
        assert kind in str(caught.value)
        assert "\n" not in str(caught.value)
        hopper_gemm.matmul(**tensors)


# Strides that lie ----------------------------------------------------------------------------


def overlapping(rows, columns, step):
    """Rows that begin ``step`` elements apart, fewer than they are long."""
    return random(1, rows * step + columns).view(-1).as_strided((rows, columns), (step, 1))


@pytest.mark.parametrize(
    "a",
    [
        random(1, 24).expand(16, 24),
        random(16, 1).expand(16, 24),
        random(1, 1).expand(16, 24),
        overlapping(16, 24, 8),
        random(24, 1).expand(24, 16).t(),
        torch.randn(24).to(torch.bfloat16).expand(1, 24),
        random(1, 64).as_strided((1, 24), (8, 1)),
    ],
    ids=["row", "column", "element", "overlapping rows", "transposed", "a vector", "one row with a short pitch"],
)
def test_strides_that_lie_are_copied_and_the_product_is_right(launches, a):
    """TMA would be given a pitch of 0, or one shorter than a row."""
    b = random(24, 8)
    torch.testing.assert_close(hopper_gemm.matmul(a, b), a @ b)  # torch's own sums depend on the strides
    torch.testing.assert_close(hopper_gemm.matmul(b.t(), a.t()), b.t() @ a.t())
    for one in (one for pair in launches.read for one in pair):
        rows = one if one.stride(1) == 1 else one.t()
        assert rows.stride(0) >= rows.shape[1]


@pytest.mark.parametrize(
    "out",
    [random(1, 16).expand(16, 16), random(16, 1).expand(16, 16), overlapping(16, 16, 8)],
    ids=["row", "column", "overlapping rows"],
)
@pytest.mark.parametrize("known", [False, True])
def test_an_output_whose_elements_share_a_place_is_refused(launches, out, known):
    a, b = random(16, 16), random(16, 16)
    if known:
        hopper_gemm.matmul(a, b, out=random(16, 16))
    with pytest.raises(ValueError, match=r"out must have a place in memory for each element but has strides"):
        hopper_gemm.matmul(a, b, out=out)


# Memory shared between an operand and the output ---------------------------------------------


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("which", ["a", "b"])
def test_an_output_that_shares_memory_with_an_operand_is_refused(launches, which, known):
    tensors = {"a": random(16, 16), "b": random(16, 16)}
    if known:
        hopper_gemm.matmul(**tensors, out=random(16, 16))
    whole = random(17, 16)
    tensors[which] = whole[:16]
    for out in (whole[:16], whole[1:]):
        with pytest.raises(ValueError, match="out must not share memory with a or b"):
            hopper_gemm.matmul(**tensors, out=out)


def test_blocks_of_one_matrix_that_share_no_element_are_an_operand_and_an_output(launches):
    whole, b = random(16, 48), random(16, 16)
    a, expected = whole[:, :16], whole[:, :16] @ b
    for out in (whole[:, 16:32], whole[:, 32:]):
        for _ in range(2):
            assert torch.equal(hopper_gemm.matmul(a, b, out=out), expected)
    with pytest.raises(ValueError, match="out must not share memory"):
        hopper_gemm.matmul(a, b, out=whole[:, 8:24])


def test_shared_memory_is_told_exactly_for_rows_of_one_pitch():
    """Against the places themselves, for every pair of blocks of a small matrix."""
    memory = torch.zeros(12, 10)
    sizes = [(rows, columns) for rows in (1, 3, 9) for columns in (1, 3, 5)]
    starts = [(row, column) for row in (0, 1, 3) for column in (0, 2, 5)]
    blocks = [memory[r : r + rows, c : c + columns] for r, c in starts for rows, columns in sizes]
    places = [
        {10 * (r + row) + c + column for row in range(rows) for column in range(columns)}
        for r, c in starts
        for rows, columns in sizes
    ]
    for one, own in zip(blocks, places, strict=True):
        for other, others in zip(blocks, places, strict=True):
            assert operands.share_memory(one, other) == bool(own & others), (one.shape, other.shape)
    assert operands.share_memory(memory, memory.t()[1:])
    other_pitch = memory.as_strided((2, 4), (12, 1), 4)  # beside the first columns, then in them
    assert operands.share_memory(memory[:, :4], other_pitch)
    assert not operands.share_memory(memory, torch.zeros(12, 10))


# Nothing to multiply -------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(0, 8, 8), (8, 0, 8), (8, 8, 0), (0, 0, 0), (0, 8, 0)], ids=str)
@pytest.mark.parametrize("wide", [False, True], ids=["same", "fp32"])
def test_a_size_of_zero_gives_what_torch_gives(launches, sizes, wide):
    m, n, k = sizes
    a, b = random(m, k), random(k, n)
    dtype = torch.float32 if wide else None
    product = hopper_gemm.matmul(a, b, out_dtype=dtype)
    assert product.dtype == (dtype or a.dtype)
    assert torch.equal(product, (a @ b).to(product.dtype))
    out = torch.full((m, n), float("nan"), dtype=product.dtype)
    assert hopper_gemm.matmul(a, b, out=out) is out
    assert torch.equal(out, product)
    assert not launches.made
    with pytest.raises(ValueError, match="a and b must be"):
        hopper_gemm.matmul(a, random(k + 1, n))


# Contexts and captures -----------------------------------------------------------------------


@pytest.mark.parametrize("capturing", [False, True])
def test_a_first_call_within_a_capture_loads_with_what_captures_forbid_allowed(launches, monkeypatch, capturing):
    from cuda.bindings import driver

    modes = []

    def exchange(mode):
        modes.append((mode, len(launches.loaded), len(launches.made)))
        return 0, "before"

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    monkeypatch.setattr(driver, "cuThreadExchangeStreamCaptureMode", exchange)
    for _ in range(2):
        hopper_gemm.matmul(matrix(16, 16), matrix(16, 16))
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    assert modes == ([(relaxed, 0, 0), ("before", 1, 1)] if capturing else [])


def test_a_change_of_the_tuned_tables_lets_later_calls_ask_for_their_kernel_again(launches):
    """A call that began before the change does not bring its kernel back."""
    a, b = matrix(16, 24), matrix(8, 24).t()
    hopper_gemm.matmul(a, b)
    hopper_gemm.matmul(a, b)
    assert len(launches.loaded) == 1
    CHANGES.happened()
    kernel_for = room.kernel_for
    room.kernel_for = lambda *asked, **how: CHANGES.happened() or launches.kernel(*asked, **how)
    hopper_gemm.matmul(a, b)
    room.kernel_for = kernel_for
    hopper_gemm.matmul(a, b)
    hopper_gemm.matmul(a, b)
    assert len(launches.loaded) == 3


def test_batch_invariance_is_part_of_the_problem_by_argument_or_by_the_threads_context(launches):
    a, b = matrix(16, 24), matrix(8, 24).t()
    hopper_gemm.matmul(a, b)
    with hopper_gemm.batch_invariant():
        hopper_gemm.matmul(a, b)
        hopper_gemm.matmul(a, b, batch_invariant=False)
        with ThreadPoolExecutor(1) as other:
            other.submit(hopper_gemm.matmul, a, b).result()
    hopper_gemm.matmul(a, b, batch_invariant=True)
    plain, asked = GemmProblem(16, 8, 24), GemmProblem(16, 8, 24, batch_invariant=True)
    assert [problem for problem, _, _ in launches.made] == [plain, asked, plain, plain, asked]
    assert [problem for _, problem in launches.loaded] == [plain, asked], "each is looked up once"


def test_a_padded_operand_keeps_the_condition(launches):
    hopper_gemm.matmul(within(13, 21), within(21, 9), batch_invariant=True)
    assert launches.loaded[-1][1] == GemmProblem(13, 9, 21, layouts="kn", batch_invariant=True)
