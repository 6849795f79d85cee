"""Torch serves a call while its kernel is compiled in the background, where its product is the same; nothing else
changes, and such calls are counted apart."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch._guards import CompileContext, CompileId, compile_context

import hopper_gemm
from hopper_gemm.cli.stored import clear
from hopper_gemm.compiler import pool, store
from hopper_gemm.compiler.cubin import CubinReport
from hopper_gemm.compiler.pool import Built
from hopper_gemm.compiler.store import KernelStore, PaddingId, default_store
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.serve import background, bmm, grouped_mm, kernels
from hopper_gemm.serve import launches as room
from hopper_gemm.serve.background import Background
from hopper_gemm.serve.fallback import POLICY, WAITING, torch_may_serve
from tests.serve.test_matmul import random

M, N, K = 16, 8, 24
PROBLEM = GemmProblem(M, N, K, layouts="kn")
REPORT = CubinReport(168, 0, 0, 0, 8, 1, 2, 1, 500, "0")


class Compiler:
    """Stands in for the processes: what was submitted is compiled when a test says so."""

    def __init__(self):
        self.submitted, self.done, self.closed = [], {}, False

    def submit(self, kernels):
        self.submitted += kernels

    def built(self, kernel):
        return self.done.get(kernel)

    def close(self):
        self.closed = True

    def end(self, status="ok", reason=""):
        """All that was submitted is compiled, or was not."""
        self.done |= {kernel: Built(status, reason, REPORT if status == "ok" else None) for kernel in self.submitted}


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """The processes of a background of its own, with an empty store."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(store, "shipped", lambda kernel: None)
    made = Compiler()
    fresh = Background(lambda store: made)
    for module in (background, kernels, room, grouped_mm):
        monkeypatch.setattr(module, "BACKGROUND", fresh)
    return made


CALLS = {
    "matmul": (lambda a, b, bias: hopper_gemm.matmul(a, b), lambda a, b, bias: a @ b),
    "linear": (lambda a, b, bias: hopper_gemm.linear(a, b.t()), lambda a, b, bias: a @ b),
    "bias": (lambda a, b, bias: hopper_gemm.linear(a, b.t(), bias), lambda a, b, bias: torch.addmm(bias, a, b)),
}


@pytest.mark.parametrize("name", CALLS)
def test_torch_serves_until_the_kernel_is_compiled_and_the_next_call_takes_it(launches, compiler, name):
    ours, theirs = CALLS[name]
    a, b, bias = random(M, K), random(K, N), random(1, N)[0]
    for _ in range(3):
        assert torch.equal(ours(a, b, bias), theirs(a, b, bias))
    assert (launches.names, launches.loaded) == (["torch"] * 3, [])
    compiler.end()
    for _ in range(2):
        ours(a, b, bias)
    assert len(launches.made) == 2
    assert "torch" not in launches.names[3:]
    assert list(hopper_gemm.compiling().by_torch.values()) == [3]


def test_a_batch_is_torchs_until_the_kernel_is_compiled(by_python, compiler, monkeypatch):
    seen, multiply = [], torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda *given, **named: seen.append(1) or multiply(*given, **named))
    a, b = random(2 * M, K).view(2, M, K), random(2 * K, N).view(2, K, N)
    run = bmm._bmm  # the operator on a GPU
    assert torch.equal(run(a, b), multiply(a, b))
    assert (len(seen), by_python.made) == (1, [])
    run(a, b, batch_invariant=True)
    assert (len(seen), len(by_python.made)) == (1, 1)
    compiler.end()
    grouped_mm.kernel_of_groups.cache_clear()
    run(a, b)
    assert (len(seen), len(by_python.made)) == (1, 2)
    assert sum(hopper_gemm.compiling().by_torch.values()) == 1


def test_a_launch_that_is_known_asks_nothing_of_the_background(launches, compiler, monkeypatch):
    a, b = random(M, K), random(K, N)
    hopper_gemm.matmul(a, b)
    compiler.end()
    hopper_gemm.matmul(a, b)
    monkeypatch.setattr(background.BACKGROUND, "compiles", None)
    monkeypatch.setattr(kernels, "torch_may_serve", None)
    hopper_gemm.matmul(a, b)
    assert launches.names == ["torch", "product", "product"]


