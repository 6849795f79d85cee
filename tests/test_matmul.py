"""What the drop-in refuses, before any GPU is touched."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

import hopper_gemm
from hopper_gemm import drop_in
from hopper_gemm.drop_in import default_config
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.legality import reasons
from hopper_gemm.model.problem import GemmProblem


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
        (matrix(0, 8), matrix(8, 8).t(), ValueError, "m, n and k must be positive"),
        (matrix(8, 8), matrix(8, 8).t(), RuntimeError, "must be on a Hopper GPU but are on cpu"),
    ],
)
def test_what_cannot_be_multiplied_is_refused_with_the_mend(a, b, error, message):
    with pytest.raises(error) as caught:
        hopper_gemm.matmul(a, b)
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
def test_each_operand_is_read_along_the_axis_that_is_contiguous(a, b, layouts):
    assert drop_in._problem(a, b).layouts == layouts


@pytest.mark.parametrize("layouts", ["mk", "kn", "mn"])
def test_other_layouts_find_a_config_that_can_run_them(layouts):
    for sizes in ((8, 8, 8), (4096, 4096, 4096), (64, 28672, 4096)):
        problem = GemmProblem(*sizes, layouts=layouts)
        assert reasons(default_config(problem), problem) == []


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


@pytest.mark.parametrize("sizes", [(1, 8, 8), (4096, 4096, 4096), (100_000, 64, 8192)])
def test_the_default_config_can_run_any_problem_that_any_config_can(sizes):
    problem = GemmProblem(*sizes)
    assert reasons(default_config(problem), problem) == []


class Launches:
    """Stands in for a GPU: every check but that of the device is made, and launches are noted."""

    def __init__(self, monkeypatch, devices: int = 1, current: int = -1) -> None:
        self.made, self.entered, self.loaded, self.read = [], [], [], []
        self.current = current
        monkeypatch.setattr(drop_in, "_known", {})
        monkeypatch.setattr(drop_in, "_check_device", lambda device: None)
        monkeypatch.setattr(drop_in, "_kernel", self._kernel)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: self.current)
        monkeypatch.setattr(torch.cuda, "device", self._device)

    def _kernel(self, config, problem, device):
        self.loaded.append((config, problem))

        def launch(a, b, out):
            out.copy_(a @ b.t())
            self.made.append((problem, b.shape, out))
            self.read.append((a, b))

        return launch

    @contextmanager
    def _device(self, index):
        self.entered.append(index)
        yield


@pytest.fixture
def launches(monkeypatch):
    return Launches(monkeypatch)


def test_a_second_call_with_the_same_shapes_checks_and_loads_nothing(launches, monkeypatch):
    a, b, out = matrix(16, 24), matrix(8, 24).t(), matrix(16, 8)
    assert hopper_gemm.matmul(a, b, out=out) is out
    monkeypatch.setattr(drop_in, "_problem", None)
    monkeypatch.setattr(drop_in, "_check_out", None)
    others = matrix(16, 24), matrix(8, 24).t(), matrix(16, 8)
    assert hopper_gemm.matmul(*others[:2], out=others[2]) is others[2]
    assert launches.loaded == [(None, GemmProblem(16, 8, 24))]
    assert [(problem, shape) for problem, shape, _ in launches.made] == [(GemmProblem(16, 8, 24), (8, 24))] * 2
    assert launches.made[1][2] is others[2]


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
    name = drop_in.DTYPES[dtype]
    dtypes = [problem.dtype for _, problem in launches.loaded]
    assert dtypes == [name, name, *[f"{name}_fp32"] * 3]


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
    (within(16, 24), within(24, 9, by_rows=False), "kk", 1),
    (within(13, 24, by_rows=False), within(24, 16), "mn", 1),
    (within(16, 24, offset=1), within(24, 8, by_rows=False), "kk", 1),
    (within(16, 24, step=2), within(24, 8, step=2), "kk", 2),
    (torch.randn(1, 24).to(torch.bfloat16).expand(16, 24), within(24, 8), "kn", 1),
    (within(5, 3), within(3, 7), "kn", 2),
]
"""Operands, the layouts in which they are read, and how many must be copied to be."""


@pytest.mark.parametrize(("a", "b", "layouts", "copied"), REACHED)
@pytest.mark.parametrize("given", ["none", "aligned", "shifted"])
def test_what_tma_cannot_reach_is_copied_and_nothing_else(launches, a, b, layouts, copied, given):
    m, n = a.shape[0], b.shape[1]
    out = {"none": None, "aligned": matrix(m, 32)[:, :n], "shifted": matrix(m, 33)[:, 1 : n + 1]}[given]
    product = hopper_gemm.matmul(a, b, out=out)
    assert torch.equal(product, a @ b)
    assert product.is_contiguous() if out is None else product is out
    ((problem, _, written),) = launches.made
    assert problem.layouts == layouts
    assert reasons(default_config(problem), problem) == []
    read_a, read_b = launches.read[0]
    assert (read_a.data_ptr() != a.data_ptr()) + (read_b.data_ptr() != b.data_ptr()) == copied
    if given == "aligned" and n % 8 == 0 and problem.m == m:
        assert written is out


@pytest.mark.parametrize(("a", "b", "layouts", "copied"), REACHED)
@pytest.mark.parametrize("given", ["none", "aligned", "shifted"])
def test_copies_for_tma_keep_an_fp32_output(launches, a, b, layouts, copied, given):
    m, n = a.shape[0], b.shape[1]
    wide = matrix(m, 36, torch.float32)
    out = {"none": None, "aligned": wide[:, :n], "shifted": wide[:, 1 : n + 1]}[given]
    product = hopper_gemm.matmul(a, b, out=out, out_dtype=torch.float32)
    assert product.dtype == torch.float32
    assert torch.equal(product, (a @ b).float())
    assert product.is_contiguous() if out is None else product is out
    ((problem, _, written),) = launches.made
    assert (problem.dtype, problem.layouts) == ("bf16_fp32", layouts)
    if given == "aligned" and n % 8 == 0 and problem.m == m:
        assert written is out, "rows of 36 floats start at multiples of 16 bytes"


def test_what_was_in_reach_is_copied_where_its_address_no_longer_is(launches):
    a, b = within(16, 16), within(16, 16).t()
    shifted = torch.randn(16 * 16 + 1).to(torch.bfloat16)[1:].view(16, 16)
    for left, right in ((a, b), (shifted, b), (a, shifted.t()), (a, b)):
        assert torch.equal(hopper_gemm.matmul(left, right), left @ right)
    out = matrix(16, 17)[:, 1:]
    assert torch.equal(hopper_gemm.matmul(a, b, out=out), a @ b)


def test_a_config_is_part_of_what_is_remembered(launches):
    a, b = matrix(16, 16), matrix(16, 16).t()
    for config in (None, GemmConfig(), GemmConfig(tile_m=128), GemmConfig()):
        hopper_gemm.matmul(a, b, config=config)
    assert [config for config, _ in launches.loaded] == [None, GemmConfig(), GemmConfig(tile_m=128)]


def test_among_several_gpus_that_of_the_matrices_is_made_current_where_it_is_not(monkeypatch):
    launches = Launches(monkeypatch, devices=2, current=-1)
    a, b = matrix(16, 16), matrix(16, 16).t()
    hopper_gemm.matmul(a, b)
    hopper_gemm.matmul(a, b)
    assert launches.entered == [-1], "only while the kernel was loaded"
    launches.current = 1
    hopper_gemm.matmul(a, b)
    assert launches.entered == [-1, -1]


def test_what_is_remembered_has_a_bound(launches, monkeypatch):
    monkeypatch.setattr(drop_in, "_KNOWN_MOST", 4)
    for m in range(1, 20):
        hopper_gemm.matmul(matrix(m, 16), matrix(16, 16).t())
        assert len(drop_in._known) <= 4


@pytest.mark.parametrize("by_rows", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize(("size", "filled"), [((5, 7), (5, 8)), ((5, 8), (8, 8)), ((5, 7), (8, 8)), ((8, 16), (8, 16))])
def test_a_copy_holds_the_operand_and_zeros_along_k(monkeypatch, by_rows, size, filled):
    """Whatever was in the memory: zeros meet the other operand's, and 0 times NaN would not be 0."""
    for name in ("new_empty", "new_zeros"):
        value = float("nan") if name == "new_empty" else 0.0
        monkeypatch.setattr(
            torch.Tensor, name, lambda self, *shape, value=value: torch.full(shape, value).to(self.dtype)
        )
    operand = torch.arange(1.0, 1 + size[0] * size[1]).reshape(size).to(torch.bfloat16)
    if by_rows:
        operand = operand.t().contiguous().t()
    copy = drop_in._reachable(operand, *filled)
    assert copy.shape == filled
    assert torch.equal(copy[: size[0], : size[1]], operand)
    assert not copy[: size[0], size[1] :].any()
    assert (copy.t() if by_rows else copy).is_contiguous()
    if size == filled:
        assert copy is operand
