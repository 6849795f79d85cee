"""grouped_mm takes what torch's takes, gives each group's product and gradients, and refuses the rest in one line."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import hopper_gemm
from hopper_gemm.serve import grouped_mm as room
from hopper_gemm.serve.checks import UnsupportedError
from tests.serve.layers import with_gradients
from tests.serve.refusal import refused_in_one_line
from tests.serve.test_ops import near

functional = torch.nn.functional
needs_torch = pytest.mark.skipif(not hasattr(functional, "grouped_mm"), reason="torch has no grouped_mm")

GROUPS, ROWS, N, K = 4, 40, 48, 32
SPANS = (0, 3), (3, 3), (3, 31), (31, ROWS)
operator = torch.ops.hopper_gemm.grouped_mm


def operands(dtype=torch.bfloat16, ends=(3, 3, 31, ROWS)):
    """a (rows, k), b (groups, k, n) as transposed weights, and where groups end."""
    a, b = torch.randn(ROWS, K).to(dtype), torch.randn(GROUPS, N, K).to(dtype).mT
    return a, b, torch.tensor(ends, dtype=torch.int32)


def exact(a, b, ends):
    out, start = a.new_zeros(ROWS, N, dtype=torch.float64), 0
    for group, end in enumerate(ends.tolist()):
        end = max(start, min(end, ROWS))
        out[start:end] = a[start:end].double() @ b[group].double()
        start = end
    return out


@pytest.fixture
def gpu(monkeypatch):
    """A stand-in for a GPU: the operator of CPU tensors runs what it runs there, and launches are noted."""
    made = []

    def kernel_for(problem, device, finish=None):
        def launch(a, b, out, *added, ends=None):
            made.append((problem, a, b, out, ends))
            assert (finish is None) == (added == ())
            bias, activation = None, None
            if finish is not None:
                bias, activation = added[0], "swiglu" if finish.gated else finish.activation or None
                assert added[1:] == (None, None)
                assert finish.bias == (bias is not None)
            bias = None if bias is None else bias.view(len(b), -1)
            masked = problem.grouping.startswith("masked")
            call = room.Grouped(a, b.mT, ends, out.dtype, bias, activation, masked)
            product = room._on_cpu(*call)
            for start, end in [(0, len(out))] if call.deep else call.spans():
                out[start:end] = product[start:end]

        return launch

    monkeypatch.setattr(room.launches, "kernel_for", kernel_for)
    monkeypatch.setattr(room.checks, "check_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    room.kernel_of_groups.cache_clear()
    yield made
    room.kernel_of_groups.cache_clear()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("out_dtype", [None, torch.float32])
def test_a_call_is_one_launch_whose_problem_knows_no_routing(gpu, dtype, out_dtype):
    for ends in ((3, 3, 31, 40), (0, 0, 0, 40), (10, 20, 30, 40)):
        a, b, offs = operands(dtype, ends)
        out = room._on_gpu(a, b, offs, out_dtype)
        assert out.dtype == out_dtype or dtype
        assert near(out, exact(a, b, offs), dtype)
    problems = {problem for problem, *_ in gpu}
    ((m, n, k, groups, layouts),) = {
        (problem.m, problem.n, problem.k, problem.groups, problem.layouts) for problem in problems
    }
    assert (m, n, k, groups, layouts) == (ROWS, N, K, GROUPS, "kk")
    assert len(gpu) == 3


def test_operands_are_read_in_place_and_b_along_either_axis(gpu):
    a, b, offs = operands()
    rows = b.contiguous()
    for left, right, layouts in ((a, b, "kk"), (a, rows, "kn")):
        room._on_gpu(left, right, offs)
        problem, read_a, read_b, _, ends = gpu[-1]
        assert problem.layouts == layouts
        assert [read_a.data_ptr(), read_b.data_ptr(), ends.data_ptr()] == [
            left.data_ptr(), right.data_ptr(), offs.data_ptr()
        ]  # fmt: skip


def test_what_tma_cannot_reach_is_copied(gpu):
    a, b, offs = operands()
    memory = a.new_zeros(a.numel() + 1)
    odd = memory[1:].view(a.shape).copy_(a)
    ends = torch.cat((torch.zeros(1, dtype=torch.int32), offs))[1:]
    out = room._on_gpu(odd, b[:1].expand(GROUPS, K, N), ends)
    assert near(out, exact(a, b[:1].expand(GROUPS, K, N), offs), torch.bfloat16)
    _, left, right, _, read = gpu[-1]
    assert not any(tensor.data_ptr() % 16 for tensor in (left, right, read))
    assert right.stride(0) == N * K
    room._on_gpu(a.t().contiguous().t(), b, offs)  # groups begin at rows off multiples of 16 bytes
    assert gpu[-1][0].layouts == "kk"


@pytest.mark.parametrize(("rows", "groups", "n", "k"), [(0, 4, 8, 8), (4, 0, 8, 8), (4, 2, 0, 8), (4, 2, 8, 0)])
def test_products_of_nothing_are_empty_or_zero(gpu, rows, groups, n, k):
    a, b = torch.randn(rows, k).bfloat16(), torch.randn(groups, k, n).bfloat16()
    out = room._on_gpu(a, b, torch.full((groups,), rows, dtype=torch.int32))
    assert out.shape == (rows, n)
    assert not out.any()
    assert gpu == []


def test_offsets_that_fall_or_exceed_the_rows_are_clamped():
    a, b, offs = operands(ends=(20, 5, -3, 90))
    out = operator(a, b, offs)
    assert near(out, exact(a, b, offs), torch.bfloat16)
    assert near(out[20:], a[20:].double() @ b[3].double(), torch.bfloat16)


@pytest.mark.parametrize(
    ("ends", "masked", "words"),
    [
        ((3, 2, 31, 40), False, r"offs\[1\] must be 3 to 40 but is 2; offs must neither fall nor exceed all"),
        ((3, 3, 31, 41), False, r"offs\[3\] must be 31 to 40 but is 41"),
        ((-1, 3, 31, 40), False, r"offs\[0\] must be 0 to 40 but is -1"),
        ((3, 11, 0, 10), True, r"counts\[1\] must be 0 to 10 but is 11; counts must be of its group"),
        ((3, 10, 0, -1), True, r"counts\[3\] must be 0 to 10 but is -1"),
    ],
)
def test_offsets_are_checked_on_the_host_where_that_is_asked_for(gpu, ends, masked, words):
    """Along k too; what fits passes, and without the context all of them are clamped."""
    a, b, offs = operands(ends=ends)
    for run in (operator, room._on_gpu):
        with hopper_gemm.checked_offsets():
            refused_in_one_line(lambda run=run: run(a, b, offs, masked=masked), ValueError, words)
            refused_in_one_line(lambda run=run: run(a.t(), a, offs, masked=masked), ValueError, words)
            run(a, b, torch.tensor((3, 3, 9, 10), dtype=torch.int32), masked=masked)
        run(a, b, offs, masked=masked)


def test_offsets_are_checked_where_torch_multiplies_too():
    a, b, _ = operands()
    with hopper_gemm.checked_offsets():
        for end in (ROWS + 1, 10**6):
            offs = torch.tensor((3, 3, 9, end), dtype=torch.int32)
            refused_in_one_line(lambda offs=offs: hopper_gemm.grouped_mm(a, b, offs=offs), ValueError, f"but is {end}")
        # groups of columns of mat_b, more of them than mat_a has rows
        columns, rows = torch.randn(2, 4, K).bfloat16(), torch.randn(K, 48).bfloat16()
        assert hopper_gemm.grouped_mm(columns, rows, offs=torch.tensor((16, 48), dtype=torch.int32)).shape == (4, 48)
        past = torch.tensor((16, 49), dtype=torch.int32)
        refused_in_one_line(lambda: hopper_gemm.grouped_mm(columns, rows, offs=past), ValueError, "16 to 48 but is 49")


def test_groups_along_k_are_one_launch_of_operands_read_along_their_rows(gpu):
    a, _, offs = operands()
    b = torch.randn(ROWS, N).bfloat16()
    right = torch.stack([a[s:e].double().t() @ b[s:e].double() for s, e in SPANS])
    for left in (a.t(), a.t().contiguous()):
        out = room._on_gpu(left, b, offs, torch.float32)
        assert torch.allclose(out.double(), right, atol=1e-4)
    problem, read_a, read_b, _, _ = gpu[0]
    assert (problem.grouping, problem.layouts, problem.m, problem.k) == ("depth", "mn", K, ROWS)
    assert [read_a.data_ptr(), read_b.data_ptr()] == [a.data_ptr(), b.data_ptr()]
    assert gpu[1][1].stride() == (1, K)


def test_gradients_of_groups_along_k_are_those_of_float64():
    a, _, offs = operands()
    pairs = with_gradients(
        lambda a, b: operator(a, b, offs),
        lambda a, b: torch.stack([a[:, start:end] @ b[start:end] for start, end in SPANS]),
        (a.t(), torch.randn(ROWS, N).bfloat16()),
    )
    assert all(near(found, right, torch.bfloat16) for found, right in pairs)


@pytest.mark.parametrize("activation", [None, "swiglu"])
def test_experts_weights_get_their_gradient_as_they_lie(activation):
    """A gradient that lies otherwise is copied, which takes longer than the products."""
    a, b, offs = operands()
    weights = b.mT.contiguous().requires_grad_()
    lying, right = [], weights.detach().mT.contiguous().requires_grad_()
    view = weights.mT
    view.register_hook(lambda gradient: lying.append(gradient.stride()))
    operator(a, view, offs, activation=activation).float().square().sum().backward()
    operator(a, right, offs, activation=activation).float().square().sum().backward()
    assert lying == [view.stride()]
    assert near(weights.grad.mT, right.grad.double(), torch.bfloat16)


class Counted(TorchDispatchMode):
    """Counts calls of the operator."""

    calls = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls += function is torch.ops.hopper_gemm.grouped_mm.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("activation", ["swiglu", "silu"])
def test_a_backward_pass_computes_no_product_of_groups_once_more(gpu, activation):
    """What is before an activation is kept: of two operands the gradients are two products."""
    a, b, offs = operands()
    a, b = a.requires_grad_(), b.requires_grad_()
    with Counted() as counted:
        public(a, b, offs, None, activation).float().sum().backward()
    assert counted.calls == 3


def test_groups_along_k_have_no_activation_with_a_gradient_either(gpu):
    a, b = torch.randn(8, ROWS).bfloat16().requires_grad_(), torch.randn(ROWS, N).bfloat16()
    with pytest.raises(ValueError, match="must be None unless groups are rows"):
        hopper_gemm.grouped_mm(a, b, offs=torch.tensor([8, ROWS], dtype=torch.int32), activation="gelu")


FOLLOWING = [(True, one) for one in (None, "silu", "gelu_tanh")]
FOLLOWING += [(False, one) for one in (None, "gelu", "relu", "swiglu")]
"""Whether there is a bias, and an activation."""


def layer(a, b, bias, activation, ends=SPANS):
    """What torch makes of each group, in the type of the operands."""
    parts = []
    for group, (start, end) in enumerate(ends):
        z = a[start:end] @ b[group] if bias is None else a[start:end] @ b[group] + bias[group]
        gate, up = z.chunk(2, -1)
        approximate = "tanh" if activation == "gelu_tanh" else "none"
        parts.append(
            functional.silu(gate) * up
            if activation == "swiglu"
            else functional.gelu(z, approximate=approximate)
            if activation in ("gelu", "gelu_tanh")
            else getattr(functional, activation)(z)
            if activation
            else z
        )
    return torch.cat(parts)


def public(a, b, offs, bias, activation):
    """A call of the function for an activation."""
    if activation == "swiglu":
        return hopper_gemm.grouped_swiglu(a, b, offs=offs)
    return hopper_gemm.grouped_mm(a, b, offs=offs, bias=bias, activation=activation)


@pytest.mark.parametrize(("biased", "activation"), FOLLOWING)
def test_what_follows_is_part_of_the_launch_and_right(gpu, biased, activation):
    a, b, offs = operands()
    bias = torch.randn(GROUPS, N).bfloat16() if biased else None
    out = room._on_gpu(a, b, offs, None, bias, activation)
    assert near(out, layer(a.double(), b.double(), None if bias is None else bias.double(), activation), torch.bfloat16)
    assert len(gpu) == 1
    room._on_gpu(a, b.contiguous(), offs, None, bias, activation)
    assert gpu[-1][0].layouts == ("kk" if activation == "swiglu" else "kn"), "gate and up are read along k"


@pytest.mark.parametrize(("biased", "activation"), FOLLOWING)
def test_gradients_of_what_follows_are_those_of_float64(biased, activation):
    a, b, offs = operands(torch.float16)
    given = [a, b.contiguous(), torch.randn(GROUPS, N).half()][: 2 + biased]
    pairs = with_gradients(
        lambda a, b, bias=None: operator(a, b, offs, None, bias, activation),
        lambda a, b, bias=None: layer(a, b, bias, activation),
        given,
    )
    assert all(torch.allclose(found.double(), exactly, rtol=2e-2, atol=2e-2) for found, exactly in pairs)


COUNTS = (0, 10, 3, -2, 99)


def masked_operands():
    """a (groups, rows, k), b (groups, k, n), counts, and the rows of each group that count."""
    a, b = torch.randn(5, 10, K).bfloat16(), torch.randn(5, K, N).bfloat16()
    return a, b, torch.tensor(COUNTS, dtype=torch.int32), [0, 10, 3, 0, 10]


@pytest.mark.parametrize(("biased", "activation"), FOLLOWING)
def test_rows_behind_a_count_are_not_written_and_have_no_part_in_gradients(gpu, biased, activation):
    a, b, counts, rows = masked_operands()
    given = [a, b, torch.randn(5, N).bfloat16()][: 2 + biased]
    flat = a.reshape(-1, K)
    out = room._on_gpu(flat, b, counts, None, given[2] if biased else None, activation, True)
    ((problem, left, _, _, ends),) = gpu
    assert (problem.grouping, problem.m, problem.groups, problem.rows) == ("masked", 50, 5, 10)
    assert (left.data_ptr(), ends.data_ptr()) == (a.data_ptr(), counts.data_ptr())
    used = torch.arange(10) < torch.tensor(rows)[:, None]
    wide = [tensor.detach().double().requires_grad_() for tensor in given]
    spans = [(10 * at, 10 * at + count) for at, count in enumerate(rows)]
    right = layer(wide[0].reshape(-1, K), wide[1], wide[2] if biased else None, activation, spans)
    assert near(out[used.flatten()], right, torch.bfloat16)
    for tensor in given:
        tensor.requires_grad_()
    bias = given[2] if biased else None
    if activation == "swiglu":
        out = hopper_gemm.grouped_swiglu(*given[:2], counts=counts)
    else:
        out = hopper_gemm.grouped_mm(*given[:2], counts=counts, bias=bias, activation=activation)
    with torch.no_grad():
        gradient = torch.randn_like(out)
        gradient[~used] = float("nan")
    out.backward(gradient)
    right.backward(gradient[used].double())
    for ours, exactly in zip(given, wide, strict=True):
        kept = used if ours is a else ...
        apart = ours.grad[kept].double() - exactly.grad[kept]
        assert float(apart.norm()) <= 2e-2 * float(exactly.grad[kept].norm())


def test_the_gradient_of_masked_weights_is_one_launch_along_k(gpu):
    a, _, counts, rows = masked_operands()
    b = torch.randn(50, N).bfloat16()
    out = room._on_gpu(a.reshape(-1, K).t(), b, counts, torch.float32, masked=True)
    assert gpu[0][0].grouping == "masked_depth"
    for at, count in enumerate(rows):
        right = a[at, :count].double().t() @ b[10 * at : 10 * at + count].double()
        assert torch.allclose(out[at].double(), right, atol=1e-4)


@needs_torch
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batches_take_what_follows_with_and_without_counts(dtype):
    a, b, counts, rows = masked_operands()
    a, b, bias = a.to(dtype), b.to(dtype), torch.randn(5, N).to(dtype)
    right = torch.relu(a.float() @ b.float() + bias.float()[:, None]).to(dtype)
    assert torch.allclose(hopper_gemm.grouped_mm(a, b, bias=bias, activation="relu"), right, rtol=0.02, atol=0.05)
    out = hopper_gemm.grouped_mm(a, b, counts=counts, bias=bias, activation="relu")
    for at, count in enumerate(rows):
        assert torch.allclose(out[at, :count], right[at, :count], rtol=0.02, atol=0.05)


@needs_torch
@pytest.mark.parametrize(("biased", "activation"), FOLLOWING)
def test_what_torch_runs_is_finished_by_torch(biased, activation):
    a, b, offs = operands(torch.float32)
    bias = torch.randn(GROUPS, N) if biased else None
    assert torch.allclose(public(a, b, offs, bias, activation), layer(a, b, bias, activation), rtol=1e-4, atol=1e-4)


def test_the_operator_is_what_torch_asks_of_one():
    a, b, offs = operands()
    torch.library.opcheck(operator.default, (a, b, offs))
    torch.library.opcheck(operator.default, (a, b, offs, torch.float32))
    given = a.requires_grad_(), b.detach().requires_grad_(), offs
    torch.library.opcheck(operator.default, given)
    bias = torch.randn(GROUPS, N).bfloat16().requires_grad_()
    for activation in ("gelu", "swiglu"):
        torch.library.opcheck(operator.default, (*given, None, bias if activation == "gelu" else None, activation))
    torch.library.opcheck(operator.default, (*given, None, bias, "relu", True))
    torch.library.opcheck(operator.default, (a.detach().t(), torch.randn(ROWS, N).bfloat16(), offs))


def test_a_compiled_call_makes_no_break_and_serves_all_numbers_of_rows():
    counter = CompileCounter()
    layer = torch.compile(lambda a, b, offs: operator(a, b, offs).relu(), fullgraph=True, dynamic=True, backend=counter)
    for rows in (40, 24, 17):
        a, (_, b, offs) = torch.randn(rows, K).bfloat16(), operands()
        assert torch.equal(layer(a, b, offs), operator(a, b, offs).relu())
    assert counter.frame_count == 1
    bias = torch.randn(GROUPS, N).bfloat16()
    for activation, added in (("gelu", bias), ("swiglu", None)):
        whole = torch.compile(public, fullgraph=True, backend=CompileCounter())
        assert torch.equal(whole(a, b, offs, added, activation), operator(a, b, offs, None, added, activation))
    with FakeTensorMode():
        a, b, offs = operands()
        assert hopper_gemm.grouped_mm(a, b, offs=offs).shape == (ROWS, N)
        assert hopper_gemm.grouped_mm(a, b, offs=offs, out_dtype=torch.float32).dtype == torch.float32


@needs_torch
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_the_kernel_cannot_run_torch_runs_unless_nothing_may(dtype):
    a, b, offs = operands(dtype)
    assert torch.equal(hopper_gemm.grouped_mm(a, b, offs=offs), functional.grouped_mm(a, b, offs=offs))
    for given in ((a, b), (a.t(), torch.randn(ROWS, N).to(dtype))):
        with hopper_gemm.fallback("never"), pytest.raises(UnsupportedError, match="must"):
            hopper_gemm.grouped_mm(*given, offs=offs)
        with hopper_gemm.batch_invariant(), pytest.raises(UnsupportedError, match="must"):
            hopper_gemm.grouped_mm(*given, offs=offs)


def test_two_batches_are_a_batched_product():
    a, b = torch.randn(3, 8, K).bfloat16(), torch.randn(3, K, N).bfloat16()
    assert torch.equal(hopper_gemm.grouped_mm(a, b), hopper_gemm.bmm(a, b))


def wrong_calls():
    """Calls that are refused, each with the error and its words."""
    a, b, offs = operands()
    fits = r"mat_a and mat_b must be \(rows, k\) and \(groups, k, n\) or \(m, k\) and \(k, n\) but got"
    public = hopper_gemm.grouped_mm
    return [
        (lambda: operator(a, b.mT, offs), ValueError, fits),
        (lambda: operator(a[None], b, offs), ValueError, fits),
        (lambda: operator(a, b.half(), offs), TypeError, "must both be bfloat16 or both float16"),
        (lambda: operator(a, b, offs.long()), ValueError, r"offs must be \(4,\) torch.int32, the end of each group"),
        (lambda: operator(a, b, offs[:3]), ValueError, r"offs must be \(4,\) torch.int32.* but is \(3,\)"),
        (
            lambda: operator(a, b, offs.to("meta")),
            ValueError,
            "groups must end on the operands' device, cpu, but end on meta",
        ),
        (lambda: operator(a, b, offs, torch.float16), TypeError, "out_dtype must be torch.bfloat16"),
        (lambda: operator(a[:, :28], b[:, :28], offs), ValueError, "k must be a multiple of 8 in groups but got 28"),
        (lambda: operator(a, b[..., :44], offs), ValueError, "n must be a multiple of 8 in groups but got 44"),
        (lambda: public(a, b), TypeError, "offs must be an int32 tensor but is None"),
        (lambda: public(a, None, offs=offs), TypeError, "mat_b must be a torch tensor but is 'NoneType'"),
        (lambda: operator(a, b, offs, None, a), ValueError, r"bias must be \(4, 48\) torch.bfloat16 on cpu but is"),
        (lambda: operator(a.t(), a, offs, None, a), ValueError, "bias and activation must be None unless groups are"),
        (lambda: public(a.t(), a, offs=offs, activation="relu"), ValueError, "bias and activation must be None unless"),
        (lambda: public(a, b, offs=offs, bias=3), TypeError, "bias must be a torch tensor but is 'int'"),
        (lambda: public(a, b, offs=offs, activation="tanh"), ValueError, "activation must be None or one of"),
        (
            lambda: operator(a, b[..., :40], offs, activation="swiglu"),
            ValueError,
            "n must be gate and up of a multiple",
        ),
        (lambda: hopper_gemm.grouped_swiglu(a, b), TypeError, "offs must be an int32 tensor"),
        (lambda: public(a, b, offs=offs, counts=offs), ValueError, "offs must be None"),
        (lambda: public(b.mT, b, offs=offs), ValueError, "offs must be None for two 3-D operands"),
        (lambda: public(a, b, counts=offs), ValueError, r"counts must be None unless mat_a is \(groups, rows, k\)"),
        (lambda: public(b.mT, b, counts=[3]), TypeError, "counts must be an int32 tensor but is"),
        (lambda: public(b.mT[:3], b, counts=offs), ValueError, "mat_a and mat_b must have one number of groups"),
        (
            lambda: operator(a, b, offs[:3], masked=True),
            ValueError,
            r"counts must be \(4,\) torch.int32, the rows of each",
        ),
        (lambda: operator(a[:38], b, offs, masked=True), ValueError, "masked groups must be of one size but 4"),
    ]


@pytest.mark.parametrize("number", range(len(wrong_calls())))
def test_what_does_not_fit_is_refused_in_one_line(number):
    refused_in_one_line(*wrong_calls()[number])


def test_without_the_dispatcher_a_call_has_the_operators_output_and_gradients_also_of_gradients(gpu):
    """Of every argument, through an activation and along k; twice, since the second order is the operator's."""

    def derived(run, deep):
        torch.manual_seed(0)
        a, b, offs = operands()
        bias = torch.randn(GROUPS, N).bfloat16()
        given = (a.t(), torch.randn(ROWS, N).bfloat16(), offs, None, None, None, False)
        given = given if deep else (a, b, offs, None, bias, "silu", False)
        leaves = [tensor.requires_grad_() for tensor in given if getattr(tensor, "dtype", None) == torch.bfloat16]
        first = torch.autograd.grad(run(*given).square().sum(), leaves, create_graph=True)
        return [*first, *torch.autograd.grad(sum(part.square().sum() for part in first), leaves)]

    for deep in (False, True):
        both = zip(derived(room._Recorded.apply, deep), derived(operator, deep), strict=True)
        assert all(torch.equal(ours, theirs) for ours, theirs in both)
    assert gpu


def test_what_waits_or_is_batched_is_the_operators():
    """A subclass may wait for a collective; the vmap of ``torch.autograd.grad`` is no transform of torch.func."""
    seen = []

    class Waiting(torch.Tensor):
        pass

    x = torch.randn(3, 4)
    torch._vmap_internals._vmap(lambda part: seen.append(room._plain(part)) or part)(x)
    assert (room._plain(x, None), room._plain(x, x.as_subclass(Waiting)), *seen) == (True, False, False)
