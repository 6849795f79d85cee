"""CUDA_VISIBLE_DEVICES says where tune runs; what it found is what matmul then launches in a new process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager

import pynvml
import pytest

from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.tuned import FILE, read_tuned
from hopper_gemm.tune.measure.device import find_hopper
from tests.conftest import ROOT

pytestmark = pytest.mark.gpu

PROBLEM = GemmProblem(1536, 2560, 3072)
CONTEXT_BYTES = 200 * 2**20
"""Less than a CUDA context with the problem's matrices takes, more than NVML's figure moves on an idle GPU."""

CALL = f"""
import json, torch, hopper_gemm
from hopper_gemm.tune.measure.correctness import check
from hopper_gemm.serve.kernels import kernel_for
a = torch.randn({PROBLEM.m}, {PROBLEM.k}, device="cuda").bfloat16()
b = torch.randn({PROBLEM.n}, {PROBLEM.k}, device="cuda").bfloat16().t()
with hopper_gemm.while_compiling("wait"):
    wrong = check(hopper_gemm.matmul(a, b), a.float() @ b.float(), {PROBLEM.k}).reason
kernel = kernel_for(hopper_gemm.GemmProblem({PROBLEM.m}, {PROBLEM.n}, {PROBLEM.k}), 0)
board = f"GPU-{{torch.cuda.get_device_properties(0).uuid}}"
print(json.dumps([wrong, kernel.config.as_dict(), kernel.report.code, board]))
"""
"""A user's program: it calls matmul and prints what is wrong with the product, which kernel is loaded for the call, and
where the call ran."""


@pytest.fixture
def checkout(tmp_path):
    """A checkout of links, so that tuned entries and studies go to a folder of the test."""
    (tmp_path / "results").mkdir()
    for name in ("hopper_gemm", "pyproject.toml", "sweeps", "results/h200"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


@contextmanager
def watched(uuids):
    """The most memory of each board during the block beyond what it held before, in bytes, by UUID."""
    pynvml.nvmlInit()
    boards = {uuid: pynvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids}
    before = {uuid: pynvml.nvmlDeviceGetMemoryInfo(board).used for uuid, board in boards.items()}
    most, over = dict.fromkeys(uuids, 0), threading.Event()

    def poll() -> None:
        while not over.wait(0.05):
            for uuid, board in boards.items():
                most[uuid] = max(most[uuid], pynvml.nvmlDeviceGetMemoryInfo(board).used - before[uuid])

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()


def ran(checkout, visible: str, *words: str) -> str:
    """What a Python process of the checkout prints, with some GPUs visible."""
    path = os.pathsep.join([str(checkout), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": visible}
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return done.stdout


def tuned_and_called(checkout, visible: str, board: str) -> None:
    """Tune the problem, then call matmul in a new process: it runs the entry, on the same board, and is right."""
    sizes = map(str, (PROBLEM.m, PROBLEM.n, PROBLEM.k))
    ran(checkout, visible, "-m", "hopper_gemm", "tune", *sizes, "--seconds", "5")
    (table,) = (checkout / "results" / "local").glob(f"*/{FILE}")
    (entry,) = read_tuned(table)
    assert (entry.problem, entry.context, entry.board) == (PROBLEM, "isolated", board)
    told = json.loads(ran(checkout, visible, "-c", CALL).splitlines()[-1])
    assert told == [None, entry.config.as_dict(), entry.code, board]


def boards_here() -> list[str]:
    """UUIDs of all boards of this host, in NVML's order."""
    pynvml.nvmlInit()
    handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
    return [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]


@pytest.mark.alone  # the worker of the first GPU must leave it idle
@pytest.mark.timeout(420, method="thread")
@pytest.mark.parametrize("by", ["index", "uuid"])
def test_tune_runs_on_the_visible_gpu_while_the_first_stays_idle(checkout, by):
    boards = boards_here()
    if len(boards) < 2:
        pytest.skip(f"two GPUs are needed, there is {len(boards)}")
    with watched(boards) as most:
        tuned_and_called(checkout, "1" if by == "index" else boards[1], boards[1])
    assert most[boards[1]] > CONTEXT_BYTES
    assert most[boards[0]] < CONTEXT_BYTES


def test_what_tune_found_is_what_matmul_launches_in_a_new_process(checkout):
    board = find_hopper().uuid
    tuned_and_called(checkout, board, board)
