"""A compiled kernel in this process, ready to launch.

The DSL links an object file in memory at each load, and importing it takes a second. A shared library made once by the
system's linker is loaded in a quarter of a millisecond, and needs only TVM-FFI and the DSL's runtime library, whose
path it holds.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import tempfile
import threading
import warnings
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopper_gemm.compiler.abi import NO_FINISH, NO_SCALES
from hopper_gemm.compiler.cubin import CubinReport, read_cubin
from hopper_gemm.compiler.residency import resident_clusters
from hopper_gemm.compiler.store import (
    FUNCTION,
    AnyId,
    KernelId,
    KernelStore,
    Shipped,
    UnwritableError,
    default_store,
    shipped,
)
from hopper_gemm.compiler.workspaces import WORKSPACES
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.kernel import Kernel, resolve
from hopper_gemm.model.legality import reasons
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import clusters_launched, tile_sides

if TYPE_CHECKING:
    import torch


FIXED_WORDS = 4
"""Words of a workspace before the ledgers: the counters of pace and of the dynamic scheduler among them."""

RUNTIME = "libcute_dsl_runtime.so"

UNBOUNDED = 2**30
"""Clusters of a launch that is not persistent: the kernel takes as many as there are tiles."""

LOADING = threading.RLock()
"""Held while a kernel is compiled or loaded: the compiler is not thread-safe."""


class IllegalConfigError(ValueError):
    """The config cannot run the problem; the message gives every reason."""


@dataclass(frozen=True)
class LoadedKernel:
    """A launchable kernel: the resolved config, launch arguments included, its resources, the compiled host function,
    and the clusters that can be resident at once on this GPU."""

    config: Kernel
    report: CubinReport
    launcher: Any
    clusters: int

    @staticmethod
    def of(config: Kernel, report: CubinReport, launcher: Any) -> LoadedKernel:
        """Return the kernel of a launcher (:func:`launcher_of`) for the current device."""
        clusters = resident_clusters(config.cluster_size) * config.ctas_per_sm
        return LoadedKernel(config, report, launcher, clusters)

    def __call__(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        out: torch.Tensor,
        *finish: Any,
        readings: torch.Tensor | None = None,
        scales: tuple[torch.Tensor, torch.Tensor] | tuple[None, ...] = NO_SCALES,
        ends: torch.Tensor | None = None,
    ) -> None:
        """Launch on torch's current stream; nothing is checked and nothing is waited for. Arguments are as
        :mod:`hopper_gemm.compiler.abi` declares them, ``finish`` of a kernel with one its bias, residual and scale,
        None for each that it lacks; the first axis of ``readings`` is :meth:`ctas` long."""
        sums = words = None
        if not self.repeatable:
            needs = workspace_size(self.config, *out.shape[-2:], self.clusters)
            sums, words = WORKSPACES.get(out.get_device(), *needs)
        self.launcher(a, b, out, *self.order, sums, words, *(finish or NO_FINISH), readings, *scales, ends)

    @cached_property
    def repeatable(self) -> bool:
        """True if a launch needs its matrices alone, and no workspace of the stream."""
        return not self.config.has_workspace

    @cached_property
    def order(self) -> tuple[int, bool, int, bool, int, bool]:
        """Launch arguments that are the same every time, :data:`hopper_gemm.compiler.abi.ORDER`."""
        config = self.config
        most = clusters_launched(config, self.clusters) if config.persistent else UNBOUNDED
        walk = most, config.raster == "m", config.swizzle, config.serpentine
        return *walk, config.work_items, config.part_order == "part"


@lru_cache(maxsize=4096)
def workspace_size(config: Kernel, m: int, n: int, clusters: int) -> tuple[int, int]:
    """Floats and 32-bit words of a launch with an (m, n) output; see :mod:`hopper_gemm.kernel.sums.workspace`."""
    tile, shares = config.tile_m * config.tile_n * config.cluster_size, config.cluster_size * config.consumers
    if config.stream_k:
        return 2 * clusters * tile, FIXED_WORDS + clusters * shares
    if config.parts_at_launch:
        tiles = prod(tile_sides(config, m, n))
        return tiles * config.split_k * tile, FIXED_WORDS + tiles * shares
    return 0, FIXED_WORDS


def compile_into(store: KernelStore, kernel: AnyId) -> CubinReport:
    """Return the kernel's report; compile the kernel into the store if it is missing there."""
    report = store.report(kernel)
    if report is None:
        store.prepare()
        from hopper_gemm.compiler.compile import compile_kernel, compile_padding

        if isinstance(kernel, KernelId):
            options = kernel.dtype, kernel.layouts, kernel.observer, kernel.finish, kernel.scattered, kernel.promote
            compiled = compile_kernel(kernel.config, *options, kernel.grouping)
        else:
            compiled = compile_padding()
        report = read_cubin(compiled.cubin)
        store.put(kernel, compiled.object_file, report, link(compiled.object_file))
    return report


@cache
def _stand_in(reason: str) -> tempfile.TemporaryDirectory[str]:
    """A folder of this process for the kernels that a store cannot keep; warn of the reason, once."""
    warnings.warn(f"kernels are compiled again in each process: {reason}", stacklevel=2)
    return tempfile.TemporaryDirectory(prefix="hopper-gemm-")


