"""The library repeats a launch on tensors like those that were recorded, and on no others."""

from __future__ import annotations

import shutil
import stat
import threading
from itertools import count, product

import pytest
import torch

import hopper_gemm
from hopper_gemm.compiler import shared
from hopper_gemm.compiler.abi import ARGUMENTS
from hopper_gemm.compiler.loader import LoadedKernel
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve
from hopper_gemm.serve import checks, known, linear, matmul
from hopper_gemm.serve.known import KnownLaunches, library
from hopper_gemm.serve.linear_ops import linear_op, swiglu_op
from tests.serve.launcher import launcher
from tests.serve.test_linear import layer
from tests.serve.test_matmul import Launches, random

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler (cc, gcc, clang), or an older torch")

SETTINGS = count(10**9)
"""Settings of these tests alone."""

ORDER = (132, True, 8, False)


@pytest.fixture
def functions():
    library()["forget"]()
    yield library()
    library()["forget"]()


class Noted:
    """A launcher that keeps what it was called with."""

    def __init__(self):
        self.calls = []
        self.launcher = launcher(lambda *given: self.calls.append(given))


def recorded(functions, *given, transposes=True, setting=None):
    """A launcher recorded for tensors, and its setting."""
    noted, setting = Noted(), next(SETTINGS) if setting is None else setting
    assert functions["record"](noted.launcher, transposes, *ORDER, setting, *given)
    return noted, setting


def matrices(m=16, n=8, k=24, dtype=torch.bfloat16):
    return random(m, k, dtype), random(n, k, dtype).t(), random(m, n, dtype)


@pytest.mark.parametrize("transposes", [True, False])
@pytest.mark.parametrize(
    "added", [(), (random(1, 8)[0], random(16, 8), 0.5), (None, None, None), (None, random(16, 8), 2)]
)
def test_a_launch_gets_the_matrices_its_own_order_and_what_is_added(functions, transposes, added):
    noted, setting = recorded(functions, *matrices(), *added, transposes=transposes)
    a, b, out = matrices()
    assert functions["launch"](setting, a, b, out, *added) == 1
    ((*read, written), rest) = noted.calls[0][:3], noted.calls[0][3:]
    assert torch.equal(read[0], a)
    assert torch.equal(read[1], b.t() if transposes else b)
    assert read[1].stride() == (b.t() if transposes else b).stride()
    assert written.data_ptr() == out.data_ptr()
    assert rest[:6] == (*ORDER, None, None)
    assert len(rest) == len(ARGUMENTS) - 3
    assert rest[6 + len(added) :] == (None,) * (4 - len(added))
    for got, given in zip(rest[6:], added, strict=False):
        assert torch.equal(got, given) if isinstance(given, torch.Tensor) else got == given


A, B, OUT = matrices()

