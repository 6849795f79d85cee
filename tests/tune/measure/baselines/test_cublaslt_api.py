"""The C interface: sizes and offsets as the headers have them, every status checked, the arguments in their order."""

from __future__ import annotations

import ctypes
from ctypes import c_void_p

import pytest

from hopper_gemm.tune.measure.baselines import cublaslt_api as api
from hopper_gemm.tune.measure.baselines.cublaslt_api import Algo, CublasLtError, HeuristicResult, Layout, Library


class Function:
    """A C function that notes its calls and succeeds, unless told to fail."""

    def __init__(self, name: str, log: list) -> None:
        self.name, self._log, self.status, self.act = name, log, 0, None

    def __call__(self, *arguments):
        self._log.append((self.name, arguments))
        if self.act is not None:
            self.act(*arguments)
        return self.status


class FakeShared:
    """A stand-in for the library's file."""

    def __init__(self) -> None:
        self.log: list = []
        self._functions: dict[str, Function] = {}

    def __getattr__(self, name: str) -> Function:
        return self._functions.setdefault(name, Function(name, self.log))

    def called(self, name: str) -> list:
        return [arguments for called, arguments in self.log if called == name]


A, B, D = Layout(64, 32, 32, api.ROW_MAJOR), Layout(32, 16, 32, api.COLUMN_MAJOR), Layout(64, 16, 16, api.ROW_MAJOR)


def test_structures_have_the_sizes_and_offsets_of_the_headers():
    assert ctypes.sizeof(Algo) == 64
    assert ctypes.sizeof(HeuristicResult) == 96
    offsets = {name: getattr(HeuristicResult, name).offset for name, *_ in HeuristicResult._fields_}
    assert offsets == {"algo": 0, "workspace_bytes": 64, "state": 72, "waves": 76, "reserved": 80}


def test_every_function_has_its_signature_before_it_is_called():
    shared = FakeShared()
    Library(shared)
    for name, arguments in api._SIGNATURES.items():
        assert getattr(shared, name).argtypes == list(arguments)
        assert getattr(shared, name).restype is ctypes.c_int
    assert len(api._SIGNATURES["cublasLtMatmul"]) == 16
    assert len(api._SIGNATURES["cublasLtMatmulAlgoGetHeuristic"]) == 10
    assert len(api._SIGNATURES["cublasLtMatmulAlgoGetIds"]) == 10
    assert len(api._SIGNATURES["cublasLtMatmulAlgoInit"]) == 9
    assert len(api._SIGNATURES["cublasLtMatmulAlgoCheck"]) == 8


def test_a_failed_call_names_itself_and_its_status():
    shared = FakeShared()
    shared.cublasLtMatmulDescCreate.status = 15
    with pytest.raises(CublasLtError, match=r"cublasLtMatmulDescCreate: not supported \(15\)"):
        Library(shared).plan(("bf16", "bf16", "bf16"), (A, B, D), (False, False))


def test_a_plan_describes_its_matrices_and_frees_them_when_it_is_dropped():
    shared = FakeShared()
    plan = Library(shared).plan(("bf16", "bf16", "bf16"), (A, B, D), (False, True))
    created = [arguments[1:] for arguments in shared.called("cublasLtMatrixLayoutCreate")]
    assert created == [(14, 64, 32, 32), (14, 32, 16, 32), (14, 64, 16, 16)]
    assert shared.called("cublasLtMatmulDescCreate")[0][1:] == (68, 0)
    assert [call[1] for call in shared.called("cublasLtMatmulDescSetAttribute")] == [3, 4]
    assert shared.called("cublasLtMatrixLayoutDestroy") == []
    del plan
    assert len(shared.called("cublasLtMatrixLayoutDestroy")) == 3
    assert len(shared.called("cublasLtMatmulDescDestroy")) == 1


def test_the_product_of_a_plan_may_have_a_wider_type_than_its_operands():
    shared = FakeShared()
    plan = Library(shared).plan(("bf16", "bf16", "fp32"), (A, B, D), (False, True))
    assert [arguments[1] for arguments in shared.called("cublasLtMatrixLayoutCreate")] == [14, 14, 0]
    assert shared.called("cublasLtMatmulDescCreate")[0][1:] == (68, 0), "as ever: computed and scaled in fp32"
    del plan


