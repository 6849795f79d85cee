"""The launch's arguments are declared once: kernel, launcher and C agree with the declaration."""

from __future__ import annotations

import inspect
import re

import pytest

from hopper_gemm.compiler import extension
from hopper_gemm.compiler.abi import ARGUMENTS, DEFINITIONS, FINISH
from hopper_gemm.compiler.compile import FUNCTION, compile_kernel
from hopper_gemm.kernel.gemm import HopperGemm
from hopper_gemm.lab.counters.waits import METER
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.kernel import resolve

NAMES = [argument.name for argument in ARGUMENTS]


def test_the_kernel_takes_the_declared_arguments_in_their_order_and_a_stream():
    assert [*inspect.signature(HopperGemm.__call__).parameters] == ["self", *NAMES, "stream"]


@pytest.mark.compile
@pytest.mark.parametrize("everything", [True, False])
def test_a_launcher_takes_all_arguments_whether_its_kernel_has_them_or_not(tmp_path, everything):
    """One launch table serves all kernels: it never asks which of them a kernel has."""
    from cutlass import cute

    config = GemmConfig(128, 128, split_k=3, reduction="workspace") if everything else GemmConfig(128, 128)
    more = {"observer": METER, "finish": Epilogue(True, True, "gelu", True, scales="row")} if everything else {}
    (tmp_path / "kernel.o").write_bytes(compile_kernel(resolve(config), "e4m3_bf16", **more).object_file)
    launcher = cute.runtime.load_module(str(tmp_path / "kernel.o"), enable_tvm_ffi=True)[FUNCTION]
    with pytest.raises(TypeError) as refused:
        launcher()
    taken = re.findall(r"(\w+): ([\w.]+)", str(refused.value).partition("__call__(")[2])
    assert [name for name, _ in taken] == NAMES
    absent = {name for name, kind in taken if kind == "None"}
    assert absent == ({"ends"} if everything else {argument.name for argument in ARGUMENTS if argument.part})


@pytest.mark.compile
def test_a_kernel_of_groups_of_rows_takes_where_they_end(tmp_path):
    from cutlass import cute

    (tmp_path / "kernel.o").write_bytes(compile_kernel(resolve(GemmConfig()), "bf16", grouping="rows").object_file)
    launcher = cute.runtime.load_module(str(tmp_path / "kernel.o"), enable_tvm_ffi=True)[FUNCTION]
    with pytest.raises(TypeError, match=r"ends: Tensor\(\[\w+\], int32\)"):
        launcher()


def test_another_declaration_makes_another_library_of_c(tmp_path, monkeypatch):
    """The library that was kept for the former arguments is not called with the new ones."""
    source = tmp_path / "known.c"
    source.write_text("")
    before = extension.extension_name(source)
    assert f"-DABI_FINISH={len(FINISH)}" in DEFINITIONS
    monkeypatch.setattr(extension, "DEFINITIONS", ("-DABI_FINISH=9",))
    assert extension.extension_name(source) != before