def load(
    config: GemmConfig,
    problem: GemmProblem,
    store: Path | None = None,
    observer: str = "",
    finish: Epilogue | None = None,
    scattered: bool | None = None,
) -> LoadedKernel:
    """A kernel for a config and a problem, from the store, from the package, or compiled now (about a second), loaded
    for the current device. TMA must reach its operands, or see :func:`hopper_gemm.compiler.padded.behind_padding`. An
    IllegalConfigError gives the rules that refuse the config, the problem or the finish.

    Args:
        problem: only its type and layouts matter to the binary, and whether TMA reaches C; its sizes are checked.
        store: the folder of compiled kernels, by default in the user's cache folder, before those of the package.
        observer: class of an observer, as module:name; the kernel's call then takes readings too.
        finish: what the epilogue does before it rounds, by default that of the problem's scales.
        scattered: whether rows of C may start anywhere; None: as a contiguous C needs.
    """
    if violations := reasons(config, problem, finish):
        raise IllegalConfigError("; ".join(map(str, violations)))
    kernel = KernelId.of(config, problem, observer, finish, scattered)
    report, launcher = load_binary(kernel, store)
    return LoadedKernel.of(resolve(config), report, launcher)


def load_binary(kernel: AnyId, store: Path | None = None) -> tuple[CubinReport, Any]:
    """A binary's report and its launcher, from the store, from the package, or compiled now."""
    kernels = KernelStore(store or default_store())
    with LOADING:
        if store is None and kernels.report(kernel) is None and (ready := shipped(kernel)) is not None:
            with contextlib.suppress(RuntimeError, OSError):  # as it is where the package cannot be used as it was made
                return ready.report, launcher_in(ready)
        try:
            return compile_into(kernels, kernel), launcher_of(kernels.object_file(kernel))
        except UnwritableError as error:
            kernels = KernelStore(Path(_stand_in(str(error)).name))
        except Exception:
            if kernels.object_file(kernel).is_file():
                raise  # else another process cleared the store between look-up and loading
        return compile_into(kernels, kernel), launcher_of(kernels.object_file(kernel))


@cache
def launcher_of(object_file: Path) -> Any:
    """The launcher in an object file, from the shared library beside it where there is one; else the DSL links it."""
    library = object_file.with_suffix(".so")
    if library.is_file():
        try:
            return load_shared(library, FUNCTION)
        except RuntimeError:
            pass  # the DSL is no longer where it was when the library was made
    from cutlass import cute

    return cute.runtime.load_module(str(object_file), enable_tvm_ffi=True)[FUNCTION]


@cache
def launcher_in(ready: Shipped) -> Any:
    """The launcher of a kernel that the package brings. Its library is a file in memory, so that it needs no disk from
    which programs may run; the loader wants a name that ends in ``.so``."""
    with (
        tempfile.TemporaryDirectory(prefix="hopper-gemm-") as scratch,
        open(os.memfd_create("hopper_gemm"), "wb") as memory,
    ):
        memory.write(ready.library())
        memory.flush()
        library = Path(scratch) / "kernel.so"
        library.symlink_to(f"/proc/self/fd/{memory.fileno()}")
        _runtime()
        return load_shared(library, FUNCTION)


def link(object_file: bytes, portable: bool = False) -> bytes | None:
    """The shared library of an object file; None without a linker or the DSL's runtime library. Imports the DSL.
    ``portable``: leave out where this host's runtime library is."""
    from cutlass.runtime import find_runtime_libraries

    linker = shutil.which("ld")
    runtime = next((Path(path) for path in find_runtime_libraries() if path.endswith(RUNTIME)), None)
    if linker is None or runtime is None:
        return None
    with tempfile.TemporaryDirectory(prefix="hopper-gemm-") as scratch:
        source, made = Path(scratch) / "kernel.o", Path(scratch) / "kernel.so"
        source.write_bytes(object_file)
        path = [] if portable else ["-rpath", str(runtime.parent)]
        command = [linker, "-shared", "-s", "-Bsymbolic", *path, "-o", str(made), str(source), str(runtime)]
        run = subprocess.run(command, capture_output=True, check=False)
        return made.read_bytes() if run.returncode == 0 else None


def load_shared(library: Path, function: str) -> Any:
    """The launcher of a shared library; a RuntimeError where it cannot be loaded, such as one for another processor."""
    import tvm_ffi

    return tvm_ffi.load_module(str(library))[function]


@cache
def _runtime() -> ctypes.CDLL | None:
    """The DSL's runtime library, None where there is none. Loaded, it is found by libraries that need it by name and do
    not know where it is. To load it after they failed took a second of a process's first call: the loader's error reads
    the symbols of all libraries, torch's among them."""
    spec = find_spec("nvidia_cutlass_dsl")
    roots = [] if spec is None else spec.submodule_search_locations or []
    for path in (Path(root) / cuda / "lib" / RUNTIME for root in roots for cuda in ("cu13", "cu12")):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(str(path))
    return None