def test_heuristics_are_those_that_came_back_with_success():
    shared = FakeShared()

    def answer(*arguments):
        results, returned = arguments[8], arguments[9]
        for number, state in enumerate((0, 15, 0)):
            results[number].state = state
            results[number].algo.data[0] = number
        returned._obj.value = 3

    shared.cublasLtMatmulAlgoGetHeuristic.act = answer
    plan = Library(shared).plan(("bf16", "bf16", "bf16"), (A, B, D), (False, False))
    assert [result.algo.data[0] for result in plan.heuristics(2**25, 100)] == [0, 2]
    assert shared.called("cublasLtMatmulAlgoGetHeuristic")[0][7] == 100
    workspace = shared.called("cublasLtMatmulPreferenceSetAttribute")[0]
    assert (workspace[1], workspace[2]._obj.value, workspace[3]) == (1, 2**25, 8)


def test_ids_and_capabilities_are_asked_for_as_the_headers_say():
    shared = FakeShared()

    def ids(*arguments):
        arguments[8][0], arguments[8][1], arguments[9]._obj.value = 6, 66, 2

    def capability(algo, attribute, values, size, written):
        tell = {6: [18, 20, 24], 7: [7]}[attribute]
        written._obj.value = 4 * len(tell)
        if values is not None:
            values[:] = tell

    shared.cublasLtMatmulAlgoGetIds.act = ids
    shared.cublasLtMatmulAlgoCapGetAttribute.act = capability
    library = Library(shared)
    plan = library.plan(("bf16", "bf16", "fp32"), (A, B, D), (False, False))
    first, _ = plan.ids()
    types = (68, 0, 14, 14, 0, 0)
    assert shared.called("cublasLtMatmulAlgoGetIds")[0][1:8] == (*types, api.IDS)
    assert [call[1:8] for call in shared.called("cublasLtMatmulAlgoInit")] == [(*types, 6), (*types, 66)]
    assert (library.capability(first, "tile"), library.capability(first, "custom")) == ([18, 20, 24], [7])
    shared.cublasLtMatmulAlgoCapGetAttribute.status = 7
    assert library.capability(first, "tile") == []


def test_combinations_are_those_that_the_library_would_run_within_the_workspace():
    """Each is set attribute by attribute, with the sizes of the headers, then checked; none shares memory with the
    next."""
    shared = FakeShared()
    state: dict[int, int] = {}

    def set_attribute(algo, attribute, value, size):
        state[attribute] = value._obj.value
        algo._obj.data[attribute % 8] = value._obj.value

    def check(*arguments):
        arguments[7]._obj.workspace_bytes = 2**30 if state[1] == 20 else 2**20
        arguments[7]._obj.state = 15 if state[8] == 5 else 0

    shared.cublasLtMatmulAlgoConfigSetAttribute.act = set_attribute
    shared.cublasLtMatmulAlgoCheck.act = check
    plan = Library(shared).plan(("bf16", "bf16", "bf16"), (A, B, D), (False, False))
    found = list(plan.legal(Algo(), {"tile": (18, 20, 24), "cluster": (3, 5)}, 2**28))
    assert [(algo.data[1], algo.data[0]) for algo in found] == [(18, 3), (24, 3)]
    sizes = {call[1]: call[3] for call in shared.called("cublasLtMatmulAlgoConfigSetAttribute")}
    assert sizes == {1: 4, 8: 2}
    assert len(shared.called("cublasLtMatmulAlgoCheck")[0]) == 8
    shared.cublasLtMatmulAlgoConfigSetAttribute.status = 7
    assert list(plan.legal(Algo(), {"tile": (18,)}, 2**28)) == []