# Calls that wait --------------------------------------------------------------------------------


@contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextmanager
def capturing():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        patch.setattr(room, "loading_allowed", nullcontext)
        yield


def compiling_a_graph():
    return compile_context(CompileContext(CompileId(frame_id=0, frame_compile_id=0)))


WAITS = {
    "wait": (lambda: hopper_gemm.while_compiling("wait"), {}),
    "never": (lambda: hopper_gemm.fallback("never"), {}),
    "never, as an argument": (nullcontext, {"fallback": "never"}),
    "a config": (nullcontext, {"config": GemmConfig()}),
    "batch-invariant": (hopper_gemm.batch_invariant, {}),
    "batch-invariant, as an argument": (nullcontext, {"batch_invariant": True}),
    "deterministic": (deterministic, {}),
    "capture": (capturing, {}),
    "Inductor times": (compiling_a_graph, {}),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_call_waits_whose_product_must_be_the_kernels(by_python, compiler, name):
    within, named = WAITS[name]
    with within():
        hopper_gemm.matmul(random(M, K), random(K, N), **named)
    assert (by_python.names, compiler.submitted) == (["product"], [])
    assert (WAITING, POLICY.while_compiling) == ([], None)


def test_what_torch_has_no_equal_product_of_waits(by_python, compiler):
    a, w, bias = random(M, K), random(2 * N, K), random(1, 2 * N)[0]
    hopper_gemm.linear(a, w, bias, "gelu")
    hopper_gemm.linear(a, w, scale=0.5)
    hopper_gemm.linear(a, w, bias, out_dtype=torch.float32)
    hopper_gemm.swiglu(a, w)
    assert (len(by_python.made), compiler.submitted) == (4, [])


def test_a_thread_that_says_nothing_waits_while_another_does_and_one_that_says_torch_does_not(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    found = {}

    def other():
        found["nothing"] = torch_may_serve()
        with hopper_gemm.while_compiling("torch"):
            found["torch"] = torch_may_serve()

    for within in (lambda: hopper_gemm.while_compiling("wait"), lambda: hopper_gemm.fallback("never")):
        with within():
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        assert found == {"nothing": False, "torch": True}
        assert torch_may_serve()


def test_a_policy_that_does_not_exist_is_refused():
    for wrong in ("never", None, True):
        with pytest.raises(ValueError, match="must be torch or wait"), hopper_gemm.while_compiling(wrong):
            pass


# What is compiled -------------------------------------------------------------------------------


def test_a_kernel_that_cannot_be_compiled_is_one_warning_and_torch_goes_on(by_python, compiler):
    a, b = random(M, K), random(K, N)
    hopper_gemm.matmul(a, b)
    compiler.end("compile_error", "ptxas: no")
    with pytest.warns(RuntimeWarning, match=f"the kernel of {PROBLEM} cannot be compiled .*: ptxas: no; .*never"):
        hopper_gemm.matmul(a, b)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hopper_gemm.matmul(a, b)
        state = hopper_gemm.compiling()
    assert by_python.names == ["torch"] * 3
    assert (state.pending, state.failed) == ((), {PROBLEM: "ptxas: no"})
    assert str(state).splitlines() == [
        "3 calls by torch while kernels were compiled, 0 pending",
        f"  {PROBLEM} bf16 kn: 3 calls, failed: ptxas: no",
    ]
    with hopper_gemm.fallback("never"):
        hopper_gemm.matmul(a, b)  # loads, which raises what the compiler does
    assert len(by_python.loaded) == 1


def test_what_is_compiled_can_be_listed_after_a_store_refused_a_call(compiler, monkeypatch):
    """Of two kernels the first is being compiled when the store raises at the second: no call counts for it."""

    def looked_up(kernel):
        if isinstance(kernel, PaddingId):
            raise PermissionError("another user owns it")

    monkeypatch.setattr(background, "compiled_in", looked_up)
    monkeypatch.setattr(kernels, "torch_may_serve", lambda: True)
    with pytest.raises(PermissionError):
        kernels.refuse_uncompiled(PROBLEM, 0, padded=True)
    compiler.end("compile_error", "ptxas: no")
    assert hopper_gemm.compiling() == background.Compiling((), {}, {})


def test_what_a_store_has_is_not_compiled_and_what_no_store_can_keep_is_the_calls(compiler, monkeypatch, tmp_path):
    asked = background.BACKGROUND
    kernel = PaddingId()
    assert asked.compiles(PROBLEM, [kernel])
    compiler.end()
    for change in (
        lambda: KernelStore(default_store()).put(kernel, b"object", REPORT),
        lambda: monkeypatch.setattr(store, "shipped", lambda kernel: store.Shipped(REPORT, tmp_path, "", 0, 0)),
        lambda: monkeypatch.setattr(KernelStore, "prepare", lambda self: (_ for _ in ()).throw(PermissionError())),
    ):
        compiler.submitted.clear()
        change()
        assert not Background(lambda store: compiler).compiles(PROBLEM, [kernel])
        assert compiler.submitted == []
        clear(KernelStore(default_store()))
        monkeypatch.setattr(store, "shipped", lambda kernel: None)


def test_where_no_process_can_be_started_the_call_compiles(by_python, compiler, monkeypatch):
    def fails(kernels):
        raise BlockingIOError("fork: retry")

    monkeypatch.setattr(compiler, "submit", fails)
    hopper_gemm.matmul(random(M, K), random(K, N))
    assert (by_python.names, compiler.closed, hopper_gemm.compiling().pending) == (["product"], True, ())
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    hopper_gemm.matmul(random(2 * M, K), random(K, N))
    assert by_python.names == ["product"] * 2


def test_padding_is_waited_for_as_its_kernel_is(by_python, compiler):
    hopper_gemm.matmul(random(M, 25), random(25, N))
    assert [isinstance(kernel, PaddingId) for kernel in compiler.submitted] == [False, True]
    assert by_python.names == ["torch"]


def test_a_call_that_waits_takes_what_a_process_is_compiling(compiler, monkeypatch):
    monkeypatch.setattr(kernels, "_loaded", {})
    monkeypatch.setattr(kernels, "load", lambda *given, **named: list(compiler.done))
    monkeypatch.setattr(kernels, "torch_may_serve", lambda: True)
    with pytest.raises(background.UncompiledError):
        kernels.refuse_uncompiled(PROBLEM, 0)
    later = threading.Timer(0.1, compiler.end)
    later.start()
    assert kernels.kernel_for(PROBLEM, 0) == compiler.submitted[:1]


def test_a_fork_begins_anew(compiler):
    assert background.BACKGROUND.compiles(PROBLEM, [PaddingId()])
    with background.BACKGROUND._lock:  # as held by another thread
        child = os.fork()
        if not child:
            background.BACKGROUND.begin()
            os._exit(0 if background.BACKGROUND.state().pending == () else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert background.BACKGROUND.state().pending == (PROBLEM,)


def test_a_process_that_compiles_ends_when_it_is_idle(monkeypatch):
    monkeypatch.setattr(pool, "compiling", lambda store: lambda kernel: pool.signal.alarm(0))
    handler = pool.compiling_while_needed(None)
    try:
        assert handler(None) == 0
        assert handler(None) == 0  # no alarm while it compiles
        assert pool.signal.alarm(0) > 0
    finally:
        pool.signal.alarm(0)


SCRIPT = """
import os, sys, time
from hopper_gemm.compiler.store import PaddingId
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.serve.background import BACKGROUND, compiling
problem, kernels = GemmProblem(8, 8, 8), [PaddingId()]
assert BACKGROUND.compiles(problem, kernels)
(child,) = BACKGROUND._pool._busy.values()
print(child._process.pid, flush=True)
while sys.argv[1] == "wait" and BACKGROUND.compiles(problem, kernels):
    time.sleep(0.05)
if sys.argv[1] == "fork" and not os.fork():
    assert compiling().pending == ()
    sys.exit()
assert "cutlass" not in sys.modules
"""


@pytest.mark.parametrize("how", ["wait", "leave", "fork"])
def test_a_process_compiles_and_ends_with_the_program(tmp_path, how):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, how], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    with pytest.raises(ProcessLookupError):
        os.kill(int(run.stdout), 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert (KernelStore(default_store()).report(PaddingId()) is not None) == (how == "wait")