UNLIKE = {
    "more rows": matrices(m=17),
    "more columns": matrices(n=16),
    "another depth": matrices(k=32),
    "another type": matrices(dtype=torch.float16),
    "a wider output": (A, B, OUT.float()),
    "another pitch": (random(16, 32)[:, :24], B, OUT),
    "the other layout": (random(24, 16).t(), B, OUT),
    "the other layout of b": (A, random(24, 8), OUT),
    "something added": (A, B, OUT, None),
    "three axes": (A[None], B, OUT),
    "no tensor": (A, None, OUT),
    "an output too few": (A, B),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_what_differs_in_anything_is_not_known(functions, name):
    noted, setting = recorded(functions, A, B, OUT)
    assert functions["launch"](setting, *UNLIKE[name]) == 0
    assert functions["launch"](next(SETTINGS), A, B, OUT) == 0
    assert noted.calls == []


def test_fp16_is_told_from_fp32(functions):
    a, b, out = matrices(dtype=torch.float16)
    _, setting = recorded(functions, a, b, out)
    assert functions["launch"](setting, a, b, out.float()) == 0


def test_vectors_are_no_matrices(functions):
    for given in ((A[0], B, OUT), (A, B[0], OUT), (A, B, OUT[0])):
        assert functions["record"](Noted().launcher, True, *ORDER, next(SETTINGS), *given) == 0


def test_what_was_forgotten_is_not_known(functions):
    noted, setting = recorded(functions, A, B, OUT)
    functions["forget"]()
    assert functions["launch"](setting, A, B, OUT) == 0
    recorded(functions, A, B, OUT, setting=setting)
    assert functions["launch"](setting, A, B, OUT) == 1
    assert noted.calls == []


@pytest.mark.parametrize(
    ("before", "after"),
    list(product([None, random(1, 8)[0], random(16, 8), 0.5, 2], repeat=2)),
    ids=lambda one: type(one).__name__ + (str(one.dim()) if isinstance(one, torch.Tensor) else ""),
)
def test_what_is_added_is_part_of_what_is_known_but_a_numbers_value_is_not(functions, before, after):
    noted, setting = recorded(functions, A, B, OUT, before)
    alike = type(before) is type(after) and getattr(before, "shape", None) == getattr(after, "shape", None)
    assert functions["launch"](setting, A, B, OUT, after) == alike
    assert len(noted.calls) == alike
    if alike:
        got = noted.calls[0][9]
        assert torch.equal(got, after) if isinstance(after, torch.Tensor) else got == after


def shifted(one):
    """A tensor like another, two bytes further."""
    memory = torch.empty(one.numel() + 8, dtype=one.dtype)
    return memory[1:].as_strided(one.shape, one.stride()).copy_(one)


@pytest.mark.parametrize("which", range(4))
def test_an_address_off_a_multiple_of_16_bytes_is_left_to_python(functions, which):
    given = [A, B, OUT, random(1, 8)[0]]
    noted, setting = recorded(functions, *given)
    assert functions["launch"](setting, *given) == 1
    given[which] = shifted(given[which])
    assert functions["launch"](setting, *given) == 0
    assert len(noted.calls) == 1


def test_an_output_that_may_share_memory_with_an_operand_is_left_to_python(functions):
    memory = random(1, 4096)[0]
    a, w, out = memory.as_strided((16, 32), (32, 1)), random(32, 32), memory.as_strided((16, 32), (32, 1), 512)
    noted, setting = recorded(functions, a, w, out)
    assert functions["launch"](setting, a, w, out) == 1, "side by side"
    for start in (0, 8, 504):
        assert functions["launch"](setting, a, w, memory.as_strided((16, 32), (32, 1), start)) == 0
    assert functions["launch"](setting, memory.as_strided((16, 32), (32, 1), 1016), w, out) == 0
    assert functions["launch"](setting, random(16, 32), memory.as_strided((32, 32), (32, 1), 520), out) == 0
    assert len(noted.calls) == 1


def test_an_output_may_be_what_is_added_but_not_a_part_of_it(functions):
    memory = random(1, 4096)[0]
    a, w, out = random(16, 32), random(32, 32), memory.as_strided((16, 32), (32, 1))
    noted, setting = recorded(functions, a, w, out, None, out)
    assert functions["launch"](setting, a, w, out, None, out) == 1
    assert functions["launch"](setting, a, w, out, None, random(16, 32)) == 1
    for start in (8, 504):
        assert functions["launch"](setting, a, w, out, None, memory.as_strided((16, 32), (32, 1), start)) == 0
    wide = memory.as_strided((16, 32), (64, 1))
    _, other = recorded(functions, a, w, out, None, wide)
    assert functions["launch"](other, a, w, out, None, wide) == 0
    _, other = recorded(functions, a, w, out, memory.as_strided((32,), (1,)))
    assert functions["launch"](other, a, w, out, memory.as_strided((32,), (1,), 24)) == 0
    assert functions["launch"](other, a, w, out, memory.as_strided((32,), (1,), 512)) == 1
    assert len(noted.calls) == 2


def test_of_many_records_each_launches_its_own_function_and_the_oldest_may_be_gone(functions):
    every = [
        (recorded(functions, *matrices(m, n), setting=5 * m + s), (5 * m + s, m, n))
        for m, n, s in product(range(1, 41), range(8, 216, 8), range(5))
    ]
    assert len(every) > 4096
    served = 0
    for (noted, _), (setting, m, n) in every:
        served += functions["launch"](setting, *matrices(m, n))
        assert all((a.shape[0], w.shape[0]) == (m, n) for a, w, *_ in noted.calls)
    assert sum(len(noted.calls) for (noted, _), _ in every) == served
    assert 1000 < served <= 4096
    assert functions["launch"](every[-1][1][0], *matrices(*every[-1][1][1:])) == 1


def test_threads_may_record_launch_and_forget_at_once(functions):
    wrong, done = [], threading.Event()

    def work(number):
        for turn in range(300):
            m = 1 + (turn * 7 + number) % 50
            given = matrices(m)
            noted, setting = recorded(functions, *given)
            functions["launch"](setting, *given)
            if any(call[0].shape[0] != m for call in noted.calls) or len(noted.calls) > 1:
                wrong.append((number, turn))

    def clear():
        while not done.is_set():
            functions["forget"]()

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    clearing = threading.Thread(target=clear)
    for one in (*workers, clearing):
        one.start()
    for one in workers:
        one.join()
    done.set()
    clearing.join()
    assert wrong == []


def test_an_error_of_the_kernel_is_the_callers(functions):
    def fails(*given):
        raise ValueError("no such launch")

    failing, setting = launcher(fails), next(SETTINGS)
    assert functions["record"](failing, True, *ORDER, setting, A, B, OUT)
    for _ in range(2):
        with pytest.raises(ValueError, match="no such launch"):
            functions["launch"](setting, A, B, OUT)


# Within matmul and linear --------------------------------------------------------------------


def test_a_known_product_is_not_looked_up_by_python(monkeypatch):
    launches = Launches(monkeypatch, repeats=True)
    first, others = (random(16, 24), random(8, 24).t()), (random(16, 24), random(8, 24).t())
    out = random(16, 8)
    hopper_gemm.matmul(*first)
    monkeypatch.setattr(matmul, "_known", None)
    assert torch.equal(hopper_gemm.matmul(*others), others[0] @ others[1])
    assert hopper_gemm.matmul(*first, out=out) is out
    assert torch.equal(out, first[0] @ first[1])
    assert len(launches.loaded) == 1
    assert len(launches.made) == 3


def test_a_kernel_with_a_workspace_is_launched_by_python():
    made = KnownLaunches()
    kernel = LoadedKernel(resolve(GemmConfig(scheduler="dynamic")), None, Noted().launcher, 132)
    assert not kernel.repeatable
    made.record(kernel, True, made.setting("test"), A, B, OUT)
    made.record(lambda *given: None, True, made.setting("test"), A, B, OUT)
    assert made.launch is None


def test_a_setting_has_another_number_after_the_tables_changed():
    made, other = KnownLaunches(), KnownLaunches()
    first = made.setting("isolated", True)
    assert made.setting("isolated", True) == first
    assert len({first, made.setting("isolated", False), other.setting("isolated", True)}) == 3
    made.forget()
    assert made.setting("isolated", True) > first


@pytest.fixture(params=["library", "extension"])
def layers(monkeypatch, request, functions):
    """A GPU's kernels of layers, by their CPU references; the finishes that were loaded, and the kernels' calls."""
    loaded, calls = [], []

    def kernel_for(problem, device, config, finish):
        def launch(a, w, out, *rest):
            bias, residual, scale = rest[6:9]
            whole = (
                swiglu_op(a, w)
                if finish.gated
                else linear_op(a, w, bias, finish.activation or None, residual, scale, out.dtype)
            )
            out.copy_(whole)
            calls.append(rest)

        loaded.append(finish)
        return LoadedKernel(resolve(GemmConfig()), None, launcher(launch), 132)

    monkeypatch.setattr(linear, "_known", {})
    extension = request.getfixturevalue("extension") if request.param == "extension" else None
    monkeypatch.setattr(linear, "KNOWN", KnownLaunches(extension=lambda: extension))
    monkeypatch.setattr(checks, "check_device", lambda device: None)
    monkeypatch.setattr(linear, "kernel_for", kernel_for)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: -1)
    return loaded, calls