def test_a_launch_passes_c_as_d_and_the_workspace_last_but_the_stream():
    shared = FakeShared()
    plan = Library(shared).plan(("bf16", "bf16", "bf16"), (A, B, D), (False, False))
    plan.run(Algo(), 1, 2, 3, 4, 5, 6)
    (arguments,) = shared.called("cublasLtMatmul")
    assert len(arguments) == 16
    assert (arguments[3], arguments[5], arguments[8], arguments[10]) == (1, 2, 3, 3)
    assert arguments[13:] == (4, 5, 6)
    assert (arguments[2]._obj.value, arguments[7]._obj.value) == (1.0, 0.0)


def test_a_launch_with_scales_points_to_those_of_its_matrices():
    shared = FakeShared()
    plan = Library(shared).plan(("e4m3", "e4m3", "bf16"), (A, B, D), (True, False))
    plan.scale((3, 3), (16, 32), False)
    plan.run(Algo(), 1, 2, 3, 4, 5, 6, 48, 64)
    values = [(call[1], call[2]._obj.value) for call in shared.called("cublasLtMatmulDescSetAttribute")]
    assert values[2:] == [(31, 3), (32, 3), (25, 0), (17, 16), (18, 32), (17, 48), (18, 64)]


def test_the_library_in_use_is_found_among_the_mapped_files_and_preferred():
    maps = (
        "7f00-7f01 r-xp 00000000 fe:00 12 /usr/lib/libc.so.6\n"
        "7f02-7f03 r--p 00000000 fe:00 13 /opt/my env/nvidia/lib/libcublasLt.so.13\n"
    )
    assert api._mapped(maps) == "/opt/my env/nvidia/lib/libcublasLt.so.13"
    assert api._mapped("") is None
    tried = []

    def dll(name):
        tried.append(name)
        if name.endswith(".12"):
            return name
        raise OSError(name)

    assert api.load("/x/libcublasLt.so.13", dll) == "libcublasLt.so.12"
    assert tried[0] == "/x/libcublasLt.so.13"


def test_a_machine_without_the_library_is_told_so():
    def dll(name):
        raise OSError(name)

    with pytest.raises(OSError, match="can be loaded; install a torch with CUDA"):
        api.load(None, dll)


def test_the_real_library_agrees_with_every_number_used_here():
    """Descriptors need no GPU: what is set is read back, and each attribute has the size that is passed."""
    try:
        shared = api.load(None)
    except OSError as error:
        pytest.skip(str(error))
    library = Library(shared)
    plan = api.Plan(library, c_void_p(), ("bf16",) * 3, (A, B, D), (False, True))
    get = shared.cublasLtMatrixLayoutGetAttribute
    get.argtypes = shared.cublasLtMatmulDescGetAttribute.argtypes = [
        c_void_p,
        ctypes.c_int,
        c_void_p,
        ctypes.c_size_t,
        ctypes.POINTER(ctypes.c_size_t),
    ]

    def read(function, made, attribute, kind):
        value, written = kind(), ctypes.c_size_t()
        assert function(made, attribute, ctypes.byref(value), ctypes.sizeof(value), ctypes.byref(written)) == 0
        return value.value

    kinds = (ctypes.c_uint32, ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64)
    for made, layout in zip(plan._layouts, (A, B, D), strict=True):
        found = [read(get, made, attribute, kind) for attribute, kind in enumerate(kinds)]
        assert found == [14, layout.order, layout.rows, layout.cols, layout.pitch]
    flags = [read(shared.cublasLtMatmulDescGetAttribute, plan._desc, n, ctypes.c_int32) for n in (0, 1, 3, 4)]
    assert flags == [68, 0, 0, 1]
    scaled = api.Plan(library, c_void_p(), ("e4m3", "e4m3", "bf16"), (A, B, D), (True, False))
    scaled.scale(api.SCALE_MODES["blocks"], (256, 512), True)
    kinds = {17: ctypes.c_uint64, 18: ctypes.c_uint64, 25: ctypes.c_int8, 31: ctypes.c_int32, 32: ctypes.c_int32}
    values = [read(shared.cublasLtMatmulDescGetAttribute, scaled._desc, at, kind) for at, kind in kinds.items()]
    assert values == [256, 512, 1, 4, 5]
    assert set(library.algo_fields(Algo())) == set(api.ALGO_FIELDS)
