"""Shared libraries of kernels: loaded without the DSL; absent or damaged ones are replaced."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hopper_gemm.cli.stored import clear
from hopper_gemm.compiler import loader
from hopper_gemm.compiler.loader import compile_into
from hopper_gemm.compiler.store import KernelId, KernelStore
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.problem import GemmProblem

KERNEL = KernelId.of(GemmConfig(tile_m=64, tile_n=64), GemmProblem(512, 512, 512))

LOAD = """
import sys, torch
from pathlib import Path
from hopper_gemm.compiler.abi import NO_FINISH, NO_OBSERVER, NO_WORKSPACE, ORDER
from hopper_gemm.compiler.loader import launcher_of
launch, matrix = launcher_of(Path(sys.argv[1])), torch.zeros(64, 64, dtype=torch.bfloat16)
try:
    launch(matrix, matrix, matrix, *[1] * len(ORDER), *NO_WORKSPACE, *NO_FINISH, *NO_OBSERVER)
except ValueError as error:
    print("cutlass" in sys.modules, "device_type=cuda" in str(error))
"""


def loaded(store: KernelStore) -> str:
    """What a fresh process says that loads the kernel and calls it with matrices on a CPU."""
    command = [sys.executable, "-c", LOAD, str(store.object_file(KERNEL))]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.compile
def test_a_kernel_is_loaded_from_its_shared_library_and_without_one_by_the_dsl(tmp_path, monkeypatch):
    store, without = KernelStore(tmp_path / "store"), KernelStore(tmp_path / "without")
    report = compile_into(store, KERNEL)
    assert store.object_file(KERNEL).with_suffix(".so").is_file()
    assert loaded(store) == "False True"
    monkeypatch.setattr(loader.shutil, "which", lambda name: None)
    assert compile_into(without, KERNEL) == report
    assert not without.object_file(KERNEL).with_suffix(".so").is_file()
    assert loaded(without) == "True True"
    store.object_file(KERNEL).with_suffix(".so").write_bytes(b"damaged")
    assert store.report(KERNEL) is None
    assert clear(store).kernels == 1
    assert not store.object_file(KERNEL).with_suffix(".so").exists()