@pytest.mark.parametrize("scale", [None, 0.5])
@pytest.mark.parametrize("activation", [None, "gelu"])
def test_a_known_layer_is_not_looked_up_by_python(layers, monkeypatch, activation, scale):
    def both():
        x, w, bias, residual = layer()
        asked = {"bias": bias, "activation": activation, "residual": residual, "scale": scale}
        assert torch.equal(hopper_gemm.linear(x, w, **asked), linear_op(x, w, *asked.values()))
        w = torch.cat((w, w))
        assert torch.equal(hopper_gemm.swiglu(x, w), swiglu_op(x, w))

    both()
    monkeypatch.setattr(linear, "_known", None)
    both()
    assert len(layers[0]) == 2
    assert len(layers[1]) == 4


@pytest.mark.parametrize("added", ["nothing", "a residual", "itself"])
@pytest.mark.parametrize("shape", [(24, 40), (3, 8, 40)], ids=["matrix", "leading axes"])
def test_a_known_layer_is_written_where_the_caller_says(layers, monkeypatch, added, shape):
    def written():
        x, w, bias, residual = layer(m=shape[:-1])
        out = torch.randn(shape).to(torch.bfloat16)
        residual = {"nothing": None, "a residual": residual, "itself": out}[added]
        expected = linear_op(x, w, bias, "silu", residual)
        with torch.no_grad():
            assert hopper_gemm.linear(x, w, bias, "silu", residual, out=out) is out
        assert torch.equal(out, expected)

    written()
    written()
    monkeypatch.setattr(linear, "_known", None)
    written()
    x, w, bias, _ = layer(m=shape[:-1])
    with torch.no_grad(), pytest.raises(ValueError, match="out must be"):
        hopper_gemm.linear(x, w, bias, "silu", out=torch.empty(2, 12, 40, dtype=torch.bfloat16))
    assert len(layers[0]) == 1


def test_settings_of_layers_are_told_apart(layers):
    x, w, bias, residual = layer()
    for activation, added in product([None, "gelu", "silu"], [None, residual]):
        for _ in range(2):
            assert torch.equal(
                hopper_gemm.linear(x, w, bias, activation, added), linear_op(x, w, bias, activation, added)
            )
    assert len(layers[0]) == 6
    assert len(layers[1]) == 12


# Where the library comes from ----------------------------------------------------------------


def test_the_library_is_made_once_and_kept_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made, build = [], shared.built
    monkeypatch.setattr(shared, "built", lambda *given: made.append(given) or build(*given))
    import tvm_ffi

    include = tvm_ffi.libinfo.find_include_path()
    place = shared.library_of(known.SOURCE, include, "1")
    assert place is not None
    assert place.is_relative_to(tmp_path)
    assert shared.library_of(known.SOURCE, include, "1") == place
    assert len(made) == 1
    assert shared.library_of(known.SOURCE, include, "2") != place
    place.chmod(place.stat().st_mode | stat.S_IWOTH)
    assert shared.library_of(known.SOURCE, include, "1") is None, "others may write to it"


def test_the_packages_own_library_comes_first(monkeypatch, tmp_path):
    monkeypatch.setattr(shared, "FOLDER", tmp_path)
    monkeypatch.setattr(shared, "built", None)
    brought = tmp_path / shared.library_name(known.SOURCE, "1")
    brought.write_bytes(b"")
    assert shared.library_of(known.SOURCE, "", "1") == brought


@pytest.mark.parametrize("lacks", ["a compiler", "its headers", "a folder"])
def test_without_a_library_python_launches(monkeypatch, tmp_path, lacks):
    home = tmp_path / "home"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    if lacks == "a compiler":
        monkeypatch.setattr(shutil, "which", lambda name: None)
    elif lacks == "its headers":
        import tvm_ffi

        monkeypatch.setattr(tvm_ffi.libinfo, "find_include_path", lambda: str(tmp_path))
    else:
        home.write_text("no folder")
    monkeypatch.setattr(known, "library", known.library.__wrapped__)
    assert known.library() is None
    launches = Launches(monkeypatch)
    monkeypatch.setattr(matmul, "KNOWN", KnownLaunches(known.library))
    a, b = random(16, 24), random(24, 8)
    for _ in range(2):
        assert torch.equal(hopper_gemm.matmul(a, b), a @ b)
    assert len(launches.loaded) == 1
    assert matmul.KNOWN.launch is None
